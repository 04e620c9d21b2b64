package cubelet

import (
	"context"
	"path/filepath"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Rollback gives a sandbox, which runs or is paused, the state of a snapshot
// under the same id. What can be refused is refused first, and then it runs, or
// is kept, as before. From then on it is kept with the snapshot's state, and
// resumed: when that fails it stays paused with it. fault.CannotRollBack says
// either.
func (c *Cubelet) Rollback(ctx context.Context, id, snapshotID string, generation int64) error {
	c.mu.Lock()
	s, p, mine, err := c.meetLocked(id, toSnapshot, generation, running, paused)
	var k *snapshot
	was := running
	if err == nil && mine {
		was = s.state
		if k, err = c.backLocked(s, snapshotID); err != nil {
			c.unmeetLocked(s, p)
		}
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if mine {
		c.pass(ctx, s, p, keepTime+c.cfg.Cubelet.StartTimeout+s.entry.Probe.Limit(), func(ctx context.Context) error { return c.rollBack(ctx, s, k, was) })
	}
	return p.wait(ctx)
}

// backLocked holds the snapshot that s is to go back to.
func (c *Cubelet) backLocked(s *instance, snapshotID string) (*snapshot, error) {
	if snapshotID == "" {
		return nil, fault.New(fault.InvalidInput, "sandbox %s: no snapshot is named", s.id)
	}
	e := s.entry
	e.Snapshot = snapshotID
	if _, err := c.originLocked(e); err != nil {
		return nil, err
	}
	if s.state == paused && s.charged {
		return nil, fault.New(fault.SandboxNotReady, "sandbox %s is being paused still", s.id)
	}
	s.state = rollingBack
	k := c.snaps[snapshotID]
	k.refs++
	return k, nil
}

func (c *Cubelet) rollBack(ctx context.Context, s *instance, k *snapshot, was state) error {
	s.life.Lock()
	err := c.giveUp(ctx, s, k)
	if err != nil {
		err = voided(ctx, fault.CannotRollBack, s, err)
		if was == running {
			err = c.goOn(ctx, s, s.entry.Generation, err)
		} else {
			err = c.stayKept(s, err)
		}
	}
	s.life.Unlock()
	if err == nil {
		err = point(ctx, "cubelet.rollback.given")
	}
	c.mu.Lock()
	c.unrefLocked(k)
	if s.state != rollingBack { // it goes on, or is being removed
		c.mu.Unlock()
		return voided(ctx, fault.CannotRollBack, s, err)
	}
	// What s has of the host is its next life's, and nobody else's.
	var n *instance
	s.charged = false
	if err == nil {
		n, err = c.nextLocked(s, toSnapshot, s.entry.Generation)
	}
	if err != nil {
		err = fault.Wrap(fault.CannotRollBack, err, "sandbox %s is paused, with the state of snapshot %s", s.id, k.ID)
		s.charged = was == running
		s.state, s.entry.Phase, s.entry.Failed = paused, atRest, failed(s.entry.Generation, err)
		c.mu.Unlock()
		c.settleDown(s)
		return err
	}
	ctx, n.abort = context.WithCancelCause(ctx)
	c.mu.Unlock()
	if was == running && !c.persist(s, "ending a sandbox that goes back failed", func(ctx context.Context) error { return c.release(ctx, s) }) {
		close(n.made)
		return fault.Wrap(fault.HostUnreachable, errStopping, "sandbox %s", s.id)
	}
	return c.resume(ctx, s, n, fault.CannotRollBack)
}

// giveUp puts the snapshot's state into the place of that of s: from the
// journal's word on s is kept with it, and its processes count for nothing.
func (c *Cubelet) giveUp(ctx context.Context, s *instance, k *snapshot) error {
	if err := c.step(s, func(e *entry) { e.Phase = toSnapshot }); err != nil {
		return err
	}
	if err := point(ctx, "cubelet.rollback.journal"); err != nil {
		return err
	}
	path := c.keptPath(s, s.entry.Generation)
	err := share(c.snapshotPath(k.ID), path)
	if err == nil {
		err = syncTree(path)
	}
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "state of sandbox %s", s.id)
	}
	if err := point(ctx, "cubelet.rollback.kept"); err != nil {
		return err
	}
	has := k.kept
	has.Dir = filepath.Base(path)
	if err := c.step(s, func(e *entry) { e.Kept = &has }); err != nil {
		return err
	}
	s.still()
	return nil
}

// stayKept has s be paused as before, after a rollback that failed because of
// why.
func (c *Cubelet) stayKept(s *instance, why error) error {
	generation := s.entry.Generation
	if err := c.step(s, func(e *entry) { e.Phase, e.Failed = atRest, failed(generation, why) }); err == nil {
		err = c.dropKept(s, s.entry.Kept.Dir)
		if err != nil {
			c.log.WarnContext(c.base, "state is left until the sandbox's next life", "sandbox_id", s.id, "error", err.Error())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.ending {
		s.state = paused
	}
	return why
}
