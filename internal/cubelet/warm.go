package cubelet

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

const (
	// warmMem is what a sandbox that waits may have, and is charged with: more
	// than a runtime and a guest at rest need.
	warmMem = 128 << 20
	// warmHalf is after how long a create counts half for the demand.
	warmHalf = time.Minute
	// warmKept is after how long without a create none waits any more.
	warmKept = time.Hour
	// warmShapes bounds the kinds of sandboxes whose demand is remembered.
	warmShapes = 256
	// warmAfterNeed is how long room that a create needed is not taken again.
	warmAfterNeed = 5 * time.Second
)

// shape is what must be the same of a create and of a sandbox that waits for
// one: what cannot be changed once it has started. It is comparable.
type shape struct {
	template, artifact string
	writable           int64
	openFiles          uint64
}

func shapeOf(e entry) shape {
	return shape{template: e.TemplateID, artifact: e.ArtifactID, writable: e.Writable, openFiles: e.OpenFiles}
}

// demand is how often sandboxes of one shape are asked for.
type demand struct {
	level float64 // creates, each counting less as time goes on
	last  time.Time
}

// at is the level at a later time.
func (d demand) at(now time.Time) float64 {
	return d.level * math.Exp2(-float64(max(0, now.Sub(d.last)))/float64(warmHalf))
}

// met counts a create.
func (d demand) met(now time.Time) demand { return demand{d.at(now) + 1, now} }

// want is how many of one shape are to wait: half as many as there were
// creates of late.
func (d demand) want(now time.Time, w config.Warm) int {
	if d.last.IsZero() || now.Sub(d.last) > warmKept {
		return 0
	}
	// A create long ago is worth none by itself, but the least.
	n := int(math.Ceil(d.at(now)/2 - 0.01))
	return min(max(n, w.MinPerTemplate), w.MaxPerTemplate)
}

// targets is how many of each shape are to wait: one of each first, those most
// asked for before the others, and then what they want, until the host has as
// many as it may.
func targets(all map[shape]demand, now time.Time, w config.Warm) map[shape]int {
	most := min(w.MaxTotal, int(int64(w.MemoryMiB)<<20/warmMem))
	type row struct {
		shape
		level float64
		last  time.Time
		want  int
	}
	var rows []row
	for s, d := range all {
		if n := d.want(now, w); n > 0 {
			rows = append(rows, row{s, d.at(now), d.last, n})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.level, a.level), b.last.Compare(a.last), cmp.Compare(a.template, b.template), cmp.Compare(a.artifact, b.artifact),
			cmp.Compare(a.writable, b.writable), cmp.Compare(a.openFiles, b.openFiles))
	})
	given := map[shape]int{}
	for round := 1; most > 0; round++ {
		before := most
		for _, r := range rows {
			if r.want >= round && most > 0 {
				given[r.shape]++
				most--
			}
		}
		if most == before {
			break
		}
	}
	return given
}

// warmth is what a host has ready and is asked for. Cubelet.mu guards it.
type warmth struct {
	demand map[shape]demand
	all    map[string]*instance // by box, also those that start or end
	wake   chan struct{}
	rest   time.Time // none is started before
}

func newWarmth() warmth {
	return warmth{demand: map[shape]demand{}, all: map[string]*instance{}, wake: make(chan struct{}, 1)}
}

// demandLocked notes a create.
func (c *Cubelet) demandLocked(e entry) {
	if c.cfg.Cubelet.Warm.MaxPerTemplate == 0 {
		return
	}
	now := time.Now()
	s := shapeOf(e)
	c.warm.demand[s] = c.warm.demand[s].met(now)
	if len(c.warm.demand) > warmShapes {
		least := s
		for other, d := range c.warm.demand {
			if d.at(now) < c.warm.demand[least].at(now) {
				least = other
			}
		}
		delete(c.warm.demand, least)
	}
}

// tendSoon has the warm ones looked after.
func (c *Cubelet) tendSoon() {
	select {
	case c.warm.wake <- struct{}{}:
	default: // they will be
	}
}

// takeLocked takes a sandbox that waits and fits e; nil when there is none. No
// other create can have it.
func (c *Cubelet) takeLocked(e entry) *instance {
	want := shapeOf(e)
	var found *instance
	for _, w := range c.warm.all {
		if w.state == waiting && !w.ending && shapeOf(w.entry) == want && (found == nil || w.entry.CreatedAt.Before(found.entry.CreatedAt)) {
			found = w
		}
	}
	if found != nil {
		delete(c.warm.all, found.id)
		found.still()
	}
	return found
}

// warmUsedLocked is what those that wait, start or end have of the host.
func (c *Cubelet) warmUsedLocked() (used host.Resources) {
	for _, w := range c.warm.all {
		used = used.Add(w.entry.Resources)
	}
	return used
}

// yieldLocked ends as many that wait as have room that sandboxes need. They end
// behind: what they may have is a bound, and a create does not wait for it.
func (c *Cubelet) yieldLocked(now time.Time) {
	for _, w := range c.warm.all {
		left := c.room.Sub(c.usedLocked()).Sub(c.warmStayingLocked())
		if left.MemBytes >= 0 && left.Slots >= 0 {
			return
		}
		if !w.ending {
			c.warm.rest = now.Add(warmAfterNeed)
			c.endLocked(w, "its room is needed", errDeleted)
		}
	}
}

// spareLocked ends one that waits, for its address; nil when none is left. It
// may be one that ends already.
func (c *Cubelet) spareLocked(now time.Time) *instance {
	for _, w := range c.warm.all {
		c.warm.rest = now.Add(warmAfterNeed)
		c.endLocked(w, "its address is needed", errDeleted)
		return w
	}
	return nil
}

// yielding says that a create can be admitted when going is gone.
type yielding struct {
	going *instance
	error
}

func (c *Cubelet) warmStayingLocked() (used host.Resources) {
	for _, w := range c.warm.all {
		if !w.ending {
			used = used.Add(w.entry.Resources)
		}
	}
	return used
}

// warmCountLocked is how many wait, by template.
func (c *Cubelet) warmCountLocked() map[string]int {
	var n map[string]int
	for _, w := range c.warm.all {
		if w.state == waiting {
			if n == nil {
				n = map[string]int{}
			}
			n[w.entry.TemplateID]++
		}
	}
	return n
}

// dropWarm ends those that wait for which says so, and returns when nothing is
// left of them.
func (c *Cubelet) dropWarm(done <-chan struct{}, why string, which func(entry) bool) bool {
	c.mu.Lock()
	var ending []*instance
	for _, w := range c.warm.all {
		if which(w.entry) {
			c.endLocked(w, why, errDeleted)
			ending = append(ending, w)
		}
	}
	c.mu.Unlock()
	for _, w := range ending {
		select {
		case <-w.gone:
		case <-done:
			return false
		}
	}
	return true
}
