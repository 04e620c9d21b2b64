package cubelet_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// ensureFrom makes the host fetch the image from a server that behaves as
// handle says.
func ensureFrom(t *testing.T, w *world, handle http.HandlerFunc, change func(*hostpb.EnsureArtifactRequest)) (int64, error) {
	t.Helper()
	s := httptest.NewServer(handle)
	defer s.Close()
	r := w.wanted()
	r.Url = s.URL
	if change != nil {
		change(r)
	}
	answer, err := w.host.EnsureArtifact(w.ctx(), r)
	return answer.GetFetchedBytes(), serve.FromGRPC(err)
}

func whole(rw http.ResponseWriter, r *http.Request) {
	http.ServeContent(rw, r, "image", time.Time{}, bytes.NewReader(template.bytes))
}

// heldFiles are the names in the directory of images.
func heldFiles(t *testing.T, w *world) string {
	names, err := os.ReadDir(w.path("images"))
	check(t, err)
	var list []string
	for _, n := range names {
		list = append(list, n.Name())
	}
	return strings.Join(list, " ")
}

func TestArtifactIsFetchedOnce(t *testing.T) {
	w := newWorld(t).open()
	var asked atomic.Int32
	handle := func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.serveImage(rw, r)
	}
	s := httptest.NewServer(http.HandlerFunc(handle))
	defer s.Close()
	r := w.wanted()
	r.Url = s.URL
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if _, err := w.host.EnsureArtifact(w.ctx(), r); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	answer, err := w.host.EnsureArtifact(w.ctx(), r)
	if err != nil || answer.GetFetchedBytes() != 0 {
		t.Errorf("held already: %v, %v", answer, err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("it was downloaded %d times", n)
	}
	if b, err := os.ReadFile(w.path("images", artifactID+".ext4")); err != nil || !bytes.Equal(b, template.bytes) {
		t.Errorf("%d bytes of %d, %v", len(b), len(template.bytes), err)
	}
	_, err = w.host.RemoveArtifact(w.ctx(), &hostpb.RemoveArtifactRequest{ArtifactId: artifactID})
	check(t, err)
	_, err = w.host.RemoveArtifact(w.ctx(), &hostpb.RemoveArtifactRequest{ArtifactId: artifactID}) // absent is success
	check(t, err)
	if got := heldFiles(t, w); got != "" {
		t.Errorf("left: %s", got)
	}
}

// A connection that breaks is taken up where it broke, and only there.
func TestBrokenDownloadGoesOn(t *testing.T) {
	w := newWorld(t).open()
	var sent atomic.Int64
	n, err := ensureFrom(t, w, func(rw http.ResponseWriter, r *http.Request) {
		breaking := &breaker{ResponseWriter: rw, left: len(template.bytes) / 3}
		whole(breaking, r)
		sent.Add(int64(breaking.wrote))
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if total := int64(len(template.bytes)); n != total || sent.Load() > total+total/4 {
		t.Errorf("fetched %d, sent %d of %d bytes", n, sent.Load(), total)
	}
}

// breaker breaks the connection after so many bytes.
type breaker struct {
	http.ResponseWriter
	left, wrote int
}

func (b *breaker) Write(p []byte) (int, error) {
	if b.left <= 0 {
		panic(http.ErrAbortHandler)
	}
	n, err := b.ResponseWriter.Write(p[:min(len(p), b.left)])
	b.left, b.wrote = b.left-n, b.wrote+n
	if err == nil && n < len(p) {
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// What a caller that went away had fetched is of use to the next one.
func TestAbandonedDownloadGoesOn(t *testing.T) {
	w := newWorld(t).open()
	const part = 8 << 20
	stuck, given := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			whole(rw, r)
			return
		}
		rw.Header().Set("Content-Length", "67108864")
		_, _ = rw.Write(template.bytes[:part])
		rw.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			close(given)
		case <-stuck:
		}
	}))
	defer s.Close()
	defer close(stuck)
	r := w.wanted()
	r.Url = s.URL
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		runtimetest.Eventually(t, "the first part is on disk", func() bool {
			parts, err := filepath.Glob(w.path("images", "*.download"))
			if err != nil || len(parts) != 1 {
				return false
			}
			info, err := os.Stat(parts[0])
			return err == nil && info.Size() == part
		})
	}()
	if _, err := w.host.EnsureArtifact(ctx, r); err == nil {
		t.Fatal("a stuck download ended well")
	}
	<-given // up: a call that comes before shares the download
	answer, err := w.host.EnsureArtifact(w.ctx(), r)
	check(t, err)
	if got, want := answer.GetFetchedBytes(), int64(len(template.bytes)-part); got != want {
		t.Errorf("fetched %d bytes, want the missing %d", got, want)
	}
}

func TestRefusedDownloads(t *testing.T) {
	w := newWorld(t).open()
	words := func(status int, body string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(status)
			_, _ = rw.Write([]byte(body))
		}
	}
	const gone = `{"requestID":"r","ret":{"ret_code":130404,"ret_msg":"gone"},"error":{"code":"artifact_not_found","message":"it is gone","retryable":false}}`
	for name, c := range map[string]struct {
		handle http.HandlerFunc
		change func(*hostpb.EnsureArtifactRequest)
		want   *fault.Code
	}{
		"not found":              {words(404, gone), nil, fault.ArtifactNotFound},
		"not found, called fine": {words(200, gone), nil, fault.ArtifactNotFound},
		"wrong token":            {w.serveImage, func(r *hostpb.EnsureArtifactRequest) { r.Token = "another" }, fault.PeerUnavailable},
		"other bytes":            {whole, func(r *hostpb.EnsureArtifactRequest) { r.Sha256 = strings.Repeat("0", 64) }, fault.ArtifactCorrupt},
		"too short":              {whole, func(r *hostpb.EnsureArtifactRequest) { r.SizeBytes += 4096 }, fault.ArtifactCorrupt},
		"too long":               {whole, func(r *hostpb.EnsureArtifactRequest) { r.SizeBytes -= 4096 }, fault.ArtifactCorrupt},
		"no room":                {whole, func(r *hostpb.EnsureArtifactRequest) { r.SizeBytes = 1 << 50 }, fault.DiskFull},
		"no sum":                 {whole, func(r *hostpb.EnsureArtifactRequest) { r.Sha256 = "" }, fault.InvalidInput},
		"no id":                  {whole, func(r *hostpb.EnsureArtifactRequest) { r.ArtifactId = "../../x" }, fault.InvalidInput},
		"nobody there":           {whole, func(r *hostpb.EnsureArtifactRequest) { r.Url = "http://127.0.0.1:1/" }, fault.PeerUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ensureFrom(t, w, c.handle, c.change); !errors.Is(err, c.want) {
				t.Errorf("%v, want %s", err, c.want.Name)
			}
			if got := heldFiles(t, w); strings.Contains(got, artifactID+".ext4 ") || strings.HasSuffix(got, ".ext4") || strings.HasSuffix(got, ".json") {
				t.Errorf("held: %s", got)
			}
		})
	}
	// None of it stands in the way of the right one.
	w.hold()
}

// An artifact whose bytes changed under its id is fetched again; who runs from
// the old ones goes on.
func TestNewVersionOfAnArtifact(t *testing.T) {
	w := newWorld(t).open().hold()
	s := w.create(request())
	old := template.bytes
	defer func() { template.bytes = old }()
	template.bytes = append(bytes.Clone(old[:len(old)-1]), 1)
	_, err := ensureFrom(t, w, whole, func(r *hostpb.EnsureArtifactRequest) { r.Sha256 = sumOf(template.bytes) })
	check(t, err)
	if got := w.exec(s.GetSandboxId(), "probe", "echo", "on"); got.out != "on\n" {
		t.Errorf("%+v", got)
	}
}

func TestHostsAskForArtifactsByToken(t *testing.T) {
	w := newWorld(t).open()
	var got atomic.Value
	_, err := ensureFrom(t, w, func(rw http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get(cubeapi.HeaderArtifactToken))
		whole(rw, r)
	}, nil)
	if err != nil || got.Load() != artifactToken {
		t.Errorf("token %q, %v", got.Load(), err)
	}
}
