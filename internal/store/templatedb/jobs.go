// Package templatedb is the statements of layer 1: jobs, artifacts,
// definitions, replicas, placements.
//
// Every function takes the transaction it runs in, so that they combine. One
// function per kind changes a state: it asks the machine, then writes if the
// row is still the one that was read. This package must never decide what
// follows from a change.
package templatedb

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

const jobColumns = `id, template_id, request_id, operation, attempt_no, retry_of, alias, state, version, phase, progress, error, error_code, request, result, pull, phase_times, image_ref, digest, artifact_id, spec, expected_hosts, ready_hosts, failed_hosts, created_us, changed_us, priority, plan, spec_key`

// AddJob stores a new job in its first state. A second job of one request id
// and operation, of one template and attempt, or of one spec while the first is
// at work on it, is fault.Exists.
func AddJob(ctx context.Context, tx *store.Tx, j template.Job) (template.Job, error) {
	j.State, j.Version, j.CreatedAt, j.ChangedAt = template.Jobs.Initial(), 1, tx.Now, tx.Now
	args, err := jobArgs(j)
	if err != nil {
		return j, err
	}
	return j, tx.Insert(ctx, fault.New(fault.Exists, "job of request %s", j.RequestID),
		`INSERT INTO job (`+jobColumns+`, private) VALUES (?`+strings.Repeat(`, ?`, len(args))+`)`, append(args, privacy(j))...)
}

// privacy is 1 for a job that only who has its credentials can build, as its
// request says, so that the others need not read it.
func privacy(j template.Job) int {
	var r struct {
		Private bool `json:"private"`
	}
	if json.Unmarshal(j.Request, &r) == nil && r.Private {
		return 1
	}
	return 0
}

func jobArgs(j template.Job) ([]any, error) {
	pull, times, err := jobBlobs(j)
	if err != nil {
		return nil, err
	}
	plan, err := json.Marshal(j.Plan)
	return []any{
		string(j.ID), string(j.TemplateID), []byte(j.RequestID), string(j.Operation), j.AttemptNo, string(j.RetryOf), []byte(j.Alias), string(j.State), j.Version, string(j.Phase), j.Progress,
		[]byte(j.Error), j.ErrorCode, bytesOf(j.Request), bytesOf(j.Result), pull, times, []byte(j.ImageRef), []byte(j.Digest), string(j.ArtifactID), []byte(j.Spec), j.Expected, j.Ready, j.Failed,
		j.CreatedAt.UnixMicro(), j.ChangedAt.UnixMicro(), j.Priority, plan, j.SpecKey,
	}, err
}

func jobBlobs(j template.Job) (pull, times []byte, err error) {
	if pull, err = json.Marshal(j.Pull); err != nil {
		return nil, nil, err
	}
	times, err = json.Marshal(j.PhaseTimes)
	return pull, times, err
}

// bytesOf keeps NULL out of the columns: nothing is an empty value.
func bytesOf(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func scanJob(r store.Scanner) (j template.Job, err error) {
	var failure, pull, times, plan []byte
	var created, changed int64
	err = r.Scan(&j.ID, &j.TemplateID, &j.RequestID, &j.Operation, &j.AttemptNo, &j.RetryOf, &j.Alias, &j.State, &j.Version, &j.Phase, &j.Progress,
		&failure, &j.ErrorCode, &j.Request, &j.Result, &pull, &times, &j.ImageRef, &j.Digest, &j.ArtifactID, &j.Spec, &j.Expected, &j.Ready, &j.Failed, &created, &changed, &j.Priority, &plan, &j.SpecKey)
	if err != nil {
		return j, err
	}
	j.Error, j.CreatedAt, j.ChangedAt = string(failure), time.UnixMicro(created), time.UnixMicro(changed)
	if len(plan) > 0 { // those of older programs have none
		if err := json.Unmarshal(plan, &j.Plan); err != nil {
			return j, err
		}
	}
	if err := json.Unmarshal(pull, &j.Pull); err != nil {
		return j, err
	}
	return j, json.Unmarshal(times, &j.PhaseTimes)
}

// GetJob returns a job, or fault.JobNotFound.
func GetJob(ctx context.Context, tx *store.Tx, id template.JobID) (template.Job, error) {
	j, ok, err := store.First(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job WHERE id = ?`, string(id))
	if err == nil && (!ok || j.ID != id) { // MySQL takes "x " for "x"
		err = fault.New(fault.JobNotFound, "job %.128q", id)
	}
	return j, err
}

// JobByRequest returns the job that a request id asked for.
func JobByRequest(ctx context.Context, tx *store.Tx, requestID string, op template.Operation) (template.Job, bool, error) {
	return store.First(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job WHERE request_id = ? AND operation = ?`, []byte(requestID), string(op))
}

// JobBySpec returns the create that is at work on what key stands for.
func JobBySpec(ctx context.Context, tx *store.Tx, key []byte) (template.Job, bool, error) {
	return store.First(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job WHERE spec_key = ?`, key)
}

// LatestJob returns a template's job with the highest attempt number.
func LatestJob(ctx context.Context, tx *store.Tx, id template.ID) (template.Job, bool, error) {
	return store.First(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job WHERE template_id = ? ORDER BY attempt_no DESC LIMIT 1`, string(id))
}

// ActiveJob returns a template's job that still has work before it.
func ActiveJob(ctx context.Context, tx *store.Tx, id template.ID) (template.Job, bool, error) {
	j, ok, err := LatestJob(ctx, tx, id)
	return j, ok && j.State.Active(), err
}

// JobFilter narrows ListJobs; zero fields do not.
type JobFilter struct {
	States        []template.JobState
	TemplateID    template.ID
	ChangedBefore time.Time
	After         Place // only what waits less long than this: where a page ended
	Limit         int   // 0: 100
}

// ListJobs returns jobs, the one that waits longest first.
func ListJobs(ctx context.Context, tx *store.Tx, f JobFilter) ([]template.Job, error) {
	where, args := []string{"1 = 1"}, []any{}
	if len(f.States) > 0 {
		where = append(where, in("state", len(f.States)))
		for _, s := range f.States {
			args = append(args, string(s))
		}
	}
	if f.TemplateID != "" {
		where, args = append(where, "template_id = ?"), append(args, string(f.TemplateID))
	}
	if !f.ChangedBefore.IsZero() {
		where, args = append(where, "changed_us < ?"), append(args, f.ChangedBefore.UnixMicro())
	}
	if f.After.ID != "" {
		at := f.After.At.UnixMicro()
		where, args = append(where, "(changed_us > ? OR (changed_us = ? AND id > ?))"), append(args, at, at, f.After.ID)
	}
	return store.Collect(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job WHERE `+strings.Join(where, " AND ")+` ORDER BY changed_us, id LIMIT ?`, append(args, limitOf(f.Limit))...)
}

func in(column string, n int) string {
	return column + " IN (?" + strings.Repeat(", ?", n-1) + ")"
}

func limitOf(n int) int {
	if n <= 0 {
		return 100
	}
	return n
}

// MoveJob is the only statement that changes a job's state. It writes what
// else the caller changed in j too. Progress only grows; a job that ended gives
// its spec free.
func MoveJob(ctx context.Context, tx *store.Tx, j template.Job, on template.JobEvent) (template.Job, error) {
	to, err := template.Jobs.Step(j.State, on, fsm.None{})
	if err != nil {
		return j, fmt.Errorf("job %s: %w", j.ID, err)
	}
	from := j.State
	if j, err = writeJob(ctx, tx, j, to); err == nil {
		tx.Moved("job", string(j.ID), string(on), string(from), string(to))
	}
	return j, err
}

// TouchJob writes what the caller changed in j without a change of state, and
// shows that somebody works on it.
func TouchJob(ctx context.Context, tx *store.Tx, j template.Job) (template.Job, error) {
	return writeJob(ctx, tx, j, j.State)
}

func writeJob(ctx context.Context, tx *store.Tx, j template.Job, to template.JobState) (template.Job, error) {
	pull, times, err := jobBlobs(j)
	if err != nil {
		return j, err
	}
	plan, err := json.Marshal(j.Plan)
	if err != nil {
		return j, err
	}
	n, err := tx.Exec(ctx, `UPDATE job SET state = ?, version = version + 1, phase = ?, progress = CASE WHEN progress > ? THEN progress ELSE ? END, error = ?, error_code = ?, result = ?, pull = ?, phase_times = ?, digest = ?, artifact_id = ?, spec = ?, expected_hosts = ?, ready_hosts = ?, failed_hosts = ?, changed_us = ?, plan = ?, spec_key = CASE WHEN ? THEN spec_key ELSE NULL END WHERE id = ? AND state = ? AND version = ?`,
		string(to), string(j.Phase), j.Progress, j.Progress, []byte(j.Error), j.ErrorCode, bytesOf(j.Result), pull, times, []byte(j.Digest), string(j.ArtifactID), []byte(j.Spec), j.Expected, j.Ready, j.Failed, tx.Now.UnixMicro(), plan, to.Active(),
		string(j.ID), string(j.State), j.Version)
	if err == nil && n == 0 {
		err = fault.VersionConflict
	}
	if err == nil {
		_, err = tx.Row(ctx, `SELECT progress FROM job WHERE id = ?`, []any{string(j.ID)}, &j.Progress)
	}
	if err != nil {
		return j, fmt.Errorf("job %s to %s: %w", j.ID, to, err)
	}
	j.State, j.Version, j.ChangedAt = to, j.Version+1, tx.Now
	return j, nil
}

// ForgetFailed removes jobs that failed before the given time and that say
// nothing any more, at most limit: no template came of them, or a later job was
// at work on it since.
func ForgetFailed(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	old, err := store.Collect(ctx, tx, scanJobID, `SELECT id FROM job WHERE state = ? AND changed_us < ?
		AND (NOT EXISTS (SELECT 1 FROM definition d WHERE d.id = job.template_id) OR EXISTS (SELECT 1 FROM job n WHERE n.template_id = job.template_id AND n.attempt_no > job.attempt_no))
		ORDER BY changed_us LIMIT ?`,
		string(template.JobFailed), before.UnixMicro(), limitOf(limit))
	if err != nil {
		return 0, err
	}
	for i, id := range old {
		n, err := tx.Exec(ctx, `DELETE FROM job WHERE id = ? AND state = ?`, string(id), string(template.JobFailed))
		if err == nil && n > 0 {
			err = forgetJob(ctx, tx, id)
		}
		if err != nil {
			return i, err
		}
	}
	return len(old), nil
}

func scanJobID(r store.Scanner) (id template.JobID, err error) { return id, r.Scan(&id) }

// DeleteJobs removes a template's jobs, with their logs and leases.
func DeleteJobs(ctx context.Context, tx *store.Tx, id template.ID) error {
	jobs, err := store.Collect(ctx, tx, scanJobID, `SELECT id FROM job WHERE template_id = ?`, string(id))
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := forgetJob(ctx, tx, j); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, `DELETE FROM job WHERE template_id = ?`, string(id))
	return err
}
