package rootfs_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs"
)

// manyReader is an archive of n entries that is never in memory.
type manyReader struct {
	n, i int
	b    []byte
	left []byte
}

func many(n int) io.ReadCloser { return io.NopCloser(&manyReader{n: n, b: make([]byte, 512)}) }

func (r *manyReader) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		if r.i == r.n+2 {
			return 0, io.EOF
		}
		clear(r.b)
		if r.i < r.n {
			r.header(r.i)
		}
		r.i++
		r.left = r.b
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// header is the i-th entry: an empty file, or a symlink.
func (r *manyReader) header(i int) {
	b := r.b
	kind := byte('0')
	if i%50 == 0 {
		kind = '2'
		copy(b[157:], "../d000")
	}
	copy(b, fmt.Sprintf("usr/lib/d%03d/sub%02d/file-%07d.txt", i%300, i%7, i))
	copy(b[100:], "0000644\x00")
	copy(b[108:], "0000000\x000000000\x0000000000000\x0000000000000\x00        ")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
}

// peak returns the largest heap met while do runs, beyond what there was.
func peak(do func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, most := m.HeapAlloc, m.HeapAlloc
	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Add(1)
	go func() {
		defer wait.Done()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	do()
	close(stop)
	wait.Wait()
	return int64(most - before)
}

// TestFewLayersAreDecodedAtOnce, however many processors there are: each takes
// buffers of over a MiB, and all of them together have 64.
func TestFewLayersAreDecodedAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []struct{ processors, layers, want int }{{1, 40, 1}, {4, 40, 4}, {4, 3, 3}, {64, 40, 16}, {4, 0, 0}} {
		runtime.GOMAXPROCS(c.processors)
		if got := rootfs.Decoders(c.layers); got != c.want {
			t.Errorf("%d processors, %d layers: %d at once, want %d", c.processors, c.layers, got, c.want)
		}
	}
}

// TestMemoryIsBoundedByEntries builds an image of very many entries.
func TestMemoryIsBoundedByEntries(t *testing.T) {
	h := sha256.New()
	if _, err := io.Copy(h, many(manyEntries)); err != nil {
		t.Fatal(err)
	}
	p := plain(t)
	p.Sums = []string{hex.EncodeToString(h.Sum(nil))}
	p.Open = func(context.Context, int) (io.ReadCloser, error) { return many(manyEntries), nil }
	dir := t.TempDir()
	var res rootfs.Result
	var err error
	used := peak(func() { res, err = p.Build(t.Context(), dir, filepath.Join(dir, "out.ext4")) })
	if err != nil {
		t.Fatal(err)
	}
	if res.Entries < manyEntries {
		t.Errorf("%d entries", res.Entries)
	}
	t.Logf("%d entries: %d MiB, %d bytes each", manyEntries, used>>20, used/manyEntries)
	if most := int64(64<<20 + 400*manyEntries); used > most {
		t.Errorf("%d bytes of heap for %d entries, over %d", used, manyEntries, most)
	}
}
