package ext4_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// item is an entry of a tree that a test writes and then looks for. Its parent
// comes before it.
type item struct {
	path string
	meta ext4.Meta
	// body makes the contents; segs are what is stored of it. With segs it is an
	// io.ReaderAt.
	body func() io.Reader
	size int64
	segs []ext4.Segment
	link string // another item's path: a hard link
}

func text(s string) (func() io.Reader, int64) {
	return func() io.Reader { return strings.NewReader(s) }, int64(len(s))
}

func file(path string, mode uint32, s string) item {
	body, n := text(s)
	return item{path: path, meta: ext4.Meta{Mode: 0o100000 | mode, Mtime: noon}, body: body, size: n}
}

func dir(path string) item {
	return item{path: path, meta: ext4.Meta{Mode: 0o040755, Mtime: noon}}
}

var noon = time.Date(2024, 2, 29, 12, 0, 0, 123456789, time.UTC)

var testOptions = ext4.Options{
	UUID:     [16]byte{0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0x4D, 0xEF, 0x81, 0x23, 1, 2, 3, 4, 5, 6},
	HashSeed: [16]byte{0xDE, 0xAD, 0xBE, 0xEF, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	Label:    "test",
	Time:     time.Unix(1700000000, 0),
}

// stored is what is read of an item's body: all, or what its segments hold.
func (it item) stored() io.Reader {
	body := it.body()
	if it.segs == nil {
		return body
	}
	var parts []io.Reader
	for _, s := range it.segs {
		parts = append(parts, io.NewSectionReader(body.(io.ReaderAt), s.Offset, s.Length))
	}
	return io.MultiReader(parts...)
}

// write makes an image in the simplest way: everything in the order of items.
func write(t testing.TB, items []item, o ext4.Options) (string, ext4.Layout) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.ext4")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	l, _ := writeTo(t, f, items, o)
	return path, l
}

// writeTo also returns the first block behind the contents.
func writeTo(t testing.TB, f ext4.File, items []item, o ext4.Options) (l ext4.Layout, end int64) {
	t.Helper()
	w, err := ext4.New(f, o)
	must(t, err)
	datas := allotAll(t, w, items)
	end = 128
	for _, d := range datas {
		end += d.Blocks()
	}
	s := w.Stream()
	for i, it := range items {
		if it.body != nil {
			must(t, s.Copy(datas[i], it.stored()))
		}
	}
	must(t, s.Close())
	addAll(t, w, items, datas)
	l, err = w.Finish()
	must(t, err)
	return l, end
}

// create starts an image in a new file.
func create(t testing.TB, path string) *ext4.Writer {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	w, err := ext4.New(f, testOptions)
	must(t, err)
	return w
}

func allotAll(t testing.TB, w *ext4.Writer, items []item) []ext4.Data {
	t.Helper()
	out := make([]ext4.Data, len(items))
	for i, it := range items {
		if it.body != nil {
			d, err := w.Allot(it.size, it.segs)
			must(t, err)
			out[i] = d
		}
	}
	return out
}

func addAll(t testing.TB, w *ext4.Writer, items []item, datas []ext4.Data) {
	t.Helper()
	nodes := map[string]ext4.Node{"": ext4.Root}
	for i, it := range items {
		if it.path == "" {
			must(t, w.SetRoot(it.meta))
			continue
		}
		up, name := filepath.Split(it.path)
		parent, ok := nodes[strings.TrimSuffix(up, "/")]
		if !ok {
			t.Fatalf("%s: its parent comes later", it.path)
		}
		if it.link != "" {
			must(t, w.Link(parent, name, nodes[it.link]))
			nodes[it.path] = nodes[it.link]
			continue
		}
		m := it.meta
		m.Data = datas[i]
		n, err := w.Add(parent, name, m)
		must(t, err)
		nodes[it.path] = n
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a program and returns what it printed.
func run(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH=/usr/sbin:/sbin:"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("%s is not installed: apt-get install e2fsprogs mount", name)
	}
	return string(out), err
}

// quiet is what e2fsck prints about an image in which it finds nothing.
var quiet = regexp.MustCompile(`^(e2fsck \d.*|Pass \d[A-Z]?: .*|[^ ]+: \d+/\d+ files \(.*\), \d+/\d+ blocks|)$`)

// tool is a program of e2fsprogs: the system's, or that of the directory which
// E2FSPROGS names.
func tool(name string) string {
	if dir := os.Getenv("E2FSPROGS"); dir != "" {
		return filepath.Join(dir, name)
	}
	return name
}

// fsck lets e2fsck look for anything to complain about.
func fsck(t testing.TB, path string) {
	t.Helper()
	fsckBy(t, tool("e2fsck"), path)
}

func fsckBy(t testing.TB, prog, path string) {
	t.Helper()
	out, err := run(t, prog, "-fn", path)
	if err != nil {
		t.Fatalf("e2fsck -fn: %v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		if !quiet.MatchString(strings.TrimSuffix(line, "\n")) {
			t.Errorf("e2fsck -fn complains: %s", line)
		}
	}
}

// mount mounts an image read-only for the time of the test.
func mount(t testing.TB, path string) string {
	t.Helper()
	at, end := mountAs(t, path, "ro,loop")
	t.Cleanup(end)
	return at
}

// mountAs mounts an image until end is called.
func mountAs(t testing.TB, path, options string) (at string, end func()) {
	t.Helper()
	at = t.TempDir()
	if out, err := run(t, "mount", "-o", options, "-t", "ext4", path, at); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	return at, func() {
		if out, err := run(t, "umount", at); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	}
}

// pattern is n bytes that differ from block to block and never repeat.
func pattern(seed uint64, n int64) func() io.Reader {
	return func() io.Reader { return io.LimitReader(&noise{state: seed*2 + 1}, n) }
}

type noise struct {
	state uint64
	rest  []byte
	word  [8]byte
}

func (g *noise) Read(p []byte) (int, error) {
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	for ; n < len(p); n += copy(p[n:], g.word[:]) {
		g.state ^= g.state << 13
		g.state ^= g.state >> 7
		g.state ^= g.state << 17
		binary.LittleEndian.PutUint64(g.word[:], g.state)
		g.rest = g.word[min(8, len(p)-n):]
	}
	return n, nil
}
