package cubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// Delete ends a sandbox and returns when nothing of it is left. It reports
// whether the host knew it. It wins over a create that is still on its way; and
// what it began goes on when ctx ends.
func (c *Cubelet) Delete(ctx context.Context, id, reason string) (existed bool, err error) {
	c.mu.Lock()
	s, ok := c.live[id]
	if ok {
		c.endLocked(s, reason, errDeleted)
	}
	c.mu.Unlock()
	if !ok {
		return false, nil
	}
	select {
	case <-s.gone:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// end has a sandbox removed, in whichever life it is by now, and returns that.
// Its create, or what else is on its way, is given up because of cause.
func (c *Cubelet) end(s *instance, reason string, cause error) *instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endLocked(s, reason, cause)
}

func (c *Cubelet) endLocked(s *instance, reason string, cause error) *instance {
	for s.next != nil {
		s = s.next
	}
	if s.ending {
		return s
	}
	s.ending, s.state, s.reason = true, stopping, reason
	s.still()
	s.abort(cause)
	c.work.Go(func() { c.remove(s) })
	return s
}

// remove removes everything of s, again and again until nothing is left. What
// is left when the cubelet stops, the next start finds in the journal.
func (c *Cubelet) remove(s *instance) {
	<-s.made
	ok := c.persist(s, "removing a sandbox failed", func(ctx context.Context) error {
		if err := c.release(ctx, s); err != nil {
			return err
		}
		return c.journal.remove(s.box.ID)
	})
	if !ok {
		return
	}
	c.mu.Lock()
	if c.live[s.id] == s {
		delete(c.live, s.id)
	}
	delete(c.warm.all, s.id)
	c.metrics.running.Set(float64(len(c.live)))
	c.mu.Unlock()
	close(s.gone)
	c.tellSoon()
}

// persist tries do until it succeeds or the cubelet has stopped; at least once.
func (c *Cubelet) persist(s *instance, complaint string, do func(context.Context) error) bool {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		// On no caller's context: one that went away must leave nothing behind.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.base), undoTime)
		err := do(ctx)
		cancel()
		if err == nil {
			return true
		}
		c.log.ErrorContext(c.base, complaint, slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
		select {
		case <-c.base.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// release gives back what s has of the host, whatever of it exists. It can be
// run again. The journal stays.
func (c *Cubelet) release(ctx context.Context, s *instance) error {
	s.life.Lock()
	defer s.life.Unlock()
	s.guest.close()
	// First what uses the rest.
	if err := s.group.Destroy(ctx); err != nil {
		return err
	}
	if err := c.driver.Delete(ctx, s.box.ID); err != nil {
		return err
	}
	var parts errgroup.Group
	parts.Go(func() error { return c.dropNetwork(s) })
	parts.Go(func() error { return os.RemoveAll(filepath.Join(c.journal.path(s.box.ID), "runtime")) })
	var err error
	if s.mounted {
		if err = c.mounts.Release(s.entry.ArtifactID); err == nil {
			s.mounted = false
		}
	}
	if err := errors.Join(err, parts.Wait()); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.charged {
		s.charged = false
		c.countLocked()
	}
	return nil
}

// dropNetwork gives the network back, once: another sandbox may have the
// address the moment it is free.
func (c *Cubelet) dropNetwork(s *instance) error {
	if s.entry.Released {
		return nil
	}
	err := c.nets.Destroy(s.entry.Network)
	c.mu.Lock()
	defer c.mu.Unlock()
	s.entry.Released = err == nil
	return err
}

// watch follows the kernel of s until it ends or the cubelet stops.
func (c *Cubelet) watch(s *instance) {
	kernel := s.entry.Kernel
	c.work.Go(func() {
		if err := kernel.Wait(c.base); err == nil {
			c.died(s)
		} else if c.base.Err() == nil {
			c.log.ErrorContext(c.base, "a sandbox cannot be watched", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
		}
	})
}

// died notes that a sandbox ended by itself and gives back what it had. It is
// told of until somebody deletes it.
func (c *Cubelet) died(s *instance) {
	cause, reason := deathOf(s)
	if !c.markExited(s, reason) {
		return // somebody ended it
	}
	c.metrics.ended.WithLabelValues(cause).Inc()
	c.log.WarnContext(c.base, "sandbox ended by itself", slog.String("sandbox_id", s.id), slog.String("reason", reason))
	c.tellSoon()
	c.persist(s, "giving back an ended sandbox's resources failed", func(ctx context.Context) error {
		if err := c.release(ctx, s); err != nil {
			return err
		}
		s.life.Lock()
		defer s.life.Unlock()
		c.mu.Lock()
		e, ending := s.entry, s.ending
		c.mu.Unlock()
		if ending {
			return nil // the journal is being removed
		}
		return c.journal.put(e)
	})
	c.tellSoon()
}

func (c *Cubelet) markExited(s *instance, reason string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.state != running {
		return false
	}
	s.still()
	s.state, s.reason = exited, reason
	s.entry.EndedAt, s.entry.Reason = time.Now().UTC(), reason
	return true
}

// deathOf says why a sandbox ended by itself, in a word and in a sentence.
func deathOf(s *instance) (cause, reason string) {
	switch {
	case s.group.OOMKills() > 0:
		return "oom", fmt.Sprintf("oom: it needed more than its %d MiB of memory", s.entry.Resources.MemBytes>>20)
	case s.group.PIDRefusals() > 0:
		return "pids", fmt.Sprintf("pids: its processes needed more than %d processes of the host", maxPIDs)
	}
	return "exited", "exited: its first process ended"
}
