package cubelet

import (
	"context"
	"errors"
	"log/slog"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
)

// Pause keeps a sandbox on disk, with its memory or without, and gives back
// what it had of the host but disk. The same generation again joins the first
// call, or answers what it came to. A pause that fails leaves the sandbox
// running: fault.CannotKeep.
func (c *Cubelet) Pause(ctx context.Context, id string, generation int64, withMemory bool, reason string) error {
	c.mu.Lock()
	s, p, mine, err := c.meetLocked(id, toPause, generation, running)
	keeping := err == nil && mine && s.state == running
	if keeping {
		s.state, s.reason = pausing, reason
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		return err
	case keeping:
		c.pass(ctx, s, p, keepTime, func(ctx context.Context) error { return c.pause(ctx, s, generation, withMemory, reason) })
	case mine:
		c.pass(ctx, s, p, keepTime, func(context.Context) error { return c.noted(s) })
	}
	return p.wait(ctx)
}

func (c *Cubelet) pause(ctx context.Context, s *instance, generation int64, withMemory bool, reason string) error {
	s.life.Lock()
	err := c.rest(ctx, s, generation, withMemory)
	if err != nil {
		err = c.goOn(ctx, s, generation, voided(ctx, fault.CannotKeep, s, err))
	}
	s.life.Unlock()
	if err != nil {
		return err
	}
	c.log.InfoContext(ctx, "sandbox paused", slog.String("sandbox_id", s.id), slog.Int64("generation", generation), slog.String("reason", reason))
	c.settleDown(s)
	return nil
}

// rest keeps s, and then s is paused: the journal's word decides. The caller
// has its life.
func (c *Cubelet) rest(ctx context.Context, s *instance, generation int64, withMemory bool) error {
	if err := c.step(s, func(e *entry) { e.Phase = toPause }); err != nil {
		return err
	}
	if err := point(ctx, "cubelet.pause.journal"); err != nil {
		return err
	}
	k, err := c.keep(ctx, s, c.keptPath(s, generation), withMemory)
	if err != nil {
		return err
	}
	if err := point(ctx, "cubelet.pause.kept"); err != nil {
		return err
	}
	// What the guest answers from here on counts for nothing: its callers go.
	if err := c.step(s, func(e *entry) { e.Phase, e.Kept = atRest, &k }); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.ending {
		return errDeleted
	}
	s.state = paused
	s.still()
	return nil
}

// step writes a change of the entry of s, which holds once it is written. A
// sandbox that is being removed has no more steps.
func (c *Cubelet) step(s *instance, change func(*entry)) error {
	c.mu.Lock()
	e, ending := s.entry, s.ending
	c.mu.Unlock()
	if ending {
		return errDeleted
	}
	change(&e)
	if err := c.journal.put(e); err != nil {
		return fault.Wrap(fault.DataDir, err, "journal of sandbox %s", s.id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.entry = e
	return nil
}

// goOn has s run as before, after a passage that failed because of why. One
// that is being removed is left as it is.
func (c *Cubelet) goOn(ctx context.Context, s *instance, generation int64, why error) error {
	errs := []error{why}
	err := c.step(s, func(e *entry) { e.Phase, e.Kept, e.Failed = "", nil, failed(generation, why) })
	if errors.Is(err, errDeleted) {
		return why
	}
	if err != nil {
		// The journal's last word is that it was about to change: whoever reads
		// that while the sandbox runs has it go on, too.
		c.mu.Lock()
		s.entry.Phase, s.entry.Kept, s.entry.Failed = "", nil, failed(generation, why)
		c.mu.Unlock()
	}
	errs = append(errs, err, c.thaw(ctx, s), c.dropKept(s, ""))
	c.mu.Lock()
	if !s.ending {
		s.state, s.reason = running, ""
	}
	dead := !s.ending && !s.entry.Kernel.Alive()
	c.mu.Unlock()
	if dead {
		c.work.Go(func() { c.died(s) }) // it takes the life that the caller has
	}
	return errors.Join(errs...)
}

// settleDown gives back what a kept sandbox had, behind whoever waits when it
// takes long.
func (c *Cubelet) settleDown(s *instance) {
	done := make(chan struct{})
	c.work.Go(func() {
		defer close(done)
		c.persist(s, "giving back a paused sandbox's resources failed", func(ctx context.Context) error {
			if err := c.release(ctx, s); err != nil {
				return err
			}
			s.life.Lock()
			defer s.life.Unlock()
			c.mu.Lock()
			k := s.entry.Kept
			c.mu.Unlock()
			err := c.step(s, func(e *entry) { e.Kernel = runtime.Process{} })
			if errors.Is(err, errDeleted) {
				return nil // the journal is being removed
			}
			return errors.Join(err, c.dropKept(s, k.Dir))
		})
		c.tellSoon()
	})
	soon(done)
}
