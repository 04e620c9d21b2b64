package rootfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// plain is a build of layers, with a guest.
func plain(t testing.TB, layers ...[]byte) rootfs.Plain {
	t.Helper()
	guest := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(guest, []byte("the guest"), 0o600); err != nil {
		t.Fatal(err)
	}
	return rootfs.Plain{Layers: layers, Guest: guest}
}

// built is an image that was made, opened.
type built struct {
	rootfs.Result
	path string
	im   *ext4.Image
}

func make1(t testing.TB, p rootfs.Plain) built {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "out.ext4")
	res, err := p.Build(context.Background(), dir, path)
	if err != nil {
		t.Fatal(err)
	}
	if n := left(t, dir); !slices.Equal(n, []string{"out.ext4"}) {
		t.Errorf("left behind: %v", n)
	}
	return open(t, path, res)
}

func open(t testing.TB, path string, res rootfs.Result) built {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() != res.SizeBytes || info.Size()%(2<<20) != 0 {
		t.Errorf("size %d, result says %d", info.Size(), res.SizeBytes)
	}
	im, err := ext4.Open(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := im.Verify(context.Background()); err != nil {
		t.Error(err)
	}
	sums, err := rootfs.SumImage(context.Background(), f, info.Size())
	if err != nil || sums.SHA256 != res.SHA256 || !slices.Equal(sums.Chunks, res.Receipt.Chunks) {
		t.Errorf("sums %v, %v; result says %s", sums.SHA256, err, res.SHA256)
	}
	return built{res, path, im}
}

// left returns what is in a directory.
func left(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// content returns what a file of the image holds.
func (b built) content(t testing.TB, path string) string {
	t.Helper()
	s, err := b.im.Lookup(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.im.Contents(s)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(c.Reader())
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// lines lists the image as Laid.Lines does, without what every image has.
func (b built) lines(t testing.TB) []string {
	t.Helper()
	var out []string
	err := b.im.Walk(context.Background(), func(path string, s ext4.Stat) error {
		if path == "" || path == "lost+found" || strings.HasPrefix(path, ".paddock") || slices.Contains([]string{"dev", "proc", "sys", "etc", "tmp"}, path) {
			return nil
		}
		line := path
		if s.Links > 1 && !s.IsDir() {
			line += fmt.Sprintf(" x%d", s.Links)
		}
		switch {
		case s.IsDir():
			line += "/"
		case s.IsRegular():
			line += " = " + b.content(t, path)
		case s.Mode&0o170000 == 0o120000:
			to, err := b.im.Target(s)
			if err != nil {
				return err
			}
			line += " -> " + to
		default:
			line += fmt.Sprintf(" %o %d:%d", s.Mode, s.Major, s.Minor)
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLayersBecomeAnImage(t *testing.T) {
	base := archive(t, dir("bin"), file("bin/app", "#!app"), symlink("sbin", "bin"), file("etc/old", "1"), file("etc/keep", "3"), hardlink("keep", "etc/keep"), file(".paddock/guest", "an impostor"), file(".paddock/more", "x"))
	next := archive(t, file("etc/.wh.old", ""), file("sbin/new", "2"), file("empty", ""), file("bin/app", "#!app 2"), device("null", 1, 3), device("gone", 0, 0), fifo("pipe"))
	b := make1(t, plain(t, base, next))
	want := []string{"bin/", "bin/app = #!app 2", "bin/new = 2", "empty = ", "etc/keep x2 = 3", "keep x2 = 3", "pipe 10644 0:0", "sbin -> bin"}
	if got := b.lines(t); !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if got := b.content(t, ".paddock/guest"); got != "the guest" {
		t.Errorf("guest holds %q", got)
	}
	if _, err := b.im.Lookup(".paddock/more"); err == nil {
		t.Error("what lay in the guest's directory is there")
	}
	for path, mode := range map[string]uint32{".paddock": 0o40755, ".paddock/guest": 0o100755, "proc": 0o40755, "sys": 0o40755, "dev": 0o40755, "tmp": 0o41777} {
		if s, err := b.im.Lookup(path); err != nil || s.Mode != mode || s.UID != 0 || s.Mtime.Unix() != 0 {
			t.Errorf("%s: %+v, %v", path, s, err)
		}
	}
	c := b.Receipt.Counts
	if c.Stripped.Devices != 1 || c.Stripped.OverlayWhiteouts != 1 || c.FIFOs != 1 || c.HardLinks != 1 {
		t.Errorf("counts %+v", c)
	}
	if got := b.Receipt.Injected; len(got) != 5 || got[4] != (rootfs.Injected{Path: ".paddock/guest", What: "guest", How: "replaced"}) {
		t.Errorf("injected %+v", got)
	}
}

// TestGoldenRulesHoldOnDisk lays some stacks of the merge rules and compares
// what the image has with what the tree says.
func TestAheadAndInTurnGiveTheSame(t *testing.T) {
	var layers [][]byte
	for i := range 12 {
		var entries []tar.Header
		for j := range 40 {
			entries = append(entries, file(fmt.Sprintf("d%d/f%d", (i*7+j)%5, j), strings.Repeat(fmt.Sprintf("%d,", i), 100+j*i*37)))
		}
		layers = append(layers, archive(t, entries...))
	}
	p := plain(t, layers...)
	first := make1(t, p)
	// The first layer ends when all others are spooled.
	held := make(chan struct{})
	done := make(chan struct{}, len(layers))
	p.Open = func(_ context.Context, i int) (io.ReadCloser, error) {
		if i == 0 {
			return io.NopCloser(&gate{Reader: bytes.NewReader(layers[i]), open: held}), nil
		}
		return &told{bytes.NewReader(layers[i]), done}, nil
	}
	go func() {
		for range len(layers) - 1 {
			<-done
		}
		close(held)
	}()
	ahead := make1(t, p)
	if first.SHA256 != ahead.SHA256 {
		t.Errorf("%s in turn, %s ahead", first.SHA256, ahead.SHA256)
	}
}

// gate lets nothing through until it is open.
type gate struct {
	io.Reader
	open chan struct{}
}

func (g *gate) Read(p []byte) (int, error) {
	<-g.open
	return g.Reader.Read(p)
}

// told says when it is closed.
type told struct {
	io.Reader
	done chan struct{}
}

func (c *told) Close() error {
	c.done <- struct{}{}
	return nil
}

// gappyLayers are layers of which the upper one replaces most of the lower, so
// that the image is copied without the gaps.
func gappyLayers(t testing.TB) [][]byte {
	t.Helper()
	body := noise(5 << 20)
	var low, high []tar.Header
	for i := range 8 {
		low = append(low, file(fmt.Sprintf("f%d", i), body[i:]))
		if i > 0 {
			high = append(high, file(fmt.Sprintf(".wh.f%d", i), ""))
		}
	}
	return [][]byte{archive(t, low...), archive(t, append(high, file("g", "new"))...)}
}

func TestGapsAreLeftBehind(t *testing.T) {
	b := make1(t, plain(t, gappyLayers(t)...))
	if !b.Receipt.Compacted || b.SizeBytes > 8<<20 {
		t.Errorf("compacted %t, %d bytes", b.Receipt.Compacted, b.SizeBytes)
	}
	if b.content(t, "f0") != noise(5<<20) || b.content(t, "g") != "new" {
		t.Error("contents differ")
	}
	few := make1(t, plain(t, archive(t, file("a", noise(1<<20)), file("b", noise(1<<20))), archive(t, file("a", "1"))))
	if few.Receipt.Compacted || few.content(t, "a") != "1" {
		t.Errorf("compacted %t", few.Receipt.Compacted)
	}
}
