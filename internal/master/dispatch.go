package master

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// centerCall bounds one call of the template centre.
const centerCall = 30 * time.Second

// credentials of a registry, and an agent of the job's own, are kept in memory,
// for as long as their job waits for a builder. Nothing else keeps them.
type credentials struct{ username, password, envd string }

// lend keeps the credentials of a job, unless its agent and those of others fill
// the memory that is given to them.
func (m *Master) lend(id template.JobID, c credentials) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	size := len(c.envd)
	for other, o := range m.credentials {
		if other != id {
			size += len(o.envd)
		}
	}
	if most := m.cfg.TemplateCenter.MaxEnvdMiB; c.envd != "" && !template.RoomForGuests(size, most) {
		return fault.New(fault.TooManyWaiting, "envd: with it, %d bytes would wait for builders in memory, of at most %d", size, template.GuestsHeld*most<<20)
	}
	m.credentials[id] = c
	return nil
}

func (m *Master) lent(id template.JobID) (credentials, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.credentials[id]
	return c, ok
}

func (m *Master) forget(id template.JobID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.credentials, id)
}

// forgetBegun drops the credentials of jobs that a builder has begun.
func (m *Master) forgetBegun(ctx context.Context) error {
	m.mu.Lock()
	ids := slices.Collect(maps.Keys(m.credentials))
	m.mu.Unlock()
	return m.db.View(ctx, func(tx *store.Tx) error {
		for _, id := range ids {
			j, err := templatedb.GetJob(ctx, tx, id)
			switch {
			case errors.Is(err, fault.JobNotFound): // it is being submitted now
			case err != nil:
				return err
			case j.State != template.JobQueued:
				m.forget(id)
			}
		}
		return nil
	})
}

// dispatch tells the template centre of a public job, which it would find in the
// queue anyway: one that is away is told again, and only when there is none at
// all the job ends, as it does when it is refused.
func (m *Master) dispatch(ctx context.Context, msg store.Message) error {
	err := m.hand(ctx, template.JobID(msg.Key))
	if err == nil || fault.Of(err).Class.Retry && msg.Attempts < m.pace.dispatchTries {
		return err
	}
	if up, late := m.centersUp(ctx); up || late != nil {
		return late // its turn will come
	}
	return m.failQueued(ctx, template.JobID(msg.Key), err)
}

// centersUp reports whether any template centre is up.
func (m *Master) centersUp(ctx context.Context) (up bool, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		up, err = templatedb.CentersUp(ctx, tx)
		return err
	})
	return up, err
}

// handPrivate hands over a job whose credentials only this process has.
func (m *Master) handPrivate(ctx context.Context, id template.JobID) {
	pause := 100 * time.Millisecond
	for began := time.Now(); ; pause = min(2*pause, 5*time.Second) {
		err := m.hand(ctx, id)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !fault.Of(err).Class.Retry || time.Since(began) > m.pace.privateFor {
			if err := m.failQueued(ctx, id, err); err != nil && ctx.Err() == nil {
				m.log.ErrorContext(ctx, "job not ended; a sweep will", slog.String("job_id", string(id)), slog.String("error", err.Error()))
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// hand gives a queued job to the template centre, which takes the same job any
// number of times, and notes that it was taken. A job that is past waiting is
// nobody's to hand over.
func (m *Master) hand(ctx context.Context, id template.JobID) error {
	j, err := m.job(ctx, id)
	if errors.Is(err, fault.JobNotFound) || err == nil && j.State != template.JobQueued {
		m.forget(id)
		return nil
	}
	if err != nil {
		return err
	}
	k, err := keptOf(j.Request)
	if err != nil {
		return err
	}
	creds, ok := m.lent(id)
	if k.Private && !ok {
		return fault.New(fault.CredentialsLost, "job %s", id)
	}
	b := cubeapi.TCBuildRequest{JobID: string(j.ID), TemplateID: string(j.TemplateID), Request: k.FromImageRequest, Trace: telemetry.Carrier(ctx)}
	b.Request.RegistryUsername, b.Request.RegistryPassword, b.EnvdData = creds.username, creds.password, []byte(creds.envd)
	bounded, cancel := context.WithTimeout(ctx, centerCall)
	defer cancel()
	err = m.center.Build(bounded, b)
	if err != nil && !errors.Is(err, fault.StateConflict) && !errors.Is(err, fault.BuildInProgress) {
		return err // else it is in hand there, or past that
	}
	if err := m.step("master.dispatch.after_call"); err != nil {
		return err
	}
	return m.touchQueued(ctx, id)
}

// touchQueued shows that a job which waits for a builder is in good hands, so
// that no sweep takes it for stalled.
func (m *Master) touchQueued(ctx context.Context, id template.JobID) error {
	return m.update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil || j.State != template.JobQueued {
			return err
		}
		_, err = templatedb.TouchJob(ctx, tx, j)
		return err
	})
}

// sweepQueued hands over again what has waited for a while: the template
// centre may have been restarted and know nothing of its credentials. Every
// master does so for the jobs whose credentials it has; those whose credentials
// nobody has any more are ended. Public jobs need no word while a template centre
// is up: the rows are its queue.
func (m *Master) sweepQueued(ctx context.Context) error {
	f := templatedb.JobFilter{States: []template.JobState{template.JobQueued}, Limit: sweepLimit}
	var errs []error
	for range sweepPages { // those that just wait their turn hide none behind them
		var list []template.Job
		var now time.Time
		var up bool
		err := m.db.View(ctx, func(tx *store.Tx) (err error) {
			now, f.ChangedBefore = tx.Now, tx.Now.Add(-m.pace.redispatch)
			if up, err = templatedb.CentersUp(ctx, tx); err != nil {
				return err
			}
			list, err = templatedb.ListJobs(ctx, tx, f)
			return err
		})
		errs = append(errs, err)
		for _, j := range list {
			if ctx.Err() != nil {
				break
			}
			errs = append(errs, m.handAgain(ctx, j, now, up))
			f.After = templatedb.Place{At: j.ChangedAt, ID: string(j.ID)}
		}
		if err != nil || ctx.Err() != nil || len(list) < sweepLimit {
			break
		}
	}
	return errors.Join(append(errs, m.forgetBegun(ctx))...)
}

// handAgain hands a job over that waited for a while, or ends it. up says that a
// template centre is up.
func (m *Master) handAgain(ctx context.Context, j template.Job, now time.Time, up bool) error {
	if k, err := keptOf(j.Request); !j.NeedsBuilder() || err == nil && !k.Private && up {
		return nil
	}
	quiet := now.Sub(j.ChangedAt)
	err := m.hand(ctx, j.ID)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fault.CredentialsLost) && quiet < m.pace.privateKept:
		return nil // another master has them
	case fault.Of(err).Class.Retry && quiet < m.cfg.TemplateCenter.PendingStaleAfter && !errors.Is(err, fault.CredentialsLost):
		return err
	}
	return m.failQueued(ctx, j.ID, err)
}

// queuePlace shows where a job stands that waits for a builder.
func queuePlace(ctx context.Context, tx *store.Tx, j template.Job, shown *cubeapi.Job) (err error) {
	if j.State != template.JobQueued || !j.NeedsBuilder() {
		return nil
	}
	if shown.QueuePosition, err = templatedb.QueuePlace(ctx, tx, j); err != nil {
		return err
	}
	shown.QueueLength, err = templatedb.QueueLen(ctx, tx)
	return err
}

func (m *Master) job(ctx context.Context, id template.JobID) (j template.Job, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		j, err = templatedb.GetJob(ctx, tx, id)
		return err
	})
	return j, err
}

// failQueued ends a job that could not be handed over. One that has gone on
// meanwhile was handed over after all: only the answer was lost.
func (m *Master) failQueued(ctx context.Context, id template.JobID, why error) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil || j.State != template.JobQueued {
			return err
		}
		if hold, _, err := templatedb.HoldOf(ctx, tx, j); err != nil || hold == template.Held {
			return err // it was begun, and nobody has said so yet
		}
		d := fault.DetailOf(why)
		j.Error, j.ErrorCode = clip(d.Message), d.Code
		if _, err = templatedb.MoveJob(ctx, tx, j, template.OnJobFailed); err != nil {
			return err
		}
		return say(ctx, tx, id, "failed: %s", j.Error)
	})
	if err == nil {
		m.forget(id) // after the row: without it a sweep would take them for lost
	}
	return err
}

// maxWords bounds the words of a failure that a row keeps.
const maxWords = 4096

func clip(s string) string { return fault.Clip(s, maxWords) }
