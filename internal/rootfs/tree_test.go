package rootfs_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

// show lists what is below dir, a line an entry: path, then a slash for a
// directory, what a link names, or a file's content. Hard links of a file show
// how many there are.
func show(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			lines = append(lines, name+"/")
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			lines = append(lines, name+" -> "+to)
			return err
		case info.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if n := info.Sys().(*syscall.Stat_t).Nlink; n > 1 {
				name += fmt.Sprintf(" x%d", n)
			}
			lines = append(lines, name+" = "+string(b))
			return err
		default:
			lines = append(lines, name+" "+info.Mode().Type().String())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

func TestLayersAreLaidOverEachOther(t *testing.T) {
	fifo := tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}
	null := tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}
	for _, c := range []struct {
		name   string
		layers [][]tar.Header
		want   []string
	}{
		{"a file is replaced", [][]tar.Header{{file("a", "1")}, {file("a", "2")}}, []string{"a = 2"}},
		{"the last of one layer wins", [][]tar.Header{{file("a", "1"), file("a", "2")}}, []string{"a = 2"}},
		{"parents that were left out are made", [][]tar.Header{{file("a/b/c", "1")}}, []string{"a/", "a/b/", "a/b/c = 1"}},
		{"leading ./ and / mean the root", [][]tar.Header{{dir("./"), file("./a", "1"), file("/b", "2")}}, []string{"a = 1", "b = 2"}},
		{"a whiteout hides", [][]tar.Header{{file("a/x", "1"), file("a/y", "2")}, {file("a/.wh.x", "")}}, []string{"a/", "a/y = 2"}},
		{"a whiteout hides a tree", [][]tar.Header{{file("a/b/c", "1"), file("d", "1")}, {file(".wh.a", "")}}, []string{"d = 1"}},
		{"a whiteout of nothing is nothing", [][]tar.Header{{file("d", "1")}, {file("q/.wh.a", ""), file(".wh.z", "")}}, []string{"d = 1"}},
		{"a whiteout spares its own layer", [][]tar.Header{{file("a", "1")}, {file("a", "2"), file(".wh.a", "")}}, []string{"a = 2"}},
		{"a whiteout before its own layer's tree hides the rest", [][]tar.Header{{file("a/old", "1")}, {file("a/new", "2"), file(".wh.a", "")}}, []string{"a/", "a/new = 2"}},
		{"an opaque directory hides what is below", [][]tar.Header{{file("a/x", "1"), file("a/s/y", "2")}, {dir("a/"), file("a/.wh..wh..opq", ""), file("a/z", "3")}}, []string{"a/", "a/z = 3"}},
		{"opaque after entries spares them", [][]tar.Header{{file("a/x", "1"), file("a/s/y", "2")}, {file("a/s/z", "3"), file("a/.wh..wh..opq", "")}}, []string{"a/", "a/s/", "a/s/z = 3"}},
		{"union metadata is dropped", [][]tar.Header{{file(".wh..wh.aufs", ""), file(".wh..wh.plnk/1.2", ""), file("a", "1")}}, []string{"a = 1"}},
		{"a directory replaces a file", [][]tar.Header{{file("a", "1")}, {dir("a"), file("a/b", "2")}}, []string{"a/", "a/b = 2"}},
		{"a file replaces a tree", [][]tar.Header{{file("a/b/c", "1")}, {file("a", "2")}}, []string{"a = 2"}},
		{"a directory replaces a link", [][]tar.Header{{dir("b"), symlink("a", "b")}, {dir("a"), file("a/c", "1")}}, []string{"a/", "a/c = 1", "b/"}},
		{"a file in a linked directory lands there", [][]tar.Header{{dir("usr/bin"), symlink("bin", "usr/bin")}, {file("bin/sh", "1")}}, []string{"bin -> usr/bin", "usr/", "usr/bin/", "usr/bin/sh = 1"}},
		{"absolute links begin at the image's root", [][]tar.Header{{dir("run"), symlink("var/run", "/run")}, {file("var/run/pid", "1")}}, []string{"run/", "run/pid = 1", "var/", "var/run -> /run"}},
		{"a link upwards stays inside", [][]tar.Header{{dir("run"), symlink("var/run", "../../../../run")}, {file("var/run/pid", "1")}}, []string{"run/", "run/pid = 1", "var/", "var/run -> ../../../../run"}},
		{"a link to what is not there yet makes it", [][]tar.Header{{symlink("var/run", "/run/deep")}, {file("var/run/pid", "1")}}, []string{"run/", "run/deep/", "run/deep/pid = 1", "var/", "var/run -> /run/deep"}},
		{"a whiteout works through a link", [][]tar.Header{{file("usr/bin/sh", "1"), symlink("bin", "usr/bin")}, {file("bin/.wh.sh", "")}}, []string{"bin -> usr/bin", "usr/", "usr/bin/"}},
		{"a whiteout hides a link, not what it names", [][]tar.Header{{file("usr/x", "1"), symlink("u", "usr")}, {file(".wh.u", "")}}, []string{"usr/", "usr/x = 1"}},
		{"hard links share", [][]tar.Header{{file("a", "1"), hardlink("b/c", "a")}}, []string{"a x2 = 1", "b/", "b/c x2 = 1"}},
		{"a hard link reaches into a lower layer", [][]tar.Header{{file("a", "1")}, {hardlink("b", "/a")}}, []string{"a x2 = 1", "b x2 = 1"}},
		{"replacing one name leaves the other its content", [][]tar.Header{{file("a", "1"), hardlink("b", "a")}, {file("a", "2")}}, []string{"a = 2", "b = 1"}},
		{"a hard link to a link is one", [][]tar.Header{{symlink("a", "nowhere"), hardlink("b", "a")}}, []string{"a -> nowhere", "b -> nowhere"}},
		{"nodes", [][]tar.Header{{fifo, null}}, []string{"dev/", "dev/null Dc---------", "pipe p---------"}},
		{"a global header is no entry", [][]tar.Header{{{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}, file("a", "1")}}, []string{"a = 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := t.TempDir()
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, archive(t, l...))
			}
			if err := rootfs.Lay(at, rootfs.Limits{}, layers...); err != nil {
				t.Fatal(err)
			}
			if got := show(t, at); !slices.Equal(got, c.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
		})
	}
}

func TestEntriesKeepWhatTheirHeadersSay(t *testing.T) {
	when := time.Date(2001, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	headers := []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o711, ModTime: when, Format: tar.FormatPAX},
		{Name: "d", Typeflag: tar.TypeDir, Mode: 0o1770, Uid: 7, Gid: 8, ModTime: when, Format: tar.FormatPAX},
		{Name: "d/su", Mode: 0o4755, Uid: 3_000_000_000, Gid: 9, Gname: "x", ModTime: when, Format: tar.FormatPAX, PAXRecords: map[string]string{
			"SCHILY.xattr.user.note": "kept", "SCHILY.xattr.security.selinux": "dropped", "SCHILY.xattr.trusted.overlay.opaque": "y",
		}},
		{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "su", Uid: 5, Gid: 6, ModTime: when, Format: tar.FormatPAX},
		{Name: "implied/x", Gname: "1", ModTime: when, Format: tar.FormatPAX},
	}
	at := t.TempDir()
	if err := rootfs.Lay(at, rootfs.Limits{}, archive(t, headers...)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		mode     uint32
		uid, gid uint32
		m        time.Time
	}{
		".":       {unix.S_IFDIR | 0o711, 0, 0, when},
		"d":       {unix.S_IFDIR | 0o1770, 7, 8, when},
		"d/su":    {unix.S_IFREG | 0o4755, 3_000_000_000, 9, when},
		"d/l":     {unix.S_IFLNK | 0o777, 5, 6, when},
		"implied": {unix.S_IFDIR | 0o755, 0, 0, time.Unix(0, 0)},
	} {
		var s unix.Stat_t
		if err := unix.Lstat(filepath.Join(at, name), &s); err != nil {
			t.Fatal(err)
		}
		if m := time.Unix(s.Mtim.Unix()); s.Mode != want.mode || s.Uid != want.uid || s.Gid != want.gid || !m.Equal(want.m) {
			t.Errorf("%s: mode %o owner %d:%d time %s, want %+v", name, s.Mode, s.Uid, s.Gid, m, want)
		}
	}
	b := make([]byte, 100)
	if n, err := unix.Lgetxattr(filepath.Join(at, "d/su"), "user.note", b); err != nil || string(b[:n]) != "kept" {
		t.Errorf("user.note: %q, %v", b[:max(n, 0)], err)
	}
	if _, err := unix.Lgetxattr(filepath.Join(at, "d/su"), "trusted.overlay.opaque", b); err == nil {
		t.Error("a union filesystem's mark was kept")
	}
}

func TestZerosBecomeHoles(t *testing.T) {
	at := t.TempDir()
	body := "begin" + strings.Repeat("\x00", 8<<20) + "end"
	if err := rootfs.Lay(at, rootfs.Limits{}, archive(t, file("big", body), file("zeros", strings.Repeat("\x00", 1<<20)))); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(at, "big"))
	if err != nil || string(got) != body {
		t.Fatalf("content differs: %d bytes, %v", len(got), err)
	}
	var s unix.Stat_t
	if err := unix.Lstat(filepath.Join(at, "big"), &s); err != nil || s.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes on disk, %v", s.Blocks*512, err)
	}
	if err := unix.Lstat(filepath.Join(at, "zeros"), &s); err != nil || s.Size != 1<<20 {
		t.Errorf("%d bytes, %v", s.Size, err)
	}
}

func TestHostileEntriesAreRefused(t *testing.T) {
	long := strings.Repeat("n", 300)
	deep := strings.Repeat("d/", 300)
	for _, c := range []struct {
		name   string
		layers [][]tar.Header
		limits rootfs.Limits
		says   string
	}{
		{name: "up", layers: [][]tar.Header{{file("../evil", "1")}}, says: "../evil"},
		{name: "up inside", layers: [][]tar.Header{{file("a/../../evil", "1")}}, says: "a/../../evil"},
		{name: "root as a link", layers: [][]tar.Header{{symlink("./", "/etc")}}, says: "root of the image"},
		{name: "root as a file", layers: [][]tar.Header{{file("/.", "1")}}, says: "root of the image"},
		{name: "hard link out", layers: [][]tar.Header{{hardlink("a", "../../etc/passwd")}}, says: "../../etc/passwd"},
		{name: "hard link to nothing", layers: [][]tar.Header{{hardlink("a", "etc/passwd")}}, says: "etc/passwd"},
		{name: "hard link to a directory", layers: [][]tar.Header{{dir("d"), hardlink("a", "d")}}, says: `"a"`},
		{name: "hard link to itself", layers: [][]tar.Header{{file("a", "1"), hardlink("a", "./a")}}, says: "itself"},
		{name: "hard link to itself through a link", layers: [][]tar.Header{{file("d/a", "1"), symlink("l", "d"), hardlink("d/a", "l/a")}}, says: "itself"},
		{name: "a loop of links", layers: [][]tar.Header{{symlink("a", "b"), symlink("b", "a"), file("a/x", "1")}}, says: "a/x"},
		{name: "long name", layers: [][]tar.Header{{file(long, "1")}}, says: "nnn"},
		{name: "deep name", layers: [][]tar.Header{{file(deep+"x", "1")}}, says: "256 directories"},
		{name: "whiteout of nothing", layers: [][]tar.Header{{file("a/.wh.", "")}}, says: "a/.wh."},
		{name: "whiteout of the parent", layers: [][]tar.Header{{file("a/.wh...", "")}}, says: "a/.wh..."},
		{name: "too many", layers: [][]tar.Header{{file("a", ""), file("b", "")}, {file("c", "")}}, limits: rootfs.Limits{Entries: 2}, says: "2 entries"},
		{name: "too large", layers: [][]tar.Header{{file("a", "12345"), file("b", "67890")}}, limits: rootfs.Limits{Bytes: 9}, says: "9 bytes"},
		{name: "unknown type", layers: [][]tar.Header{{{Name: "odd", Typeflag: 'V'}}}, says: "odd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			parent := t.TempDir()
			at := filepath.Join(parent, "tree")
			if err := os.Mkdir(at, 0o755); err != nil {
				t.Fatal(err)
			}
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, archive(t, l...))
			}
			err := rootfs.Lay(at, c.limits, layers...)
			if fault.Of(err) != fault.ImageHostile || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %s naming %q", err, fault.ImageHostile.Name, c.says)
			}
			if n := left(t, parent); !slices.Equal(n, []string{"tree"}) {
				t.Errorf("written outside: %v", n)
			}
		})
	}
}

// TestLinksNeverLeadOut goes through every entry type with a parent that is a
// link out of the tree: the machine's own directory must stay as it is.
func TestLinksNeverLeadOut(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "kept"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, h := range []tar.Header{
		file("l/new", "evil"), file("l/kept", "evil"), dir("l/sub"), symlink("l/s", "x"), file("l/.wh.kept", ""), file("l/.wh..wh..opq", ""),
		{Name: "l/fifo", Typeflag: tar.TypeFifo},
		hardlink("stolen", "l/kept"), hardlink("l/h", "own"),
	} {
		for _, target := range []string{outside, "../../../../../../../../.." + outside} {
			// Links that lead to nothing here are followed within the tree: the same
			// path is made inside.
			err := rootfs.Lay(t.TempDir(), rootfs.Limits{}, archive(t, file("own", "1"), symlink("l", target)), archive(t, h))
			if err != nil && fault.Of(err) != fault.ImageHostile {
				t.Errorf("%s: %v", h.Name, err)
			}
			if got := show(t, outside); !slices.Equal(got, []string{"kept = 1"}) {
				t.Fatalf("%s reached out through %s: %v", h.Name, target, got)
			}
		}
	}
}

func TestABrokenArchiveIsTheImagesFault(t *testing.T) {
	whole := archive(t, file("a", strings.Repeat("x", 10_000)))
	for _, b := range [][]byte{whole[:5000], bytes.Repeat([]byte("no tar "), 200)} {
		if err := rootfs.Lay(t.TempDir(), rootfs.Limits{}, b); fault.Of(err) != fault.ImageInvalid {
			t.Errorf("error %v", err)
		}
	}
}

func FuzzLay(f *testing.F) {
	f.Add([]byte("no tar"))
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{symlink("l", "/"), file("l/a", ""), hardlink("h", "l/a"), file("l/.wh.a", ""), dir("d")} {
		h.Gname = ""
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, layer []byte) {
		parent := t.TempDir()
		at := filepath.Join(parent, "tree")
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		err := rootfs.Lay(at, rootfs.Limits{Entries: 100, Bytes: 1 << 20}, layer)
		if code := fault.Of(err); err != nil && code != fault.ImageHostile && code != fault.ImageInvalid {
			t.Errorf("error %v", err)
		}
		if n := left(t, parent); !slices.Equal(n, []string{"tree"}) {
			t.Errorf("written outside: %v", n)
		}
	})
}
