package guest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// newLoose is a guest for fuzzing: no server, one user, files in a directory
// of the test.
func newLoose(tb testing.TB) (*Guest, string) {
	tb.Helper()
	root := tb.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0::"+root+"/home:\n"), 0o644); err != nil {
		tb.Fatal(err)
	}
	g, err := New(Deps{Log: slog.New(slog.DiscardHandler), Root: root})
	if err != nil {
		tb.Fatal(err)
	}
	return g, root
}

func serve(g *Guest, r *http.Request) int {
	w := httptest.NewRecorder()
	g.Handler().ServeHTTP(w, r.WithContext(context.Background()))
	_, _ = io.Copy(io.Discard, w.Body) // a buffer
	return w.Code
}

// No form may be answered as a fault of ours, or write outside the place that
// path names.
func FuzzForm(f *testing.F) {
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\ndata\r\n--b--\r\n"), "")
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=file\r\n\r\n"), "gzip")
	f.Add([]byte("--b--"), "")
	g, root := newLoose(f)
	f.Fuzz(func(t *testing.T, body []byte, encoding string) {
		r := httptest.NewRequest(http.MethodPost, "/files?path="+root+"/home/in", bytes.NewReader(body))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		r.Header["Content-Encoding"] = []string{encoding}
		if code := serve(g, r); code >= 500 && code != 507 {
			t.Errorf("status %d", code)
		}
		entries, err := os.ReadDir(root)
		if err != nil || len(entries) > 2 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}

// No query or header may be answered as a fault of ours.
func FuzzQuery(f *testing.F) {
	f.Add("path=/etc/hosts&username=root", "gzip;q=0.1, *;q=0", "bytes=0-1")
	f.Add("path=~/x&signature=v1_&signature_expiration=-1", "identity;q=0", "bytes=-5,7-")
	f.Add("path=%00&username=0:0", ";;q=,", "")
	g, _ := newLoose(f)
	f.Fuzz(func(t *testing.T, query, accept, ranges string) {
		r := httptest.NewRequest(http.MethodGet, "/files", nil)
		r.URL.RawQuery = query
		if path := r.URL.Query().Get("path"); len(path) > 4 && path[:5] == "/proc" || len(path) > 3 && path[:4] == "/dev" {
			t.Skip("files that never end")
		}
		r.Header["Accept-Encoding"], r.Header["Range"] = []string{accept}, []string{ranges}
		if code := serve(g, r); code >= 500 && code != 503 {
			t.Errorf("status %d", code)
		}
	})
}

// No frame of a stream, and no message of a call, may end the guest or be
// answered as a fault of ours.
func FuzzFrames(f *testing.F) {
	f.Add("/process.Process/Connect", "application/connect+json", []byte("\x00\x00\x00\x00\x02{}"))
	f.Add("/process.Process/StreamInput", "application/connect+json", []byte("\x00\x00\x00\x00\x1d{\"data\":{\"input\":{\"stdin\":\"\"}}}"))
	f.Add("/process.Process/SendInput", "application/json", []byte(`{"process":{"pid":1},"input":{"stdin":"eA=="}}`))
	f.Add("/filesystem.Filesystem/Stat", "application/proto", []byte("\x0a\x01/"))
	f.Add("/process.Process/Start", "application/connect+json", []byte("\x00\xff\xff\xff\xff{"))
	f.Add("/init", "application/json", []byte(`{"timestamp":"x"}`))
	g, _ := newLoose(f)
	f.Fuzz(func(t *testing.T, path, kind string, body []byte) {
		switch path {
		case "/process.Process/Connect", "/process.Process/StreamInput", "/process.Process/SendInput", "/process.Process/SendSignal",
			"/process.Process/Update", "/process.Process/CloseStdin", "/filesystem.Filesystem/Stat", "/filesystem.Filesystem/ListDir", "/init":
		default:
			t.Skip("not a route that is safe to call at random")
		}
		if len(body) > 1<<16 {
			t.Skip("too long")
		}
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.URL.Path = path
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Connect-Protocol-Version", "1")
		if code := serve(g, r); code == 500 {
			t.Errorf("%s: status %d", path, code)
		}
	})
}
