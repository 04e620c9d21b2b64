package inflate

import (
	"errors"
	"hash/crc32"
	"io"
)

// maxText bounds the name and the comment in a header.
const maxText = 512

// Flags of a header.
const (
	hasSum = 1 << (iota + 1)
	hasExtra
	hasName
	hasComment
)

// header reads a member's header, of which nothing is kept.
func (r *Reader) header() error {
	h := headerReader{r: r}
	var fix [10]byte
	if h.read(fix[:]); h.err != nil {
		return h.err
	}
	if fix[0] != 0x1f || fix[1] != 0x8b || fix[2] != 8 {
		return ErrHeader
	}
	flags := fix[3]
	if flags&hasExtra != 0 {
		var n [2]byte
		h.read(n[:])
		h.read(make([]byte, int(n[0])|int(n[1])<<8))
	}
	for _, f := range []byte{hasName, hasComment} {
		if flags&f != 0 {
			h.text()
		}
	}
	if flags&hasSum != 0 {
		want := uint16(h.sum)
		var sum [2]byte
		h.read(sum[:])
		if h.err == nil && want != uint16(sum[0])|uint16(sum[1])<<8 {
			return ErrHeader
		}
	}
	return h.err
}

// headerReader reads until the first error. At the very beginning the end of
// the source is io.EOF, later it is io.ErrUnexpectedEOF.
type headerReader struct {
	r   *Reader
	sum uint32
	any bool
	err error
}

func (h *headerReader) read(p []byte) {
	if h.err != nil {
		return
	}
	_, h.err = io.ReadFull(h.r.src, p)
	if errors.Is(h.err, io.EOF) && h.any {
		h.err = io.ErrUnexpectedEOF
	}
	h.any = true
	h.sum = crc32.Update(h.sum, crc32.IEEETable, p)
}

// text passes over text that ends in a zero.
func (h *headerReader) text() {
	var b [1]byte
	for range maxText {
		if h.read(b[:]); h.err != nil || b[0] == 0 {
			return
		}
	}
	h.err = ErrHeader
}
