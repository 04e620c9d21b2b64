package ext4_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// blocky is a file of blocks, each filled with one byte: '.' for zeros.
func blocky(path, blocks string) item {
	var b []byte
	for _, c := range []byte(blocks) {
		if c == '.' {
			c = 0
		}
		b = append(b, bytes.Repeat([]byte{c}, 4096)...)
	}
	return item{path: path, meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, size: int64(len(b)), body: func() io.Reader { return bytes.NewReader(b) }}
}

func TestElideZeros(t *testing.T) {
	t.Parallel()
	dots := func(n int) string { return string(bytes.Repeat([]byte{'.'}, n)) }
	alternate := func(n, zeros int) (out string) {
		for range n {
			out += "x" + dots(zeros)
		}
		return out
	}
	cases := []struct {
		it     item
		blocks int64 // that stay allotted, extent nodes too
	}{
		{blocky("none", "abcdefghij"), 10},
		{blocky("short", "a"+dots(7)+"b"), 9},
		{blocky("just", "a"+dots(8)+"b"), 2},
		{blocky("start", dots(20)+"b"), 1},
		{blocky("end", "a"+dots(20)), 1},
		{blocky("all", dots(300)), 0},
		{blocky("several", "a"+dots(9)+"bb"+dots(3)+"c"+dots(30)), 7},
		{blocky("over the buffer", "a"+dots(200)+"b"+dots(70)+"c"), 3},
		{blocky("four extents", alternate(4, 8)), 4},
		{blocky("five extents", alternate(5, 8)), 6},
		{blocky("two nodes", alternate(341, 8)), 343},
	}
	o := testOptions
	o.ElideZeros = true
	var items []item
	for _, c := range cases {
		items = append(items, c.it)
	}
	path, l := write(t, items, o)
	check(t, path, items)
	plain, pl := write(t, items, testOptions)
	if l.Size != pl.Size || l.FreeBlocks <= pl.FreeBlocks {
		t.Errorf("%d bytes, %d free; without ElideZeros %d, %d", l.Size, l.FreeBlocks, pl.Size, pl.FreeBlocks)
	}
	im, full := open(t, path), open(t, plain)
	for _, c := range cases {
		s, err := im.Lookup(c.it.path)
		must(t, err)
		if s.Blocks != c.blocks*8 {
			t.Errorf("%s takes %d blocks, want %d", c.it.path, s.Blocks/8, c.blocks)
		}
		s, err = full.Lookup(c.it.path)
		must(t, err)
		if s.Blocks < c.it.size/512 {
			t.Errorf("%s has holes that nobody asked for", c.it.path)
		}
	}
}

// Zeros in a file that has holes of its own.
func TestElideSparse(t *testing.T) {
	t.Parallel()
	o := testOptions
	o.ElideZeros = true
	var items []item
	for _, n := range []int{1, 2, 6} {
		var segs []ext4.Segment
		for i := range int64(700) {
			segs = append(segs, ext4.Segment{Offset: i * 10 * 4096, Length: 9 * 4096})
		}
		it := sparseFile(fmt.Sprintf("f%d", n), 700*10*4096, segs...)
		it.body = filled{it.size, segs, func(i int) byte {
			if i%n == 0 { // some segments are zeros, which leaves fewer extents
				return 0
			}
			return byte(i%250) + 1
		}}.reader
		items = append(items, it)
	}
	path, _ := write(t, items, o)
	check(t, path, items)
}

func TestDropAndAlign(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	w, err := ext4.New(f, testOptions)
	must(t, err)
	s := w.Stream()
	put := func(size int64) ext4.Data {
		d, err := w.Allot(size, nil)
		must(t, err)
		must(t, s.Copy(d, pattern(9, size)()))
		return d
	}
	kept := put(5000)
	gone := put(300 << 10)
	w.Align()
	aligned := put(70000)
	unwritten, err := w.Allot(50000, nil)
	must(t, err)
	must(t, s.Close())
	must(t, w.Drop(gone))
	must(t, w.Drop(unwritten))
	must(t, w.Drop(ext4.Data{}))
	if err := w.Drop(gone); err == nil {
		t.Error("dropped twice")
	}
	must(t, second(w.Add(ext4.Root, "kept", ext4.Meta{Mode: 0o100644, Data: kept, Mtime: noon})))
	must(t, second(w.Add(ext4.Root, "aligned", ext4.Meta{Mode: 0o100644, Data: aligned, Mtime: noon})))
	must(t, second(w.Finish()))
	body := func(n int64) item {
		return item{meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, size: n, body: pattern(9, n)}
	}
	a, b := body(5000), body(70000)
	a.path, b.path = "kept", "aligned"
	check(t, path, []item{a, b})
	data, err := os.ReadFile(path)
	must(t, err)
	if free := data[(128+2)*4096 : 1<<20]; !bytes.Equal(free, make([]byte, len(free))) {
		t.Error("dropped contents are still in the image")
	}
	// Align begins at a multiple of 512 KiB: the second file is there.
	want, err := io.ReadAll(pattern(9, 70000)())
	must(t, err)
	if !bytes.Equal(data[1<<20:1<<20+70000], want) {
		t.Error("the second file is not at 1 MiB")
	}
}

// Spare room makes an image that can be mounted for writing.
func TestWritable(t *testing.T) {
	t.Parallel()
	o := testOptions
	o.SpareBytes, o.SpareInodes = 20<<20, 1000
	items := append(directoriesOf(1, 257, 1000), someXattrs()...)
	path, l := write(t, items, o)
	fsck(t, path)
	if l.FreeInodes < 1000 || l.FreeBlocks*4096 < 20<<20 {
		t.Fatalf("%+v", l)
	}
	scribble(t, path)
	fsck(t, path)
}

// scribble mounts an image, changes much of it, and unmounts it.
func scribble(t *testing.T, path string) {
	t.Helper()
	at, end := mountAs(t, path, "loop")
	defer end()
	for i := range 500 { // splits a leaf of the htree
		must(t, os.WriteFile(fmt.Sprintf("%s/d1000/new-file-%d", at, i), make([]byte, 20000), 0o644))
	}
	for i := range 300 {
		must(t, os.Remove(fmt.Sprintf("%s/d1000/name-of-a-file-%08d", at, i*3)))
		must(t, os.Remove(fmt.Sprintf("%s/shared-%d", at, i)))
		must(t, os.Remove(fmt.Sprintf("%s/large-%d", at, i)))
	}
	must(t, unix.Setxattr(at+"/shared-1000", "user.more", make([]byte, 200), 0))
	must(t, os.RemoveAll(at+"/d257"))
}

// resize2fs makes room where none was left.
func TestGrow(t *testing.T) {
	t.Parallel()
	items := append(directoriesOf(1, 257, 1000), someXattrs()...)
	path, _ := write(t, items, testOptions)
	must(t, os.Truncate(path, 150<<20)) // a second group
	if out, err := run(t, "resize2fs", path); err != nil {
		t.Fatalf("resize2fs: %v\n%s", err, out)
	}
	fsck(t, path)
	differ(t, "kernel", expected(t, items), kernel(t, path))
	scribble(t, path)
	fsck(t, path)
}
