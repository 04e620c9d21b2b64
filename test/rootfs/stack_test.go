package rootfs_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// kind is the type of an entry.
type kind byte

const (
	file     kind = 'f'
	dir      kind = 'd'
	symlink  kind = 'l'
	hardlink kind = 'h'
	fifo     kind = 'p'
	char     kind = 'c'
	block    kind = 'b'
)

// dialect is how an entry's header is written.
type dialect byte

const (
	pax dialect = iota
	gnu
	ustar
	v7
)

// sparseForm is how the map of a sparse file is written.
type sparseForm byte

const (
	dense  sparseForm = iota
	gnuOld            // typeflag S
	pax00             // GNU.sparse.offset, many times
	pax01             // GNU.sparse.map
	pax10             // the map lies before the contents
)

var (
	dialectNames = map[dialect]string{pax: "pax", gnu: "gnu", ustar: "ustar", v7: "v7"}
	sparseNames  = map[sparseForm]string{dense: "", gnuOld: "gnu", pax00: "pax 0.0", pax01: "pax 0.1", pax10: "pax 1.0"}
)

// segment is a range of a sparse file that is stored.
type segment struct{ off, n int64 }

// body is the content of a file: noise from a seed, zeros between segments.
type body struct {
	seed   uint64
	text   string // instead, when not empty; its length is the size
	size   int64
	sparse sparseForm
	segs   []segment // of a sparse file; in order, apart from each other, none empty
}

// entry is one entry of a layer. A whiteout is a file whose name says so.
type entry struct {
	name         string // without a leading or trailing slash; "" is the root
	lead         string // written before the name: "", "./"
	kind         kind
	link         string
	mode         uint32
	uid, gid     uint32
	sec          int64
	nsec         int64
	major, minor uint32
	xattrs       map[string]string
	body         body
	dialect      dialect
}

func (e entry) mtime() time.Time { return time.Unix(e.sec, e.nsec).UTC() }

// split divides a name at its last slash.
func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(i, 0)], name[i+1:]
}

// whiteout says what an entry hides: a name, or what lies in its directory.
func (e entry) whiteout() (hidden string, opaque, is bool) {
	_, base := split(e.name)
	if base == ".wh..wh..opq" {
		return "", true, true
	}
	hidden, is = strings.CutPrefix(base, ".wh.")
	return hidden, false, is
}

// compression is how a layer travels.
type compression string

const (
	plain compression = "tar"
	gzipd compression = "tar+gzip"
	zstdd compression = "tar+zstd"
)

type layer struct {
	entries     []entry
	compression compression
}

// stack is an image: its layers, base first.
type stack []layer

func (s stack) count() int {
	n := 0
	for _, l := range s {
		n += len(l.entries)
	}
	return n
}

// String is a description from which a person can make the stack again.
func (s stack) String() string {
	var b strings.Builder
	for i, l := range s {
		fmt.Fprintf(&b, "layer %d (%s)\n", i+1, l.compression)
		for _, e := range l.entries {
			fmt.Fprintf(&b, "  %s\n", e)
		}
	}
	return b.String()
}

func (e entry) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%c %s", e.kind, brief(e.lead+e.name))
	switch e.kind {
	case symlink, hardlink:
		fmt.Fprintf(&b, " -> %s", brief(e.link))
	case char, block:
		fmt.Fprintf(&b, " %d:%d", e.major, e.minor)
	case file:
		fmt.Fprintf(&b, " size=%d", e.body.length())
		if e.body.sparse != dense {
			fmt.Fprintf(&b, " sparse(%s)=%v", sparseNames[e.body.sparse], e.body.segs)
		}
	}
	fmt.Fprintf(&b, " %04o %d:%d %d.%09d %s", e.mode, e.uid, e.gid, e.sec, e.nsec, dialectNames[e.dialect])
	for _, name := range slices.Sorted(maps.Keys(e.xattrs)) {
		fmt.Fprintf(&b, " %s=%s", name, brief(e.xattrs[name]))
	}
	return b.String()
}

// brief quotes s, shortened in the middle.
func brief(s string) string {
	if len(s) <= 80 {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q..%q(%d bytes)", s[:30], s[len(s)-20:], len(s))
}

// length returns the size of the file.
func (b body) length() int64 {
	if b.text != "" {
		return int64(len(b.text))
	}
	return b.size
}

// stored returns the bytes of the body that an archive holds.
func (b body) stored() int64 {
	if b.sparse == dense {
		return b.length()
	}
	n := int64(0)
	for _, s := range b.segs {
		n += s.n
	}
	return n
}

// contents returns the bytes that an archive holds, segment after segment.
func (b body) contents() io.Reader {
	return io.LimitReader(b.source(), b.stored())
}

// source is where the stored bytes come from. The seed 0 is zeros.
func (b body) source() io.Reader {
	switch {
	case b.text != "":
		return strings.NewReader(b.text)
	case b.seed == 0:
		return zeros{}
	}
	return &noise{state: b.seed*2 + 1}
}

// whole returns the file as a program reads it.
func (b body) whole() io.Reader {
	if b.sparse == dense {
		return b.contents()
	}
	data := b.source()
	var parts []io.Reader
	at := int64(0)
	for _, s := range b.segs {
		parts = append(parts, io.LimitReader(zeros{}, s.off-at), io.LimitReader(data, s.n))
		at = s.off + s.n
	}
	return io.MultiReader(append(parts, io.LimitReader(zeros{}, b.size-at))...)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// noise is bytes that differ from block to block and never repeat.
type noise struct {
	state uint64
	word  [8]byte
	rest  []byte
}

func (g *noise) Read(p []byte) (int, error) {
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	for n < len(p) {
		g.state ^= g.state << 13
		g.state ^= g.state >> 7
		g.state ^= g.state << 17
		binary.LittleEndian.PutUint64(g.word[:], g.state)
		k := copy(p[n:], g.word[:])
		g.rest = g.word[k:]
		n += k
	}
	return n, nil
}
