package master

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
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
		was := j
		j.Error, j.ErrorCode = fault.New(fault.BuildCancelled, "job %s: cancelled in phase %s by a user, request %s", id, j.Phase, request).Error(), fault.BuildCancelled.Name
		if j, err = templatedb.MoveJob(ctx, tx, j, template.OnJobCancelled); err != nil {
			return err
		}
		if err := undo(ctx, tx, was); err != nil {
			return err
		}
		return say(ctx, tx, id, "%s", j.Error)
	})
	if err != nil {
		return j, err
	}
	m.forget(id)
	m.sweepNow()
	return j, nil
}

// undo releases what a job that has ended without an outcome had made: hosts
// that it began and the artifact, unless a template uses them.
func undo(ctx context.Context, tx *store.Tx, j template.Job) error {
	_, err := templatedb.GetDefinition(ctx, tx, j.TemplateID)
	switch {
	case errors.Is(err, fault.TemplateNotFound):
		err = templatedb.RemoveReplicas(ctx, tx, j.TemplateID)
	case err == nil:
		err = failPending(ctx, tx, j)
	}
	if err != nil || j.ArtifactID == "" {
		return err
	}
	return unused(ctx, tx, j.ArtifactID)
}

// failPending ends the replicas that a job began and did not end.
func failPending(ctx context.Context, tx *store.Tx, j template.Job) error {
	list, err := templatedb.ListReplicas(ctx, tx, j.TemplateID)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.State != template.ReplicaPending || p.JobID != j.ID {
			continue
		}
		p.Error = "job " + string(j.ID) + " was cancelled"
		if _, err := templatedb.MoveReplica(ctx, tx, p, template.OnReplicaFailed); err != nil {
			return err
		}
	}
	return nil
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
		return fault.New(fault.StateConflict, "job %s is over", j.ID)
	case template.OnReplicaHeld:
		if _, err := templatedb.GetArtifact(ctx, tx, j.ArtifactID); err != nil {
			return err
		}
		return templatedb.PutPlacement(ctx, tx, j.ArtifactID, h)
	}
	return nil
}

// ended reports whether a job is over, so that nothing more is to be made of it.
func ended(ctx context.Context, tx *store.Tx, id template.JobID) (bool, error) {
	j, err := templatedb.GetJob(ctx, tx, id)
	if errors.Is(err, fault.JobNotFound) {
		return true, nil
	}
	return err == nil && !j.State.Active(), err
}
