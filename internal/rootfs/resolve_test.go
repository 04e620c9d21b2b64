package rootfs_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/template"
)

func TestResolveReadsTheImage(t *testing.T) {
	s := newServer(t)
	for _, prefix := range []string{"", "docker://", "http://"} {
		r := request(t, prefix+s.pushLayers(t, "app", archive(t, file("a", "1")), archive(t, file("b", "2"))))
		im, err := rootfs.Resolve(t.Context(), r)
		if err != nil {
			t.Fatalf("%q: %v", prefix, err)
		}
		want := template.ImageConfig{Entrypoint: []string{"/bin/app"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, WorkingDir: "/srv", User: "nobody"}
		if !reflect.DeepEqual(im.Config, want) {
			t.Errorf("config %+v, want %+v", im.Config, want)
		}
		if im.Layers != 2 || im.CompressedBytes == 0 || !strings.HasPrefix(im.Digest, "sha256:") {
			t.Errorf("image %+v", im)
		}
		if len(im.ContentKey()) != 64 || len(im.GuestSHA256()) != 64 {
			t.Errorf("keys %q and %q", im.ContentKey(), im.GuestSHA256())
		}
	}
}

func TestAnIndexChoosesThePlatform(t *testing.T) {
	s := newServer(t)
	ours := imageOf(t, runtime.GOARCH, layerOf(t, archive(t, file("a", "ours"))))
	other := imageOf(t, "s390x", layerOf(t, archive(t, file("a", "theirs"))))
	ref := s.pushIndex(t, "many", map[string]v1.Image{"linux/s390x": other, "linux/" + runtime.GOARCH: ours, "unknown/unknown": other})
	for platform, want := range map[string]v1.Image{"": ours, "linux/s390x": other} {
		r := request(t, ref)
		r.Platform = platform
		im, err := rootfs.Resolve(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := want.Digest(); err != nil || im.Digest != d.String() {
			t.Errorf("platform %q: digest %s, want %s", platform, im.Digest, d)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := newServer(t)
	good := s.pushLayers(t, "good", archive(t, file("a", "1")))
	foreign := s.push(t, "foreign", imageOf(t, "s390x", layerOf(t, archive(t, file("a", "1")))))
	index := s.pushIndex(t, "index", map[string]v1.Image{"linux/s390x": imageOf(t, "s390x", layerOf(t, archive(t, file("a", "1"))))})
	chart := s.push(t, "chart", mutate.ConfigMediaType(imageOf(t, runtime.GOARCH, layerOf(t, archive(t, file("a", "1")))), types.MediaType("application/vnd.cncf.helm.config.v1+json")))
	away := closedPort(t)
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)

	for _, c := range []struct {
		name, ref string
		change    func(*rootfs.Request)
		want      *fault.Code
		says      string
	}{
		{name: "unreadable reference", ref: "UPPER/Case:!", want: fault.ImageRef},
		{name: "empty reference", ref: "  ", want: fault.ImageRef},
		{name: "unknown tag", ref: s.host + "/good:2", want: fault.ImageNotFound},
		{name: "unknown name", ref: s.host + "/none", want: fault.ImageNotFound},
		{name: "other platform", ref: foreign, want: fault.ImagePlatform, says: "linux/s390x"},
		{name: "other platforms", ref: index, want: fault.ImagePlatform, says: "linux/s390x"},
		{name: "platform nobody can read", ref: good, change: func(r *rootfs.Request) { r.Platform = "amiga" }, want: fault.InvalidInput},
		{name: "no image", ref: chart, want: fault.ImageInvalid, says: "helm"},
		{name: "registry away", ref: away + "/good", want: fault.RegistryDown},
		{name: "no registry", ref: strings.TrimPrefix(web.URL, "http://") + "/good", want: fault.RegistryDown},
		{name: "plain HTTP asked and not listed", ref: "http://" + good, change: func(r *rootfs.Request) { r.InsecureRegistries = nil }, want: fault.ImageRef, says: "not listed"},
		{name: "plain HTTP tried and not listed", ref: good, change: func(r *rootfs.Request) { r.InsecureRegistries = []string{"127.0.0.1:1"} }, want: fault.RegistryDown, says: "not listed"},
		{name: "no guest", ref: good, change: func(r *rootfs.Request) { r.GuestPath = filepath.Join(r.WorkDir, "none") }, want: fault.ToolMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request(t, c.ref)
			if c.change != nil {
				c.change(&r)
			}
			_, err := rootfs.Resolve(t.Context(), r)
			if fault.Of(err) != c.want || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %s saying %q", err, c.want.Name, c.says)
			}
			if d := fault.Describe(err); err != nil && d.Remedy == "" {
				t.Error("no remedy")
			}
			if n := left(t, r.WorkDir); len(n) > 0 {
				t.Errorf("left behind: %v", n)
			}
		})
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

func TestCredentials(t *testing.T) {
	s := newServer(t)
	ref := s.pushLayers(t, "secret", archive(t, file("a", "1")))
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "ann" && password == "open" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for _, c := range []struct {
		auth rootfs.Auth
		want *fault.Code
	}{
		{rootfs.Auth{}, fault.ImageDenied},
		{rootfs.Auth{Username: "ann", Password: "wrong"}, fault.ImageDenied},
		{rootfs.Auth{Username: "ann", Password: "open"}, nil},
	} {
		r := request(t, ref)
		r.Auth = c.auth
		_, err := rootfs.Resolve(t.Context(), r)
		if c.want == nil && err != nil || c.want != nil && fault.Of(err) != c.want {
			t.Errorf("%q: %v", c.auth.Password, err)
		}
		if err != nil && c.auth.Password != "" && strings.Contains(err.Error(), c.auth.Password) {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

func TestAServerErrorIsTheRegistrysAndACancelIsNobodys(t *testing.T) {
	s := newServer(t)
	ref := s.pushLayers(t, "app", archive(t, file("a", "1")))
	s.set(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if _, err := rootfs.Resolve(t.Context(), request(t, ref)); fault.Of(err) != fault.RegistryDown {
		t.Errorf("503: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.set(func(_ http.ResponseWriter, r *http.Request) bool { cancel(); <-r.Context().Done(); return true })
	if _, err := rootfs.Resolve(ctx, request(t, ref)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancel: %v", err)
	}
}

func TestRedirectsStayOffPlainHTTP(t *testing.T) {
	s := newServer(t)
	ref := s.pushLayers(t, "app", archive(t, file("a", "1")))
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	t.Cleanup(elsewhere.Close)
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	})
	r := request(t, ref)
	r.InsecureRegistries = []string{s.host}
	if _, err := rootfs.Resolve(t.Context(), r); fault.Of(err) != fault.RegistryDown {
		t.Errorf("error %v", err)
	}
}
