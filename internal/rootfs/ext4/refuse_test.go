package ext4_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// memory is a file in memory, whose writes may fail.
type memory struct {
	data []byte
	fail error
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if m.fail != nil {
		return 0, m.fail
	}
	if n := off + int64(len(p)); n > int64(len(m.data)) {
		m.data = append(m.data, make([]byte, n-int64(len(m.data)))...)
	}
	return copy(m.data[off:], p), nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(m.data).ReadAt(p, off)
}

func (m *memory) Truncate(size int64) error {
	if size > int64(len(m.data)) {
		m.data = append(m.data, make([]byte, size-int64(len(m.data)))...)
	}
	m.data = m.data[:size]
	return nil
}

func writer(t testing.TB) (*ext4.Writer, *memory) {
	t.Helper()
	m := &memory{}
	w, err := ext4.New(m, testOptions)
	must(t, err)
	return w, m
}

// refused runs do and holds its error against code and a part of the message.
func refused(t *testing.T, err error, code *fault.Code, says string) {
	t.Helper()
	if fault.Of(err) != code || err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %s that says %q", err, code.Name, says)
	}
}

func TestRefusedEntries(t *testing.T) {
	t.Parallel()
	reg := ext4.Meta{Mode: 0o100644}
	withAttrs := func(mode uint32, list ...ext4.Xattr) ext4.Meta { return ext4.Meta{Mode: mode, Xattrs: list} }
	long := []ext4.Xattr{}
	for i := range 40 {
		long = append(long, attr("user."+strings.Repeat(string(rune('a'+i%26)), 120+i), "v"))
	}
	for name, c := range map[string]struct {
		entry string
		meta  ext4.Meta
		code  *fault.Code
		says  string
	}{
		"empty name":        {"", reg, fault.InvalidInput, "name"},
		"dot":               {".", reg, fault.InvalidInput, `"."`},
		"dots":              {"..", reg, fault.InvalidInput, `".."`},
		"slash":             {"a/b", reg, fault.InvalidInput, `"a/b"`},
		"zero byte":         {"a\x00", reg, fault.InvalidInput, `a\x00`},
		"long name":         {strings.Repeat("n", 256), reg, fault.ImageUnfit, "255 bytes"},
		"no type":           {"x", ext4.Meta{Mode: 0o644}, fault.InvalidInput, "no file type"},
		"whiteout type":     {"x", ext4.Meta{Mode: 0o160000}, fault.InvalidInput, "no file type"},
		"mode bits":         {"x", ext4.Meta{Mode: 0o1100644}, fault.InvalidInput, "bits"},
		"major":             {"x", ext4.Meta{Mode: 0o020600, Major: 4096}, fault.ImageUnfit, "4096:0"},
		"minor":             {"x", ext4.Meta{Mode: 0o060600, Minor: 1 << 20}, fault.ImageUnfit, "0:1048576"},
		"device on a file":  {"x", ext4.Meta{Mode: 0o100600, Minor: 1}, fault.InvalidInput, "another type"},
		"target on a file":  {"x", ext4.Meta{Mode: 0o100600, Target: "t"}, fault.InvalidInput, "another type"},
		"no target":         {"x", ext4.Meta{Mode: 0o120777}, fault.InvalidInput, "empty"},
		"zero in target":    {"x", ext4.Meta{Mode: 0o120777, Target: "a\x00b"}, fault.InvalidInput, "zero byte"},
		"long target":       {"x", ext4.Meta{Mode: 0o120777, Target: strings.Repeat("t", 4096)}, fault.ImageUnfit, "4095"},
		"lost+found a file": {"lost+found", reg, fault.ImageUnfit, "directory"},
		"unknown namespace": {"x", withAttrs(0o100644, attr("foo.bar", "")), fault.ImageUnfit, "foo.bar"},
		"bare namespace":    {"x", withAttrs(0o100644, attr("user.", "")), fault.ImageUnfit, "user."},
		"inline data":       {"x", withAttrs(0o100644, attr("system.data", "")), fault.ImageUnfit, "system.data"},
		"long attr name":    {"x", withAttrs(0o100644, attr("user."+strings.Repeat("n", 256), "")), fault.ImageUnfit, "cannot hold"},
		"zero in attr name": {"x", withAttrs(0o100644, attr("user.a\x00", "")), fault.ImageUnfit, "cannot hold"},
		"attr twice":        {"x", withAttrs(0o100644, attr("user.a", "1"), attr("user.a", "2")), fault.InvalidInput, "twice"},
		"large value":       {"x", withAttrs(0o100644, attr("user.a", strings.Repeat("v", 65537))), fault.ImageUnfit, "65537"},
		"flood of names":    {"x", withAttrs(0o100644, long...), fault.ImageUnfit, "40 xattrs"},
		"bad ACL":           {"x", withAttrs(0o100644, attr("system.posix_acl_access", "junk")), fault.ImageUnfit, "posix_acl_access"},
		"default on a file": {"x", withAttrs(0o100644, ext4.Xattr{Name: "system.posix_acl_default", Value: fullACL}), fault.ImageUnfit, "of its type"},
		"ACL on a symlink":  {"x", ext4.Meta{Mode: 0o120777, Target: "t", Xattrs: []ext4.Xattr{{Name: "system.posix_acl_access", Value: fullACL}}}, fault.ImageUnfit, "of its type"},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := writer(t)
			_, err := w.Add(ext4.Root, c.entry, c.meta)
			refused(t, err, c.code, c.says)
			// What was refused leaves nothing behind.
			must(t, second(w.Add(ext4.Root, "good", reg)))
			_, err = w.Finish()
			must(t, err)
			_, err = verify(t, m)
			must(t, err)
		})
	}
}

func second[T any](_ T, err error) error { return err }

func verify(t testing.TB, m *memory) (ext4.Report, error) {
	t.Helper()
	im, err := ext4.Open(m, int64(len(m.data)))
	if err != nil {
		return ext4.Report{}, err
	}
	return im.Verify(t.Context())
}

func TestBadACLs(t *testing.T) {
	t.Parallel()
	u, g, o := [3]uint32{1, 7, noID}, [3]uint32{4, 7, noID}, [3]uint32{0x20, 7, noID}
	named, mask := [3]uint32{2, 7, 5}, [3]uint32{0x10, 7, noID}
	for name, v := range map[string][]byte{
		"short": {2, 0, 0}, "version": {1, 0, 0, 0}, "ragged": append(acl(u, g, o), 0), "no owner": acl(g, o), "no group": acl(u, o), "no other": acl(u, g),
		"order": acl(g, u, o), "no mask": acl(u, named, g, o), "no id": acl(u, [3]uint32{2, 7, noID}, g, mask, o), "tag": acl(u, g, [3]uint32{3, 7, noID}, o),
		"permission": acl([3]uint32{1, 8, noID}, g, o), "twice": acl(u, u, g, o),
	} {
		w, _ := writer(t)
		_, err := w.Add(ext4.Root, "x", ext4.Meta{Mode: 0o100644, Xattrs: []ext4.Xattr{{Name: "system.posix_acl_access", Value: v}}})
		if fault.Of(err) != fault.ImageUnfit {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An ACL sets the mode as setxattr(2) does, and is not kept when the mode says
// it all.
func TestACLSetsMode(t *testing.T) {
	t.Parallel()
	minimal := acl([3]uint32{1, 7, noID}, [3]uint32{4, 5, noID}, [3]uint32{0x20, 1, noID})
	given := []item{
		node("minimal", 0o104000, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{{Name: "system.posix_acl_access", Value: minimal}} }),
		node("full", 0o102777, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{{Name: "system.posix_acl_access", Value: fullACL}} }),
		node("empty", 0o100644, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{{Name: "system.posix_acl_access", Value: acl()}} }),
	}
	path, _ := write(t, given, testOptions)
	want := []item{node("minimal", 0o104751, nil), given[1], node("empty", 0o100644, nil)}
	want[1].meta.Mode = 0o102761
	check(t, path, want)
}

func TestRefusedTrees(t *testing.T) {
	t.Parallel()
	reg := ext4.Meta{Mode: 0o100644}
	w, _ := writer(t)
	d, err := w.Add(ext4.Root, "d", ext4.Meta{Mode: 0o040755})
	must(t, err)
	f, err := w.Add(d, "f", reg)
	must(t, err)
	refused(t, second(w.Add(f, "x", reg)), fault.InvalidInput, "parent")
	refused(t, second(w.Add(999, "x", reg)), fault.InvalidInput, "parent")
	refused(t, second(w.Add(1, "x", reg)), fault.InvalidInput, "lost+found first")
	refused(t, w.Link(d, "x", d), fault.InvalidInput, "no directory")
	refused(t, w.Link(d, "x", 999), fault.InvalidInput, "no directory")
	refused(t, w.Link(ext4.Root, "lost+found", f), fault.ImageUnfit, "directory")
	refused(t, w.SetRoot(reg), fault.InvalidInput, "directory")
	for range 64999 {
		must(t, w.Link(d, "l", f)) // names are compared later
	}
	refused(t, w.Link(d, "m", f), fault.ImageUnfit, "65000")
	refused(t, second(w.Layout()), fault.InvalidInput, `/d holds the name "l" twice`)
	refused(t, second(w.Finish()), fault.InvalidInput, "twice")
}

func TestRefusedSizes(t *testing.T) {
	t.Parallel()
	w, _ := writer(t)
	seg := func(o, n int64) ext4.Segment { return ext4.Segment{Offset: o, Length: n} }
	for name, c := range map[string]struct {
		size int64
		segs []ext4.Segment
		code *fault.Code
	}{
		"negative": {-1, nil, fault.InvalidInput}, "above ext4": {1 << 44, nil, fault.ImageUnfit}, "above an image": {2 << 40, nil, fault.ImageUnfit},
		"backwards": {100, []ext4.Segment{seg(50, 10), seg(10, 10)}, fault.InvalidInput}, "overlap": {100, []ext4.Segment{seg(10, 10), seg(15, 10)}, fault.InvalidInput},
		"behind the end": {100, []ext4.Segment{seg(90, 11)}, fault.InvalidInput}, "negative segment": {100, []ext4.Segment{seg(10, -1)}, fault.InvalidInput},
		"overflow": {100, []ext4.Segment{seg(1<<62, 1<<62)}, fault.InvalidInput}, "segment of nothing": {0, []ext4.Segment{seg(0, 1)}, fault.InvalidInput},
	} {
		if _, err := w.Allot(c.size, c.segs); fault.Of(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusedContents(t *testing.T) {
	t.Parallel()
	setup := func() (*ext4.Writer, ext4.Data, *ext4.Stream) {
		w, _ := writer(t)
		d, err := w.Allot(10, nil)
		must(t, err)
		_, err = w.Add(ext4.Root, "named", ext4.Meta{Mode: 0o100644, Data: d})
		must(t, err)
		return w, d, w.Stream()
	}
	w, d, s := setup()
	refused(t, s.Copy(d, strings.NewReader("short")), fault.InvalidInput, "less contents than the 10")
	refused(t, s.Close(), fault.InvalidInput, "less")
	refused(t, second(w.Finish()), fault.Bug, "failed")

	_, d, s = setup()
	must(t, s.Begin(d))
	refused(t, second(s.Write(make([]byte, 11))), fault.InvalidInput, "more contents")

	_, d, s = setup()
	must(t, s.Copy(d, strings.NewReader("0123456789")))
	refused(t, s.Begin(d), fault.Bug, "twice")

	w, _, s = setup()
	must(t, s.Close())
	refused(t, second(w.Finish()), fault.InvalidInput, `"named"`)

	w, d, s = setup()
	must(t, s.Copy(d, strings.NewReader("0123456789")))
	refused(t, second(w.Finish()), fault.Bug, "streams")

	_, d, s = setup()
	broken := errors.New("the layer broke")
	if err := s.Copy(d, io.MultiReader(strings.NewReader("0123"), failing{broken})); !errors.Is(err, broken) {
		t.Errorf("the reader's error became %v", err)
	}

	w, d, _ = setup()
	refused(t, w.WriteAt(d, make([]byte, 11), 0), fault.InvalidInput, "outside")
	refused(t, w.WriteAt(d, make([]byte, 1), 10), fault.InvalidInput, "outside")
	refused(t, second(w.Add(ext4.Root, "again", ext4.Meta{Mode: 0o100644, Data: d})), fault.Bug, "another inode")
	refused(t, w.Drop(d), fault.Bug, "after an inode took")

	w, _ = writer(t)
	_, err := w.Allot(10, nil)
	must(t, err)
	refused(t, second(w.Layout()), fault.Bug, "no inode has")
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestAfterTheEnd(t *testing.T) {
	t.Parallel()
	w, _ := writer(t)
	_, err := w.Finish()
	must(t, err)
	refused(t, second(w.Finish()), fault.Bug, "twice")
	refused(t, second(w.Add(ext4.Root, "x", ext4.Meta{Mode: 0o100644})), fault.Bug, "after its layout")
	refused(t, w.SetRoot(ext4.Meta{Mode: 0o040755}), fault.Bug, "after its layout")
	refused(t, second(w.Allot(1, nil)), fault.Bug, "after its layout")
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []ext4.Options{{Label: strings.Repeat("l", 17)}, {SpareBytes: -1}, {SpareBytes: 1 << 50}, {SpareInodes: -1}, {SpareInodes: 1 << 40}} {
		_, err := ext4.New(&memory{}, o)
		refused(t, err, fault.InvalidInput, "options")
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"contents", "metadata"} {
		w, m := writer(t)
		d, err := w.Allot(1<<20, nil)
		must(t, err)
		must(t, second(w.Add(ext4.Root, "f", ext4.Meta{Mode: 0o100644, Data: d})))
		if when == "contents" {
			m.fail = &os.PathError{Op: "write", Path: "image", Err: syscall.ENOSPC}
		}
		s := w.Stream()
		err = s.Copy(d, pattern(1, 1<<20)())
		if when == "metadata" {
			must(t, err)
			must(t, s.Close())
			m.fail = &os.PathError{Op: "write", Path: "image", Err: syscall.ENOSPC}
			_, err = w.Finish()
		}
		refused(t, err, fault.DiskFull, "no space left")
	}
}

// The last write of a Stream may happen in Close, and then Finish refuses too.
func TestFullDiskAtClose(t *testing.T) {
	t.Parallel()
	w, m := writer(t)
	d, err := w.Allot(10, nil)
	must(t, err)
	must(t, second(w.Add(ext4.Root, "f", ext4.Meta{Mode: 0o100644, Data: d})))
	s := w.Stream()
	must(t, s.Copy(d, strings.NewReader("0123456789")))
	m.fail = syscall.ENOSPC
	refused(t, s.Close(), fault.DiskFull, "no space")
	m.fail = nil
	refused(t, second(w.Finish()), fault.Bug, "failed")
}

// A file that was there is emptied: nothing of it shines through.
func TestOldFile(t *testing.T) {
	t.Parallel()
	items := []item{file("a", 0o644, "a"), sparseFile("hole", 1<<20)}
	fresh, _ := write(t, items, testOptions)
	path := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(path, bytes.Repeat([]byte{0xFF}, 8<<20), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	w, err := ext4.New(f, testOptions)
	must(t, err)
	datas := allotAll(t, w, items)
	stream(t, w, items, datas, inOrder(2))
	addAll(t, w, items, datas)
	must(t, second(w.Finish()))
	if digest(t, path) != digest(t, fresh) {
		t.Error("the image depends on what was in the file")
	}
}
