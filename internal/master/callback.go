package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// What the template centre's phases count as ends where the master's begin.
const (
	progressStored = 60
	progressBuilt  = 65
)

// centerPhases are those that the template centre may report.
var centerPhases = []template.Phase{template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4, template.PhaseStoring}

// serveReport takes the template centre's word of a job. Fields that it does
// not know are dropped.
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
	if err := checkReport(rep); err != nil {
		return err
	}
	switch rep.Status {
	case "", cubeapi.StatusRunning:
		return m.reportProgress(ctx, id, rep)
	case cubeapi.StatusBuilt:
		if err := m.reportBuilt(ctx, id, rep); err != nil {
			return err
		}
		if err := m.step("master.built.after_commit"); err != nil {
			return err
		}
		m.resumeSoon(ctx, id)
		return nil
	case cubeapi.StatusFailed:
		return m.reportFailed(ctx, id, rep)
	}
	return fault.New(fault.InvalidInput, "status %q of job %s: only RUNNING, BUILT and FAILED are reported", rep.Status, id)
}

var (
	hexForm    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// checkReport refuses values that no report of this system has.
func checkReport(r cubeapi.JobReport) error {
	switch {
	case r.Progress < 0 || r.Progress > 100:
		return fault.New(fault.InvalidInput, "progress %d", r.Progress)
	case r.PullTotalBytes < 0 || r.PullDoneBytes < 0 || r.PullTotalLayers < 0 || r.PullDoneLayers < 0 || r.PullBytesPerSecond < 0:
		return fault.New(fault.InvalidInput, "a pull counter is under 0")
	case r.SourceImageDigest != "" && !digestForm.MatchString(r.SourceImageDigest):
		return fault.New(fault.InvalidInput, "source_image_digest %.80q", r.SourceImageDigest)
	case r.SpecFingerprint != "" && !hexForm.MatchString(r.SpecFingerprint):
		return fault.New(fault.InvalidInput, "template_spec_fingerprint %.80q", r.SpecFingerprint)
	case len(r.Log) > maxReportLines:
		return fault.New(fault.InvalidInput, "log has %d lines, at most %d", len(r.Log), maxReportLines)
	case len(r.ErrorCode) > 64:
		return fault.New(fault.InvalidInput, "error_code has %d characters", len(r.ErrorCode))
	}
	return nil
}

// admit refuses the report of a builder that has the job no more, before
// anything of it is looked at: another may have begun anew. Who has no lease may
// report on a job that nobody ever had one on. The rest is said of the job.
func admit(ctx context.Context, tx *store.Tx, id template.JobID, rep cubeapi.JobReport) error {
	if rep.Holder != "" || rep.Epoch != 0 {
		return tx.Guard(ctx, lease.Fence{Subject: template.BuildSubject(id), Holder: rep.Holder, Epoch: lease.Epoch(rep.Epoch)})
	}
	hold, l, err := templatedb.HoldOf(ctx, tx, template.Job{ID: id})
	if err == nil && hold != template.Unheld {
		err = fault.New(fault.StaleController, "job %s is the %d. builder's, the report names none", id, l.Epoch)
	}
	return err
}

// over is what a report that comes too late meets: a word that repeats the
// outcome, or that is behind it, is acknowledged; one that would change the
// outcome is not.
func over(j template.Job, asked string) error {
	if j.State.Active() || cubeapi.JobStatus[j.State] == asked {
		return nil
	}
	return fault.New(fault.StateConflict, "job %s is %s, %s is refused", j.ID, cubeapi.JobStatus[j.State], asked)
}

func building(s template.JobState) bool {
	return s == template.JobQueued || s == template.JobBuilding
}

func (m *Master) reportProgress(ctx context.Context, id template.JobID, rep cubeapi.JobReport) error {
	var phase template.Phase
	if rep.Phase != "" {
		var err error
		if phase, err = cubeapi.PhaseOf(rep.Phase); err != nil {
			return err
		}
		if !slices.Contains(centerPhases, phase) {
			return fault.New(fault.InvalidInput, "phase %q is not the template centre's to report", rep.Phase)
		}
	}
	err := m.update(ctx, func(tx *store.Tx) error {
		if err := admit(ctx, tx, id, rep); err != nil {
			return err
		}
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil {
			return err
		}
		if !building(j.State) {
			return over(j, cubeapi.StatusRunning) // late word of a build that is over
		}
		before := j
		// Reports may overtake each other: an older one changes no phase.
		if progress := min(rep.Progress, progressStored); phase != "" && progress >= j.Progress {
			enter(&j, phase, progress, tx)
		}
		if rep.PullTotalBytes > 0 {
			j.Pull = template.Pull{TotalBytes: rep.PullTotalBytes, DoneBytes: rep.PullDoneBytes, TotalLayers: rep.PullTotalLayers, DoneLayers: rep.PullDoneLayers, BytesPerSecond: rep.PullBytesPerSecond}
		}
		identify(&j, rep)
		rep := freshLines(&j, rep)
		if _, err = templatedb.MoveJob(ctx, tx, j, template.OnJobStarted); err != nil {
			return err
		}
		return logReport(ctx, tx, id, rep, logPhase(tx, before, j)...)
	})
	if err == nil {
		m.forget(id)
	}
	return err
}

func identify(j *template.Job, rep cubeapi.JobReport) {
	if rep.SourceImageDigest != "" {
		j.Digest = rep.SourceImageDigest
	}
	if rep.SpecFingerprint != "" {
		j.Spec = rep.SpecFingerprint
	}
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

// reportFailed ends a job that was still being built. One that is built is the
// master's: the template centre may have missed the answer to its BUILT.
func (m *Master) reportFailed(ctx context.Context, id template.JobID, rep cubeapi.JobReport) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		if err := admit(ctx, tx, id, rep); err != nil {
			return err
		}
		j, err := templatedb.GetJob(ctx, tx, id)
		switch {
		case err != nil:
			return err
		case j.State == template.JobFailed:
			return nil
		case !building(j.State):
			return fault.New(fault.StateConflict, "job %s is %s, %s is refused", j.ID, cubeapi.JobStatus[j.State], rep.Status)
		}
		j.Error, j.ErrorCode = clip(rep.ErrorMessage), rep.ErrorCode
		if j.ErrorCode == "" {
			j.ErrorCode = fault.BuildFailed.Name
		}
		rep := freshLines(&j, rep)
		if _, err = templatedb.MoveJob(ctx, tx, j, template.OnJobFailed); err != nil {
			return err
		}
		if err := committedIn(ctx, tx, j); err != nil {
			return err
		}
		return logReport(ctx, tx, id, rep, fmt.Sprintf("failed in phase %s: %s", j.Phase, j.Error))
	})
	if err == nil {
		m.forget(id)
		m.deliverSoon(topicSnapshot)
	}
	return err
}

// reportBuilt registers the artifact and moves the job on, in one transaction,
// before the template centre gets its answer: it holds the lock of these bytes
// until then. A repeat is acknowledged.
func (m *Master) reportBuilt(ctx context.Context, jobID template.JobID, rep cubeapi.JobReport) error {
	if err := checkBuilt(rep); err != nil {
		return err
	}
	kept := rep
	kept.Log = nil // it is in the log
	result, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	err = m.update(ctx, func(tx *store.Tx) error {
		if err := admit(ctx, tx, jobID, rep); err != nil {
			return err
		}
		j, err := templatedb.GetJob(ctx, tx, jobID)
		if err != nil {
			return err
		}
		switch {
		case string(j.TemplateID) != rep.TemplateID:
			return fault.New(fault.InvalidInput, "job %s is of template %s, the report of %q", j.ID, j.TemplateID, rep.TemplateID)
		case j.State == template.JobFailed:
			return over(j, cubeapi.StatusBuilt)
		case !building(j.State) && string(j.ArtifactID) != rep.ArtifactID:
			return fault.New(fault.StateConflict, "job %s built artifact %s, the report says %s", j.ID, j.ArtifactID, rep.ArtifactID)
		case !building(j.State):
			return nil
		}
		if err := register(ctx, tx, j, rep); err != nil {
			return err
		}
		enter(&j, template.PhaseStoring, progressBuilt, tx)
		identify(&j, rep)
		j.ArtifactID, j.Result = template.ArtifactID(rep.ArtifactID), result
		rep := freshLines(&j, rep)
		if _, err = templatedb.MoveJob(ctx, tx, j, template.OnJobBuilt); err != nil {
			return err
		}
		if err := committedIn(ctx, tx, j); err != nil {
			return err
		}
		return logReport(ctx, tx, jobID, rep, fmt.Sprintf("built: artifact %s, %d bytes, sha256 %s", rep.ArtifactID, rep.Ext4SizeBytes, rep.Ext4SHA256))
	})
	if err == nil {
		m.forget(jobID)
		m.deliverSoon(topicSnapshot)
	}
	return err
}

// checkBuilt refuses a report that cannot be of this system: it decides what
// hosts will start from.
func checkBuilt(r cubeapi.JobReport) error {
	switch {
	case !hexForm.MatchString(r.ContentKey) || r.ArtifactID != string(template.ArtifactIDOf(r.ContentKey)):
		return fault.New(fault.InvalidInput, "artifact %.80q does not belong to content key %.80q", r.ArtifactID, r.ContentKey)
	case !hexForm.MatchString(r.Ext4SHA256) || r.Ext4SizeBytes <= 0:
		return fault.New(fault.InvalidInput, "artifact %s: sha256 %.80q, %d bytes", r.ArtifactID, r.Ext4SHA256, r.Ext4SizeBytes)
	case r.ManifestSHA256 != "" && !hexForm.MatchString(r.ManifestSHA256):
		return fault.New(fault.InvalidInput, "artifact %s: manifest_sha256 %.80q", r.ArtifactID, r.ManifestSHA256)
	case r.StorageBackend != "dir" && r.StorageBackend != "s3":
		return fault.New(fault.InvalidInput, "artifact %s: storage_backend %.80q", r.ArtifactID, r.StorageBackend)
	case r.ObjectKey == "" || len(r.ObjectKey) > 1024:
		return fault.New(fault.InvalidInput, "artifact %s: object_key of %d characters", r.ArtifactID, len(r.ObjectKey))
	case r.SourceImageDigest == "" || r.SpecFingerprint == "":
		return fault.New(fault.InvalidInput, "artifact %s: source_image_digest or template_spec_fingerprint is missing", r.ArtifactID)
	}
	return nil
}

// register makes the artifact of a report ready.
func register(ctx context.Context, tx *store.Tx, j template.Job, rep cubeapi.JobReport) error {
	a, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(rep.ArtifactID))
	if errors.Is(err, fault.ArtifactNotFound) {
		a, err = templatedb.AddArtifact(ctx, tx, template.Artifact{ID: template.ArtifactID(rep.ArtifactID), ContentKey: rep.ContentKey, ImageRef: j.ImageRef, Digest: rep.SourceImageDigest, Token: id.Secret("", 16)})
		if errors.Is(err, fault.Exists) {
			return fault.VersionConflict // another build of these bytes registered them meanwhile: look again
		}
	}
	if err != nil {
		return err
	}
	describe := func() {
		a.SHA256, a.SizeBytes, a.Backend, a.Location, a.Error = rep.Ext4SHA256, rep.Ext4SizeBytes, rep.StorageBackend, rep.ObjectKey, ""
		if a.Token == "" {
			a.Token = id.Secret("", 16)
		}
		if c := rep.ImageConfig; c != nil {
			a.ImageConfig = template.ImageConfig{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User}
		}
	}
	switch a.State {
	case template.ArtifactReady:
		// Written also when nothing is new: whoever takes it for unused at this
		// moment then meets another version, and looks again.
		if stored := rep.Reused || a.Backend == rep.StorageBackend && a.Location == rep.ObjectKey; stored && a.SHA256 == rep.Ext4SHA256 && servable(a) == nil {
			_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored)
			return err
		}
	case template.ArtifactFailed, template.ArtifactCleanup:
		if a, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactClaimed); err != nil {
			return err
		}
	case template.ArtifactDeleting:
		// Its bytes go, or have gone: nothing may be made ready on them.
		return fault.New(fault.StateConflict, "artifact %s is being removed", a.ID)
	}
	describe()
	if _, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored); err != nil {
		return err
	}
	return templatedb.PutManifest(ctx, tx, a.ID, rep.ManifestSHA256)
}
