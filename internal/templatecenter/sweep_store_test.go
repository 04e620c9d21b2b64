package templatecenter_test

import (
	"context"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// Notes of artifacts that came to nothing go, once nobody can be making them.
func TestTheSweepForgetsNotesOfNothing(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, nil)
		made := r.built(r.image("app", "1"))
		old, fresh := "rfs-00000000000000000000000a", "rfs-00000000000000000000000b"
		r.stop()
		r.update(func(ctx context.Context, tx *store.Tx) error {
			for _, id := range []string{old, fresh} {
				if err := templatedb.PutStore(ctx, tx, template.ArtifactID(id), "dir:x"); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, `UPDATE artifact_store SET noted_us = ? WHERE artifact_id <> ?`, tx.Now.Add(-2*time.Hour).UnixMicro(), fresh)
			return err
		})
		r.start()
		eventually(t, "the old note goes", func() bool { return r.noted(old) == "" })
		if r.noted(fresh) == "" || r.noted(made.ArtifactID) == "" {
			t.Errorf("noted: %q of one that is being made, %q of one that there is", r.noted(fresh), r.noted(made.ArtifactID))
		}
	})
}
