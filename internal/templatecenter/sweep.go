package templatecenter

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"time"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	sweepLock  = "tc_reconcile_v1"
	sweepLimit = 200 // rows of a look
	sweepPages = 20  // looks, when what is found may stay where it is
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
	whatever, pulling := func(template.Phase) bool { return true }, func(p template.Phase) bool { return p == template.PhasePulling }
	_, err := c.db.WithLock(ctx, sweepLock, 0, func(ctx context.Context) error {
		return errors.Join(
			c.sweepStalled(ctx, template.JobQueued, whatever, t.PendingStaleAfter),
			c.sweepStalled(ctx, template.JobBuilding, pulling, t.PullingStaleAfter),
			c.sweepStalled(ctx, template.JobBuilding, func(p template.Phase) bool { return !pulling(p) }, t.RunningStaleAfter),
			c.finishDeletes(ctx),
			c.removeOrphans(ctx),
			c.noteStores(ctx),
			c.forgetStores(ctx),
			c.abortUploads(ctx))
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		c.log.WarnContext(ctx, "sweep", slog.String("error", err.Error()))
	}
}

// sweepStalled fails jobs on which nothing happened for that long, by the
// database's clock, the longest first: those that nobody can have in hand, since
// this service is up and their turn would have come.
func (c *Center) sweepStalled(ctx context.Context, state template.JobState, phase func(template.Phase) bool, after time.Duration) error {
	var old []template.Job
	err := c.db.View(ctx, func(tx *store.Tx) error {
		old = nil
		f := templatedb.JobFilter{States: []template.JobState{state}, ChangedBefore: tx.Now.Add(-after), Limit: sweepLimit}
		for range sweepPages { // those that just wait their turn hide none behind them
			list, err := templatedb.ListJobs(ctx, tx, f)
			if err != nil {
				return err
			}
			holds, err := templatedb.HoldsOf(ctx, tx, list)
			if err != nil {
				return err
			}
			for _, j := range list {
				// One that is held has a builder, which has a time limit; one that anybody
				// may build has its turn coming.
				if h := holds[j.ID]; h != template.Held && (isPrivate(j) || !j.Claimable(h)) && phase(j.Phase) {
					old = append(old, j)
				}
				f.After = templatedb.Place{At: j.ChangedAt, ID: string(j.ID)}
			}
			if len(list) < sweepLimit {
				break
			}
		}
		return nil
	})
	errs := []error{err}
	for _, j := range old {
		errs = append(errs, c.endStalled(ctx, j, "nobody reported in phase "+string(j.Phase)+" for over "+after.String()))
	}
	return errors.Join(errs...)
}

// endLost ends the jobs whose builder is lost and that no other may begin anew:
// as many have tried as may, or the credentials are gone with the first one. may
// reports what could be built here.
func (c *Center) endLost(ctx context.Context, may func(template.Job) bool) error {
	var lost []template.Job
	err := c.db.View(ctx, func(tx *store.Tx) error {
		list, err := templatedb.ListJobs(ctx, tx, templatedb.JobFilter{States: []template.JobState{template.JobBuilding}, Limit: sweepLimit})
		if err != nil {
			return err
		}
		holds, err := templatedb.HoldsOf(ctx, tx, list)
		lost = nil
		for _, j := range list {
			if h := holds[j.ID]; h == template.Spent || h == template.Lost && !may(j) {
				lost = append(lost, j)
			}
		}
		return err
	})
	errs := []error{err}
	for _, j := range lost {
		errs = append(errs, c.endStalled(ctx, j, "its builder was lost in phase "+string(j.Phase)+", and no other may begin anew"))
	}
	return errors.Join(errs...)
}

// endStalled fails a job as it was read. One that has changed is alive.
func (c *Center) endStalled(ctx context.Context, j template.Job, why string) error {
	j.Error, j.ErrorCode = fault.New(fault.BuildStalled, "job %s: %s", j.ID, why).Error(), fault.BuildStalled.Name
	err := c.db.Update(ctx, func(tx *store.Tx) error {
		// A builder that took it since changed the row.
		_, err := templatedb.MoveJob(ctx, tx, j, template.OnJobStalled)
		if err != nil {
			return err
		}
		return templatedb.AddLog(ctx, tx, j.ID, templatedb.LogLine{At: tx.Now, Source: logSource, Line: j.Error})
	})
	switch {
	case errors.Is(err, fault.VersionConflict): // somebody reported meanwhile
		return nil
	case err != nil:
		return err
	}
	c.metrics.stalled.Inc()
	c.log.WarnContext(ctx, "stalled job ended", slog.String("job_id", string(j.ID)))
	return nil
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
		if err := c.keep.Remove(ctx, key); err != nil {
			return err
		}
		return c.db.Update(ctx, func(tx *store.Tx) error { return templatedb.ForgetStore(ctx, tx, id) })
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

// abortUploadsOf ends uploads of one artifact that broke off. The caller has the
// lock of its bytes.
func (c *Center) abortUploadsOf(ctx context.Context, id template.ArtifactID) error {
	s, ok := c.keep.(uploader)
	if !ok {
		return nil
	}
	// A server's clock may be ahead of ours.
	_, err := s.AbortUploads(ctx, time.Now().Add(uploadAfter), func(key string) bool { return key == objectKey(id) })
	return err
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fault.ArtifactNotFound) {
		return nil
	}
	return err
}
