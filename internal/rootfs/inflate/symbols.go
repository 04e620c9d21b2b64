package inflate

import "encoding/binary"

// symbols decodes a block until its end, or until in or out have too little
// room for one more turn.
func (r *Reader) symbols() error {
	if err := r.fill(margin); err != nil {
		return err
	}
	in, pos, buf, n := r.in, r.pos, r.bits, r.n
	out, o := r.out, r.wr
	lit, dist := &r.codes.lit, &r.codes.dist
	lastIn, lastOut := len(in)-margin, len(out)-longest
	ended := false
	for pos <= lastIn && o < lastOut {
		buf |= binary.LittleEndian.Uint64(in[pos:]) << (n & 63)
		pos += int((63 - n) >> 3)
		n |= 56
		// Three literals of the first table take 33 bits.
		e := lit[buf&(1<<litBits-1)]
		if e&isLiteral != 0 {
			buf >>= e & 63
			n -= uint(e & dropMask)
			out[o] = byte(e >> valueShift)
			o++
			e = lit[buf&(1<<litBits-1)]
			if e&isLiteral != 0 {
				buf >>= e & 63
				n -= uint(e & dropMask)
				out[o] = byte(e >> valueShift)
				o++
				e = lit[buf&(1<<litBits-1)]
				if e&isLiteral != 0 {
					buf >>= e & 63
					n -= uint(e & dropMask)
					out[o] = byte(e >> valueShift)
					o++
					continue
				}
			}
		}
		if e&isOdd != 0 {
			if e&isPointer != 0 {
				buf >>= e & 63
				n -= uint(e & dropMask)
				e = lit[uint64(e>>valueShift&valueMask)+buf&(1<<(e>>8&15)-1)]
			}
			if e&isLiteral != 0 {
				buf >>= e & 63
				n -= uint(e & dropMask)
				out[o] = byte(e >> valueShift)
				o++
				continue
			}
			if e&isOdd != 0 {
				buf >>= e & 63
				n -= uint(e & dropMask)
				if e&isEnd == 0 {
					return r.spoiled(pos, n, "a symbol without a code")
				}
				ended = true
				break
			}
		}
		length := int(e>>valueShift) + int(buf&(1<<(e&63)-1)>>(e>>8&15))
		buf >>= e & 63
		n -= uint(e & dropMask)

		buf |= binary.LittleEndian.Uint64(in[pos:]) << (n & 63)
		pos += int((63 - n) >> 3)
		n |= 56
		e = dist[buf&(1<<distBits-1)]
		if e&isOdd != 0 {
			if e&isPointer == 0 {
				return r.spoiled(pos, n, "a distance without a code")
			}
			buf >>= e & 63
			n -= uint(e & dropMask)
			e = dist[uint64(e>>valueShift&valueMask)+buf&(1<<(e>>8&15)-1)]
			if e&isOdd != 0 {
				return r.spoiled(pos, n, "a distance without a code")
			}
		}
		back := int(e>>valueShift) + int(buf&(1<<(e&63)-1)>>(e>>8&15))
		buf >>= e & 63
		n -= uint(e & dropMask)
		if back > o {
			return r.spoiled(pos, n, "a match that begins before the stream")
		}
		from, to := o-back, o+length
		switch {
		case back >= 16:
			// There is room for what the last one writes too much.
			*(*[16]byte)(out[o:]) = *(*[16]byte)(out[from:])
			for o += 16; o < to; o += 16 {
				from += 16
				*(*[16]byte)(out[o:]) = *(*[16]byte)(out[from:])
			}
		case back >= 8:
			for ; o < to; o += 8 {
				*(*[8]byte)(out[o:]) = *(*[8]byte)(out[from:])
				from += 8
			}
		case back == 1:
			word := uint64(out[from]) * 0x0101010101010101
			for ; o < to; o += 8 {
				binary.LittleEndian.PutUint64(out[o:], word)
			}
		default:
			for ; o < to; o++ {
				out[o] = out[o-back]
			}
		}
		o = to
	}
	r.pos, r.bits, r.n, r.wr = pos, buf, n, o
	if ended {
		r.state = atBlock
	}
	return r.check()
}

// spoiled says what is wrong, unless it is that the stream ended before.
func (r *Reader) spoiled(pos int, n uint, what string) error {
	r.pos, r.n = pos, n
	if err := r.check(); err != nil {
		return err
	}
	return damaged("%s", what)
}
