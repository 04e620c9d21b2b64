package ext4_test

import (
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// void is a file of which nothing is kept.
type void struct{}

func (void) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (void) Truncate(int64) error                   { return nil }

// zeroFile is one file of zeros: they take blocks of the image, but none of the
// disk.
func zeroFile(blocks int64) []item {
	size := blocks * 4096
	return []item{{path: "zeros", meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, size: size, body: func() io.Reader { return io.LimitReader(zeroReader{}, size) }}}
}

// An image of one group that is full, and one with a block more.
func TestAroundOneGroup(t *testing.T) {
	t.Parallel()
	const full = 32768
	planned := func(blocks int64) int64 {
		w, err := ext4.New(void{}, testOptions)
		must(t, err)
		addAll(t, w, zeroFile(blocks), allotAll(t, w, zeroFile(blocks)))
		l, err := w.Layout()
		must(t, err)
		return l.Blocks
	}
	most := int64(full) // of contents, so that one group holds all
	for planned(most) > full {
		most--
	}
	for n, groups := range map[int64]int64{most: 1, most + 1: 2} {
		items := zeroFile(n)
		path, l := write(t, items, testOptions)
		if l.Groups != groups || l.Blocks != full+(groups-1)*512 {
			t.Errorf("%d blocks of contents: %+v", n, l)
		}
		sound(t, path, l, items)
	}
}

// sound holds an image against everything but its contents: e2fsck, our own
// check, the kernel, and the counts that were promised.
func sound(t *testing.T, path string, l ext4.Layout, items []item) {
	t.Helper()
	fsck(t, path)
	im := open(t, path)
	_, err := im.Verify(t.Context())
	must(t, err)
	if i := im.Info(); i.Size != l.Size || i.Blocks != l.Blocks || i.FreeBlocks != l.FreeBlocks || i.Inodes != l.Inodes || i.FreeInodes != l.FreeInodes || i.Groups != l.Groups {
		t.Errorf("the superblock says %+v, the writer %+v", i, l)
	}
	dumpe2fs(t, path).same(t, im.Info())
	at, end := mountAs(t, path, "ro,loop")
	defer end()
	for _, it := range items[:min(len(items), 10)] {
		if v := kernelView(t, filepath.Join(at, it.path), make([]byte, 1<<16)); v["size"] != strconv.FormatInt(it.size, 10) {
			t.Errorf("%s: %v", it.path, v)
		}
	}
}

// 63 groups have their bitmaps in the first 512 KiB; those of 64 lie at the
// end, and from 65 on the descriptors take another block.
func TestManyGroups(t *testing.T) {
	t.Parallel()
	items := zeroFile(1)
	for _, groups := range []int64{2, 63, 64, 65} {
		for _, more := range []int64{0, 512} { // the last group full, and barely begun
			o := testOptions
			o.SpareBytes = (groups*32768 - 700 + more) * 4096 // the tree takes some 400 to 500
			path, l := write(t, items, o)
			if want := groups + more/512; l.Groups != want {
				t.Errorf("%d groups, want %d", l.Groups, want)
			}
			sound(t, path, l, items)
		}
	}
}

// Numbers of inodes around what the bitmap of one group can hold.
func TestManyInodes(t *testing.T) {
	t.Parallel()
	for used, groups := range map[int]int64{32767: 1, 32768: 1, 32769: 2} {
		path := filepath.Join(t.TempDir(), "image")
		w := create(t, path)
		for i := range used - 11 { // the reserved ones and lost+found
			must(t, second(w.Add(ext4.Root, strconv.Itoa(i), ext4.Meta{Mode: 0o100644, Mtime: noon})))
		}
		l, err := w.Finish()
		must(t, err)
		if l.Groups != groups || l.Inodes-l.FreeInodes != int64(used) {
			t.Errorf("%d inodes: %+v", used, l)
		}
		sound(t, path, l, []item{file("7", 0o644, "")})
	}
}

// The largest image that there can be, and one that is too large.
func TestLargestImage(t *testing.T) {
	t.Parallel()
	w, err := ext4.New(void{}, testOptions)
	must(t, err)
	const largest = 127 * 64 * 32768 // blocks
	d, err := w.Allot((largest-2048)*4096, nil)
	must(t, err)
	refused(t, second(w.Allot(4096*4096, nil)), fault.ImageUnfit, "more than")
	must(t, second(w.Add(ext4.Root, "f", ext4.Meta{Mode: 0o100644, Data: d})))
	refused(t, second(w.Layout()), fault.ImageUnfit, "more than") // no room for the bitmaps
}

// What only few entries of an image can have is refused before it fills the
// memory.
func TestBoundedMemory(t *testing.T) {
	t.Parallel()
	reg := ext4.Meta{Mode: 0o100644}
	for what, add := range map[string]func(w *ext4.Writer, i int) error{
		"targets": func(w *ext4.Writer, i int) error {
			return second(w.Add(ext4.Root, strconv.Itoa(i), ext4.Meta{Mode: 0o120777, Target: strings.Repeat("t", 4000)}))
		},
		"xattrs": func(w *ext4.Writer, i int) error {
			m := reg
			m.Xattrs = []ext4.Xattr{attr("user.x", fmt.Sprintf("%050000d", i))}
			return second(w.Add(ext4.Root, strconv.Itoa(i), m))
		},
		"holes": func(w *ext4.Writer, _ int) error {
			segs := make([]ext4.Segment, 1000)
			for i := range segs {
				segs[i] = ext4.Segment{Offset: int64(i) * 8192, Length: 1}
			}
			return second(w.Allot(1<<30, segs))
		},
	} {
		w, err := ext4.New(void{}, testOptions)
		must(t, err)
		for i := range 20_000 {
			if err = add(w, i); err != nil {
				break
			}
		}
		if refused(t, err, fault.TooMuchMetadata, "take more than"); t.Failed() {
			t.Fatal(what)
		}
	}
	longest, err := ext4.New(void{}, testOptions)
	must(t, err)
	for i := range 150_000 { // the longest names fit, however many
		must(t, second(longest.Add(ext4.Root, fmt.Sprintf("%0255d", i), reg)))
	}
	w, _ := writer(t)
	m := reg
	for i := range 17 {
		m.Xattrs = append(m.Xattrs, attr(fmt.Sprintf("user.%d", i), strings.Repeat("v", 1<<16)))
	}
	refused(t, second(w.Add(ext4.Root, "x", m)), fault.ImageUnfit, "more than 1048576 bytes")
	m.Xattrs = m.Xattrs[:16]
	must(t, second(w.Add(ext4.Root, "x", m)))
}
