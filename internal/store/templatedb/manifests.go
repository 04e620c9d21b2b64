package templatedb

import (
	"context"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// PutManifest notes the sha256 of the chunk manifest of an artifact's bytes;
// empty: it is not known.
func PutManifest(ctx context.Context, tx *store.Tx, id template.ArtifactID, sha256 string) error {
	if _, err := tx.Exec(ctx, `DELETE FROM artifact_manifest WHERE artifact_id = ?`, string(id)); err != nil || sha256 == "" {
		return err
	}
	return tx.Insert(ctx, nil, `INSERT INTO artifact_manifest (artifact_id, sha256) VALUES (?, ?)`, string(id), sha256)
}

// ManifestOf returns what PutManifest noted.
func ManifestOf(ctx context.Context, tx *store.Tx, id template.ArtifactID) (sha256 string, err error) {
	_, err = tx.Row(ctx, `SELECT sha256 FROM artifact_manifest WHERE artifact_id = ?`, []any{string(id)}, &sha256)
	return sha256, err
}
