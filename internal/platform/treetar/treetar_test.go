package treetar

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func open(tb testing.TB, dir string) *os.Root {
	tb.Helper()
	root, err := os.OpenRoot(dir)
	check(tb, err)
	tb.Cleanup(func() { check(tb, root.Close()) })
	return root
}

// describe lists what a tree holds, a line for each entry.
func describe(tb testing.TB, dir string) string {
	tb.Helper()
	var lines []string
	inodes := map[uint64]string{}
	check(tb, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %v %d:%d", name, info.Mode(), st.Uid, st.Gid)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			line += " -> " + to
			lines = append(lines, line)
			return err
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", text)
			if first := inodes[st.Ino]; first != "" {
				line += " = " + first
			}
			inodes[st.Ino] = name
		}
		lines = append(lines, line+" "+info.ModTime().UTC().Format(time.RFC3339))
		return nil
	}))
	return strings.Join(lines, "\n")
}

func TestATreeComesBackAsItWas(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	long := strings.Repeat(strings.Repeat("x", 200)+"/", 10)
	for _, dir := range []string{"empty", "locked", "sub/deep", long} {
		check(t, os.MkdirAll(filepath.Join(from, dir), 0o755))
	}
	for name, text := range map[string]string{"a": "text", "empty file": "", "sub/deep/b": "\x00\x01", "locked/c": "c", "umläut \n\xff": "odd name", long + "f": "far"} {
		check(t, os.WriteFile(filepath.Join(from, name), []byte(text), 0o640))
	}
	check(t, os.Link(filepath.Join(from, "a"), filepath.Join(from, "sub/same")))
	for link, target := range map[string]string{"sub/up": "../a", "out": "/etc/passwd", "loop": "loop", "dir": "sub"} {
		check(t, os.Symlink(target, filepath.Join(from, link)))
	}
	check(t, os.Chmod(filepath.Join(from, "a"), 0o755|fs.ModeSetuid))
	check(t, os.Lchown(filepath.Join(from, "out"), 7, 8))
	check(t, os.Chown(filepath.Join(from, "sub/deep/b"), 12345, 54321))
	check(t, syscall.Mkfifo(filepath.Join(from, "fifo"), 0o600))
	check(t, os.Chmod(filepath.Join(from, "locked"), 0o500))
	check(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chtimes(path, time.Time{}, time.Unix(1_500_000_000, 0))
	}))
	var archive bytes.Buffer
	left, err := Pack(t.Context(), &archive, open(t, from), PackOptions{Owners: true})
	if err != nil || left != 1 {
		t.Fatalf("left out %d, %v", left, err)
	}
	check(t, os.Remove(filepath.Join(from, "fifo")))
	check(t, os.Chtimes(from, time.Time{}, time.Unix(1_500_000_000, 0)))
	same := func(uid, gid int) (int, int) { return uid, gid }
	for _, again := range []string{"new", "over what is there"} {
		check(t, Unpack(t.Context(), open(t, to), bytes.NewReader(archive.Bytes()), UnpackOptions{Own: same, Top: true}))
		if want, got := describe(t, from), describe(t, to); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", again, got, want)
		}
	}
}

func TestWhatIsLeftOutAndDropped(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	check(t, os.MkdirAll(filepath.Join(from, "proc/1"), 0o755))
	check(t, os.WriteFile(filepath.Join(from, "s"), nil, 0o755))
	check(t, os.Chown(filepath.Join(from, "s"), 5, 5))
	check(t, os.Chmod(filepath.Join(from, "s"), 0o755|fs.ModeSetuid|fs.ModeSetgid))
	var archive bytes.Buffer
	_, err := Pack(t.Context(), &archive, open(t, from), PackOptions{Leave: func(name string) bool { return name == "proc" }})
	check(t, err)
	check(t, os.Chmod(to, 0o711))
	check(t, Unpack(t.Context(), open(t, to), &archive, UnpackOptions{Plain: true, Own: func(uid, gid int) (int, int) { return uid + 1, gid + 2 }}))
	info, err := os.Stat(filepath.Join(to, "s"))
	check(t, err)
	if st := info.Sys().(*syscall.Stat_t); info.Mode() != 0o755 || st.Uid != 1 || st.Gid != 2 {
		t.Errorf("%v, %d:%d", info.Mode(), st.Uid, st.Gid)
	}
	if _, err := os.Stat(filepath.Join(to, "proc")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was to be left out: %v", err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the directory itself: %v, %v", info.Mode(), err)
	}
}

func TestBounds(t *testing.T) {
	from := t.TempDir()
	for i := range 5 {
		check(t, os.WriteFile(filepath.Join(from, fmt.Sprint(i)), make([]byte, 100), 0o600))
	}
	root := open(t, from)
	var whole bytes.Buffer
	_, err := Pack(t.Context(), &whole, root, PackOptions{Limits: Limits{Entries: 6, Bytes: 500}})
	check(t, err)
	implied := archiveOf(t, &tar.Header{Typeflag: tar.TypeReg, Name: "a/b/c/d/e/f/g"})
	for name, l := range map[string]Limits{"entries": {Entries: 5}, "bytes": {Bytes: 499}} {
		if _, err := Pack(t.Context(), &bytes.Buffer{}, root, PackOptions{Limits: l}); !errors.Is(err, fault.ArchiveRefused) {
			t.Errorf("pack, %s: %v", name, err)
		}
		if err := Unpack(t.Context(), open(t, t.TempDir()), bytes.NewReader(whole.Bytes()), UnpackOptions{Limits: l}); !errors.Is(err, fault.ArchiveRefused) {
			t.Errorf("unpack, %s: %v", name, err)
		}
	}
	if err := Unpack(t.Context(), open(t, t.TempDir()), bytes.NewReader(implied), UnpackOptions{Limits: Limits{Entries: 5}}); !errors.Is(err, fault.ArchiveRefused) {
		t.Errorf("directories that are only implied: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Pack(ended, &bytes.Buffer{}, root, PackOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("pack that nobody waits for: %v", err)
	}
	if err := Unpack(ended, root, bytes.NewReader(whole.Bytes()), UnpackOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("unpack that nobody waits for: %v", err)
	}
}

// archiveOf holds the headers; a file's content is its name.
func archiveOf(tb testing.TB, headers ...*tar.Header) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		check(tb, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte(h.Name))
			check(tb, err)
		}
	}
	check(tb, w.Close())
	return b.Bytes()
}

func file(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name} }
func link(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

func hard(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

// No archive writes, links or changes anything outside of the directory, and
// each that tries is named.
func TestHostileArchives(t *testing.T) {
	for name, headers := range map[string][]*tar.Header{
		"climbs":                        {file("../victim")},
		"climbs inside":                 {file("a/../../victim")},
		"climbs and comes back":         {file("a/../b")},
		"absolute":                      {file("/victim")},
		"empty":                         {{Typeflag: tar.TypeDir, Name: "./"}, {Typeflag: tar.TypeReg, Name: "."}},
		"through a link out":            {link("l", ".."), file("l/victim")},
		"through an absolute link":      {link("l", "OUTSIDE"), file("l/victim")},
		"through two links":             {link("a", "b"), link("b", ".."), file("a/victim")},
		"directory through a link":      {link("l", ".."), {Typeflag: tar.TypeDir, Name: "l/new", Mode: 0o777}},
		"directory is a link out":       {link("l", ".."), {Typeflag: tar.TypeDir, Name: "l", Mode: 0o777}},
		"link through a link":           {link("l", ".."), link("l/new", "x")},
		"hard link out":                 {hard("h", "../victim")},
		"hard link through a link":      {link("l", ".."), hard("h", "l/victim")},
		"hard link to an absolute name": {hard("h", "OUTSIDE/victim")},
		"hard link to nothing":          {hard("h", "none")},
		"hard link to itself":           {file("h"), hard("h", "h")},
		"hard link to a directory":      {{Typeflag: tar.TypeDir, Name: "d"}, hard("h", "d")},
		"device":                        {{Typeflag: tar.TypeChar, Name: "d"}},
		"pipe":                          {{Typeflag: tar.TypeFifo, Name: "d"}},
		"over a full directory":         {file("d/f"), file("d")},
		"below a file":                  {file("f"), file("f/below")},
		"long name":                     {file(strings.Repeat("long/", 1000) + "x")},
		"deep":                          {file(strings.Repeat("d/", 600) + "x")},
		"link without a text":           {link("l", "")},
	} {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			inside := filepath.Join(outside, "inside")
			check(t, os.Mkdir(inside, 0o755))
			check(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("untouched"), 0o600))
			before := describe(t, outside)
			for _, h := range headers {
				h.Linkname = strings.ReplaceAll(h.Linkname, "OUTSIDE", outside)
			}
			err := Unpack(t.Context(), open(t, inside), bytes.NewReader(archiveOf(t, headers...)), UnpackOptions{Own: func(int, int) (int, int) { return 1, 1 }})
			if !errors.Is(err, fault.ArchiveRefused) {
				t.Errorf("got %v", err)
			}
			check(t, os.RemoveAll(inside))
			check(t, os.Mkdir(inside, 0o755))
			if after := describe(t, outside); stripTimes(after) != stripTimes(before) {
				t.Errorf("outside is now\n%s\nand was\n%s", after, before)
			}
		})
	}
}

// stripTimes drops the times: the test makes a directory anew.
func stripTimes(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = l[:strings.LastIndexByte(l, ' ')]
	}
	return strings.Join(lines, "\n")
}

func TestLinksInsideAreUsed(t *testing.T) {
	to := t.TempDir()
	check(t, Unpack(t.Context(), open(t, to), bytes.NewReader(archiveOf(t,
		&tar.Header{Typeflag: tar.TypeDir, Name: "real", Mode: 0o755}, link("l", "real"), file("l/f"),
		file("x"), link("x", "real/f"), // a later entry takes the place of an earlier
		hard("again", "x"))), UnpackOptions{}))
	text, err := os.ReadFile(filepath.Join(to, "real/f"))
	check(t, err)
	if info, err := os.Lstat(filepath.Join(to, "again")); string(text) != "l/f" || err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("%q, %v, %v", text, info, err)
	}
}

func TestADamagedArchive(t *testing.T) {
	whole := archiveOf(t, file("a"), file("b"), file("c"))
	for cut := range len(whole) {
		if err := Unpack(t.Context(), open(t, t.TempDir()), bytes.NewReader(whole[:cut]), UnpackOptions{}); !errors.Is(err, fault.ArchiveRefused) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	junk := slices.Clone(whole)
	junk[150] ^= 0xff // the checksum
	if err := Unpack(t.Context(), open(t, t.TempDir()), bytes.NewReader(junk), UnpackOptions{}); !errors.Is(err, fault.ArchiveRefused) {
		t.Errorf("a wrong checksum: %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archiveOf(f, file("a"), link("l", ".."), file("l/victim")))
	f.Add(archiveOf(f, file("d/f"), hard("h", "d/f"), &tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o777}))
	f.Add(archiveOf(f, file(strings.Repeat("x", 300))))
	f.Fuzz(func(t *testing.T, archive []byte) {
		outside := t.TempDir()
		inside := filepath.Join(outside, "inside")
		check(t, os.Mkdir(inside, 0o755))
		check(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("untouched"), 0o600))
		root, err := os.OpenRoot(inside)
		check(t, err)
		_ = Unpack(t.Context(), root, bytes.NewReader(archive), UnpackOptions{Limits: Limits{Entries: 1000, Bytes: 1 << 20}}) // any answer will do
		check(t, root.Close())
		list, err := os.ReadDir(outside)
		check(t, err)
		if text, err := os.ReadFile(filepath.Join(outside, "victim")); err != nil || string(text) != "untouched" || len(list) != 2 {
			t.Errorf("%q, %v, %v", text, err, list)
		}
		_ = filepath.WalkDir(inside, func(path string, d fs.DirEntry, err error) error { // or the test's directory cannot be removed
			if err == nil && d.IsDir() {
				return os.Chmod(path, 0o700)
			}
			return err
		})
	})
}
