package blobcache_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
)

// layer is bytes with their digest.
type layer struct {
	bytes  []byte
	digest string
}

func (l layer) size() int64 { return int64(len(l.bytes)) }

// layerOf is n bytes that seed decides.
func layerOf(seed byte, n int) layer {
	b := bytes.Repeat([]byte{seed, 1, 2, 3, 5, 7, 11}, n/7+1)[:n]
	sum := sha256.Sum256(b)
	return layer{b, "sha256:" + hex.EncodeToString(sum[:])}
}

// fetch writes the layer in pieces.
func (l layer) fetch(ctx context.Context, w io.Writer) error {
	for rest := l.bytes; len(rest) > 0; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := w.Write(rest[:min(len(rest), 1000)])
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// counted counts the fetches.
func (l layer) counted(n *atomic.Int32) blobcache.Fetch {
	return func(ctx context.Context, w io.Writer) error {
		n.Add(1)
		return l.fetch(ctx, w)
	}
}

func refuse(t *testing.T) blobcache.Fetch {
	return func(context.Context, io.Writer) error {
		t.Helper()
		t.Error("it was fetched")
		return errors.New("it was fetched")
	}
}

func open(t *testing.T, dir string, quota int64) *blobcache.Cache {
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

func get(t *testing.T, c *blobcache.Cache, l layer, fetch blobcache.Fetch) *blobcache.Blob {
	t.Helper()
	b, err := c.Get(t.Context(), l.digest, l.size(), fetch)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// once brings the layer and lets it go.
func once(t *testing.T, c *blobcache.Cache, l layer, fetch blobcache.Fetch) {
	t.Helper()
	if err := get(t, c, l, fetch).Close(); err != nil {
		t.Fatal(err)
	}
}

func read(b *blobcache.Blob) ([]byte, error) {
	r, err := b.Open()
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(r)
	return all, errors.Join(err, r.Close())
}

func check(t *testing.T, b *blobcache.Blob, l layer) {
	t.Helper()
	got, err := read(b)
	if err != nil || !bytes.Equal(got, l.bytes) || b.Size() != l.size() {
		t.Errorf("read %d bytes and %v, want %d", len(got), err, l.size())
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list {
		all = append(all, "sha256:"+e.Name())
	}
	return all
}

func blobs(t *testing.T, dir string) []string { return names(t, filepath.Join(dir, "blobs")) }

// clean tells that nothing is half written.
func clean(t *testing.T, dir string) {
	t.Helper()
	if n := names(t, filepath.Join(dir, "partial")); len(n) > 0 {
		t.Errorf("half written: %v", n)
	}
}

func TestALayerIsFetchedOnceAndOutlivesTheProcess(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 100_000)
	var n atomic.Int32
	c := open(t, dir, 0)
	for range 3 {
		b := get(t, c, l, l.counted(&n))
		check(t, b, l)
		check(t, b, l)
		for range 2 {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := b.Open(); err == nil {
			t.Error("a blob that was let go can be opened")
		}
	}
	b := get(t, open(t, dir, 0), l, l.counted(&n))
	defer b.Close()
	check(t, b, l)
	if n.Load() != 1 {
		t.Errorf("%d fetches", n.Load())
	}
	clean(t, dir)
}

func TestAnEmptyLayer(t *testing.T) {
	l := layerOf('e', 0)
	b := get(t, open(t, t.TempDir(), 0), l, l.fetch)
	defer b.Close()
	check(t, b, l)
}

func TestAReaderOutlivesItsBlob(t *testing.T) {
	dir, l, other := t.TempDir(), layerOf('a', 1000), layerOf('b', 1000)
	c := open(t, dir, 1000)
	b := get(t, c, l, l.fetch)
	r, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	once(t, c, other, other.fetch) // the quota would have the first one go
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, l.bytes) {
		t.Errorf("read %d bytes and %v", len(got), err)
	}
	if n := blobs(t, dir); len(n) != 1 || n[0] != l.digest {
		t.Errorf("kept %v, want the one that is read", n)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestManyCallersOfOneLayer(t *testing.T) {
	const callers = 64
	l, c := layerOf('a', 50_000), open(t, t.TempDir(), 0)
	var n atomic.Int32
	inside, goOn := make(chan struct{}), make(chan struct{})
	fetch := func(ctx context.Context, w io.Writer) error {
		if n.Add(1) == 1 {
			close(inside)
		}
		<-goOn
		return l.fetch(ctx, w)
	}
	var done sync.WaitGroup
	var good atomic.Int32
	for range callers {
		done.Go(func() {
			b, err := c.Get(t.Context(), l.digest, l.size(), fetch)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := read(b); err == nil && bytes.Equal(got, l.bytes) {
				good.Add(1)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	<-inside
	eventually(t, func() bool { return c.Waiting(l.digest, l.size()) == callers })
	close(goOn)
	done.Wait()
	if n.Load() != 1 || good.Load() != callers {
		t.Errorf("%d fetches, %d good answers", n.Load(), good.Load())
	}
}

// eventually waits for a condition that another goroutine or process makes.
func eventually(t *testing.T, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(time.Minute); !is(); {
		select {
		case <-end:
			t.Fatal("it did not come to be")
		case <-tick.C:
		}
	}
}

func TestACallerLeaves(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 5000)
	c := open(t, dir, 0)
	inside, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	fetch := func(ctx context.Context, w io.Writer) error {
		inside <- struct{}{}
		select {
		case <-goOn:
			return l.fetch(ctx, w)
		case <-ctx.Done():
			ended <- ctx.Err()
			return ctx.Err()
		}
	}
	type answer struct {
		blob *blobcache.Blob
		err  error
	}
	ask := func(ctx context.Context) chan answer {
		out := make(chan answer, 1)
		go func() {
			b, err := c.Get(ctx, l.digest, l.size(), fetch)
			out <- answer{b, err}
		}()
		return out
	}
	why := errors.New("left")
	first, leave := context.WithCancelCause(t.Context())
	one := ask(first)
	<-inside

	// Who began it leaves while another waits: the fetch goes on.
	two := ask(t.Context())
	eventually(t, func() bool { return c.Waiting(l.digest, l.size()) == 2 })
	leave(why)
	if a := <-one; !errors.Is(a.err, why) {
		t.Errorf("who left got %v", a.err)
	}
	close(goOn)
	a := <-two
	if a.err != nil {
		t.Fatal(a.err)
	}
	check(t, a.blob, l)
	if err := a.blob.Close(); err != nil {
		t.Error(err)
	}

	// The last one leaves: the fetch is stopped and leaves nothing behind.
	if err := os.Remove(filepath.Join(dir, "blobs", l.digest[7:])); err != nil {
		t.Fatal(err)
	}
	goOn = make(chan struct{})
	second, leave := context.WithCancelCause(t.Context())
	three := ask(second)
	<-inside
	leave(why)
	if a := <-three; !errors.Is(a.err, why) {
		t.Errorf("who left got %v", a.err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the fetch ended by %v", err)
	}
	once(t, c, l, l.fetch)
	clean(t, dir)
}

func TestAFailureIsNotRemembered(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 5000)
	c := open(t, dir, 0)
	down := errors.New("down")
	for _, c := range []struct {
		name  string
		fetch blobcache.Fetch
		want  error
	}{
		{"it failed at once", func(context.Context, io.Writer) error { return down }, down},
		{"it failed in the middle", func(_ context.Context, w io.Writer) error {
			_, err := w.Write(l.bytes[:99])
			return errors.Join(err, down)
		}, down},
		{"too few bytes", func(_ context.Context, w io.Writer) error { _, err := w.Write(l.bytes[:99]); return err }, fault.LayerDigest},
		{"too many bytes", func(_ context.Context, w io.Writer) error {
			_, err := w.Write(append(l.bytes[:l.size():l.size()], 'x'))
			return err
		}, fault.LayerDigest},
		{"a failed write that was hidden", func(_ context.Context, w io.Writer) error {
			_, _ = w.Write(append(l.bytes[:l.size():l.size()], 'x'))
			return down
		}, fault.LayerDigest},
		{"other bytes", func(ctx context.Context, w io.Writer) error { return layerOf('b', 5000).fetch(ctx, w) }, fault.LayerDigest},
	} {
		if _, err := open(t, dir, 0).Get(t.Context(), l.digest, l.size(), c.fetch); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		clean(t, dir)
		if n := blobs(t, dir); len(n) > 0 {
			t.Errorf("%s: kept %v", c.name, n)
		}
	}
	once(t, c, l, l.fetch)
}

// A caller may have rights that the one who fetches lacks.
func TestTheFailureOfAnotherIsTriedAgain(t *testing.T) {
	l, c := layerOf('a', 5000), open(t, t.TempDir(), 0)
	inside, goOn := make(chan struct{}), make(chan struct{})
	denied := fault.New(fault.ImageDenied, "no rights")
	first := make(chan error, 1)
	go func() {
		_, err := c.Get(t.Context(), l.digest, l.size(), func(context.Context, io.Writer) error {
			close(inside)
			<-goOn
			return denied
		})
		first <- err
	}()
	<-inside
	second := make(chan error, 1)
	go func() {
		b, err := c.Get(t.Context(), l.digest, l.size(), l.fetch)
		if err == nil {
			err = b.Close()
		}
		second <- err
	}()
	eventually(t, func() bool { return c.Waiting(l.digest, l.size()) == 2 })
	close(goOn)
	if err := <-first; !errors.Is(err, fault.ImageDenied) {
		t.Errorf("who has no rights got %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("who has rights got %v", err)
	}
}

func TestWhatIsNoLayer(t *testing.T) {
	c := open(t, t.TempDir(), 0)
	good := layerOf('a', 10)
	for _, digest := range []string{"", "sha256:", "sha512:" + good.digest[7:], good.digest[7:], good.digest + "00", "sha256:../../../../../../../../../../../../../../../../../../../etc/passwd0"} {
		if _, err := c.Get(t.Context(), digest, 10, refuse(t)); fault.Of(err) != fault.ImageInvalid {
			t.Errorf("%q: %v", digest, err)
		}
	}
	if _, err := c.Get(t.Context(), good.digest, -1, refuse(t)); fault.Of(err) != fault.ImageInvalid {
		t.Errorf("negative size: %v", err)
	}
}

func TestCloseStopsAFetch(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 5000)
	c, err := blobcache.Open(blobcache.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	inside, got := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := c.Get(t.Context(), l.digest, l.size(), func(ctx context.Context, _ io.Writer) error {
			close(inside)
			<-ctx.Done()
			return ctx.Err()
		})
		got <- err
	}()
	<-inside
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller got %v", err)
	}
	if _, err := c.Get(t.Context(), l.digest, l.size(), refuse(t)); fault.Of(err) != fault.CallCancelled {
		t.Errorf("after the end: %v", err)
	}
	clean(t, dir)
}

func TestAFailedStepLeavesNothing(t *testing.T) {
	for _, place := range []string{"claimed", "reserved", "write", "written", "synced", "renamed"} {
		dir, l := t.TempDir(), layerOf('a', 5000)
		c := open(t, dir, 0)
		disarm := fail.Arm("blobcache."+place, "error")
		_, err := c.Get(t.Context(), l.digest, l.size(), l.fetch)
		if !errors.Is(err, fail.ErrInjected) || fail.Visits("blobcache."+place) == 0 {
			t.Errorf("%s: %v", place, err)
		}
		disarm()
		clean(t, dir)
		b := get(t, c, l, l.fetch)
		check(t, b, l)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A cache without a directory would be wherever the program happens to run.
func TestACacheNeedsADirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := blobcache.Open(blobcache.Options{}); !errors.Is(err, fault.DataDir) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
