package rootfs

// slab is a list that grows without moving, so that a million entries never
// need room for two million. Item 0 is there from the start and means none.
type slab[T any] struct {
	parts [][]T
	n     int
}

const slabPart = 1 << 11

// add appends v and returns its number, which is never 0.
func (s *slab[T]) add(v T) uint32 {
	if s.n == 0 {
		s.n = 1
	}
	if s.n > len(s.parts)*slabPart-1 {
		s.parts = append(s.parts, make([]T, slabPart))
	}
	s.parts[s.n/slabPart][s.n%slabPart] = v
	s.n++
	return uint32(s.n - 1)
}

func (s *slab[T]) at(i uint32) *T { return &s.parts[i/slabPart][i%slabPart] }

// end is one more than the last number.
func (s *slab[T]) end() uint32 { return uint32(s.n) }

// arena keeps short texts.
type arena struct {
	parts [][]byte
	used  int // of the last part
	total int64
}

const arenaPart = 64 << 10

// put keeps s, which has at most arenaPart bytes, and returns where.
func (a *arena) put(s string) uint64 {
	if len(a.parts) == 0 || a.used+len(s) > arenaPart {
		a.parts = append(a.parts, make([]byte, arenaPart))
		a.used = 0
	}
	last := len(a.parts) - 1
	at := uint64(last)*arenaPart + uint64(a.used)
	copy(a.parts[last][a.used:], s)
	a.used += len(s)
	a.total += int64(len(s))
	return at
}

// get returns n bytes. They stay the arena's.
func (a *arena) get(at uint64, n int) []byte {
	from := int(at % arenaPart)
	return a.parts[at/arenaPart][from : from+n : from+n]
}
