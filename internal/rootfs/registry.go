package rootfs

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	dialTime   = 10 * time.Second
	headerTime = 30 * time.Second
)

// parse reads the reference. An http:// before it demands what the list
// allows; docker:// and https:// say nothing new.
func parse(r Request) (name.Reference, error) {
	text, plain := strings.TrimSpace(r.Reference), false
	for _, scheme := range []string{"docker://", "https://"} {
		text = strings.TrimPrefix(text, scheme)
	}
	if rest, ok := strings.CutPrefix(text, "http://"); ok {
		text, plain = rest, true
	}
	ref, err := name.ParseReference(text)
	if err != nil {
		return nil, fault.Wrap(fault.ImageRef, err, "image %q", r.Reference)
	}
	registry := ref.Context().RegistryStr()
	listed := insecure(registry, r.InsecureRegistries)
	switch {
	case plain && !listed:
		return nil, notListed(fault.ImageRef, r.Reference, registry)
	case listed:
		return name.ParseReference(text, name.Insecure)
	}
	return ref, nil
}

// notListed has two codes: who wrote http:// asked for what is not allowed; who
// did not met a registry that offers nothing else.
func notListed(code *fault.Code, reference, registry string) error {
	return &fault.Error{
		Code: code, Message: "image " + reference + ": registry " + registry + " speaks plain HTTP and is not listed",
		Remedy: "add " + registry + " to templatecenter.insecure_registries, or serve it over HTTPS",
	}
}

func insecure(registry string, list []string) bool {
	host, _, err := net.SplitHostPort(registry)
	if err != nil {
		host = registry
	}
	for _, one := range list {
		if one == registry || one == host+":*" || one == "["+host+"]:*" {
			return true
		}
	}
	return false
}

func newPuller(r Request) (*remote.Puller, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTime}).DialContext,
		TLSHandshakeTimeout:   dialTime,
		ResponseHeaderTimeout: headerTime,
		IdleConnTimeout:       headerTime,
		ForceAttemptHTTP2:     true,
	}
	credentials := remote.WithAuthFromKeychain(authn.DefaultKeychain)
	if r.Auth != (Auth{}) {
		credentials = remote.WithAuth(&authn.Basic{Username: r.Auth.Username, Password: r.Auth.Password})
	}
	return remote.NewPuller(credentials,
		remote.WithTransport(&guard{next: t, listed: r.InsecureRegistries}),
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: 3}))
}

// errPlain is what guard answers to a request that would travel in the clear.
var errPlain = errors.New("plain HTTP to a registry that is not listed")

// guard keeps requests from going over plain HTTP to hosts that are not
// listed: the client would try it by itself for private addresses, and a
// redirect may ask for it.
type guard struct {
	next   http.RoundTripper
	listed []string
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !insecure(r.URL.Host, g.listed) {
		return nil, errPlain
	}
	return g.next.RoundTrip(r)
}

// registryFault tells what a registry refused from a registry that is away,
// and both from an image that is broken.
func registryFault(err error, reference string) error {
	var e *transport.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &e):
		return answerFault(e, reference)
	case errors.Is(err, errPlain):
		registry, _, _ := strings.Cut(strings.TrimPrefix(reference, "http://"), "/")
		return notListed(fault.RegistryDown, reference, registry)
	}
	var network net.Error
	var broken *url.Error
	if errors.As(err, &network) || errors.As(err, &broken) {
		return fault.Wrap(fault.RegistryDown, err, "image %s", reference)
	}
	return fault.Wrap(fault.ImageInvalid, err, "image %s", reference)
}

func answerFault(e *transport.Error, reference string) error {
	// A host that does not know the interface's root is no registry.
	root := e.Request != nil && strings.HasSuffix(e.Request.URL.Path, "/v2/")
	switch {
	case e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden:
		return fault.Wrap(fault.ImageDenied, e, "image %s", reference)
	case e.StatusCode == http.StatusNotFound && !root:
		return fault.Wrap(fault.ImageNotFound, e, "image %s", reference)
	case e.StatusCode == http.StatusBadRequest:
		return fault.Wrap(fault.ImageRef, e, "image %s", reference)
	}
	return fault.Wrap(fault.RegistryDown, e, "image %s", reference)
}
