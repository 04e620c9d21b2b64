package cubelet

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
)

// Resume brings a paused sandbox back, with the memory that it was kept with;
// without it, its program starts anew on the files that it had. It is admitted
// as a create is. The same generation again joins the first call, or answers
// what it came to. A resume that fails leaves the sandbox kept:
// fault.CannotResume.
func (c *Cubelet) Resume(ctx context.Context, id string, generation int64) error {
	for {
		c.mu.Lock()
		s, p, mine, err := c.meetLocked(id, toRun, generation, paused)
		var n *instance
		if err == nil && mine && s.state == paused {
			if n, err = c.nextLocked(s, toRun, generation); err != nil {
				c.unmeetLocked(s, p)
			}
		}
		c.mu.Unlock()
		if again, err := yielded(ctx, err); again {
			continue
		} else if err != nil {
			return err
		}
		switch {
		case n != nil:
			c.pass(ctx, n, p, c.cfg.Cubelet.StartTimeout+n.entry.Probe.Limit(), func(ctx context.Context) error { return c.resume(ctx, s, n, fault.CannotResume) })
		case mine:
			c.pass(ctx, s, p, keepTime, func(context.Context) error { return c.noted(s) })
		}
		return p.wait(ctx)
	}
}

// unmeetLocked takes back that a passage was begun that nothing was done for:
// it can be asked for again.
func (c *Cubelet) unmeetLocked(s *instance, p *passage) {
	delete(c.passages, s.id)
	s.entry.Generation, s.entry.Failed = p.before, p.lost
	close(p.done)
}

// yielded waits for the room that err speaks of, when it is only that; again
// reports whether it is there.
func yielded(ctx context.Context, err error) (again bool, _ error) {
	y := (*yielding)(nil)
	if !errors.As(err, &y) {
		return false, err
	}
	select {
	case <-y.going.gone:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// nextLocked makes the instance of the next life of s, which is kept, charged
// for all that it needs. s stays as it is.
func (c *Cubelet) nextLocked(s *instance, way phase, generation int64) (*instance, error) {
	if s.charged && s.state == paused {
		return nil, fault.New(fault.SandboxNotReady, "sandbox %s is being paused still", s.id)
	}
	e := s.entry
	if err := c.roomLocked(e, s.holds()); err != nil {
		return nil, err
	}
	net, err := c.reserveLocked(e.ID)
	if err != nil {
		return nil, err
	}
	e.Network, e.Released, e.Kernel, e.Steps, e.Phase, e.Generation, e.Failed = net, false, runtime.Process{}, nil, way, generation, nil
	n := c.newInstance(e)
	n.state = map[phase]state{toRun: resuming, toSnapshot: rollingBack}[way]
	c.succeedLocked(s, n)
	c.yieldLocked(time.Now())
	return n, nil
}

// reserveLocked reserves a network, or has one that waits give its own up.
func (c *Cubelet) reserveLocked(id string) (network.Network, error) {
	n, err := c.nets.Reserve(id)
	if err == nil {
		return n, nil
	}
	if going := c.spareLocked(time.Now()); going != nil {
		return n, &yielding{going, err}
	}
	return n, c.fullLocked(fault.Wrap(fault.HostFull, err, "network of sandbox %s", id))
}

// succeedLocked puts n into the place of s: whoever has s is led on.
func (c *Cubelet) succeedLocked(s, n *instance) {
	s.next = n
	c.live[s.id] = n
	c.countLocked()
}

// resume makes n run from what s is kept as. When that fails the sandbox is
// kept as before.
func (c *Cubelet) resume(ctx context.Context, s, n *instance, code *fault.Code) error {
	n.life.Lock()
	err := c.wake(ctx, n)
	n.life.Unlock()
	c.mu.Lock()
	if err == nil && !n.ending {
		n.state = running
		close(n.made)
		c.mu.Unlock()
		c.watch(n)
		c.log.InfoContext(ctx, "sandbox resumed", slog.String("sandbox_id", n.id), slog.Int64("generation", n.entry.Generation))
		n.life.Lock()
		err := c.dropKept(n, "")
		n.life.Unlock()
		if err != nil {
			c.log.WarnContext(ctx, "kept state is left until the sandbox's next life", slog.String("sandbox_id", n.id), slog.String("error", err.Error()))
		}
		return nil
	}
	if err == nil || n.ending {
		close(n.made)
		c.mu.Unlock()
		return fault.Wrap(fault.SandboxGone, errors.Join(errDeleted, err), "sandbox %s", n.id)
	}
	c.mu.Unlock()
	return c.keepOn(ctx, s, n, voided(ctx, code, n, err))
}

// wake starts n. The caller has its life.
func (c *Cubelet) wake(ctx context.Context, n *instance) error {
	n.from = &origin{path: filepath.Join(c.journal.path(n.box.ID), n.entry.Kept.Dir), memory: n.entry.Kept.WithMemory, token: n.entry.Kept.Token}
	if err := c.build(ctx, n); err != nil {
		return err
	}
	if err := c.tellLife(ctx, n); err != nil {
		return err
	}
	c.mu.Lock()
	n.entry.Phase, n.entry.Kept = "", nil
	c.mu.Unlock()
	return c.serve(ctx, n)
}

// keepOn has the sandbox be kept as before, when its next life n came to
// nothing because of why.
func (c *Cubelet) keepOn(ctx context.Context, s, n *instance, why error) error {
	c.mu.Lock()
	e := s.entry // n's has lost what it was kept as
	e.Generation, e.Failed, e.Phase = n.entry.Generation, failed(n.entry.Generation, why), atRest
	e.Network, e.Released, e.Kernel = n.entry.Network, n.entry.Released, n.entry.Kernel
	n.entry = e
	c.mu.Unlock()
	c.persist(n, "giving back what a resume took failed", func(ctx context.Context) error {
		if err := c.release(ctx, n); err != nil {
			return err
		}
		n.life.Lock()
		defer n.life.Unlock()
		c.mu.Lock()
		ending := n.ending
		c.mu.Unlock()
		if ending {
			return nil
		}
		e.Released, e.Kernel = true, runtime.Process{}
		return c.journal.put(e)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(n.made)
	if n.ending {
		return why
	}
	back := c.newInstance(e)
	back.state, back.charged, back.reason = paused, false, s.reason
	close(back.made)
	c.succeedLocked(n, back)
	return why
}
