package master

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// movesAtOnce bounds the moves of one process. They are slow, and must not
	// hold up distributions.
	movesAtOnce    = 2
	progressMoving = 20
	progressMoved  = 80
)

func (m *Master) serveMigrate(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.MigrateRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		req.RequestID = named(r, req.RequestID)
		switch {
		case req.TemplateID == "":
			err = fault.New(fault.InvalidInput, "template_id is missing")
		case len(req.RequestID) > maxRequestID:
			err = fault.New(fault.InvalidInput, "requestID has %d characters, at most %d", len(req.RequestID), maxRequestID)
		}
	}
	answer := cubeapi.MigrateAnswer{Envelope: cubeapi.OK(req.RequestID)}
	switch {
	case err != nil:
	case req.DryRun:
		answer.Plan, err = m.planMigrate(r.Context(), req)
	default:
		var j template.Job
		if j, err = m.submitMigrate(r.Context(), req); err == nil {
			answer.Job = showJob(j)
		}
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// serveMigrateJob answers the job of a move; another one is none of its.
func (m *Master) serveMigrateJob(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("job_id")
	if name == "" {
		serve.WriteError(w, r, fault.New(fault.InvalidInput, "job_id is missing"))
		return
	}
	j, err := m.job(r.Context(), template.JobID(name))
	if err == nil && j.Operation != template.OpMigrate {
		err = fault.New(fault.JobNotFound, "job %s moves no bytes, it is a %s", j.ID, cubeapi.Operations.Word(j.Operation))
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	m.serveJob(w, r)
}

// movable returns the template called name and its artifact, if the bytes may
// be moved.
func movable(ctx context.Context, tx *store.Tx, name string) (d template.Definition, a template.Artifact, err error) {
	if d, err = templatedb.Resolve(ctx, tx, name); err != nil {
		return d, a, err
	}
	switch {
	case d.State == template.Deleting:
		return d, a, fault.New(fault.TemplateNotFound, "template %s is being deleted", d.ID)
	case !d.State.Usable():
		return d, a, fault.New(fault.TemplateNotReady, "template %s is %s", d.ID, d.State)
	}
	a, err = templatedb.GetArtifact(ctx, tx, d.ArtifactID)
	if errors.Is(err, fault.ArtifactNotFound) || err == nil && a.State == template.ArtifactFailed {
		err = fault.New(fault.BytesLost, "template %s: artifact %s: %s", d.ID, d.ArtifactID, a.Error)
	} else if err == nil {
		err = servable(a)
	}
	return d, a, err
}

// submitMigrate stores the job of a move. While a template's bytes are being
// moved, whoever asks gets that job: the first one wins, whichever master it
// came to.
func (m *Master) submitMigrate(ctx context.Context, req cubeapi.MigrateRequest) (template.Job, error) {
	fresh := template.JobID(id.New(template.JobPrefix))
	var j template.Job
	err := m.update(ctx, func(tx *store.Tx) error {
		old, found, err := templatedb.JobByRequest(ctx, tx, req.RequestID, template.OpMigrate)
		if err != nil {
			return err
		}
		if found {
			if j = old; old.Plan.Asked != req.TemplateID {
				return fault.New(fault.SubmissionReused, "request %s, which asked for job %s", old.RequestID, old.ID)
			}
			return nil
		}
		d, a, err := movable(ctx, tx, req.TemplateID)
		if err != nil {
			return err
		}
		latest, found, err := templatedb.LatestJob(ctx, tx, d.ID)
		switch {
		case err != nil:
			return err
		case found && latest.State.Active() && latest.Operation == template.OpMigrate:
			j = latest
			return nil
		case found && latest.State.Active():
			return fault.New(fault.BuildInProgress, "template %s: job %s is %s", d.ID, latest.ID, cubeapi.JobStatus[latest.State])
		}
		if _, err := templatedb.TouchDefinition(ctx, tx, d); err != nil {
			return err
		}
		j, err = templatedb.AddJob(ctx, tx, template.Job{
			ID: fresh, TemplateID: d.ID, RequestID: req.RequestID, Operation: template.OpMigrate, AttemptNo: latest.AttemptNo + 1, RetryOf: latest.ID, Plan: template.Plan{Asked: req.TemplateID},
			Phase: template.PhaseMigrating, Request: d.Request, ImageRef: d.ImageRef, Digest: d.Digest, ArtifactID: a.ID, Spec: latest.Spec, PhaseTimes: template.PhaseTimes{},
		})
		if errors.Is(err, fault.Exists) {
			return fault.VersionConflict // another request was faster: look again
		}
		if err != nil {
			return err
		}
		enter(&j, template.PhaseMigrating, progressMoving, tx)
		if j, err = templatedb.MoveJob(ctx, tx, j, template.OnJobMoving); err != nil {
			return err
		}
		return audit(ctx, tx, actTemplateMove, string(d.ID), "job", string(j.ID), "artifact", string(a.ID))
	})
	if err != nil || j.ID != fresh {
		return j, err
	}
	if err := m.step("master.migrate.after_commit"); err != nil {
		return j, err
	}
	m.goOn(ctx, j.ID, m.moving)
	return j, nil
}

// migrate does the job of a move, whose artifact nobody else has in hand. It
// can be run again from any step.
func (m *Master) migrate(ctx context.Context, name template.JobID) error {
	var j template.Job
	var a template.Artifact
	var late bool // a try that fails now is the last
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if j, err = templatedb.GetJob(ctx, tx, name); err == nil && j.State == template.JobMigrating {
			// Not by its last sign of life: each try gives one.
			late = tx.Now.Sub(j.CreatedAt) > m.pace.moveWithin
			a, err = templatedb.GetArtifact(ctx, tx, j.ArtifactID)
		}
		return err
	})
	if errors.Is(err, fault.ArtifactNotFound) {
		return m.giveUp(ctx, j, 0, fault.New(fault.BytesLost, "artifact %s", j.ArtifactID))
	}
	if err != nil || j.State != template.JobMigrating {
		return err
	}
	if err := m.putBack(a); err != nil {
		return err
	}
	working, stop := m.keepAlive(ctx, name)
	moved, err := m.moveBytes(working, a)
	over := working.Err() != nil
	stop()
	switch {
	case errors.Is(err, errStep) || ctx.Err() != nil:
		return errors.Join(err, ctx.Err())
	case over:
		return m.leaveJob(ctx, name) // somebody ended it; nothing was changed
	case err != nil && fault.Of(err).Class.Retry && !late:
		return err // a sweep tries again
	case err != nil:
		return m.giveUp(ctx, j, 0, err)
	}
	if err := m.noteMoved(ctx, name, moved); err != nil {
		if errors.Is(err, fault.StateConflict) {
			return m.giveUp(ctx, j, 0, err)
		}
		return err
	}
	if err := m.step("master.migrate.after_row"); err != nil {
		return err
	}
	return m.endMove(ctx, name, m.dropCopies(ctx, a, moved))
}

// errStep is what a place in the code where tests break the program returned.
var errStep = errors.New("broken off")

// moveBytes makes the template centre's store have an artifact's bytes: from
// its own directory of before, else from this master's disk.
func (m *Master) moveBytes(ctx context.Context, a template.Artifact) (cubeapi.TCArtifactAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, m.pace.moveTime)
	defer cancel()
	if err := servable(a); err != nil {
		return cubeapi.TCArtifactAnswer{}, fault.Wrap(fault.BytesLost, err, "artifact %s", a.ID)
	}
	s, err := m.center.MoveArtifact(ctx, string(a.ID))
	if errors.Is(err, fault.ArtifactNotFound) || errors.Is(err, fault.BytesElsewhere) && m.onOwnDisk(a) {
		s, err = m.upload(ctx, a)
	}
	switch {
	case err != nil:
		return s, err
	case s.SizeBytes != a.SizeBytes:
		return s, fault.New(fault.BytesLost, "the template centre has %d bytes of artifact %s, its row says %d", s.SizeBytes, a.ID, a.SizeBytes)
	}
	if err := m.step("master.migrate.after_move"); err != nil {
		return s, errors.Join(errStep, err)
	}
	return s, nil
}

// ownDir is the directory of artifacts on this master's disk, nil when there is
// none.
func (m *Master) ownDir() *artifact.Dir { return artifact.FindDir(m.cfg.ArtifactStore.Dir) }

func artifactKey(id template.ArtifactID) string { return string(id) + ".ext4" }
func receiptKey(id template.ArtifactID) string  { return string(id) + ".receipt.json" }

// onOwnDisk reports whether this master has an artifact's file, whole.
func (m *Master) onOwnDisk(a template.Artifact) bool {
	dir := m.ownDir()
	if dir == nil {
		return false
	}
	s, err := os.Lstat(dir.Location(artifactKey(a.ID)))
	return err == nil && s.Mode().IsRegular() && s.Size() == a.SizeBytes
}

// upload sends the file that this master has to the template centre, which
// looks at its size and hash before it takes it.
func (m *Master) upload(ctx context.Context, a template.Artifact) (s cubeapi.TCArtifactAnswer, err error) {
	if !m.onOwnDisk(a) {
		return s, fault.New(fault.BytesLost, "artifact %s is neither in the store, nor in the template centre's directory of before, nor in %s on this master", a.ID, m.cfg.ArtifactStore.Dir)
	}
	dir := m.ownDir()
	data, _, err := dir.Open(ctx, artifactKey(a.ID))
	if err != nil {
		return s, err
	}
	defer data.Close()
	var receipt io.Reader
	if r, _, err := dir.Open(ctx, receiptKey(a.ID)); err == nil {
		defer r.Close()
		receipt = r
	} else if !errors.Is(err, fault.ArtifactNotFound) {
		return s, err
	}
	return m.center.UploadArtifact(ctx, string(a.ID), data, receipt)
}

// noteMoved writes where the bytes are now, if the artifact is still the one
// that was moved.
func (m *Master) noteMoved(ctx context.Context, name template.JobID, moved cubeapi.TCArtifactAnswer) error {
	return m.update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, name)
		if err != nil {
			return err
		}
		if j.State != template.JobMigrating {
			return fault.New(fault.StateConflict, "job %s is %s", j.ID, j.State)
		}
		a, err := templatedb.GetArtifact(ctx, tx, j.ArtifactID)
		switch {
		case errors.Is(err, fault.ArtifactNotFound) || err == nil && a.State != template.ArtifactReady:
			return fault.New(fault.StateConflict, "artifact %s is not ready any more", j.ArtifactID)
		case err != nil:
			return err
		case a.SizeBytes != moved.SizeBytes || moved.SHA256 != "" && a.SHA256 != moved.SHA256:
			return fault.New(fault.StateConflict, "artifact %s was built again meanwhile", a.ID)
		}
		if a.Backend != moved.Backend || a.Location != moved.ObjectKey {
			a.Backend, a.Location = moved.Backend, moved.ObjectKey
			if _, err := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored); err != nil {
				return err
			}
		}
		enter(&j, template.PhaseMigrating, progressMoved, tx)
		_, err = templatedb.TouchJob(ctx, tx, j)
		return err
	})
}

// dropCopies removes what is left of moved bytes elsewhere. The move is good
// without it: what cannot be removed is a warning.
func (m *Master) dropCopies(ctx context.Context, a template.Artifact, moved cubeapi.TCArtifactAnswer) (warning error) {
	ctx, cancel := context.WithTimeout(ctx, m.pace.moveTime)
	defer cancel()
	if _, err := m.center.MoveArtifact(ctx, string(a.ID)); err != nil {
		return fmt.Errorf("a copy of the bytes may be left at the template centre: %w", err)
	}
	if err := m.dropOwn(ctx, a, moved); err != nil {
		return fmt.Errorf("a copy of the bytes is left on this master: %w", err)
	}
	return nil
}

// dropOwn removes this master's own copy, unless it is the very file that the
// template centre serves: that one is put back.
func (m *Master) dropOwn(ctx context.Context, a template.Artifact, moved cubeapi.TCArtifactAnswer) error {
	if !m.onOwnDisk(a) {
		return nil
	}
	dir := m.ownDir()
	file := dir.Location(artifactKey(a.ID))
	if moved.Path != "" {
		own, err := os.Stat(file)
		if err != nil {
			return err
		}
		if theirs, err := os.Stat(moved.Path); err == nil && os.SameFile(own, theirs) {
			return nil
		}
	}
	aside := m.aside(a)
	if err := os.Rename(file, aside); err != nil {
		return err
	}
	if err := m.step("master.migrate.aside"); err != nil {
		return err
	}
	s, err := m.center.StatArtifact(ctx, string(a.ID), false)
	if err == nil && (s.Legacy || s.SizeBytes != a.SizeBytes) {
		err = fault.New(fault.ArtifactNotFound, "the template centre has no copy of its own")
	}
	if err != nil {
		return errors.Join(err, os.Rename(aside, file))
	}
	m.log.InfoContext(ctx, "copy of moved bytes removed", slog.String("artifact_id", string(a.ID)), slog.String("path", file))
	return errors.Join(os.Remove(aside), dir.Remove(ctx, receiptKey(a.ID)))
}

// aside is where this master's own copy is while it is seen whether anybody
// needs it.
func (m *Master) aside(a template.Artifact) string {
	return m.ownDir().Location(artifactKey(a.ID)) + ".moved"
}

// putBack puts a copy back that a process which ended had put aside: it may be
// the only one.
func (m *Master) putBack(a template.Artifact) error {
	dir := m.ownDir()
	if dir == nil {
		return nil
	}
	file := dir.Location(artifactKey(a.ID))
	if _, err := os.Lstat(file); err == nil {
		return ignoreAbsent(os.Remove(m.aside(a)))
	}
	return ignoreAbsent(os.Rename(m.aside(a), file))
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// endMove ends the job, with a word on what is left to do by hand.
func (m *Master) endMove(ctx context.Context, name template.JobID, warning error) error {
	return m.update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, name)
		if err != nil || j.State != template.JobMigrating {
			return err
		}
		if warning != nil {
			j.Error = clip(warning.Error())
		}
		enter(&j, template.PhaseReady, 100, tx)
		_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobDone)
		return err
	})
}

// sweepMoves ends moves that showed no sign of life for too long: their master
// or the template centre is away for good.
func (m *Master) sweepMoves(ctx context.Context) error {
	var list []template.Job
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = templatedb.ListJobs(ctx, tx, templatedb.JobFilter{States: []template.JobState{template.JobMigrating}, ChangedBefore: tx.Now.Add(-m.pace.moveQuiet), Limit: sweepLimit})
		return err
	})
	errs := []error{err}
	for _, j := range list {
		j.Error, j.ErrorCode = fault.New(fault.BuildStalled, "job %s: its bytes were not moved, and nobody was at work on it for over %s", j.ID, m.pace.moveQuiet).Error(), fault.BuildStalled.Name
		err := m.db.Update(ctx, func(tx *store.Tx) error {
			_, err := templatedb.MoveJob(ctx, tx, j, template.OnJobStalled)
			return err
		})
		if !errors.Is(err, fault.VersionConflict) { // else somebody is at work on it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// planMigrate says what a move would do.
func (m *Master) planMigrate(ctx context.Context, req cubeapi.MigrateRequest) (*cubeapi.MigratePlan, error) {
	var d template.Definition
	var a template.Artifact
	var shared []string
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if d, a, err = movable(ctx, tx, req.TemplateID); err != nil {
			return err
		}
		shared, err = sharers(ctx, tx, d)
		return err
	})
	if err != nil {
		return nil, err
	}
	p := &cubeapi.MigratePlan{TemplateID: string(d.ID), ArtifactID: string(a.ID), Templates: shared, From: "master", To: "templatecenter", Moves: true, BytesToMove: a.SizeBytes}
	ctx, cancel := context.WithTimeout(ctx, centerCall)
	defer cancel()
	s, err := m.center.StatArtifact(ctx, string(a.ID), false)
	switch {
	case (errors.Is(err, fault.ArtifactNotFound) || errors.Is(err, fault.BytesElsewhere)) && m.onOwnDisk(a):
		return p, nil
	case errors.Is(err, fault.ArtifactNotFound):
		return nil, fault.New(fault.BytesLost, "artifact %s", a.ID)
	case err != nil:
		return nil, err
	case s.Legacy:
		p.From, p.To = "dir", s.Backend
		return p, nil
	}
	p.From, p.To, p.Moves, p.BytesToMove = s.Backend, s.Backend, false, 0
	return p, nil
}
