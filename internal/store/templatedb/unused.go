package templatedb

import (
	"context"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// UnusedArtifacts returns artifacts that are not on their way anywhere, did not
// change since the given time, and that no template and no job at work refers
// to: the oldest first. What is referred to takes no place in the list, so that
// nothing hides what stands behind it.
func UnusedArtifacts(ctx context.Context, tx *store.Tx, before time.Time, limit int) ([]template.Artifact, error) {
	return store.Collect(ctx, tx, scanArtifact, `SELECT `+artifactColumns+` FROM artifact a
		WHERE state IN ('ready', 'failed') AND changed_us < ?
		AND NOT EXISTS (SELECT 1 FROM definition d WHERE d.artifact_id = a.id AND d.state NOT IN ('deleting', 'gone'))
		AND NOT EXISTS (SELECT 1 FROM job j WHERE j.artifact_id = a.id AND j.state NOT IN ('ready', 'failed'))
		AND NOT EXISTS (SELECT 1 FROM snapshot s WHERE s.artifact_id = a.id AND s.state IN ('creating', 'ready'))
		ORDER BY changed_us, id LIMIT ?`, before.UnixMicro(), limitOf(limit))
}

// DeferArtifact puts an artifact that could not go on behind those that wait in
// the same state. One that changed meanwhile is left as it is.
func DeferArtifact(ctx context.Context, tx *store.Tx, a template.Artifact) error {
	_, err := tx.Exec(ctx, `UPDATE artifact SET changed_us = ? WHERE id = ? AND state = ? AND version = ?`, tx.Now.UnixMicro(), string(a.ID), string(a.State), a.Version)
	return err
}

// DeferDefinition puts a template that could not go on behind those that wait in
// the same state. One that changed meanwhile is left as it is.
func DeferDefinition(ctx context.Context, tx *store.Tx, d template.Definition) error {
	_, err := tx.Exec(ctx, `UPDATE definition SET changed_us = ? WHERE id = ? AND state = ? AND version = ?`, tx.Now.UnixMicro(), string(d.ID), string(d.State), d.Version)
	return err
}

// orphanReplicas are rows of templates that there are not, and that nobody
// makes: a host wrote its outcome after its template was deleted.
const orphanReplicas = ` FROM replica r WHERE r.changed_us < ?
	AND NOT EXISTS (SELECT 1 FROM definition d WHERE d.id = r.template_id)
	AND NOT EXISTS (SELECT 1 FROM job j WHERE j.template_id = r.template_id AND j.state NOT IN ('ready', 'failed'))`

// OrphanReplicas returns replicas whose template is gone, at most limit.
func OrphanReplicas(ctx context.Context, tx *store.Tx, before time.Time, limit int) ([]template.Replica, error) {
	return store.Collect(ctx, tx, scanReplica, `SELECT `+replicaColumns+orphanReplicas+` ORDER BY changed_us, template_id, host_id LIMIT ?`, before.UnixMicro(), limitOf(limit))
}

// RemoveReplica removes the row of a replica, unless it changed meanwhile.
func RemoveReplica(ctx context.Context, tx *store.Tx, p template.Replica) error {
	_, err := tx.Exec(ctx, `DELETE FROM replica WHERE template_id = ? AND host_id = ? AND version = ?`, string(p.TemplateID), []byte(p.HostID), p.Version)
	return err
}

// OrphanPlacements returns placements of artifacts that have no row, at most
// limit.
func OrphanPlacements(ctx context.Context, tx *store.Tx, before time.Time, limit int) ([]template.Placement, error) {
	return store.Collect(ctx, tx, scanPlacement, `SELECT artifact_id, host_id, created_us FROM placement p WHERE created_us < ?
		AND NOT EXISTS (SELECT 1 FROM artifact a WHERE a.id = p.artifact_id) ORDER BY created_us, artifact_id, host_id LIMIT ?`, before.UnixMicro(), limitOf(limit))
}

// DeferPlacement puts a placement that could not be taken back behind those that
// wait too.
func DeferPlacement(ctx context.Context, tx *store.Tx, p template.Placement) error {
	_, err := tx.Exec(ctx, `UPDATE placement SET created_us = ? WHERE artifact_id = ? AND host_id = ?`, tx.Now.UnixMicro(), string(p.ArtifactID), []byte(p.HostID))
	return err
}
