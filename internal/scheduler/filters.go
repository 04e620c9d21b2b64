package scheduler

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
)

// filter is a named reason to drop hosts. It returns which of the hosts m of
// the page at work pass. capacity marks those that time or another host may
// cure; soft those that may be relaxed; direct those that a request for one host
// meets too. why says it of one host, and is asked
// only when somebody wants to read it.
type filter struct {
	name     string
	capacity bool
	soft     bool
	direct   bool
	pass     func(c *cycle, m uint64) uint64
	why      func(c *cycle, i int) string
}

// constant is a reason that is the same for every host.
func constant(text string) func(*cycle, int) string {
	return func(*cycle, int) string { return text }
}

var filters = map[string]filter{
	"excluded": {
		pass: func(c *cycle, m uint64) uint64 { return m &^ c.excluded.at(c.k) },
		why:  constant("an earlier attempt of this request failed there"),
	},
	"breaker": {
		pass: func(c *cycle, m uint64) uint64 { return m &^ c.barred.at(c.k) },
		why:  constant("too many calls of it failed lately"),
	},
	"health": {direct: true, pass: healthy, why: whyUnhealthy},
	"scope": {
		direct: true,
		pass: func(c *cycle, m uint64) uint64 {
			if len(c.req.Scope) == 0 && c.req.Direct == "" {
				return m
			}
			return m & c.scope.at(c.k)
		},
		why: constant("not in the requested scope"),
	},
	"instance_type": {
		pass: func(c *cycle, m uint64) uint64 {
			if c.req.InstanceType == "" {
				return m
			}
			return m & c.kind.word(c.k)
		},
		why: func(c *cycle, i int) string {
			return fmt.Sprintf("serves %s, not %s", c.p.facts[i].InstanceType, c.req.InstanceType)
		},
	},
	"affinity": {
		pass: func(c *cycle, m uint64) uint64 {
			if len(c.selected) == 0 {
				return m
			}
			return m & c.selected[c.k]
		},
		why: whyUnselected,
	},
	"topology_spread": {soft: true, pass: spreads, why: whyCrowded},
	"scarce": {
		soft: true,
		pass: func(c *cycle, m uint64) uint64 { return m &^ c.scarce.at(c.k) },
		why:  whyKept,
	},
	"mvm_limit": {capacity: true, direct: true, pass: underLimit, why: func(c *cycle, i int) string {
		return fmt.Sprintf("%d sandboxes, its limit is %d", c.p.sandboxes[i]+c.h.open[i], c.sandboxLimit(i))
	}},
	"node_safety": {pass: safe, why: func(c *cycle, i int) string {
		return fmt.Sprintf("load %.1f on %.1f CPUs, disks %.0f%%, %.0f%% and %.0f%% full", c.p.load[i], c.p.cpus[i], c.p.disk[0][i], c.p.disk[1][i], c.p.disk[2][i])
	}},
	"metric_stale":       stale(1, "metrics", func(l *Limits) time.Duration { return l.MetricStale }),
	"local_metric_stale": stale(2, "metrics on this side", func(l *Limits) time.Duration { return l.LocalStale }),
	"metadata_stale":     stale(3, "registration", func(l *Limits) time.Duration { return l.MetadataStale }),
	"template_locality": {
		soft: true,
		pass: func(c *cycle, m uint64) uint64 {
			if c.req.Artifact == "" {
				return m
			}
			return m & c.holders.word(c.k)
		},
		why: func(c *cycle, _ int) string { return "does not hold artifact " + string(c.req.Artifact) },
	},
	// Configurations name it; nobody ever put anything there.
	"thirtparty": {pass: func(_ *cycle, m uint64) uint64 { return m }, why: constant("")},
	"cpu":        cpuRoom(),
	"mem":        memRoom(),
	"disk":       room(dimDisk, "disk", " bytes"),
	"slots":      room(dimSlots, "slots", ""),
	"disk_usage": {pass: disksBelow, why: func(c *cycle, i int) string {
		return fmt.Sprintf("disks are %.0f%%, %.0f%% and %.0f%% full", c.p.disk[0][i], c.p.disk[1][i], c.p.disk[2][i])
	}},
	"realtime_create_num": {capacity: true, soft: true, pass: createsBelow, why: func(c *cycle, i int) string {
		return fmt.Sprintf("%d creates under way there, %d from here, its limit is %d", c.p.creating[i], c.h.creating[i], c.createLimit(i))
	}},
}

// each returns those of m for which ok holds.
func each(m uint64, ok func(i int) bool) uint64 {
	for rest := m; rest != 0; rest &= rest - 1 {
		if i := bits.TrailingZeros64(rest); !ok(i) {
			m &^= 1 << i
		}
	}
	return m
}

func healthy(c *cycle, m uint64) uint64 {
	m &= c.p.ready &^ c.p.cordoned
	if c.p.oldest[0] >= c.cut[0] {
		return m
	}
	return each(m, func(i int) bool { return c.p.heard[i] >= c.cut[0] })
}

func whyUnhealthy(c *cycle, i int) string {
	f := c.p.facts[i]
	switch {
	case c.p.heard[i] < c.cut[0]:
		return fmt.Sprintf("not heard of for %s", time.Duration(c.now-c.p.heard[i]).Round(time.Millisecond))
	case !f.Ready:
		return "not ready: " + f.Reason
	}
	return string(host.Cordoned)
}

// stale drops hosts of which the times of that kind are too old.
func stale(kind int, what string, limit func(*Limits) time.Duration) filter {
	return filter{
		pass: func(c *cycle, m uint64) uint64 {
			if limit(&c.s.limits) == 0 || c.p.oldest[kind] >= c.cut[kind] {
				return m
			}
			times := c.p.times(kind)
			return each(m, func(i int) bool { return times[i] >= c.cut[kind] })
		},
		why: func(c *cycle, i int) string {
			return fmt.Sprintf("its %s are %s old", what, time.Duration(c.now-c.p.times(kind)[i]).Round(time.Millisecond))
		},
	}
}

// sandboxLimit is how many sandboxes host i may have; 0: any number.
func (c *cycle) sandboxLimit(i int) int64 {
	l := &c.s.limits
	n := c.p.top[i]
	if n == 0 {
		if n = l.MaxSandboxes; len(l.MaxByType) > 0 {
			if own, ok := l.MaxByType[c.p.facts[i].InstanceType]; ok {
				n = own
			}
		}
	}
	if l.SandboxShare < 1 {
		n = int64(math.Ceil(float64(n) * l.SandboxShare))
	}
	return n
}

func underLimit(c *cycle, m uint64) uint64 {
	if l := &c.s.limits; l.SandboxShare == 1 && len(l.MaxByType) == 0 {
		if n := c.p.crowd + c.h.mostOpen; n < c.p.topLow && (n < l.MaxSandboxes || l.MaxSandboxes == 0) {
			return m
		}
	}
	return each(m, func(i int) bool {
		limit := c.sandboxLimit(i)
		return limit == 0 || c.p.sandboxes[i]+c.h.open[i] < limit
	})
}

func safe(c *cycle, m uint64) uint64 {
	if per := c.s.limits.LoadPerCPU; per > 0 && c.p.loadMost > c.p.cpusLeast*per {
		m = each(m, func(i int) bool { return c.p.cpus[i] == 0 || c.p.load[i] <= c.p.cpus[i]*per })
	}
	return disksBelow(c, m)
}

func disksBelow(c *cycle, m uint64) uint64 {
	limit := c.s.limits.DiskUsage
	if limit == 0 || c.p.diskMost < limit {
		return m
	}
	return each(m, func(i int) bool { return c.p.disk[0][i] < limit && c.p.disk[1][i] < limit && c.p.disk[2][i] < limit })
}

// createLimit is how many creates host i takes at once.
func (c *cycle) createLimit(i int) int64 {
	if n := max(c.p.limit[i], c.s.limits.Creates); n > 0 {
		return n
	}
	return 50
}

func createsBelow(c *cycle, m uint64) uint64 {
	masters, all := int64(c.s.limits.Masters), c.s.limits.Creates
	if c.p.creatingMost < all && c.h.mostOpen*masters < all {
		return m
	}
	return each(m, func(i int) bool {
		limit := c.createLimit(i)
		return c.p.creating[i] < limit && c.h.creating[i]*masters < limit
	})
}

// fits returns those of m on which the asked amount of one dimension is at most
// the free one: exactly equal fits.
func (c *cycle) fits(dim int, m uint64) uint64 {
	p, h, ask := c.p, c.h, c.ask[dim]
	if c.blind && c.s.limits.BlindShare > 0 {
		return each(m, func(i int) bool { return ask <= c.left(dim, i) })
	}
	switch {
	case ask <= p.least[dim]-h.most[dim]:
		return m
	case ask > p.most[dim]:
		return 0
	}
	free, held := &p.free[dim], &h.amount[dim]
	if bits.OnesCount64(m) < lanes/4 {
		for rest := m; rest != 0; rest &= rest - 1 {
			if i := bits.TrailingZeros64(rest); ask > free[i]-held[i] {
				m &^= 1 << i
			}
		}
		return m
	}
	var short uint64 // without branches: fleets have no pattern that could be guessed
	for i := range lanes {
		short |= uint64(free[i]-held[i]-ask) >> 63 << i
	}
	return m &^ short
}

// left is what host i has left of one dimension after its own report, the
// ledger, and what is kept free while nobody is heard.
func (c *cycle) left(dim, i int) int64 {
	n := c.p.free[dim][i] - c.h.amount[dim][i]
	if c.blind {
		n -= int64(float64(c.p.all[dim][i]) * c.s.limits.BlindShare)
	}
	return n
}

func room(dim int, name, unit string) filter {
	return filter{
		capacity: true,
		direct:   true,
		pass:     func(c *cycle, m uint64) uint64 { return c.fits(dim, m) },
		why: func(c *cycle, i int) string {
			free, asked := max(0, c.left(dim, i)), c.ask[dim]
			amount := func(n int64) string { return fmt.Sprintf("%d%s", n, unit) }
			if unit == " bytes" {
				amount = size
			}
			return fmt.Sprintf("%s: %s free, %s asked, %s short", name, amount(free), amount(asked), amount(asked-free))
		},
	}
}

// cpuRoom also drops hosts whose processors are busy, whoever keeps them so.
func cpuRoom() filter {
	f := room(dimCPU, "CPU", "m")
	pass, why := f.pass, f.why
	f.pass = func(c *cycle, m uint64) uint64 {
		m = pass(c, m)
		limit := c.s.limits.MaxCPUUtil
		if limit == 0 || c.p.utilMost < limit {
			return m
		}
		return each(m, func(i int) bool { return c.p.cpuUtil[i] < limit })
	}
	f.why = func(c *cycle, i int) string {
		if c.ask[dimCPU] <= c.left(dimCPU, i) {
			return fmt.Sprintf("CPU: %.0f%% busy, the limit is %.0f%%", c.p.cpuUtil[i], c.s.limits.MaxCPUUtil)
		}
		return why(c, i)
	}
	return f
}

// memRoom also keeps physical memory free where it is measured.
func memRoom() filter {
	f := room(dimMem, "memory", " bytes")
	pass, why := f.pass, f.why
	f.pass = func(c *cycle, m uint64) uint64 {
		m, ask := pass(c, m), c.ask[dimMem]
		if c.p.memLeast >= most || len(c.s.reserved) == 0 && c.p.memLeast >= ask+c.s.limits.MemReserved {
			return m
		}
		keep, all := c.s.limits.MemReserved, &c.p.all[dimMem]
		if len(c.s.reserved) > 0 {
			return each(m, func(i int) bool { return c.p.mem[i] == most || ask+c.reserved(i) <= c.p.mem[i] })
		}
		for rest := m; rest != 0; rest &= rest - 1 { // what reserved says, without its questions
			i := bits.TrailingZeros64(rest) & (lanes - 1)
			n := keep
			if n >= all[i] {
				n = c.reserved(i)
			}
			if unused := c.p.mem[i]; ask+n > unused && unused != most {
				m &^= 1 << i
			}
		}
		return m
	}
	f.why = func(c *cycle, i int) string {
		if c.ask[dimMem] <= c.left(dimMem, i) {
			return fmt.Sprintf("memory: %d bytes unused, %d asked and %d kept free", max(0, c.p.mem[i]), c.ask[dimMem], c.reserved(i))
		}
		return why(c, i)
	}
	return f
}

// reserved is how much physical memory stays free on host i.
func (c *cycle) reserved(i int) int64 {
	n, all := c.s.limits.MemReserved, c.p.all[dimMem][i]
	if len(c.s.reserved) > 0 {
		if own, ok := c.s.reserved[c.p.facts[i].InstanceType]; ok {
			if n = own.bytes; own.share > 0 {
				n = int64(float64(all) * own.share)
			}
		}
	}
	if n > 0 && n >= all {
		n = (all + 9) / 10
	}
	return n
}

// spreads drops hosts whose domain would have too many of the group.
func spreads(c *cycle, m uint64) uint64 {
	for i := range c.spreads {
		s := &c.spreads[i]
		if !s.hard {
			continue
		}
		m &= s.key.word(c.k)
		for d, n := range s.count {
			if n+1-s.least > s.max {
				m &^= s.domains[d].word(c.k)
			}
		}
	}
	return m
}

func whyCrowded(c *cycle, i int) string {
	for n, s := range c.spreads {
		if s.hard && s.key.word(c.k)>>i&1 == 0 {
			return fmt.Sprintf("has no label %.80s, which the request spreads over", c.req.Affinity.Spread[n].Key)
		}
	}
	return "its domain has too many of the group already"
}

func whyKept(c *cycle, i int) string {
	var kept []string
	for n := range c.s.scarce {
		label := &c.s.scarce[n]
		value, own := c.p.facts[i].Labels[label.Key]
		asked := c.req.Affinity != nil && slices.ContainsFunc(c.req.Affinity.Terms, label.asks)
		if key, _ := c.view.tags.get(tag{kind: tagKey, key: label.Key}); !asked && key.word(c.k)>>i&1 == 1 && (!own || label.has(value)) {
			kept = append(kept, label.Key)
		}
	}
	if len(kept) == 0 {
		return "has a scarce label that no term of the affinity which holds there asks for"
	}
	return "kept for requests whose affinity or selector asks for its label " + strings.Join(kept, " and ")
}
