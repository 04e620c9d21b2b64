package tarfile

import (
	"bytes"

	"github.com/paddock-dev/paddock/internal/fault"
)

// gnuRecords is what the records GNU.sparse.* say.
type gnuRecords struct {
	seen                   bool
	name                   []byte // nil: not given
	major, minor           []byte
	size, realSize, blocks optional
	list                   []byte    // version 0.1: offsets and lengths
	pairs                  []Segment // version 0.0
	offset                 int64     // of the pair begun
	begun                  bool
}

type optional struct {
	n     int64
	given bool
}

// take uses one record, whose key is GNU.sparse. and name.
func (g *gnuRecords) take(name, value []byte) error {
	g.seen = true
	switch string(name) {
	case "name":
		return setName(&g.name, name, value)
	case "major":
		g.major = value
	case "minor":
		g.minor = value
	case "map":
		g.list = value
	case "size":
		return g.size.set(name, value)
	case "realsize":
		return g.realSize.set(name, value)
	case "numblocks":
		return g.blocks.set(name, value)
	case "offset", "numbytes":
		return g.half(name, value)
	}
	return nil
}

func (o *optional) set(name, value []byte) error {
	o.n, o.given = decimal(value)
	if !o.given {
		return flawed(fault.LayerArchive, "its PAX record GNU.sparse.%s is no number: %.60q", name, value)
	}
	return nil
}

// half takes an offset, or the length that follows it.
func (g *gnuRecords) half(name, value []byte) error {
	n, ok := decimal(value)
	if !ok || g.begun != (string(name) == "numbytes") {
		return flawed(fault.LayerArchive, "its PAX record GNU.sparse.%s is no number, or at the wrong place: %.60q", name, value)
	}
	if g.begun = !g.begun; g.begun {
		g.offset = n
		return nil
	}
	g.pairs = append(g.pairs, Segment{g.offset, n})
	return nil
}

// sparseMap gathers the ranges of a file.
type sparseMap struct {
	limit  int
	size   int64 // of the file
	end    int64 // of the last range
	stored int64
	count  int
	list   []Segment
}

// add takes the next range. Empty ones are left out, and one that touches the
// last one is made a part of it.
func (m *sparseMap) add(offset, length int64) error {
	if m.count++; m.count > m.limit {
		return flawed(fault.LayerArchive, "its sparse map has more than %d ranges", m.limit)
	}
	if offset < m.end || length < 0 || length > m.size-offset {
		return flawed(fault.LayerArchive, "its sparse map has %d bytes at %d behind a range that ends at %d, in a file of %d", length, offset, m.end, m.size)
	}
	if last := len(m.list) - 1; length > 0 && last >= 0 && offset == m.end {
		m.list[last].Length += length
	} else if length > 0 {
		m.list = append(m.list, Segment{offset, length})
	}
	m.end = offset + length
	m.stored += length
	return nil
}

// sparse reads the map of a sparse file, in whatever form it has.
func (r *Reader) sparse(h *header, e *Entry) error {
	old, g := h.typeflag() == 'S', &r.rec.gnu
	if !old && !g.seen {
		return nil
	}
	if e.Type != Regular || old && (g.seen || !h.gnu()) {
		return flawed(fault.LayerArchive, "a sparse map where none can be: %s, typeflag %q", e.Type, h.typeflag())
	}
	m := sparseMap{limit: r.limits.Segments, list: []Segment{}}
	if err := r.readMap(h, &m); err != nil {
		return err
	}
	if m.stored != r.left {
		return flawed(fault.LayerArchive, "its sparse map has %d bytes, and %d follow", m.stored, r.left)
	}
	e.Size, e.Segments, r.stored = m.size, m.list, m.stored
	return nil
}

func (r *Reader) readMap(h *header, m *sparseMap) error {
	g := &r.rec.gnu
	if h.typeflag() == 'S' {
		return r.oldMap(h, m)
	}
	if err := g.fileSize(m); err != nil {
		return err
	}
	switch version := string(g.major) + "." + string(g.minor); {
	case version == "1.0" && g.list == nil && g.pairs == nil && !g.begun:
		return r.storedMap(m)
	case version != "." && version != "0.0" && version != "0.1":
		return flawed(fault.LayerArchive, "its sparse map has the version %.20q, or two maps", version)
	}
	return g.recordedMap(m)
}

// fileSize takes the size of the whole file, which has two names.
func (g *gnuRecords) fileSize(m *sparseMap) error {
	if !g.size.given && !g.realSize.given || g.size.given && g.realSize.given && g.size.n != g.realSize.n {
		return flawed(fault.LayerArchive, "its sparse map comes without the file's size, or with two")
	}
	if m.size = max(g.size.n, g.realSize.n); m.size > maxSize {
		return flawed(fault.LayerArchive, "its size is %d, which is not in 0 to %d", m.size, int64(maxSize))
	}
	return nil
}

// recordedMap is the map of versions 0.0 and 0.1.
func (g *gnuRecords) recordedMap(m *sparseMap) error {
	if g.begun || g.pairs != nil && g.list != nil {
		return flawed(fault.LayerArchive, "its sparse map ends with an offset, or it has two")
	}
	for _, p := range g.pairs {
		if err := m.add(p.Offset, p.Length); err != nil {
			return err
		}
	}
	for rest := g.list; len(rest) > 0; {
		var pair [2]int64
		for i := range pair {
			field, more, found := bytes.Cut(rest, []byte{','})
			n, ok := decimal(field)
			if !ok || found && len(more) == 0 {
				return flawed(fault.LayerArchive, "its sparse map is no list of pairs of numbers: %.60q", rest)
			}
			pair[i], rest = n, more
		}
		if err := m.add(pair[0], pair[1]); err != nil {
			return err
		}
	}
	if !g.blocks.given || g.blocks.n != int64(m.count) {
		return flawed(fault.LayerArchive, "its sparse map has %d ranges, and says another number or none", m.count)
	}
	return nil
}

// storedMap is the map of version 1.0: how many ranges there are, and their
// offsets and lengths, in whole blocks before the contents.
func (r *Reader) storedMap(m *sparseMap) error {
	l := lines{r: r, at: blockSize}
	count, err := l.number()
	if err != nil {
		return err
	}
	for range count {
		offset, err := l.number()
		if err != nil {
			return err
		}
		length, err := l.number()
		if err != nil {
			return err
		}
		if err := m.add(offset, length); err != nil {
			return err
		}
	}
	return nil
}

// lines reads decimal numbers, one a line, from an entry's contents.
type lines struct {
	r     *Reader
	block header
	at    int
}

func (l *lines) number() (int64, error) {
	var field [20]byte
	for n := 0; n < len(field); n++ {
		if l.at == blockSize {
			if err := l.load(); err != nil {
				return 0, err
			}
		}
		c := l.block[l.at]
		l.at++
		if c != '\n' {
			field[n] = c
			continue
		}
		if v, ok := decimal(field[:n]); ok {
			return v, nil
		}
		break
	}
	return 0, flawed(fault.LayerArchive, "its sparse map is no list of numbers")
}

func (l *lines) load() error {
	if l.r.left < blockSize {
		return flawed(fault.LayerArchive, "its sparse map does not end within its contents")
	}
	n, err := l.r.fill(l.block[:])
	l.r.left -= int64(n)
	l.at = 0
	if err != nil {
		return l.r.broken(err)
	}
	return nil
}

// oldMap is the map of the old GNU format: four ranges in the header, 21 in
// each block behind it.
func (r *Reader) oldMap(h *header, m *sparseMap) error {
	var ok bool
	if m.size, ok = number(h.gnuRealSize()); !ok || m.size < 0 || m.size > maxSize {
		return flawed(fault.LayerArchive, "its real size is no number in 0 to %d: %q", int64(maxSize), h.gnuRealSize())
	}
	more := h.gnuExtended() != 0
	if err := m.fields(h.gnuSparse(), more); err != nil {
		return err
	}
	var block header
	for more {
		if _, err := r.fill(block[:]); err != nil {
			return r.broken(err)
		}
		more = block.moreExtended() != 0
		if err := m.fields(block.moreSparse(), more); err != nil {
			return err
		}
	}
	return nil
}

// fields takes the ranges of one block, which is full if more blocks follow:
// unpackers do not agree on what comes behind an empty one.
func (m *sparseMap) fields(b []byte, more bool) error {
	ended := false
	for ; len(b) > 0; b = b[24:] {
		empty := b[0] == 0 && b[12] == 0
		if ended = ended || empty; empty && !more {
			continue
		}
		offset, ok1 := number(b[:12])
		length, ok2 := number(b[12:24])
		if ended || !ok1 || !ok2 || b[0] == 0 || b[12] == 0 {
			return flawed(fault.LayerArchive, "its sparse map has a range that is no pair of numbers, or stands behind its end: %q", b[:24])
		}
		if err := m.add(offset, length); err != nil {
			return err
		}
	}
	return nil
}
