package source

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	netaddress "github.com/paddock-dev/paddock/internal/platform/address"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

const (
	dialTime   = 10 * time.Second
	headerTime = 30 * time.Second
)

// plainError is what guard answers to a request that would travel in the clear.
type plainError struct{ host string }

func (e *plainError) Error() string { return "plain HTTP to " + e.host + ", which is not listed" }

// guard is the way to one registry and to where it leads. Each request passes
// it, also those that follow a redirect or ask for a token:
//   - plain HTTP goes to listed hosts only;
//   - private addresses are dialled for the registry's own host and for listed
//     ones only. What counts is the address that is dialled, whatever a name
//     resolved to before.
//
// A registry's own host may be anywhere: the reference names it, and where it
// is not listed its certificate must be right.
type guard struct {
	registry string // host, or host:port
	own      string // its host
	listed   []string
	next     *http.Transport

	mu      sync.Mutex
	proxies map[string]bool // which the operator chose, so they may be anywhere
}

func newGuard(registry string, listed []string) *guard {
	g := &guard{registry: registry, own: hostOf(registry), listed: listed, proxies: map[string]bool{}}
	g.next = &http.Transport{
		Proxy:                 g.proxy,
		DialContext:           g.dial,
		TLSHandshakeTimeout:   dialTime,
		ResponseHeaderTimeout: headerTime,
		IdleConnTimeout:       headerTime,
		MaxIdleConnsPerHost:   fetchers,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // bytes have a digest as they are
	}
	return g
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	r = fromAlias(r)
	if r.URL.Scheme != "https" && r.URL.Scheme != "http" {
		return nil, &fault.Error{
			Code: fault.RegistryRedirect, Message: fmt.Sprintf("the registry leads to an address of the kind %.40q, which no registry has", r.URL.Scheme),
			Remedy: "look at what the registry answers: it may not be one",
		}
	}
	// Behind a proxy nothing is dialled here, but an address can still be told.
	if ip, err := netip.ParseAddr(r.URL.Hostname()); err == nil && netaddress.Private(ip) && !g.allows(r.URL.Host) {
		return nil, refused(r.URL.Host, ip)
	}
	if r.URL.Scheme != "https" && !config.InsecureRegistry(g.listed, r.URL.Host) {
		return nil, &plainError{quoted(r.URL.Host)}
	}
	resp, err := g.next.RoundTrip(r)
	if err == nil {
		g.toAlias(resp.Header)
	}
	return resp, err
}

// proxy asks the environment, and remembers the answer for dial.
func (g *guard) proxy(r *http.Request) (*url.URL, error) {
	p, err := http.ProxyFromEnvironment(r)
	if p != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.proxies[strings.ToLower(p.Hostname())] = true
	}
	return p, err
}

func (g *guard) isProxy(host string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.proxies[strings.ToLower(host)]
}

func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: dialTime}
	if !g.allows(address) && !g.isProxy(hostOf(address)) {
		d.Control = func(_, dialled string, _ syscall.RawConn) error { return g.check(address, dialled) }
	}
	return d.DialContext(ctx, network, address)
}

// check is asked with each address before it is dialled.
func (g *guard) check(address, dialled string) error {
	to, err := netip.ParseAddrPort(dialled)
	if err != nil || netaddress.Private(to.Addr()) && to.Addr().Unmap().String() != g.own {
		return refused(address, to.Addr())
	}
	return nil
}

// allows tells whether that host (and port) may be at a private address.
func (g *guard) allows(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host = hostOf(address)
	}
	return strings.EqualFold(host, g.own) || config.InsecureRegistry(g.listed, address) ||
		(port == "443" || port == "80") && config.InsecureRegistry(g.listed, strings.TrimSuffix(address, ":"+port))
}

func refused(address string, ip netip.Addr) error {
	return &fault.Error{
		Code: fault.RegistryRedirect, Message: "the registry leads to " + quoted(address) + ", which is at the private address " + ip.String(),
		Remedy: "list " + quoted(address) + " in templatecenter.insecure_registries if it is meant so",
	}
}

// hostOf returns the host of host:port, without brackets.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return strings.Trim(host, "[]")
}

// The client library refuses every token server that is named by a private
// address, also one that is listed, and not in our words. So it is given such
// names in another form, which guard turns back; whether they may be dialled is
// guard's to say. The registry's own name it must know, to send it the token.
const aliasEnd = ".address.invalid"

// addressForm is an address in the place of a name: in a challenge, or in a
// redirect. Resolvers take numbers of many forms for addresses.
var addressForm = regexp.MustCompile(`(?i)(^|\brealm=")(https?://)([0-9.]+|0x[0-9a-fx.]+|\[[0-9a-f:.]+\])(:[0-9]+)?([/?"]|$)`)

func (g *guard) toAlias(h http.Header) {
	for _, name := range []string{"Www-Authenticate", "Location"} {
		for i, text := range h[name] {
			h[name][i] = addressForm.ReplaceAllStringFunc(text, func(s string) string {
				part := addressForm.FindStringSubmatch(s)
				if part[3]+part[4] == g.registry {
					return s
				}
				return part[1] + part[2] + strings.ReplaceAll(strings.Trim(part[3], "[]"), ":", "-") + aliasEnd + part[4] + part[5]
			})
		}
	}
}

func fromAlias(r *http.Request) *http.Request {
	address, ok := strings.CutSuffix(r.URL.Hostname(), aliasEnd)
	if !ok {
		return r
	}
	if strings.Contains(address, "-") {
		address = "[" + strings.ReplaceAll(address, "-", ":") + "]"
	}
	if port := r.URL.Port(); port != "" {
		address += ":" + port
	}
	r = r.Clone(r.Context())
	r.URL.Host, r.Host = address, ""
	return r
}
