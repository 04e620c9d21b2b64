package source_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

func TestALayoutsImage(t *testing.T) {
	s, plain := twoLayers(t, ociManifest, ociConfig, ociLayer+"+gzip", ociLayer+"+zstd")
	dir, digest := s.layout(t), s.tags["1"]["digest"].(string)
	for _, ref := range []string{"oci:" + dir, "oci:" + dir + ":1", "oci:" + dir + "@" + digest, "oci:" + dir + ":1@" + digest, " oci:" + dir + "/"} {
		im := resolve(t, request(ref))
		if im.Digest != digest {
			t.Errorf("%s: digest %s, want %s", ref, im.Digest, digest)
		}
		checkTwoLayers(t, im, plain)
	}
	// A link to the layout is the user's own.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	resolve(t, request("oci:"+link+":1"))
}

// Tools name an image's kind by its config's type; other kinds are no images.
func TestALayoutSaysWhatItsEntriesAre(t *testing.T) {
	for kind, want := range map[string]*fault.Code{ociConfig: nil, dockerConfig: nil, "application/vnd.example.sbom+json": fault.ImageNotFound} {
		s := newStock()
		d := s.image(t, spec{edit: bend(object{"artifactType": kind})})
		d["artifactType"] = kind
		s.tags["1"] = d
		im, err := source.Resolve(t.Context(), request("oci:"+s.layout(t)))
		if want != nil {
			refused(t, err, want, "it has none")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := im.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestALayoutOfManyImages(t *testing.T) {
	s := newStock()
	ours, other, third := s.image(t, spec{}), s.image(t, spec{config: object{"architecture": "s390x"}}), s.image(t, spec{run: object{"User": "third"}})
	s.tags["ours"], s.tags["other"] = on(ours, here), on(other, "linux/s390x")
	r := request("oci:" + s.layout(t))
	if im := resolve(t, r); im.Digest != ours["digest"] {
		t.Errorf("of two platforms it chose %s", im.Digest)
	}
	r.Platform = "linux/s390x"
	if im := resolve(t, r); im.Digest != other["digest"] {
		t.Errorf("of two platforms it chose %s", im.Digest)
	}
	r.Platform = "linux/riscv64"
	_, err := source.Resolve(t.Context(), r)
	refused(t, err, fault.ImageRef, "ours")

	s.tags["third"] = on(third, here)
	dir := s.layout(t)
	_, err = source.Resolve(t.Context(), request("oci:"+dir))
	refused(t, err, fault.ImageRef, "third")
	if im := resolve(t, request("oci:"+dir+":third")); im.Config.User != "third" {
		t.Errorf("by its tag: %+v", im)
	}
	_, err = source.Resolve(t.Context(), request("oci:"+dir+":fourth"))
	refused(t, err, fault.ImageNotFound, "third")
	_, err = source.Resolve(t.Context(), request("oci:"+dir+":third@"+ours["digest"].(string)))
	refused(t, err, fault.ImageNotFound, "third")
	_, err = source.Resolve(t.Context(), request("oci:"+dir+"@sha256:"+strings.Repeat("0", 64)))
	refused(t, err, fault.ImageNotFound, "")
}

// damage are changes to a layout of twoLayers, each of which must be refused.
func TestLayoutsThatAreRefused(t *testing.T) {
	s, plain := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	manifest := s.tags["1"]["digest"].(string)
	layer := sumOf(plain[0])
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, plain[0], 0o600); err != nil {
		t.Fatal(err)
	}
	path := func(dir, digest string) string {
		return filepath.Join(dir, "blobs/sha256", strings.TrimPrefix(digest, "sha256:"))
	}
	put := func(file, text string) error {
		return os.WriteFile(file, []byte(text), 0o644)
	}
	instead := func(file string, do func(string) error) error { return errors.Join(os.RemoveAll(file), do(file)) }
	for name, c := range map[string]struct {
		damage func(dir string) error
		want   *fault.Code
		says   string
	}{
		"no directory":          {os.RemoveAll, fault.ImageNotFound, ""},
		"a file":                {func(d string) error { return instead(d, func(f string) error { return put(f, "") }) }, fault.ImageRef, ""},
		"no oci-layout":         {func(d string) error { return os.Remove(d + "/oci-layout") }, fault.ImageInvalid, "oci-layout"},
		"another version":       {func(d string) error { return put(d+"/oci-layout", `{"imageLayoutVersion":"2.0.0"}`) }, fault.ImageInvalid, "2.0.0"},
		"no version":            {func(d string) error { return put(d+"/oci-layout", `{}`) }, fault.ImageInvalid, "version"},
		"oci-layout too large":  {func(d string) error { return put(d+"/oci-layout", strings.Repeat(" ", 5000)) }, fault.ManifestTooLarge, ""},
		"no index":              {func(d string) error { return os.Remove(d + "/index.json") }, fault.ImageInvalid, "index.json"},
		"an index that is none": {func(d string) error { return put(d+"/index.json", `{"schemaVersion":2,"layers":[]}`) }, fault.ManifestAmbiguous, ""},
		"an empty index":        {func(d string) error { return put(d+"/index.json", `{"schemaVersion":2,"manifests":[]}`) }, fault.ImageNotFound, "it has none"},
		"index by a link": {func(d string) error {
			return instead(d+"/index.json", func(f string) error { return os.Symlink("oci-layout", f) })
		}, fault.ImageInvalid, "not a regular file"},
		"no manifest":      {func(d string) error { return os.Remove(path(d, manifest)) }, fault.ImageInvalid, ""},
		"another manifest": {func(d string) error { return put(path(d, manifest), `{}`) }, fault.ImageInvalid, "its bytes have"},
		"manifest by a pipe": {func(d string) error {
			return instead(path(d, manifest), func(f string) error { return syscall.Mkfifo(f, 0o644) })
		}, fault.ImageInvalid, "not a regular file"},
		"manifest by a directory": {func(d string) error {
			return instead(path(d, manifest), func(f string) error { return os.Mkdir(f, 0o755) })
		}, fault.ImageInvalid, "not a regular file"},
		"no layer":        {func(d string) error { return os.Remove(path(d, layer)) }, fault.ImageInvalid, ""},
		"a shorter layer": {func(d string) error { return os.Truncate(path(d, layer), 9) }, fault.LayerDigest, "9 bytes"},
		"a longer layer":  {func(d string) error { return os.Truncate(path(d, layer), 1<<20) }, fault.LayerDigest, "1048576 bytes"},
		"another layer":   {func(d string) error { return put(path(d, layer), strings.Repeat("x", len(plain[0]))) }, fault.LayerDigest, "its bytes have"},
		"layer by a link": {func(d string) error {
			return instead(path(d, layer), func(f string) error { return os.Symlink(secret, f) })
		}, fault.ImageInvalid, "not a regular file"},
		"layer by a link within": {func(d string) error {
			return errors.Join(os.Rename(path(d, layer), d+"/x"), os.Symlink("../../x", path(d, layer)))
		}, fault.ImageInvalid, "not a regular file"},
		"blobs by a link": {func(d string) error {
			return errors.Join(os.Rename(d+"/blobs", d+"/x"), os.Symlink("x", d+"/blobs"))
		}, fault.ImageInvalid, "not a directory"},
		"sha256 by a link": {func(d string) error {
			return errors.Join(os.Rename(d+"/blobs/sha256", d+"/x"), os.Symlink("../x", d+"/blobs/sha256"))
		}, fault.ImageInvalid, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := s.layout(t)
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			refused(t, readAll(t, request("oci:"+dir)), c.want, c.says)
		})
	}
}

// Digests lead to files, and nothing else of an image does.
func TestALayoutsPathsAreOurs(t *testing.T) {
	s := newStock()
	d := s.image(t, spec{})
	for _, digest := range []string{"../../index.json", "sha256:../../index.json", "sha256:/etc/passwd"} {
		bad := maps.Clone(d)
		bad["digest"] = digest
		s.tags["1"] = bad
		_, err := source.Resolve(t.Context(), request("oci:"+s.layout(t)))
		refused(t, err, fault.ImageInvalid, digest)
	}
}
