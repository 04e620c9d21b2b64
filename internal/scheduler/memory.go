package scheduler

import (
	"math/bits"

	"github.com/paddock-dev/paddock/internal/template"
)

// shape is all that tells two requests apart, as far as pages are concerned.
type shape struct {
	prof     *profile
	artifact template.ArtifactID
	kind     string
	ask      [dims]int64
	relaxed  int
}

// maxFilters is how many filters a profile has at most.
const maxFilters = 32

// seen is what a page gave to a shape: how many hosts each filter dropped, and
// the best of those left. It holds as long as the page, what is held from it
// and who is barred from it are the same.
type seen struct {
	page    uint64 // its serial; 0: it holds for nothing
	version uint64
	barred  uint64

	out          [maxFilters]uint8
	fit          uint8
	best, next   float64 // the two largest scores
	bests, nexts uint64  // the lanes that have them
}

// memory is what all pages gave to a shape. A decision changes one page, and a
// report the pages of those who report, so most of what was seen still holds
// when the next request of the shape comes.
type memory struct {
	pages []seen
	sum   tally
}

// tally is the sum over pages.
type tally struct {
	out [maxFilters]int
	fit int
}

func (t *tally) add(e *seen, filters, sign int) {
	t.fit += sign * int(e.fit)
	for f := range filters {
		t.out[f] += sign * int(e.out[f])
	}
}

// maxShapes is how many shapes are remembered; the oldest makes room.
const maxShapes = 64

// maxMet is how many shapes may have come once.
const maxMet = 512

// steadyScores depend on nothing but the page, what is held, and the shape.
var steadyScores = []string{"least_allocated", "most_allocated", "template_locality", "create_pressure", "affinity_score", "topology_spread", "external_http_score", "binpack_score", "resource_fit_score", "create_concurrency_score"}

// memory returns what is known of the shape of this request; nil if the request
// has something of its own.
func (c *cycle) memory(relaxed int) *memory {
	r := c.req
	if !c.prof.steady || c.blind || r.Explain || r.lists || r.Affinity != nil || r.External != nil || r.Direct != "" || len(r.Scope) > 0 || len(r.Exclude) > 0 {
		return nil
	}
	l := c.ledger
	key := shape{c.prof, r.Artifact, r.InstanceType, c.ask, relaxed}
	m := l.known[key]
	if m == nil {
		// One that never comes again is not worth the writing down.
		if !l.met[key] {
			if len(l.met) == maxMet {
				clear(l.met)
			}
			l.met[key] = true
			return nil
		}
		delete(l.met, key)
		if len(l.shapes) < maxShapes {
			m = &memory{}
			l.shapes = append(l.shapes, key)
		} else {
			old := l.shapes[l.eldest]
			m = l.known[old]
			delete(l.known, old)
			m.pages = m.pages[:0]
			l.shapes[l.eldest] = key
			l.eldest = (l.eldest + 1) % maxShapes
		}
		l.known[key] = m
	}
	if n := len(c.view.pages); len(m.pages) != n {
		if cap(m.pages) < n {
			m.pages = make([]seen, n)
		}
		m.pages = m.pages[:n]
		clear(m.pages)
		m.sum = tally{}
	}
	return m
}

// fresh reports whether no host of a page is too old for a filter.
func (c *cycle) fresh(p *page) bool {
	if c.allFresh {
		return true
	}
	for kind, cut := range c.cut {
		if p.oldest[kind] < cut {
			return false
		}
	}
	return true
}

// recall returns what page k gave to the shape, looking at it again if need be.
func (c *cycle) recall(m *memory, k int) *seen {
	e, p, barred := &m.pages[k], c.view.pages[k], c.barred.at(k)
	var version uint64
	if h := c.ledger.held[k]; h != nil {
		version = h.version
	}
	fresh := c.fresh(p)
	if e.page == p.serial && e.version == version && e.barred == barred && fresh {
		return e
	}
	m.sum.add(e, len(c.prof.filters), -1)
	c.look(e, k)
	m.sum.add(e, len(c.prof.filters), 1)
	if e.page = p.serial; !fresh {
		e.page = 0
	}
	e.version, e.barred = version, barred
	return e
}

// look runs the plugins on page k and writes down what came of it.
func (c *cycle) look(e *seen, k int) {
	*e = seen{}
	c.on(k)
	m := c.p.live
	for _, f := range c.running {
		in := m
		if m = c.prof.filters[f].pass(c, m); m != in {
			e.out[f] = uint8(bits.OnesCount64(in &^ m))
			if c.explains != nil {
				c.explain(c.explains, f, in&^m)
			}
			if m == 0 {
				return
			}
		}
	}
	if m == 0 {
		return
	}
	e.fit = uint8(bits.OnesCount64(m))
	total := &c.total
	for i := range total {
		total[i] = c.base
	}
	for _, n := range c.ranking {
		c.prof.scores[n](c, m, c.prof.weights[n], total)
	}
	if c.lists {
		for rest := m; rest != 0; rest &= rest - 1 {
			i := bits.TrailingZeros64(rest)
			c.list = append(c.list, ranked{int32(k*lanes + i), total[i]})
		}
		return
	}
	best, next, bests, nexts := -1.0, -1.0, uint64(0), uint64(0) // no score is below 0 by more than rounding
	for rest := m; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest) & (lanes - 1)
		x, bit := total[i], uint64(1)<<i
		switch {
		case x < next:
		case x > best:
			best, next, bests, nexts = x, best, bit, bests
		case x == best:
			bests |= bit
		case x > next:
			next, nexts = x, bit
		default:
			nexts |= bit
		}
	}
	e.best, e.next, e.bests, e.nexts = best, next, bests, nexts
}

// compete lets the best hosts of page k compete for the first two places.
func (c *cycle) compete(e *seen, k int, best, second ranked) (ranked, ranked) {
	if second.at >= 0 && e.best < second.score {
		return best, second
	}
	for m := e.bests; m != 0; m &= m - 1 {
		best, second = c.offer(best, second, ranked{int32(k*lanes + bits.TrailingZeros64(m)), e.best})
	}
	if e.bests&(e.bests-1) == 0 && !(second.at >= 0 && e.next < second.score) {
		for m := e.nexts; m != 0; m &= m - 1 {
			best, second = c.offer(best, second, ranked{int32(k*lanes + bits.TrailingZeros64(m)), e.next})
		}
	}
	return best, second
}
