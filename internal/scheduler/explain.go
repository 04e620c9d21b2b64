package scheduler

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

// Drop is why one host was not fit: the first plugin that refused it.
type Drop struct {
	Host   host.ID
	Plugin string
	Reason string
}

// Scored is a fit host and what it scored.
type Scored struct {
	Host  host.ID
	Score float64
}

// Part is what one plugin gave to a score, 0..100, and its weight of 1.
type Part struct {
	Plugin string
	Score  float64
	Weight float64
}

// Nearest is a host that lacks nothing but room, and the least of it.
type Nearest struct {
	Host  host.ID
	Short host.Resources // what would have to be free there besides
}

// String says it as part of a sentence.
func (n *Nearest) String() string {
	var lacks []string
	for _, one := range []struct {
		n    int64
		text string
	}{
		{n.Short.MilliCPU, fmt.Sprintf("%dm more CPU", n.Short.MilliCPU)},
		{n.Short.MemBytes, size(n.Short.MemBytes) + " more memory"},
		{n.Short.DiskBytes, size(n.Short.DiskBytes) + " more disk"},
		{n.Short.Slots, fmt.Sprintf("%d more slots", n.Short.Slots)},
	} {
		if one.n > 0 {
			lacks = append(lacks, one.text)
		}
	}
	return fmt.Sprintf("would fit if %s had %s", n.Host, strings.Join(lacks, " and "))
}

func size(n int64) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// explain notes why each of the hosts m of the page was dropped by filter f.
func (c *cycle) explain(d *Decision, f int, m uint64) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		d.Dropped = append(d.Dropped, Drop{c.p.facts[i].ID, c.prof.filters[f].name, c.prof.filters[f].why(c, i)})
	}
}

func (c *cycle) explainScores(d *Decision) {
	for _, r := range c.list {
		d.Scores = append(d.Scores, Scored{c.view.at(r.at).ID, r.score})
	}
	slices.SortStableFunc(d.Scores, func(a, b Scored) int { return cmp.Compare(b.Score, a.Score) })
}

// parts takes the score of the host in lane n apart.
func (c *cycle) parts(n int32) []Part {
	c.on(int(n / lanes))
	var parts []Part
	for k, score := range c.prof.scores {
		if c.total = [lanes]float64{}; c.prof.idle[k] != nil && c.prof.idle[k](c) {
			c.total[n%lanes] = 100
		} else {
			score(c, 1<<(n%lanes), 1, &c.total)
		}
		parts = append(parts, Part{c.prof.names[k], c.total[n%lanes], c.prof.weights[k]})
	}
	return parts
}

// refusal tells apart a fleet that may not be used from one that is full: the
// first needs an operator, the second only time or another host.
func (c *cycle) refusal(d *Decision) error {
	code, parts := fault.NoHost, []string{}
	for _, o := range d.Out {
		parts = append(parts, fmt.Sprintf("%s %d", o.Plugin, o.Hosts))
		if filters[o.Plugin].capacity {
			code = fault.NoCapacity
		}
	}
	reasons := "no host is registered"
	if len(parts) > 0 {
		reasons = "dropped by " + strings.Join(parts, ", ")
	}
	if code == fault.NoCapacity {
		if d.Nearest = c.nearest(); d.Nearest != nil {
			reasons += "; it " + d.Nearest.String()
		}
	}
	return fault.New(code, "place sandbox %s: %d hosts considered, %s", c.req.Sandbox, d.Considered, reasons)
}

// rooms are the filters that compare what is asked with what is free.
var rooms = map[string]int{"cpu": dimCPU, "mem": dimMem, "disk": dimDisk, "slots": dimSlots}

// nearest returns the host that would pass if it had a little more room: the
// least, as a share of what it has.
func (c *cycle) nearest() *Nearest {
	var best *Nearest
	var least float64
	for k, p := range c.view.pages {
		c.on(k)
		m := p.live
		for _, n := range c.running { // not those that were left out
			f := &c.prof.filters[n]
			if _, ok := rooms[f.name]; !ok {
				m = f.pass(c, m)
			}
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros64(m)
			var short [dims]int64
			var sum float64
			for d := range dims {
				if short[d] = max(0, c.ask[d]-c.left(d, i)); short[d] > 0 {
					sum += float64(short[d]) / float64(max(1, p.all[d][i]))
				}
			}
			if sum == 0 || best != nil && (sum > least || sum == least && p.facts[i].ID > best.Host) {
				continue // the first lacks something else: it is busy, say
			}
			least = sum
			best = &Nearest{p.facts[i].ID, host.Resources{MilliCPU: short[dimCPU], MemBytes: short[dimMem], DiskBytes: short[dimDisk], Slots: short[dimSlots]}}
		}
	}
	return best
}
