package ext4

import (
	"cmp"
	"slices"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Segment is a range of bytes of a sparse file that is stored.
type Segment struct{ Offset, Length int64 }

// Data is the place of a file's contents. The zero value is no contents. It is
// a small value: a caller keeps it instead of a path.
type Data struct {
	id     uint32 // + 1
	start  uint32
	blocks uint32
	sparse bool
	size   int64
}

// Size is the size of the file.
func (d Data) Size() int64 { return d.size }

// Blocks is how many blocks of 4096 bytes it takes.
func (d Data) Blocks() int64 { return int64(d.blocks) }

// run is n blocks at at.
type run struct{ at, n uint32 }

// extent is n blocks of a file from lblk on, which lie at phys.
type extent struct{ lblk, n, phys uint32 }

// sparseMap is what a file with holes has to say beyond its Data.
type sparseMap struct {
	segments []Segment // merged, in order
	extents  []extent
}

// contents is the state of every Data. Streams read it while Allot adds to it.
type contents struct {
	next    uint32 // first block that is not allotted
	last    uint32 // number of Data made
	claimed bits32 // has an inode
	dropped bits32
	done    bits32 // written in full
	sparse  map[uint32]*sparseMap
	zeros   map[uint32][]run // runs of zero blocks, of ElideZeros
	parts   map[uint32]int64 // bytes written by WriteAt
	maps    int64            // memory of sparse
	free    []run
}

// Memory that maps of holes may take. It counts what was dropped too, so that
// a refusal depends on the image alone.
const (
	mapMemory   = 12 << 20
	mapPerFile  = 40
	segmentCost = 28 // in both lists
)

// bits32 is a set of small numbers.
type bits32 []uint64

func (b *bits32) set(i uint32) {
	for int(i/64) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bits32) has(i uint32) bool { return int(i/64) < len(b) && b[i/64]>>(i%64)&1 == 1 }

// Allot gives a file of size bytes its place behind all that were allotted
// before. Without segments every byte is stored; with them only these are, and
// the rest are holes (an empty list that is not nil: one hole). Segments may
// touch but not overlap or go backwards. It answers fault.InvalidInput for a
// bad size or segments, fault.ImageUnfit for more than ext4 holds, and
// fault.TooMuchMetadata for more segments than a writer keeps. Calls must come
// in one fixed order.
func (w *Writer) Allot(size int64, segments []Segment) (Data, error) {
	if size < 0 {
		return Data{}, fault.New(fault.InvalidInput, "a file of %d bytes", size)
	}
	if size > maxFileSize {
		return Data{}, fault.New(fault.ImageUnfit, "a file of %d bytes: ext4 holds at most %d", size, maxFileSize)
	}
	if w.layout != nil {
		return Data{}, fault.New(fault.Bug, "the contents of an image grow after its layout")
	}
	if size == 0 && len(segments) == 0 {
		return Data{}, nil
	}
	blocks, segs := blocksFor(size), []Segment(nil)
	if segments != nil {
		var err error
		if blocks, segs, err = mergeSegments(size, segments); err != nil {
			return Data{}, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.data.maps += int64(len(segs)) * segmentCost; w.data.maps > mapMemory+mapPerFile*int64(w.data.last) {
		return Data{}, fault.New(fault.TooMuchMetadata, "a file of %d bytes in %d pieces: the maps of holes take more than %d bytes and %d for each file", size, len(segs), mapMemory, mapPerFile)
	}
	if blocks > maxBlocks-int64(w.data.next) {
		return Data{}, fault.New(fault.ImageUnfit, "the image would have more than %d bytes", maxBlocks*blockSize)
	}
	w.data.last++
	d := Data{id: w.data.last, start: w.data.next, blocks: uint32(blocks), size: size, sparse: segments != nil}
	if d.sparse {
		w.data.sparse[d.id] = &sparseMap{segments: segs, extents: segmentExtents(segs, d.start)}
	}
	w.data.next += d.blocks
	if storedBytes(d, segs) == 0 {
		w.data.done.set(d.id)
	}
	return d, nil
}

// Align lets the next file begin at a multiple of 512 KiB. A caller that does
// so between layers keeps the chunks of one layer free of the other's bytes.
func (w *Writer) Align() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.data.align()
}

func (c *contents) align() {
	to := uint32(roundUp(int64(c.next), alignBlocks))
	c.release(c.next, to-c.next)
	c.next = to
}

func (c *contents) release(at, n uint32) {
	if n > 0 {
		c.free = append(c.free, run{at, n})
	}
}

// Drop gives up contents that no inode will have. Their blocks are free space
// of the image, all zero. It must not run beside a Stream that writes d.
func (w *Writer) Drop(d Data) error {
	if d.id == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.id > w.data.last || w.data.claimed.has(d.id) || w.data.dropped.has(d.id) {
		return fault.New(fault.Bug, "contents are dropped twice, or after an inode took them")
	}
	if err := w.zero(int64(d.start)*blockSize, int64(d.blocks)*blockSize); err != nil {
		return err
	}
	w.data.dropped.set(d.id)
	w.data.release(d.start, d.blocks)
	delete(w.data.sparse, d.id)
	delete(w.data.zeros, d.id)
	return nil
}

// claim gives d to the inode nd.
func (w *Writer) claim(name string, d Data, nd *node) error {
	if d.id == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.id > w.data.last || w.data.claimed.has(d.id) || w.data.dropped.has(d.id) {
		return fault.New(fault.Bug, "%.200q: its contents belong to another inode, or were dropped", name)
	}
	w.data.claimed.set(d.id)
	nd.size, nd.start, nd.blocks, nd.data = d.size, d.start, d.blocks, d.id
	return nil
}

// allClaimed makes sure that every block has an owner.
func (c *contents) allClaimed() error {
	for id := uint32(1); id <= c.last; id++ {
		if !c.claimed.has(id) && !c.dropped.has(id) {
			return fault.New(fault.Bug, "contents were allotted that no inode has and nobody dropped")
		}
	}
	return nil
}

// mergeSegments checks segments and joins those that touch. It also counts the
// blocks that they touch.
func mergeSegments(size int64, segments []Segment) (int64, []Segment, error) {
	merged := make([]Segment, 0, len(segments))
	var blocks, end, lastBlock int64
	lastBlock = -1
	for _, s := range segments {
		if s.Offset < end || s.Length < 0 || s.Offset > size || s.Length > size-s.Offset {
			return 0, nil, fault.New(fault.InvalidInput, "a sparse file of %d bytes: its map is not in order, or leaves the file", size)
		}
		if s.Length == 0 {
			continue
		}
		first, last := s.Offset/blockSize, (s.Offset+s.Length-1)/blockSize
		blocks += last - max(first, lastBlock+1) + 1
		lastBlock = last
		if n := len(merged); n > 0 && s.Offset == end {
			merged[n-1].Length += s.Length
		} else {
			merged = append(merged, s)
		}
		end = s.Offset + s.Length
	}
	return blocks, slices.Clip(merged), nil
}

// segmentExtents maps the blocks that segments touch to the run at start.
func segmentExtents(segs []Segment, start uint32) []extent {
	var out []extent
	next := int64(0) // logical block after the last extent
	for _, s := range segs {
		first, end := max(s.Offset/blockSize, next), blocksFor(s.Offset+s.Length)
		if first >= end {
			continue
		}
		n := uint32(end - first)
		if k := len(out); k > 0 && first == next {
			out[k-1].n += n
		} else {
			out = append(out, extent{lblk: uint32(first), n: n, phys: start})
		}
		start += n
		next = end
	}
	return slices.Clip(out)
}

// storedBytes is how many bytes must be streamed for d.
func storedBytes(d Data, segs []Segment) int64 {
	if !d.sparse {
		return d.size
	}
	var n int64
	for _, s := range segs {
		n += s.Length
	}
	return n
}

// planned returns the extents of a node as they stand before zeros are elided:
// on them the layout depends. room is space for them; they are only to be read.
func (c *contents) planned(nd *node, room []extent) []extent {
	if m := c.sparse[nd.data]; nd.data != 0 && m != nil {
		return m.extents
	}
	if nd.blocks == 0 {
		return nil
	}
	return append(room[:0], extent{n: nd.blocks, phys: nd.start})
}

// minZeros is how many zero blocks in a row become a hole. Shorter runs would
// cost more in extents than they are worth.
const minZeros = 8

// elide takes zero runs, given in blocks of the image, out of extents. It
// returns what is left and the runs that became free.
func elide(exts []extent, zeros []run) (left []extent, free []run) {
	slices.SortFunc(zeros, func(a, b run) int { return cmp.Compare(a.at, b.at) })
	zeros = joinRuns(zeros)
	for _, e := range exts {
		end := e.phys + e.n
		for len(zeros) > 0 && zeros[0].at < end {
			z := zeros[0]
			from, to := max(z.at, e.phys), min(z.at+z.n, end)
			if from < to && to-from >= minZeros {
				if n := from - e.phys; n > 0 {
					left = append(left, extent{lblk: e.lblk, n: n, phys: e.phys})
				}
				free = append(free, run{from, to - from})
				e = extent{lblk: e.lblk + to - e.phys, n: end - to, phys: to}
			}
			if z.at+z.n > end {
				break // the rest of this run lies in the next extent
			}
			zeros = zeros[1:]
		}
		if e.n > 0 {
			left = append(left, e)
		}
	}
	return left, free
}

// edges lists the blocks that segments cover in part, in order. They are never
// elided: those who write the parts cannot tell that the whole is zero.
func (m *sparseMap) edges(size int64) []uint32 {
	var out []uint32
	exts := m.extents
	add := func(off int64) {
		var at int64
		at, exts = place(exts, off)
		out = append(out, uint32(at/blockSize))
	}
	for _, s := range m.segments {
		if s.Offset%blockSize != 0 {
			add(s.Offset)
		}
		if end := s.Offset + s.Length; end%blockSize != 0 && end != size {
			add(end)
		}
	}
	return out
}

// without takes single blocks out of runs. Both are put in order.
func without(runs []run, blocks []uint32) []run {
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.at, b.at) })
	var out []run
	for _, r := range joinRuns(runs) {
		for len(blocks) > 0 && blocks[0] < r.at+r.n {
			b := blocks[0]
			blocks = blocks[1:]
			if b < r.at {
				continue
			}
			if b > r.at {
				out = append(out, run{r.at, b - r.at})
			}
			r = run{b + 1, r.at + r.n - b - 1}
		}
		if r.n > 0 {
			out = append(out, r)
		}
	}
	return out
}

// joinRuns merges runs that touch or overlap. They are in order.
func joinRuns(runs []run) []run {
	out := runs[:0]
	for _, r := range runs {
		if n := len(out); n > 0 && out[n-1].at+out[n-1].n >= r.at {
			out[n-1].n = max(out[n-1].n, r.at+r.n-out[n-1].at)
		} else {
			out = append(out, r)
		}
	}
	return out
}
