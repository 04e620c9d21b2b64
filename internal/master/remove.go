package master

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
)

func (m *Master) serveHostRemove(w http.ResponseWriter, r *http.Request) {
	force := false
	var err error
	if given := r.URL.Query().Get("force"); given != "" {
		if force, err = strconv.ParseBool(given); err != nil {
			err = fault.New(fault.InvalidInput, "force %.20q: must be true or false", given)
		}
	}
	if err == nil {
		err = m.removeHost(r.Context(), host.ID(r.PathValue("node_id")), force)
	}
	m.answer(w, r, "", err)
}

// mayGo refuses to take a host out of the books that is of use, or has
// sandboxes. By force only one that still reports is refused: it is the
// operator's word that nothing runs there any more.
func (m *Master) mayGo(ctx context.Context, tx *store.Tx, f host.Facts, force bool) error {
	silent := host.HealthOf(f, tx.Now, m.cfg.Master.HostStaleAfter) == host.Unknown
	if force {
		if !silent {
			return fault.New(fault.StateConflict, "host %s reports to be there: stop its cubelet, and wait for %s", f.ID, m.cfg.Master.HostStaleAfter)
		}
		return nil
	}
	left, err := sandboxdb.CountOnHost(ctx, tx, f.ID)
	if err != nil {
		return err
	}
	kept, err := sandboxdb.CountSnapshots(ctx, tx, f.ID)
	if err != nil {
		return err
	}
	if !silent { // what is in no book counts too
		left = max(left, f.Sandboxes)
	}
	switch {
	case left > 0:
		return fault.New(fault.StateConflict, "host %s has %d sandboxes: drain it (`paddock host drain`), or use --force if it will not return and they are lost", f.ID, left)
	case kept > 0:
		return fault.New(fault.StateConflict, "host %s keeps %d snapshots: delete them (`paddock snapshot delete`), or use --force if it will not return and they are lost", f.ID, kept)
	case !f.Cordoned:
		return fault.New(fault.StateConflict, "host %s has 0 sandboxes but may get some: cordon it first (`paddock host cordon`)", f.ID)
	}
	return nil
}

// removeHost takes a host out of the books: its sandboxes are gone, and it holds
// no template. Should it return after all, it registers anew, and what it still
// has is removed as in no book.
func (m *Master) removeHost(ctx context.Context, id host.ID, force bool) error {
	var ended []sandbox.Sandbox
	err := m.update(ctx, func(tx *store.Tx) error {
		f, err := sandboxdb.GetHost(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := m.mayGo(ctx, tx, f, force); err != nil {
			return err
		}
		if ended, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{HostID: id, States: liveStates, Limit: listLimit}); err != nil {
			return err
		}
		for _, s := range ended {
			if err := m.lose(ctx, tx, s); err != nil {
				return err
			}
		}
		if err := loseSnapshots(ctx, tx, id); err != nil {
			return err
		}
		if err := templatedb.ForgetHost(ctx, tx, id); err != nil {
			return err
		}
		if err := audit(ctx, tx, actHostRemove, string(id), "sandboxes", strconv.Itoa(len(ended)), "force", strconv.FormatBool(force)); err != nil {
			return err
		}
		return sandboxdb.DeleteHost(ctx, tx, id)
	})
	if err != nil {
		return err
	}
	for _, s := range ended {
		m.fleet.ledger.Release(s.ID)
	}
	m.fleet.changed()
	m.log.WarnContext(ctx, "host removed", slog.String("host_id", string(id)), slog.Int("sandboxes", len(ended)))
	m.deliverSoon(topicRoute)
	m.sweepNow() // what waited for it can go on
	return nil
}

// lose ends a sandbox whose host is gone for good.
func (m *Master) lose(ctx context.Context, tx *store.Tx, s sandbox.Sandbox) (err error) {
	if s.State != sandbox.Terminating {
		s.Reason = "lost: its host was removed"
		if s, err = sandboxdb.MoveSandbox(ctx, tx, s, sandbox.OnEndAsked); err != nil {
			return err
		}
	}
	if _, err = sandboxdb.MoveSandbox(ctx, tx, s, sandbox.OnGone); err != nil {
		return err
	}
	return m.routeChanged(ctx, tx, s.ID)
}

// loseSnapshots ends the snapshots of a host that is gone for good.
func loseSnapshots(ctx context.Context, tx *store.Tx, id host.ID) error {
	list, err := sandboxdb.ListSnapshots(ctx, tx, sandboxdb.SnapshotFilter{HostID: id, States: shownSnapshots, Limit: listLimit})
	for _, n := range list {
		n.Error = "lost: its host was removed"
		if n, err = dropSnapshotIn(ctx, tx, n, 0); err == nil {
			_, err = sandboxdb.MoveSnapshot(ctx, tx, n, sandbox.OnSnapRemoved)
		}
		if err != nil {
			return err
		}
	}
	return err
}
