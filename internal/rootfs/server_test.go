package rootfs_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
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
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/paddock-dev/paddock/internal/rootfs"
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

// archive is a layer's tar stream of the given entries.
func archive(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := h.Gname // the tests keep a file's content here
		h.Gname = ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, body string) tar.Header { return tar.Header{Name: name, Gname: body} }

func dir(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}

func symlink(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
}

func hardlink(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

func layerOf(t *testing.T, plain []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(plain)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
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

func (s *server) pushIndex(t *testing.T, repo string, images map[string]v1.Image) string {
	t.Helper()
	ix := v1.ImageIndex(empty.Index)
	for platform, im := range images {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		ix = mutate.AppendManifests(ix, mutate.IndexAddendum{Add: im, Descriptor: v1.Descriptor{Platform: p}})
	}
	ref, err := name.ParseReference(s.host+"/"+repo+":1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, ix); err != nil {
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

// odd is a layer whose config names another archive than it holds.
func odd(t *testing.T, plain []byte) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(b.Bytes(), types.DockerLayer)
}

// request is a Request for ref with a guest and an empty work directory.
func request(t *testing.T, ref string) rootfs.Request {
	t.Helper()
	guest := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(guest, []byte("the guest"), 0o600); err != nil {
		t.Fatal(err)
	}
	return rootfs.Request{Reference: ref, InsecureRegistries: []string{"127.0.0.1:*"}, GuestPath: guest, WorkDir: t.TempDir()}
}

// left returns what is in a directory.
func left(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
