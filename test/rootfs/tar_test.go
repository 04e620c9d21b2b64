package rootfs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// A writer of tar archives that shares nothing with the readers under test.
// It writes what archive/tar's cannot: sparse files, old formats, and fields
// in every form that they may have.

const tarBlock = 512

// archive is a layer's tar stream. What other unpackers do not know is written
// in another form for them, and says the same: a global header is left out, and
// a sparse file of GNU's own kind is written as PAX has it.
func (l layer) archive(forOthers bool) []byte {
	var b bytes.Buffer
	w := tarWriter{&b}
	if !forOthers && len(l.entries)%3 == 1 {
		w.extended('g', record("comment", "nothing that a reader may keep"))
	}
	for _, e := range l.entries {
		if forOthers && e.body.sparse == gnuOld {
			e.dialect, e.body.sparse = pax, pax10
		}
		w.entry(e)
	}
	w.Write(make([]byte, 2*tarBlock))
	return b.Bytes()
}

type tarWriter struct{ *bytes.Buffer }

type header [tarBlock]byte

func (h *header) text(at, n int, s string) { copy(h[at:at+n], s) }

// number writes octal digits, or GNU's base 256 for what they cannot hold.
func (h *header) number(at, n int, v int64) {
	if v >= 0 && v < 1<<(3*(n-1)) {
		copy(h[at:at+n-1], fmt.Sprintf("%0*o", n-1, v))
		return
	}
	var wide [12]byte
	binary.BigEndian.PutUint64(wide[4:], uint64(v))
	if v < 0 {
		copy(wide[:4], "\xff\xff\xff\xff")
	}
	copy(h[at:at+n], wide[12-n:])
	h[at] |= 0x80
}

func (h *header) sum() {
	copy(h[148:156], "        ")
	total := 0
	for _, c := range h {
		total += int(c)
	}
	copy(h[148:156], fmt.Sprintf("%06o\x00 ", total))
}

func (w tarWriter) pad() { w.Write(make([]byte, -w.Len()&(tarBlock-1))) }

// extended writes an entry of records or of a long name.
func (w tarWriter) extended(flag byte, data string) {
	var h header
	h.text(0, 100, "././@extended")
	h.number(100, 8, 0o644)
	h.number(108, 8, 0)
	h.number(116, 8, 0)
	h.number(124, 12, int64(len(data)))
	h.number(136, 12, 0)
	h[156] = flag
	h.text(257, 8, magic(pax))
	h.sum()
	w.Write(h[:])
	w.WriteString(data)
	w.pad()
}

func magic(d dialect) string {
	switch d {
	case gnu:
		return "ustar  \x00"
	case v7:
		return ""
	}
	return "ustar\x0000"
}

// record is one PAX record; its length counts itself.
func record(key, value string) string {
	n := len(key) + len(value) + 3
	for size := 0; size != n; {
		size = n
		n = len(fmt.Sprint(size)) + len(key) + len(value) + 3
	}
	return fmt.Sprintf("%d %s=%s\n", n, key, value)
}

// typeflag returns the flag that a dialect has for an entry.
func (e entry) typeflag() byte {
	switch {
	case e.body.sparse == gnuOld:
		return 'S'
	case e.dialect == v7 && (e.kind == file || e.kind == dir):
		return 0
	}
	return map[kind]byte{file: '0', hardlink: '1', symlink: '2', char: '3', block: '4', dir: '5', fifo: '6'}[e.kind]
}

// written is the name as an archive has it.
func (e entry) written() string {
	name := e.lead + e.name
	if e.kind == dir || name == "" {
		name += "/"
	}
	return name
}

func (w tarWriter) entry(e entry) {
	if e.kind != file {
		e.body = body{}
	}
	var h header
	name, prefix, ok := placeName(e)
	sparseMap := ""
	if e.dialect == pax {
		var records string
		records, sparseMap = paxRecords(e, ok)
		if e.body.sparse == pax01 || e.body.sparse == pax10 {
			name, prefix = path.Join("GNUSparseFile.0", "x"), ""
		}
		if records != "" {
			w.extended('x', records)
		}
	}
	if e.dialect == gnu && !ok {
		w.extended('L', e.written()+"\x00")
	}
	if e.dialect == gnu && len(e.link) > 100 {
		w.extended('K', e.link+"\x00")
	}
	h.text(0, 100, name)
	h.text(157, 100, e.link)
	h.text(257, 8, magic(e.dialect))
	h[156] = e.typeflag()
	e.numbers(&h, int64(len(sparseMap)))
	if e.dialect != gnu {
		h.text(345, 155, prefix)
	}
	extension := ""
	if e.body.sparse == gnuOld {
		extension = oldSparse(&h, e.body)
	}
	h.sum()
	w.Write(h[:])
	w.WriteString(extension)
	w.WriteString(sparseMap)
	if _, err := io.Copy(w, e.body.contents()); err != nil {
		panic(err) // of a buffer
	}
	w.pad()
}

// placeName fits the name into the header's two fields. What does not fit is
// cut, and ok says so.
func placeName(e entry) (name, prefix string, ok bool) {
	name = e.written()
	if len(name) <= 100 {
		return name, "", true
	}
	if e.dialect == ustar || e.dialect == pax {
		for i := min(155, len(name)-1); i > 0; i-- {
			if name[i] == '/' && len(name)-i-1 <= 100 && len(name)-i-1 > 0 {
				return name[i+1:], name[:i], true
			}
		}
	}
	return name[:100], "", false
}

// numbers fills the header's numbers. PAX has in records what octal digits
// cannot hold.
func (e entry) numbers(h *header, extra int64) {
	put := func(at, n int, v int64) {
		if e.dialect == pax && (v < 0 || v >= 1<<(3*(n-1))) {
			v = 0
		}
		h.number(at, n, v)
	}
	put(100, 8, int64(e.mode))
	put(108, 8, int64(e.uid))
	put(116, 8, int64(e.gid))
	put(124, 12, e.body.stored()+extra)
	put(136, 12, e.sec)
	if e.dialect != v7 {
		put(329, 8, int64(e.major))
		put(337, 8, int64(e.minor))
	}
}

// paxRecords returns the records of an entry, and the map that lies before its
// contents.
func paxRecords(e entry, nameFits bool) (records, sparseMap string) {
	var b strings.Builder
	put := func(key, value string) { b.WriteString(record(key, value)) }
	if named := e.body.sparse == pax01 || e.body.sparse == pax10; !nameFits && !named {
		put("path", e.written())
	}
	if len(e.link) > 100 {
		put("linkpath", e.link)
	}
	if e.uid >= 1<<21 {
		put("uid", fmt.Sprint(e.uid))
	}
	if e.gid >= 1<<21 {
		put("gid", fmt.Sprint(e.gid))
	}
	if e.nsec != 0 || e.sec < 0 || e.sec >= 1<<33 {
		put("mtime", decimal(e.sec, e.nsec))
	}
	for _, name := range slices.Sorted(maps.Keys(e.xattrs)) {
		put("SCHILY.xattr."+name, e.xattrs[name])
	}
	list := e.body.marked()
	switch e.body.sparse {
	case pax00:
		put("GNU.sparse.size", fmt.Sprint(e.body.size))
		put("GNU.sparse.numblocks", fmt.Sprint(len(list)))
		for _, s := range list {
			put("GNU.sparse.offset", fmt.Sprint(s.off))
			put("GNU.sparse.numbytes", fmt.Sprint(s.n))
		}
	case pax01:
		var m []string
		for _, s := range list {
			m = append(m, fmt.Sprintf("%d,%d", s.off, s.n))
		}
		put("GNU.sparse.size", fmt.Sprint(e.body.size))
		put("GNU.sparse.numblocks", fmt.Sprint(len(list)))
		put("GNU.sparse.name", e.written())
		put("GNU.sparse.map", strings.Join(m, ","))
	case pax10:
		put("GNU.sparse.major", "1")
		put("GNU.sparse.minor", "0")
		put("GNU.sparse.name", e.written())
		put("GNU.sparse.realsize", fmt.Sprint(e.body.size))
		sparseMap = fmt.Sprintln(len(list))
		for _, s := range list {
			sparseMap += fmt.Sprintf("%d\n%d\n", s.off, s.n)
		}
		sparseMap += strings.Repeat("\x00", -len(sparseMap)&(tarBlock-1))
	}
	return b.String(), sparseMap
}

// marked is the segments as archivers write them: an empty one at the end of a
// file that ends in a hole.
func (b body) marked() []segment {
	n := len(b.segs)
	if n > 0 && b.segs[n-1].off+b.segs[n-1].n == b.size {
		return b.segs
	}
	return append(slices.Clone(b.segs), segment{b.size, 0})
}

// oldSparse writes GNU's first map: four segments in the header, 21 in each
// block behind it.
func oldSparse(h *header, b body) (extension string) {
	list := b.marked()
	h.number(483, 12, b.size)
	h[482] = flag(len(list) > 4)
	fill := func(h *header, at, most int) {
		for ; most > 0 && len(list) > 0; most-- {
			h.number(at, 12, list[0].off)
			h.number(at+12, 12, list[0].n)
			at, list = at+24, list[1:]
		}
	}
	fill(h, 386, 4)
	for len(list) > 0 {
		var more header
		more[504] = flag(len(list) > 21)
		fill(&more, 0, 21)
		extension += string(more[:])
	}
	return extension
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// decimal writes a time as PAX does: seconds before 1970 have a sign, and
// their fraction goes further back.
func decimal(sec, nsec int64) string {
	sign := ""
	if sec < 0 {
		sign = "-"
		if sec = -sec; nsec > 0 {
			sec, nsec = sec-1, 1e9-nsec
		}
	}
	s := fmt.Sprintf("%s%d.%09d", sign, sec, nsec)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// fits says whether a dialect can say what the entry is.
func (e entry) fits(d dialect) bool {
	if d == pax {
		return true
	}
	octal := func(v int64, digits int) bool { return v >= 0 && v < 1<<(3*digits) }
	if e.nsec != 0 || len(e.xattrs) > 0 || e.body.sparse != dense && (d != gnu || e.body.sparse != gnuOld) {
		return false
	}
	if d == gnu {
		return e.sec > -1<<62
	}
	if !octal(int64(e.uid), 7) || !octal(int64(e.gid), 7) || !octal(e.sec, 11) || !octal(e.body.size, 11) || len(e.link) > 100 {
		return false
	}
	e.dialect = d
	if _, _, ok := placeName(e); !ok {
		return false
	}
	return d != v7 || e.kind != char && e.kind != block && e.kind != fifo
}
