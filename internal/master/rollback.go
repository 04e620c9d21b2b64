package master

import (
	"context"
	"net/http"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

func (m *Master) serveRollback(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.RollbackRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	if err == nil {
		err = checkID(req.SandboxID)
	}
	if err == nil {
		err = checkSnapshotID(req.SnapshotID)
	}
	var s sandbox.Sandbox
	if err == nil {
		s, err = m.rollback(r.Context(), sandbox.ID(req.SandboxID), sandbox.SnapshotID(req.SnapshotID))
	}
	m.answerSandbox(w, r, req.RequestID, s, err, warnings(unknown)...)
}

// rollback gives a sandbox that runs the state of a snapshot of its own, or of
// the one that it began with.
func (m *Master) rollback(whole context.Context, id sandbox.ID, to sandbox.SnapshotID) (s sandbox.Sandbox, err error) {
	ctx, cancel := context.WithTimeout(whole, m.cfg.Master.LifeTimeout)
	defer cancel()
	for {
		if s, err = m.atRest(ctx, id); err != nil {
			return s, err
		}
		if s.State != sandbox.Running {
			return s, unfit(s)
		}
		var moved bool
		s, moved, err = m.ask(ctx, id, sandbox.OnRollbackAsked, func(tx *store.Tx, s *sandbox.Sandbox) error {
			n, err := readySnapshot(ctx, tx, to)
			if err != nil {
				return err
			}
			if n.SandboxID != id && s.Life.Snapshot != to || n.HostID != s.HostID {
				return fault.New(fault.InvalidInput, "snapshot %s is of sandbox %s: a sandbox goes back to its own snapshots, or to the one that it began with", to, n.SandboxID)
			}
			s.Life.Wish = sandbox.Wish{Snapshot: to}
			return audit(ctx, tx, actSandboxRollback, string(id), "snapshot", string(to))
		})
		if err == nil && !moved {
			s, err = m.fulfil(ctx, s, sandbox.Running)
			if err == nil && s.Life.Snapshot != to && s.Reason != "" {
				err = fault.New(fault.CannotRollBack, "sandbox %s runs as before: %s", id, s.Reason)
			}
		}
		if err != nil || !moved {
			return s, err
		}
	}
}

// readySnapshot returns a snapshot that can be begun with.
func readySnapshot(ctx context.Context, tx *store.Tx, id sandbox.SnapshotID) (sandbox.Snapshot, error) {
	n, err := sandboxdb.GetSnapshot(ctx, tx, id)
	if err == nil && n.State == sandbox.SnapGone {
		return n, fault.New(fault.SnapshotNotFound, "snapshot %s was deleted", id)
	}
	if err == nil && n.State != sandbox.SnapReady {
		err = fault.New(fault.SnapshotNotReady, "snapshot %s is %s %s", id, n.State, n.Error)
	}
	return n, err
}
