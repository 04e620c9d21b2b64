package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// said is what a command did.
type said struct {
	exit        int
	out, errors string
}

// paddock runs the program with an environment in which nothing is known.
func paddock(t *testing.T, args ...string) said {
	t.Helper()
	var out, errors bytes.Buffer
	exit := run(t.Context(), args, strings.NewReader(""), &out, &errors)
	return said{exit, out.String(), errors.String()}
}

// refused runs the program and returns the failure that it told.
func refused(t *testing.T, want *fault.Code, args ...string) fault.Detail {
	t.Helper()
	got := paddock(t, append(args, "-o", "json")...)
	var told struct{ Error fault.Detail }
	if err := json.Unmarshal([]byte(got.errors[max(strings.Index(got.errors, "{"), 0):]), &told); err != nil {
		t.Fatalf("%q: %v: %s%s", args, err, got.out, got.errors)
	}
	if told.Error.Code != want.Name || got.exit != want.Class.Exit {
		t.Errorf("%q: exit %d, %+v; want %s and exit %d", args, got.exit, told.Error, want.Name, want.Class.Exit)
	}
	if told.Error.Remedy == "" || told.Error.Cause == "" {
		t.Errorf("%q: no cause or no remedy: %+v", args, told.Error)
	}
	return told.Error
}

var noon = time.Date(2024, 2, 29, 12, 0, 0, 1, time.UTC)

// sample writes an image with an entry of every kind.
func sample(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sample.ext4")
	f, err := os.Create(path)
	must(t, err)
	w, err := ext4.New(f, ext4.Options{Label: "sample", UUID: [16]byte{0x12, 0x34}})
	must(t, err)
	s := w.Stream()
	contents := func(text string) ext4.Data {
		d, err := w.Allot(int64(len(text)), nil)
		must(t, err)
		must(t, s.Copy(d, strings.NewReader(text)))
		return d
	}
	hole, err := w.Allot(1<<30, []ext4.Segment{})
	must(t, err)
	must(t, s.Copy(hole, strings.NewReader("")))
	noise := contents(strings.Repeat("noise", 500_000))
	add := func(dir ext4.Node, name string, m ext4.Meta) ext4.Node {
		m.Mtime = noon
		n, err := w.Add(dir, name, m)
		must(t, err)
		return n
	}
	must(t, w.SetRoot(ext4.Meta{Mode: unix.S_IFDIR | 0o755, Mtime: noon}))
	etc := add(ext4.Root, "etc", ext4.Meta{Mode: unix.S_IFDIR | 0o755})
	usr := add(ext4.Root, "usr", ext4.Meta{Mode: unix.S_IFDIR | unix.S_ISVTX | 0o775, GID: 70000})
	lib := add(usr, "lib", ext4.Meta{Mode: unix.S_IFDIR | 0o755})
	add(lib, "os-release", ext4.Meta{Mode: unix.S_IFREG | 0o644, Data: contents("NAME=sample\n")})
	add(etc, "os-release", ext4.Meta{Mode: unix.S_IFLNK | 0o777, Target: "../usr/lib/os-release"})
	add(etc, "release", ext4.Meta{Mode: unix.S_IFLNK | 0o777, Target: "/lib/os-release"})
	add(ext4.Root, "lib", ext4.Meta{Mode: unix.S_IFLNK | 0o777, Target: "/../usr/lib"})
	add(ext4.Root, "loop", ext4.Meta{Mode: unix.S_IFLNK | 0o777, Target: "loop"})
	su := add(usr, "su", ext4.Meta{Mode: unix.S_IFREG | unix.S_ISUID | 0o4755, Xattrs: []ext4.Xattr{{Name: "user.a", Value: []byte("b")}}})
	must(t, w.Link(usr, "su2", su))
	add(ext4.Root, "null", ext4.Meta{Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3})
	add(ext4.Root, "pipe", ext4.Meta{Mode: unix.S_IFIFO | unix.S_ISGID | 0o600})
	add(ext4.Root, "hole", ext4.Meta{Mode: unix.S_IFREG | 0o600, Data: hole})
	add(ext4.Root, "noise", ext4.Meta{Mode: unix.S_IFREG, Data: noise})
	add(ext4.Root, "red\x1b[31m\xff", ext4.Meta{Mode: unix.S_IFREG | 0o600})
	must(t, s.Close())
	_, err = w.Finish()
	must(t, err)
	must(t, f.Close())
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const listing = `drwxr-xr-x    5     0     0        4096 2024-02-29T12:00:00.000000001Z /
drwxr-xr-x    2     0     0        4096 2024-02-29T12:00:00.000000001Z /etc
lrwxrwxrwx    1     0     0          21 2024-02-29T12:00:00.000000001Z /etc/os-release -> ../usr/lib/os-release
lrwxrwxrwx    1     0     0          15 2024-02-29T12:00:00.000000001Z /etc/release -> /lib/os-release
-rw-------    1     0     0  1073741824 2024-02-29T12:00:00.000000001Z /hole
lrwxrwxrwx    1     0     0          11 2024-02-29T12:00:00.000000001Z /lib -> /../usr/lib
lrwxrwxrwx    1     0     0           4 2024-02-29T12:00:00.000000001Z /loop -> loop
drwx------    2     0     0        4096 1970-01-01T00:00:00.000000000Z /lost+found
----------    1     0     0     2500000 2024-02-29T12:00:00.000000001Z /noise
crw-rw-rw-    1     0     0         1,3 2024-02-29T12:00:00.000000001Z /null
prw---S---    1     0     0           0 2024-02-29T12:00:00.000000001Z /pipe
-rw-------    1     0     0           0 2024-02-29T12:00:00.000000001Z "/red\x1b[31m\xff"
drwxrwxr-t    3     0 70000        4096 2024-02-29T12:00:00.000000001Z /usr
drwxr-xr-x    2     0     0        4096 2024-02-29T12:00:00.000000001Z /usr/lib
-rw-r--r--    1     0     0          12 2024-02-29T12:00:00.000000001Z /usr/lib/os-release
-rwsr-xr-x+   2     0     0           0 2024-02-29T12:00:00.000000001Z /usr/su
-rwsr-xr-x+   2     0     0           0 2024-02-29T12:00:00.000000001Z /usr/su2
`

func TestATreeIsListedAsLsDoesIt(t *testing.T) {
	file := sample(t)
	want := strings.SplitAfter(listing, "\n")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--tree"}, listing},
		{[]string{"--tree=/"}, listing},
		{[]string{"--tree", "/etc"}, want[1] + want[2] + want[3]},
		{[]string{"--tree=etc/."}, want[1] + want[2] + want[3]},
		{[]string{"--tree", "lib"}, want[13] + want[14]},
		{[]string{"--tree=../../etc/os-release"}, want[14]},
	} {
		got := paddock(t, append([]string{"image", "inspect", file}, c.args...)...)
		// Spaces for a mark that is not there stand before the count of links.
		if have := strings.ReplaceAll(got.out, "  ", " "); got.exit != 0 || have != strings.ReplaceAll(c.want, "  ", " ") {
			t.Errorf("%q: exit %d, %s\n%s\nwant\n%s", c.args, got.exit, got.errors, got.out, c.want)
		}
	}
}

func TestATreeKeepsEveryByteInJSON(t *testing.T) {
	got := paddock(t, "image", "inspect", sample(t), "--tree", "-o", "json")
	var all []treeEntry
	must(t, json.Unmarshal([]byte(got.out), &all))
	byPath := map[string]treeEntry{}
	for _, e := range all {
		byPath[e.Path+e.Bytes] = e
	}
	if e := byPath["/red\x1b[31m\ufffdL3JlZBtbMzFt/w=="]; e.Type != "file" {
		t.Errorf("a name that is no UTF-8: %+v", all)
	}
	if e := byPath["/usr/su"]; e.Mode != "4755" || e.Xattrs["user.a"] != "Yg==" || e.Links != 2 {
		t.Errorf("/usr/su: %+v", e)
	}
	if e := byPath["/hole"]; e.Stored != 0 || e.Size != 1<<30 {
		t.Errorf("/hole: %+v", e)
	}
}

func TestInspectSaysWhatAnImageIs(t *testing.T) {
	file := sample(t)
	got := paddock(t, "image", "inspect", file, "-o", "json")
	var i imageInfo
	must(t, json.Unmarshal([]byte(got.out), &i))
	want := entryCounter{Total: 16, Files: 6, Directories: 4, Symlinks: 4, Devices: 1, Others: 1, HardLinks: 1, FileBytes: 1<<30 + 2_500_012, StoredBytes: 611*4096 + 4096}
	if fmt.Sprint(i.Entries) != fmt.Sprint(want) {
		t.Errorf("entries %+v, want %+v", i.Entries, want)
	}
	if info, err := os.Stat(file); err != nil || i.SizeBytes != info.Size() || i.UUID != "12340000-0000-0000-0000-000000000000" || i.Label != "sample" || i.BlockBytes != 4096 {
		t.Errorf("%+v, %v", i, err)
	}
	if table := paddock(t, "image", "inspect", file); table.exit != 0 || !strings.Contains(table.out, "metadata_csum") || !strings.Contains(table.out, "16: 6 files, 4 directories") {
		t.Errorf("%+v", table)
	}
}

func TestAFileIsWrittenOut(t *testing.T) {
	file := sample(t)
	for _, path := range []string{"/usr/lib/os-release", "etc/os-release", "/etc/release", "/lib/os-release", "/../lib/../lib/os-release"} {
		if got := paddock(t, "image", "inspect", file, "--cat", path); got.exit != 0 || got.out != "NAME=sample\n" {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := paddock(t, "image", "inspect", file, "--cat", "/noise"); got.out != strings.Repeat("noise", 500_000) {
		t.Errorf("/noise: %d bytes, %s", len(got.out), got.errors)
	}
}

func TestInspectRefusesWithACode(t *testing.T) {
	file, dir := sample(t), t.TempDir()
	junk := filepath.Join(dir, "junk")
	must(t, os.WriteFile(junk, bytes.Repeat([]byte("junk"), 1<<20), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
	for _, c := range []struct {
		want *fault.Code
		says string
		args []string
	}{
		{fault.FileNotFound, "/no/such", []string{file, "--cat", "/no/such"}},
		{fault.FileNotFound, "/etc/os-release/x", []string{file, "--cat", "/etc/os-release/x"}},
		{fault.FileNotFound, "nope", []string{file, "--tree", "nope"}},
		{fault.FileIsDirectory, "/etc", []string{file, "--cat", "/etc"}},
		{fault.InvalidInput, "symlinks", []string{file, "--cat", "/loop"}},
		{fault.InvalidInput, "names", []string{file, "--cat", strings.Repeat("./", 5000)}},
		{fault.InvalidInput, "character device", []string{file, "--cat", "/null"}},
		{fault.InvalidInput, "one at a time", []string{file, "--cat", "/null", "--tree"}},
		{fault.InvalidInput, "belongs to --tree", []string{file, "/etc"}},
		{fault.InvalidInput, "arguments", nil},
		{fault.InvalidInput, "no such file", []string{filepath.Join(dir, "none")}},
		{fault.InvalidInput, "is a directory", []string{dir}},
		{fault.InvalidInput, "receipt", []string{file, "--verify", junk}},
		{fault.InvalidInput, "no such file", []string{file, "--verify", filepath.Join(dir, "none")}},
		{fault.Ext4Damaged, "junk", []string{junk}},
		{fault.Ext4Damaged, "empty", []string{filepath.Join(dir, "empty"), "--check"}},
	} {
		d := refused(t, c.want, append([]string{"image", "inspect"}, c.args...)...)
		if !strings.Contains(d.Message, c.says) {
			t.Errorf("%q: %q does not say %q", c.args, d.Message, c.says)
		}
	}
}

// sign writes a receipt of the image as it is, changed by edit.
func sign(t *testing.T, file string, edit func(*rootfs.Receipt)) string {
	t.Helper()
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	s, err := rootfs.SumImage(t.Context(), f, info.Size())
	must(t, err)
	r := rootfs.Receipt{Version: rootfs.ReceiptVersion, SizeBytes: s.Size, SHA256: s.SHA256, ChunkBytes: rootfs.ChunkSize, Chunks: s.Chunks}
	if edit != nil {
		edit(&r)
	}
	var b bytes.Buffer
	_, err = r.WriteTo(&b)
	must(t, err)
	path := filepath.Join(t.TempDir(), "receipt.json")
	must(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

func TestAWholeImageVerifies(t *testing.T) {
	file := sample(t)
	got := paddock(t, "image", "inspect", file, "--verify", sign(t, file, nil), "-o", "json")
	var c checked
	must(t, json.Unmarshal([]byte(got.out), &c))
	info, err := os.Stat(file)
	must(t, err)
	if got.exit != 0 || c.Chunks != (info.Size()+rootfs.ChunkSize-1)/rootfs.ChunkSize || len(c.SHA256) != 64 || c.Format.Names != 16 {
		t.Errorf("%+v", got)
	}
	if got := paddock(t, "image", "inspect", file, "--check"); got.exit != 0 || !strings.Contains(got.out, "ok") {
		t.Errorf("%+v", got)
	}
}

func TestVerifySaysWhereTheFirstDamageIs(t *testing.T) {
	flip := func(offsets ...int64) func(*testing.T, *os.File) {
		return func(t *testing.T, f *os.File) {
			for _, off := range offsets {
				var b [1]byte
				_, err := f.ReadAt(b[:], off)
				must(t, err)
				_, err = f.WriteAt([]byte{^b[0]}, off)
				must(t, err)
			}
		}
	}
	const chunk = rootfs.ChunkSize
	for _, c := range []struct {
		name   string
		damage func(*testing.T, *os.File)
		edit   func(*rootfs.Receipt)
		says   []string
		code   *fault.Code
	}{
		{name: "contents", damage: flip(chunk + 5), says: []string{"1 of ", "begins at byte 524288"}},
		{name: "contents twice", damage: flip(2*chunk+5, 3*chunk-1, 4*chunk), says: []string{"2 of ", "begins at byte 1048576"}},
		{name: "metadata", damage: flip(1024 + 0x68), says: []string{"1 of ", "begins at byte 0", "ext4_damaged"}},
		{name: "last byte", damage: func(t *testing.T, f *os.File) {
			end, err := f.Seek(0, 2)
			must(t, err)
			flip(end-1)(t, f)
		}, says: []string{"1 of "}},
		{name: "cut", damage: func(t *testing.T, f *os.File) { must(t, f.Truncate(3*chunk)) }, says: []string{"has 1572864 bytes", "begins at byte 1572864"}},
		{name: "longer by zeros", damage: func(t *testing.T, f *os.File) {
			end, err := f.Seek(0, 2)
			must(t, err)
			must(t, f.Truncate(end+chunk))
		}, says: []string{"the receipt says"}},
		{name: "another sum", edit: func(r *rootfs.Receipt) { r.SHA256 = strings.Repeat("0", 64) }, says: []string{"of another file"}},
		{name: "another size", edit: func(r *rootfs.Receipt) { r.SizeBytes++ }, says: []string{"the receipt says"}},
		{name: "other chunks", edit: func(r *rootfs.Receipt) { r.ChunkBytes = 4096 }, code: fault.InvalidInput},
		{name: "chunks of nothing", edit: func(r *rootfs.Receipt) { r.Chunks = []string{"zeros*0"} }, code: fault.InvalidInput},
		{name: "other version", edit: func(r *rootfs.Receipt) { r.Version = 99 }, code: fault.InvalidInput},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := sample(t)
			receipt := sign(t, file, c.edit)
			if c.damage != nil {
				f, err := os.OpenFile(file, os.O_RDWR, 0)
				must(t, err)
				c.damage(t, f)
				must(t, f.Close())
			}
			code := fault.ArtifactCorrupt
			if c.code != nil {
				code = c.code
			}
			d := refused(t, code, "image", "inspect", file, "--verify", receipt)
			for _, text := range c.says {
				if !strings.Contains(d.Message, text) {
					t.Errorf("%q does not say %q", d.Message, text)
				}
			}
		})
	}
}
