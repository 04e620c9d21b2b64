package inflate

import (
	"math/bits"
	"sync"
)

const (
	litBits  = 11 // of the first table of literals and lengths
	distBits = 8  // of the first table of distances
	lenBits  = 7  // of the only table of lengths of codes

	maxLit  = 286 // symbols that a block may have codes for
	maxDist = 30
	eob     = 256 // end of block
)

// An entry of a table says what the next bits mean:
//
//	0-7    bits to drop: the code, and the extra bits behind it
//	8-11   bits of the code; of a pointer, bits of the second table
//	13     end of block
//	14     pointer: bits 16-30 are where its second table begins
//	15     none of a length or distance: end, pointer, or no code
//	16-30  literal, or what length or distance begin with
//	31     literal
const (
	isLiteral  = 1 << 31
	isOdd      = 1 << 15
	isPointer  = 1 << 14
	isEnd      = 1 << 13
	dropMask   = 0xFF
	valueShift = 16
	valueMask  = 0x7FFF
)

// codes are the tables of one block. They are as large as any codes can make
// them: a second table of 2^k entries needs k+1 symbols.
type codes struct {
	lit  [4096]uint32
	dist [1024]uint32
	deep [1 << litBits]uint8 // for build: longest code below each entry of the first table
}

// Entries of symbols, but for the bits of their codes.
var litEntries, distEntries = func() (lit [288]uint32, dist [32]uint32) {
	for s := range eob {
		lit[s] = isLiteral | uint32(s)<<valueShift
	}
	lit[eob] = isOdd | isEnd
	base := 3
	for s := range 28 {
		extra := max(s/4-1, 0)
		lit[257+s] = uint32(base)<<valueShift | uint32(extra)
		base += 1 << extra
	}
	lit[285] = 258 << valueShift
	lit[286], lit[287] = isOdd, isOdd // only the fixed code has them
	base = 1
	for s := range 30 {
		extra := max(s/2-1, 0)
		dist[s] = uint32(base)<<valueShift | uint32(extra)
		base += 1 << extra
	}
	dist[30], dist[31] = isOdd, isOdd
	return lit, dist
}()

var lenEntries = func() (e [19]uint32) {
	for s := range e {
		e[s] = uint32(s) << valueShift
	}
	return e
}()

var fixed = sync.OnceValue(func() *codes {
	var lengths [288]uint8
	for s := range lengths {
		switch {
		case s < 144:
			lengths[s] = 8
		case s < 256:
			lengths[s] = 9
		case s < 280:
			lengths[s] = 7
		default:
			lengths[s] = 8
		}
	}
	c := &codes{}
	build(c.lit[:], &c.deep, litBits, lengths[:], litEntries[:])
	for s := range 32 {
		lengths[s] = 5
	}
	build(c.dist[:], &c.deep, distBits, lengths[:32], distEntries[:])
	return c
})

// build fills a table for symbols with codes of these lengths. It refuses
// lengths that no code has: too many codes, or too few but for a single one of
// one bit, or none at all.
func build(table []uint32, deep *[1 << litBits]uint8, first uint, lengths []uint8, entries []uint32) bool {
	var count, next [16]int
	for _, l := range lengths {
		count[l]++
	}
	count[0] = 0
	used, longest := 0, 0
	code := 0
	for l := 1; l < 16; l++ {
		code <<= 1
		next[l] = code
		code += count[l]
		if count[l] > 0 {
			longest = l
		}
		used += count[l] << (15 - l)
	}
	whole := used == 1<<15
	if !whole {
		if longest > 1 || used > 1<<15 {
			return false
		}
		for i := range table[:1<<first] {
			table[i] = isOdd
		}
	}
	if longest > int(first) {
		secondTables(table, deep, first, lengths, next)
	}
	mask := uint(1)<<first - 1
	for s, l := range lengths {
		if l == 0 {
			continue
		}
		code := uint(bits.Reverse16(uint16(next[l]))) >> (16 - l)
		next[l]++
		e := entries[s]
		extra := e & dropMask
		if uint(l) <= first {
			e = e&^dropMask | uint32(l)<<8 | (uint32(l) + extra)
			for i := code; i <= mask; i += 1 << l {
				table[i] = e
			}
			continue
		}
		rest := uint32(l) - uint32(first)
		e = e&^dropMask | rest<<8 | (rest + extra)
		at := uint(table[code&mask] >> valueShift & valueMask)
		for i := code >> first; i < 1<<deep[code&mask]; i += 1 << rest {
			table[at+i] = e
		}
	}
	return true
}

// secondTables puts pointers to second tables into the first, and into deep how
// many bits each has.
func secondTables(table []uint32, deep *[1 << litBits]uint8, first uint, lengths []uint8, next [16]int) {
	clear(deep[:1<<first])
	for _, l := range lengths {
		if uint(l) <= first {
			next[l]++
			continue
		}
		code := uint(bits.Reverse16(uint16(next[l]))) >> (16 - l)
		next[l]++
		p := &deep[code&(1<<first-1)]
		*p = max(*p, l-uint8(first))
	}
	at := uint32(1) << first
	for i, d := range deep[:1<<first] {
		if d > 0 {
			table[i] = isOdd | isPointer | at<<valueShift | uint32(d)<<8 | uint32(first)
			at += 1 << d
		}
	}
}

// order in which the lengths of the code of lengths stand.
var order = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// readCodes reads the codes of a block. All of it is in r.in, or zeros.
func (r *Reader) readCodes() error {
	lit, dist, lens := int(r.take(5))+257, int(r.take(5))+1, int(r.take(4))+4
	if lit > maxLit || dist > maxDist {
		return damaged("a block with codes for %d and %d symbols", lit, dist)
	}
	var own [19]uint8
	for _, s := range order[:lens] {
		r.refill()
		own[s] = uint8(r.take(3))
	}
	var table [1 << lenBits]uint32
	if !build(table[:], &r.own.deep, lenBits, own[:], lenEntries[:]) {
		return damaged("the code of a block's lengths")
	}
	var lengths [maxLit + maxDist]uint8
	for i := 0; i < lit+dist; {
		r.refill()
		e := table[r.bits&(1<<lenBits-1)]
		r.take(uint(e & dropMask))
		s := e >> valueShift & valueMask
		if e&isOdd != 0 {
			return damaged("a length without a code")
		}
		if s < 16 {
			lengths[i] = uint8(s)
			i++
			continue
		}
		var value uint8
		var n int
		switch s {
		case 16:
			if i == 0 {
				return damaged("a length like the one before the first")
			}
			value, n = lengths[i-1], 3+int(r.take(2))
		case 17:
			n = 3 + int(r.take(3))
		default:
			n = 11 + int(r.take(7))
		}
		if i+n > lit+dist {
			return damaged("more lengths than symbols")
		}
		for range n {
			lengths[i] = value
			i++
		}
	}
	if !build(r.own.lit[:], &r.own.deep, litBits, lengths[:lit], litEntries[:]) || !build(r.own.dist[:], &r.own.deep, distBits, lengths[lit:lit+dist], distEntries[:]) {
		return damaged("the codes of a block")
	}
	return nil
}
