package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

// container returns an image for this platform with a layer for each list of
// names and texts; a name that ends in @ is a symlink.
func container(t *testing.T, layers ...[]string) v1.Image {
	t.Helper()
	im := empty.Image
	for _, files := range layers {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := 0; i < len(files); i += 2 {
			h := &tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1])), ModTime: noon}
			if link, ok := strings.CutSuffix(files[i], "@"); ok {
				h.Name, h.Typeflag, h.Linkname, h.Size = link, tar.TypeSymlink, files[i+1], 0
			}
			must(t, w.WriteHeader(h))
			_, err := w.Write([]byte(files[i+1])[:h.Size])
			must(t, err)
		}
		must(t, w.Close())
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
		must(t, err)
		im, err = mutate.AppendLayers(im, l)
		must(t, err)
	}
	c, err := im.ConfigFile()
	must(t, err)
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	im, err = mutate.ConfigFile(im, c)
	must(t, err)
	return im
}

var twoLayers = [][]string{{"etc/passwd", "root:x:0:0\n", "bin@", "usr/bin", "usr/bin/sh", "old"}, {"usr/bin/sh", "new", "etc/.wh.passwd", ""}}

// laidOut writes an image as an OCI layout and returns its reference.
func laidOut(t *testing.T, im v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	must(t, err)
	must(t, p.AppendImage(im))
	return "oci:" + dir
}

// served is a registry over plain HTTP.
type served struct {
	host  string
	blobs atomic.Int64
	block atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

func registryWith(t *testing.T, im v1.Image) (*served, string) {
	t.Helper()
	s := &served{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			s.blobs.Add(1)
		}
		if f := s.block.Load(); f != nil && (*f)(w, r) {
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	s.host = strings.TrimPrefix(web.URL, "http://")
	ref, err := name.ParseReference(s.host+"/app:1", name.Insecure)
	must(t, err)
	must(t, remote.Write(ref, im))
	return s, s.host + "/app:1"
}

// files lists what a directory holds.
func files(t *testing.T, dir string) (out []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}

// build builds and returns the answer.
func build(t *testing.T, args ...string) builtImage {
	t.Helper()
	got := paddock(t, append([]string{"image", "build", "-o", "json"}, args...)...)
	var b builtImage
	if err := json.Unmarshal([]byte(got.out), &b); err != nil || got.exit != 0 {
		t.Fatalf("%q: exit %d: %s%s", args, got.exit, got.out, got.errors)
	}
	return b
}

func TestBuildGivesTheSameBytesFromEverySource(t *testing.T) {
	im, dir := container(t, twoLayers...), t.TempDir()
	server, remoteRef := registryWith(t, im)
	archive := filepath.Join(t.TempDir(), "app.tar")
	tag, err := name.NewTag("app:1")
	must(t, err)
	must(t, tarball.WriteToFile(archive, tag, im))
	local := laidOut(t, im)
	out, receipt, cache := filepath.Join(dir, "app.ext4"), filepath.Join(dir, "app.json"), filepath.Join(t.TempDir(), "cache")
	first := build(t, "--image", local, "--out", out, "--receipt", receipt)
	for _, args := range [][]string{
		{"--image", local},
		{"--image", local, "--cache", cache},
		{"--image", "docker-archive:" + archive},
		{"--image", remoteRef, "--insecure-registry", server.host},
		{"--image", remoteRef, "--insecure-registry", server.host, "--cache", cache, "--work-dir", dir},
	} {
		args = append(args, "--out", filepath.Join(dir, "again.ext4"))
		if again := build(t, args...); again.Receipt.SHA256 != first.Receipt.SHA256 {
			t.Errorf("%q: sha256 %s, before %s", args, again.Receipt.SHA256, first.Receipt.SHA256)
		}
	}
	if got := paddock(t, "image", "inspect", out, "--verify", receipt); got.exit != 0 {
		t.Errorf("%+v", got)
	}
	if got := paddock(t, "image", "inspect", out, "--cat", "/bin/sh"); got.out != "new" {
		t.Errorf("%+v", got)
	}
	if got := paddock(t, "image", "inspect", out, "--cat", "/etc/passwd"); got.exit != fault.NotFound.Exit {
		t.Errorf("%+v", got)
	}
	if left := files(t, dir); len(left) != 3 {
		t.Errorf("left behind: %q", left)
	}
}

// TestBuildTakesWhatTheServerTakes: some builders write names with a slash
// before them, and the template centre drops it unless it is told not to.
func TestBuildTakesWhatTheServerTakes(t *testing.T) {
	out := filepath.Join(t.TempDir(), "app.ext4")
	build(t, "--image", laidOut(t, container(t, []string{"/bin/tool", "text"})), "--out", out)
	if got := paddock(t, "image", "inspect", out, "--cat", "/bin/tool"); got.out != "text" {
		t.Errorf("%+v", got)
	}
}

// TestAPlainRegistryIsRefusedWithTheFlagThatAllowsIt: here is no configuration
// in which it could be listed.
func TestAPlainRegistryIsRefusedWithTheFlagThatAllowsIt(t *testing.T) {
	s, ref := registryWith(t, container(t, twoLayers...))
	d := refused(t, fault.RegistryDown, "image", "build", "--image", ref, "--out", filepath.Join(t.TempDir(), "app.ext4"))
	if !strings.Contains(d.Remedy, "--insecure-registry "+s.host) {
		t.Errorf("%+v", d)
	}
}

func TestACachedLayerIsNotFetchedAgain(t *testing.T) {
	s, ref := registryWith(t, container(t, twoLayers...))
	args := []string{"--image", ref, "--insecure-registry", s.host, "--cache", filepath.Join(t.TempDir(), "cache"), "--out", filepath.Join(t.TempDir(), "app.ext4")}
	build(t, args...)
	s.blobs.Store(0)
	build(t, args...)
	if n := s.blobs.Load(); n > 1 { // the config is small and read again
		t.Errorf("%d blobs were fetched", n)
	}
}

// TestBuildTakesLimitsAndPolicyOfTheConfiguration, as a template centre does.
func TestBuildTakesLimitsAndPolicyOfTheConfiguration(t *testing.T) {
	ref := laidOut(t, container(t, []string{"/etc/passwd", "a slash before the name"}, twoLayers[1]))
	args := []string{"image", "build", "--image", ref, "--out", filepath.Join(t.TempDir(), "app.ext4")}
	if got := paddock(t, args...); got.exit != 0 {
		t.Errorf("%+v", got)
	}
	for variable, c := range map[string]struct {
		value string
		want  *fault.Code
	}{
		"PADDOCK_IMAGE_ENTRIES":        {"1", fault.TooManyEntries},
		"PADDOCK_IMAGE_ABSOLUTE_NAMES": {"false", fault.LayerPath},
		"PADDOCK_IMAGE_DEVICES":        {"sometimes", fault.BadConfig},
	} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, c.value)
			refused(t, c.want, args...)
		})
	}
	t.Run("policy", func(t *testing.T) {
		before := build(t, args[2:]...).Receipt.Policy
		t.Setenv("PADDOCK_IMAGE_DEVICES", "refuse")
		if got := build(t, args[2:]...).Receipt.Policy; got == before || !strings.Contains(got, "devices=refuse") {
			t.Errorf("policy %q, before %q", got, before)
		}
	})
}

func TestAReceiptWithNothingPutInHasAnEmptyList(t *testing.T) {
	ref := laidOut(t, container(t, []string{"dev/x", "", "proc/x", "", "sys/x", "", "etc/x", "", "tmp/x", ""}))
	got := paddock(t, "image", "build", "-o", "json", "--image", ref, "--out", filepath.Join(t.TempDir(), "app.ext4"))
	if got.exit != 0 || !strings.Contains(got.out, `"injected": []`) || !strings.Contains(got.out, `"not_written": []`) {
		t.Errorf("%+v", got)
	}
}

func TestBuildPutsCertificatesIn(t *testing.T) {
	ref, dir := laidOut(t, container(t, twoLayers...)), t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	must(t, os.WriteFile(ca, certificate(t), 0o600))
	args := []string{"--image", ref, "--out", filepath.Join(dir, "app.ext4")}
	plain, with := build(t, args...), build(t, append(args, "--egress-ca", ca)...)
	if plain.Receipt.ContentKey == with.Receipt.ContentKey || plain.Receipt.SHA256 == with.Receipt.SHA256 {
		t.Error("the certificate changes nothing")
	}
	if !slices.Contains(with.Receipt.Injected, rootfs.Injected{Path: "etc/ssl/certs/ca-certificates.crt", What: "ca", How: "created"}) {
		t.Errorf("put in: %+v", with.Receipt.Injected)
	}
	refused(t, fault.InvalidInput, append([]string{"image", "build", "--egress-ca", filepath.Join(dir, "none")}, args...)...)
}

// certificate is one in PEM.
func certificate(t *testing.T) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, key.Public(), key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestBuildTalksOnStandardErrorOnly(t *testing.T) {
	got := paddock(t, "image", "build", "--image", laidOut(t, container(t, twoLayers...)), "--out", filepath.Join(t.TempDir(), "app.ext4"))
	if got.exit != 0 || !strings.Contains(got.out, "sha256:") || strings.Contains(got.out, "%") {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(got.errors, "100% done\n") || strings.Contains(got.errors, "\r") || strings.Count(got.errors, "\n") > 20 {
		t.Errorf("progress: %q", got.errors)
	}
}

func TestBuildAsksWithTheCredentialsOfStandardInput(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, ref := registryWith(t, container(t, twoLayers...))
	guard := func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "ann" && password == "open" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	s.block.Store(&guard)
	args := []string{"image", "build", "--image", ref, "--insecure-registry", s.host, "--out", filepath.Join(t.TempDir(), "app.ext4"), "--registry-username", "ann", "--registry-password-stdin"}
	for password, exit := range map[string]int{"open\n": 0, "shut": fault.ImageDenied.Class.Exit} {
		var out, errors bytes.Buffer
		if got := run(t.Context(), args, strings.NewReader(password), &out, &errors); got != exit || strings.Contains(errors.String(), "shut") {
			t.Errorf("%q: exit %d: %s", password, got, errors.String())
		}
	}
}

func TestAFailedBuildLeavesNothingAndSpoilsNothing(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	good := laidOut(t, container(t, twoLayers...))
	hostile := laidOut(t, container(t, twoLayers[0], []string{"../up", "x"}))
	dir := t.TempDir()
	out, receipt := filepath.Join(dir, "app.ext4"), filepath.Join(dir, "app.json")
	must(t, os.WriteFile(out, []byte("before"), 0o600))
	for _, c := range []struct {
		want *fault.Code
		says string
		args []string
	}{
		{fault.InvalidInput, "--image", []string{"--out", out}},
		{fault.InvalidInput, "--out", []string{"--image", good}},
		{fault.InvalidInput, "is no file", []string{"--image", good, "--out", dir}},
		{fault.InvalidInput, "directory of --out", []string{"--image", good, "--out", filepath.Join(dir, "none", "app.ext4")}},
		{fault.InvalidInput, "directory of --receipt", []string{"--image", good, "--out", out, "--receipt", filepath.Join(dir, "none", "app.json")}},
		{fault.InvalidInput, "file system", []string{"--image", good, "--out", out, "--work-dir", "/dev/shm"}},
		{fault.InvalidInput, "needs --registry-password-stdin", []string{"--image", good, "--out", out, "--registry-username", "ann"}},
		{fault.InvalidInput, "needs --registry-username", []string{"--image", good, "--out", out, "--registry-password-stdin"}},
		{fault.InvalidInput, "platform", []string{"--image", good, "--out", out, "--platform", "amiga"}},
		{fault.ToolMissing, "guest", []string{"--image", good, "--out", out, "--guest", filepath.Join(dir, "none")}},
		{fault.ImagePlatform, "s390x", []string{"--image", good, "--out", out, "--platform", "linux/s390x"}},
		{fault.ImageNotFound, "", []string{"--image", good + ":none", "--out", out}},
		{fault.LayerPath, "../up", []string{"--image", hostile, "--out", out, "--receipt", receipt}},
	} {
		d := refused(t, c.want, append([]string{"image", "build"}, c.args...)...)
		if !strings.Contains(d.Message, c.says) {
			t.Errorf("%q: %q does not say %q", c.args, d.Message, c.says)
		}
		if left := files(t, dir); len(left) != 1 {
			t.Fatalf("%q: left behind: %q", c.args, left)
		}
	}
	if b, err := os.ReadFile(out); err != nil || string(b) != "before" {
		t.Errorf("what was there is now %q, %v", b, err)
	}
}

func TestAStoppedBuildLeavesNothing(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, ref := registryWith(t, container(t, twoLayers...))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	hang := func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		stop()
		<-r.Context().Done()
		return true
	}
	s.block.Store(&hang)
	dir := t.TempDir()
	var out, errors bytes.Buffer
	exit := run(ctx, []string{"image", "build", "--image", ref, "--insecure-registry", s.host, "--out", filepath.Join(dir, "app.ext4"), "--receipt", filepath.Join(dir, "app.json")}, strings.NewReader(""), &out, &errors)
	if exit != 130 || !strings.Contains(errors.String(), "Stopped") || out.Len() > 0 {
		t.Errorf("exit %d: %s%s", exit, out.String(), errors.String())
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A registry that gives a byte now and then never looks as if it hung.
func TestABuildHasAnEnd(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("PADDOCK_BUILD_TIMEOUT", "700ms")
	s, ref := registryWith(t, container(t, twoLayers...))
	trickle := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		for {
			_, _ = w.Write([]byte{0x1f})
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return true
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	s.block.Store(&trickle)
	dir := t.TempDir()
	refused(t, fault.BuildTooLong, "image", "build", "--image", ref, "--insecure-registry", s.host, "--out", filepath.Join(dir, "app.ext4"))
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestTheShellCompletesWhatImageTakes(t *testing.T) {
	for args, want := range map[string]string{
		"image ":                    "build",
		"image build --platform ":   "linux/arm64",
		"image build --cache ":      ":16", // directories
		"image inspect --verify ":   "json",
		"image inspect some.ext4 x": ":4", // nothing
	} {
		got := paddock(t, append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if !strings.Contains(got.out, want) {
			t.Errorf("%q: %q does not offer %q", args, got.out, want)
		}
	}
}
