package source_test

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
	"github.com/paddock-dev/paddock/test/service"
)

// pushed puts an image of docker's types into a real registry.
func pushed(t *testing.T, host string, plain ...[]byte) string {
	t.Helper()
	im := empty.Image
	for _, p := range plain {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if im, err = mutate.AppendLayers(im, l); err != nil {
			t.Fatal(err)
		}
	}
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	c.Config = v1.Config{Entrypoint: []string{"/bin/app"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, WorkingDir: "/srv", User: "nobody", ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}}}
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host+"/app:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, im); err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

// copyImage has another program carry an image.
func copyImage(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", "--dest-tls-verify=false"}, args...)
	if out, err := exec.Command("skopeo", args...).CombinedOutput(); err != nil {
		t.Fatalf("this test needs skopeo: %v: %s", err, out)
	}
}

// One image in every place that another program carries it to is one image.
func TestARealRegistryAndItsCopies(t *testing.T) {
	t.Parallel()
	host, dir := service.Registry(t), t.TempDir()
	plain := [2][]byte{archiveOf(t, "a", "lower"), archiveOf(t, "b", "upper")}
	ref := pushed(t, host, plain[0], plain[1])
	at := "docker://" + ref
	archive, layout := filepath.Join(dir, "saved.tar"), filepath.Join(dir, "layout")
	// Another registry, as the program would find the gzip layers in the first.
	again := service.Registry(t) + "/copy:zstd"
	copyImage(t, at, "docker-archive:"+archive+":app:1")
	copyImage(t, at, "oci:"+layout+":gzip")
	copyImage(t, "--dest-decompress", at, "dir:"+filepath.Join(dir, "plain"))
	copyImage(t, "--dest-compress-format", "zstd", "--format", "oci", "dir:"+filepath.Join(dir, "plain"), "docker://"+again)
	copyImage(t, "docker://"+again, "oci:"+layout+":zstd")
	copyImage(t, "oci:"+layout+":gzip", "docker://"+host+"/copy:gzip")

	images := map[string]*source.Image{}
	for _, r := range []string{ref, again, host + "/copy:gzip", "oci:" + layout + ":gzip", "oci:" + layout + ":zstd", "docker-archive:" + archive} {
		im := resolve(t, request(r))
		checkTwoLayers(t, im, plain)
		images[r] = im
	}
	same := func(what string, get func(*source.Image) string, refs ...string) {
		t.Helper()
		for _, r := range refs[1:] {
			if a, b := get(images[refs[0]]), get(images[r]); a != b {
				t.Errorf("%s: %s has %s, %s has %s", what, refs[0], a, r, b)
			}
		}
	}
	digest := func(im *source.Image) string { return im.Digest }
	config := func(im *source.Image) string { return im.ConfigDigest }
	same("digest", digest, host+"/copy:gzip", "oci:"+layout+":gzip")
	same("digest", digest, again, "oci:"+layout+":zstd")
	same("config", config, ref, "docker-archive:"+archive)
	same("config", config, again, host+"/copy:gzip")
	if c := images[again].Layers[0].Compression; c != source.Zstd {
		t.Errorf("the copy is compressed by %s", c)
	}
}

func TestARealRegistrysRefusals(t *testing.T) {
	t.Parallel()
	host := service.Registry(t)
	files := []service.File{{Name: "bin/"}, {Name: "bin/sh", Body: "x", Mode: 0o755}}
	good := service.Image(t, host, "good:1", files...)
	for _, c := range []struct {
		ref  string
		want *fault.Code
	}{
		{service.ForeignImage(t, host, "foreign:1", files...), fault.ImagePlatform},
		{service.ForeignIndex(t, host, "index:1", files...), fault.ImagePlatform},
		{host + "/good:2", fault.ImageNotFound},
		{host + "/none:1", fault.ImageNotFound},
		{host + "/good@" + fmt.Sprintf("sha256:%064d", 0), fault.ImageNotFound},
	} {
		r := request(c.ref)
		r.Platform = "linux/amd64"
		_, err := source.Resolve(t.Context(), r)
		refused(t, err, c.want, "")
	}
	r := request(good)
	r.Platform, r.Cache = "linux/amd64", cacheIn(t, t.TempDir(), 0)
	im := resolve(t, r)
	if err := im.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err := read(t, im, 0); err != nil || !slices.Contains(im.DiffIDs(), sumOf(b)) {
		t.Errorf("%d bytes and %v", len(b), err)
	}
}
