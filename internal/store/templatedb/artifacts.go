package templatedb

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

const artifactColumns = `id, content_key, state, version, image_ref, digest, sha256, size_bytes, backend, location, token, image_config, error, created_us, changed_us`

// AddArtifact stores a new artifact in its first state. A second one of the
// same bytes is fault.Exists.
func AddArtifact(ctx context.Context, tx *store.Tx, a template.Artifact) (template.Artifact, error) {
	a.State, a.Version, a.CreatedAt, a.ChangedAt = template.Artifacts.Initial(), 1, tx.Now, tx.Now
	config, err := json.Marshal(a.ImageConfig)
	if err != nil {
		return a, err
	}
	return a, tx.Insert(ctx, fault.New(fault.Exists, "artifact %s", a.ID),
		`INSERT INTO artifact (`+artifactColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		string(a.ID), []byte(a.ContentKey), string(a.State), a.Version, []byte(a.ImageRef), []byte(a.Digest), []byte(a.SHA256), a.SizeBytes, a.Backend, []byte(a.Location), []byte(a.Token), config, []byte(a.Error),
		a.CreatedAt.UnixMicro(), a.ChangedAt.UnixMicro())
}

func scanArtifact(r store.Scanner) (a template.Artifact, err error) {
	var config, failure []byte
	var created, changed int64
	err = r.Scan(&a.ID, &a.ContentKey, &a.State, &a.Version, &a.ImageRef, &a.Digest, &a.SHA256, &a.SizeBytes, &a.Backend, &a.Location, &a.Token, &config, &failure, &created, &changed)
	if err != nil {
		return a, err
	}
	a.Error, a.CreatedAt, a.ChangedAt = string(failure), time.UnixMicro(created), time.UnixMicro(changed)
	return a, json.Unmarshal(config, &a.ImageConfig)
}

// GetArtifact returns an artifact, or fault.ArtifactNotFound.
func GetArtifact(ctx context.Context, tx *store.Tx, id template.ArtifactID) (template.Artifact, error) {
	a, ok, err := store.First(ctx, tx, scanArtifact, `SELECT `+artifactColumns+` FROM artifact WHERE id = ?`, string(id))
	if err == nil && (!ok || a.ID != id) { // MySQL takes "x " for "x"
		err = fault.New(fault.ArtifactNotFound, "artifact %.128q", id)
	}
	return a, err
}

// ArtifactFilter narrows ListArtifacts; zero fields do not.
type ArtifactFilter struct {
	States        []template.ArtifactState
	ChangedBefore time.Time
	Limit         int // 0: 100
}

// ListArtifacts returns artifacts, the one that waits longest first.
func ListArtifacts(ctx context.Context, tx *store.Tx, f ArtifactFilter) ([]template.Artifact, error) {
	where, args := []string{"1 = 1"}, []any{}
	if len(f.States) > 0 {
		where = append(where, in("state", len(f.States)))
		for _, s := range f.States {
			args = append(args, string(s))
		}
	}
	if !f.ChangedBefore.IsZero() {
		where, args = append(where, "changed_us < ?"), append(args, f.ChangedBefore.UnixMicro())
	}
	return store.Collect(ctx, tx, scanArtifact, `SELECT `+artifactColumns+` FROM artifact WHERE `+strings.Join(where, " AND ")+` ORDER BY changed_us, id LIMIT ?`, append(args, limitOf(f.Limit))...)
}

// MoveArtifact is the only statement that changes an artifact's state. It
// writes what else the caller changed in a too.
func MoveArtifact(ctx context.Context, tx *store.Tx, a template.Artifact, on template.ArtifactEvent) (template.Artifact, error) {
	to, err := template.Artifacts.Step(a.State, on, fsm.None{})
	if err != nil {
		return a, fmt.Errorf("artifact %s: %w", a.ID, err)
	}
	config, err := json.Marshal(a.ImageConfig)
	if err != nil {
		return a, err
	}
	n, err := tx.Exec(ctx, `UPDATE artifact SET state = ?, version = version + 1, sha256 = ?, size_bytes = ?, backend = ?, location = ?, token = ?, image_config = ?, error = ?, changed_us = ? WHERE id = ? AND state = ? AND version = ?`,
		string(to), []byte(a.SHA256), a.SizeBytes, a.Backend, []byte(a.Location), []byte(a.Token), config, []byte(a.Error), tx.Now.UnixMicro(), string(a.ID), string(a.State), a.Version)
	if err == nil && n == 0 {
		err = fault.VersionConflict
	}
	if err != nil {
		return a, fmt.Errorf("artifact %s: %s: %w", a.ID, on, err)
	}
	tx.Moved("artifact", string(a.ID), string(on), string(a.State), string(to))
	a.State, a.Version, a.ChangedAt = to, a.Version+1, tx.Now
	return a, nil
}

// RemoveArtifact ends an artifact whose bytes are gone, and its row.
func RemoveArtifact(ctx context.Context, tx *store.Tx, a template.Artifact) error {
	a, err := MoveArtifact(ctx, tx, a, template.OnArtifactRemoved)
	if err != nil {
		return err
	}
	if _, err = tx.Exec(ctx, `DELETE FROM artifact_version WHERE artifact_id = ?`, string(a.ID)); err != nil {
		return err
	}
	if err = PutManifest(ctx, tx, a.ID, ""); err != nil {
		return err
	}
	if err = ForgetStore(ctx, tx, a.ID); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `DELETE FROM artifact WHERE id = ? AND version = ?`, string(a.ID), a.Version)
	return err
}

// ArtifactReferences counts what still needs an artifact: templates that are
// not being deleted, jobs that still work, and snapshots.
func ArtifactReferences(ctx context.Context, tx *store.Tx, id template.ArtifactID) (int64, error) {
	var definitions, jobs, snapshots int64
	_, err := tx.Row(ctx, `SELECT COUNT(*) FROM definition WHERE artifact_id = ? AND state NOT IN ('deleting', 'gone')`, []any{string(id)}, &definitions)
	if err == nil {
		_, err = tx.Row(ctx, `SELECT COUNT(*) FROM job WHERE artifact_id = ? AND state NOT IN ('ready', 'failed')`, []any{string(id)}, &jobs)
	}
	if err == nil { // what begins with one needs the bytes below it
		_, err = tx.Row(ctx, `SELECT COUNT(*) FROM snapshot WHERE artifact_id = ? AND state IN ('creating', 'ready')`, []any{string(id)}, &snapshots)
	}
	return definitions + jobs + snapshots, err
}

// PutPlacement notes that a host holds an artifact, as of now: what it reported
// before may be of a time when it had lost it.
func PutPlacement(ctx context.Context, tx *store.Tx, id template.ArtifactID, h host.ID) error {
	n, err := tx.Exec(ctx, `UPDATE placement SET created_us = ? WHERE artifact_id = ? AND host_id = ?`, tx.Now.UnixMicro(), string(id), []byte(h))
	if err != nil || n > 0 {
		return err
	}
	return tx.Insert(ctx, nil, `INSERT INTO placement (artifact_id, host_id, created_us) VALUES (?, ?, ?)`, string(id), []byte(h), tx.Now.UnixMicro())
}

// ListPlacements returns who holds an artifact.
func ListPlacements(ctx context.Context, tx *store.Tx, id template.ArtifactID) ([]template.Placement, error) {
	return store.Collect(ctx, tx, func(r store.Scanner) (p template.Placement, err error) {
		var created int64
		err = r.Scan(&p.ArtifactID, &p.HostID, &created)
		p.CreatedAt = time.UnixMicro(created)
		return p, err
	}, `SELECT artifact_id, host_id, created_us FROM placement WHERE artifact_id = ? ORDER BY host_id`, string(id))
}

// DeletePlacement notes that a host holds an artifact no longer.
func DeletePlacement(ctx context.Context, tx *store.Tx, id template.ArtifactID, h host.ID) error {
	_, err := tx.Exec(ctx, `DELETE FROM placement WHERE artifact_id = ? AND host_id = ?`, string(id), []byte(h))
	return err
}
