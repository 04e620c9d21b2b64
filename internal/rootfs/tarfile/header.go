package tarfile

import (
	"bytes"
	"encoding/binary"
)

const blockSize = 512

// header is a header block.
type header [blockSize]byte

// The fields of a header, in the order in which they lie.
func (h *header) name() []byte     { return h[:100] }
func (h *header) mode() []byte     { return h[100:108] }
func (h *header) uid() []byte      { return h[108:116] }
func (h *header) gid() []byte      { return h[116:124] }
func (h *header) size() []byte     { return h[124:136] }
func (h *header) mtime() []byte    { return h[136:148] }
func (h *header) checksum() []byte { return h[148:156] }
func (h *header) typeflag() byte   { return h[156] }
func (h *header) linkname() []byte { return h[157:257] }
func (h *header) magic() []byte    { return h[257:265] } // with the version
func (h *header) major() []byte    { return h[329:337] }
func (h *header) minor() []byte    { return h[337:345] }

// Of the ustar format, and of star's, which has times behind a shorter prefix.
func (h *header) prefix() []byte      { return h[345:500] }
func (h *header) starPrefix() []byte  { return h[345:476] }
func (h *header) starTrailer() []byte { return h[508:512] }

// Of the old GNU format.
func (h *header) gnuAtime() []byte    { return h[345:357] }
func (h *header) gnuCtime() []byte    { return h[357:369] }
func (h *header) gnuSparse() []byte   { return h[386:482] }
func (h *header) gnuExtended() byte   { return h[482] }
func (h *header) gnuRealSize() []byte { return h[483:495] }
func (h *header) moreSparse() []byte  { return h[:504] } // of an extension block
func (h *header) moreExtended() byte  { return h[504] }
func (h *header) posix() bool         { return string(h.magic()[:6]) == "ustar\x00" }
func (h *header) gnu() bool           { return string(h.magic()) == "ustar  \x00" }
func (h *header) star() bool          { return h.posix() && string(h.starTrailer()) == "tar\x00" }

// sum adds up the bytes of the block. Four sums of 16 bits run side by side:
// 64 words add at most 64 * 2 * 255 to each.
func (h *header) sum() int64 {
	const low = 0x00FF00FF00FF00FF
	var lanes uint64
	for i := 0; i < blockSize; i += 8 {
		w := binary.LittleEndian.Uint64(h[i:])
		lanes += w&low + w>>8&low
	}
	return int64(lanes&0xFFFF + lanes>>16&0xFFFF + lanes>>32&0xFFFF + lanes>>48)
}

// valid compares the block's checksum, over unsigned or signed bytes, with
// sum, the sum of all its bytes.
func (h *header) valid(sum int64) bool {
	want, ok := octal(h.checksum())
	if !ok {
		return false
	}
	for _, c := range h.checksum() {
		sum += ' ' - int64(c)
	}
	if sum == want {
		return true
	}
	for i, c := range h {
		if c >= 0x80 && (i < 148 || i >= 156) {
			sum -= 256
		}
	}
	return sum == want
}

// text is a field up to its first NUL.
func text(field []byte) []byte {
	if i := bytes.IndexByte(field, 0); i >= 0 {
		return field[:i]
	}
	return field
}

// number reads a numeric field: octal digits or, if its first bit is set, a
// big-endian two's complement number.
func number(b []byte) (int64, bool) {
	if b[0]&0x80 == 0 {
		return octal(b)
	}
	// The first bit marks the form, the second one is the sign.
	first, fill := b[0]&0x7F, byte(0)
	if b[0]&0x40 != 0 {
		first, fill = b[0], 0xFF
	}
	head, tail := b[:len(b)-8], b[len(b)-8:]
	n := binary.BigEndian.Uint64(tail)
	if len(head) == 0 {
		n = n&^(0xFF<<56) | uint64(first)<<56
	}
	for i, c := range head {
		if i == 0 {
			c = first
		}
		if c != fill {
			return 0, false
		}
	}
	return int64(n), byte(int64(n)>>63) == fill
}

// octal reads octal digits behind spaces. Spaces and NULs may follow, and
// anything behind a NUL. A field without digits is 0, but only if nothing else
// is in it: readers that skip a NUL at the start would find another number.
func octal(b []byte) (int64, bool) {
	i := 0
	for i < len(b) && b[i] == ' ' {
		i++
	}
	var n int64
	start := i
	for ; i < len(b) && b[i]-'0' < 8; i++ {
		n = n<<3 | int64(b[i]-'0')
	}
	blank := i == start
	for ; i < len(b); i++ {
		switch {
		case b[i] == 0 && !blank:
			return n, true
		case b[i] != ' ' && b[i] != 0:
			return 0, false
		}
	}
	return n, true
}

// decimal reads a number of a PAX record: digits only, below 1<<63.
func decimal(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 64 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		d := int64(c - '0')
		if c < '0' || c > '9' || n > (1<<63-1-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}
