package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxRedirects = 10
	maxWords     = 1000 // bytes of what a registry says that a message repeats
)

// again are the answers after which a request is sent once more.
var again = []int{http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}

// registry is a repository of a registry, with the right to read it.
type registry struct {
	repo   name.Repository
	limits Limits
	guard  *guard
	client *http.Client
}

func openRegistry(ctx context.Context, r Request, want platform) (*Image, error) {
	ref, err := parse(r)
	if err != nil {
		return nil, err
	}
	o := &registry{repo: ref.Context(), limits: r.Limits, guard: newGuard(ref.Context().RegistryStr(), r.InsecureRegistries)}
	im, err := o.image(ctx, ref, r, want)
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	im.cache = r.Cache
	return im, nil
}

func (o *registry) image(ctx context.Context, ref name.Reference, r Request, want platform) (*Image, error) {
	if err := o.login(ctx, r.Auth); err != nil {
		return nil, err
	}
	d, err := o.manifest(ctx, ref.Identifier())
	if err != nil {
		return nil, err
	}
	m, err := choose(ctx, o, r.Limits, want, d)
	if err != nil {
		return nil, err
	}
	return take(ctx, o, r.Limits, m, want)
}

// login shakes hands with the registry: it says whether it wants credentials,
// and where a token is to be had. They go to the registry's host and to the
// token server that it names, and to no other.
func (o *registry) login(ctx context.Context, a Auth) error {
	ctx, cancel := o.briefly(ctx)
	defer cancel()
	auth := authn.Authenticator(&authn.Basic{Username: a.Username, Password: a.Password})
	if a == (Auth{}) {
		var err error
		if auth, err = authn.Resolve(ctx, authn.DefaultKeychain, o.repo); err != nil {
			return fault.Wrap(fault.ImageDenied, err, "credentials of %s", o.repo.RegistryStr())
		}
	}
	steady := transport.NewRetry(o.guard,
		transport.WithRetryBackoff(transport.Backoff{Duration: backoff, Factor: 2, Steps: lineTries}),
		transport.WithRetryPredicate(isBroken),
		transport.WithRetryStatusCodes(again...))
	t, err := transport.NewWithContext(ctx, o.repo.Registry, auth, steady, []string{o.repo.Scope(transport.PullScope)})
	if err != nil {
		return o.fault(ctx, err)
	}
	o.client = &http.Client{Transport: t, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return fmt.Errorf("it was led on %d times", maxRedirects)
		}
		return nil
	}}
	return nil
}

// isBroken tells failures after which the same may go well.
func isBroken(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var temporary interface{ Temporary() bool }
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		errors.As(err, &temporary) && temporary.Temporary()
}

// briefly bounds a question whose answer is small. A line that brings a layer
// bounds itself.
func (o *registry) briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, answerTime, fault.New(fault.RegistryDown, "registry %s: no whole answer within %s", o.repo.RegistryStr(), answerTime))
}

// manifest reads a manifest or index by tag or digest.
func (o *registry) manifest(ctx context.Context, identifier string) (document, error) {
	ctx, cancel := o.briefly(ctx)
	defer cancel()
	resp, err := o.get(ctx, "manifests", identifier, http.Header{"Accept": {strings.Join([]string{ociIndex, dockerList, ociManifest, dockerManifest}, ", ")}})
	if err != nil {
		return document{}, o.fault(ctx, err)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, o.limits.Manifest+1))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return document{}, o.fault(ctx, err)
	}
	if int64(len(b)) > o.limits.Manifest {
		return document{}, fault.New(fault.ManifestTooLarge, "manifest %.200q is larger than the %d bytes that are read", identifier, o.limits.Manifest)
	}
	sum := sha256.Sum256(b)
	d := document{b, servedType(resp.Header.Get("Content-Type")), "sha256:" + hex.EncodeToString(sum[:])}
	if digestForm.MatchString(identifier) && d.digest != identifier {
		return document{}, fault.New(fault.ImageInvalid, "manifest %s: its bytes have %s", identifier, d.digest)
	}
	return d, nil
}

// get asks the registry for a thing of the repository. An answer of a status
// that is no success is an error.
func (o *registry) get(ctx context.Context, what, id string, h http.Header) (*http.Response, error) {
	u := url.URL{Scheme: o.repo.Scheme(), Host: o.repo.RegistryStr(), Path: "/v2/" + o.repo.RepositoryStr() + "/" + what + "/" + id}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header = h
	resp, err := o.client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}

func (o *registry) close() error {
	o.guard.next.CloseIdleConnections()
	return nil
}

// fault tells what a registry refused from a registry that is away, and both
// from an image that is broken.
func (o *registry) fault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var coded *fault.Error
	if errors.As(err, &coded) {
		return coded
	}
	// Of its own host the library tries both, so that TLS may have failed first.
	var plain *plainError
	if errors.As(err, &plain) && (plain.host != o.repo.RegistryStr() || errors.Is(err, http.ErrSchemeMismatch)) {
		return notListed(fault.RegistryDown, plain.host)
	}
	short := brief{err}
	var answer *transport.Error
	if errors.As(err, &answer) {
		return fault.Wrap(o.answerCode(answer), short, "registry %s", o.repo.RegistryStr())
	}
	return fault.Wrap(fault.RegistryDown, short, "registry %s", o.repo.RegistryStr())
}

func (o *registry) answerCode(e *transport.Error) *fault.Code {
	path := ""
	if e.Request != nil {
		path = e.Request.URL.Path
	}
	switch manifest := strings.Contains(path, "/manifests/"); {
	case e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden:
		return fault.ImageDenied
	case e.StatusCode == http.StatusNotFound && manifest:
		return fault.ImageNotFound
	case e.StatusCode == http.StatusNotFound && strings.Contains(path, "/blobs/"):
		return fault.ImageInvalid // it names what the registry lacks
	case e.StatusCode == http.StatusBadRequest && manifest:
		return fault.ImageRef
	}
	return fault.RegistryDown
}

// brief keeps what others said short, and free of what a signed address would
// give away.
type brief struct{ error }

func (b brief) Unwrap() error { return b.error }

func (b brief) Error() string {
	var e *url.Error
	if errors.As(b.error, &e) {
		if u, err := url.Parse(e.URL); err == nil && u.RawQuery != "" {
			u.RawQuery = "..."
			e.URL = u.Redacted()
		}
	}
	text := strings.ReplaceAll(b.error.Error(), aliasEnd, "")
	if len(text) > maxWords {
		text = text[:maxWords] + "..."
	}
	return text
}

// The pace of trying again, and how long a line may be silent. Tests change
// them.
var (
	backoff    = 200 * time.Millisecond
	idleTime   = time.Minute     // without a byte, the registry is taken for away
	answerTime = 2 * time.Minute // for a whole manifest, or a login, with all tries
)
