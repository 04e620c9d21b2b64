package master

import (
	"context"
	"errors"
	"log/slog"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const reasonDrained = "drained"

// sweepDrains ends what is left on hosts whose drain is over. A host that does
// not answer holds up nobody: the outbox calls it.
func (m *Master) sweepDrains(ctx context.Context) error {
	var left []sandbox.Sandbox
	err := m.db.View(ctx, func(tx *store.Tx) error {
		left = nil
		hosts, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil {
			return err
		}
		for _, f := range hosts {
			if !f.Wish.Drain.Due(tx.Now) || len(left) >= sweepLimit {
				continue
			}
			some, err := sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{
				HostID: f.ID, States: []sandbox.State{sandbox.Allocating, sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.RollingBack}, Limit: sweepLimit, OldestFirst: true,
			})
			if err != nil {
				return err
			}
			left = append(left, some...)
		}
		return nil
	})
	errs := []error{err}
	for _, s := range left {
		errs = append(errs, m.endDrained(ctx, s.ID, s.HostID))
	}
	return errors.Join(errs...)
}

// endDrained ends a sandbox of a host that is to be empty by now, unless that
// was called off or the sandbox has moved.
func (m *Master) endDrained(ctx context.Context, id sandbox.ID, at host.ID) error {
	ended := false
	err := m.update(ctx, func(tx *store.Tx) error {
		ended = false
		f, err := sandboxdb.GetHost(ctx, tx, at)
		if errors.Is(err, fault.HostUnknown) || err == nil && !f.Wish.Drain.Due(tx.Now) {
			return nil
		}
		if err != nil {
			return err
		}
		s, err := sandboxdb.GetSandbox(ctx, tx, id)
		if err != nil {
			return err
		}
		if ended = s.HostID == at && s.State != sandbox.Terminating && s.State != sandbox.Terminated; ended {
			_, err = m.endIn(ctx, tx, id, reasonDrained, 0)
		}
		return err
	})
	if err != nil || !ended {
		return err
	}
	m.log.InfoContext(ctx, "sandbox of a host that is drained is ended", slog.String("sandbox_id", string(id)), slog.String("host_id", string(at)))
	m.deliverSoon(topicSandboxDelete)
	return nil
}
