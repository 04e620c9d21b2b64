package master

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	// snapshotCreator holds the submissions of snapshots.
	snapshotCreator = "snapshot"
	maxSnapshotName = 128
)

func showSnapshot(n sandbox.Snapshot) cubeapi.Snapshot {
	return cubeapi.Snapshot{
		SnapshotID: string(n.ID), Name: n.Name, Status: cubeapi.SnapshotStatus.Word(n.State), SandboxID: string(n.SandboxID), TemplateID: string(n.TemplateID), HostID: string(n.HostID), Driver: n.Driver,
		Memory: n.WithMemory, SizeBytes: n.Bytes, Error: n.Error, CreatedAt: stamp(n.CreatedAt),
	}
}

func (m *Master) answerSnapshot(w http.ResponseWriter, r *http.Request, id string, n sandbox.Snapshot, err error, said ...string) {
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	shown := showSnapshot(n)
	answer := cubeapi.SnapshotAnswer{Envelope: cubeapi.OK(named(r, id)), Snapshot: &shown}
	answer.Warnings = said
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.SnapshotRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	if err == nil {
		err = checkID(req.SandboxID)
	}
	if err == nil {
		err = checkRequestID(req.RequestID)
	}
	if err == nil && (len(req.Name) > maxSnapshotName || !isName(req.Name)) {
		err = fault.New(fault.InvalidInput, "name %.64q: at most %d bytes of text", req.Name, maxSnapshotName)
	}
	var n sandbox.Snapshot
	if err == nil {
		n, err = m.snapshot(r.Context(), req, 0)
	}
	m.answerSnapshot(w, r, req.RequestID, n, err, warnings(unknown)...)
}

// snapshot keeps the state of a sandbox, which goes on, and returns when it is
// kept. With a time it is deleted after that. The same request again answers the
// same snapshot.
func (m *Master) snapshot(whole context.Context, req cubeapi.SnapshotRequest, lasts time.Duration) (n sandbox.Snapshot, err error) {
	ctx, cancel := context.WithTimeout(whole, m.cfg.Master.LifeTimeout)
	defer cancel()
	sub := store.Submission{Holder: snapshotCreator, ID: req.RequestID}
	if req.RequestID != "" {
		body, err := json.Marshal(req)
		if err != nil {
			return n, err
		}
		sum := sha256.Sum256(body)
		sub.Fingerprint = sum[:]
		if n, found, err := m.earlierSnapshot(ctx, sub); err != nil || found {
			return n, err
		}
	}
	s, err := m.atRest(ctx, sandbox.ID(req.SandboxID))
	if err != nil {
		return n, err
	}
	if s.State != sandbox.Running && s.State != sandbox.Paused {
		return n, unfit(s)
	}
	client, err := m.hostOf(ctx, s.HostID)
	if err != nil {
		return n, err
	}
	// Which bytes it is over, its host knows: its template may be made of others
	// by now.
	bounded, done := context.WithTimeout(ctx, hostCall)
	shown, err := client.GetSandbox(bounded, sandboxOf(s.ID))
	done()
	if err = hostFault(ctx, err, s.HostID); err != nil {
		return n, err
	}
	fresh := sandbox.Snapshot{
		ID: sandbox.SnapshotID(id.New(sandbox.SnapshotPrefix)), Name: req.Name, SandboxID: s.ID, TemplateID: s.TemplateID, ArtifactID: artifactIn(shown.GetSandbox()), HostID: s.HostID,
		Driver: shown.GetSandbox().GetDriver(), WithMemory: req.Memory == nil || *req.Memory, Request: s.Request,
	}
	err = m.update(ctx, func(tx *store.Tx) error {
		add := func() ([]byte, error) {
			one := fresh
			if lasts > 0 {
				one.ExpiresAt = tx.Now.Add(lasts)
			}
			var err error
			if n, err = sandboxdb.AddSnapshot(ctx, tx, one); err != nil {
				return nil, err
			}
			if err := audit(ctx, tx, actSnapshot, string(n.ID), "sandbox", string(s.ID), "memory", strconv.FormatBool(n.WithMemory)); err != nil {
				return nil, err
			}
			return []byte(n.ID), enqueueSnapshot(ctx, tx, n.ID, followUp)
		}
		if sub.ID == "" {
			_, err := add()
			return err
		}
		answer, err := tx.Once(ctx, sub, add)
		if err == nil && string(answer) != string(n.ID) {
			n, err = sandboxdb.GetSnapshot(ctx, tx, sandbox.SnapshotID(answer))
		}
		return err
	})
	if err != nil {
		return n, err
	}
	if err := m.step("master.snapshot.after_commit"); err != nil {
		return n, err
	}
	return m.keptSnapshot(ctx, n, req.Memory != nil && *req.Memory)
}

// earlierSnapshot finds what the same request made, and waits for it. One that
// failed counts for nothing.
func (m *Master) earlierSnapshot(ctx context.Context, sub store.Submission) (n sandbox.Snapshot, found bool, err error) {
	for pause := firstDelay; ; pause = min(2*pause, maxDelay) {
		err = m.update(ctx, func(tx *store.Tx) error {
			answer, err := tx.Once(ctx, sub, func() ([]byte, error) { return nil, errFirst })
			if errors.Is(err, errFirst) {
				found = false
				return nil
			}
			if err != nil {
				return err
			}
			n, err = sandboxdb.GetSnapshot(ctx, tx, sandbox.SnapshotID(answer))
			found = err == nil && (n.State == sandbox.SnapReady || n.State == sandbox.SnapCreating)
			if found || err != nil && !errors.Is(err, fault.SnapshotNotFound) {
				return err
			}
			return tx.Forget(ctx, sub.Holder, sub.ID, answer)
		})
		if err != nil || !found || n.State == sandbox.SnapReady {
			return n, found, err
		}
		if wait(ctx, pause) != nil {
			return n, true, fault.Wrap(fault.SnapshotNotReady, ctx.Err(), "snapshot %s of this request is being made", n.ID)
		}
	}
}

func (m *Master) serveSnapshots(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	answer := cubeapi.SnapshotListAnswer{Envelope: cubeapi.OK(requestID(r)), Data: []cubeapi.Snapshot{}}
	f := sandboxdb.SnapshotFilter{SandboxID: sandbox.ID(q.Get("sandbox_id")), After: sandbox.SnapshotID(q.Get("cursor")), States: shownSnapshots}
	limit, err := limitOf(r)
	if err == nil && f.After != "" {
		if checkSnapshotID(string(f.After)) != nil {
			err = fault.New(fault.InvalidInput, "cursor: it is none that this list gave")
		}
	}
	if err == nil {
		f.Limit = limit + 1
		err = m.db.View(r.Context(), func(tx *store.Tx) error {
			list, err := sandboxdb.ListSnapshots(r.Context(), tx, f)
			answer.Data = answer.Data[:0]
			for i, n := range list {
				if i == limit {
					answer.Next = string(list[limit-1].ID)
					break
				}
				answer.Data = append(answer.Data, showSnapshot(n))
			}
			return err
		})
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// shownSnapshots are the states of snapshots that are listed.
var shownSnapshots = []sandbox.SnapshotState{sandbox.SnapCreating, sandbox.SnapReady, sandbox.SnapFailed, sandbox.SnapDeleting}

func (m *Master) serveSnapshotInfo(w http.ResponseWriter, r *http.Request) {
	given := r.URL.Query().Get("snapshot_id")
	err := checkSnapshotID(given)
	var n sandbox.Snapshot
	if err == nil {
		n, err = m.snapshotRow(r.Context(), sandbox.SnapshotID(given))
	}
	if err == nil && n.State == sandbox.SnapGone {
		err = fault.New(fault.SnapshotNotFound, "snapshot %s was deleted", n.ID)
	}
	m.answerSnapshot(w, r, "", n, err)
}

func (m *Master) snapshotRow(ctx context.Context, id sandbox.SnapshotID) (n sandbox.Snapshot, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		n, err = sandboxdb.GetSnapshot(ctx, tx, id)
		return err
	})
	return n, err
}

// serveSnapshotDelete deletes a snapshot. A host that is away removes it later.
func (m *Master) serveSnapshotDelete(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.SnapshotDeleteRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = checkSnapshotID(req.SnapshotID)
	}
	var said []string
	if err == nil {
		var late error
		if late, err = m.deleteSnapshot(r.Context(), sandbox.SnapshotID(req.SnapshotID)); late != nil {
			said = append(said, "its host has it still, and is told again: "+late.Error())
		}
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	answer := cubeapi.OK(named(r, req.RequestID))
	answer.Warnings = said
	serve.WriteJSON(w, http.StatusOK, answer)
}

// deleteSnapshot takes a snapshot out of use and removes it from its host. late
// is why that has it still.
func (m *Master) deleteSnapshot(ctx context.Context, id sandbox.SnapshotID) (late, err error) {
	var n sandbox.Snapshot
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		if n, err = sandboxdb.GetSnapshot(ctx, tx, id); err != nil {
			return err
		}
		if n.State == sandbox.SnapGone {
			return fault.New(fault.SnapshotNotFound, "snapshot %s was deleted", id)
		}
		if err := audit(ctx, tx, actSnapshotDelete, string(id)); err != nil {
			return err
		}
		n, err = dropSnapshotIn(ctx, tx, n, followUp)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := m.step("master.snapshot_delete.after_commit"); err != nil {
		return nil, err
	}
	return m.eraseSnapshot(ctx, n), nil
}
