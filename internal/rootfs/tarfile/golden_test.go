package tarfile_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

const golden = "testdata/golden"

// described is a line of tree.txt: an entry as the file system has it. The
// hash is over the blocks of 512 bytes that are not zero, and their places.
type described struct {
	Name, Link   string // with %XX
	Type         tarfile.Type
	Mode         uint32
	UID, GID     uint32
	NS           int64 // of the time
	Size         int64
	SHA256       string
	Major, Minor uint32
	Xattrs       map[string]string // in hexadecimal
}

// same holds what an archive has of an entry against the file system.
func (want described) same(t *testing.T, got described, precision time.Duration, xattrs bool) {
	t.Helper()
	late := want.NS - got.NS
	if late < 0 || late >= int64(precision) {
		t.Errorf("%s: its time is off by %d ns", want.Name, late)
	}
	want.NS, got.NS = 0, 0
	if !xattrs {
		want.Xattrs = nil
	}
	if a, b := fmt.Sprint(want), fmt.Sprint(got); a != b {
		t.Errorf("got  %s\nwant %s", b, a)
	}
}

func tree(t *testing.T) map[string]described {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(golden, "tree.txt"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]described{}
	for line := range bytes.Lines(text) {
		var d described
		if err := json.Unmarshal(line, &d); err != nil {
			t.Fatal(err)
		}
		all[plain(t, d.Name)] = d
	}
	return all
}

func plain(t *testing.T, s string) string {
	t.Helper()
	s, err := url.PathUnescape(s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// describe is the entry as tree.txt has it.
func describe(t *testing.T, want described, e *tarfile.Entry, r io.Reader) described {
	t.Helper()
	d := described{Name: want.Name, Type: e.Type, Mode: e.Mode, UID: e.UID, GID: e.GID, NS: e.ModTime.UnixNano(), Size: e.Size, Major: e.Major, Minor: e.Minor}
	if d.Link = e.Linkname; e.Linkname == plain(t, want.Link) {
		d.Link = want.Link
	}
	for _, x := range e.Xattrs {
		if d.Xattrs == nil {
			d.Xattrs = map[string]string{}
		}
		d.Xattrs[x.Name] = hex.EncodeToString(x.Value)
	}
	if e.Type == tarfile.Regular {
		d.SHA256 = contents(t, e, r)
	}
	return d
}

// contents hashes as described says. No segment begins within a block.
func contents(t *testing.T, e *tarfile.Entry, r io.Reader) string {
	t.Helper()
	segments := e.Segments
	if segments == nil {
		segments = []seg{{Offset: 0, Length: e.Size}}
	}
	h, block := sha256.New(), make([]byte, 512)
	for _, s := range segments {
		if s.Offset%512 != 0 {
			t.Errorf("%s: a segment at %d", e.Name, s.Offset)
		}
		for at := s.Offset; at < s.Offset+s.Length; at += 512 {
			b := block[:min(512, s.Offset+s.Length-at)]
			if _, err := io.ReadFull(r, b); err != nil {
				t.Fatal(err)
			}
			if len(bytes.TrimLeft(b, "\x00")) > 0 {
				fmt.Fprintf(h, "%d:%s", at, b)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// What archivers in use write of a tree is read as the tree was; see
// testdata/golden/make.py.
func TestGolden(t *testing.T) {
	const ns, us, s = time.Nanosecond, time.Microsecond, time.Second
	all := tree(t)
	for name, c := range map[string]struct {
		entries, sparse int
		precision       time.Duration
		xattrs          bool
	}{
		"gnutar-gnu":           {42, 4, s, false},
		"gnutar-oldgnu":        {41, 3, s, false},
		"gnutar-pax-sparse0.0": {42, 4, ns, true},
		"gnutar-pax-sparse0.1": {42, 4, ns, true},
		"gnutar-pax-sparse1.0": {42, 4, ns, true},
		"gnutar-ustar":         {21, 0, s, false},
		"gnutar-v7":            {19, 0, s, false},
		"bsdtar-pax":           {41, 4, ns, true},
		"bsdtar-gnutar":        {35, 0, s, false},
		"bsdtar-ustar":         {21, 0, s, false},
		"bsdtar-v7":            {19, 0, s, false},
		"python-pax":           {38, 0, us, false},
		"python-gnu":           {37, 0, s, false},
		"python-ustar":         {21, 0, s, false},
	} {
		t.Run(name, func(t *testing.T) {
			entries, sparse := 0, 0
			walkGolden(t, name, func(e *tarfile.Entry, r *tarfile.Reader) {
				entries++
				if e.Segments != nil {
					sparse++
				}
				want, ok := all[e.Name]
				if !ok {
					t.Fatalf("%q is not of the tree", e.Name)
				}
				want.same(t, describe(t, want, e, r), c.precision, c.xattrs)
			})
			if entries != c.entries || sparse != c.sparse {
				t.Errorf("%d entries, %d of them sparse; want %d and %d", entries, sparse, c.entries, c.sparse)
			}
		})
	}
}

// A global header sets the time of all, but of the one that has its own.
func TestGoldenGlobal(t *testing.T) {
	n := 0
	walkGolden(t, "gnutar-pax-global", func(e *tarfile.Entry, _ *tarfile.Reader) {
		if n++; !e.ModTime.Equal(time.Unix(1000, 25e7)) && e.Name != "dir/nano" {
			t.Errorf("%s is of %v", e.Name, e.ModTime)
		}
	})
	if n != 21 {
		t.Errorf("%d entries", n)
	}
}

func walkGolden(t *testing.T, name string, do func(*tarfile.Entry, *tarfile.Reader)) {
	t.Helper()
	data, err := unpacked(filepath.Join(golden, name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	r := tarfile.NewReader(bufio.NewReader(bytes.NewReader(data)), tarfile.Limits{})
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		do(e, r)
	}
	if err := r.Finish(); err != nil {
		t.Error(err)
	}
}

func unpacked(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}
