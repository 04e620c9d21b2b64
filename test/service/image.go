package service

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is one entry of an image's layer. Entries are written as they stand,
// also the ones that no honest image has.
type File struct {
	Name string // bin/sh; a name that ends in / is a directory
	Body string
	Mode int64  // 0: 0644, or 0755 for a directory
	Link string // when not empty: a symbolic link to this
	// Header, when not nil, is the whole entry but its size; the other fields
	// but Body are then left out. It makes devices, hard links and whiteouts.
	Header *tar.Header
}

// made is when every file of every image was made, so that equal files are
// equal bytes.
var made = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Image pushes an image of one gzip layer for linux/amd64 and returns its
// reference. repository is a name with or without a tag.
func Image(tb testing.TB, registry, repository string, files ...File) (reference string) {
	tb.Helper()
	return push(tb, registry, repository, image(tb, "amd64", files))
}

// ForeignImage pushes an image that is for linux/s390x only.
func ForeignImage(tb testing.TB, registry, repository string, files ...File) (reference string) {
	tb.Helper()
	return push(tb, registry, repository, image(tb, "s390x", files))
}

// ForeignIndex pushes an index whose only variant is for linux/s390x.
func ForeignIndex(tb testing.TB, registry, repository string, files ...File) (reference string) {
	tb.Helper()
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add:        image(tb, "s390x", files),
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}},
	})
	ref := parse(tb, registry, repository)
	if err := remote.WriteIndex(ref, index); err != nil {
		tb.Fatal(err)
	}
	return ref.Name()
}

func image(tb testing.TB, architecture string, files []File) v1.Image {
	tb.Helper()
	text, err := archive(files)
	if err != nil {
		tb.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(text)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		tb.Fatal(err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		tb.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	config.Config = v1.Config{
		Cmd:        []string{"/bin/sh"},
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin"},
		WorkingDir: "/",
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		tb.Fatal(err)
	}
	return img
}

func archive(files []File) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := header(f)
		h.Size = int64(len(f.Body))
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, f.Body); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

func header(f File) *tar.Header {
	if f.Header != nil {
		h := *f.Header
		return &h
	}
	h := &tar.Header{Name: f.Name, Mode: f.Mode, ModTime: made, Typeflag: tar.TypeReg}
	switch {
	case f.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
	case strings.HasSuffix(f.Name, "/"):
		h.Typeflag = tar.TypeDir
		if h.Mode == 0 {
			h.Mode = 0o755
		}
	case h.Mode == 0:
		h.Mode = 0o644
	}
	return h
}

func push(tb testing.TB, registry, repository string, img v1.Image) string {
	tb.Helper()
	ref := parse(tb, registry, repository)
	if err := remote.Write(ref, img); err != nil {
		tb.Fatal(err)
	}
	return ref.Name()
}

func parse(tb testing.TB, registry, repository string) name.Reference {
	tb.Helper()
	ref, err := name.ParseReference(registry+"/"+repository, name.Insecure)
	if err != nil {
		tb.Fatal(err)
	}
	return ref
}
