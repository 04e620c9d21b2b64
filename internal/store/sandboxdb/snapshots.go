package sandboxdb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

const snapshotColumns = `id, name, sandbox_id, template_id, artifact_id, host_id, state, version, driver, with_memory, size_bytes, request, error, expires_us, created_us, changed_us`

// AddSnapshot stores a new snapshot in its first state.
func AddSnapshot(ctx context.Context, tx *store.Tx, s sandbox.Snapshot) (sandbox.Snapshot, error) {
	s.State, s.Version, s.CreatedAt, s.ChangedAt = sandbox.SnapshotMachine.Initial(), 1, tx.Now, tx.Now
	if s.Request == nil {
		s.Request = []byte{}
	}
	return s, tx.Insert(ctx, fault.New(fault.Exists, "snapshot %s", s.ID),
		`INSERT INTO snapshot (`+snapshotColumns+`) VALUES (`+store.Marks(16)+`)`,
		string(s.ID), []byte(s.Name), string(s.SandboxID), string(s.TemplateID), string(s.ArtifactID), []byte(s.HostID), string(s.State), s.Version, s.Driver, s.WithMemory, s.Bytes, s.Request, []byte(s.Error), snapshotExpiry(s),
		s.CreatedAt.UnixMicro(), s.ChangedAt.UnixMicro())
}

func scanSnapshot(r store.Scanner) (s sandbox.Snapshot, err error) {
	var expires, created, changed int64
	err = r.Scan(&s.ID, &s.Name, &s.SandboxID, &s.TemplateID, &s.ArtifactID, &s.HostID, &s.State, &s.Version, &s.Driver, &s.WithMemory, &s.Bytes, &s.Request, &s.Error, &expires, &created, &changed)
	s.CreatedAt, s.ChangedAt = time.UnixMicro(created), time.UnixMicro(changed)
	if expires > 0 {
		s.ExpiresAt = time.UnixMicro(expires)
	}
	return s, err
}

// snapshotExpiry writes no expiry as 0.
func snapshotExpiry(s sandbox.Snapshot) int64 {
	if s.ExpiresAt.IsZero() {
		return 0
	}
	return s.ExpiresAt.UnixMicro()
}

// GetSnapshot returns a snapshot, or fault.SnapshotNotFound.
func GetSnapshot(ctx context.Context, tx *store.Tx, id sandbox.SnapshotID) (sandbox.Snapshot, error) {
	s, ok, err := store.First(ctx, tx, scanSnapshot, `SELECT `+snapshotColumns+` FROM snapshot WHERE id = ?`, string(id))
	if err == nil && (!ok || s.ID != id) { // MySQL takes "x " for "x"
		err = fault.New(fault.SnapshotNotFound, "snapshot %.128q", id)
	}
	return s, err
}

// SnapshotFilter narrows ListSnapshots; zero fields do not.
type SnapshotFilter struct {
	States        []sandbox.SnapshotState
	HostID        host.ID
	SandboxID     sandbox.ID
	TemplateID    template.ID
	ArtifactID    template.ArtifactID
	ChangedBefore time.Time
	ExpiredBy     time.Time // those without an expiry never are
	// After is the last one of the page before: those that come behind it.
	After sandbox.SnapshotID
	Limit int // 0: 1000
}

// ListSnapshots returns snapshots in the order of their ids, which is that of
// their making.
func ListSnapshots(ctx context.Context, tx *store.Tx, f SnapshotFilter) ([]sandbox.Snapshot, error) {
	where, args := []string{"1 = 1"}, []any{}
	and := func(text string, arg any) { where, args = append(where, text), append(args, arg) }
	if len(f.States) > 0 {
		where = append(where, "state IN ("+store.Marks(len(f.States))+")")
		for _, s := range f.States {
			args = append(args, string(s))
		}
	}
	if f.HostID != "" {
		and("host_id = ?", []byte(f.HostID))
	}
	if f.SandboxID != "" {
		and("sandbox_id = ?", string(f.SandboxID))
	}
	if f.TemplateID != "" {
		and("template_id = ?", string(f.TemplateID))
	}
	if f.ArtifactID != "" {
		and("artifact_id = ?", string(f.ArtifactID))
	}
	if !f.ChangedBefore.IsZero() {
		and("changed_us < ?", f.ChangedBefore.UnixMicro())
	}
	if !f.ExpiredBy.IsZero() {
		and("expires_us > 0 AND expires_us <= ?", f.ExpiredBy.UnixMicro())
	}
	if f.After != "" {
		and("id > ?", string(f.After))
	}
	if f.Limit <= 0 {
		f.Limit = 1000
	}
	return store.Collect(ctx, tx, scanSnapshot, `SELECT `+snapshotColumns+` FROM snapshot WHERE `+strings.Join(where, " AND ")+` ORDER BY id LIMIT ?`, append(args, f.Limit)...)
}

// MoveSnapshot is the only statement that changes a snapshot's state. It writes
// driver, size, memory and error too.
func MoveSnapshot(ctx context.Context, tx *store.Tx, s sandbox.Snapshot, on sandbox.SnapshotEvent) (sandbox.Snapshot, error) {
	to, err := sandbox.SnapshotMachine.Step(s.State, on, fsm.None{})
	if err != nil {
		return s, fmt.Errorf("snapshot %s: %w", s.ID, err)
	}
	n, err := tx.Exec(ctx, `UPDATE snapshot SET state = ?, version = version + 1, driver = ?, with_memory = ?, size_bytes = ?, error = ?, changed_us = ? WHERE id = ? AND state = ? AND version = ?`,
		string(to), s.Driver, s.WithMemory, s.Bytes, []byte(fault.Clip(s.Error, maxReason)), tx.Now.UnixMicro(), string(s.ID), string(s.State), s.Version)
	if err == nil && n == 0 {
		err = fault.VersionConflict
	}
	if err != nil {
		return s, fmt.Errorf("snapshot %s: %s: %w", s.ID, on, err)
	}
	tx.Moved("snapshot", string(s.ID), string(on), string(s.State), string(to))
	s.State, s.Version, s.ChangedAt = to, s.Version+1, tx.Now
	return s, nil
}

// CountSnapshots returns how many snapshots a host has or is to have.
func CountSnapshots(ctx context.Context, tx *store.Tx, id host.ID) (n int, err error) {
	_, err = tx.Row(ctx, `SELECT COUNT(*) FROM snapshot WHERE host_id = ? AND state <> ?`, []any{[]byte(id), string(sandbox.SnapGone)}, &n)
	return n, err
}

// ForgetSnapshots removes rows of snapshots that were gone before the given
// time, at most limit.
func ForgetSnapshots(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	old, err := ListSnapshots(ctx, tx, SnapshotFilter{States: []sandbox.SnapshotState{sandbox.SnapGone}, ChangedBefore: before, Limit: limit})
	if err != nil {
		return 0, err
	}
	for _, s := range old {
		if _, err := tx.Exec(ctx, `DELETE FROM snapshot WHERE id = ? AND state = ?`, string(s.ID), string(sandbox.SnapGone)); err != nil {
			return 0, err
		}
	}
	return len(old), nil
}
