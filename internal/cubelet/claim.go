package cubelet

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
)

// lastName bounds how long what is of no use may take to end before the
// sandbox that needs its place is started anew.
const lastName = 10 * time.Second

// claim makes s of w, which waited for it. The journal's word comes first:
// before it w is one that belongs to nobody, and after it s is a sandbox that
// was never whole, and in both cases a crash leaves nothing. When it fails s
// has nothing any more and can be built.
func (c *Cubelet) claim(ctx context.Context, s *instance) error {
	w := s.ahead
	s.ahead = nil
	s.mounted, w.mounted = true, false
	err := c.dress(ctx, s, w.entry.Kernel)
	if err == nil {
		c.metrics.starts.WithLabelValues("warm").Inc()
		return nil
	}
	if ctx.Err() != nil {
		return err // whoever removes s removes what w had
	}
	c.log.WarnContext(ctx, "a sandbox that waited was of no use; another is started", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
	return c.undress(ctx, s, w)
}

// dress gives what waits its name, limits, network and settings.
func (c *Cubelet) dress(ctx context.Context, s *instance, kernel runtime.Process) error {
	if err := c.timed(s, "claim", func() error { return c.journal.put(s.entry) }); err != nil {
		return fault.Wrap(fault.DataDir, err, "journal of sandbox %s", s.id)
	}
	c.mu.Lock()
	s.entry.Kernel = kernel
	c.mu.Unlock()
	if err := point(ctx, "cubelet.claim.journal"); err != nil {
		return err
	}
	if !kernel.Alive() {
		return errors.New("it had ended")
	}
	var parts errgroup.Group
	parts.Go(func() error { return c.timed(s, "network", func() error { return c.nets.Permit(ctx, ways(s.entry)) }) })
	parts.Go(func() error {
		return c.timed(s, "cgroup", func() error {
			return errors.Join(s.group.LimitMemory(s.entry.Resources.MemBytes), s.group.Weigh(100))
		})
	})
	if err := parts.Wait(); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "sandbox %s", s.id)
	}
	if err := point(ctx, "cubelet.claim.parts"); err != nil {
		return err
	}
	tell := settingsOf(s.entry)
	tell.Hostname, tell.Resolver = s.entry.Hostname, resolvConf(s.entry, hostResolver)
	if err := c.timed(s, "init", func() error {
		return s.whileAlive(ctx, func(ctx context.Context) error { return s.guest.init(ctx, tell) })
	}); err != nil {
		return err
	}
	return point(ctx, "cubelet.claim.init")
}

// undress gives what w had back, and s what it needs to be built.
func (c *Cubelet) undress(ctx context.Context, s, w *instance) error {
	c.metrics.starts.WithLabelValues("warm_failed").Inc()
	w.mounted, s.mounted = true, false
	c.end(w, "it was of no use", nil)
	bounded, cancel := context.WithTimeout(ctx, lastName)
	defer cancel()
	select {
	case <-w.gone:
	case <-bounded.Done():
		// It is being removed, and s must not have a part in it.
	}
	net, err := c.nets.Reserve(s.id)
	if err != nil {
		return fault.Wrap(fault.HostFull, err, "network of sandbox %s", s.id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.entry.Box, s.entry.Network, s.entry.Kernel = "", net, runtime.Process{}
	s.group = c.cgroups.Group(s.id)
	s.guest = newGuestClient(net.IP, s.entry.AccessToken)
	s.box = c.boxOf(s.entry, s.group)
	return errCold
}

// errCold is what a claim answers that came to nothing.
var errCold = errors.New("to be started from the beginning")
