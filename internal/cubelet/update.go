package cubelet

import (
	"context"
	"errors"
	"log/slog"

	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/fault"
)

// driverName is the runtime of this host's sandboxes.
const driverName = "runsc"

// Update changes what a sandbox may reach, and which of its ports others may,
// unless a revision as late holds already. What it may not reach any more it has
// no connection to when the call returns. The journal comes after the rules: a
// cubelet that is killed between lays the earlier ones again, says so, and is
// told once more.
func (c *Cubelet) Update(ctx context.Context, id string, revision int64, egress *network.Policy, ports []int32) error {
	s, err := c.find(id)
	if err != nil {
		return err
	}
	s.life.Lock()
	defer s.life.Unlock()
	c.mu.Lock()
	e, is, over := s.entry, s.state, s.ending || s.next != nil
	c.mu.Unlock()
	switch {
	case over || is == exited:
		return fault.New(fault.SandboxGone, "sandbox %s is %s, or went on to another life", s.id, is)
	case is != running && is != paused:
		return fault.New(fault.SandboxNotReady, "sandbox %s is %s", s.id, is)
	case revision <= e.NetworkRevision:
		return nil
	}
	next := e
	next.Egress, next.Ports, next.NetworkRevision = egress, ports, revision
	if is == running {
		if err := c.reroute(ctx, s, e, next); err != nil {
			return fault.Wrap(fault.RuntimeFailed, err, "network of sandbox %s", s.id)
		}
	}
	err = c.step(s, func(e *entry) { e.Egress, e.Ports, e.NetworkRevision = egress, ports, revision })
	if errors.Is(err, errDeleted) {
		err = fault.Wrap(fault.SandboxGone, errDeleted, "sandbox %s", s.id)
	}
	return err
}

// reroute lays the rules of next for a sandbox that runs as before says, and
// tells it whom to ask for names.
func (c *Cubelet) reroute(ctx context.Context, s *instance, before, next entry) error {
	y := network.Policy{}
	if next.Egress != nil {
		y = *next.Egress
	}
	if err := c.nets.Change(ctx, next.Network, y); err != nil {
		return err
	}
	resolve := resolvConf(next, hostResolver)
	if resolve == resolvConf(before, hostResolver) {
		return nil
	}
	bounded, cancel := s.during(ctx)
	defer cancel()
	// A guest that does not answer is its own loss: the rules hold.
	if err := s.guest.init(bounded, settings{Resolver: resolve}); err != nil {
		c.log.WarnContext(ctx, "a sandbox was not told whom to ask for names", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
	}
	return nil
}
