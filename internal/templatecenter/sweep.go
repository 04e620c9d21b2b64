package templatecenter

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	sweepLock  = "tc_reconcile_v1"
	sweepLimit = 200
	sweepTime  = 5 * time.Minute
	// deletingAfter is how long an artifact may wait in deleting for the
	// master's call before the sweep does it.
	deletingAfter = 5 * time.Minute
	// orphanAfter is how old bytes without a row must be. It is far longer than
	// the time between storing bytes and their registration.
	orphanAfter = time.Hour
	// uploadAfter is how old an upload that is not complete must be, and older
	// than any build: nobody will complete it.
	uploadAfter = 24 * time.Hour
)

// sweep repairs what a builder left that ended without a word. One process
// does it at a time.
func (c *Center) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	t := c.cfg.TemplateCenter
	_, err := c.db.WithLock(ctx, sweepLock, 0, func(ctx context.Context) error {
		return errors.Join(
			c.endStalled(ctx, template.JobQueued, t.PendingStaleAfter),
			c.endStalled(ctx, template.JobBuilding, t.RunningStaleAfter),
			c.finishDeletes(ctx),
			c.removeOrphans(ctx),
			c.abortUploads(ctx))
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		c.log.WarnContext(ctx, "sweep", slog.String("error", err.Error()))
	}
}

const (
	// beatsPerLife is how often a job that waits is touched within the time
	// after which a silent one is taken for lost.
	beatsPerLife = 4
	beatBatch    = 100 // rows of one transaction
	beatTime     = 30 * time.Second
)

// beatUntil shows until ctx ends that the jobs in the queue are alive: another
// centre cannot see that they only wait, and would end them.
func (c *Center) beatUntil(ctx context.Context) {
	tick := time.NewTicker(max(c.cfg.TemplateCenter.PendingStaleAfter/beatsPerLife, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for ids := range slices.Chunk(c.queue.line(), beatBatch) {
			if err := c.beat(ctx, ids); err != nil && ctx.Err() == nil {
				c.log.WarnContext(ctx, "jobs that wait could not be marked alive", slog.Int("jobs", len(ids)), slog.String("error", err.Error()))
			}
		}
	}
}

// beat touches the rows of jobs that wait. One whose turn came meanwhile, or
// that is gone, needs it no more.
func (c *Center) beat(ctx context.Context, ids []template.JobID) error {
	ctx, cancel := context.WithTimeout(ctx, beatTime)
	defer cancel()
	return c.db.Update(ctx, func(tx *store.Tx) error {
		for _, id := range ids {
			j, err := templatedb.GetJob(ctx, tx, id)
			if err == nil && j.State == template.JobQueued {
				_, err = templatedb.TouchJob(ctx, tx, j)
			}
			if err != nil && !errors.Is(err, fault.JobNotFound) && !errors.Is(err, fault.VersionConflict) {
				return err
			}
		}
		return nil
	})
}

// endStalled fails the jobs in state that did not change for that long, by the
// database's clock, the longest first. Those that this process has in hand are
// alive: they only wait.
func (c *Center) endStalled(ctx context.Context, state template.JobState, after time.Duration) error {
	var old []template.Job
	err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		old, err = templatedb.ListJobs(ctx, tx, templatedb.JobFilter{States: []template.JobState{state}, ChangedBefore: tx.Now.Add(-after), Limit: sweepLimit})
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, j := range old {
		if c.queue.has(string(j.ID)) {
			continue
		}
		j.Error, j.ErrorCode = fault.New(fault.BuildStalled, "job %s: nobody reported in phase %s for over %s", j.ID, j.Phase, after).Error(), fault.BuildStalled.Name
		err := c.db.Update(ctx, func(tx *store.Tx) error {
			_, err := templatedb.MoveJob(ctx, tx, j, template.OnJobStalled)
			return err
		})
		switch {
		case errors.Is(err, fault.VersionConflict): // somebody reported meanwhile
		case err != nil:
			errs = append(errs, err)
		default:
			c.metrics.stalled.Inc()
			c.log.WarnContext(ctx, "stalled job ended", slog.String("job_id", string(j.ID)))
		}
	}
	return errors.Join(errs...)
}

// finishDeletes removes artifacts whose delete was asked for and got lost.
func (c *Center) finishDeletes(ctx context.Context) error {
	var old []template.Artifact
	err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		old, err = templatedb.ListArtifacts(ctx, tx, templatedb.ArtifactFilter{States: []template.ArtifactState{template.ArtifactDeleting}, ChangedBefore: tx.Now.Add(-deletingAfter), Limit: sweepLimit})
		return err
	})
	errs := []error{err}
	for _, a := range old {
		if err := c.delete(ctx, a.ID); !errors.Is(err, fault.StateConflict) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

var objectForm = regexp.MustCompile(`^(rfs-[0-9a-f]{24})\.(ext4|receipt\.json)$`)

// removeOrphans removes bytes and receipts that no row names: their builder
// ended between storing and telling.
func (c *Center) removeOrphans(ctx context.Context) error {
	var old []string
	err := c.keep.List(ctx, func(key string, i artifact.Info) error {
		if objectForm.MatchString(key) && time.Since(i.Modified) > orphanAfter {
			old = append(old, key)
		}
		return nil
	})
	errs := []error{err}
	for _, key := range old {
		errs = append(errs, c.removeOrphan(ctx, key))
	}
	return errors.Join(errs...)
}

func (c *Center) removeOrphan(ctx context.Context, key string) error {
	id := template.ArtifactID(objectForm.FindStringSubmatch(key)[1])
	if _, found, err := c.row(ctx, id); err != nil || found {
		return err
	}
	// Somebody may be making it right now; whoever has the lock decides.
	_, err := c.db.WithLock(ctx, lockOf(id), 0, func(ctx context.Context) error {
		if _, found, err := c.row(ctx, id); err != nil || found {
			return err
		}
		if i, err := c.keep.Stat(ctx, key); err != nil || time.Since(i.Modified) <= orphanAfter {
			return ignoreAbsent(err)
		}
		c.log.WarnContext(ctx, "bytes in no book are removed", slog.String("key", key))
		return c.keep.Remove(ctx, key)
	})
	return err
}

// uploader is a store whose server keeps the parts of an upload that broke off
// until it is told otherwise. A directory is cleaned when it is opened.
type uploader interface {
	AbortUploads(ctx context.Context, before time.Time, ours func(key string) bool) (int, error)
}

// abortUploads ends uploads whose builder ended before they were complete.
func (c *Center) abortUploads(ctx context.Context) error {
	s, ok := c.keep.(uploader)
	if !ok {
		return nil
	}
	before := time.Now().Add(-max(uploadAfter, 2*c.cfg.TemplateCenter.BuildTimeout))
	n, err := s.AbortUploads(ctx, before, objectForm.MatchString)
	if n > 0 {
		c.log.WarnContext(ctx, "uploads that nobody completed are aborted", slog.Int("uploads", n))
	}
	return err
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fault.ArtifactNotFound) {
		return nil
	}
	return err
}
