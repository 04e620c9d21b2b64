package scheduler

import (
	"fmt"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
)

// cycle is one decision while it is made: the request, prepared so that each
// look at a host costs a few loads.
type cycle struct {
	view     *View
	req      Request
	now      time.Time
	stale    time.Duration
	taken    map[int]taken // by host index: what the ledger holds against it
	scope    bitset        // nil: the whole fleet
	excluded bitset        // nil: nobody
	holders  bitset        // of the request's artifact; nil: nobody
}

// taken is what choices not yet seen in a host's own report hold against it.
type taken struct {
	resources host.Resources
	creating  int
}

func newCycle(v *View, l *Ledger, r Request, now time.Time, stale time.Duration) *cycle {
	c := &cycle{view: v, req: r, now: now, stale: stale, holders: v.holding[r.Artifact], taken: make(map[int]taken, len(l.byHost))}
	for id, t := range l.byHost {
		if i, ok := v.index[id]; ok {
			c.taken[i] = t
		}
	}
	if len(r.Scope) > 0 {
		c.scope = v.set(r.Scope)
	}
	if len(r.Exclude) > 0 {
		c.excluded = v.set(r.Exclude)
	}
	return c
}

// free returns what host i has left after its own report and the ledger.
func (c *cycle) free(i int) host.Resources {
	h := &c.view.hosts[i]
	free := h.Allocatable.Sub(h.Allocated)
	if t, ok := c.taken[i]; ok {
		free = free.Sub(t.resources)
	}
	return free
}

// filter is a named reason to drop a host. capacity marks those that time or
// another host may cure. why is asked only when somebody wants to read it.
type filter struct {
	name     string
	capacity bool
	pass     func(c *cycle, i int) bool
	why      func(c *cycle, i int) string
}

var filters = map[string]filter{
	"excluded": {
		pass: func(c *cycle, i int) bool { return !c.excluded.has(i) },
		why:  func(*cycle, int) string { return "an earlier attempt of this request failed there" },
	},
	"health": {
		pass: func(c *cycle, i int) bool {
			return host.HealthOf(c.view.hosts[i], c.now, c.stale) == host.Healthy
		},
		why: func(c *cycle, i int) string {
			f := c.view.hosts[i]
			switch h := host.HealthOf(f, c.now, c.stale); h {
			case host.Unknown:
				return fmt.Sprintf("not heard of for %s", c.now.Sub(f.HeardAt).Round(time.Millisecond))
			case host.NotReady:
				return "not ready: " + f.Reason
			default:
				return string(h)
			}
		},
	},
	"scope": {
		pass: func(c *cycle, i int) bool { return c.scope == nil || c.scope.has(i) },
		why:  func(*cycle, int) string { return "not in the requested scope" },
	},
	"instance_type": {
		pass: func(c *cycle, i int) bool {
			return c.req.InstanceType == "" || c.view.hosts[i].InstanceType == c.req.InstanceType
		},
		why: func(c *cycle, i int) string {
			return fmt.Sprintf("serves %s, not %s", c.view.hosts[i].InstanceType, c.req.InstanceType)
		},
	},
	"template_locality": {
		pass: func(c *cycle, i int) bool { return c.req.Artifact == "" || c.holders.has(i) },
		why:  func(c *cycle, _ int) string { return "does not hold artifact " + string(c.req.Artifact) },
	},
	"cpu":   room("CPU", "m", func(r host.Resources) int64 { return r.MilliCPU }),
	"mem":   room("memory", " bytes", func(r host.Resources) int64 { return r.MemBytes }),
	"disk":  room("disk", " bytes", func(r host.Resources) int64 { return r.DiskBytes }),
	"slots": room("slots", "", func(r host.Resources) int64 { return r.Slots }),
}

// room passes hosts whose free amount is at least the asked one: exactly equal
// fits.
func room(name, unit string, of func(host.Resources) int64) filter {
	return filter{
		capacity: true,
		pass:     func(c *cycle, i int) bool { return of(c.req.Resources) <= of(c.free(i)) },
		why: func(c *cycle, i int) string {
			free, asked := max(0, of(c.free(i))), of(c.req.Resources)
			return fmt.Sprintf("%s: %d%s free, %d%s asked, %d%s short", name, free, unit, asked, unit, asked-free, unit)
		},
	}
}

// score ranks host i, 0..100; more is better. It must be finite.
type score func(c *cycle, i int) float64

var scores = map[string]score{
	"least_allocated":   leastAllocated,
	"most_allocated":    func(c *cycle, i int) float64 { return 100 - leastAllocated(c, i) },
	"template_locality": func(c *cycle, i int) float64 { return percentIf(c.holders.has(i)) },
	"create_pressure":   createPressure,
}

// leastAllocated is the mean of the shares of CPU and memory that are left once
// the request is placed.
func leastAllocated(c *cycle, i int) float64 {
	left, all := c.free(i).Sub(c.req.Resources), c.view.hosts[i].Allocatable
	return 100 * (share(left.MilliCPU, all.MilliCPU) + share(left.MemBytes, all.MemBytes)) / 2
}

// createPressure falls with the creates that are on their way to the host: they
// compete for its processors now, whatever room it has.
func createPressure(c *cycle, i int) float64 {
	return 100 / float64(1+c.taken[i].creating)
}

// share returns part/whole within 0..1; a whole of nothing has no share left.
func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(1, max(0, float64(part)/float64(whole)))
}

func percentIf(ok bool) float64 {
	if ok {
		return 100
	}
	return 0
}
