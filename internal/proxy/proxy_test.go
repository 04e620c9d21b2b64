package proxy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/proxy"
)

const box = "i0123456789abcdef01234567"

// books is a master that knows what it is told.
type books struct {
	mu     sync.Mutex
	routes map[string]cubeapi.Route
	asked  int
	woken  int
	used   map[string]int
	silent bool
	events chan []string
	next   int64
}

func newBooks() *books {
	return &books{routes: map[string]cubeapi.Route{}, used: map[string]int{}, events: make(chan []string, 16)}
}

func (b *books) set(r cubeapi.Route) {
	b.mu.Lock()
	b.routes[r.SandboxID] = r
	b.mu.Unlock()
	b.events <- []string{r.SandboxID}
}

var errSilent = fault.New(fault.PeerUnavailable, "the master is away")

func (b *books) Route(_ context.Context, id string) (cubeapi.Route, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if b.silent {
		return cubeapi.Route{}, errSilent
	}
	r, ok := b.routes[id]
	if !ok {
		return r, fault.New(fault.SandboxNotFound, "sandbox %s", id)
	}
	return r, nil
}

func (b *books) RouteEvents(ctx context.Context, feed string, _ int64, _ time.Duration) (cubeapi.RouteEvents, error) {
	if feed == "" {
		return cubeapi.RouteEvents{Feed: "f", Reset: true}, nil
	}
	select {
	case ids := <-b.events:
		b.next++
		return cubeapi.RouteEvents{Feed: "f", Next: b.next, SandboxIDs: ids}, nil
	case <-ctx.Done():
		return cubeapi.RouteEvents{}, ctx.Err()
	}
}

func (b *books) Wake(_ context.Context, id string) (cubeapi.Route, error) {
	b.mu.Lock()
	r := b.routes[id]
	if r.Status == "RUNNING" { // already
		b.mu.Unlock()
		return r, nil
	}
	b.woken++
	r.Status, r.Generation, r.SandboxIP = "RUNNING", r.Generation+1, "127.0.0.1"
	b.routes[id] = r
	b.mu.Unlock()
	b.set(r)
	return r, nil
}

func (b *books) Activity(_ context.Context, r cubeapi.ActivityRequest) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range r.Seen {
		b.used[s.SandboxID]++
	}
	return nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late, look := time.After(time.Minute), time.NewTicker(5*time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-late:
			t.Fatalf("it never came to be: %s", what)
		case <-look.C:
		}
	}
}

// world is a proxy over books, and one sandbox that runs h.
type world struct {
	t     *testing.T
	books *books
	front *httptest.Server
	port  int
}

func newWorld(t *testing.T, h http.Handler, change ...func(*config.Proxy)) *world {
	t.Helper()
	back := httptest.NewUnstartedServer(h)
	back.Config.Protocols = new(http.Protocols)
	back.Config.Protocols.SetHTTP1(true)
	back.Config.Protocols.SetUnencryptedHTTP2(true)
	back.Start()
	t.Cleanup(back.Close)
	w := &world{t: t, books: newBooks(), port: back.Listener.Addr().(*net.TCPAddr).Port}
	c := config.Default()
	for _, f := range change {
		f(&c.Proxy)
	}
	p := proxy.New(proxy.Deps{Config: c, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Source: w.books})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	w.front = httptest.NewUnstartedServer(p)
	w.front.Config.Protocols = back.Config.Protocols
	w.front.Start()
	t.Cleanup(func() {
		w.front.CloseClientConnections()
		w.front.Close()
		cancel()
		check(t, <-ended)
	})
	w.books.set(w.route())
	return w
}

func (w *world) route() cubeapi.Route {
	return cubeapi.Route{SandboxID: box, Status: "RUNNING", Generation: 1, HostID: "a", HostIP: "127.0.0.1", SandboxIP: "127.0.0.1"}
}

func (w *world) request(ctx context.Context, method, path string, body io.Reader) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, w.front.URL+path, body)
	check(w.t, err)
	r.Host = fmt.Sprintf("%d-%s.localhost", w.port, box)
	return r
}

// answer is one, whole.
type answer struct {
	StatusCode int
	Header     http.Header
}

func (w *world) do(r *http.Request) (answer, string) {
	w.t.Helper()
	a, err := http.DefaultClient.Do(r)
	check(w.t, err)
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	check(w.t, err)
	return answer{a.StatusCode, a.Header}, string(b)
}

// Requests go where their host name says, or their headers, and nowhere else;
// what a caller says of forwarding does not count.
func TestRequestsAreRouted(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s %s host=%s for=%s", r.Method, r.URL.RequestURI(), r.Host, r.Header.Get("X-Forwarded-For"))
	}))
	r := w.request(t.Context(), "POST", "/a%2Fb?c=d", strings.NewReader("x"))
	r.Header.Set("X-Forwarded-For", "6.6.6.6")
	if _, got := w.do(r); got != fmt.Sprintf("POST /a%%2Fb?c=d host=%s for=127.0.0.1", r.Host) {
		t.Errorf("by name: %q", got)
	}
	r.Body = io.NopCloser(strings.NewReader("x"))
	by := w.request(t.Context(), "GET", "/", nil)
	by.Host = "localhost:3002"
	by.Header.Set("E2b-Sandbox-Id", box)
	by.Header.Set("E2b-Sandbox-Port", strconv.Itoa(w.port))
	if _, got := w.do(by); !strings.HasPrefix(got, "GET / host=localhost:3002") {
		t.Errorf("by headers: %q", got)
	}
	named := w.request(t.Context(), "GET", "/", nil)
	named.Header.Set("E2b-Sandbox-Id", "i000000000000000000000000")
	named.Header.Set("E2b-Sandbox-Port", "1")
	if a, _ := w.do(named); a.StatusCode != http.StatusOK {
		t.Errorf("a header led away from the name: %d", a.StatusCode)
	}
	for _, host := range []string{"example.com", "80.localhost", "99999-" + box + ".localhost", "80-short.localhost", "a.80-" + box + ".localhost", "localhost"} {
		bad := w.request(t.Context(), "GET", "/", nil)
		bad.Host = host
		if a, got := w.do(bad); a.StatusCode != http.StatusBadRequest || a.Header.Get("X-Paddock-Code") != "invalid_input" {
			t.Errorf("%s: %d %s", host, a.StatusCode, got)
		}
	}
}

// What cannot be reached is told apart, in the words of who asks.
func TestRefusalsAreToldApart(t *testing.T) {
	w := newWorld(t, http.NotFoundHandler())
	state := func(change func(*cubeapi.Route)) {
		r := w.route()
		change(&r)
		w.books.set(r)
	}
	looks := func(what string, status int, code string) {
		t.Helper()
		eventually(t, what, func() bool {
			a, text := w.do(w.request(t.Context(), "GET", "/", nil))
			var p struct {
				Code   int    `json:"code"`
				Reason string `json:"reason"`
			}
			return a.StatusCode == status && a.Header.Get("X-Paddock-Code") == code && json.Unmarshal([]byte(text), &p) == nil && p.Code == status && p.Reason == code
		})
	}
	if a, _ := w.do(w.request(t.Context(), "GET", "/", nil)); a.StatusCode != http.StatusNotFound || a.Header.Get("X-Paddock-Code") != "" {
		t.Errorf("the sandbox's own 404: %d %v", a.StatusCode, a.Header)
	}
	state(func(r *cubeapi.Route) { r.Status, r.Reason = "TERMINATED", "timeout" })
	looks("ended", http.StatusGone, "sandbox_gone")
	state(func(r *cubeapi.Route) { r.Status = "PAUSED" })
	looks("paused", http.StatusServiceUnavailable, "sandbox_not_ready")
	state(func(r *cubeapi.Route) { r.Status = "STARTING" })
	looks("starting", http.StatusServiceUnavailable, "sandbox_not_ready")
	state(func(r *cubeapi.Route) { r.Ports = []int32{1} })
	looks("not exposed", http.StatusForbidden, "port_not_open")
	state(func(r *cubeapi.Route) { r.HostIP = "198.51.100.7" })
	looks("elsewhere", http.StatusServiceUnavailable, "host_unreachable")
	state(func(*cubeapi.Route) {})
	eventually(t, "it runs here again", func() bool {
		a, _ := w.do(w.request(t.Context(), "GET", "/", nil))
		return a.StatusCode == http.StatusNotFound && a.Header.Get("X-Paddock-Code") == ""
	})
	closed := w.request(t.Context(), "GET", "/", nil)
	closed.Host = "1-" + box + ".localhost"
	if a, _ := w.do(closed); a.StatusCode != http.StatusBadGateway || a.Header.Get("X-Paddock-Code") != "port_not_open" {
		t.Errorf("a closed port: %d", a.StatusCode)
	}
	never := w.request(t.Context(), "GET", "/", nil)
	never.Host = "80-i00000000000000000000000f.localhost"
	if a, _ := w.do(never); a.StatusCode != http.StatusNotFound || a.Header.Get("X-Paddock-Code") != "sandbox_not_found" {
		t.Errorf("one that never was: %d", a.StatusCode)
	}
	never.Host = "localhost"
	never.Header.Set("E2b-Sandbox-Id", "i00000000000000000000000f")
	never.Header.Set("E2b-Sandbox-Port", "80")
	if a, _ := w.do(never); a.StatusCode != http.StatusBadGateway {
		t.Errorf("for E2B's client: %d", a.StatusCode)
	}
	never.Header.Set("Accept", "text/html")
	if a, text := w.do(never); !strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") || !strings.Contains(text, "not found") {
		t.Errorf("for people: %s", text)
	}
}

// A route is asked for once while changes are heard of; a master that is away
// does not end what is known.
func TestRoutesAreRemembered(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "ok") }))
	eventually(t, "routes are remembered", func() bool {
		w.do(w.request(t.Context(), "GET", "/", nil))
		w.books.mu.Lock()
		before := w.books.asked
		w.books.mu.Unlock()
		for range 10 {
			w.do(w.request(t.Context(), "GET", "/", nil))
		}
		w.books.mu.Lock()
		defer w.books.mu.Unlock()
		return w.books.asked == before
	})
	w.books.mu.Lock()
	w.books.silent = true
	w.books.mu.Unlock()
	if a, _ := w.do(w.request(t.Context(), "GET", "/", nil)); a.StatusCode != http.StatusOK {
		t.Errorf("with the master away: %d", a.StatusCode)
	}
}

// Traffic wakes a paused sandbox that it may wake, once for all who wait.
func TestTrafficWakes(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "awake") }))
	r := w.route()
	r.Status, r.SandboxIP = "PAUSED", ""
	w.books.set(r)
	eventually(t, "it is paused for the proxy too", func() bool {
		a, _ := w.do(w.request(t.Context(), "GET", "/", nil))
		return a.StatusCode == http.StatusServiceUnavailable
	})
	r.AutoResume = true
	w.books.set(r)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			eventually(t, "it is awake", func() bool {
				a, text := w.do(w.request(t.Context(), "GET", "/", nil))
				return a.StatusCode == http.StatusOK && text == "awake"
			})
		})
	}
	all.Wait()
	w.books.mu.Lock()
	defer w.books.mu.Unlock()
	if w.books.woken != 1 || w.books.routes[box].Generation != 2 {
		t.Errorf("woken %d times: %+v", w.books.woken, w.books.routes[box])
	}
}

// Streams come as they are sent, both ways; and those of a life that is over
// are cut.
func TestStreamsFlowAndAreCut(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, b, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = b.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = b.Flush()
			_, _ = io.Copy(c, b)
			return
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		in := bufio.NewScanner(r.Body)
		check := http.NewResponseController(rw)
		_ = check.EnableFullDuplex()
		for in.Scan() {
			fmt.Fprintf(rw, "data: %s\n", in.Text())
			_ = check.Flush()
		}
		<-r.Context().Done()
	}))
	body, send := io.Pipe()
	defer send.Close()
	r := w.request(t.Context(), "POST", "/", body)
	a := make(chan *http.Response, 1)
	go func() {
		got, err := http.DefaultClient.Do(r) //nolint:bodyclose // by who takes it
		if err == nil {
			a <- got
		}
	}()
	fmt.Fprintln(send, "one")
	streamed := <-a
	defer streamed.Body.Close()
	out := bufio.NewReader(streamed.Body)
	for _, word := range []string{"one", "two", "three"} {
		if word != "one" {
			fmt.Fprintln(send, word)
		}
		if line, err := out.ReadString('\n'); err != nil || line != "data: "+word+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	c, err := net.Dial("tcp", w.front.Listener.Addr().String())
	check(t, err)
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", r.Host)
	up := bufio.NewReader(c)
	for line := ""; line != "\r\n"; {
		line, err = up.ReadString('\n')
		check(t, err)
	}
	fmt.Fprintln(c, "there and back")
	if line, err := up.ReadString('\n'); err != nil || line != "there and back\n" {
		t.Fatalf("upgraded: %q, %v", line, err)
	}
	next := w.route()
	next.Generation = 2
	w.books.set(next)
	if _, err := out.ReadString('\n'); err == nil {
		t.Error("a stream of a life that is over goes on")
	}
	check(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := up.ReadString('\n'); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an upgraded connection of a life that is over goes on: %v", err)
	}
}

// gRPC goes by HTTP/2, with its trailers.
func TestTrailersOfGRPCCome(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/grpc")
		rw.Header().Set("Trailer", "Grpc-Status")
		fmt.Fprintf(rw, "%d", r.ProtoMajor)
		rw.Header().Set("Grpc-Status", "0")
	}))
	client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	r := w.request(t.Context(), "POST", "/service/Call", strings.NewReader("x"))
	r.Header.Set("Content-Type", "application/grpc")
	a, err := client.Do(r)
	check(t, err)
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	check(t, err)
	if string(b) != "2" || a.ProtoMajor != 2 || a.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%q by HTTP/%d, trailers %v", b, a.ProtoMajor, a.Trailer)
	}
}

// One sandbox has no more open requests than it may; others have theirs.
func TestRequestsAreBounded(t *testing.T) {
	goOn, begun := make(chan struct{}), make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			begun <- struct{}{}
			<-goOn
		}
	}), func(c *config.Proxy) { c.MaxPerSandbox = 2 })
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { w.do(w.request(t.Context(), "GET", "/wait", nil)) })
		<-begun
	}
	if a, _ := w.do(w.request(t.Context(), "GET", "/", nil)); a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "1" || a.Header.Get("X-Paddock-Code") != "too_many_requests" {
		t.Errorf("a third: %d %v", a.StatusCode, a.Header)
	}
	close(goOn)
	all.Wait()
	eventually(t, "the two have ended for the proxy too", func() bool {
		a, _ := w.do(w.request(t.Context(), "GET", "/", nil))
		return a.StatusCode == http.StatusOK
	})
	if a, _ := w.do(w.request(t.Context(), "GET", "/", nil)); a.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d", a.StatusCode)
	}
	eventually(t, "its use is told of", func() bool {
		w.books.mu.Lock()
		defer w.books.mu.Unlock()
		return w.books.used[box] > 0
	})
}
