package master

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const progressBuilt = 65

// serveReport takes the template centre's word of a job.
func (m *Master) serveReport(w http.ResponseWriter, r *http.Request) {
	var rep cubeapi.JobReport
	err := serve.ReadJSON(r, maxBody, &rep)
	if err == nil {
		err = m.report(r.Context(), template.JobID(r.PathValue("job_id")), rep)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.TCAnswer{Status: "ok"})
}

func (m *Master) report(ctx context.Context, id template.JobID, rep cubeapi.JobReport) error {
	switch rep.Status {
	case cubeapi.StatusRunning:
		return m.reportProgress(ctx, id, rep)
	case cubeapi.StatusBuilt:
		if err := m.reportBuilt(ctx, id, rep); err != nil {
			return err
		}
		m.resumeSoon(ctx, id)
		return fail.Point("master.built.after_commit")
	case cubeapi.StatusFailed:
		return m.reportFailed(ctx, id, rep)
	}
	return fault.New(fault.InvalidInput, "status %q of job %s", rep.Status, id)
}

func (m *Master) reportProgress(ctx context.Context, id template.JobID, rep cubeapi.JobReport) error {
	phase, err := cubeapi.PhaseOf(rep.Phase)
	if err != nil {
		return err
	}
	return m.db.Update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil {
			return err
		}
		if j.State != template.JobQueued && j.State != template.JobBuilding {
			return nil // late word of a build that is over
		}
		enter(&j, phase, rep.Progress, tx)
		if rep.PullTotalBytes > 0 {
			j.Pull = template.Pull{TotalBytes: rep.PullTotalBytes, DoneBytes: rep.PullDoneBytes, TotalLayers: rep.PullTotalLayers, DoneLayers: rep.PullDoneLayers, BytesPerSecond: rep.PullBytesPerSecond}
		}
		if rep.SourceImageDigest != "" {
			j.Digest, j.Spec = rep.SourceImageDigest, rep.SpecFingerprint
		}
		_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobStarted)
		return err
	})
}

// enter notes that a job is in phase. Progress only grows.
func enter(j *template.Job, phase template.Phase, progress int, tx *store.Tx) {
	if j.Phase != phase || len(j.PhaseTimes) == 0 {
		if j.PhaseTimes == nil {
			j.PhaseTimes = template.PhaseTimes{}
		}
		j.PhaseTimes[phase] = tx.Now
	}
	j.Phase, j.Progress = phase, min(100, max(j.Progress, progress))
}

func (m *Master) reportFailed(ctx context.Context, id template.JobID, rep cubeapi.JobReport) error {
	return m.db.Update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil {
			return err
		}
		if j.State == template.JobFailed {
			return nil
		}
		if !j.State.Active() {
			return fault.New(fault.StateConflict, "job %s is %s", id, j.State)
		}
		j.Error, j.ErrorCode = rep.ErrorMessage, rep.ErrorCode
		_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobFailed)
		return err
	})
}

// reportBuilt registers the artifact and moves the job on, in one transaction,
// before the template centre gets its answer: it holds the lock of these bytes
// until then. A repeat is acknowledged.
func (m *Master) reportBuilt(ctx context.Context, jobID template.JobID, rep cubeapi.JobReport) error {
	if err := checkBuilt(rep); err != nil {
		return err
	}
	result, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	return m.db.Update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, jobID)
		if err != nil {
			return err
		}
		switch {
		case string(j.TemplateID) != rep.TemplateID:
			return fault.New(fault.InvalidInput, "job %s is of template %s, the report of %s", j.ID, j.TemplateID, rep.TemplateID)
		case j.State == template.JobFailed:
			return fault.New(fault.StateConflict, "job %s has failed", j.ID)
		case j.State != template.JobQueued && j.State != template.JobBuilding:
			return nil
		}
		if err := register(ctx, tx, j, rep); err != nil {
			return err
		}
		enter(&j, template.PhaseStoring, progressBuilt, tx)
		j.Digest, j.Spec, j.ArtifactID, j.Result = rep.SourceImageDigest, rep.SpecFingerprint, template.ArtifactID(rep.ArtifactID), result
		_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobBuilt)
		return err
	})
}

// checkBuilt refuses a report that cannot be of this system: it decides what
// hosts will start from.
func checkBuilt(r cubeapi.JobReport) error {
	switch {
	case template.CheckID(r.ArtifactID) != nil || len(r.ContentKey) != 64 || r.ArtifactID != string(template.ArtifactIDOf(r.ContentKey)):
		return fault.New(fault.InvalidInput, "artifact %q does not belong to content key %q", r.ArtifactID, r.ContentKey)
	case len(r.Ext4SHA256) != 64 || r.Ext4SizeBytes <= 0:
		return fault.New(fault.InvalidInput, "artifact %s: sha256 or size is missing", r.ArtifactID)
	case r.StorageBackend == "" || r.ObjectKey == "":
		return fault.New(fault.InvalidInput, "artifact %s: its store is missing", r.ArtifactID)
	}
	return nil
}

// register makes the artifact of a report ready.
func register(ctx context.Context, tx *store.Tx, j template.Job, rep cubeapi.JobReport) error {
	a, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(rep.ArtifactID))
	if errors.Is(err, fault.ArtifactNotFound) {
		a, err = templatedb.AddArtifact(ctx, tx, template.Artifact{ID: template.ArtifactID(rep.ArtifactID), ContentKey: rep.ContentKey, ImageRef: j.ImageRef, Digest: rep.SourceImageDigest, Token: id.Secret("", 16)})
	}
	if err != nil {
		return err
	}
	for a.State != template.ArtifactReady {
		event := map[template.ArtifactState]template.ArtifactEvent{
			template.ArtifactBuilding: template.OnArtifactStored,
			template.ArtifactFailed:   template.OnArtifactClaimed,
			template.ArtifactCleanup:  template.OnArtifactClaimed,
		}[a.State]
		if event == "" {
			return fault.New(fault.StateConflict, "artifact %s is being removed", a.ID)
		}
		describe(&a, rep)
		if a, err = templatedb.MoveArtifact(ctx, tx, a, event); err != nil {
			return err
		}
	}
	if a.SHA256 == rep.Ext4SHA256 {
		return nil
	}
	describe(&a, rep)
	_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored)
	return err
}

func describe(a *template.Artifact, rep cubeapi.JobReport) {
	a.SHA256, a.SizeBytes, a.Backend, a.Location = rep.Ext4SHA256, rep.Ext4SizeBytes, rep.StorageBackend, rep.ObjectKey
	if c := rep.ImageConfig; c != nil {
		a.ImageConfig = template.ImageConfig{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User}
	}
}
