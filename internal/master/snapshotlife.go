package master

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/template"
)

const topicSnapshot = "snapshot"

func sandboxOf(id sandbox.ID) *hostpb.GetSandboxRequest {
	return &hostpb.GetSandboxRequest{SandboxId: string(id)}
}

func artifactIn(s *hostpb.Sandbox) template.ArtifactID { return template.ArtifactID(s.GetArtifactId()) }

func enqueueSnapshot(ctx context.Context, tx *store.Tx, id sandbox.SnapshotID, after time.Duration) error {
	return tx.Enqueue(ctx, store.Message{Topic: topicSnapshot, Key: string(id), Trace: traceOf(ctx)}, after)
}

// keepSnapshot does what the row of a snapshot says is to be done, whatever the
// message was sent for.
func (m *Master) keepSnapshot(ctx context.Context, msg store.Message) error {
	n, err := m.snapshotRow(ctx, sandbox.SnapshotID(msg.Key))
	switch {
	case errors.Is(err, fault.SnapshotNotFound):
		return nil
	case err != nil:
		return err
	case n.State == sandbox.SnapDeleting:
		return m.eraseSnapshot(ctx, n)
	case n.State != sandbox.SnapCreating:
		return nil
	}
	n, err = m.keptSnapshot(ctx, n, false)
	if n.State != sandbox.SnapCreating {
		return nil // it is settled, whichever way
	}
	return err
}

// keptSnapshot has the host of a sandbox keep its state, and notes what came of
// it. Unless the memory is insisted on, what cannot be kept with it is kept
// without. A host that cannot be asked settles nothing.
func (m *Master) keptSnapshot(ctx context.Context, n sandbox.Snapshot, insist bool) (sandbox.Snapshot, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Master.LifeTimeout)
	defer cancel()
	defer context.AfterFunc(m.base, cancel)()
	client, err := m.hostOf(ctx, n.HostID)
	if errors.Is(err, fault.HostUnknown) {
		return m.settleSnapshot(ctx, n, nil, err)
	}
	if err != nil {
		return n, err
	}
	answer, err := client.CreateSnapshot(ctx, &hostpb.CreateSnapshotRequest{SnapshotId: string(n.ID), SandboxId: string(n.SandboxID), WithMemory: n.WithMemory})
	err = hostFault(ctx, err, n.HostID)
	if errors.Is(err, fault.Unsupported) && n.WithMemory && !insist {
		n.WithMemory = false
		answer, err = client.CreateSnapshot(ctx, &hostpb.CreateSnapshotRequest{SnapshotId: string(n.ID), SandboxId: string(n.SandboxID)})
		err = hostFault(ctx, err, n.HostID)
	}
	if err == nil {
		if err := m.step("master.snapshot.after_host"); err != nil {
			return n, err
		}
		m.fleet.learned(n.HostID, answer.GetTruth())
		return m.settleSnapshot(ctx, n, answer.GetSnapshot(), nil)
	}
	if !firm(err) {
		return n, err
	}
	return m.settleSnapshot(ctx, n, nil, err)
}

// settleSnapshot notes that a snapshot is kept, or why it is not. A row that has
// gone on since stays.
func (m *Master) settleSnapshot(ctx context.Context, n sandbox.Snapshot, made *hostpb.Snapshot, why error) (next sandbox.Snapshot, err error) {
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		if next, err = sandboxdb.GetSnapshot(ctx, tx, n.ID); err != nil || next.State != sandbox.SnapCreating {
			return err
		}
		if made == nil {
			next.Error = why.Error()
			next, err = sandboxdb.MoveSnapshot(ctx, tx, next, sandbox.OnSnapFailed)
			return err
		}
		next.Bytes, next.WithMemory = made.GetSizeBytes(), made.GetWithMemory()
		if made.GetDriver() != "" {
			next.Driver = made.GetDriver()
		}
		next, err = sandboxdb.MoveSnapshot(ctx, tx, next, sandbox.OnSnapKept)
		return err
	})
	switch {
	case err != nil:
		return n, err
	case why != nil:
		return next, why
	case next.State == sandbox.SnapDeleting || next.State == sandbox.SnapGone:
		return next, fault.New(fault.SnapshotNotFound, "snapshot %s was deleted meanwhile", n.ID)
	}
	return next, nil
}

// dropSnapshotIn takes a snapshot out of use; its host is told at the latest
// after the given time.
func dropSnapshotIn(ctx context.Context, tx *store.Tx, n sandbox.Snapshot, after time.Duration) (sandbox.Snapshot, error) {
	if n.State == sandbox.SnapDeleting {
		return n, nil
	}
	n, err := sandboxdb.MoveSnapshot(ctx, tx, n, sandbox.OnSnapDeleteAsked)
	if err != nil {
		return n, err
	}
	return n, enqueueSnapshot(ctx, tx, n.ID, after)
}

// eraseSnapshot removes a snapshot from its host, and notes that it is gone. A
// host that is in no book has nothing of ours.
func (m *Master) eraseSnapshot(ctx context.Context, n sandbox.Snapshot) error {
	client, err := m.hostOf(ctx, n.HostID)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, hostCall)
		defer cancel()
		var answer *hostpb.DeleteSnapshotResponse
		answer, err = client.DeleteSnapshot(bounded, &hostpb.DeleteSnapshotRequest{SnapshotId: string(n.ID)})
		m.fleet.learned(n.HostID, answer.GetTruth())
		err = hostFault(ctx, err, n.HostID)
	}
	if err != nil && !errors.Is(err, fault.HostUnknown) {
		return err
	}
	return m.update(ctx, func(tx *store.Tx) error {
		now, err := sandboxdb.GetSnapshot(ctx, tx, n.ID)
		if errors.Is(err, fault.SnapshotNotFound) || err == nil && now.State != sandbox.SnapDeleting {
			return nil
		}
		if err == nil {
			_, err = sandboxdb.MoveSnapshot(ctx, tx, now, sandbox.OnSnapRemoved)
		}
		return err
	})
}

// sweepSnapshots deletes snapshots whose time is up or that never came to be,
// and sees to it that none stays on its way of which no message tells any more.
func (m *Master) sweepSnapshots(ctx context.Context) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		old := []sandboxdb.SnapshotFilter{
			{States: []sandbox.SnapshotState{sandbox.SnapReady, sandbox.SnapFailed}, ExpiredBy: tx.Now, Limit: sweepLimit},
			{States: []sandbox.SnapshotState{sandbox.SnapFailed}, ChangedBefore: tx.Now.Add(-m.pace.snapFailedKept), Limit: sweepLimit},
		}
		for _, f := range old {
			list, err := sandboxdb.ListSnapshots(ctx, tx, f)
			if err != nil {
				return err
			}
			for _, n := range list {
				if _, err := dropSnapshotIn(ctx, tx, n, 0); err != nil {
					return err
				}
			}
		}
		still, err := sandboxdb.ListSnapshots(ctx, tx, sandboxdb.SnapshotFilter{States: []sandbox.SnapshotState{sandbox.SnapCreating, sandbox.SnapDeleting}, ChangedBefore: tx.Now.Add(-m.pace.lifeQuiet), Limit: sweepLimit})
		for _, n := range still {
			waits, err := tx.Waits(ctx, topicSnapshot, string(n.ID))
			if err == nil && !waits {
				err = enqueueSnapshot(ctx, tx, n.ID, 0)
			}
			if err != nil {
				return err
			}
		}
		if err == nil {
			_, err = sandboxdb.ForgetSnapshots(ctx, tx, tx.Now.Add(-m.pace.terminatedKept), sweepLimit)
		}
		return err
	})
	m.deliverSoon(topicSnapshot)
	return err
}

// compareSnapshots holds a host's snapshots against the rows: one that it lost
// has failed, and one that is in no book is a stranger.
func (m *Master) compareSnapshots(ctx context.Context, f host.Facts, client hostpb.HostServiceClient) (strangers []string, err error) {
	var rows []sandbox.Snapshot
	var now time.Time
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		now = tx.Now
		rows, err = sandboxdb.ListSnapshots(ctx, tx, sandboxdb.SnapshotFilter{HostID: f.ID, States: shownSnapshots, Limit: listLimit})
		return err
	})
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	answer, err := client.ListSnapshots(bounded, &hostpb.ListSnapshotsRequest{})
	if err != nil {
		return nil, hostFault(ctx, err, f.ID)
	}
	there := map[string]bool{}
	for _, k := range answer.GetSnapshots() {
		there[k.GetSnapshotId()] = true
	}
	var errs []error
	for _, n := range rows {
		if n.State == sandbox.SnapReady && !there[string(n.ID)] {
			errs = append(errs, m.lostSnapshot(ctx, n))
		}
		// What failed may be there after all: its answer was lost. It goes.
		if n.State != sandbox.SnapFailed || now.Sub(n.ChangedAt) < m.pace.orphanGrace {
			delete(there, string(n.ID))
		}
	}
	for id := range there {
		strangers = append(strangers, id)
	}
	return strangers, errors.Join(errs...)
}

func (m *Master) lostSnapshot(ctx context.Context, n sandbox.Snapshot) error {
	m.log.WarnContext(ctx, "snapshot is lost", slog.String("snapshot_id", string(n.ID)), slog.String("host_id", string(n.HostID)))
	return m.update(ctx, func(tx *store.Tx) error {
		now, err := sandboxdb.GetSnapshot(ctx, tx, n.ID)
		if err != nil || now.State != sandbox.SnapReady {
			return err
		}
		now.Error = reasonVanished
		_, err = sandboxdb.MoveSnapshot(ctx, tx, now, sandbox.OnSnapFailed)
		return err
	})
}

// removeStrangeSnapshot removes a snapshot that no row knows, once it was seen
// for long.
func (m *Master) removeStrangeSnapshot(ctx context.Context, f host.Facts, id string, seen sightings) error {
	key := string(f.ID) + "/" + id
	if seen[key].IsZero() {
		seen[key] = time.Now()
	}
	if time.Since(seen[key]) < m.pace.orphanGrace {
		return nil
	}
	m.log.WarnContext(ctx, "snapshot in no book is removed", slog.String("snapshot_id", id), slog.String("host_id", string(f.ID)))
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	_, err = client.DeleteSnapshot(bounded, &hostpb.DeleteSnapshotRequest{SnapshotId: id})
	if err = hostFault(ctx, err, f.ID); err != nil {
		return err
	}
	delete(seen, key)
	return m.update(ctx, func(tx *store.Tx) error {
		return audit(ctx, tx, actOrphan, id, "host", string(f.ID))
	})
}
