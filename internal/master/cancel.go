package master

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// serveCancel ends a job at a user's word, wherever it stands.
func (m *Master) serveCancel(w http.ResponseWriter, r *http.Request) {
	j, err := m.cancel(r.Context(), template.JobID(r.PathValue("job_id")), requestID(r))
	m.answerJob(w, r, requestID(r), j, err)
}

// cancel moves a job to its end. Whoever works on it sees so with the next word
// on it and cleans up; what the rows alone tell of goes here. A second cancel
// changes nothing.
func (m *Master) cancel(ctx context.Context, id template.JobID, request string) (j template.Job, err error) {
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		if j, err = templatedb.GetJob(ctx, tx, id); err != nil {
			return err
		}
		switch {
		case j.State == template.JobFailed && j.ErrorCode == fault.BuildCancelled.Name:
			return nil
		case !j.State.Active():
			return fault.New(fault.StateConflict, "job %s is %s, it cannot be cancelled", j.ID, cubeapi.JobStatus[j.State])
		}
		if j, err = cancelJob(ctx, tx, j, fmt.Sprintf("cancelled in phase %s by a user, request %s", j.Phase, request)); err != nil {
			return err
		}
		if err := undo(ctx, tx, j); err != nil {
			return err
		}
		return audit(ctx, tx, actJobCancel, string(j.TemplateID), "job", string(j.ID), "phase", string(j.Phase))
	})
	if err != nil {
		return j, err
	}
	m.forget(id)
	m.sweepNow()
	return j, nil
}

// cancelLook is how soon whoever works on a job learns that it was cancelled.
const cancelLook = time.Second

// whileActive returns a context that ends with the job, and how to end the
// watching.
func (m *Master) whileActive(ctx context.Context, id template.JobID) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := every(ctx, min(cancelLook, m.pace.beat), func(ctx context.Context) {
		j, err := m.job(ctx, id)
		if errors.Is(err, fault.JobNotFound) || err == nil && !j.State.Active() {
			cancel()
		}
	})
	return ctx, func() { stop(); cancel() }
}

// lateReplica is what becomes of a host's word on a job that is over: nothing
// more is brought to it, and bytes that it has are noted, so that they are
// taken from it.
func lateReplica(ctx context.Context, tx *store.Tx, j template.Job, h host.ID, on template.ReplicaEvent) error {
	switch on {
	case template.OnReplicaRetried:
		return fault.New(fault.StateConflict, "the work on template %s is over", j.TemplateID)
	case template.OnReplicaHeld:
		return noteBytes(ctx, tx, j.ArtifactID, h)
	}
	return nil
}

// noteBytes notes that a host has the bytes of an artifact. What has no row, or
// whose host has none, is in no book and goes.
func noteBytes(ctx context.Context, tx *store.Tx, id template.ArtifactID, h host.ID) error {
	known, err := sandboxdb.HoldHost(ctx, tx, h)
	if err != nil || !known {
		return err
	}
	if _, err := templatedb.GetArtifact(ctx, tx, id); err != nil {
		return err
	}
	return templatedb.PutPlacement(ctx, tx, id, h)
}

// ended reports whether a job is over, so that nothing more is to be made of it.
func ended(ctx context.Context, tx *store.Tx, j template.Job) (bool, error) {
	now, err := templatedb.GetJob(ctx, tx, j.ID)
	if errors.Is(err, fault.JobNotFound) {
		return true, nil
	}
	return err == nil && !now.State.Active(), err
}
