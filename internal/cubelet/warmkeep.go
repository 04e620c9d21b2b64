package cubelet

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

const (
	warmEvery = time.Second
	// warmShare is the percentage of a user's share of the CPUs that one gets
	// which nobody waits for.
	warmShare = 10
	// warmSlow is a start's duration on a machine with nothing else to do,
	// amply: what takes longer says how busy it is.
	warmSlow = time.Second
	// warmFailed is the pause after a start that failed.
	warmFailed = 10 * time.Second
	// warmSpare is what the machine's memory must have free beside one more.
	warmSpare = 512 << 20
)

// keepWarm has sandboxes wait until ctx ends, one start at a time.
func (c *Cubelet) keepWarm(ctx context.Context) {
	if c.cfg.Cubelet.Warm.MaxPerTemplate == 0 {
		return
	}
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	for {
		c.coolDown(time.Now())
		if e, ok := c.nextWarm(time.Now()); ok && ctx.Err() == nil {
			c.startWarm(ctx, e)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-c.warm.wake:
		case <-tick.C:
		}
	}
}

// coolDown ends those that wait for nobody, and forgets old demand.
func (c *Cubelet) coolDown(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, d := range c.warm.demand {
		if now.Sub(d.last) > warmKept {
			delete(c.warm.demand, s)
		}
	}
	keep := targets(c.warm.demand, now, c.cfg.Cubelet.Warm)
	for _, w := range c.warm.all {
		if w.ending {
			continue
		}
		if s := shapeOf(w.entry); keep[s] > 0 {
			keep[s]--
		} else if w.state == waiting {
			c.endLocked(w, "nobody asks for it", errDeleted)
		}
	}
	c.metrics.warm.Set(float64(len(c.warm.all)))
}

// nextWarm says what to start next; ok is false when there is nothing to
// start, or something else to do: creates go first.
func (c *Cubelet) nextWarm(now time.Time) (e entry, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.buildingLocked() || now.Before(c.warm.rest) {
		return e, false
	}
	one := host.Resources{MemBytes: warmMem, Slots: 1}
	if left := c.room.Sub(c.usedLocked()).Sub(c.warmUsedLocked()); !one.Fits(left) {
		return e, false
	}
	if free, err := memory("MemAvailable"); err != nil || free < warmMem+warmSpare {
		return e, false
	}
	short := targets(c.warm.demand, now, c.cfg.Cubelet.Warm)
	for _, w := range c.warm.all {
		if !w.ending {
			short[shapeOf(w.entry)]--
		}
	}
	best := shape{}
	for s, n := range short {
		if n > 0 && (!ok || c.warm.demand[s].at(now) > c.warm.demand[best].at(now)) {
			best, ok = s, true
		}
	}
	name := id.New("i")
	return entry{
		ID: name, TemplateID: best.template, ArtifactID: best.artifact, Writable: best.writable, OpenFiles: best.openFiles,
		Resources: one, Hostname: name, CreatedAt: now.UTC(),
	}, ok
}

// buildingLocked reports whether a create has the machine start something. One
// that waits for its own program's probe has not.
func (c *Cubelet) buildingLocked() bool {
	for _, s := range c.live {
		if s.state == starting && !s.built {
			return true
		}
	}
	return false
}

// startWarm starts a sandbox up to where its guest answers, and has it wait
// there.
func (c *Cubelet) startWarm(ctx context.Context, e entry) {
	net, err := c.nets.Reserve(e.ID)
	if err != nil {
		c.restWarm(warmFailed)
		return // no address is free: none is for those who wait
	}
	e.Network = net
	w := c.newInstance(e)
	w.box.Unnamed, w.charged = true, false
	own, cancel := context.WithTimeout(ctx, c.cfg.Cubelet.StartTimeout)
	defer cancel()
	own, abort := context.WithCancelCause(own)
	defer abort(nil)
	c.mu.Lock()
	w.abort = abort
	if _, asked := c.warm.demand[shapeOf(e)]; c.closing || !asked {
		c.mu.Unlock()
		c.nets.Release(net)
		return
	}
	c.warm.all[w.id] = w
	c.mu.Unlock()
	began := time.Now()
	w.life.Lock()
	err = errors.Join(c.build(own, w), fail.Point("cubelet.warm.started"))
	w.life.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(w.made)
	switch {
	case w.ending: // its room is needed
	case err != nil:
		c.warm.rest = time.Now().Add(warmFailed)
		if ctx.Err() == nil {
			c.log.WarnContext(ctx, "a sandbox could not be started ahead", slog.String("sandbox_id", w.id), slog.String("template_id", e.TemplateID), slog.String("error", err.Error()))
		}
		c.endLocked(w, err.Error(), nil)
	default:
		w.state = waiting
		c.watchWarm(w)
		c.tellSoon()
	}
	// A slow start tells that the machine has other work: then it gets less of
	// this.
	if took := time.Since(began); took > warmSlow {
		c.warm.rest = later(c.warm.rest, time.Now().Add(4*took))
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (c *Cubelet) restWarm(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.warm.rest = later(c.warm.rest, time.Now().Add(d))
}

// watchWarm removes one that ends while it waits; another takes its place.
func (c *Cubelet) watchWarm(w *instance) {
	kernel := w.entry.Kernel
	c.work.Go(func() {
		if kernel.Wait(w.alive) != nil {
			return // it is claimed, or ended by us
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.warm.all[w.id] == w {
			c.log.WarnContext(c.base, "a sandbox that waited for a create ended by itself", slog.String("sandbox_id", w.id))
			c.endLocked(w, "it ended by itself", nil)
		}
	})
}
