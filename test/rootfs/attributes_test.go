package rootfs_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// meta gives an entry its metadata.
func (g *generator) meta(e *entry) {
	r := g.r
	e.mode = pick(r, 0o644, 0o755, 0o600, 0o4755, 0o2755, 0o1777, 0, r.Uint32N(0o10000), r.Uint32N(0o10000))
	e.uid, e.gid = someID(r), someID(r)
	e.sec, e.nsec = someTime(r)
	if e.kind == char || e.kind == block {
		e.major, e.minor = r.Uint32N(4096), r.Uint32N(1<<20)
		if g.one(3) {
			e.major, e.minor = r.Uint32N(8), r.Uint32N(256)
		}
		if g.one(12) {
			e.major, e.minor = 0, 0 // an overlay's whiteout
		}
	}
	if e.kind != symlink && g.one(4) {
		e.xattrs = g.someXattrs(e.kind)
	}
}

func someID(r *rand.Rand) uint32 {
	return pick(r, 0, 0, 0, 1000, r.Uint32N(1<<16), 1<<16+r.Uint32N(1<<16), 1<<21-1, 1<<21, r.Uint32N(1<<32-1), 1<<32-2)
}

// someTime is never near now: what an unpacker leaves at its own time is told
// by that.
func someTime(r *rand.Rand) (sec, nsec int64) {
	sec = pick(r, 0, 1, 1e9, 1e9+r.Int64N(7e8), 1e9+r.Int64N(7e8), 1e9+r.Int64N(7e8), -1, -1-r.Int64N(1<<31), 1<<31-1, 1<<31, 1<<31+r.Int64N(1<<32), 1<<33-1, 1<<33+r.Int64N(1<<31))
	switch r.IntN(24) {
	case 0:
		sec = pick(r, -1<<31, -1<<31-1, -1<<31-r.Int64N(1<<31), 1<<34-1<<31-1, 1<<34-1<<31, 1<<34+r.Int64N(1<<34))
	case 1:
		sec = 10_737_418_240 + r.Int64N(1<<31) // what the format cannot hold in 2310 to 2378
	}
	if r.IntN(2) == 0 {
		nsec = pick(r, 1, 999_999_999, 500_000_000, r.Int64N(1e9))
	}
	return sec, nsec
}

// someXattrs returns attributes of the kinds that an entry can have.
func (g *generator) someXattrs(k kind) map[string]string {
	out := map[string]string{}
	if k == file || k == dir {
		for range 1 + g.r.IntN(4) {
			name := "user." + pick(g.r, "note", "a", "Ünicode", "with space", "dot.ted", strings.Repeat("n", 1+g.r.IntN(240)))
			if g.one(20) {
				name = "user.overlay.origin"
			}
			out[name] = g.value()
		}
	}
	if g.one(8) {
		out["trusted.note"] = "for root alone"
	}
	if k == file && g.one(3) {
		out[capability] = pick(g.r,
			"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
			"\x01\x00\x00\x03\x00\x20\x00\x00\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xe8\x03\x00\x00")
	}
	if g.one(3) {
		out[aclAccess] = g.acl()
	}
	if k == dir && g.one(3) {
		out[aclDefault] = g.acl()
	}
	return out
}

// value is at most as long as all of an entry's may be together.
func (g *generator) value() string {
	n := pick(g.r, 1, 4, 20, 60, 88, 92, 100, 300, 1000, 3800)
	if g.one(12) {
		n = pick(g.r, 4016, 4096, 9000, 12000)
	}
	if g.one(2) {
		return strings.Repeat(string(rune('a'+g.r.IntN(3))), n) // the same in many entries
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.r.IntN(256))
	}
	return string(b)
}

// acl is a valid one. Without names and mask it says no more than a mode.
func (g *generator) acl() string {
	perm := func() uint16 { return uint16(g.r.IntN(8)) }
	const none = 1<<32 - 1
	list := []aclEntry{{aclUserObj, perm(), none}}
	named := g.r.IntN(5)
	for i := range min(named, 2) {
		list = append(list, aclEntry{aclUser, perm(), uint32(1000 + i)})
	}
	list = append(list, aclEntry{aclGroupObj, perm(), none})
	if named > 2 {
		list = append(list, aclEntry{aclGroup, perm(), 70000})
	}
	if named > 0 {
		list = append(list, aclEntry{aclMask, perm(), none})
	}
	return packACL(append(list, aclEntry{aclOther, perm(), none}))
}

// contents gives a file its bytes, and a symlink its target.
func (g *generator) contents(e *entry) {
	switch e.kind {
	case symlink:
		e.link = g.target(e.name)
	case file:
		e.body = body{seed: 1 + g.r.Uint64N(1<<40), size: pick(g.r, 0, 1, 100, 511, 512, 4095, 4096, 4097, g.r.Int64N(20000), g.r.Int64N(20000))}
		switch {
		case g.one(40):
			e.body.size = g.r.Int64N(1 << 20)
		case g.one(12):
			e.body.seed, e.body.size = 0, g.r.Int64N(200_000)
		case g.one(7):
			g.sparseBody(&e.body)
		}
	}
}

func (g *generator) sparseBody(b *body) {
	b.sparse = pick(g.r, gnuOld, gnuOld, pax00, pax01, pax10)
	at := int64(0)
	step := pick(g.r, int64(100), 5000, 100_000)
	if g.one(3) { // as file systems have them
		step = 4096
	}
	for k := pick(g.r, 0, 1, 3, 4, 5, 25, 26, 60); k > 0; k-- {
		off, n := 1+g.r.Int64N(step), 1+g.r.Int64N(min(step, 9000))
		if step == 4096 {
			off, n = step*(1+g.r.Int64N(3)), step*(1+g.r.Int64N(2))
		}
		if at == 0 && g.one(2) {
			off = 0
		}
		b.segs = append(b.segs, segment{at + off, n})
		at += off + n
	}
	b.size = at
	if g.one(2) {
		b.size += 1 + g.r.Int64N(300_000)
	}
	if b.size == 0 {
		b.size = 5000
	}
}

// write chooses how the entry is written. An old format is given what it can
// say, often enough to matter.
func (g *generator) write(e *entry) {
	want := pick(g.r, pax, pax, pax, gnu, gnu, ustar, ustar, v7)
	if e.body.sparse == gnuOld {
		want = gnu
	} else if e.body.sparse != dense {
		want = pax
	}
	e.dialect = want
	if want == pax {
		return
	}
	simple := *e
	simple.nsec, simple.xattrs = 0, nil
	if want != gnu {
		simple.uid, simple.gid = e.uid&0xFFFF, e.gid&0xFFFF
		simple.sec = max(e.sec, 0)
	}
	if simple.fits(want) {
		*e = simple
		return
	}
	if e.dialect = pax; e.body.sparse == gnuOld {
		panic(fmt.Sprintf("%s fits no dialect", e))
	}
}
