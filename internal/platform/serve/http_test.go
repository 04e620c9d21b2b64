package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/logs"
)

func TestAPortInUseIsKnownAtOnce(t *testing.T) {
	s, err := HTTP(t.Context(), silent, "127.0.0.1:0", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "master.listen", s.Addr()); !errors.Is(err, fault.PortInUse) || !strings.Contains(err.Error(), "master.listen "+s.Addr()) {
		t.Errorf("got %v, want port_in_use", err)
	}
	if _, err := GRPC(t.Context(), s.Addr(), nil); !errors.Is(err, fault.PortInUse) {
		t.Errorf("got %v, want port_in_use", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(t.Context(), "", s.Addr()); err != nil {
		t.Errorf("after Close: %v", err)
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := HTTP(t.Context(), silent, "203.0.113.1:1", nil); !errors.Is(err, fault.BadConfig) {
		t.Errorf("an address of another machine: %v", err)
	}
}

// A body that never comes holds nothing for long, whoever reads it; one that
// came lifts the limit, so that a long answer is not cut.
func TestABodyThatNeverComes(t *testing.T) {
	m := NewMiddleware("test", silent, prometheus.NewRegistry())
	m.bodyTime = 50 * time.Millisecond
	mux := http.NewServeMux()
	mux.HandleFunc("POST /reads", func(w http.ResponseWriter, r *http.Request) {
		var v any
		if err := ReadJSON(r, 1<<10, &v); err != nil {
			WriteError(w, r, err)
		}
	})
	mux.HandleFunc("POST /refuses", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	mux.HandleFunc("POST /long", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
			t.Error("a request that was read is given up")
		case <-time.After(4 * m.bodyTime):
			w.WriteHeader(http.StatusTeapot)
		}
	})
	s, err := HTTP(t.Context(), silent, "127.0.0.1:0", m.Wrap(mux))
	if err != nil {
		t.Fatal(err)
	}
	stop := started(t, s)
	for path, want := range map[string]int{"/reads": http.StatusBadRequest, "/refuses": http.StatusUnauthorized, "/long": http.StatusTeapot} {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		body := "{"
		if path == "/long" {
			body = "{}"
		}
		if _, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"+body); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		got, err := http.ReadResponse(r, nil)
		if err != nil || got.StatusCode != want {
			t.Errorf("%s: %v, %v", path, got, err)
		}
		_, err = io.Copy(io.Discard, got.Body)
		if err = errors.Join(err, got.Body.Close()); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if path != "/long" { // the server hangs up instead of waiting for the rest
			if _, err := r.ReadByte(); err == nil {
				t.Errorf("%s: more came", path)
			}
		}
		_ = c.Close()
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// started runs s until stop is called, which returns what Run did.
func started(t *testing.T, s *HTTPServer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

func TestOpenRequestsEndBeforeTheServer(t *testing.T) {
	inside, free := make(chan struct{}), make(chan struct{})
	s, err := HTTP(t.Context(), silent, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-free
		if r.Context().Err() == nil {
			_, _ = io.WriteString(w, "whole")
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	stop := started(t, s)
	answer := make(chan string, 1)
	go func() { answer <- get(t, "http://"+s.Addr()) }()
	<-inside
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	close(free)
	if got := <-answer; got != "whole" {
		t.Errorf("the open request got %q", got)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestTheStopOfAServerHasABound(t *testing.T) {
	inside, ended := make(chan struct{}), make(chan struct{})
	s, err := HTTP(t.Context(), silent, "127.0.0.1:0", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(inside)
		<-r.Context().Done() // which ends only with the bound
		close(ended)
	}))
	if err != nil {
		t.Fatal(err)
	}
	s.stopTime = 50 * time.Millisecond
	stop := started(t, s)
	// A body that is neither sent nor read hides the end of the connection
	// from the handler.
	body, unsent := io.Pipe()
	defer func() { _ = unsent.Close() }()
	go func() {
		if r, err := http.Post("http://"+s.Addr(), "", body); err == nil { //nolint:noctx // the server ends it
			_ = r.Body.Close()
		}
	}()
	<-inside
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	<-ended
}

func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url) //nolint:noctx // the server ends it
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	b, _ := io.ReadAll(r.Body)
	return string(b)
}

// face is a mux with one path for each way to answer, and what it left.
func face(t *testing.T) (server *httptest.Server, log *lines, reg *prometheus.Registry) {
	t.Helper()
	log, reg = &lines{}, prometheus.NewRegistry()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /things/{id}", func(w http.ResponseWriter, r *http.Request) {
		WriteJSON(w, http.StatusOK, map[string]string{"id": r.PathValue("id"), "request": logs.RequestID(r.Context())})
	})
	mux.HandleFunc("GET /fault", func(w http.ResponseWriter, r *http.Request) {
		WriteError(w, r, fault.New(fault.HostFull, "sandbox i1"))
	})
	mux.HandleFunc("GET /panic", func(http.ResponseWriter, *http.Request) { panic("hunter2") })
	mux.HandleFunc("GET /late-panic", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		panic("too late")
	})
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("the writer has no ReadFrom: downloads are copied by hand")
		}
		if _, ok := w.(http.Flusher); !ok {
			t.Error("the writer has no Flush: streams stall")
		}
		http.ServeFile(w, r, file)
	})
	h := NewMiddleware("test", logs.New(log, "debug", "json"), reg).Wrap(mux)
	server = httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server, log, reg
}

func call(t *testing.T, method, url, requestID string) (status int, header http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(headerRequestID, requestID)
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header, string(b)
}

func TestMiddlewareAnswers(t *testing.T) {
	server, log, reg := face(t)
	for _, c := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/things/7", 200, `{"id":"7","request":"req-given"}`},
		{"GET", "/fault", 429, `"code":"insufficient_capacity"`},
		{"GET", "/fault", 429, `"ret_code":130480`},
		{"GET", "/panic", 500, `"message":"internal error"`},
		{"GET", "/late-panic", 202, ""},
		{"GET", "/file", 200, "0123456789"},
		{"GET", "/nowhere", 404, `"code":"not_found"`},
		{"DELETE", "/things/7", 405, `"code":"invalid_input"`},
	} {
		status, header, body := call(t, c.method, server.URL+c.path, "req-given")
		if status != c.status || !strings.Contains(body, c.want) || c.want == "" && body != "" || strings.Contains(body, "hunter2") {
			t.Errorf("%s %s: %d %s, want %d with %s", c.method, c.path, status, body, c.status, c.want)
		}
		if header.Get(headerRequestID) != "req-given" {
			t.Errorf("%s %s: request id %q", c.method, c.path, header.Get(headerRequestID))
		}
		if status >= 400 && header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: refused as %s", c.method, c.path, header.Get("Content-Type"))
		}
		if (status == 429) != (header.Get("Retry-After") != "") || (status == 405) != (header.Get("Allow") != "") {
			t.Errorf("%s %s: headers %v", c.method, c.path, header)
		}
	}
	server.Close() // returns when every request is done, and logged
	for _, want := range []string{`"route":"GET /things/{id}"`, `"request_id":"req-given"`, `"code":"insufficient_capacity"`, `"panic":"hunter2"`, `"route":"unknown"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	// One label for all paths that do not exist: they have no bound.
	if n := count(t, reg, "paddock_http_request_seconds"); n != 7 {
		t.Errorf("%d histograms, want one a route and status", n)
	}
}

// count returns how many label sets the metric called name has.
func count(t *testing.T, reg *prometheus.Registry, name string) int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return len(f.GetMetric())
		}
	}
	return 0
}

func TestAnIllFormedRequestIDIsReplaced(t *testing.T) {
	server, _, _ := face(t)
	for _, bad := range []string{"", "a b", "x\"y", strings.Repeat("a", 129)} {
		_, header, _ := call(t, "GET", server.URL+"/things/1", bad)
		if got := header.Get(headerRequestID); !strings.HasPrefix(got, "req-") {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestReadJSON(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"good":       {`{"a":1}`, ""},
		"blank tail": {"{\"a\":1}\n ", ""},
		"empty":      {"", "is empty"},
		"no JSON":    {"a=1", "is not the JSON"},
		"wrong kind": {`{"a":"x"}`, "is not the JSON"},
		"goes on":    {`{"a":1}{}`, "goes on"},
		"too large":  {`{"a":1,"b":"` + strings.Repeat("x", 100) + `"}`, "is over 64 bytes"},
		"large tail": {`{"a":1}` + strings.Repeat(" ", 100), "goes on"},
	} {
		var v struct{ A int }
		err := ReadJSON(httptest.NewRequest("POST", "/", strings.NewReader(c.body)), 64, &v)
		switch {
		case c.want == "" && (err != nil || v.A != 1):
			t.Errorf("%s: %v, %+v", name, err, v)
		case c.want != "" && (!errors.Is(err, fault.InvalidInput) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want invalid_input: %s", name, err, c.want)
		}
	}
}

// What WriteError writes is what another process reads back.
func TestARefusalSurvivesHTTP(t *testing.T) {
	for _, c := range fault.All() {
		w := httptest.NewRecorder()
		WriteError(w, httptest.NewRequest("GET", "/", nil), fault.Wrap(c, errors.New("why"), "thing"))
		var body refusal
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		if err := fault.Parse(body.Error, w.Code); w.Code != c.Class.HTTP || body.Ret.Code != c.RetCode() || !errors.Is(err, c) {
			t.Errorf("%s: status %d, ret_code %d, %v", c.Name, w.Code, body.Ret.Code, err)
		}
		if (w.Code == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") != "") {
			t.Errorf("%s: headers %v", c.Name, w.Header())
		}
	}
}

func TestServersLogNoNoise(t *testing.T) {
	var log bytes.Buffer
	s, err := HTTP(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), "127.0.0.1:0", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	if err := started(t, s)(); err != nil || log.Len() > 0 {
		t.Errorf("%v: %s", err, log.String())
	}
}
