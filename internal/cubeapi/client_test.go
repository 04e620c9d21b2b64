package cubeapi_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// answering is a server that does the same whatever it is asked, and notes the
// last request.
func answering(t *testing.T, h http.HandlerFunc) (url string, last func() *http.Request) {
	t.Helper()
	seen := make(chan *http.Request, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Clone(context.Background())
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() *http.Request { return <-seen }
}

func TestEveryCodeCrossesTheWire(t *testing.T) {
	for _, code := range fault.All() {
		if code == fault.Bug {
			continue // its words are hidden, its code is kept: below
		}
		url, _ := answering(t, func(w http.ResponseWriter, r *http.Request) { serve.WriteError(w, r, fault.New(code, "the thing")) })
		_, err := cubeapi.NewClient(url, "k").Job(t.Context(), "job-x")
		if !errors.Is(err, code) || !strings.Contains(err.Error(), "the thing") {
			t.Errorf("%s came as %v", code.Name, err)
		}
		if d := fault.DetailOf(err); d.Code != code.Name || d.Remedy != code.Remedy || d.Retryable != code.Class.Retry {
			t.Errorf("%s came as %+v", code.Name, d)
		}
	}
	url, _ := answering(t, func(w http.ResponseWriter, r *http.Request) { serve.WriteError(w, r, errors.New("secret words")) })
	if _, err := cubeapi.NewClient(url, "k").Hosts(t.Context()); !errors.Is(err, fault.Bug) || strings.Contains(err.Error(), "secret") {
		t.Errorf("an internal error came as %v", err)
	}
}

func TestACodeOfANewerServerKeepsItsName(t *testing.T) {
	url, _ := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		serve.WriteJSON(w, http.StatusConflict, cubeapi.Envelope{Error: &fault.Detail{Code: "brand_new", Message: "it is new"}})
	})
	_, err := cubeapi.NewClient(url, "k").Templates(t.Context())
	if c := fault.Of(err); c.Name != "brand_new" || c.Class != fault.Conflict {
		t.Errorf("got %v of class %s", err, fault.Of(err).Class.Name)
	}
}

func TestWhatIsNoMasterIsSaidToBeAway(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"another server":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) },
		"an empty refusal":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"a refusal of JSON": func(w http.ResponseWriter, _ *http.Request) { serve.WriteJSON(w, 500, map[string]string{"a": "b"}) },
		"half an answer":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"data":[{`) },
		"no answer":         func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		url, _ := answering(t, h)
		if _, err := cubeapi.NewClient(url, "k").Templates(t.Context()); fault.Of(err) != fault.PeerUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := cubeapi.NewClient("http://127.0.0.1:1", "k").Health(t.Context()); fault.Of(err) != fault.PeerUnavailable || !strings.Contains(err.Error(), "http://127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
	if err := cubeapi.NewClient("http://bad host", "k").Health(t.Context()); fault.Of(err) != fault.InvalidInput {
		t.Errorf("no address: %v", err)
	}
}

func TestCallsCarryKeyRequestIDAndNames(t *testing.T) {
	url, last := answering(t, func(w http.ResponseWriter, _ *http.Request) { serve.WriteJSON(w, http.StatusOK, cubeapi.OK("r")) })
	ctx := logs.WithRequestID(t.Context(), "req-of-mine")
	c := cubeapi.NewClient(url+"/", "the-key")
	for name, do := range map[string]func() error{
		"PUT /cube/template/a%2Fb/alias":                    func() error { _, err := c.SetAlias(ctx, "a/b", "x"); return err },
		"GET /cube/template/build/job%2F1/status":           func() error { _, err := c.BuildStatus(ctx, "job/1"); return err },
		"GET /cube/template?template_id=a%26b":              func() error { _, err := c.Template(ctx, "a&b"); return err },
		"GET /cube/template/a%2Fb/receipt":                  func() error { return c.Receipt(ctx, "a/b", io.Discard) },
		"GET /cube/rootfs-artifact?artifact_id=rfs-1":       func() error { _, err := c.Artifact(ctx, "rfs-1"); return err },
		"GET /cube/sandbox/info?sandbox_id=i1":              func() error { _, err := c.Sandbox(ctx, "i1"); return err },
		"GET /cube/sandbox/list?all=true":                   func() error { _, err := c.Sandboxes(ctx, true); return err },
		"DELETE /cube/sandbox":                              func() error { return c.DeleteSandbox(ctx, "i1") },
		"DELETE /cube/template":                             func() error { return c.DeleteTemplate(ctx, "t") },
		"GET /cube/sandbox/files?path=%2Fa+b&sandbox_id=i1": func() error { return c.ReadFile(ctx, "i1", "/a b", io.Discard) },
		"PUT /cube/sandbox/files?path=%2Fa&sandbox_id=i1":   func() error { _, err := c.WriteFile(ctx, "i1", "/a", strings.NewReader("x")); return err },
		"GET /internal/meta/nodes/h%2F1":                    func() error { _, err := c.Host(ctx, "h/1"); return err },
		"GET /notify/health":                                func() error { return c.Health(ctx) },
		"POST /internal/meta/nodes/h1/status": func() error {
			return cubeapi.NewHostClient(url, "the-key").Report(ctx, "h1", cubeapi.HostStatusRequest{})
		},
		"POST /internal/template/jobs/job-1/status": func() error { return cubeapi.NewReportClient(url, "the-key").Job(ctx, "job-1", cubeapi.JobReport{}) },
		"GET /tc/api/v1/artifact/receipt?artifact_id=rfs-1": func() error {
			b, err := cubeapi.NewCenterClient(url, "the-key").Receipt(ctx, "rfs-1")
			if err == nil {
				err = b.Close()
			}
			return err
		},
		"POST /tc/api/v1/artifact/delete": func() error { return cubeapi.NewCenterClient(url, "the-key").DeleteArtifact(ctx, "rfs-1") },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := last()
		if got := r.Method + " " + r.URL.RequestURI(); got != name {
			t.Errorf("asked %s, want %s", got, name)
		}
		keys := r.Header.Get(cubeapi.HeaderAPIKey) + r.Header.Get(cubeapi.HeaderHostToken) + r.Header.Get(cubeapi.HeaderCallbackToken)
		if keys != "the-key" || r.Header.Get(cubeapi.HeaderRequestID) != "req-of-mine" {
			t.Errorf("%s: key %q, request id %q", name, keys, r.Header.Get(cubeapi.HeaderRequestID))
		}
	}
}

func TestAStreamThatBreaksOffIsNoExit(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		code *fault.Code
	}{
		"nothing":        {``, fault.PeerUnavailable},
		"no end":         {`{"pid":1}` + "\n" + `{"stdout":"aGk="}` + "\n", fault.PeerUnavailable},
		"half a line":    {`{"stdout":"aG`, fault.PeerUnavailable},
		"an error":       {`{"pid":1}` + "\n" + `{"error":{"code":"deadline_exceeded","message":"time is up"}}`, fault.Deadline},
		"a refused word": {`{"error":{"code":"command_not_found","message":"x"}}`, fault.CommandNotFound},
	} {
		url, _ := answering(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.body) })
		var out bytes.Buffer
		if _, err := cubeapi.NewClient(url, "k").Exec(t.Context(), cubeapi.ExecRequest{}, &out, io.Discard); !errors.Is(err, c.code) {
			t.Errorf("%s: %v, want %s", name, err, c.code.Name)
		}
	}
	url, _ := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"pid":1}`+"\n"+`{"stdout":"b3V0"}`+"\n"+`{"stderr":"ZXJy"}`+"\n"+`{"exit":{"code":7,"signal":"KILL"}}`)
	})
	var out, errs bytes.Buffer
	exit, err := cubeapi.NewClient(url, "k").Exec(t.Context(), cubeapi.ExecRequest{}, &out, &errs)
	if err != nil || exit != (cubeapi.ExecExit{Code: 7, Signal: "KILL"}) || out.String() != "out" || errs.String() != "err" {
		t.Errorf("got %+v %q %q %v", exit, out.String(), errs.String(), err)
	}
}

// A file that is cut short must not look whole.
func TestAFileThatBreaksOffIsAFailure(t *testing.T) {
	url, _ := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		panic(http.ErrAbortHandler)
	})
	var got bytes.Buffer
	if err := cubeapi.NewClient(url, "k").ReadFile(t.Context(), "i1", "/a", &got); fault.Of(err) != fault.PeerUnavailable {
		t.Errorf("got %q, %v", got.String(), err)
	}
}

func TestAnIDThatNoHeaderCarriesStaysBehind(t *testing.T) {
	url, last := answering(t, func(w http.ResponseWriter, _ *http.Request) { serve.WriteJSON(w, http.StatusOK, cubeapi.OK("r")) })
	for _, given := range []string{"a\x00b", "a\nX-Api-Key: b", "a\x7f", "ä"} {
		err := cubeapi.NewReportClient(url, "the-key").Job(logs.WithRequestID(t.Context(), given), "job-1", cubeapi.JobReport{})
		if err != nil {
			t.Errorf("%q: %v", given, err)
			continue
		}
		if got, there := last().Header[cubeapi.HeaderRequestID]; there {
			t.Errorf("%q travels as %q", given, got)
		}
	}
}
