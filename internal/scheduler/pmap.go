package scheduler

import (
	"hash/maphash"
	"maps"
)

// shards is how many small maps a pmap is made of: a change copies one of them.
const shards = 64

// shardSeed spreads keys over shards. It decides nothing that can be seen:
// nobody walks a pmap.
var shardSeed = maphash.MakeSeed()

// pmap is a map that is copied by sharing. A reader's copy never changes; a
// writer copies each shard before its first change of it.
type pmap[K comparable, V any] struct {
	shard [shards]map[K]V
}

func (m *pmap[K, V]) get(k K) (V, bool) {
	v, ok := m.shard[maphash.Comparable(shardSeed, k)%shards][k]
	return v, ok
}

// writer changes a copy of a pmap.
type writer[K comparable, V any] struct {
	*pmap[K, V]
	own uint64 // one bit for each shard that was copied
}

func (m *pmap[K, V]) write() writer[K, V] {
	clone := *m
	return writer[K, V]{pmap: &clone}
}

func (w *writer[K, V]) at(k K) map[K]V {
	s := maphash.Comparable(shardSeed, k) % shards
	if w.own&(1<<s) == 0 {
		w.own |= 1 << s
		if w.shard[s] = maps.Clone(w.shard[s]); w.shard[s] == nil {
			w.shard[s] = map[K]V{}
		}
	}
	return w.shard[s]
}

func (w *writer[K, V]) set(k K, v V) { w.at(k)[k] = v }
func (w *writer[K, V]) drop(k K)     { delete(w.at(k), k) }
