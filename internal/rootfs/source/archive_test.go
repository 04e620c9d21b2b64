package source_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

// item is a member of an archive: a file, or what its header says.
type item struct {
	name string
	body []byte
	link string
	head *tar.Header
}

func saveTo(t testing.TB, items ...item) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := os.WriteFile(file, tarOf(t, items...), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func tarOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := &tar.Header{Name: i.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(i.body))}
		switch {
		case i.head != nil:
			h = i.head
		case i.link != "":
			h = &tar.Header{Name: i.name, Typeflag: tar.TypeSymlink, Linkname: i.link}
		case strings.HasSuffix(i.name, "/"):
			h = &tar.Header{Name: i.name, Typeflag: tar.TypeDir, Mode: 0o755}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(i.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// savedConfig is the config of an image of those layers.
func savedConfig(t testing.TB, by object, plain ...[]byte) []byte {
	t.Helper()
	ids := []string{}
	for _, p := range plain {
		ids = append(ids, sumOf(p))
	}
	config := object{
		"os": "linux", "architecture": runtime.GOARCH, "rootfs": object{"type": "layers", "diff_ids": ids},
		"config": object{"Entrypoint": []string{"/bin/app"}, "Cmd": []string{"serve"}, "Env": []string{"A=1"}, "WorkingDir": "/srv", "User": "nobody", "ExposedPorts": object{"80/tcp": object{}, "53/udp": object{}}},
	}
	change(config, by)
	return encode(t, config)
}

func savedManifest(t testing.TB, images ...object) item {
	return item{name: "manifest.json", body: encode(t, images)}
}

// Archives of one image as different programs write them.
func TestSavedImages(t *testing.T) {
	plain := [2][]byte{archiveOf(t, "a", "lower"), archiveOf(t, "b", "upper")}
	config := savedConfig(t, nil, plain[0], plain[1])
	hex := func(b []byte) string { return strings.TrimPrefix(sumOf(b), "sha256:") }
	id := func(c string) string { return strings.Repeat(c, 64) }
	zipped := [2][]byte{gzipped(t, plain[0]), zstded(t, plain[1])}
	image := func(config string, layers ...string) object {
		return object{"Config": config, "RepoTags": []string{"app:1"}, "Layers": layers}
	}
	digests := map[string]bool{}
	for name, items := range map[string][]item{
		"docker before 25": {
			{name: id("1") + "/"},
			{name: id("1") + "/VERSION", body: []byte("1.0")},
			{name: id("1") + "/json", body: []byte("{}")},
			{name: id("1") + "/layer.tar", body: plain[0]},
			{name: id("2") + "/"},
			{name: id("2") + "/VERSION", body: []byte("1.0")},
			{name: id("2") + "/json", body: []byte("{}")},
			{name: id("2") + "/layer.tar", body: plain[1]},
			{name: hex(config) + ".json", body: config},
			savedManifest(t, image(hex(config)+".json", id("1")+"/layer.tar", id("2")+"/layer.tar")),
			{name: "repositories", body: []byte("{}")},
		},
		"docker before 25 with a shared layer": {
			{name: id("1") + "/layer.tar", body: plain[0]},
			{name: id("2") + "/layer.tar", body: plain[1]},
			{name: id("3") + "/layer.tar", link: "../" + id("2") + "/layer.tar"},
			{name: hex(config) + ".json", body: config},
			savedManifest(t, image(hex(config)+".json", id("1")+"/layer.tar", id("3")+"/layer.tar")),
		},
		"docker since 25": {
			{name: "blobs/"},
			{name: "blobs/sha256/"},
			{name: "blobs/sha256/" + hex(plain[0]), body: plain[0]},
			{name: "blobs/sha256/" + hex(config), body: config},
			{name: "blobs/sha256/" + hex(plain[1]), body: plain[1]},
			{name: "index.json", body: []byte("{}")},
			savedManifest(t, image("blobs/sha256/"+hex(config), "blobs/sha256/"+hex(plain[0]), "blobs/sha256/"+hex(plain[1]))),
			{name: "oci-layout", body: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
			{name: "repositories", body: []byte("{}")},
		},
		"compressed layers": {
			{name: "blobs/sha256/" + hex(zipped[0]), body: zipped[0]},
			{name: "blobs/sha256/" + hex(zipped[1]), body: zipped[1]},
			{name: "blobs/sha256/" + hex(config), body: config},
			savedManifest(t, image("blobs/sha256/"+hex(config), "blobs/sha256/"+hex(zipped[0]), "blobs/sha256/"+hex(zipped[1]))),
		},
		"compressed layers of any name": {
			savedManifest(t, image("sha256:"+hex(config), "0.tar.gz", "./x/../1.tar")),
			{name: "./0.tar.gz", body: zipped[0]},
			{name: "1.tar", body: zipped[1]},
			{name: "sha256:" + hex(config), body: config},
		},
		"hard links": {
			{name: "a.tar", body: plain[0]},
			{name: "b.tar", body: plain[1]},
			{name: "c.tar", head: &tar.Header{Name: "c.tar", Typeflag: tar.TypeLink, Linkname: "b.tar"}},
			savedManifest(t, image("config.json", "a.tar", "c.tar")),
			{name: "config.json", body: config},
		},
	} {
		file := saveTo(t, items...)
		for _, tag := range []string{"", ":app:1", ":docker.io/library/app:1"} {
			im := resolve(t, request("docker-archive:"+file+tag))
			checkTwoLayers(t, im, plain)
			if im.ConfigDigest != sumOf(config) {
				t.Errorf("%s: config %s", name, im.ConfigDigest)
			}
			digests[im.Digest] = true
		}
	}
	// All of them are the same image, which the digest says on every machine.
	if len(digests) != 1 {
		t.Errorf("digests %v, want one", digests)
	}
}

// What another program wrote.
func TestAnArchiveOfAnotherProgram(t *testing.T) {
	plain := [2][]byte{archiveOf(t, "a", "lower"), archiveOf(t, "b", "upper")}
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
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("example.com/app:1")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(file, tag, im); err != nil {
		t.Fatal(err)
	}
	got := resolve(t, request("docker-archive:"+file+":example.com/app:1"))
	for i := range plain {
		if b, err := read(t, got, i); err != nil || !bytes.Equal(b, plain[i]) {
			t.Errorf("layer %d: %d bytes and %v", i, len(b), err)
		}
		if d, err := im.Layers(); err != nil || got.Layers[i].Compression != source.Gzip {
			t.Errorf("layer %d: %+v, %v", i, got.Layers[i], err)
		} else if want, err := d[i].Digest(); err != nil || got.Layers[i].Digest != want.String() {
			t.Errorf("layer %d: digest %s, want %s", i, got.Layers[i].Digest, want)
		}
	}
}

func TestAnArchiveOfManyImages(t *testing.T) {
	plain := archiveOf(t, "a", "1")
	one, two := savedConfig(t, nil, plain), savedConfig(t, object{"author": "two"}, plain)
	file := saveTo(t,
		item{name: "l.tar", body: plain}, item{name: "one.json", body: one}, item{name: "two.json", body: two},
		savedManifest(t,
			object{"Config": "one.json", "RepoTags": []string{"app:1", "app:one"}, "Layers": []string{"l.tar"}},
			object{"Config": "two.json", "RepoTags": []string{"app:2"}, "Layers": []string{"l.tar"}},
			object{"Config": "two.json", "RepoTags": nil, "Layers": []string{"l.tar"}},
			object{"Config": "one.json", "RepoTags": []string{"app:3"}, "Layers": []string{"l.tar"}},
			object{"Config": "two.json", "RepoTags": []string{"app:3"}, "Layers": []string{"l.tar"}}))
	for tag, want := range map[string][]byte{":app:1": one, ":app:one": one, ":app:2": two, ":index.docker.io/library/app:2": two} {
		if im := resolve(t, request("docker-archive:"+file+tag)); im.ConfigDigest != sumOf(want) {
			t.Errorf("%s: %s", tag, im.ConfigDigest)
		}
	}
	for tag, want := range map[string]*fault.Code{"": fault.ImageRef, ":app:4": fault.ImageNotFound, ":app": fault.ImageNotFound, ":app:3": fault.ManifestAmbiguous, "@sha256:" + strings.Repeat("0", 64): fault.ImageRef} {
		_, err := source.Resolve(t.Context(), request("docker-archive:"+file+tag))
		refused(t, err, want, "")
	}
}

func TestArchivesThatAreRefused(t *testing.T) {
	plain := archiveOf(t, "a", "1")
	config := savedConfig(t, nil, plain)
	layer, conf := item{name: "l.tar", body: plain}, item{name: "c.json", body: config}
	manifest := func(config string, layers ...string) item {
		return savedManifest(t, object{"Config": config, "RepoTags": []string{"app:1"}, "Layers": layers})
	}
	good := manifest("c.json", "l.tar")
	zero := strings.Repeat("0", 64)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(tarOf(t, layer, conf, good)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		items []item
		raw   []byte
		want  *fault.Code
		says  string
	}{
		{name: "nothing", raw: []byte{}, want: fault.ImageInvalid, says: "manifest.json"},
		{name: "no archive", raw: bytes.Repeat([]byte("x"), 2000), want: fault.ImageInvalid, says: "no tar archive"},
		{name: "cut short", raw: tarOf(t, layer, conf, good)[:1000], want: fault.ImageInvalid, says: "damaged"},
		{name: "compressed", raw: zipped.Bytes(), want: fault.ImageInvalid, says: "compressed by gzip"},
		{name: "a layout", items: []item{{name: "oci-layout"}, {name: "index.json"}}, want: fault.ImageInvalid, says: "manifest.json"},
		{name: "manifest too large", items: []item{{name: "manifest.json", body: make([]byte, 5000)}}, want: fault.ManifestTooLarge, says: "4096"},
		{name: "manifest that is none", items: []item{{name: "manifest.json", body: []byte("{}")}}, want: fault.ImageInvalid, says: "no JSON list"},
		{name: "no image", items: []item{{name: "manifest.json", body: []byte("[]")}}, want: fault.ImageInvalid, says: "no image"},
		{name: "two manifests", items: []item{layer, conf, good, manifest("c.json")}, want: fault.ManifestAmbiguous, says: "twice"},
		{name: "a member twice in the manifest", items: []item{layer, conf, {name: "manifest.json", body: []byte(`[{"Config":"c.json","Config":"d.json"}]`)}}, want: fault.ManifestAmbiguous, says: "twice"},
		{name: "a member in another case", items: []item{layer, conf, {name: "manifest.json", body: []byte(`[{"config":"c.json"}]`)}}, want: fault.ManifestAmbiguous, says: "Config"},
		{name: "no config", items: []item{layer, good}, want: fault.ImageInvalid, says: "c.json"},
		{name: "config too large", items: []item{layer, {name: "c.json", body: make([]byte, 5000)}, good}, want: fault.ManifestTooLarge, says: "c.json"},
		{name: "config of another digest", items: []item{layer, {name: zero + ".json", body: config}, manifest(zero+".json", "l.tar")}, want: fault.ImageInvalid, says: "has sha256:"},
		{name: "two configs", items: []item{layer, conf, conf, good}, want: fault.ManifestAmbiguous, says: "twice"},
		{name: "no layer", items: []item{conf, good}, want: fault.ImageInvalid, says: "l.tar"},
		{name: "two layers of one name", items: []item{layer, layer, conf, good}, want: fault.ManifestAmbiguous, says: "twice"},
		{name: "more layers than diff ids", items: []item{layer, conf, manifest("c.json", "l.tar", "l.tar")}, want: fault.LayerDigest, says: "its config 1"},
		{name: "too many layers", items: []item{layer, conf, manifest("c.json", "l.tar", "l.tar", "l.tar", "l.tar")}, want: fault.ImageInvalid, says: "at most 3"},
		{name: "a layer that climbs out", items: []item{layer, conf, manifest("c.json", "../../../etc/passwd")}, want: fault.ImageInvalid, says: "etc/passwd"},
		{name: "a link that climbs out", items: []item{{name: "l.tar", link: "/etc/passwd"}, conf, good}, want: fault.ImageInvalid, says: "l.tar"},
		{name: "a link to itself", items: []item{{name: "l.tar", link: "l.tar"}, conf, good}, want: fault.ImageInvalid, says: "links"},
		{name: "a link to a long name", items: []item{{name: "l.tar", link: strings.Repeat("x/", 300) + "y"}, conf, good}, want: fault.ImageInvalid, says: "over-long"},
		{name: "a device", items: []item{{head: &tar.Header{Name: "l.tar", Typeflag: tar.TypeChar}}, conf, good}, want: fault.ImageInvalid, says: "type"},
		{name: "another layer", items: []item{{name: "l.tar", body: archiveOf(t, "a", "2")}, conf, good}, want: fault.LayerDigest, says: "its bytes have"},
		{name: "a compressed layer of another digest", items: []item{{name: "blobs/sha256/" + zero, body: gzipped(t, plain)}, conf, manifest("c.json", "blobs/sha256/"+zero)}, want: fault.LayerDigest, says: "its bytes have"},
		{name: "a layer of an unknown compression", items: []item{{name: "l.tar", body: []byte("\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46")}, conf, good}, want: fault.LayerMedia, says: "xz"},
		{name: "too many bytes", items: []item{{name: "l.tar", body: archiveOf(t, "a", strings.Repeat("x", 20_000))}, conf, good}, want: fault.TooManyBytes, says: "10000"},
		{name: "another platform", items: []item{layer, {name: "c.json", body: savedConfig(t, object{"architecture": "s390x"}, plain)}, good}, want: fault.ImagePlatform, says: "s390x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := saveTo(t, c.items...)
			if c.raw != nil {
				if err := os.WriteFile(file, c.raw, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r := request("docker-archive:" + file)
			r.Limits = source.Limits{Layers: 3, Manifest: 4096, Config: 4096, Compressed: 10_000}
			refused(t, readAll(t, r), c.want, c.says)
		})
	}
	_, err := source.Resolve(t.Context(), request("docker-archive:"+filepath.Join(t.TempDir(), "none")))
	refused(t, err, fault.ImageNotFound, "")
	_, err = source.Resolve(t.Context(), request("docker-archive:"+t.TempDir()))
	refused(t, err, fault.ImageRef, "not a regular file")
	_, err = source.Resolve(t.Context(), request("docker-archive:/dev/null"))
	refused(t, err, fault.ImageRef, "not a regular file")
}

// A sparse member lies in the file in another way than it reads.
func TestASparseLayerIsRefused(t *testing.T) {
	plain := make([]byte, 1<<20)
	copy(plain, archiveOf(t, "a", "1"))
	dir := t.TempDir()
	for name, b := range map[string][]byte{
		"c.json": savedConfig(t, nil, plain), "l.tar": plain[:2048],
		"manifest.json": savedManifest(t, object{"Config": "c.json", "Layers": []string{"l.tar"}}).body,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "l.tar"), int64(len(plain))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "saved.tar")
	for _, format := range []string{"gnu", "posix"} {
		if out, err := exec.Command("tar", "-C", dir, "--format="+format, "-cSf", file, "c.json", "l.tar", "manifest.json").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, err := source.Resolve(t.Context(), request("docker-archive:"+file))
		refused(t, err, fault.ImageInvalid, "l.tar")
	}
}
