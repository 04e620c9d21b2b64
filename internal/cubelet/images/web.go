package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/address"
)

// web asks over HTTP. It follows one redirect, to an object store: without the
// artifact's token, and never to a private address that is not listed.
type web struct {
	named  *http.Client // for addresses that we were told of
	led    *http.Client // for those that an answer leads to
	listed []string
}

func newWeb(listed []string) *web {
	return &web{named: newClient(nil), led: newClient(refusePrivate), listed: listed}
}

func newClient(control func(network, addr string, _ syscall.RawConn) error) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                 nil, // the master and its store are reached directly
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second, Control: control}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second,
			IdleConnTimeout:       time.Minute,
			MaxIdleConnsPerHost:   downloadsAtOnce * spansAtOnce,
			DisableCompression:    true, // the bytes are those of the image
		},
	}
}

func (w *web) close() {
	w.named.CloseIdleConnections()
	w.led.CloseIdleConnections()
}

// refusePrivate is asked with each address before it is dialled.
func refusePrivate(_, addr string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil || address.Private(to.Addr()) {
		return fmt.Errorf("%s is a private address and not listed in cubelet.redirect_to", addr)
	}
	return nil
}

// origin is the store of one artifact, as the master told of it.
type origin struct {
	w        *web
	id       string
	url      string
	token    string
	directly atomic.Bool // it must send the bytes itself: where it led to was of no use
}

// get asks for a part of the artifact, as a Range header says; all of it when
// that is empty.
func (o *origin) get(ctx context.Context, span string) (*http.Response, error) {
	link := o.url
	if u, err := url.Parse(o.url); err == nil && o.directly.Load() {
		q := u.Query()
		q.Set(cubeapi.QueryRedirect, "false")
		u.RawQuery = q.Encode()
		link = u.String()
	}
	answer, err := o.w.ask(ctx, o.w.named, link, o.token, span)
	if err != nil || !leadsOn(answer.StatusCode) {
		return answer, err
	}
	to, err := answer.Location()
	_ = answer.Body.Close() // nothing of it is wanted
	if err == nil {
		answer, err = o.follow(ctx, to, span)
	}
	if err != nil && ctx.Err() == nil {
		o.directly.Store(true)
		return nil, fault.New(fault.PeerUnavailable, "download of artifact %s: the store leads to %s: %v", o.id, hostOf(to), bare(err))
	}
	return answer, err
}

// follow asks where the store leads to. The token is not for strangers.
func (o *origin) follow(ctx context.Context, to *url.URL, span string) (*http.Response, error) {
	if to.Scheme != "http" && to.Scheme != "https" {
		return nil, errors.New("that is no web address")
	}
	client := o.w.led
	if from, err := url.Parse(o.url); slices.Contains(o.w.listed, withPort(to)) || err == nil && withPort(from) == withPort(to) {
		client = o.w.named
	}
	answer, err := o.w.ask(ctx, client, to.String(), "", span)
	if err != nil {
		return nil, err
	}
	switch answer.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		return answer, nil
	}
	return nil, errors.Join(fmt.Errorf("the answer there is HTTP status %d", answer.StatusCode), answer.Body.Close())
}

func (w *web) ask(ctx context.Context, client *http.Client, link, token, span string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return nil, fault.New(fault.InvalidInput, "the url of a download cannot be read")
	}
	if token != "" {
		req.Header.Set(cubeapi.HeaderArtifactToken, token)
	}
	if span != "" {
		req.Header.Set("Range", span)
	}
	answer, err := client.Do(req)
	if err != nil {
		return nil, fault.Wrap(fault.PeerUnavailable, bare(err), "download")
	}
	return answer, nil
}

func leadsOn(status int) bool {
	return status == http.StatusMovedPermanently || status == http.StatusFound || status == http.StatusSeeOther ||
		status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect
}

// hostOf names where a link leads, without what it is signed with.
func hostOf(u *url.URL) string {
	if u == nil {
		return "nowhere"
	}
	return u.Host
}

func withPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// isWords reports whether an answer is words, whatever its status says: they
// are never bytes of an image.
func isWords(answer *http.Response) bool {
	kind, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// refused keeps the code of a coded refusal.
func refused(answer *http.Response, id string) error {
	var e cubeapi.Envelope
	if json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&e) == nil && e.Error != nil {
		return fmt.Errorf("download of artifact %s: %w", id, fault.Parse(*e.Error, answer.StatusCode))
	}
	return fault.New(fault.PeerUnavailable, "download of artifact %s: the answer is HTTP status %d and no image", id, answer.StatusCode)
}

// bare takes the URL out of a client's error: it may carry a token.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

const triesAtMost = 5 // in a row without a byte of progress

// persist tries again while the other side may only be away for a moment. Each
// try that brought something starts the count anew.
func persist(ctx context.Context, try func() (brought int64, err error)) error {
	const firstPause = 100 * time.Millisecond
	pause := firstPause
	for n := 1; ; n++ {
		brought, err := try()
		if err == nil {
			return nil
		}
		if brought > 0 {
			n, pause = 1, firstPause
		}
		if n == triesAtMost || ctx.Err() != nil || !fault.Of(err).Class.Retry || errors.Is(err, fault.DiskFull) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// during returns a context that ends when nothing came for so long; alive must
// be called for what came, stop at the end.
func during(ctx context.Context, stall time.Duration) (_ context.Context, alive, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w %s", errStalled, stall)) })
	return ctx, func() { timer.Reset(stall) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

var errStalled = errors.New("no byte came for")

// cut words why a transfer on ctx broke off.
func cut(ctx context.Context, err error, id string) error {
	var coded *fault.Code
	if stalled := context.Cause(ctx); errors.Is(stalled, errStalled) {
		err = stalled
	} else if errors.As(err, &coded) || errors.Is(err, errUnfit) {
		return err
	}
	return fault.Wrap(fault.PeerUnavailable, bare(err), "download of artifact %s", id)
}

// watched tells of every byte that passes.
type watched struct {
	r     io.Reader
	alive func()
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if n > 0 {
		w.alive()
	}
	return n, err
}
