package ext4_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// More subdirectories than a link count can hold: the count is then 1.
func TestManySubdirectories(t *testing.T) {
	t.Parallel()
	for _, n := range subdirs {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "image")
			w := create(t, path)
			d, err := w.Add(ext4.Root, "d", ext4.Meta{Mode: 0o040755})
			must(t, err)
			for i := range n {
				must(t, second(w.Add(d, strconv.Itoa(i), ext4.Meta{Mode: 0o040755})))
			}
			must(t, second(w.Finish()))
			fsck(t, path)
			var st unix.Stat_t
			must(t, unix.Lstat(filepath.Join(mount(t, path), "d"), &st))
			if want := map[int]string{64997: "64999", 64998: "65000", 64999: "1"}[n]; fmt.Sprint(st.Nlink) != want {
				t.Errorf("%d links, want %s", st.Nlink, want)
			}
			_, err = open(t, path).Verify(t.Context())
			must(t, err)
		})
	}
}

// A file with as many names as ext4 allows.
func TestManyHardLinks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "image")
	w := create(t, path)
	n, err := w.Add(ext4.Root, "a", ext4.Meta{Mode: 0o100644})
	must(t, err)
	for i := range 64999 {
		must(t, w.Link(ext4.Root, "l"+strconv.Itoa(i), n))
	}
	must(t, second(w.Finish()))
	fsck(t, path)
	var st unix.Stat_t
	must(t, unix.Lstat(filepath.Join(mount(t, path), "l500"), &st))
	if st.Nlink != 65000 {
		t.Errorf("%d links", st.Nlink)
	}
}

// marks is a file of zeros with some bytes in it, too large to be held.
type marks struct {
	size int64
	at   []int64
}

func (m marks) ReadAt(p []byte, off int64) (int, error) {
	if off >= m.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), m.size-off)]
	clear(p)
	for _, a := range m.at {
		if a >= off && a < off+int64(len(p)) {
			p[a-off] = byte(a%251) + 1
		}
	}
	return len(p), nil
}

// A file of 700 MiB has more extents than its inode holds and lies in six
// groups.
func TestFileAcrossGroups(t *testing.T) {
	t.Parallel()
	m := marks{700<<20 + 5, []int64{0, 4096, 128<<20 - 1, 128 << 20, 300<<20 + 7, 512<<20 - 1, 512 << 20, 700<<20 + 4}}
	big := item{path: "big", meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, size: m.size, body: func() io.Reader { return io.NewSectionReader(m, 0, m.size) }}
	items := []item{file("before", 0o644, "b"), big, file("after", 0o644, "a")}
	path, l := write(t, items, testOptions)
	if l.Groups != 6 {
		t.Errorf("%d groups", l.Groups)
	}
	fsck(t, path)
	_, err := open(t, path).Verify(t.Context())
	must(t, err)
	sameAround(t, path, m)
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	if st.Blocks*512 > 4<<20 {
		t.Errorf("the image takes %d bytes of disk for a file of zeros", st.Blocks*512)
	}
}

// sameAround compares what the kernel and our reader say of the file "big"
// around each of its marks, and of what lies beside it.
func sameAround(t *testing.T, path string, m marks) {
	t.Helper()
	at, im := mount(t, path), open(t, path)
	for name, want := range map[string]string{"before": "b", "after": "a"} {
		got, err := os.ReadFile(filepath.Join(at, name))
		if must(t, err); string(got) != want {
			t.Errorf("%s holds %q", name, got)
		}
	}
	f, err := os.Open(filepath.Join(at, "big"))
	must(t, err)
	defer f.Close()
	s, err := im.Lookup("big")
	must(t, err)
	c, err := im.Contents(s)
	must(t, err)
	for _, a := range m.at {
		from := max(a-10_000, 0)
		want, got := make([]byte, min(20_000, m.size-from)), make([]byte, min(20_000, m.size-from))
		must(t, second(m.ReadAt(want, from)))
		for who, r := range map[string]io.ReaderAt{"kernel": f, "reader": c} {
			if _, err := r.ReadAt(got, from); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: other bytes around %d: %v", who, a, err)
			}
		}
	}
}

// The largest files that the format has, as holes with a few blocks.
func TestHugeFiles(t *testing.T) {
	t.Parallel()
	const largest = (1<<32 - 1) * 4096
	type huge struct {
		name string
		size int64
		segs []ext4.Segment
	}
	files := []huge{
		{"over 4 GiB", 5<<30 + 3, []ext4.Segment{{Offset: 10, Length: 100}, {Offset: 4<<30 - 50, Length: 100}, {Offset: 5 << 30, Length: 3}}},
		{"largest", largest, []ext4.Segment{{Offset: 1 << 40, Length: 5000}, {Offset: largest - 4096, Length: 4096}}},
		{"largest hole", largest, []ext4.Segment{}},
	}
	path := filepath.Join(t.TempDir(), "image")
	w := create(t, path)
	s := w.Stream()
	for _, h := range files {
		d, err := w.Allot(h.size, h.segs)
		must(t, err)
		must(t, s.Begin(d))
		for _, g := range h.segs {
			_, err := s.Write(bytes.Repeat([]byte{7}, int(g.Length)))
			must(t, err)
		}
		must(t, s.End())
		_, err = w.Add(ext4.Root, h.name, ext4.Meta{Mode: 0o100644, Data: d})
		must(t, err)
	}
	must(t, s.Close())
	l, err := w.Finish()
	must(t, err)
	if l.Size != 2<<20 {
		t.Errorf("%d bytes for a few blocks", l.Size)
	}
	fsck(t, path)
	_, err = open(t, path).Verify(t.Context())
	must(t, err)
	at, im := mount(t, path), open(t, path)
	for _, h := range files {
		g, err := os.Open(filepath.Join(at, h.name))
		must(t, err)
		defer g.Close()
		st, err := g.Stat()
		must(t, err)
		entry, err := im.Lookup(h.name)
		must(t, err)
		if st.Size() != h.size || entry.Size != h.size {
			t.Errorf("%s: %d and %d bytes, want %d", h.name, st.Size(), entry.Size, h.size)
		}
		c, err := im.Contents(entry)
		must(t, err)
		var stored []ext4.Segment
		must(t, im.Extents(entry, func(x ext4.Segment) error { stored = append(stored, x); return nil }))
		if len(stored) != len(h.segs) {
			t.Errorf("%s: stored %v", h.name, stored)
		}
		for _, x := range h.segs {
			for who, r := range map[string]io.ReaderAt{"kernel": g, "reader": c} {
				around := make([]byte, x.Length+2)
				_, err := r.ReadAt(around, max(x.Offset-1, 0))
				if err != nil && err != io.EOF { //nolint:errorlint // io.ReaderAt says so
					t.Fatal(err)
				}
				if n := bytes.Count(around, []byte{7}); n != int(x.Length) || around[0] != 0 {
					t.Errorf("%s: %s: %d of %d bytes at %d", who, h.name, n, x.Length, x.Offset)
				}
			}
		}
	}
}
