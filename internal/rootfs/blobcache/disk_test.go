package blobcache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
)

// TestADirectoryThatIsNoneHasACode: an operator can mend it, a caller cannot.
func TestADirectoryThatIsNoneHasACode(t *testing.T) {
	for _, name := range []string{"blobs", "partial"} {
		dir, l := t.TempDir(), layerOf('a', 1000)
		c := open(t, dir, 0)
		if err := errors.Join(os.Remove(filepath.Join(dir, name)), os.WriteFile(filepath.Join(dir, name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Get(t.Context(), l.digest, l.size(), l.fetch)
		if fault.Of(err) != fault.DataDir || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestADamagedLayerIsThrownOut(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 100_000)
	c := open(t, dir, 0)
	once(t, c, l, l.fetch)
	file := filepath.Join(dir, "blobs", l.digest[7:])

	for name, damage := range map[string]func() error{
		"a changed byte": func() error {
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte{0xff}, 77_777)
			return errors.Join(err, f.Close())
		},
		"cut short while pinned": func() error { return os.Truncate(file, 77_777) },
	} {
		old := get(t, c, l, refuse(t))
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		got, err := read(old)
		if fault.Of(err) != fault.LayerDamaged || !strings.Contains(err.Error(), l.digest) {
			t.Errorf("%s: read %d bytes and %v", name, len(got), err)
		}
		var n atomic.Int32
		fresh := get(t, c, l, l.counted(&n)) // the damaged one is still pinned
		check(t, fresh, l)
		if n.Load() != 1 {
			t.Errorf("%s: %d fetches", name, n.Load())
		}
		if err := errors.Join(old.Close(), fresh.Close()); err != nil {
			t.Error(err)
		}
		once(t, c, l, refuse(t))
	}
}

func TestATruncatedLayerIsFetchedAnew(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 5000)
	once(t, open(t, dir, 0), l, l.fetch)
	for _, size := range []int64{0, 4999, 5001} {
		if err := os.Truncate(filepath.Join(dir, "blobs", l.digest[7:]), size); err != nil {
			t.Fatal(err)
		}
		var n atomic.Int32
		b := get(t, open(t, dir, 0), l, l.counted(&n))
		check(t, b, l)
		if err := b.Close(); err != nil || n.Load() != 1 {
			t.Errorf("size %d: %d fetches, %v", size, n.Load(), err)
		}
	}
}

// A manifest that lies about a size must not cost others the layer.
func TestAWrongSizeIsRefusedAndHarmsNobody(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 5000)
	c := open(t, dir, 0)
	once(t, c, l, l.fetch)
	b := get(t, c, l, refuse(t))
	defer b.Close()
	for _, size := range []int64{0, 4999, 5001} {
		if _, err := c.Get(t.Context(), l.digest, size, refuse(t)); fault.Of(err) != fault.LayerDigest {
			t.Errorf("size %d: %v", size, err)
		}
	}
	once(t, open(t, dir, 0), l, refuse(t))
	clean(t, dir)
}

func TestTheLongestUnusedGoes(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, 3000)
	layers := map[byte]layer{}
	use := func(seed byte) {
		l, ok := layers[seed]
		if !ok {
			l = layerOf(seed, 1000)
			layers[seed] = l
		}
		once(t, c, l, l.fetch)
	}
	kept := func() string {
		var all []byte
		for seed, l := range layers {
			if slices.Contains(blobs(t, dir), l.digest) {
				all = append(all, seed)
			}
		}
		slices.Sort(all)
		return string(all)
	}
	for _, step := range []struct{ use, want string }{
		{"abc", "abc"},
		{"ad", "acd"}, // a was used again, so b goes
		{"e", "ade"},
	} {
		for _, seed := range []byte(step.use) {
			use(seed)
		}
		if got := kept(); got != step.want {
			t.Errorf("after %s: kept %s, want %s", step.use, got, step.want)
		}
	}

	// The next process knows the last uses of this one.
	use('a')
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open(t, dir, 2000)
	if got := kept(); got != "ae" {
		t.Errorf("after a smaller quota: kept %s, want ae", got)
	}
	c = open(t, dir, 500)
	if got := kept(); got != "" {
		t.Errorf("after a quota below any: kept %s", got)
	}
}

func TestWhatIsPinnedStays(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, 2500)
	var pinned []*blobcache.Blob
	for seed := byte('a'); seed < 'f'; seed++ { // twice what the quota holds
		l := layerOf(seed, 1000)
		pinned = append(pinned, get(t, c, l, l.fetch))
	}
	if n := blobs(t, dir); len(n) != 5 {
		t.Fatalf("%d layers of the 5 that are pinned", len(n))
	}
	for i, b := range pinned {
		check(t, b, layerOf('a'+byte(i), 1000))
	}
	for _, b := range pinned {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := blobs(t, dir); len(n) != 2 {
		t.Errorf("%d layers when nothing is pinned, want 2", len(n))
	}
	once(t, c, layerOf('e', 1000), refuse(t))
}

func TestWhatWasFoundStaysToo(t *testing.T) {
	dir, a, b := t.TempDir(), layerOf('a', 1000), layerOf('b', 1000)
	once(t, open(t, dir, 0), a, a.fetch)
	found := get(t, open(t, dir, 0), a, refuse(t))
	once(t, open(t, dir, 1000), b, b.fetch)
	if n := blobs(t, dir); !slices.Contains(n, a.digest) {
		t.Errorf("what was found and is pinned was evicted: %v", n)
	}
	check(t, found, a)
	if err := found.Close(); err != nil {
		t.Error(err)
	}
}

// Between opening the half written file and locking it, it may become the
// layer: it must not be written to then.
func TestAHalfWrittenFileBecomesTheLayer(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 5000)
	inside, goOn, first := make(chan struct{}), make(chan struct{}), make(chan *blobcache.Blob, 1)
	one, two := open(t, dir, 0), open(t, dir, 0)
	go func() {
		b, err := one.Get(t.Context(), l.digest, l.size(), func(ctx context.Context, w io.Writer) error {
			close(inside)
			<-goOn
			return l.fetch(ctx, w)
		})
		if err != nil {
			t.Error(err)
		}
		first <- b
	}()
	<-inside
	disarm := fail.Arm("blobcache.opened", "hang")
	defer disarm()
	second := make(chan error, 1)
	go func() {
		b, err := two.Get(t.Context(), l.digest, l.size(), refuse(t))
		if err == nil {
			check(t, b, l)
			err = b.Close()
		}
		second <- err
	}()
	eventually(t, func() bool { return fail.Visits("blobcache.opened") == 1 })
	close(goOn)
	if err := (<-first).Close(); err != nil {
		t.Error(err)
	}
	disarm()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

func TestWhatIsBeingWrittenCounts(t *testing.T) {
	dir, a, b := t.TempDir(), layerOf('a', 1000), layerOf('b', 1000)
	inside, goOn, first := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	slow := open(t, dir, 1500)
	go func() {
		blob, err := slow.Get(t.Context(), a.digest, a.size(), func(ctx context.Context, w io.Writer) error {
			close(inside)
			<-goOn
			return a.fetch(ctx, w)
		})
		if err == nil {
			err = blob.Close()
		}
		first <- err
	}()
	<-inside
	once(t, open(t, dir, 1500), b, b.fetch)
	if n := blobs(t, dir); len(n) != 0 {
		t.Errorf("kept %v beside what is being written", n)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, 0)
	var files []string
	for _, sub := range []string{"blobs", "partial"} {
		files = append(files, filepath.Join(dir, sub, "README"))
	}
	for _, f := range files {
		if err := os.WriteFile(f, bytes.Repeat([]byte("x"), 5000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := open(t, dir, 1000)
	once(t, c, layerOf('a', 1000), layerOf('a', 1000).fetch)
	once(t, c, layerOf('b', 1000), layerOf('b', 1000).fetch)
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
	if n := blobs(t, dir); len(n) != 2 {
		t.Errorf("the foreign file counted: %v", n)
	}
}

func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := blobcache.Open(blobcache.Options{Dir: file}); fault.Of(err) != fault.DataDir {
		t.Errorf("a file as directory: %v", err)
	}
}

// small is a disk of n bytes.
func small(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", n)); err != nil {
		t.Fatalf("this test mounts a tmpfs and so needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestAFullDisk(t *testing.T) {
	const disk = 1 << 20
	dir := small(t, disk)
	c := open(t, dir, 0)
	a, b, tooLarge := layerOf('a', 600<<10), layerOf('b', 600<<10), layerOf('c', 2*disk)

	// The disk has room for one: the older makes it, whatever the quota says.
	once(t, c, a, a.fetch)
	pinned := get(t, c, b, b.fetch)
	check(t, pinned, b)
	if n := blobs(t, dir); len(n) != 1 || n[0] != b.digest {
		t.Errorf("kept %v", n)
	}
	// What is pinned makes no room.
	if _, err := c.Get(t.Context(), a.digest, a.size(), refuse(t)); fault.Of(err) != fault.DiskFull || !strings.Contains(err.Error(), dir) {
		t.Errorf("no room beside what is pinned: %v", err)
	}
	check(t, pinned, b)
	if err := pinned.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Get(t.Context(), tooLarge.digest, tooLarge.size(), refuse(t)); fault.Of(err) != fault.DiskFull {
		t.Errorf("larger than the disk: %v", err)
	}
	clean(t, dir)
	once(t, c, a, a.fetch)
	once(t, c, a, refuse(t))
}

// A disk may become full although the room was reserved, as by a quota of the
// system or a file system that cannot reserve.
func TestAFailedWriteIsADiskFault(t *testing.T) {
	dir, l := t.TempDir(), layerOf('a', 5000)
	c := open(t, dir, 0)
	full := fmt.Errorf("write: %w", unix.ENOSPC)
	_, err := c.Get(t.Context(), l.digest, l.size(), func(context.Context, io.Writer) error { return full })
	if errors.Is(err, fault.DiskFull) {
		t.Errorf("the fetch's own failure was taken for the cache's: %v", err)
	}
	defer fail.Arm("blobcache.write", "error@3")()
	if _, err := c.Get(t.Context(), l.digest, l.size(), l.fetch); !errors.Is(err, fail.ErrInjected) {
		t.Errorf("%v", err)
	}
	clean(t, dir)
}
