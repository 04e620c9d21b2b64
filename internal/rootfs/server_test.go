package rootfs_test

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/klauspost/compress/gzip"

	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
)

// server is a registry with a knob: meddle answers a request itself and
// returns true, or lets it pass.
type server struct {
	host  string
	inner http.Handler

	mu     sync.Mutex
	meddle func(w http.ResponseWriter, r *http.Request) bool
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{inner: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		meddle := s.meddle
		s.mu.Unlock()
		if meddle == nil || !meddle(w, r) {
			s.inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(h.Close)
	s.host = strings.TrimPrefix(h.URL, "http://")
	return s
}

func (s *server) set(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meddle = f
}

// otherBytes answers with as many bytes as the blob has, but others.
func (s *server) otherBytes(w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	s.inner.ServeHTTP(rec, r)
	_, _ = w.Write(bytes.Repeat([]byte("y"), rec.Body.Len()))
}

func isBlob(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:")
}

// layerOf is a layer of a plain archive, in gzip.
func layerOf(t *testing.T, plain []byte) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return packed{static.NewLayer(b.Bytes(), types.DockerLayer), plain}
}

// bareOf is a layer of a plain archive, as it is.
func bareOf(plain []byte) v1.Layer { return static.NewLayer(plain, types.OCIUncompressedLayer) }

// packed is a layer and the archive that it was made of.
type packed struct {
	v1.Layer
	plain []byte
}

func (p packed) DiffID() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(p.plain))
	return h, err
}

func (p packed) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(p.plain)), nil
}

func imageOf(t *testing.T, arch string, layers ...v1.Layer) v1.Image {
	t.Helper()
	im, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", arch
	c.Config = v1.Config{Entrypoint: []string{"/bin/app"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, WorkingDir: "/srv", User: "nobody"}
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	return im
}

func (s *server) push(t *testing.T, repo string, im v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(s.host+"/"+repo+":1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, im); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

// pushLayers pushes an image of gzip layers for this machine.
func (s *server) pushLayers(t *testing.T, repo string, layers ...[]byte) string {
	t.Helper()
	var list []v1.Layer
	for _, l := range layers {
		list = append(list, layerOf(t, l))
	}
	return s.push(t, repo, imageOf(t, runtime.GOARCH, list...))
}

// pushBare pushes an image of layers without compression for this machine.
func (s *server) pushBare(t *testing.T, repo string, layers ...[]byte) string {
	t.Helper()
	var list []v1.Layer
	for _, l := range layers {
		list = append(list, bareOf(l))
	}
	return s.push(t, repo, imageOf(t, runtime.GOARCH, list...))
}

// odd is a layer whose config names another archive than it holds.
func odd(t *testing.T, plain []byte) v1.Layer {
	t.Helper()
	l := layerOf(t, plain).(packed)
	return packed{l.Layer, []byte("another")}
}

// request is a Request for ref with a guest, an empty work directory, and a
// cache beside it.
func request(t *testing.T, ref string) rootfs.Request {
	t.Helper()
	guest := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(guest, []byte("the guest"), 0o600); err != nil {
		t.Fatal(err)
	}
	return rootfs.Request{Reference: ref, InsecureRegistries: []string{"127.0.0.1:*"}, GuestPath: guest, WorkDir: t.TempDir(), Cache: cacheIn(t, t.TempDir())}
}

func cacheIn(t *testing.T, dir string) *blobcache.Cache {
	t.Helper()
	c, err := blobcache.Open(blobcache.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
