package ext4

// slab is a list that grows without moving, so that a million entries never
// need room for two million.
type slab[T any] struct {
	parts [][]T
	n     int
}

const slabPart = 2048

func (s *slab[T]) add(v T) int {
	if s.n == len(s.parts)*slabPart {
		s.parts = append(s.parts, make([]T, slabPart))
	}
	s.parts[s.n/slabPart][s.n%slabPart] = v
	s.n++
	return s.n - 1
}

func (s *slab[T]) at(i int) *T { return &s.parts[i/slabPart][i%slabPart] }

// arena keeps short byte strings. An address is given back by put.
type arena struct {
	parts [][]byte
	used  int // of the last part
}

const arenaPart = 64 << 10

// room makes room for n bytes, at most arenaPart.
func (a *arena) room(n int) (at uint64, b []byte) {
	if len(a.parts) == 0 || a.used+n > arenaPart {
		a.parts = append(a.parts, make([]byte, arenaPart))
		a.used = 0
	}
	at = uint64(len(a.parts)-1)*arenaPart + uint64(a.used)
	a.used += n
	return at, a.get(at, n)
}

// put keeps s, at most arenaPart long.
func (a *arena) put(s string) uint64 {
	at, b := a.room(len(s))
	copy(b, s)
	return at
}

// size is how many bytes it holds.
func (a *arena) size() int64 { return int64(len(a.parts)) * arenaPart }

func (a *arena) get(at uint64, n int) []byte {
	from := int(at % arenaPart)
	return a.parts[at/arenaPart][from : from+n : from+n]
}
