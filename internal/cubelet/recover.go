package cubelet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubelet/mount"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/fault"
)

// adoptTime is how long a guest that was left running may take to answer.
const adoptTime = 5 * time.Second

// recover compares the journal with the machine. Sandboxes that run are
// adopted; those that were whole once and are dead are told of until
// somebody deletes them; everything else of ours is removed.
func (c *Cubelet) recover(ctx context.Context) error {
	entries, torn, err := c.journal.list()
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "journal")
	}
	if err := c.openSnapshots(); err != nil {
		return err
	}
	open := map[network.Network]network.Policy{}
	for _, e := range entries {
		if !e.Released {
			c.nets.Adopt(e.Network) // no new sandbox may have the address meanwhile
			maps.Copy(open, ways(e))
		}
	}
	// The rules were laid anew, without the policies.
	if err := c.nets.Permit(ctx, open); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "ways out of the sandboxes that run")
	}
	var group errgroup.Group
	group.SetLimit(16)
	for _, e := range entries {
		s := c.newInstance(e)
		close(s.made)
		group.Go(func() error {
			c.take(ctx, s)
			return nil
		})
	}
	_ = group.Wait() // none fails: what cannot be removed is tried again behind
	for _, id := range torn {
		if err := errors.Join(mount.DetachBelow(c.journal.path(id)), c.journal.remove(id)); err != nil {
			return fault.Wrap(fault.DataDir, err, "journal")
		}
	}
	return c.sweep(ctx)
}

// take decides what becomes of one sandbox of an earlier process.
func (c *Cubelet) take(ctx context.Context, s *instance) {
	c.settlePhase(s)
	switch {
	case s.entry.Kept != nil:
		c.takeKept(s)
		c.log.InfoContext(ctx, "paused sandbox found", slog.String("sandbox_id", s.id))
	case c.adopt(ctx, s):
		c.log.InfoContext(ctx, "sandbox adopted", slog.String("sandbox_id", s.id))
	case s.entry.Kernel.PID == 0:
		c.log.InfoContext(ctx, "a sandbox that was never whole is removed", slog.String("sandbox_id", s.id))
		c.put(s, stopping)
		c.end(s, "never whole", nil)
		soon(s.gone)
	case s.entry.EndedAt.IsZero():
		c.put(s, running)
		dead := make(chan struct{})
		c.work.Go(func() {
			defer close(dead)
			c.died(s)
		})
		soon(dead)
	default:
		s.charged, s.reason = false, s.entry.Reason
		c.put(s, exited)
	}
}

// settlePhase decides what a passage has come to that an earlier process began:
// before a journal's word that it is kept, a sandbox goes on if it lives, and
// after it, it is kept.
func (c *Cubelet) settlePhase(s *instance) {
	e := &s.entry
	why := fault.New(map[phase]*fault.Code{toPause: fault.CannotKeep, toRun: fault.CannotResume, toSnapshot: fault.CannotRollBack}[e.Phase], "sandbox %s: its host's cubelet ended meanwhile", s.id)
	switch {
	case e.Phase == "" || e.Phase == atRest:
		return
	case e.Kept != nil:
		e.Phase, e.Failed = atRest, failed(e.Generation, why)
	case e.Phase == toPause && !e.Kernel.Alive():
		// The machine may have ended between the state's last byte and the word.
		if k, err := readKept(c.keptPath(s, e.Generation)); err == nil {
			e.Phase, e.Kept = atRest, &k
			return
		}
		e.Phase = ""
	default:
		e.Phase, e.Failed = "", failed(e.Generation, why)
	}
}

// takeKept takes a paused sandbox over, and gives back what it may still have.
func (c *Cubelet) takeKept(s *instance) {
	s.still()
	if s.entry.Released && s.entry.Kernel.PID == 0 && s.entry.Failed == nil {
		s.charged = false
		c.put(s, paused)
		return
	}
	c.put(s, paused)
	c.settleDown(s)
}

// soon waits for what is mostly done at once; else it goes on behind.
func soon(done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(undoTime):
	}
}

func (c *Cubelet) put(s *instance, is state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.state = is
	c.live[s.id] = s
	c.metrics.running.Set(float64(len(c.live)))
}

// adopt takes over a sandbox that still runs. A guest that does not answer in
// time proves nothing: its host may be overloaded, its share of it small.
func (c *Cubelet) adopt(ctx context.Context, s *instance) bool {
	e := s.entry
	if !e.EndedAt.IsZero() || !e.Kernel.Alive() {
		return false
	}
	if err := c.thaw(ctx, s); err != nil {
		c.log.ErrorContext(ctx, "a sandbox that stood still to be kept is ended", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
		return false
	}
	bounded, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	if err := s.await(bounded); err != nil {
		c.log.WarnContext(ctx, "a sandbox that runs does not answer yet", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
	}
	if _, err := c.mounts.Acquire(e.ArtifactID, c.images.Path(e.ArtifactID)); err != nil {
		c.log.WarnContext(ctx, "the template of a running sandbox is gone", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
		return false
	}
	if err := c.dropKept(s, ""); err != nil {
		c.log.WarnContext(ctx, "kept state is left until the sandbox's next life", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
	}
	s.mounted, s.steps = true, e.Steps
	if s.steps == nil {
		s.steps = map[string]time.Duration{}
	}
	c.put(s, running)
	c.watch(s)
	return true
}

// sweep removes what is ours and belongs to no sandbox in the journal.
func (c *Cubelet) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	kept, nets := c.kept()
	errs := []error{c.driver.Reclaim(ctx, func(id string) bool { return kept[id] })}
	groups, err := c.cgroups.List()
	errs = append(errs, err)
	for _, id := range groups {
		if !kept[id] {
			errs = append(errs, c.cgroups.Group(id).Destroy(ctx))
		}
	}
	errs = append(errs, c.nets.Sweep(nets), c.mounts.Sweep(), c.images.Sweep())
	if err := errors.Join(errs...); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "leftovers of an earlier process")
	}
	return nil
}

// kept returns the boxes whose things must stay: those of sandboxes that run, and of
// those that somebody is removing already.
func (c *Cubelet) kept() (ids map[string]bool, nets []network.Network) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids = map[string]bool{}
	for _, s := range c.live {
		if s.charged {
			ids[s.box.ID] = true
			nets = append(nets, s.entry.Network)
		}
	}
	return ids, nets
}
