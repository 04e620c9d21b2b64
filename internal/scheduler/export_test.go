package scheduler

import (
	"maps"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
)

// Check reports the first way in which the forms of what is held disagree.
func (l *Ledger) Check() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	want := map[host.ID]taken{}
	for _, c := range l.open {
		t := want[c.host]
		t.resources, t.open = t.resources.Add(c.resources), t.open+1
		if c.confirmedAt.IsZero() {
			t.creating++
		}
		want[c.host] = t
	}
	if len(want) != len(l.byHost) {
		return "a host without charges is held"
	}
	for id, t := range want {
		if l.byHost[id] != t {
			return "sums of " + string(id)
		}
		if l.bound == nil {
			continue
		}
		if n, ok := l.bound.index.get(id); ok {
			h, i := l.page(int(n/lanes)), n%lanes
			for d, amount := range amounts(t.resources) {
				if h.amount[d][i] != amount || h.most[d] < amount {
					return "lane of " + string(id)
				}
			}
			if h.open[i] != t.open || h.creating[i] != t.creating || h.busy>>i&1 == 1 != (t.creating > 0) {
				return "counts of " + string(id)
			}
		}
	}
	return ""
}

// Shared returns how many pages two views have in common.
func Shared(a, b *View) int {
	n := 0
	for k, p := range a.pages {
		if k < len(b.pages) && b.pages[k] == p {
			n++
		}
	}
	return n
}

// Pages returns how many pages a view has.
func Pages(v *View) int { return len(v.pages) }

// FilterNames, ScoreNames, FactorNames and PickNames return what is known.
func FilterNames() []string { return slices.Sorted(maps.Keys(filters)) }
func ScoreNames() []string  { return slices.Sorted(maps.Keys(scores)) }
func FactorNames() []string { return slices.Sorted(maps.Keys(factors)) }
func PickNames() []string   { return slices.Sorted(maps.Keys(pickers)) }
func BaseNames() []string   { return slices.Sorted(maps.Keys(bases)) }

// Passes reports whether a filter of s lets a host pass.
func (s *Scheduler) Passes(name string, v *View, l *Ledger, r Request, now time.Time, id host.ID) bool {
	var passes bool
	s.on(v, l, r, now, id, func(c *cycle, i int) { passes = filters[name].pass(c, 1<<i) != 0 })
	return passes
}

// Gives returns what a score gives to a host.
func (s *Scheduler) Gives(name string, v *View, l *Ledger, r Request, now time.Time, id host.ID) float64 {
	var total [lanes]float64
	s.on(v, l, r, now, id, func(c *cycle, i int) {
		if idle := idle[name]; idle != nil && idle(c) {
			total[0] = 100
			return
		}
		scores[name](c, 1<<i, 1, &total)
		total[0] = total[i]
	})
	return total[0]
}

// Factor returns what a factor gives to a host.
func (s *Scheduler) Factor(name string, v *View, l *Ledger, r Request, now time.Time, id host.ID) float64 {
	var x float64
	s.on(v, l, r, now, id, func(c *cycle, i int) { x = factors[name](c, i) })
	return x
}

func (s *Scheduler) on(v *View, l *Ledger, r Request, now time.Time, id host.ID, do func(c *cycle, i int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bind(v)
	c := &l.cycle
	if err := c.begin(s, v, l, &r, now); err != nil {
		panic(err)
	}
	defer c.end()
	n, ok := v.roster.index.get(id)
	if !ok {
		panic("no host " + id)
	}
	c.on(int(n / lanes))
	do(c, int(n%lanes))
}

// Names returns the names of all plugins and built-in profiles.
func Names() []string {
	return slices.Concat(slices.Collect(maps.Keys(filters)), slices.Collect(maps.Keys(scores)), slices.Collect(maps.Keys(factors)), slices.Collect(maps.Keys(pickers)), slices.Collect(maps.Keys(bases)))
}
