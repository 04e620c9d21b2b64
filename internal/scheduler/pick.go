package scheduler

import (
	"cmp"
	"slices"
	"sort"
)

// pick takes one of the fit hosts. choose returns the index of its choice in
// list: the best of the fit hosts, best first, as many as the profile says; or
// all of them, in no order. Without it, the best is taken.
type pick struct {
	choose func(c *cycle, list []ranked) int
}

var pickers = map[string]pick{
	"highest":   {},
	"random":    {choose: func(c *cycle, list []ranked) int { return int(c.roll(0) % uint64(len(list))) }},
	"weighted":  {choose: weighted},
	"best_of_k": {choose: bestOf},
	"spread":    {choose: fewest},
	// The weighted picks of other systems have the same shares in the long run.
	"sw": {choose: weighted}, "rw": {choose: weighted}, "rrw": {choose: weighted},
}

// roll is the n-th random number of this decision.
func (c *cycle) roll(n uint64) uint64 { return mix(c.seed + (n+1)*0x9e3779b97f4a7c15) }

// weighted takes each host with the probability of its score.
func weighted(c *cycle, list []ranked) int {
	var sum uint64
	for _, r := range list {
		sum += tickets(r)
	}
	at := c.roll(0) % sum // a sum is far below 2^64: the bias is nothing
	for i, r := range list {
		n := tickets(r)
		if at < n {
			return i
		}
		at -= n
	}
	return len(list) - 1
}

// tickets is never 0: a host without a score may be drawn.
func tickets(r ranked) uint64 { return uint64(max(0, r.score)*1e6) + 1 }

// bestOf looks at some hosts and takes the best of them.
func bestOf(c *cycle, list []ranked) int {
	best := int(c.roll(0) % uint64(len(list)))
	for n := 1; n < c.prof.bestOf; n++ {
		if i := int(c.roll(uint64(n)) % uint64(len(list))); c.better(list[i], list[best]) {
			best = i
		}
	}
	return best
}

// fewest takes the host with the fewest sandboxes.
func fewest(c *cycle, list []ranked) int {
	best := 0
	for i := 1; i < len(list); i++ {
		a, b := c.crowd(list[i].at), c.crowd(list[best].at)
		if a < b || a == b && c.better(list[i], list[best]) {
			best = i
		}
	}
	return best
}

func (c *cycle) crowd(n int32) int64 {
	return c.view.pages[n/lanes].sandboxes[n%lanes] + c.ledger.page(int(n / lanes)).open[n%lanes]
}

// choose lets the pick choose from the list of fit hosts, and returns its
// choice and the best of the others.
func (c *cycle) choose(d *Decision) (best, second ranked) {
	plain := slices.Clone(c.list)
	// Lanes are a matter of who came when: an order of the hosts' own lets the
	// same hosts and seed give the same choice in any view.
	slices.SortFunc(c.list, func(a, b ranked) int { return cmp.Compare(c.lot(a.at), c.lot(b.at)) })
	if c.prof.plus > 0 || c.prof.minus > 0 {
		c.whiteLists()
	}
	if c.req.Explain {
		c.explainScores(d)
	}
	if c.prof.pick.choose == nil || c.prof.topN > 0 {
		c.top(max(1, c.prof.topN))
	} else {
		c.heap = append(c.heap[:0], c.list...)
	}
	best, second = c.heap[0], ranked{at: -1}
	if c.prof.pick.choose != nil {
		best = c.heap[c.prof.pick.choose(c, c.heap)]
	}
	for _, r := range c.list {
		if r.at != best.at && (second.at < 0 || c.better(r, second)) {
			second = r
		}
	}
	// What lists add decides, and is no part of the score.
	at, _ := slices.BinarySearchFunc(plain, best.at, func(r ranked, n int32) int { return int(r.at - n) })
	best.score = plain[at].score
	return best, second
}

// top puts the n best of the list into the heap, best first.
func (c *cycle) top(n int) {
	c.heap = c.heap[:0]
	for _, r := range c.list {
		if len(c.heap) == n && !c.better(r, c.heap[n-1]) {
			continue
		}
		at := sort.Search(len(c.heap), func(i int) bool { return c.better(r, c.heap[i]) })
		if len(c.heap) == n {
			c.heap = c.heap[:n-1]
		}
		c.heap = slices.Insert(c.heap, at, r)
	}
}

// whiteLists adds to active hosts a share of the mean, and takes from negative
// ones a share of their own.
func (c *cycle) whiteLists() {
	var sum float64
	for _, r := range c.list {
		sum += r.score
	}
	mean := sum / float64(len(c.list))
	for i, r := range c.list {
		id := string(c.view.at(r.at).ID)
		if c.prof.active[id] {
			c.list[i].score += float64(mean * c.prof.plus)
		}
		if c.prof.damped[id] {
			c.list[i].score -= float64(r.score * c.prof.minus)
		}
	}
}
