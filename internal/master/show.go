package master

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func showJob(j template.Job) *cubeapi.Job {
	began := map[string]int64{}
	for p, t := range j.PhaseTimes {
		began[cubeapi.Phases.Word(p)] = t.UnixMilli()
	}
	return &cubeapi.Job{
		JobID: string(j.ID), TemplateID: string(j.TemplateID), RequestID: j.RequestID, AttemptNo: j.AttemptNo, RetryOfJobID: string(j.RetryOf), Operation: cubeapi.Operations.Word(j.Operation),
		RedoMode: cubeapi.RedoModes.Word(j.Plan.RedoMode), RedoScope: j.Plan.Scope, ResumePhase: cubeapi.Phases.Word(j.Plan.ResumePhase),
		ArtifactID: string(j.ArtifactID), SpecFingerprint: j.Spec, Priority: j.Priority, Status: cubeapi.JobStatus[j.State], Phase: cubeapi.Phases.Word(j.Phase), Progress: j.Progress, ErrorMessage: j.Error, ErrorCode: j.ErrorCode,
		ExpectedNodeCount: j.Expected, ReadyNodeCount: j.Ready, FailedNodeCount: j.Failed, Alias: j.Alias, SourceImageRef: j.ImageRef, SourceImageDigest: j.Digest,
		PullTotalBytes: j.Pull.TotalBytes, PullDoneBytes: j.Pull.DoneBytes, PullTotalLayers: j.Pull.TotalLayers, PullDoneLayers: j.Pull.DoneLayers, PullBytesPerSecond: j.Pull.BytesPerSecond,
		PhaseStartedMS: began, CreatedAt: stamp(j.CreatedAt), UpdatedAt: stamp(j.ChangedAt),
	}
}

func showArtifact(a template.Artifact) *cubeapi.Artifact {
	return &cubeapi.Artifact{ArtifactID: string(a.ID), ContentKey: a.ContentKey, SourceImageRef: a.ImageRef, SourceImageDigest: a.Digest, Ext4SHA256: a.SHA256, Ext4SizeBytes: a.SizeBytes, Status: cubeapi.ArtifactStatus.Word(a.State), LastError: a.Error}
}

func showTemplate(d template.Definition) cubeapi.Template {
	info := d.ImageRef
	if d.Digest != "" {
		info += "@" + d.Digest
	}
	return cubeapi.Template{
		TemplateID: string(d.ID), Alias: d.Alias, DisplayName: d.Alias, InstanceType: d.InstanceType, Version: "v2", Status: cubeapi.TemplateStatus.Word(d.State), LastError: d.Error,
		ArtifactID: string(d.ArtifactID), CreatedAt: stamp(d.CreatedAt), ImageInfo: info, JobID: string(d.JobID),
	}
}

// showPending shows a template of which only a job tells: it is being made, or
// never came to be.
func showPending(j template.Job) cubeapi.Template {
	d := template.Definition{ID: j.TemplateID, State: template.Creating, ArtifactID: j.ArtifactID, JobID: j.ID, ImageRef: j.ImageRef, Digest: j.Digest, CreatedAt: j.CreatedAt}
	if !j.State.Active() {
		d.State, d.Error = template.Failed, j.Error
	}
	if k, err := keptOf(j.Request); err == nil {
		d.InstanceType = k.InstanceType
	}
	return showTemplate(d)
}

func showSandbox(s sandbox.Sandbox) cubeapi.Sandbox {
	end := ""
	if !s.ExpiresAt.IsZero() {
		end = stamp(s.ExpiresAt)
	}
	l := s.Life
	shown := cubeapi.Sandbox{
		Generation: int64(l.Generation), Timeout: forever, OnTimeout: string(l.OnTimeout), AutoResume: l.AutoResume, Driver: l.Driver, SnapshotID: string(l.Snapshot), Memory: l.WithMemory, KeptBytes: l.KeptBytes,
		EndAt: end, SandboxID: string(s.ID), Status: cubeapi.SandboxStatus.Word(s.State), HostID: string(s.HostID), TemplateID: string(s.TemplateID), SandboxIP: s.IP,
		MilliCPU: s.Resources.MilliCPU, MemBytes: s.Resources.MemBytes, DiskBytes: s.Resources.DiskBytes, Labels: s.Metadata, Reason: s.Reason, CreatedAt: stamp(s.CreatedAt),
	}
	if l.Timeout > 0 {
		shown.Timeout = int64(l.Timeout / time.Second)
	}
	if n, err := networkOf(s); err == nil { // what cannot be read is not shown
		shown.Network, shown.Ports = n.Config, n.Ports
	}
	return shown
}

// showSecrets is showSandbox with the tokens, for who made it or asks for them.
func showSecrets(s sandbox.Sandbox) cubeapi.Sandbox {
	shown := showSandbox(s)
	shown.AccessToken, shown.TrafficToken = s.Life.AccessToken, s.Life.TrafficToken
	return shown
}

func (m *Master) answerJob(w http.ResponseWriter, r *http.Request, id string, j template.Job, err error, warnings ...string) {
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	answer := cubeapi.JobAnswer{Envelope: cubeapi.OK(named(r, id)), Job: showJob(j)}
	answer.Warnings = warnings
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) serveJob(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("job_id")
	if id == "" {
		serve.WriteError(w, r, fault.New(fault.InvalidInput, "job_id is missing"))
		return
	}
	answer := cubeapi.JobAnswer{Envelope: cubeapi.OK(requestID(r))}
	pull, sooner := m.pull(r.Context(), template.JobID(id))
	err := m.db.View(r.Context(), func(tx *store.Tx) error {
		j, err := templatedb.GetJob(r.Context(), tx, template.JobID(id))
		if err != nil {
			return err
		}
		if sooner && building(j.State) && pull.DoneBytes >= j.Pull.DoneBytes {
			j.Pull = pull
		}
		answer.Job = showJob(j)
		if err := queuePlace(r.Context(), tx, j, answer.Job); err != nil {
			return err
		}
		d, err := templatedb.GetDefinition(r.Context(), tx, j.TemplateID)
		if err == nil {
			answer.Job.TemplateStatus = cubeapi.TemplateStatus.Word(d.State)
		} else if !errors.Is(err, fault.TemplateNotFound) {
			return err
		}
		a, err := templatedb.GetArtifact(r.Context(), tx, j.ArtifactID)
		if errors.Is(err, fault.ArtifactNotFound) {
			return nil
		}
		answer.Job.Artifact, answer.Job.ArtifactStatus = showArtifact(a), cubeapi.ArtifactStatus.Word(a.State)
		return err
	})
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// pull asks the board how far a job's pull is. A board that is away is worth a
// word and no failure: the row says what was last reported.
func (m *Master) pull(ctx context.Context, id template.JobID) (template.Pull, bool) {
	if m.board == nil {
		return template.Pull{}, false
	}
	p, ok, err := m.board.Get(ctx, id)
	if err != nil && ctx.Err() == nil {
		m.log.DebugContext(ctx, "progress board", slog.String("error", err.Error()))
	}
	return p, ok && err == nil
}

func (m *Master) serveBuildStatus(w http.ResponseWriter, r *http.Request) {
	j, err := m.job(r.Context(), template.JobID(r.PathValue("build_id")))
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	answer := cubeapi.BuildStatusAnswer{Envelope: cubeapi.OK(requestID(r)), BuildID: string(j.ID), TemplateID: string(j.TemplateID), AttemptNo: j.AttemptNo, RetryOfJobID: string(j.RetryOf), Status: "building", Progress: j.Progress, Message: j.Error}
	switch j.State {
	case template.JobReady:
		answer.Status = "ready"
	case template.JobFailed:
		answer.Status = "error"
	}
	if answer.Message == "" {
		answer.Message = cubeapi.Phases.Word(j.Phase)
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) serveTemplate(w http.ResponseWriter, r *http.Request, name string) {
	answer := cubeapi.TemplateAnswer{Envelope: cubeapi.OK(requestID(r))}
	err := m.db.View(r.Context(), func(tx *store.Tx) error {
		d, err := templatedb.Resolve(r.Context(), tx, name)
		if errors.Is(err, fault.TemplateNotFound) {
			j, found, late := templatedb.LatestJob(r.Context(), tx, template.ID(name))
			if late == nil && found {
				answer.Template = showPending(j)
				return nil
			}
			return errors.Join(err, late)
		}
		if err != nil {
			return err
		}
		v := r.URL.Query().Get("include_request")
		answer.Template, err = showWhole(r.Context(), tx, d, v == "true" || v == "1")
		return err
	})
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// showWhole shows a template with its replicas.
func showWhole(ctx context.Context, tx *store.Tx, d template.Definition, request bool) (cubeapi.Template, error) {
	page, err := showTemplates(ctx, tx, []template.Definition{d})
	if err != nil {
		return cubeapi.Template{}, err
	}
	t := page[0]
	if request {
		t.CreateRequest = rawJSON(d.Request)
	}
	if d.State == template.Deleting {
		if t.PendingHosts, err = pendingHosts(ctx, tx, d.ArtifactID); err != nil {
			return t, err
		}
	}
	list, err := templatedb.ListReplicas(ctx, tx, d.ID)
	for _, p := range list {
		shown := cubeapi.Replica{NodeID: string(p.HostID), Status: cubeapi.ReplicaStatus(p.State), Phase: cubeapi.ReplicaPhaseOf(p), ArtifactID: string(p.ArtifactID), LastJobID: string(p.JobID), LastErrorPhase: cubeapi.ReplicaErrorPhase(p), CleanupRequired: p.State != template.ReplicaReady, ErrorMessage: p.Error}
		f, unknown := sandboxdb.GetHost(ctx, tx, p.HostID)
		if unknown != nil && !errors.Is(unknown, fault.HostUnknown) {
			return t, unknown
		}
		shown.NodeIP, shown.InstanceType = f.IP, f.InstanceType
		t.Replicas = append(t.Replicas, shown)
	}
	return t, err
}

// rawJSON is shown as it is stored.
type rawJSON []byte

func (j rawJSON) MarshalJSON() ([]byte, error) { return j, nil }

func (m *Master) serveAlias(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.AliasRequest
	err := serve.ReadOptionalJSON(r, maxBody, &req) // no body clears, as null does
	if err == nil && req.Alias != "" {
		err = template.CheckAlias(req.Alias)
	}
	answer := cubeapi.TemplateAnswer{Envelope: cubeapi.OK(requestID(r))}
	if err == nil {
		err = m.update(r.Context(), func(tx *store.Tx) error {
			d, err := m.moveAlias(r.Context(), tx, r.PathValue("template_id"), req.Alias)
			if err != nil {
				return err
			}
			answer.Template, err = showWhole(r.Context(), tx, d, false)
			return err
		})
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// moveAlias gives the template an alias, takes it from another, or clears it. To
// claim one, a template must be usable; what is said already changes nothing.
func (m *Master) moveAlias(ctx context.Context, tx *store.Tx, name, alias string) (template.Definition, error) {
	d, err := templatedb.Resolve(ctx, tx, name)
	if err != nil {
		return d, err
	}
	if alias != "" && !d.State.Usable() || d.State == template.Deleting {
		return d, fault.New(fault.TemplateNotReady, "template %s is %s", d.ID, d.State)
	}
	if alias == d.Alias {
		if alias != "" { // it counts from now: who asked before does not get it
			d, _, err = templatedb.ClaimAlias(ctx, tx, d, alias, tx.Now)
		}
		return d, err
	}
	action, before, from := actAliasSet, d.Alias, template.ID("")
	if alias == "" {
		action = actAliasClear
		d, err = templatedb.ClearAlias(ctx, tx, d)
	} else if d, from, err = templatedb.ClaimAlias(ctx, tx, d, alias, tx.Now); from != "" {
		action = actAliasMove
	}
	if err != nil {
		return d, err
	}
	return d, audit(ctx, tx, action, string(d.ID), "alias", alias, "before", before, "from", string(from))
}

func (m *Master) serveArtifact(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	id := q.Get("artifact_id")
	if id == "" {
		serve.WriteError(w, r, fault.New(fault.InvalidInput, "artifact_id is missing"))
		return
	}
	answer := cubeapi.JobAnswer{Envelope: cubeapi.OK(requestID(r))}
	err := m.db.View(r.Context(), func(tx *store.Tx) error {
		a, err := templatedb.GetArtifact(r.Context(), tx, template.ArtifactID(id))
		if err == nil && q.Get("link") == "true" {
			answer.Download, err = m.linkTo(a, tx.Now)
		}
		answer.Job = &cubeapi.Job{ArtifactID: id, ArtifactStatus: cubeapi.ArtifactStatus.Word(a.State), Artifact: showArtifact(a)}
		return err
	})
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// receiptCall bounds how long a receipt may take on its way.
const receiptCall = 2 * time.Minute

// serveReceipt hands on what a template's image was made of, which the template
// centre keeps.
func (m *Master) serveReceipt(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), receiptCall)
	defer cancel()
	receipt, err := m.receipt(ctx, r.PathValue("template_id"))
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	defer receipt.Close()
	w.Header().Set("Content-Type", "application/json")
	if _, err := io.Copy(w, receipt); err != nil {
		panic(http.ErrAbortHandler) // what came must not pass for the whole
	}
}

func (m *Master) receipt(ctx context.Context, name string) (io.ReadCloser, error) {
	var d template.Definition
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		d, err = templatedb.Resolve(ctx, tx, name)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case d.ArtifactID == "":
		return nil, fault.New(fault.TemplateNotReady, "template %s is %s", d.ID, d.State)
	}
	return m.center.Receipt(ctx, string(d.ArtifactID))
}
