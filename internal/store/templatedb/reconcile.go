package templatedb

import (
	"context"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

func scanPlacement(r store.Scanner) (p template.Placement, err error) {
	var created int64
	err = r.Scan(&p.ArtifactID, &p.HostID, &created)
	p.CreatedAt = time.UnixMicro(created)
	return p, err
}

// PlacementsSince returns the placements that were noted after the given time.
func PlacementsSince(ctx context.Context, tx *store.Tx, after time.Time) ([]template.Placement, error) {
	return store.Collect(ctx, tx, scanPlacement, `SELECT artifact_id, host_id, created_us FROM placement WHERE created_us > ?`, after.UnixMicro())
}

// ForgetHost removes what the rows say a host holds: it is in no book any more.
func ForgetHost(ctx context.Context, tx *store.Tx, id host.ID) error {
	if _, err := tx.Exec(ctx, `DELETE FROM replica WHERE host_id = ?`, []byte(id)); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM placement WHERE host_id = ?`, []byte(id))
	return err
}

// PlacementsOfHost returns what a host holds, as far as the rows know.
func PlacementsOfHost(ctx context.Context, tx *store.Tx, id host.ID) ([]template.Placement, error) {
	return store.Collect(ctx, tx, scanPlacement, `SELECT artifact_id, host_id, created_us FROM placement WHERE host_id = ? ORDER BY artifact_id`, []byte(id))
}
