package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	maxScope = 10_000 // hosts that a request may name
	// redoTries bounds how often a redo decides again because the artifact that
	// it asked the store about was changed meanwhile.
	redoTries = 5
)

// errLookAgain says that what was asked outside of the transaction is of rows
// that have changed.
var errLookAgain = errors.New("the rows changed meanwhile")

func (m *Master) serveRedo(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.RedoRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		req.RequestID = named(r, req.RequestID)
		err = checkRedo(&req)
	}
	answer := cubeapi.RedoAnswer{Envelope: cubeapi.OK(req.RequestID)}
	switch {
	case err != nil:
	case req.DryRun:
		answer.Plan, err = m.planRedo(r.Context(), req)
	default:
		var j template.Job
		if j, err = m.redo(r.Context(), req); err == nil {
			answer.Job = showJob(j)
		}
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func checkRedo(r *cubeapi.RedoRequest) error {
	if err := checkRequestID(r.RequestID); err != nil {
		return err
	}
	switch {
	case r.TemplateID == "":
		return fault.New(fault.InvalidInput, "template_id is missing")
	case len(r.DistributionScope) > maxScope:
		return fault.New(fault.InvalidInput, "distribution_scope has %d hosts, at most %d", len(r.DistributionScope), maxScope)
	case r.RegistryPassword != "" && r.RegistryUsername == "":
		return fault.New(fault.InvalidInput, "registry_password without registry_username")
	}
	slices.Sort(r.DistributionScope)
	r.DistributionScope = slices.Compact(r.DistributionScope)
	return nil
}

func redoMode(r cubeapi.RedoRequest) template.RedoMode {
	switch scoped := len(r.DistributionScope) > 0; {
	case scoped && r.FailedOnly:
		return template.RedoFailedNodes
	case scoped:
		return template.RedoNodes
	case r.FailedOnly:
		return template.RedoFailedOnly
	}
	return template.RedoAll
}

// redoing is what the rows say of a redo before anything is touched.
type redoing struct {
	definition template.Definition
	defined    bool         // else only jobs tell of the template: it never came to be
	latest     template.Job // whatever it was for
	request    kept
	alias      string    // that a template which never came to be asked for
	asked      time.Time // for the alias
	ref        string    // of the image, for people
	digest     string
	artifact   template.Artifact
	found      bool // there is a row of the artifact
	replicas   map[host.ID]template.Replica
	targets    []host.Facts
	rebuild    string // why the bytes must be built again; empty: they are reused
	lost       bool   // the row says ready, and the bytes are gone
}

func (r *redoing) id() template.ID { return r.latest.TemplateID }

// look reads what a redo is about and refuses what the rows rule out.
func (m *Master) look(ctx context.Context, tx *store.Tx, req cubeapi.RedoRequest) (r redoing, err error) {
	r.definition, err = templatedb.Resolve(ctx, tx, req.TemplateID)
	r.defined = err == nil
	if err != nil && !errors.Is(err, fault.TemplateNotFound) {
		return r, err
	}
	name := template.ID(req.TemplateID)
	if r.defined {
		name = r.definition.ID
	}
	var any bool
	if r.latest, any, err = templatedb.LatestJob(ctx, tx, name); err != nil {
		return r, err
	}
	switch {
	case !any || r.latest.TemplateID != name: // MySQL takes "x " for "x"
		return r, fault.New(fault.TemplateNotFound, "template %.128q", req.TemplateID)
	case r.defined && r.definition.State == template.Deleting:
		return r, fault.New(fault.StateConflict, "template %s is being deleted", name)
	case r.latest.State.Active() && r.latest.Operation == template.OpRedo && r.latest.RequestID == req.RequestID:
		return r, errLookAgain // the twin of this request was committed meanwhile
	case r.latest.State.Active():
		return r, fault.New(fault.BuildInProgress, "template %s: job %s is %s", name, r.latest.ID, cubeapi.JobStatus[r.latest.State])
	}
	if err := r.readSource(ctx, tx); err != nil {
		return r, err
	}
	if err := r.readArtifact(ctx, tx); err != nil {
		return r, err
	}
	return r, m.readTargets(ctx, tx, req, &r)
}

// readSource finds the request that the template is made of.
func (r *redoing) readSource(ctx context.Context, tx *store.Tx) (err error) {
	stored := r.definition.Request
	r.ref, r.digest = r.definition.ImageRef, r.definition.Digest
	if !r.defined {
		j, found, err := templatedb.LatestRequest(ctx, tx, r.latest.TemplateID)
		if err != nil {
			return err
		}
		if !found {
			return fault.New(fault.TemplateNotFound, "template %s: no job says how it is made", r.latest.TemplateID)
		}
		stored, r.alias, r.ref, r.digest = j.Request, j.Alias, j.ImageRef, j.Digest
		r.definition.ArtifactID, r.asked = j.ArtifactID, j.AliasAsked()
	}
	r.request, err = keptOf(stored)
	return err
}

func (r *redoing) readArtifact(ctx context.Context, tx *store.Tx) (err error) {
	r.artifact, err = templatedb.GetArtifact(ctx, tx, r.definition.ArtifactID)
	if errors.Is(err, fault.ArtifactNotFound) {
		r.rebuild = "nothing is left of the artifact"
		return nil
	}
	if err != nil {
		return err
	}
	r.found = true
	// Only a ready one may be reused: what is being built is half written, and
	// what is being removed will be gone.
	if err := servable(r.artifact); err != nil {
		r.rebuild = err.Error()
	}
	return nil
}

// readTargets chooses the hosts.
func (m *Master) readTargets(ctx context.Context, tx *store.Tx, req cubeapi.RedoRequest, r *redoing) error {
	all, err := sandboxdb.ListHosts(ctx, tx)
	if err != nil {
		return err
	}
	list, err := templatedb.ListReplicas(ctx, tx, r.id())
	if err != nil {
		return err
	}
	r.replicas = map[host.ID]template.Replica{}
	for _, p := range list {
		r.replicas[p.HostID] = p
	}
	failed := func(f host.Facts) bool {
		p, there := r.replicas[f.ID]
		return !r.defined || there && p.State != template.ReplicaReady
	}
	if len(req.DistributionScope) > 0 {
		scoped := r.request.FromImageRequest
		scoped.DistributionScope = req.DistributionScope
		if r.targets, err = m.inScope(all, scoped, tx.Now); err != nil {
			return err
		}
	} else {
		r.targets = m.fit(all, r.request.FromImageRequest, tx.Now, func(id host.ID) bool { _, there := r.replicas[id]; return there })
	}
	if req.FailedOnly {
		if !slices.ContainsFunc(all, failed) {
			return fault.New(fault.StateConflict, "template %s: no failed replicas matched", r.id())
		}
		before := len(r.targets)
		r.targets = slices.DeleteFunc(r.targets, func(f host.Facts) bool { return !failed(f) })
		if len(r.targets) == 0 && len(req.DistributionScope) > 0 {
			return fault.New(fault.StateConflict, "template %s: no failed replicas matched on the %d hosts of distribution_scope", r.id(), before)
		}
	}
	if len(r.targets) == 0 {
		return fault.New(fault.NoTemplateHosts, "template %s: of %d hosts none that is meant is healthy", r.id(), len(all))
	}
	return nil
}

// fit returns the healthy hosts that a template is meant for: those of its
// scope or its instance type, and those that have a replica already.
func (m *Master) fit(all []host.Facts, req cubeapi.FromImageRequest, now time.Time, has func(host.ID) bool) (list []host.Facts) {
	for _, f := range all {
		wanted := f.InstanceType == req.InstanceType
		if len(req.DistributionScope) > 0 {
			wanted = slices.Contains(req.DistributionScope, string(f.ID)) || slices.Contains(req.DistributionScope, f.IP)
		}
		if (wanted || has(f.ID)) && host.HealthOf(f, now, m.cfg.Master.HostStaleAfter) == host.Healthy {
			list = append(list, f)
		}
	}
	return list
}

// decide asks the store for the bytes and says whether they are built again. It
// refuses when they must be and cannot. A store that cannot tell is an error,
// and nothing was touched.
func (m *Master) decide(ctx context.Context, req cubeapi.RedoRequest, r *redoing) error {
	if r.rebuild == "" {
		state, why, err := m.askBytes(ctx, r.artifact, false)
		switch {
		case err != nil:
			return err
		case state == bytesHere:
			return fault.New(fault.StateConflict, "template %s: its bytes are on this master's own disk, where no host can fetch them; run `paddock tpl merge %s` first", r.id(), r.id())
		case state == bytesGone:
			r.rebuild, r.lost = why, true
		}
	}
	switch {
	case r.rebuild == "":
	case r.request.SourceImageRef == "":
		return fault.New(fault.BytesLost, "template %s was made of no image and cannot be built again (%s)", r.id(), r.rebuild)
	case r.request.EnvdSHA256 != "":
		return fault.New(fault.EnvdNeeded, "template %s (%s)", r.id(), r.rebuild)
	case r.request.Private && req.RegistryUsername == "":
		return fault.New(fault.CredentialsNeeded, "template %s must be built again (%s)", r.id(), r.rebuild)
	}
	return nil
}

// redo submits a redo. Everything that could refuse it is looked at before
// anything is touched. The same request again returns the job of the first.
func (m *Master) redo(ctx context.Context, req cubeapi.RedoRequest) (template.Job, error) {
	for try := 1; ; try++ {
		j, err := m.tryRedo(ctx, req)
		if !errors.Is(err, errLookAgain) {
			return j, err
		}
		if try == redoTries {
			return j, fault.Wrap(fault.VersionConflict, err, "template %.128q", req.TemplateID)
		}
	}
}

func (m *Master) tryRedo(ctx context.Context, req cubeapi.RedoRequest) (template.Job, error) {
	var old template.Job
	var again bool
	var r redoing
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if old, again, err = sameRedo(ctx, tx, req); err != nil || again {
			return err
		}
		r, err = m.look(ctx, tx, req)
		return err
	})
	if err != nil || again {
		return old, err
	}
	if err := m.decide(ctx, req, &r); err != nil {
		return template.Job{}, err
	}
	return m.storeRedo(ctx, req, r)
}

// sameRedo returns the job that the same request asked for before.
func sameRedo(ctx context.Context, tx *store.Tx, req cubeapi.RedoRequest) (template.Job, bool, error) {
	j, found, err := templatedb.JobByRequest(ctx, tx, req.RequestID, template.OpRedo)
	if err != nil || !found {
		return j, false, err
	}
	if p := j.Plan; p.Asked != req.TemplateID || p.RedoMode != redoMode(req) || !slices.Equal(p.Scope, req.DistributionScope) {
		return j, true, fault.New(fault.SubmissionReused, "request %s, which asked for job %s", j.RequestID, j.ID)
	}
	return j, true, nil
}

// storeRedo stores the job of a redo and what hands it on, in one transaction
// that looks at everything again.
func (m *Master) storeRedo(ctx context.Context, req cubeapi.RedoRequest, seen redoing) (template.Job, error) {
	creds := credentials{username: req.RegistryUsername, password: req.RegistryPassword}
	private := seen.rebuild != "" && creds != credentials{}
	fresh := template.JobID(id.New(template.JobPrefix))
	if private {
		// Before the commit, so that whoever hands it over finds them.
		if err := m.lend(fresh, creds); err != nil {
			return template.Job{}, err
		}
	}
	var j template.Job
	err := m.update(ctx, func(tx *store.Tx) (err error) {
		var again bool
		if j, again, err = sameRedo(ctx, tx, req); err != nil || again {
			return err
		}
		r, err := m.look(ctx, tx, req)
		if err != nil {
			return err
		}
		if r.found != seen.found || r.artifact.Version != seen.artifact.Version {
			return errLookAgain
		}
		r.rebuild, r.lost = seen.rebuild, seen.lost
		if j, err = r.job(req, fresh, private); err != nil {
			return err
		}
		if err := m.beginRedo(ctx, tx, r, &j, private); err != nil {
			return err
		}
		return audit(ctx, tx, actTemplateRedo, string(r.id()), "job", string(j.ID), "mode", string(redoMode(req)), "scope", strings.Join(req.DistributionScope, " "), "rebuild", r.rebuild)
	})
	if err != nil || j.ID != fresh {
		m.forget(fresh)
		return j, err
	}
	if err := m.step("master.redo.after_commit"); err != nil {
		return j, err
	}
	switch {
	case seen.rebuild == "":
		m.resumeSoon(ctx, j.ID)
	case private:
		m.background(ctx, func(ctx context.Context) { m.handPrivate(ctx, fresh) })
	}
	m.deliverSoon(topicBuild)
	return j, nil
}

// job is the row of a redo.
func (r *redoing) job(req cubeapi.RedoRequest, fresh template.JobID, private bool) (template.Job, error) {
	source := r.request
	source.RequestID, source.Private = req.RequestID, private || source.Private
	resume := template.PhaseDistributing
	if r.rebuild != "" {
		resume = template.PhasePulling
		source.SourceImageRef = pinned(source.SourceImageRef, r.digest)
	}
	if r.onlyTrial() {
		resume = template.PhaseSnapshotting
	}
	stored, err := json.Marshal(source)
	j := template.Job{
		ID: fresh, TemplateID: r.id(), RequestID: req.RequestID, Operation: template.OpRedo, AttemptNo: r.latest.AttemptNo + 1, RetryOf: r.latest.ID, Alias: r.alias,
		Plan:  template.Plan{RedoMode: redoMode(req), Asked: req.TemplateID, Scope: req.DistributionScope, ResumePhase: resume, AliasAsked: r.asked},
		Phase: resume, Request: stored, ImageRef: r.ref, Digest: r.digest, PhaseTimes: template.PhaseTimes{},
	}
	for _, f := range r.targets {
		j.Plan.Targets = append(j.Plan.Targets, f.ID)
	}
	if r.rebuild == "" {
		j.ArtifactID, j.Spec = r.artifact.ID, r.latest.Spec
	}
	return j, err
}

// beginRedo writes a redo's job, and what makes a delete that decided before
// decide again.
func (m *Master) beginRedo(ctx context.Context, tx *store.Tx, r redoing, j *template.Job, private bool) (err error) {
	if r.defined {
		_, err = templatedb.TouchDefinition(ctx, tx, r.definition)
	} else {
		_, err = templatedb.TouchJob(ctx, tx, r.latest)
	}
	switch {
	case err != nil:
		return err
	case r.lost:
		err = loseBytes(ctx, tx, r.artifact, r.rebuild)
	case r.rebuild == "":
		_, err = templatedb.MoveArtifact(ctx, tx, r.artifact, template.OnArtifactStored)
	}
	if err != nil {
		return err
	}
	if *j, err = templatedb.AddJob(ctx, tx, *j); errors.Is(err, fault.Exists) {
		return fault.VersionConflict // another request was faster: look again
	}
	switch {
	case err != nil || private:
		return err
	case r.rebuild != "":
		return tx.Enqueue(ctx, store.Message{Topic: topicBuild, Key: string(j.ID), Trace: traceOf(ctx)}, 0)
	}
	enter(j, j.Plan.ResumePhase, progressDistributing, tx)
	j.Expected = len(r.targets)
	*j, err = templatedb.MoveJob(ctx, tx, *j, template.OnJobResumed)
	return err
}

// loseBytes notes that the bytes of a ready artifact are gone.
func loseBytes(ctx context.Context, tx *store.Tx, a template.Artifact, why string) error {
	a.Error = clip(why)
	_, err := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactLost)
	return err
}

// pinned names the very image that a template was made of: a tag may have moved,
// and a redo must not change what the template is.
func pinned(ref, digest string) string {
	if digest == "" || strings.Contains(ref, "@") {
		return ref
	}
	return ref + "@" + digest
}

// planRedo says what a redo would do.
func (m *Master) planRedo(ctx context.Context, req cubeapi.RedoRequest) (*cubeapi.RedoPlan, error) {
	var r redoing
	var shared []string
	var sandboxes int
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if r, err = m.look(ctx, tx, req); err != nil {
			return err
		}
		if shared, err = sharers(ctx, tx, r.definition); err != nil {
			return err
		}
		users, err := sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{TemplateID: r.id(), States: liveStates, Limit: listLimit})
		sandboxes = len(users)
		return err
	})
	if err == nil {
		err = m.decide(ctx, req, &r)
	}
	if err != nil {
		return nil, err
	}
	p := &cubeapi.RedoPlan{
		TemplateID: string(r.id()), RedoMode: cubeapi.RedoModes.Word(redoMode(req)), Rebuild: r.rebuild != "", Why: r.rebuild, ArtifactID: string(r.artifact.ID), ArtifactBytes: r.artifact.SizeBytes,
		Sandboxes: sandboxes, Templates: shared,
	}
	if r.defined {
		p.TemplateState = cubeapi.TemplateStatus.Word(r.definition.State)
	}
	if !p.Rebuild {
		p.Why = fmt.Sprintf("the store has all %d bytes", r.artifact.SizeBytes)
	}
	for _, f := range r.targets {
		t := cubeapi.RedoTarget{NodeID: string(f.ID), NodeIP: f.IP, Replica: cubeapi.ReplicaPhase.Word(r.replicas[f.ID].State), Holds: r.found && slices.Contains(f.Artifacts, string(r.artifact.ID))}
		if !t.Holds {
			p.BytesToMove += r.artifact.SizeBytes
		}
		p.Targets = append(p.Targets, t)
	}
	return p, nil
}

// maxSharers is how many templates of the same bytes a plan names.
const maxSharers = 1000

// sharers returns the other templates of the same bytes.
func sharers(ctx context.Context, tx *store.Tx, d template.Definition) (names []string, err error) {
	if d.ArtifactID == "" {
		return nil, nil
	}
	list, err := templatedb.DefinitionsOf(ctx, tx, d.ArtifactID, maxSharers)
	for _, other := range list {
		if other.ID != d.ID {
			names = append(names, string(other.ID))
		}
	}
	return names, err
}
