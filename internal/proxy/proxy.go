// Package proxy brings requests of the world to the ports of sandboxes.
//
// It knows where a sandbox is by the master's word, hears of changes, and cuts
// what is open to a life that is over. It must never hold a body, reach an
// address that is no sandbox's, or take what a caller says for the state of a
// sandbox.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

const (
	guestPort = 49983
	dialTime  = 3 * time.Second
	idleTime  = 60 * time.Second // of a connection to a sandbox that nobody uses
	soon      = 1                // seconds after which a sandbox on its way may be there
)

// Deps are what a proxy needs.
type Deps struct {
	Config  config.Config
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Source  Source
}

// Proxy is safe for concurrent use. Make one with New; Run must follow.
type Proxy struct {
	cfg     config.Proxy
	log     *slog.Logger
	source  Source
	routes  *routes
	streams *streams
	waking  singleflight.Group
	forward *httputil.ReverseProxy
	plain   *http.Transport // HTTP/1.1, for what may be upgraded too
	framed  *http.Transport // HTTP/2 without TLS, for gRPC
	count   *prometheus.CounterVec

	changes chan string // sandboxes with open requests whose routes changed; "": all
	work    sync.WaitGroup
}

// New returns a proxy that routes by what the source says.
func New(d Deps) *Proxy {
	p := &Proxy{
		cfg: d.Config.Proxy, log: d.Log, source: d.Source, routes: newRoutes(d.Source, d.Log), streams: newStreams(d.Config.Proxy.MaxRequests, d.Config.Proxy.MaxPerSandbox),
		changes: make(chan string, 1024),
		count:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_proxy_requests_total", Help: "Requests by what became of them: forwarded, or the code of the refusal."}, []string{"outcome"}),
	}
	d.Metrics.MustRegister(p.count)
	p.routes.changed = p.heard
	p.plain = &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: 32, MaxIdleConns: 4096, IdleConnTimeout: idleTime, DisableCompression: true}
	p.framed = p.plain.Clone()
	p.framed.Protocols = new(http.Protocols)
	p.framed.Protocols.SetUnencryptedHTTP2(true)
	p.forward = &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: p, FlushInterval: -1, ErrorHandler: p.failed, BufferPool: &buffers{},
		ErrorLog: slog.NewLogLogger(d.Log.Handler(), slog.LevelDebug),
	}
	return p
}

// Run hears of changes and tells of uses until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	p.work.Go(func() { p.routes.listen(ctx) })
	p.work.Go(func() { p.streams.tell(ctx, p.source, p.log) })
	p.work.Go(func() { p.follow(ctx) })
	p.work.Wait()
	p.plain.CloseIdleConnections()
	p.framed.CloseIdleConnections()
	return nil
}

// hop is what one request needs on its way.
type hop struct {
	target
	route cubeapi.Route
	begun bool // an answer came
}

type hopKey struct{}

func hopOf(ctx context.Context) *hop {
	h, _ := ctx.Value(hopKey{}).(*hop)
	return h
}

// ServeHTTP brings one request to its sandbox.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, err := targetOf(r, p.cfg.Domain)
	if err != nil {
		p.refuse(w, r, target{}, refusal{http.StatusBadRequest, err.Error(), 0, fault.InvalidInput})
		return
	}
	route, no := p.find(r.Context(), t)
	if no != nil {
		p.refuse(w, r, t, *no)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	one, ok := p.streams.add(t.id, route.Generation, cancel)
	if !ok {
		p.refuse(w, r, t, refusal{http.StatusTooManyRequests, "The sandbox has too many open requests", soon, fault.ProxyBusy})
		return
	}
	defer p.streams.remove(one)
	p.count.WithLabelValues("forwarded").Inc()
	// Bodies flow both ways at once; with HTTP/2 they do so anyway.
	_ = http.NewResponseController(w).EnableFullDuplex()
	p.forward.ServeHTTP(w, r.WithContext(context.WithValue(ctx, hopKey{}, &hop{target: t, route: route})))
}

func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, t target, no refusal) {
	p.count.WithLabelValues(no.code.Name).Inc()
	refuse(w, r, t, no)
}

// find returns the route of a sandbox that can be reached, or why it cannot. One
// that is paused is woken, if traffic may wake it.
func (p *Proxy) find(ctx context.Context, t target) (cubeapi.Route, *refusal) {
	route, err := p.routes.of(ctx, t.id)
	if err == nil && (route.Status == "PAUSED" || route.Status == "PAUSING") && route.AutoResume {
		route, err = p.wake(ctx, t.id)
	}
	switch {
	case errors.Is(err, fault.SandboxNotFound):
		return route, &refusal{http.StatusNotFound, "The sandbox was not found", 0, fault.SandboxNotFound}
	case errors.Is(err, fault.SandboxGone):
		return route, &refusal{http.StatusGone, "The sandbox has ended", 0, fault.SandboxGone}
	case err != nil:
		p.log.WarnContext(ctx, "no route", slog.String("sandbox_id", t.id), slog.String("error", err.Error()))
		return route, &refusal{http.StatusServiceUnavailable, "The sandbox cannot be reached now", soon, fault.Of(err)}
	}
	switch route.Status {
	case "RUNNING":
	case "TERMINATING", "TERMINATED":
		return route, &refusal{http.StatusGone, "The sandbox has ended: " + route.Reason, 0, fault.SandboxGone}
	case "PAUSED":
		return route, &refusal{http.StatusServiceUnavailable, "The sandbox is paused", 0, fault.SandboxNotReady}
	default:
		return route, &refusal{http.StatusServiceUnavailable, "The sandbox is " + strings.ToLower(route.Status), soon, fault.SandboxNotReady}
	}
	if len(route.Ports) > 0 && t.port != guestPort && !slices.Contains(route.Ports, int32(t.port)) { //nolint:gosec // checked: 1 to 65535
		return route, &refusal{http.StatusForbidden, fmt.Sprintf("Port %d of the sandbox is not exposed", t.port), 0, fault.PortClosed}
	}
	if !here(route.HostIP) {
		return route, &refusal{http.StatusServiceUnavailable, "The sandbox runs on host " + route.HostID + ", whose own proxy leads to it", 0, fault.HostUnreachable}
	}
	return route, nil
}

// wake has a sandbox resumed, once for all who wait for it.
func (p *Proxy) wake(ctx context.Context, id string) (cubeapi.Route, error) {
	answers := p.waking.DoChan(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.WakeTimeout)
		defer cancel()
		route, err := p.source.Wake(ctx, id)
		p.routes.forget([]string{id}, false)
		return route, err
	})
	select {
	case a := <-answers:
		route, _ := a.Val.(cubeapi.Route)
		return route, a.Err
	case <-ctx.Done():
		return cubeapi.Route{}, ctx.Err()
	}
}

// here reports whether an address is this machine's: from elsewhere, those of
// its sandboxes lead nowhere.
func here(ip string) bool {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return false
	}
	if a.IsLoopback() {
		return true
	}
	list, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(list, func(one net.Addr) bool {
		n, ok := one.(*net.IPNet)
		return ok && n.IP.Equal(net.IP(a.AsSlice()))
	})
}

// rewrite makes of a caller's request the one that the sandbox gets. What the
// caller said of who forwarded it does not count.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	h := hopOf(r.In.Context())
	// Connections are kept for one life of a sandbox: the name is theirs.
	r.Out.URL = &url.URL{Scheme: "http", Host: fmt.Sprintf("%s-%d:%d", h.id, h.route.Generation, h.port), Path: r.In.URL.Path, RawPath: r.In.URL.RawPath, RawQuery: r.In.URL.RawQuery}
	r.Out.Host = r.In.Host
	r.SetXForwarded()
	if r.Out.Header.Get("User-Agent") == "" {
		r.Out.Header.Set("User-Agent", "") // else one would be made up
	}
}

// RoundTrip sends a request on: gRPC by HTTP/2, the rest by HTTP/1.1.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	t := p.plain
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		t = p.framed
	}
	answer, err := t.RoundTrip(r)
	if h := hopOf(r.Context()); h != nil {
		h.begun = err == nil
	}
	return answer, err
}

// dial connects to the sandbox of a request.
func (p *Proxy) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	h := hopOf(ctx)
	if h == nil || h.route.SandboxIP == "" {
		return nil, fault.New(fault.Bug, "a connection for no request")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(h.route.SandboxIP, strconv.Itoa(h.port)))
}

// errOver cuts what is open to a life that is over.
var errOver = errors.New("the sandbox went on to another life, or ended")

// failed answers a request whose sandbox did not.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	h := hopOf(r.Context())
	switch {
	case errors.Is(context.Cause(r.Context()), errOver):
		p.refuse(w, r, h.target, refusal{http.StatusServiceUnavailable, "The sandbox went on to another life, or ended, meanwhile", soon, fault.SandboxNotReady})
	case r.Context().Err() != nil:
		p.count.WithLabelValues(fault.CallCancelled.Name).Inc()
		panic(http.ErrAbortHandler) // whoever asked has gone
	default:
		// It may be elsewhere by now.
		p.routes.forget([]string{h.id}, false)
		p.log.DebugContext(r.Context(), "no answer", slog.String("sandbox_id", h.id), slog.Int("port", h.port), slog.String("error", err.Error()))
		p.refuse(w, r, h.target, refusal{http.StatusBadGateway, "The sandbox is running but port is not open", 0, fault.PortClosed})
	}
}

// heard notes that a route may have changed.
func (p *Proxy) heard(id string, all bool) {
	if !all && !p.streams.has(id) {
		return
	}
	select {
	case p.changes <- id:
	default: // so many that all are looked at
		go func() { p.changes <- "" }()
	}
}

// follow cuts what is open to lives that are over until ctx ends.
func (p *Proxy) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-p.changes:
			ids := []string{id}
			if id == "" {
				ids = p.streams.busy()
			}
			for _, id := range ids {
				p.look(ctx, id)
			}
		}
	}
}

// look cuts what is open to a sandbox but to the life that it is in.
func (p *Proxy) look(ctx context.Context, id string) {
	route, err := p.routes.of(ctx, id)
	switch {
	case errors.Is(err, fault.SandboxNotFound), err == nil && route.Status != "RUNNING":
		p.streams.cut(id, -1, errOver)
	case err == nil:
		p.streams.cut(id, route.Generation, errOver)
	}
}

// buffers are those of bodies on their way.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 64<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
