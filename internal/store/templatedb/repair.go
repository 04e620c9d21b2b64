package templatedb

import (
	"context"
	"fmt"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// DefinitionsAfter returns the templates in one of the states whose id comes
// after the given one, by id, at most limit: whoever goes through all of them
// goes on from the last.
func DefinitionsAfter(ctx context.Context, tx *store.Tx, after template.ID, limit int, states ...template.State) ([]template.Definition, error) {
	args := []any{string(after)}
	for _, s := range states {
		args = append(args, string(s))
	}
	return store.Collect(ctx, tx, scanDefinition, `SELECT `+definitionColumns+` FROM definition WHERE id > ? AND `+in("state", len(states))+` ORDER BY id LIMIT ?`, append(args, limitOf(limit))...)
}

// ArtifactsAfter returns the artifacts in a state whose id comes after the given
// one, by id, at most limit.
func ArtifactsAfter(ctx context.Context, tx *store.Tx, after template.ArtifactID, limit int, state template.ArtifactState) ([]template.Artifact, error) {
	return store.Collect(ctx, tx, scanArtifact, `SELECT `+artifactColumns+` FROM artifact WHERE id > ? AND state = ? ORDER BY id LIMIT ?`, string(after), string(state), limitOf(limit))
}

// DefinitionsOf returns the templates made of an artifact, by id, at most
// limit.
func DefinitionsOf(ctx context.Context, tx *store.Tx, id template.ArtifactID, limit int) ([]template.Definition, error) {
	return store.Collect(ctx, tx, scanDefinition, `SELECT `+definitionColumns+` FROM definition WHERE artifact_id = ? ORDER BY id LIMIT ?`, string(id), limitOf(limit))
}

// LatestRequest returns a template's newest job that says how it is made: a
// create or a redo.
func LatestRequest(ctx context.Context, tx *store.Tx, id template.ID) (template.Job, bool, error) {
	return store.First(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job WHERE template_id = ? AND operation IN (?, ?) ORDER BY attempt_no DESC LIMIT 1`, string(id), string(template.OpCreate), string(template.OpRedo))
}

// TouchDefinition makes whoever read a template before decide again. One that
// changed since it was read is fault.VersionConflict.
func TouchDefinition(ctx context.Context, tx *store.Tx, d template.Definition) (template.Definition, error) {
	n, err := tx.Exec(ctx, `UPDATE definition SET version = version + 1 WHERE id = ? AND state = ? AND version = ?`, string(d.ID), string(d.State), d.Version)
	if err == nil && n == 0 {
		err = fmt.Errorf("template %s: %w", d.ID, fault.VersionConflict)
	}
	d.Version++
	return d, err
}
