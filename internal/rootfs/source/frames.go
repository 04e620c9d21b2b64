package source

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"github.com/paddock-dev/paddock/internal/fault"
)

// frames passes zstd frames on to a decoder, and follows their structure to
// know where each one ends. The decoder alone takes up to three bytes after the
// last frame for its end, and makes a window before it is asked whether it may.
type frames struct {
	from   *bufio.Reader
	window int64

	section int   // bytes of the current part that are still to pass
	at      stage // what follows it
	sum     bool  // the frame ends with a checksum
}

// stage is what comes next in the stream.
type stage uint8

const (
	atFrame stage = iota
	atBlock
	atSum
)

// errCutShort is not io.ErrUnexpectedEOF, which the decoder takes for the end
// where a frame might begin.
var errCutShort = fault.New(fault.LayerArchive, "its compressed bytes end in the middle")

const (
	frameHeader = 18 // bytes at most: magic, descriptor, window, dictionary, size
	blockHeader = 3
	blockRLE    = 1
)

func (f *frames) Read(p []byte) (int, error) {
	for f.section == 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	n, err := f.from.Read(p[:min(len(p), f.section)])
	f.section -= n
	if errors.Is(err, io.EOF) {
		err = errCutShort // a section was promised
	}
	return n, err
}

// next finds how long the next part is.
func (f *frames) next() error {
	switch f.at {
	case atFrame:
		return f.frame()
	case atBlock:
		return f.block()
	}
	f.section, f.at = 4, atFrame
	return nil
}

// frame reads a frame's header, and skips frames that hold no data.
func (f *frames) frame() error {
	b, err := f.from.Peek(frameHeader)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case len(b) == 0:
		return io.EOF
	case isSkippable(b):
		return f.skip()
	case len(b) < 4 || !isFrame(b[:4]):
		return fault.New(fault.LayerTrailing, "bytes follow its zstd stream")
	case len(b) < 6:
		return errCutShort
	}
	head := b[4]
	single := head&(1<<5) != 0
	f.sum = head&(1<<2) != 0
	dictionary := [...]int{0, 1, 2, 4}[head&3]
	size := [...]int{0, 2, 4, 8}[head>>6]
	if single && size == 0 {
		size = 1
	}
	n := 5
	if !single {
		n++
	}
	if len(b) < n+dictionary+size {
		return errCutShort
	}
	if dictionary > 0 && number(b[n:n+dictionary]) != 0 {
		return fault.New(fault.LayerMedia, "its zstd stream needs a dictionary")
	}
	window := number(b[n+dictionary : n+dictionary+size])
	if !single {
		base := uint64(1) << (10 + b[5]>>3)
		window = base + base/8*uint64(b[5]&7)
	}
	if window > uint64(f.window) {
		return fault.New(fault.LayerWindow, "its zstd stream asks for a window of %d bytes, at most %d are given", window, f.window)
	}
	f.section, f.at = n+dictionary+size, atBlock
	return nil
}

// number reads little-endian bytes, at most eight.
func number(b []byte) uint64 {
	var all [8]byte
	copy(all[:], b)
	return binary.LittleEndian.Uint64(all[:])
}

// skip passes over a frame that holds no data; its size is that of what was
// read, not what it says.
func (f *frames) skip() error {
	b, err := f.from.Peek(8)
	if len(b) < 8 {
		if errors.Is(err, io.EOF) {
			err = errCutShort
		}
		return err
	}
	n := int64(8) + int64(binary.LittleEndian.Uint32(b[4:]))
	_, err = io.CopyN(io.Discard, f.from, n)
	if errors.Is(err, io.EOF) {
		err = errCutShort
	}
	return err
}

func (f *frames) block() error {
	b, err := f.from.Peek(blockHeader)
	if len(b) < blockHeader {
		if errors.Is(err, io.EOF) {
			err = errCutShort
		}
		return err
	}
	head := number(b)
	size := int(head >> 3)
	if head>>1&3 == blockRLE {
		size = 1
	}
	f.section = blockHeader + size
	if head&1 != 0 { // the last one
		f.at = atFrame
		if f.sum {
			f.at = atSum
		}
	}
	return nil
}
