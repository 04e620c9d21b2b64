package ext4

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Offset is where the blocks of d begin in the file, in bytes. Of a sparse
// file they hold what is stored, block by block, without the holes.
func (d Data) Offset() int64 { return int64(d.start) * blockSize }

// Reader reads contents back from the file that they were streamed into; holes
// read as zeros. The Stream that wrote them must have been closed.
func (w *Writer) Reader(from io.ReaderAt, d Data) io.Reader {
	if d.id == 0 {
		return io.LimitReader(nil, 0)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &dataReader{from: from, size: d.size, exts: []extent{{n: d.blocks, phys: d.start}}}
	if m := w.data.sparse[d.id]; m != nil {
		r.exts = m.extents
	}
	return r
}

// dataReader reads the contents of a Data, from their start.
type dataReader struct {
	from      io.ReaderAt
	exts      []extent // not left behind
	off, size int64
}

func (r *dataReader) Read(p []byte) (int, error) {
	if r.off >= r.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.size-r.off)]
	for len(r.exts) > 0 && r.off >= int64(r.exts[0].lblk+r.exts[0].n)*blockSize {
		r.exts = r.exts[1:]
	}
	if len(r.exts) > 0 && r.off >= int64(r.exts[0].lblk)*blockSize {
		e := r.exts[0]
		p = p[:min(int64(len(p)), int64(e.lblk+e.n)*blockSize-r.off)]
		n, err := r.from.ReadAt(p, r.off+(int64(e.phys)-int64(e.lblk))*blockSize)
		if n < len(p) && errors.Is(err, io.EOF) { // zeros at the end may not be written yet
			clear(p[n:])
			n, err = len(p), nil
		}
		r.off += int64(n)
		return n, err
	}
	if len(r.exts) > 0 {
		p = p[:min(int64(len(p)), int64(r.exts[0].lblk)*blockSize-r.off)]
	}
	clear(p)
	r.off += int64(len(p))
	return len(p), nil
}

// Mover brings contents from one image that is being written into another, as
// one that leaves dropped contents behind does.
type Mover struct {
	to, from *Writer
	src      *os.File
	dst      *os.File
	at, next int64 // what waits to be copied, in the source
	off      int64 // and where to
}

// NewMover copies from src, the file of from, to dst, the file of w. All
// Streams of from must be closed.
func (w *Writer) NewMover(dst *os.File, from *Writer, src *os.File) *Mover {
	return &Mover{to: w, from: from, src: src, dst: dst}
}

// Move allots a place for what from has as d, complete, and copies it there.
// It answers the faults of Allot, and fault.Bug for contents that are not
// complete.
func (m *Mover) Move(d Data) (Data, error) {
	if d.id == 0 {
		return Data{}, nil
	}
	m.from.mu.Lock()
	whole := m.from.data.done.has(d.id)
	var segs []Segment
	if s := m.from.data.sparse[d.id]; d.sparse && s != nil {
		segs = append([]Segment{}, s.segments...)
	}
	zeros := m.from.data.zeros[d.id]
	m.from.mu.Unlock()
	if !whole {
		return Data{}, fault.New(fault.Bug, "contents are moved before they were written")
	}
	to, err := m.to.Allot(d.size, segs)
	if err != nil {
		return Data{}, err
	}
	m.to.mu.Lock()
	m.to.data.done.set(to.id)
	for _, z := range zeros {
		m.to.data.zeros[to.id] = append(m.to.data.zeros[to.id], run{z.at - d.start + to.start, z.n})
	}
	m.to.mu.Unlock()
	if m.next != d.Offset() || to.Offset()-m.off != d.Offset()-m.at {
		if err := m.Flush(); err != nil {
			return Data{}, err
		}
		m.at, m.next, m.off = d.Offset(), d.Offset(), to.Offset()
	}
	m.next += d.Blocks() * blockSize
	return to, nil
}

// Flush copies what Move left to be copied in one piece. It must come last.
func (m *Mover) Flush() error {
	for m.at < m.next {
		n, err := m.copy()
		if err != nil {
			return m.to.writeError(err)
		}
		m.at += n
		m.off += n
	}
	return nil
}

// copy copies one part, and leaves the holes of the source's file holes.
func (m *Mover) copy() (int64, error) {
	switch data, err := unix.Seek(int(m.src.Fd()), m.at, unix.SEEK_DATA); {
	case errors.Is(err, unix.ENXIO):
		return m.next - m.at, nil // zeros up to the end of the file
	case err == nil && data > m.at:
		return min(data, m.next) - m.at, nil
	}
	end := m.next
	if hole, err := unix.Seek(int(m.src.Fd()), m.at, unix.SEEK_HOLE); err == nil && hole > m.at {
		end = min(end, hole)
	}
	from, to := m.at, m.off
	n, err := unix.CopyFileRange(int(m.src.Fd()), &from, int(m.dst.Fd()), &to, int(min(end-m.at, 1<<30)), 0)
	if err == nil && n > 0 {
		return int64(n), nil
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) {
		return 0, err
	}
	return m.copyPlain(end)
}

// copyPlain is for file systems that cannot copy by themselves.
func (m *Mover) copyPlain(end int64) (int64, error) {
	b := make([]byte, min(end-m.at, sinkBuffer))
	n, err := m.src.ReadAt(b, m.at)
	if n == 0 {
		return 0, err
	}
	_, err = m.dst.WriteAt(b[:n], m.off)
	return int64(n), err
}
