package scheduler

import "hash/fnv"

// ranked is a fit host, by its index in the view, and what it scored.
type ranked struct {
	at    int32
	score float64
}

// picker returns the positions in list of the chosen host and of the runner-up;
// the latter is -1 when there is none. list is never empty.
type picker func(c *cycle, list []ranked) (best, second int)

var pickers = map[string]picker{"highest": highest}

// highest takes the best score. Equal scores are told apart by a hash of seed
// and host, so that ties spread over the fleet and yet repeat.
func highest(c *cycle, list []ranked) (best, second int) {
	best, second = 0, -1
	for k := 1; k < len(list); k++ {
		switch {
		case c.better(list[k], list[best]):
			best, second = k, best
		case second < 0 || c.better(list[k], list[second]):
			second = k
		}
	}
	return best, second
}

func (c *cycle) better(a, b ranked) bool {
	if a.score != b.score {
		return a.score > b.score
	}
	return c.lot(a.at) > c.lot(b.at)
}

// lot is what host at draws in a tie.
func (c *cycle) lot(at int32) uint64 {
	h := fnv.New64a()
	var seed [8]byte
	for i := range seed {
		seed[i] = byte(c.req.Seed >> (8 * i))
	}
	_, _ = h.Write(seed[:]) // a hash never fails
	_, _ = h.Write([]byte(c.view.hosts[at].ID))
	// The low bits of FNV mix last; one round of a finalizer spreads them.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

func compareDown(a, b float64) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}
