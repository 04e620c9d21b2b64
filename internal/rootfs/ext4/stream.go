package ext4

import (
	"bytes"
	"errors"
	"io"
	"sort"

	"github.com/paddock-dev/paddock/internal/fault"
)

// streamBuffer is the size of a Stream's buffer, in whole blocks.
const streamBuffer = 256 << 10

// skipZeros is how many zero bytes in a row are not written but left as a hole
// of the host's file.
const skipZeros = 64 << 10

var zeroBlock [blockSize]byte

// Stream writes contents, one file after another. Files that lie side by side
// leave in one write. A Stream is for one goroutine; there may be many. After
// an error it is of no more use, and so is the image.
type Stream struct {
	w      *Writer
	buf    []byte
	at     int64 // where buf goes; a whole block
	d      Data
	segs   []Segment // not begun
	exts   []extent
	inSeg  int64 // bytes that the segment begun lacks
	open   bool
	closed bool
	whole  stored // of a file without holes
	scan   int64  // up to where zeros were looked for
	zeros  []run
	err    error
}

// Stream returns a new Stream. It must be closed before Finish.
func (w *Writer) Stream() *Stream {
	w.streams.Add(1)
	return &Stream{w: w, buf: make([]byte, 0, streamBuffer)}
}

// Begin starts the contents of d.
func (s *Stream) Begin(d Data) error {
	if s.err != nil {
		return s.err
	}
	if s.open || s.closed {
		return s.fail(fault.New(fault.Bug, "a file's contents begin before the last one's end"))
	}
	segs, exts, err := s.w.take(d, &s.whole)
	if err != nil {
		return s.fail(err)
	}
	start := int64(d.start) * blockSize
	if d.id != 0 && (s.at+int64(len(s.buf)) != start || len(s.buf) == cap(s.buf)) {
		if err := s.flush(); err != nil {
			return err
		}
		s.at = start
	}
	s.d, s.segs, s.exts, s.inSeg, s.open = d, segs, exts, 0, true
	s.scan, s.zeros = start, nil
	return s.nextSegment()
}

// stored is room for what take returns for a file without holes.
type stored struct {
	seg [1]Segment
	ext [1]extent
}

// take returns what is to be streamed for d: its segments, and their blocks.
func (w *Writer) take(d Data, whole *stored) ([]Segment, []extent, error) {
	if d.id == 0 {
		return nil, nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.id > w.data.last || w.data.dropped.has(d.id) {
		return nil, nil, fault.New(fault.Bug, "contents are written after they were dropped")
	}
	if d.sparse {
		m := w.data.sparse[d.id]
		if w.data.done.has(d.id) && len(m.segments) > 0 {
			return nil, nil, fault.New(fault.Bug, "the contents of a file are written twice")
		}
		return m.segments, m.extents, nil
	}
	if w.data.done.has(d.id) {
		return nil, nil, fault.New(fault.Bug, "the contents of a file are written twice")
	}
	whole.seg[0], whole.ext[0] = Segment{0, d.size}, extent{n: d.blocks, phys: d.start}
	return whole.seg[:], whole.ext[:], nil
}

// place returns where byte off of a file lies in the image. exts begins at or
// before it; the extents that were passed are cut off.
func place(exts []extent, off int64) (at int64, rest []extent) {
	lblk := uint32(off / blockSize)
	for len(exts) > 1 && lblk >= exts[0].lblk+exts[0].n {
		exts = exts[1:]
	}
	return off + (int64(exts[0].phys)-int64(exts[0].lblk))*blockSize, exts
}

// nextSegment goes to the next segment that is stored. What is skipped lies in
// blocks of this file, and is zero.
func (s *Stream) nextSegment() error {
	if len(s.segs) == 0 {
		return nil
	}
	var at int64
	at, s.exts = place(s.exts, s.segs[0].Offset)
	s.inSeg = s.segs[0].Length
	s.segs = s.segs[1:]
	for gap := at - s.at - int64(len(s.buf)); gap > 0; {
		n := min(gap, blockSize, int64(cap(s.buf)-len(s.buf)))
		s.buf = append(s.buf, zeroBlock[:n]...)
		gap -= n
		if len(s.buf) == cap(s.buf) {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Write writes the next stored bytes of the file: of a sparse one only what
// its segments hold.
func (s *Stream) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		room, err := s.room()
		if err != nil {
			return done, err
		}
		n := copy(room, p[done:])
		if err := s.took(n); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// room returns where the next bytes go. It is not empty.
func (s *Stream) room() ([]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	if !s.open || s.inSeg == 0 {
		return nil, s.fail(fault.New(fault.InvalidInput, "a file has more contents than the %d bytes that were announced", s.d.size))
	}
	return s.buf[len(s.buf):min(int64(cap(s.buf)), int64(len(s.buf))+s.inSeg)], nil
}

// took says that n bytes were put into what room returned.
func (s *Stream) took(n int) error {
	s.buf = s.buf[:len(s.buf)+n]
	s.inSeg -= int64(n)
	if len(s.buf) == cap(s.buf) {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if s.inSeg == 0 {
		return s.nextSegment()
	}
	return nil
}

// End ends the file. It answers fault.InvalidInput when bytes are missing.
func (s *Stream) End() error {
	if s.err != nil {
		return s.err
	}
	if !s.open {
		return s.fail(fault.New(fault.Bug, "a file's contents end before they began"))
	}
	if s.inSeg > 0 {
		return s.fail(fault.Wrap(fault.InvalidInput, io.ErrUnexpectedEOF, "a file has less contents than the %d bytes that were announced", s.d.size))
	}
	s.open = false
	if s.d.id == 0 {
		return nil
	}
	s.pad()
	s.findZeros()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.data.done.set(s.d.id)
	if n := len(s.zeros); n > 0 && s.zeros[n-1].n < minZeros {
		s.zeros = s.zeros[:n-1]
	}
	if len(s.zeros) > 0 {
		s.w.data.zeros[s.d.id] = s.zeros
	}
	return nil
}

// Copy writes the contents of d from r. It reads exactly the stored bytes, and
// never looks beyond them. An error of r is returned as it is.
func (s *Stream) Copy(d Data, r io.Reader) error {
	if err := s.Begin(d); err != nil {
		return err
	}
	for empty := 0; s.inSeg > 0; {
		room, err := s.room()
		if err != nil {
			return err
		}
		n, rerr := r.Read(room)
		if err := s.took(n); err != nil {
			return err
		}
		switch {
		case s.inSeg == 0:
		case errors.Is(rerr, io.EOF):
			return s.End() // says what is missing
		case rerr != nil:
			return s.fail(rerr)
		}
		if empty++; n > 0 {
			empty = 0
		} else if empty > 100 {
			return s.fail(io.ErrNoProgress)
		}
	}
	return s.End()
}

// Close writes what is still in the buffer.
func (s *Stream) Close() error {
	if s.closed {
		return s.err
	}
	if s.open && s.err == nil {
		_ = s.fail(fault.New(fault.Bug, "a stream is closed in the middle of a file"))
	}
	s.closed = true
	defer s.w.streams.Add(-1)
	if s.err != nil {
		return s.err
	}
	return s.flush()
}

func (s *Stream) fail(err error) error {
	s.err = err
	s.w.failed.Store(true)
	return err
}

// pad fills the last block with zeros.
func (s *Stream) pad() {
	if n := len(s.buf) % blockSize; n > 0 {
		s.buf = append(s.buf, zeroBlock[n:]...)
	}
}

// findZeros notes the zero blocks of the file in what was not looked at yet.
// The buffer ends with a whole block.
func (s *Stream) findZeros() {
	if !s.w.opts.ElideZeros {
		return
	}
	for end := s.at + int64(len(s.buf)); s.scan < end; s.scan += blockSize {
		from := s.scan - s.at
		if !bytes.Equal(s.buf[from:from+blockSize], zeroBlock[:]) {
			continue
		}
		s.zeros = addZero(s.zeros, uint32(s.scan/blockSize))
	}
}

// addZero adds a block behind the others. Runs that ended too short for a hole
// are forgotten.
func addZero(zeros []run, blk uint32) []run {
	if n := len(zeros); n > 0 {
		last := &zeros[n-1]
		if last.at+last.n == blk {
			last.n++
			return zeros
		}
		if last.n < minZeros {
			zeros = zeros[:n-1]
		}
	}
	return append(zeros, run{blk, 1})
}

func (s *Stream) flush() error {
	if s.open {
		s.findZeros()
	}
	if err := s.w.writeSparse(s.buf, s.at); err != nil {
		return s.fail(err)
	}
	s.at += int64(len(s.buf))
	s.buf = s.buf[:0]
	return nil
}

// writeSparse writes whole blocks, but long runs of zeros not: where nothing
// is written the file reads as zeros.
func (w *Writer) writeSparse(p []byte, off int64) error {
	from, zeroFrom := 0, -1
	for at := 0; at < len(p); at += blockSize {
		b := p[at:min(at+blockSize, len(p))]
		switch zero := bytes.Equal(b, zeroBlock[:len(b)]); {
		case zero && zeroFrom < 0:
			zeroFrom = at
		case zero:
		case zeroFrom >= 0 && at-zeroFrom >= skipZeros:
			if err := w.writePart(p[from:zeroFrom], off+int64(from)); err != nil {
				return err
			}
			from, zeroFrom = at, -1
		default:
			zeroFrom = -1
		}
	}
	end := len(p)
	if zeroFrom >= 0 && end-zeroFrom >= skipZeros {
		end = zeroFrom
	}
	return w.writePart(p[from:end], off+int64(from))
}

func (w *Writer) writePart(p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	return w.writeAt(p, off)
}

// WriteAt writes part of the contents of d, off bytes into the file, so that
// several goroutines can share a large one. Each stored byte is written once;
// a file begun so is not given to a Stream. With ElideZeros, p begins and ends
// at multiples of 4096 bytes of the file, or where a segment does.
func (w *Writer) WriteAt(d Data, p []byte, off int64) error {
	if d.id == 0 || len(p) == 0 {
		return nil
	}
	segs, exts, err := w.take(d, new(stored))
	if err != nil {
		return err
	}
	seg, ok := segmentOf(segs, off, int64(len(p)))
	if !ok {
		return fault.New(fault.InvalidInput, "bytes %d to %d of a file lie outside of what was announced", off, off+int64(len(p)))
	}
	end := off + int64(len(p))
	if w.opts.ElideZeros && (off%blockSize != 0 && off != seg.Offset || end%blockSize != 0 && end != seg.Offset+seg.Length) {
		return fault.New(fault.InvalidInput, "with ElideZeros contents are written in whole blocks")
	}
	var zeros []run
	for rest := p; len(rest) > 0; {
		at, left := place(exts, off)
		exts = left
		n := min(int64(len(rest)), int64(exts[0].lblk+exts[0].n)*blockSize-off)
		if err := w.writeSparse(rest[:n], at); err != nil {
			return err
		}
		if w.opts.ElideZeros {
			zeros = zerosIn(zeros, rest[:n], at)
		}
		rest, off = rest[n:], off+n
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if zeros = joinRuns(zeros); len(zeros) > 0 {
		w.data.zeros[d.id] = append(w.data.zeros[d.id], zeros...)
	}
	if w.data.parts[d.id] += int64(len(p)); w.data.parts[d.id] == storedBytes(d, segs) {
		w.data.done.set(d.id)
		delete(w.data.parts, d.id)
	}
	return nil
}

// zerosIn adds the blocks of p that are zeros. p lies at byte at of the image.
func zerosIn(zeros []run, p []byte, at int64) []run {
	for len(p) > 0 {
		n := min(blockSize-at%blockSize, int64(len(p)))
		if bytes.Equal(p[:n], zeroBlock[:n]) {
			zeros = append(zeros, run{uint32(at / blockSize), 1})
		}
		p, at = p[n:], at+n
	}
	return zeros
}

// segmentOf returns the segment that holds n bytes at off.
func segmentOf(segs []Segment, off, n int64) (Segment, bool) {
	i := sort.Search(len(segs), func(i int) bool { return segs[i].Offset+segs[i].Length > off })
	if i == len(segs) || off < segs[i].Offset || n > segs[i].Offset+segs[i].Length-off {
		return Segment{}, false
	}
	return segs[i], true
}
