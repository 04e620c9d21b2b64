package templatedb

import (
	"context"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// PutVersion notes which guest an artifact has inside, by its sha256.
func PutVersion(ctx context.Context, tx *store.Tx, id template.ArtifactID, guest string) error {
	n, err := tx.Exec(ctx, `UPDATE artifact_version SET guest = ?, noted_us = ? WHERE artifact_id = ?`, []byte(guest), tx.Now.UnixMicro(), string(id))
	if err != nil || n > 0 {
		return err
	}
	return tx.Insert(ctx, nil, `INSERT INTO artifact_version (artifact_id, guest, noted_us) VALUES (?, ?, ?)`, string(id), []byte(guest), tx.Now.UnixMicro())
}

// Versions returns which guest each artifact has inside, of those that are known.
func Versions(ctx context.Context, tx *store.Tx, ids []template.ArtifactID) (map[template.ArtifactID]string, error) {
	found := map[template.ArtifactID]string{}
	if len(ids) == 0 {
		return found, nil
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = string(id)
	}
	_, err := store.Collect(ctx, tx, func(r store.Scanner) (struct{}, error) {
		var id template.ArtifactID
		var guest string
		err := r.Scan(&id, &guest)
		found[id] = guest
		return struct{}{}, err
	}, `SELECT artifact_id, guest FROM artifact_version WHERE `+in("artifact_id", len(ids)), args...)
	return found, err
}
