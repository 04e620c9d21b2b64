package source_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

func cacheIn(t testing.TB, dir string, quota int64) *blobcache.Cache {
	t.Helper()
	c, err := blobcache.Open(blobcache.Options{Dir: dir, Quota: quota})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// asked returns how often each layer was fetched.
func (s *stock) layersAsked(im *source.Image) (n []int) {
	for _, l := range im.Layers {
		n = append(n, s.asked("/blobs/"+l.Digest))
	}
	return n
}

func TestTheCacheIsFilledOnce(t *testing.T) {
	s, plain := twoLayers(t, ociManifest, ociConfig, ociLayer+"+gzip", ociLayer+"+zstd")
	r := request(s.serve(t) + "/app:1")
	r.Cache = cacheIn(t, t.TempDir(), 0)
	var done sync.WaitGroup
	var im *source.Image
	for range 4 { // as many builds at once
		im = resolve(t, r)
		done.Go(func() {
			if err := im.Fetch(t.Context()); err != nil {
				t.Error(err)
			}
		})
		done.Go(func() { checkTwoLayers(t, im, plain) })
	}
	done.Wait()
	for i, n := range s.layersAsked(im) {
		if n != 1 {
			t.Errorf("layer %d was fetched %d times", i, n)
		}
	}
}

func TestWhatIsFetchedStaysUntilClose(t *testing.T) {
	s, plain := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	r, dir := request(s.serve(t)+"/app:1"), t.TempDir()
	r.Cache = cacheIn(t, dir, 1) // too small for anything
	im, err := source.Resolve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := im.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkTwoLayers(t, im, plain)
	open, err := im.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(im.Close(), im.Close()); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(open); err != nil || !bytes.Equal(b, plain[1]) {
		t.Errorf("what was opened before: %d bytes and %v", len(b), err)
	}
	if err := open.Close(); err != nil {
		t.Error(err)
	}
	if n := s.layersAsked(im); n[0] != 1 || n[1] != 1 {
		t.Errorf("fetched %v times", n)
	}
	if list, err := os.ReadDir(filepath.Join(dir, "blobs")); err != nil || len(list) > 0 {
		t.Errorf("the cache keeps %d layers, %v", len(list), err)
	}
	if _, err := im.Open(t.Context(), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("opened after close: %v", err)
	}
}

func TestADamagedCachedLayerIsFetchedAnew(t *testing.T) {
	s, plain := twoLayers(t, ociManifest, ociConfig, ociLayer+"+gzip", ociLayer+"+zstd")
	r, dir := request(s.serve(t)+"/app:1"), t.TempDir()
	r.Cache = cacheIn(t, dir, 0)
	im := resolve(t, r)
	for i := range im.Layers {
		if err := im.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A byte in the middle: the decoder meets it before the end is read.
		f, err := os.OpenFile(filepath.Join(dir, "blobs", im.Layers[i].Digest[7:]), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte{0x55, 0xaa}, im.Layers[i].Size/2)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = read(t, im, i)
		refused(t, err, fault.LayerDamaged, im.Layers[i].Digest)
		if got, err := read(t, im, i); err != nil || !bytes.Equal(got, plain[i]) {
			t.Errorf("read again: %d bytes and %v", len(got), err)
		}
	}
	if n := s.layersAsked(im); n[0] != 2 || n[1] != 2 {
		t.Errorf("fetched %v times", n)
	}
}

func TestWhatDoesNotComeIsNotKept(t *testing.T) {
	defer source.Hurry(10 * time.Second)()
	s, layer := oneLayer(t, 100_000)
	r := request(s.serve(t) + "/app:1")
	r.Cache = cacheIn(t, t.TempDir(), 0)
	im := resolve(t, r)
	s.ofLayer(layer, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, len(layer))) })
	refused(t, im.Fetch(t.Context()), fault.LayerDigest, "layer 1")
	s.ofLayer(layer, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	_, err := im.Open(t.Context(), 0)
	refused(t, err, fault.ImageInvalid, "layer 1")
	s.set(nil)
	if got, err := read(t, im, 0); err != nil || !bytes.Equal(got, layer) {
		t.Errorf("%d bytes and %v", len(got), err)
	}
}

func TestFetchEndsWithItsContext(t *testing.T) {
	s, layer := oneLayer(t, 1000)
	r := request(s.serve(t) + "/app:1")
	r.Cache = cacheIn(t, t.TempDir(), 0)
	im := resolve(t, r)
	why := errors.New("left")
	ctx, leave := context.WithCancelCause(t.Context())
	s.ofLayer(layer, func(_ http.ResponseWriter, r *http.Request) { leave(why); <-r.Context().Done() })
	if err := im.Fetch(ctx); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

func TestLayersOfThisMachineAreNotCached(t *testing.T) {
	s, plain := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	dir := t.TempDir()
	r := request("oci:" + s.layout(t))
	r.Cache = cacheIn(t, dir, 0)
	im := resolve(t, r)
	if err := im.Fetch(t.Context()); err != nil {
		t.Error(err)
	}
	checkTwoLayers(t, im, plain)
	if list, err := os.ReadDir(filepath.Join(dir, "blobs")); err != nil || len(list) > 0 {
		t.Errorf("the cache has %d layers, %v", len(list), err)
	}
}

func TestProgressOnlyGrows(t *testing.T) {
	defer source.Hurry(10 * time.Second)()
	const size = 1 << 20
	s, layer := oneLayer(t, size)
	d := s.tags["1"]
	same := part{plain: layer, mediaType: ociLayer}
	s.tags["1"] = s.image(t, spec{parts: []part{same, {plain: archiveOf(t, "a", "1"), mediaType: ociLayer + "+gzip"}, same}})
	s.tags["one"] = d
	host, layout := s.serve(t), s.layout(t)
	var tries atomic.Int32
	s.ofLayer(layer, func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) == 1 {
			w.Header().Set("Content-Length", "1048576")
			_, _ = w.Write(layer[:size/2])
			cut(w)
		}
		http.ServeContent(w, r, "", mtime, bytes.NewReader(layer))
	})
	for name, c := range map[string]struct {
		ref    string
		cached bool
	}{
		"streamed": {host + "/app:1", false}, "cached": {host + "/app:1", true}, "layout": {"oci:" + layout + ":1", true},
	} {
		tries.Store(0)
		var mu sync.Mutex
		var bytes int64
		var layers, calls int
		r := request(c.ref)
		if c.cached {
			r.Cache = cacheIn(t, t.TempDir(), 0)
		}
		r.Progress = func(b int64, l int) {
			if !mu.TryLock() {
				t.Error("two at once")
				return
			}
			defer mu.Unlock()
			if b < bytes || l < layers || b == bytes && l == layers && calls > 0 {
				t.Errorf("%s: from %d bytes, %d layers to %d, %d", name, bytes, layers, b, l)
			}
			bytes, layers, calls = b, l, calls+1
		}
		im := resolve(t, r)
		if err := im.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range im.Layers {
			for range 2 {
				if _, err := read(t, im, i); err != nil {
					t.Fatal(err)
				}
			}
		}
		if bytes != im.CompressedBytes || layers != 3 || calls < 4 {
			t.Errorf("%s: %d of %d bytes, %d layers, %d calls", name, bytes, im.CompressedBytes, layers, calls)
		}
	}
}

func TestCause(t *testing.T) {
	archive, line := errors.New("archive"), errors.New("line")
	if err := source.Cause(bytes.NewReader(make([]byte, 1000)), archive); err != archive { //nolint:errorlint // it is the same
		t.Errorf("of an honest line: %v", err)
	}
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(make([]byte, 1000))
		_ = w.CloseWithError(line)
	}()
	if err := source.Cause(r, archive); !errors.Is(err, line) {
		t.Errorf("of a broken line: %v", err)
	}
}

func TestLimitsHaveDefaults(t *testing.T) {
	l := source.Limits{Layers: 1, Window: -1}.Filled()
	if l.Layers != 1 || l.Window != 128<<20 || l.Ratio == 0 || l.Growth == 0 || l.Compressed == 0 || l.Compressed == math.MaxInt64 {
		t.Errorf("%+v", l)
	}
}
