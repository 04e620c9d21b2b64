package master

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// sweepLimit bounds what one round takes up; the rest waits for the next.
const sweepLimit = 100

// sweepLoop repairs what got stuck. Its first rounds take up everything that an
// earlier process left, the later ones only what waits for too long.
func (m *Master) sweepLoop(ctx context.Context) {
	seen := sightings{}
	for {
		m.sweep(ctx, seen)
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.cfg.Master.SweepInterval):
		}
	}
}

func (m *Master) sweep(ctx context.Context, seen sightings) {
	errs := []error{m.sweepQueued(ctx), m.sweepBuilt(ctx)}
	// One master at a time: the rest have nothing to add.
	_, err := m.db.WithLock(ctx, "paddock_master_sweep", 0, func(ctx context.Context) error {
		return errors.Join(m.sweepStalled(ctx), m.sweepDeletes(ctx), m.sweepSandboxes(ctx), m.compareHosts(ctx, seen), m.forgetOld(ctx))
	})
	errs = append(errs, err, m.expireCharges(ctx))
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "sweep", slog.String("error", err.Error()))
	}
}

// sweepBuilt resumes jobs that are built and go no further, the one that waits
// longest first. In a process that has just begun that is each of them: whoever
// had them before may have ended.
func (m *Master) sweepBuilt(ctx context.Context) error {
	var list []template.Job
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		f := templatedb.JobFilter{States: []template.JobState{template.JobBuilt, template.JobDistributing}, ChangedBefore: tx.Now.Add(-m.cfg.Master.BuiltStaleAfter), Limit: sweepLimit}
		if time.Since(m.began) < m.pace.hostGrace+m.cfg.Master.SweepInterval {
			f.ChangedBefore = tx.Now
		}
		list, err = templatedb.ListJobs(ctx, tx, f)
		return err
	})
	for _, j := range list {
		m.resumeSoon(ctx, j.ID)
	}
	return err
}

// sweepStalled ends builds that nobody reported on for too long. The template
// centre does so too; this is for one that is away for good.
func (m *Master) sweepStalled(ctx context.Context) error {
	after := m.cfg.TemplateCenter.RunningStaleAfter + m.cfg.TemplateCenter.ReconcileInterval
	var list []template.Job
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = templatedb.ListJobs(ctx, tx, templatedb.JobFilter{States: []template.JobState{template.JobBuilding}, ChangedBefore: tx.Now.Add(-after), Limit: sweepLimit})
		return err
	})
	errs := []error{err}
	for _, j := range list {
		j.Error, j.ErrorCode = fault.New(fault.BuildStalled, "job %s: %s with no report for over %s", j.ID, j.Phase, after).Error(), fault.BuildStalled.Name
		err := m.db.Update(ctx, func(tx *store.Tx) error {
			_, err := templatedb.MoveJob(ctx, tx, j, template.OnJobStalled)
			return err
		})
		if !errors.Is(err, fault.VersionConflict) { // else somebody reported meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sweepDeletes finishes deletes that waited for a host.
func (m *Master) sweepDeletes(ctx context.Context) error {
	var list []template.Definition
	var unclean, kept []template.Artifact
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if list, err = templatedb.DefinitionsIn(ctx, tx, template.Deleting, sweepLimit); err != nil {
			return err
		}
		if unclean, err = templatedb.ListArtifacts(ctx, tx, templatedb.ArtifactFilter{States: []template.ArtifactState{template.ArtifactCleanup}, Limit: sweepLimit}); err != nil {
			return err
		}
		kept, err = templatedb.ListArtifacts(ctx, tx, templatedb.ArtifactFilter{States: []template.ArtifactState{template.ArtifactDeleting}, ChangedBefore: tx.Now.Add(-m.pace.deletingKept), Limit: sweepLimit})
		return err
	})
	errs := []error{err}
	for _, a := range kept {
		// Its message was given up, or its removal fails: begin again.
		errs = append(errs, m.db.Update(ctx, func(tx *store.Tx) error {
			_, err := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactKept)
			return err
		}))
	}
	for _, a := range unclean {
		_, err := m.cleanArtifact(ctx, a.ID, 0)
		errs = append(errs, err)
	}
	for _, d := range list {
		if err := m.finishDelete(ctx, d, 0); !errors.Is(err, fault.StateConflict) {
			errs = append(errs, err) // what another has in hand waits for the next sweep
		}
	}
	return errors.Join(errs...)
}

// sweepSandboxes ends sandboxes that are on their way for longer than a create
// may take: whoever made them has gone.
func (m *Master) sweepSandboxes(ctx context.Context) error {
	var list []sandbox.Sandbox
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{
			States:        []sandbox.State{sandbox.Allocating, sandbox.Starting},
			ChangedBefore: tx.Now.Add(-m.passing()), Limit: sweepLimit, OldestFirst: true,
		})
		return err
	})
	errs := []error{err}
	for _, s := range list {
		m.log.WarnContext(ctx, "sandbox that never started is ended", slog.String("sandbox_id", string(s.ID)))
		_, err := m.end(ctx, s.ID, "its create was lost", 0)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// passing is how long a sandbox may be on its way before nobody is at work on
// it any more.
func (m *Master) passing() time.Duration { return m.cfg.Master.CreateTimeout + m.pace.startGrace }

// expireCharges ends what the ledger holds for creates that ended without a
// word, by the database's clock, which dated them.
func (m *Master) expireCharges(ctx context.Context) error {
	_, now, err := m.fleet.now(ctx)
	if err != nil {
		return err
	}
	for _, id := range m.fleet.ledger.Expire(now.Add(-m.passing())) {
		m.log.WarnContext(ctx, "charge expired", slog.String("sandbox_id", string(id)))
	}
	return nil
}

// forgetOld drops rows and answers that nobody asks for any more.
func (m *Master) forgetOld(ctx context.Context) error {
	return m.update(ctx, func(tx *store.Tx) error {
		if _, err := sandboxdb.ForgetSandboxes(ctx, tx, tx.Now.Add(-m.pace.terminatedKept), 10*sweepLimit); err != nil {
			return err
		}
		_, err := tx.ForgetSubmissions(ctx, 10*sweepLimit)
		return err
	})
}
