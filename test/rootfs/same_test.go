package rootfs_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
	"github.com/paddock-dev/paddock/test/service"
)

// TestSameBytes builds each stack again and again: at once and in turn, from a
// directory, a registry and an archive. The bytes are the same.
func TestSameBytes(t *testing.T) {
	work, registry := workspace(t), service.Registry(t)
	for _, seed := range seeds(t, 4) {
		s := generate(seed, false)
		for i := range s {
			if s[i].compression == zstdd && seed%2 == 0 {
				s[i].compression = gzipd // an archive of docker has no zstd
			}
		}
		dir := filepath.Join(work, fmt.Sprint(seed))
		if err := s.writeLayout(filepath.Join(dir, "oci"), byUs); err != nil {
			t.Fatal(err)
		}
		img := imageOf(t, filepath.Join(dir, "oci"))
		here := source{devices: rootfs.Allow, reference: "oci:" + filepath.Join(dir, "oci") + ":latest"}
		there := source{devices: rootfs.Allow, reference: push(t, registry, seed, img), insecure: []string{registry}}
		kept := there
		kept.cache = openCache(t, filepath.Join(dir, "cache"))
		ways := []way{
			{"from a layout", here, 2},
			{"on one processor", here, 1},
			{"on eight processors", here, 8},
			{"from a registry", there, 2},
			{"from a registry, for the cache", kept, 1},
			{"from the cache", kept, 2},
		}
		if seed%2 == 0 {
			ways = append(ways, way{"from an archive", source{devices: rootfs.Allow, reference: archived(t, dir, img)}, 2})
		}
		first := ""
		for i, w := range ways {
			sum := builtOn(t, filepath.Join(dir, fmt.Sprint(i)), w)
			if first == "" {
				first = sum
			} else if sum != first {
				t.Errorf("seed %d: %s the image is %s, %s %s\n%s", seed, ways[0].how, first, w.how, sum, s)
			}
		}
	}
}

// way is one way of building an image.
type way struct {
	how   string
	from  source
	procs int
}

func openCache(t *testing.T, dir string) *blobcache.Cache {
	t.Helper()
	c, err := blobcache.Open(blobcache.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the cache: %v", err)
		}
	})
	return c
}

// builtOn returns the sha256 of the image.
func builtOn(t *testing.T, work string, w way) string {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(w.procs))
	b, err := build(t.Context(), work, w.from)
	if err != nil {
		t.Fatalf("%s: %v", w.how, err)
	}
	f, err := os.Open(b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%x", h.Sum(nil))
	if sum != b.SHA256 {
		t.Errorf("%s: the result says %s, its bytes have %s", w.how, b.SHA256, sum)
	}
	if err := os.RemoveAll(work); err != nil {
		t.Error(err)
	}
	return sum
}

func imageOf(t *testing.T, dir string) v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func push(t *testing.T, registry string, seed uint64, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(fmt.Sprintf("%s/stack:%d", registry, seed), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

func archived(t *testing.T, dir string, img v1.Image) string {
	t.Helper()
	tag, err := name.NewTag("stack:1")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "archive.tar")
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		t.Fatal(err)
	}
	return "docker-archive:" + file
}
