package ext4_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// Contents read back from the file that they were streamed into, and from the
// one that they were moved to, are what was written.
func TestContentsMoveToAnotherImage(t *testing.T) {
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	from, to := create("from"), create("to")
	w, err := ext4.New(from, ext4.Options{ElideZeros: true})
	if err != nil {
		t.Fatal(err)
	}
	zeros := strings.Repeat("\x00", 300_000)
	files := []struct {
		stored   string
		size     int64
		segments []ext4.Segment
		whole    string
	}{
		{"first", 5, nil, "first"},
		{"", 0, nil, ""},
		{"abcdef", 300_000, []ext4.Segment{{Offset: 4095, Length: 2}, {Offset: 200_000, Length: 4}}, zeros[:4095] + "ab" + zeros[:200_000-4097] + "cdef" + zeros[:300_000-200_004]},
		{"", 8192, []ext4.Segment{}, zeros[:8192]},
		{"x" + zeros + "y", 300_002, nil, "x" + zeros + "y"},
		{"last", 4, nil, "last"},
	}
	var data []ext4.Data
	s := w.Stream()
	for i, f := range files {
		gap, err := w.Allot(10_000, nil) // left behind
		if err == nil {
			err = s.Copy(gap, bytes.NewReader(bytes.Repeat([]byte("g"), 10_000)))
		}
		if err != nil {
			t.Fatal(err)
		}
		d, err := w.Allot(f.size, f.segments)
		if err == nil {
			err = s.Copy(d, strings.NewReader(f.stored))
		}
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		data = append(data, d)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	moved, err := ext4.New(to, ext4.Options{ElideZeros: true})
	if err != nil {
		t.Fatal(err)
	}
	m := moved.NewMover(to, w, from)
	for i, f := range files {
		if got, err := io.ReadAll(w.Reader(from, data[i])); err != nil || string(got) != f.whole {
			t.Errorf("%d: %d bytes read back, %v; want %d", i, len(got), err, len(f.whole))
		}
		if data[i], err = m.Move(data[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Flush(); err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		name := string(rune('a' + i))
		if _, err := moved.Add(ext4.Root, name, ext4.Meta{Mode: 0o100644, Data: data[i]}); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(moved.Reader(to, data[i])); err != nil || string(got) != f.whole {
			t.Errorf("%d: %d bytes moved, %v; want %d", i, len(got), err, len(f.whole))
		}
	}
	l, err := moved.Finish()
	if err != nil {
		t.Fatal(err)
	}
	im, err := ext4.Open(to, l.Size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := im.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	for i, f := range files {
		stat, err := im.Lookup(string(rune('a' + i)))
		if err != nil {
			t.Fatal(err)
		}
		c, err := im.Contents(stat)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c.Reader()); err != nil || string(got) != f.whole {
			t.Errorf("%d: %d bytes in the image, %v; want %d", i, len(got), err, len(f.whole))
		}
	}
}

func TestHalfWrittenContentsDoNotMove(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := ext4.New(f, ext4.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := w.Allot(5, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.NewMover(f, w, f).Move(d); fault.Of(err) != fault.Bug {
		t.Errorf("error %v", err)
	}
}
