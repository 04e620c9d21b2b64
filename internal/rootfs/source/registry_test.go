package source_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

var mtime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// read returns the archive within a layer.
func read(t testing.TB, im *source.Image, i int) ([]byte, error) {
	t.Helper()
	r, err := im.Open(t.Context(), i)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	plain, err := source.Decompress(r, im.Layers[i].Compression, source.Limits{})
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	return io.ReadAll(plain)
}

// twoLayers is a stock whose image app:1 has two layers, in the given types.
func twoLayers(t testing.TB, manifest, config, first, second string) (*stock, [2][]byte) {
	t.Helper()
	s, plain := newStock(), [2][]byte{archiveOf(t, "a", "lower"), archiveOf(t, "b", "upper")}
	s.tags["1"] = s.image(t, spec{manifestType: manifest, configType: config, parts: []part{{plain: plain[0], mediaType: first}, {plain: plain[1], mediaType: second}}})
	return s, plain
}

// checkTwoLayers holds an image to what twoLayers made.
func checkTwoLayers(t *testing.T, im *source.Image, plain [2][]byte) {
	t.Helper()
	want := source.Config{Entrypoint: []string{"/bin/app"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, WorkingDir: "/srv", User: "nobody", ExposedPorts: []string{"53/udp", "80/tcp"}}
	if !reflect.DeepEqual(im.Config, want) {
		t.Errorf("config %+v, want %+v", im.Config, want)
	}
	if len(im.Layers) != 2 || im.Platform != "linux/"+runtime.GOARCH {
		t.Fatalf("image %+v", im)
	}
	var bytes int64
	for i, l := range im.Layers {
		bytes += l.Size
		got, err := read(t, im, i)
		if err != nil || string(got) != string(plain[i]) {
			t.Errorf("layer %d: %d bytes and %v", i, len(got), err)
		}
		if l.DiffID != sumOf(plain[i]) || im.DiffIDs()[i] != l.DiffID {
			t.Errorf("layer %d: diff id %s", i, l.DiffID)
		}
	}
	if bytes != im.CompressedBytes {
		t.Errorf("%d bytes, want %d", im.CompressedBytes, bytes)
	}
}

func TestARegistrysImage(t *testing.T) {
	for _, c := range []struct{ manifest, config, first, second string }{
		{ociManifest, ociConfig, ociLayer + "+gzip", ociLayer + "+zstd"},
		{ociManifest, ociConfig, ociLayer, ociLayer + "+gzip"},
		{dockerManifest, dockerConfig, dockerLayer, dockerLayer},
		{dockerManifest, dockerConfig, "application/vnd.docker.image.rootfs.diff.tar", "application/vnd.docker.image.rootfs.diff.tar.zstd"},
	} {
		s, plain := twoLayers(t, c.manifest, c.config, c.first, c.second)
		host, digest := s.serve(t), s.tags["1"]["digest"].(string)
		for _, ref := range []string{host + "/app:1", "docker://" + host + "/app:1", "http://" + host + "/deep/er/app:1", " " + host + "/app@" + digest} {
			im := resolve(t, request(ref))
			if im.Digest != digest || im.Reference != ref {
				t.Errorf("image %+v", im)
			}
			checkTwoLayers(t, im, plain)
		}
	}
}

// A type that says nothing of manifests is as good as none.
func TestAPlainFileServerIsARegistry(t *testing.T) {
	for _, served := range []string{"application/json", "application/octet-stream", "text/plain; charset=utf-8", "", ociManifest + "; charset=utf-8"} {
		s := newStock()
		d := s.image(t, spec{served: served})
		s.types[d["digest"].(string)] = served
		s.tags["1"] = d
		resolve(t, request(s.serve(t)+"/app:1"))
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func TestReferencesThatAreRefused(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	host := s.serve(t)
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	zero := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		name, ref string
		change    func(*source.Request)
		want      *fault.Code
		says      string
	}{
		{name: "unreadable", ref: "UPPER/Case:!", want: fault.ImageRef},
		{name: "empty", ref: "  ", want: fault.ImageRef},
		{name: "other digest", ref: host + "/app@sha512:" + strings.Repeat("0", 128), want: fault.ImageRef},
		{name: "unknown tag", ref: host + "/app:2", want: fault.ImageNotFound},
		{name: "unknown digest", ref: host + "/app@" + zero, want: fault.ImageNotFound},
		{name: "platform nobody can read", ref: host + "/app:1", change: func(r *source.Request) { r.Platform = "amiga" }, want: fault.InvalidInput},
		{name: "platform of too many parts", ref: host + "/app:1", change: func(r *source.Request) { r.Platform = "linux/arm/v7/x" }, want: fault.InvalidInput},
		{name: "registry away", ref: closedPort(t) + "/app", want: fault.RegistryDown},
		{name: "no registry", ref: strings.TrimPrefix(web.URL, "http://") + "/app", want: fault.RegistryDown},
		{name: "plain HTTP asked and not listed", ref: "http://" + host + "/app:1", change: func(r *source.Request) { r.InsecureRegistries = nil }, want: fault.ImageRef, says: "not listed"},
		{name: "plain HTTP tried and not listed", ref: host + "/app:1", change: func(r *source.Request) { r.InsecureRegistries = []string{"127.0.0.1:1"} }, want: fault.RegistryDown, says: "not listed"},
		{name: "files where they are not allowed", ref: "oci:/etc", change: func(r *source.Request) { r.Local = false }, want: fault.ImageRef, says: "not taken"},
		{name: "archives where they are not allowed", ref: "docker-archive:/etc/passwd", change: func(r *source.Request) { r.Local = false }, want: fault.ImageRef, says: "not taken"},
		{name: "no path", ref: "oci::tag", want: fault.ImageRef},
		{name: "layout by a bad digest", ref: "oci:/x@sha256:12", want: fault.ImageRef},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request(c.ref)
			if c.change != nil {
				c.change(&r)
			}
			_, err := source.Resolve(t.Context(), r)
			refused(t, err, c.want, c.says)
		})
	}
}

// refused holds an error to its code, its words and a remedy.
func refused(t *testing.T, err error, want *fault.Code, says string) {
	t.Helper()
	if fault.Of(err) != want || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("error %v, want %s saying %q", err, want.Name, says)
	}
	if err != nil && fault.Describe(err).Remedy == "" {
		t.Errorf("no remedy: %v", err)
	}
}

// What is named by its digest is held to it, by whoever serves it.
func TestAManifestOfAnotherDigest(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	image := s.tags["1"]
	digest := image["digest"].(string)
	s.tags["index"] = s.index(t, ociIndex, on(image, here))
	host := s.serve(t)
	changed := bytes.Replace(s.blobs[digest], []byte(`"schemaVersion":2`), []byte(`"schemaVersion": 2`), 1)
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/manifests/"+digest) {
			return false
		}
		w.Header().Set("Content-Type", ociManifest)
		w.Header().Set("Docker-Content-Digest", digest) // a lie
		_, _ = w.Write(changed)
		return true
	})
	for _, ref := range []string{host + "/app@" + digest, host + "/app:index"} {
		_, err := source.Resolve(t.Context(), request(ref))
		refused(t, err, fault.ImageInvalid, sumOf(changed))
	}
}

func TestAServerErrorIsTheRegistrysAndACancelIsNobodys(t *testing.T) {
	defer source.Hurry(10 * time.Second)()
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	ref := s.serve(t) + "/app:1"
	s.set(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	_, err := source.Resolve(t.Context(), request(ref))
	refused(t, err, fault.RegistryDown, "503")
	if n := s.asked("/v2/"); n != 3 {
		t.Errorf("it was asked %d times, want 3", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.set(func(_ http.ResponseWriter, r *http.Request) bool { cancel(); <-r.Context().Done(); return true })
	if _, err := source.Resolve(ctx, request(ref)); !errors.Is(err, context.Canceled) || fault.Of(err) != fault.CallCancelled {
		t.Errorf("cancel: %v", err)
	}
}

// TestARegistryThatKeepsOneWaiting in the middle of an answer is away.
func TestARegistryThatKeepsOneWaiting(t *testing.T) {
	defer source.Hurry(100 * time.Millisecond)()
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	ref := s.serve(t) + "/app:1"
	for _, part := range []string{"/manifests/", "/v2/"} {
		s.set(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, part) {
				return false
			}
			w.Header().Set("Content-Type", ociManifest)
			if part == "/v2/" {
				w.WriteHeader(http.StatusTeapot)
			}
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return true
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := source.Resolve(ctx, request(ref))
		cancel()
		refused(t, err, fault.RegistryDown, "no whole answer")
	}
}

func TestWhatARegistrySaysIsKeptShort(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	ref := s.serve(t) + "/app:1"
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, strings.Repeat("tea ", 10_000))
		return true
	})
	_, err := source.Resolve(t.Context(), request(ref))
	refused(t, err, fault.RegistryDown, "tea")
	if n := len(err.Error()); n > 2000 {
		t.Errorf("the error has %d bytes", n)
	}
}
