package templatedb

import (
	"context"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// PutStore notes which store has, or is about to get, an artifact's bytes. Only
// that one's word counts that they are gone.
func PutStore(ctx context.Context, tx *store.Tx, id template.ArtifactID, identity string) error {
	n, err := tx.Exec(ctx, `UPDATE artifact_store SET store = ?, noted_us = ? WHERE artifact_id = ?`, []byte(identity), tx.Now.UnixMicro(), string(id))
	if err != nil || n > 0 {
		return err
	}
	return tx.Insert(ctx, nil, `INSERT INTO artifact_store (artifact_id, store, noted_us) VALUES (?, ?, ?)`, string(id), []byte(identity), tx.Now.UnixMicro())
}

// StoreOf returns which store has an artifact's bytes; empty when nobody noted
// it.
func StoreOf(ctx context.Context, tx *store.Tx, id template.ArtifactID) (identity string, err error) {
	_, err = tx.Row(ctx, `SELECT store FROM artifact_store WHERE artifact_id = ?`, []any{string(id)}, &identity)
	return identity, err
}

// ForgetStore removes the note of an artifact that came to nothing.
func ForgetStore(ctx context.Context, tx *store.Tx, id template.ArtifactID) error {
	_, err := tx.Exec(ctx, `DELETE FROM artifact_store WHERE artifact_id = ?`, string(id))
	return err
}

// StrayStores returns artifacts of which it was noted before the given time where
// they are, and which there are not.
func StrayStores(ctx context.Context, tx *store.Tx, before time.Time, limit int) ([]template.ArtifactID, error) {
	return store.Collect(ctx, tx, func(r store.Scanner) (id template.ArtifactID, err error) { return id, r.Scan(&id) },
		`SELECT artifact_id FROM artifact_store WHERE noted_us < ? AND NOT EXISTS (SELECT 1 FROM artifact a WHERE a.id = artifact_store.artifact_id) ORDER BY artifact_id LIMIT ?`, before.UnixMicro(), limitOf(limit))
}

// Unnoted returns ready artifacts of which nobody noted where they are, in the
// order of their ids, behind after.
func Unnoted(ctx context.Context, tx *store.Tx, after template.ArtifactID, limit int) ([]template.Artifact, error) {
	return store.Collect(ctx, tx, scanArtifact, `SELECT `+artifactColumns+` FROM artifact WHERE state = 'ready' AND id > ? AND NOT EXISTS (SELECT 1 FROM artifact_store s WHERE s.artifact_id = artifact.id) ORDER BY id LIMIT ?`, string(after), limitOf(limit))
}
