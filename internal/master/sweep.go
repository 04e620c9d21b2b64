package master

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
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
		case <-m.kick:
		case <-time.After(m.cfg.Master.SweepInterval):
		}
	}
}

func (m *Master) sweep(ctx context.Context, seen sightings) {
	err := m.steps(ctx, m.sweepQueued, m.sweepBuilt,
		m.alone("cubemaster_templatecenter_image_job_reconcile_v1", m.sweepStalled), m.alone("paddock_master_moves", m.sweepMoves),
		m.alone("paddock_master_sandboxes", m.sweepSandboxes), m.alone("paddock_master_expired", m.sweepExpired), m.alone("paddock_master_lives", m.sweepLives), m.alone("paddock_master_snapshots", m.sweepSnapshots), m.alone("paddock_master_drains", m.sweepDrains),
		m.alone(gcLock, m.sweepGC), m.alone("paddock_master_deletes", m.sweepDeletes),
		m.alone("paddock_master_hosts", func(ctx context.Context) error { return m.compareHosts(ctx, seen) }),
		m.alone("paddock_master_forget", m.forgetOld), m.alone("paddock_master_routes", m.sweepRoutes), m.expireCharges)
	if err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "sweep", slog.String("error", err.Error()))
	}
}

// alone makes a part of the sweep one that one master at a time does: the rest
// have nothing to add. What one waits for holds up no other part anywhere.
func (m *Master) alone(lock string, step func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := m.db.WithLock(ctx, lock, 0, step)
		return err
	}
}

// steps runs the parts of a sweep, each for a bounded time: what one of them
// waits for must not hold up the others.
func (m *Master) steps(ctx context.Context, list ...func(context.Context) error) error {
	errs := make([]error, len(list))
	for i, step := range list {
		bounded, cancel := context.WithTimeout(ctx, m.pace.step)
		errs[i] = step(bounded)
		cancel()
	}
	return errors.Join(errs...)
}

// sweepPages bounds the pages that a round looks at, when what is on them may
// stay where it is.
const sweepPages = 20

// sweepBuilt resumes jobs that are built, or whose bytes are moved, and go no
// further, the one that waits longest first. In a process that has just begun
// that is each of them: whoever had them before may have ended. Jobs that cannot
// go on yet hide none behind them: it looks past the first page.
func (m *Master) sweepBuilt(ctx context.Context) error {
	f := templatedb.JobFilter{States: []template.JobState{template.JobBuilt, template.JobDistributing, template.JobMigrating}, Limit: sweepLimit}
	for range sweepPages {
		var list []template.Job
		err := m.db.View(ctx, func(tx *store.Tx) (err error) {
			f.ChangedBefore = tx.Now.Add(-m.cfg.Master.BuiltStaleAfter)
			if time.Since(m.began) < m.pace.hostGrace+m.cfg.Master.SweepInterval {
				f.ChangedBefore = tx.Now
			}
			list, err = templatedb.ListJobs(ctx, tx, f)
			return err
		})
		for _, j := range list {
			slots := m.resuming
			if j.State == template.JobMigrating {
				slots = m.moving
			}
			m.goOn(ctx, j.ID, slots)
			f.After = templatedb.Place{At: j.ChangedAt, ID: string(j.ID)}
		}
		if err != nil || len(list) < sweepLimit {
			return err
		}
	}
	return nil
}

// sweepStalled ends builds that nobody reported on for too long. The template
// centre does so too; this is for one that is away for good.
func (m *Master) sweepStalled(ctx context.Context) error {
	after := m.cfg.TemplateCenter.RunningStaleAfter + m.cfg.TemplateCenter.ReconcileInterval
	list, err := m.stalled(ctx, after)
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

// stalled returns the builds on which nothing happened for that long, unless
// they have a builder, or wait for another while there is one.
func (m *Master) stalled(ctx context.Context, after time.Duration) (old []template.Job, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) error {
		list, err := templatedb.ListJobs(ctx, tx, templatedb.JobFilter{States: []template.JobState{template.JobBuilding}, ChangedBefore: tx.Now.Add(-after), Limit: sweepLimit})
		if err != nil {
			return err
		}
		up, err := templatedb.CentersUp(ctx, tx)
		if err != nil {
			return err
		}
		holds, err := templatedb.HoldsOf(ctx, tx, list)
		old = nil
		for _, j := range list {
			if h := holds[j.ID]; h != template.Held && (h == template.Unheld || !up) {
				old = append(old, j)
			}
		}
		return err
	})
	return old, err
}

// sweepSandboxes ends sandboxes that are on their way and that nobody has shown
// to be worked on for a while: whoever made them has gone.
func (m *Master) sweepSandboxes(ctx context.Context) error {
	var list []sandbox.Sandbox
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{
			States:        []sandbox.State{sandbox.Allocating, sandbox.Starting},
			ChangedBefore: tx.Now.Add(-m.pace.createQuiet), Limit: sweepLimit, OldestFirst: true,
		})
		return err
	})
	errs := []error{err}
	for _, s := range list {
		errs = append(errs, m.endLost(ctx, s.ID))
	}
	return errors.Join(errs...)
}

// endLost ends a sandbox on its way, unless it has gone on meanwhile.
func (m *Master) endLost(ctx context.Context, id sandbox.ID) error {
	lost := false
	err := m.update(ctx, func(tx *store.Tx) error {
		s, err := sandboxdb.GetSandbox(ctx, tx, id)
		if err != nil {
			return err
		}
		lost = (s.State == sandbox.Allocating || s.State == sandbox.Starting) && s.ChangedAt.Before(tx.Now.Add(-m.pace.createQuiet))
		if lost {
			_, err = m.endIn(ctx, tx, id, reasonLost, 0)
		}
		return err
	})
	if err != nil || !lost {
		return err
	}
	m.log.WarnContext(ctx, "sandbox that never started is ended", slog.String("sandbox_id", string(id)))
	m.deliverSoon(topicSandboxDelete)
	return nil
}

// onItsWay is how long a sandbox may be on its way before nobody is at work on
// it any more.
func (m *Master) onItsWay() time.Duration { return m.cfg.Master.CreateTimeout + m.pace.startGrace }

// expireCharges ends what the ledger holds for creates that ended without a
// word, by the database's clock, which dated them.
func (m *Master) expireCharges(ctx context.Context) error {
	_, now, err := m.fleet.now(ctx)
	if err != nil {
		return err
	}
	longest := m.onItsWay() + sandbox.MaxProbeTime + m.cfg.Master.CreateTimeout*(cubeapi.MaxBatch/batchCalls)
	for _, id := range m.fleet.ledger.Expire(now.Add(-longest)) {
		m.log.WarnContext(ctx, "charge expired", slog.String("sandbox_id", string(id)))
	}
	return nil
}

// forgetOld drops rows and answers that nobody asks for any more, and counts
// the messages that are left.
func (m *Master) forgetOld(ctx context.Context) error {
	var waiting, dead int64
	err := m.update(ctx, func(tx *store.Tx) error {
		if _, err := sandboxdb.ForgetSandboxes(ctx, tx, tx.Now.Add(-m.pace.terminatedKept), 10*sweepLimit); err != nil {
			return err
		}
		if _, err := templatedb.ForgetFailed(ctx, tx, tx.Now.Add(-m.pace.failedKept), sweepLimit); err != nil {
			return err
		}
		if _, err := templatedb.ForgetLog(ctx, tx, tx.Now.Add(-logKept), 10*sweepLimit); err != nil {
			return err
		}
		if _, err := templatedb.ForgetAudit(ctx, tx, tx.Now.Add(-m.cfg.Master.AuditKept), 10*sweepLimit); err != nil {
			return err
		}
		if _, err := tx.ForgetDead(ctx, tx.Now.Add(-m.pace.failedKept), sweepLimit); err != nil {
			return err
		}
		if _, err := tx.ForgetSubmissions(ctx, 10*sweepLimit); err != nil {
			return err
		}
		var err error
		waiting, dead, err = tx.OutboxLen(ctx)
		return err
	})
	if err == nil {
		m.metrics.outbox.WithLabelValues("waiting").Set(float64(waiting))
		m.metrics.outbox.WithLabelValues("dead").Set(float64(dead))
	}
	return err
}
