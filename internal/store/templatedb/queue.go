package templatedb

import (
	"context"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// queued are the rows that are, or will be, a template centre's.
const queued = `state = 'queued' AND operation <> 'migrate'`

// Queue returns the jobs that wait for a builder or may have lost theirs, in
// the order in which they are built, at most limit: those behind after, or the
// first ones when it is nil.
func Queue(ctx context.Context, tx *store.Tx, after *template.Job, limit int) ([]template.Job, error) {
	where, args := `((`+queued+`) OR state = 'building')`, []any{}
	if after != nil {
		at := after.CreatedAt.UnixMicro()
		where += ` AND (priority < ? OR (priority = ? AND (created_us > ? OR (created_us = ? AND id > ?))))`
		args = append(args, after.Priority, after.Priority, at, at, string(after.ID))
	}
	return store.Collect(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job WHERE `+where+` ORDER BY priority DESC, created_us, id LIMIT ?`, append(args, limitOf(limit))...)
}

// QueueLen returns how many jobs wait.
func QueueLen(ctx context.Context, tx *store.Tx) (n int, err error) {
	_, err = tx.Row(ctx, `SELECT COUNT(*) FROM job WHERE `+queued, nil, &n)
	return n, err
}

// QueuePlace returns at which place a queued job stands, 1 for the next one.
func QueuePlace(ctx context.Context, tx *store.Tx, j template.Job) (place int, err error) {
	at := j.CreatedAt.UnixMicro()
	_, err = tx.Row(ctx, `SELECT COUNT(*) FROM job WHERE `+queued+` AND (priority > ? OR (priority = ? AND (created_us < ? OR (created_us = ? AND id < ?))))`,
		[]any{j.Priority, j.Priority, at, at, string(j.ID)}, &place)
	return place + 1, err
}

// StillQueued returns which of some jobs, at most some hundred, still wait.
func StillQueued(ctx context.Context, tx *store.Tx, ids []template.JobID) (map[template.JobID]bool, error) {
	still := map[template.JobID]bool{}
	if len(ids) == 0 {
		return still, nil
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = string(id)
	}
	list, err := store.Collect(ctx, tx, scanJobID, `SELECT id FROM job WHERE state = 'queued' AND id IN (?`+strings.Repeat(", ?", len(ids)-1)+`)`, args...)
	for _, id := range list {
		still[id] = true
	}
	return still, err
}

// HoldOf returns who has a job's build in hand, and the lease that says so.
func HoldOf(ctx context.Context, tx *store.Tx, j template.Job) (template.Hold, lease.Lease, error) {
	l, found, err := tx.LeaseOf(ctx, template.BuildSubject(j.ID))
	return template.HoldOf(l, found, j.Plan.Returned, tx.Now), l, err
}

// HoldsOf is HoldOf for several jobs, at most some hundred.
func HoldsOf(ctx context.Context, tx *store.Tx, jobs []template.Job) (map[template.JobID]template.Hold, error) {
	subjects := make([]string, len(jobs))
	for i, j := range jobs {
		subjects[i] = template.BuildSubject(j.ID)
	}
	leases, err := tx.LeasesOf(ctx, subjects)
	holds := map[template.JobID]template.Hold{}
	for _, j := range jobs {
		l, found := leases[template.BuildSubject(j.ID)]
		holds[j.ID] = template.HoldOf(l, found, j.Plan.Returned, tx.Now)
	}
	return holds, err
}

// centersGrace is how long it may take until another template centre has the
// lease of one that has gone.
const centersGrace = 10 * time.Second

// CentersUp reports whether a template centre is up, or was a moment ago.
func CentersUp(ctx context.Context, tx *store.Tx) (bool, error) {
	l, found, err := tx.LeaseOf(ctx, template.CentersSubject)
	return found && l.Until.Add(centersGrace).After(tx.Now), err
}

// forgetJob removes what is beside a job's row.
func forgetJob(ctx context.Context, tx *store.Tx, id template.JobID) error {
	if _, err := tx.Exec(ctx, `DELETE FROM job_log WHERE job_id = ?`, string(id)); err != nil {
		return err
	}
	return tx.ForgetLease(ctx, template.BuildSubject(id))
}
