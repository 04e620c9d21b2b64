// Package inflate decompresses gzip, as fast as one processor can.
//
// A layer is one stream, and everything behind it waits for it. So this decoder
// trades memory and simplicity for time: it takes 64 bits at once, tells most
// symbols with one look into a table, and keeps its window in a row. It refuses
// what the standard library refuses. It must never take a byte that lies behind
// the member that it reads, nor believe a number that it did not check.
package inflate

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var (
	// ErrHeader says that there is no gzip header.
	ErrHeader = errors.New("no gzip header")
	// ErrDamaged is in every error about bytes that no compressor writes.
	ErrDamaged = errors.New("damaged gzip stream")
)

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

const (
	history = 32 << 10 // how far back a match may lie
	fresh   = 128 << 10
	// longest is what one turn of the loop may write: literals, a match, and
	// what a copy in words writes beyond it.
	longest = 3 + 258 + 32
	// margin is what a turn may read.
	margin = 32
	// headRoom is the most that a block says of itself: counts, the lengths of
	// the code of lengths, and 316 lengths of up to 14 bits.
	headRoom = 1 << 10
)

// Reader reads one member of a gzip stream. It is for one goroutine.
type Reader struct {
	src *bufio.Reader
	in  []byte // what src holds, or the last of it with zeros behind
	pos int    // of the next byte of in that is not in bits
	end int    // bytes of in that are real
	// bits has the next n bits of the stream, the first lowest. Above them may be
	// some that are in the next byte of in as well.
	bits uint64
	n    uint
	last bool // in has all that is left of src

	out    []byte // history, and what comes after it
	rd, wr int    // what was not given out yet

	state  state
	final  bool // the block that is read is the last one
	stored int  // bytes left of a block that is not compressed
	codes  *codes
	own    codes // of a block with codes of its own

	sum  uint32
	size uint32
	err  error
}

// state is what comes next.
type state uint8

const (
	atBlock state = iota
	inStored
	inCodes
	atTrailer
)

// NewReader reads the header of a member from src, whose buffer must have 2 KiB
// at least. When Read returns io.EOF, src stands behind the member's trailer.
func NewReader(src *bufio.Reader) (*Reader, error) {
	r := &Reader{out: make([]byte, history+fresh+longest)}
	return r, r.Reset(src)
}

// Reset begins anew with the header of a member in src. It returns io.EOF when
// src is at its end.
func (r *Reader) Reset(src *bufio.Reader) error {
	*r = Reader{src: src, out: r.out, own: r.own}
	r.err = r.header()
	return r.err
}

// Read reads what the member holds. Before io.EOF all of it was compared with
// the member's checksum.
func (r *Reader) Read(p []byte) (int, error) {
	for r.rd == r.wr {
		if r.err != nil {
			return 0, r.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		r.err = r.more()
	}
	n := copy(p, r.out[r.rd:r.wr])
	r.rd += n
	return n, nil
}

// more decodes until the window is full, or an end or error comes. Everything
// in the window was given out.
func (r *Reader) more() error {
	if r.wr > history {
		copy(r.out, r.out[r.wr-history:r.wr])
		r.wr = history
	}
	r.rd = r.wr
	if err := r.decode(); err != nil {
		r.wr = r.rd // zeros behind the end may be in it
		return err
	}
	if err := r.pass(); err != nil {
		return err
	}
	r.sum = crc32.Update(r.sum, crc32.IEEETable, r.out[r.rd:r.wr])
	r.size += uint32(r.wr - r.rd)
	if r.state == atTrailer {
		return r.trailer()
	}
	return nil
}

func (r *Reader) decode() error {
	for r.state != atTrailer && r.wr < len(r.out)-longest {
		var err error
		switch r.state {
		case atBlock:
			err = r.block()
		case inStored:
			err = r.copyStored()
		case inCodes:
			err = r.symbols()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill makes in hold at least want bytes behind pos, of which those behind the
// end of src are zeros.
func (r *Reader) fill(want int) error {
	if len(r.in)-r.pos >= want {
		return nil
	}
	if r.last {
		// Only what looked at zeros for real bytes comes here.
		return io.ErrUnexpectedEOF
	}
	if err := r.pass(); err != nil {
		return err
	}
	held := r.pos
	_, err := r.src.Peek(held + want)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	r.in, _ = r.src.Peek(r.src.Buffered()) // what is buffered is there
	r.pos, r.end = held, len(r.in)
	if err != nil {
		r.in = append(append(make([]byte, 0, r.end+2*headRoom), r.in...), make([]byte, 2*headRoom)...)
		r.last = true
	}
	return nil
}

// pass takes from src what was decoded, so that it can be told how much of the
// stream was needed until here. Whole bytes in bits may be given back yet.
func (r *Reader) pass() error {
	held := int(r.n / 8)
	done := r.pos - held
	if _, err := r.src.Discard(done); err != nil {
		return err
	}
	r.in, r.pos, r.end = r.in[done:], held, r.end-done
	return nil
}

// check refuses what was decoded from bytes behind the end.
func (r *Reader) check() error {
	if r.pos-int(r.n/8) > r.end {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// refill makes sure of 56 bits. There are 8 bytes behind pos.
func (r *Reader) refill() {
	r.bits |= binary.LittleEndian.Uint64(r.in[r.pos:]) << (r.n & 63)
	r.pos += int((63 - r.n) >> 3)
	r.n |= 56
}

// take returns the next n bits; there are that many.
func (r *Reader) take(n uint) uint {
	v := uint(r.bits & (1<<n - 1))
	r.bits >>= n
	r.n -= n
	return v
}

// align drops the bits up to the next whole byte, and gives whole bytes back.
func (r *Reader) align() {
	r.pos -= int(r.n / 8)
	r.bits, r.n = 0, 0
}

// block reads what a block says of itself.
func (r *Reader) block() error {
	if r.final {
		r.align()
		r.state = atTrailer
		return r.check()
	}
	if err := r.fill(headRoom); err != nil {
		return err
	}
	err := r.start()
	if late := r.check(); late != nil {
		return late
	}
	return err
}

// start enters the block. All that it says of itself is in r.in, or zeros.
func (r *Reader) start() error {
	r.refill()
	r.final = r.take(1) == 1
	switch r.take(2) {
	case 0:
		r.align()
		size, not := binary.LittleEndian.Uint16(r.in[r.pos:]), binary.LittleEndian.Uint16(r.in[r.pos+2:])
		r.pos += 4
		if size != ^not {
			return damaged("the size of a stored block")
		}
		r.stored, r.state = int(size), inStored
	case 1:
		r.codes, r.state = fixed(), inCodes
	case 2:
		r.codes, r.state = &r.own, inCodes
		return r.readCodes()
	default:
		return damaged("a block of a kind that does not exist")
	}
	return nil
}

// copyStored passes on a block that is not compressed.
func (r *Reader) copyStored() error {
	for r.stored > 0 && r.wr < len(r.out)-longest {
		if r.pos == r.end && r.last {
			return io.ErrUnexpectedEOF
		}
		if err := r.fill(1); err != nil {
			return err
		}
		n := copy(r.out[r.wr:len(r.out)-longest], r.in[r.pos:min(r.end, r.pos+r.stored)])
		r.pos, r.wr, r.stored = r.pos+n, r.wr+n, r.stored-n
	}
	if r.stored == 0 {
		r.state = atBlock
	}
	return nil
}

// trailer compares the sums, and gives back what lies behind the member.
func (r *Reader) trailer() error {
	if err := r.fill(8); err != nil {
		return err
	}
	sum, size := binary.LittleEndian.Uint32(r.in[r.pos:]), binary.LittleEndian.Uint32(r.in[r.pos+4:])
	r.pos += 8
	if err := r.check(); err != nil {
		return err
	}
	if _, err := r.src.Discard(r.pos); err != nil {
		return err
	}
	if sum != r.sum || size != r.size {
		return damaged("its checksum or size is not that of its bytes")
	}
	return io.EOF
}
