package templatecenter

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const sweepLimit = 200

// endStalled fails the jobs in state that did not change for that long, by the
// database's clock, oldest first.
func (c *Center) endStalled(ctx context.Context, state template.JobState, after time.Duration) error {
	var old []template.Job
	err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		old, err = templatedb.ListJobs(ctx, tx, templatedb.JobFilter{States: []template.JobState{state}, ChangedBefore: tx.Now.Add(-after), Limit: sweepLimit})
		return err
	})
	if err != nil {
		return err
	}
	for _, j := range old {
		j.Error, j.ErrorCode = fault.New(fault.BuildStalled, "job %s: %s with no report for over %s", j.ID, j.Phase, after).Error(), fault.BuildStalled.Name
		err := c.db.Update(ctx, func(tx *store.Tx) error {
			_, err := templatedb.MoveJob(ctx, tx, j, template.OnJobStalled)
			return err
		})
		switch {
		case errors.Is(err, fault.VersionConflict): // somebody reported meanwhile
		case err != nil:
			return err
		default:
			c.log.WarnContext(ctx, "stalled job ended", slog.String("job_id", string(j.ID)))
		}
	}
	return nil
}
