package scheduler

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

// cycle is one decision while it is made: the request, prepared so that each
// look at a page costs a few loads. Its room is used again.
type cycle struct {
	s      *Scheduler
	prof   *profile
	view   *View
	ledger *Ledger
	req    *Request
	seed   uint64
	now    int64
	ask    [dims]int64
	blind  bool

	// The page that is looked at.
	k int
	p *page
	h *held

	cut      [4]int64 // the least time of each kind that is fresh
	allFresh bool     // no time of the whole view is older

	// Sets of lanes; empty words mean nobody is named.
	scope, excluded, barred words
	direct                  [1]host.ID
	selected                words // where a term of the affinity holds
	scarce                  words // who has something scarce that was not asked for
	preferred               []words
	spreads                 []spreading
	holders, kind           *set
	pressure                []int32 // creates of this template, by lane

	running  []int // indexes of the filters that run
	ranking  []int // indexes of the scores that do
	base     float64
	lists    bool // all fit hosts are listed
	total    [lanes]float64
	seen     seen
	sum      tally
	explains *Decision // nil: nobody asked
	list     []ranked
	heap     []ranked
	term     words
	having   words
	one      words
}

// words is a set of lanes, one word a page.
type words []uint64

func (w words) at(k int) uint64 {
	if k < len(w) {
		return w[k]
	}
	return 0
}

// fill returns w with n words of x.
func (w words) fill(n int, x uint64) words {
	w = slices.Grow(w[:0], n)[:n]
	for i := range w {
		w[i] = x
	}
	return w
}

// begin prepares c for r.
func (c *cycle) begin(s *Scheduler, v *View, l *Ledger, r *Request, now time.Time) error {
	c.s, c.view, c.ledger, c.req, c.now, c.seed = s, v, l, r, now.UnixNano(), mix(r.Seed+0x9e3779b97f4a7c15)
	c.prof = s.profileOf(r)
	for d, n := range amounts(r.Resources) {
		c.ask[d] = min(n, most+1) // more than any host has
	}
	c.holders, _ = v.tags.get(tag{kind: tagArtifact, value: string(r.Artifact)})
	c.kind, _ = v.tags.get(tag{kind: tagType, value: r.InstanceType})
	c.direct[0] = r.Direct
	if r.Direct != "" {
		c.scope = c.named(c.scope, c.direct[:], false)
	} else {
		c.scope = c.named(c.scope, r.Scope, true)
	}
	c.excluded = c.named(c.excluded, r.Exclude, false)
	c.barred = r.Breakers.barred(v, now)
	c.freshness()
	if r.Affinity == nil {
		c.selected, c.preferred, c.spreads = c.selected[:0], c.preferred[:0], c.spreads[:0]
		c.keep(nil)
	} else if err := c.affinity(r.Affinity); err != nil {
		return err
	}
	if r.Template != "" && slices.Contains(c.prof.names, "template_local_pressure") {
		c.pressing(r)
	}
	return nil
}

// end lets go of what c need not keep.
func (c *cycle) end() {
	c.view, c.ledger, c.req, c.p, c.h, c.holders, c.kind, c.barred, c.explains = nil, nil, nil, nil, nil, nil, nil, nil, nil
}

func (s *Scheduler) profileOf(r *Request) *profile {
	for _, p := range s.profiles {
		if p.takes(r) {
			return p
		}
	}
	return s.profiles[len(s.profiles)-1]
}

func (p *profile) takes(r *Request) bool {
	if p.kind != nil && !p.kind.MatchString(r.InstanceType) {
		return false
	}
	for key, value := range p.labels {
		if r.Labels[key] != value {
			return false
		}
	}
	return true
}

func (c *cycle) on(k int) { c.k, c.p, c.h = k, c.view.pages[k], c.ledger.page(k) }

// active finds the filters that are not relaxed.
func (c *cycle) active(relaxed []string) {
	c.running = c.running[:0]
	for f := range c.prof.filters {
		if c.runs(&c.prof.filters[f], relaxed) {
			c.running = append(c.running, f)
		}
	}
}

func (c *cycle) runs(f *filter, relaxed []string) bool {
	if c.req.Direct != "" {
		return f.direct && (!c.req.Force || f.name == "scope")
	}
	return len(relaxed) == 0 || !slices.Contains(relaxed, f.name)
}

// scoring finds the scores that tell hosts apart, and what the others give to
// every host.
func (c *cycle) scoring() {
	c.ranking, c.base = c.ranking[:0], 0
	for n, idle := range c.prof.idle {
		if idle != nil && idle(c) {
			c.base += float64(100 * c.prof.weights[n])
		} else {
			c.ranking = append(c.ranking, n)
		}
	}
}

// named returns the lanes of ids, in the room of w. What is no host may be a
// zone.
func (c *cycle) named(w words, ids []host.ID, zones bool) words {
	if len(ids) == 0 {
		return w[:0]
	}
	w = w.fill(len(c.view.pages), 0)
	for _, id := range ids {
		if n, ok := c.view.roster.index.get(id); ok {
			w[n/lanes] |= 1 << (n % lanes)
		} else if zones {
			c.join(w, tag{tagLabel, LabelZone, string(id)})
		}
	}
	return w
}

// pressing counts the creates of r's template under way, by lane.
func (c *cycle) pressing(r *Request) {
	n := len(c.view.pages) * lanes
	c.pressure = slices.Grow(c.pressure[:0], n)[:n]
	clear(c.pressure)
	for k, count := range c.ledger.pressure {
		if k.template == r.Template {
			if at, ok := c.view.roster.index.get(k.host); ok {
				c.pressure[at] = int32(count)
			}
		}
	}
}

// affinity prepares the sets of lanes that a asks for.
func (c *cycle) affinity(a *Affinity) error {
	if !a.checked {
		var err error
		if a, err = a.Checked(); err != nil {
			return err
		}
	}
	c.keep(a.Terms)
	if c.selected = c.selected[:0]; len(a.Terms) > 0 {
		c.selected = c.selected.fill(len(c.view.pages), 0)
		for _, t := range a.Terms {
			c.term = c.where(t, c.term)
			for k, w := range c.term {
				c.selected[k] |= w
			}
		}
	}
	for len(c.preferred) < len(a.Preferred) {
		c.preferred = append(c.preferred, nil)
	}
	c.preferred = c.preferred[:len(a.Preferred)]
	for i, p := range a.Preferred {
		c.preferred[i] = c.where(p.Term, c.preferred[i])
	}
	return c.spreading(a)
}

// where returns the lanes in which t holds, in the room of w.
func (c *cycle) where(t Term, w words) words {
	w = w.fill(len(c.view.pages), ^uint64(0))
	for i := range t {
		c.one = c.holds(&t[i], c.one)
		for k, one := range c.one {
			w[k] &= one
		}
	}
	return w
}

func (c *cycle) holds(r *Requirement, w words) words {
	w = w.fill(len(c.view.pages), 0)
	switch r.Operator {
	case In, NotIn:
		for _, value := range r.Values {
			c.join(w, tag{tagLabel, r.Key, value})
		}
	case Exists, DoesNotExist:
		c.join(w, tag{kind: tagKey, key: r.Key})
	case Gt, Lt:
		dim := dimMem
		if r.Key == LabelCores {
			dim = dimCPU
		}
		for k, p := range c.view.pages {
			for i, has := range p.all[dim] {
				if r.Operator == Gt && has >= r.amount || r.Operator == Lt && has <= r.amount {
					w[k] |= 1 << i
				}
			}
		}
	}
	if r.Operator == NotIn || r.Operator == DoesNotExist {
		for k := range w {
			w[k] = ^w[k]
		}
	}
	return w
}

func (c *cycle) join(w words, t tag) {
	if s, ok := c.view.tags.get(t); ok {
		for k, word := range s.words {
			w[k] |= word
		}
	}
}

// has reports whether value says that a host has the scarce thing.
func (s *ScarceLabel) has(value string) bool {
	if len(s.Values) > 0 {
		return slices.Contains(s.Values, value)
	}
	return value != "false" && value != "0"
}

// asks reports whether t needs a host that has the scarce thing.
func (s *ScarceLabel) asks(t Term) bool {
	return slices.ContainsFunc(t, func(r Requirement) bool {
		return r.Key == s.Key && (r.Operator == Exists || r.Operator == In && slices.ContainsFunc(r.Values, s.has))
	})
}

// keep finds the lanes whose hosts have a scarce thing that no term which holds
// there asks for.
func (c *cycle) keep(terms []Term) {
	c.scarce = c.scarce[:0]
	for i := range c.s.scarce {
		label := &c.s.scarce[i]
		has, ok := c.view.tags.get(tag{kind: tagKey, key: label.Key})
		if !ok {
			continue
		}
		n := len(c.view.pages)
		c.having = c.having.fill(n, 0)
		if len(label.Values) > 0 {
			for _, value := range label.Values {
				c.join(c.having, tag{tagLabel, label.Key, value})
			}
		} else {
			no, _ := c.view.tags.get(tag{tagLabel, label.Key, "false"})
			zero, _ := c.view.tags.get(tag{tagLabel, label.Key, "0"})
			for k, word := range has.words {
				c.having[k] = word &^ no.word(k) &^ zero.word(k)
			}
		}
		for _, t := range terms {
			if label.asks(t) {
				c.term = c.where(t, c.term)
				for k, w := range c.term {
					c.having[k] &^= w
				}
			}
		}
		if len(c.scarce) == 0 {
			c.scarce = c.scarce.fill(n, 0)
		}
		for k, w := range c.having {
			c.scarce[k] |= w
		}
	}
}

// spreading is one Spread, counted.
type spreading struct {
	key     *set
	domains []*set
	count   []int
	least   int
	largest int
	max     int
	hard    bool
}

// spreading counts the peers of every domain that has a host which may be
// chosen at all.
func (c *cycle) spreading(a *Affinity) error {
	c.spreads = c.spreads[:0]
	if len(a.Spread) == 0 {
		return nil
	}
	c.one = c.one.fill(len(c.view.pages), 0)
	for k := range c.view.pages {
		c.on(k)
		m := c.p.live
		for f := range c.prof.filters[:c.prof.pre] {
			m = c.prof.filters[f].pass(c, m) // no spread is there yet, so that of topology_spread passes all
		}
		c.one[k] = m
	}
	for _, sp := range a.Spread {
		d, _ := c.view.domains.get(sp.Key)
		if d != nil && d.over {
			return fault.New(fault.InvalidInput, "place sandbox %s: label %.80q has more than %d values: spread over another", c.req.Sandbox, sp.Key, maxDomains)
		}
		one := spreading{max: sp.MaxSkew, hard: sp.Hard, least: -1}
		one.key, _ = c.view.tags.get(tag{kind: tagKey, key: sp.Key})
		if d != nil {
			for _, value := range d.values {
				s, _ := c.view.tags.get(tag{tagLabel, sp.Key, value})
				one.domains, one.count = append(one.domains, s), append(one.count, 0)
			}
		}
		for id, n := range sp.Peers {
			if at, ok := c.view.roster.index.get(id); ok {
				for i, s := range one.domains {
					if s.word(int(at/lanes))>>(at%lanes)&1 == 1 {
						one.count[i] += n
					}
				}
			}
		}
		for i, s := range one.domains {
			for k, m := range c.one {
				if s.word(k)&m != 0 {
					if one.least < 0 || one.count[i] < one.least {
						one.least = one.count[i]
					}
					break
				}
			}
			one.largest = max(one.largest, one.count[i])
		}
		one.least = max(0, one.least)
		c.spreads = append(c.spreads, one)
	}
	return nil
}

// freshness decides from when on what hosts said counts. Hosts that fell
// silent at once, and are most of the fleet, are taken as last known: then
// whoever hears them is suspected.
func (c *cycle) freshness() {
	l := &c.s.limits
	c.blind, c.allFresh = false, true
	for i, limit := range [4]time.Duration{c.s.stale, l.MetricStale, l.LocalStale, l.MetadataStale} {
		if c.cut[i] = math.MinInt64; limit == 0 {
			continue
		}
		if c.cut[i] = c.now - int64(limit); c.view.oldest[i] < c.cut[i] {
			c.cut[i], c.allFresh = c.cutOf(i, int64(limit)), false
		}
	}
}

func (c *cycle) cutOf(kind int, limit int64) int64 {
	cut, l := c.now-limit, &c.s.limits
	silent, newest := 0, int64(0)
	for _, p := range c.view.pages {
		if p.oldest[kind] < cut {
			col := p.times(kind)
			for m := p.live & p.ready; m != 0; m &= m - 1 {
				if at := col[bits.TrailingZeros64(m)]; at < cut {
					if silent++; silent == 1 || at > newest {
						newest = at
					}
				}
			}
		}
	}
	if silent < max(1, l.ObserverHosts) || l.ObserverShare == 0 || c.now-newest > max(limit, int64(l.ObserverTime)) {
		return cut
	}
	// Those that fell silent within one interval of the last to do so did so
	// at once; those before them are simply gone, and count for nothing.
	at, lost, heard := newest-limit, 0, 0
	for _, p := range c.view.pages {
		col := p.times(kind)
		for m := p.live & p.ready; m != 0; m &= m - 1 {
			switch t := col[bits.TrailingZeros64(m)]; {
			case t >= cut:
				heard++
			case t >= at:
				lost++
			}
		}
	}
	if lost < l.ObserverHosts || float64(lost) <= l.ObserverShare*float64(lost+heard) {
		return cut
	}
	c.blind = true
	return at
}

func (p *page) times(kind int) *[lanes]int64 {
	return [4]*[lanes]int64{&p.heard, &p.metric, &p.local, &p.meta}[kind]
}
