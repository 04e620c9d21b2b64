package source_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
	ociManifest    = "application/vnd.oci.image.manifest.v1+json"
	ociIndex       = "application/vnd.oci.image.index.v1+json"
	ociConfig      = "application/vnd.oci.image.config.v1+json"
	ociLayer       = "application/vnd.oci.image.layer.v1.tar"
)

// object is a JSON object that a test may bend.
type object = map[string]any

// stock is images as their parts, also wrong ones: served as a registry, or
// laid out as a directory.
type stock struct {
	blobs map[string][]byte // by digest
	types map[string]string // of what manifests are served as
	tags  map[string]object // descriptors

	mu       sync.Mutex
	meddle   func(w http.ResponseWriter, r *http.Request) bool
	requests []string
}

func newStock() *stock {
	return &stock{blobs: map[string][]byte{}, types: map[string]string{}, tags: map[string]object{}}
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// add keeps bytes and returns their descriptor.
func (s *stock) add(mediaType string, b []byte) object {
	digest := sumOf(b)
	s.blobs[digest], s.types[digest] = b, mediaType
	return object{"mediaType": mediaType, "digest": digest, "size": len(b)}
}

// part is one layer of an image.
type part struct {
	plain []byte
	mediaType,
	diffID string // empty: as it is
	packed []byte // empty: plain, compressed as the media type says
	edit   func(object)
}

func pack(t testing.TB, mediaType string, plain []byte) []byte {
	t.Helper()
	switch {
	case strings.HasSuffix(mediaType, "gzip"):
		return gzipped(t, plain)
	case strings.HasSuffix(mediaType, "zstd"):
		return zstded(t, plain)
	}
	return plain
}

func gzipped(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstded(t testing.TB, plain []byte, o ...zstd.EOption) []byte {
	t.Helper()
	e, err := zstd.NewWriter(nil, o...)
	if err != nil {
		t.Fatal(err)
	}
	return e.EncodeAll(plain, nil)
}

// archiveOf is a tar stream of one file.
func archiveOf(t testing.TB, name, body string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// spec is an image. What is empty is as an honest image has it.
type spec struct {
	parts                    []part
	manifestType, configType string
	served                   string // what the manifest is served as
	config, run              object // members that are added or changed; nil removes
	edit                     func(object)
	raw                      func([]byte) []byte // of the manifest
	rawConfig                func([]byte) []byte
}

func change(to, by object) {
	maps.Copy(to, by)
	maps.DeleteFunc(to, func(_ string, v any) bool { return v == nil })
}

// image makes an image for this machine and returns its descriptor.
func (s *stock) image(t testing.TB, i spec) object {
	t.Helper()
	if i.manifestType == "" {
		i.manifestType = ociManifest
	}
	if i.configType == "" {
		i.configType = ociConfig
	}
	if i.parts == nil {
		i.parts = []part{{plain: archiveOf(t, "a", "1"), mediaType: ociLayer + "+gzip"}}
	}
	layers, ids := []any{}, []string{}
	for _, p := range i.parts {
		if p.packed == nil {
			p.packed = pack(t, p.mediaType, p.plain)
		}
		d := s.add(p.mediaType, p.packed)
		if p.edit != nil {
			p.edit(d)
		}
		if p.diffID == "" {
			p.diffID = sumOf(p.plain)
		}
		layers, ids = append(layers, d), append(ids, p.diffID)
	}
	run := object{"Entrypoint": []string{"/bin/app"}, "Cmd": []string{"serve"}, "Env": []string{"A=1"}, "WorkingDir": "/srv", "User": "nobody", "ExposedPorts": object{"80/tcp": object{}, "53/udp": object{}}}
	change(run, i.run)
	config := object{"os": "linux", "architecture": runtime.GOARCH, "config": run, "rootfs": object{"type": "layers", "diff_ids": ids}}
	change(config, i.config)
	rawConfig := encode(t, config)
	if i.rawConfig != nil {
		rawConfig = i.rawConfig(rawConfig)
	}
	m := object{"schemaVersion": 2, "mediaType": i.manifestType, "config": s.add(i.configType, rawConfig), "layers": layers}
	if i.edit != nil {
		i.edit(m)
		maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	}
	raw := encode(t, m)
	if i.raw != nil {
		raw = i.raw(raw)
	}
	d := s.add(i.manifestType, raw)
	if i.served != "" {
		s.types[d["digest"].(string)] = i.served
	}
	return d
}

// index makes an index of descriptors.
func (s *stock) index(t testing.TB, mediaType string, entries ...object) object {
	t.Helper()
	if entries == nil {
		entries = []object{}
	}
	return s.add(mediaType, encode(t, object{"schemaVersion": 2, "mediaType": mediaType, "manifests": entries}))
}

// on returns the descriptor with a platform.
func on(d object, platform string) object {
	d = maps.Clone(d)
	parts := strings.Split(platform, "/")
	p := object{"os": parts[0], "architecture": parts[1]}
	if len(parts) > 2 {
		p["variant"] = parts[2]
	}
	d["platform"] = p
	return d
}

// serve is a registry of the stock. Every repository has every tag.
func (s *stock) serve(t testing.TB) (host string) {
	t.Helper()
	return s.serveAt(t, "127.0.0.1")
}

func (s *stock) serveAt(t testing.TB, ip string) (host string) {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewUnstartedServer(s)
	_ = h.Listener.Close() // it has another one
	h.Listener = l
	h.Start()
	t.Cleanup(h.Close)
	return l.Addr().String()
}

// set has f answer requests; those for which it returns false are answered as
// ever.
func (s *stock) set(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meddle = f
}

// asked returns how many requests had a path with that part.
func (s *stock) asked(part string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if strings.Contains(r, part) {
			n++
		}
	}
	return n
}

func (s *stock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.URL.Path)
	meddle := s.meddle
	s.mu.Unlock()
	if meddle != nil && meddle(w, r) {
		return
	}
	s.answer(w, r)
}

func (s *stock) answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v2/" {
		return
	}
	parts := strings.Split(r.URL.Path, "/")
	kind, id := parts[len(parts)-2], parts[len(parts)-1]
	if d, ok := s.tags[id]; ok && kind == "manifests" {
		id = d["digest"].(string)
	}
	b, ok := s.blobs[id]
	if !ok {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintf(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no %s"}]}`, id)
		return
	}
	w.Header().Set("Content-Type", s.types[id])
	if kind == "blobs" {
		http.ServeContent(w, r, "", mtime, bytes.NewReader(b))
		return
	}
	_, _ = w.Write(b)
}

// layout is a directory of the stock.
func (s *stock) layout(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for digest, b := range s.blobs {
		write(filepath.Join(blobs, strings.TrimPrefix(digest, "sha256:")), b)
	}
	entries := []object{}
	for tag, d := range s.tags {
		d = maps.Clone(d)
		d["annotations"] = object{"org.opencontainers.image.ref.name": tag}
		entries = append(entries, d)
	}
	write(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`))
	write(filepath.Join(dir, "index.json"), encode(t, object{"schemaVersion": 2, "manifests": entries}))
	return dir
}

// request asks for a reference with everything of this machine allowed.
func request(reference string) source.Request {
	return source.Request{Reference: reference, Local: true, InsecureRegistries: []string{"127.0.0.1:*"}}
}

func resolve(t testing.TB, r source.Request) *source.Image {
	t.Helper()
	im, err := source.Resolve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := im.Close(); err != nil {
			t.Error(err)
		}
	})
	return im
}
