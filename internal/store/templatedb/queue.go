package templatedb

import (
	"context"
	"time"

	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// queued are the rows that are, or will be, a template centre's.
const queued = `state = 'queued' AND operation <> 'migrate'`

// Which jobs a page of the queue is of: those that wait and that anybody may
// build, and those that may have lost their builder.
const (
	Waiting  = queued + ` AND private = 0`
	Building = `state = 'building'`
)

// QueueQuery is the statement of Queue, without the place where a page begins.
func QueueQuery(of, behind string) string {
	return `SELECT ` + jobColumns + ` FROM job WHERE ` + of + behind + ` ORDER BY priority DESC, created_us, id LIMIT ?`
}

// Queue returns jobs in the order in which they are built, at most limit: those
// behind after, or the first ones when it is nil. No more rows are read.
func Queue(ctx context.Context, tx *store.Tx, of string, after *template.Job, limit int) ([]template.Job, error) {
	behind, args := "", []any{}
	if after != nil {
		at := after.CreatedAt.UnixMicro()
		behind = ` AND (priority < ? OR (priority = ? AND (created_us > ? OR (created_us = ? AND id > ?))))`
		args = append(args, after.Priority, after.Priority, at, at, string(after.ID))
	}
	return store.Collect(ctx, tx, scanJob, QueueQuery(of, behind), append(args, limitOf(limit))...)
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

// StillQueued returns those of some jobs, at most some hundred, that still wait.
func StillQueued(ctx context.Context, tx *store.Tx, ids []template.JobID) ([]template.Job, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = string(id)
	}
	return store.Collect(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job WHERE `+in("id", len(ids))+` AND `+queued, args...)
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
