package master

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// cleanWait is how long a delete lets a distribution of the same bytes go
	// first.
	cleanWait = 10 * time.Second
	// syncWait is how long a delete waits for its hosts that was asked to.
	syncWait = time.Minute
	// maxUsers is how many of those that are in the way are named.
	maxUsers = 100
)

var liveStates = []sandbox.State{sandbox.Allocating, sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.RollingBack, sandbox.Terminating}

func (m *Master) serveTemplateDelete(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TemplateDeleteRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil && req.TemplateID == "" {
		err = fault.New(fault.InvalidInput, "template_id is missing")
	}
	var answer cubeapi.TemplateDeleteAnswer
	if err == nil {
		answer, err = m.deleteTemplate(r.Context(), req)
	}
	if err != nil {
		serve.WriteErrorWith(w, r, err, answer)
		return
	}
	status := http.StatusOK
	if answer.Outcome == cubeapi.DeletePending {
		status = http.StatusAccepted
	}
	answer.Envelope = cubeapi.OK(named(r, req.RequestID))
	serve.WriteJSON(w, status, answer)
}

// deletion is a delete as it is decided: what it is of, and what is in its way.
type deletion struct {
	definition template.Definition
	defined    bool // else only jobs tell of the template
	jobs       []template.Job
	users      []sandbox.Sandbox
	snapshots  []sandbox.Snapshot // that others may begin with
	artifact   template.Artifact  // its id is empty when there is none
	shared     bool               // something else needs it
	held       []template.Placement
}

// deleteTemplate takes a template out of use at once, cleans its hosts and lets
// the bytes go when nothing else needs them. A host that does not answer holds up
// nobody: the template stays DELETING, and a sweep goes on when the host is back
// or out of the books.
func (m *Master) deleteTemplate(ctx context.Context, req cubeapi.TemplateDeleteRequest) (answer cubeapi.TemplateDeleteAnswer, err error) {
	var d deletion
	decide := func(tx *store.Tx) error {
		d = deletion{}
		return d.decide(ctx, tx, req)
	}
	if req.DryRun {
		err = m.db.View(ctx, decide)
	} else {
		err = m.update(ctx, decide)
	}
	answer = d.show(req)
	if err != nil || req.DryRun {
		return answer, err
	}
	if err := m.step("master.delete.after_commit"); err != nil {
		return answer, err
	}
	m.sweepNow() // whatever becomes of this call
	answer.PendingHosts, err = m.finishSoon(ctx, d, req.Sync)
	if len(answer.PendingHosts) > 0 {
		answer.Outcome = cubeapi.DeletePending
	}
	return answer, err
}

// decide finds what is to be deleted and, unless that is only to be told, does
// what a transaction can. The guard of use comes first and nothing skips it.
func (d *deletion) decide(ctx context.Context, tx *store.Tx, req cubeapi.TemplateDeleteRequest) error {
	if err := d.find(ctx, tx, req.TemplateID); err != nil {
		return err
	}
	var err error
	if d.defined && !req.DryRun {
		// The row is changed first, so that a create that pins it is seen.
		if d.definition, err = templatedb.MoveDefinition(ctx, tx, d.definition, template.OnDeleteAsked); err != nil {
			return err
		}
	}
	if err := d.look(ctx, tx); err != nil || req.DryRun {
		return err
	}
	if err := d.blocked(req.Force); err != nil {
		return err
	}
	action := actTemplateDelete
	for _, j := range d.jobs {
		action = actTemplateForce
		if _, err := cancelJob(ctx, tx, j, "its template is deleted"); err != nil {
			return err
		}
		if j.ArtifactID != d.artifact.ID { // what a redo has built: no row will name it
			if err := unused(ctx, tx, j.ArtifactID); err != nil {
				return err
			}
		}
	}
	if err := audit(ctx, tx, action, string(d.id()), "alias", d.definition.Alias, "artifact", string(d.artifact.ID), "jobs", strings.Join(d.jobIDs(), " ")); err != nil {
		return err
	}
	if d.defined && d.definition.Alias != "" {
		if d.definition, err = templatedb.ClearAlias(ctx, tx, d.definition); err != nil {
			return err
		}
	}
	if !d.defined {
		if err := templatedb.RemoveReplicas(ctx, tx, d.id()); err != nil {
			return err
		}
		if err := templatedb.DeleteJobs(ctx, tx, d.id()); err != nil {
			return err
		}
	}
	return unused(ctx, tx, d.artifact.ID)
}

// cancelJob ends a job that somebody asked the end of. Whoever works on it sees
// so soon.
func cancelJob(ctx context.Context, tx *store.Tx, j template.Job, why string) (template.Job, error) {
	j.Error, j.ErrorCode = fault.New(fault.BuildCancelled, "job %s: %s", j.ID, why).Error(), fault.BuildCancelled.Name
	j, err := templatedb.MoveJob(ctx, tx, j, template.OnJobCancelled)
	if err != nil {
		return j, err
	}
	return j, say(ctx, tx, j.ID, "%s", j.Error)
}

// find finds the template, or what jobs tell of one that never came to be.
func (d *deletion) find(ctx context.Context, tx *store.Tx, name string) (err error) {
	d.definition, err = templatedb.Resolve(ctx, tx, name)
	if err == nil {
		d.defined = true
		return nil
	}
	if !errors.Is(err, fault.TemplateNotFound) {
		return err
	}
	j, found, late := templatedb.LatestJob(ctx, tx, template.ID(name))
	if late != nil || !found {
		return errors.Join(late, err)
	}
	d.definition = template.Definition{ID: j.TemplateID, ArtifactID: j.ArtifactID}
	return nil
}

func (d *deletion) id() template.ID { return d.definition.ID }

// look finds who uses the template, who works on it, and what its delete frees.
func (d *deletion) look(ctx context.Context, tx *store.Tx) error {
	var err error
	if d.users, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{TemplateID: d.id(), States: liveStates, Limit: maxUsers}); err != nil {
		return err
	}
	if d.snapshots, err = sandboxdb.ListSnapshots(ctx, tx, sandboxdb.SnapshotFilter{TemplateID: d.id(), States: []sandbox.SnapshotState{sandbox.SnapCreating, sandbox.SnapReady}, Limit: maxUsers}); err != nil {
		return err
	}
	j, active, err := templatedb.ActiveJob(ctx, tx, d.id())
	if err != nil {
		return err
	}
	own := int64(0)
	if active {
		d.jobs = []template.Job{j}
		if j.ArtifactID == d.definition.ArtifactID {
			own++
		}
	}
	if d.defined && d.definition.State != template.Deleting {
		own++
	}
	if d.definition.ArtifactID == "" {
		return nil
	}
	d.artifact, err = templatedb.GetArtifact(ctx, tx, d.definition.ArtifactID)
	if errors.Is(err, fault.ArtifactNotFound) {
		d.artifact = template.Artifact{}
		return nil
	}
	if err != nil {
		return err
	}
	n, err := templatedb.ArtifactReferences(ctx, tx, d.artifact.ID)
	if d.shared = n > own; err != nil || d.shared {
		return err
	}
	d.held, err = templatedb.ListPlacements(ctx, tx, d.artifact.ID)
	return err
}

// blocked returns what is in the way. Force ends jobs, and takes nothing from
// those that use the template.
func (d *deletion) blocked(force bool) error {
	switch {
	case len(d.users) == maxUsers:
		return fault.New(fault.TemplateInUse, "template %s: at least %d sandboxes, %s and more", d.id(), maxUsers, strings.Join(d.userIDs()[:20], ", "))
	case len(d.users)+len(d.snapshots) > 0:
		return fault.New(fault.TemplateInUse, "template %s: sandboxes and snapshots %s", d.id(), strings.Join(d.userIDs(), ", "))
	case len(d.jobs) > 0 && !force:
		j := d.jobs[0]
		return &fault.Error{Code: fault.BuildInProgress, Message: "template " + string(d.id()) + ": job " + string(j.ID) + " is " + cubeapi.JobStatus[j.State], Remedy: "wait for it, or end it with `paddock tpl delete --force`"}
	}
	return nil
}

func (d *deletion) userIDs() (ids []string) {
	for _, s := range d.users {
		ids = append(ids, string(s.ID))
	}
	for _, n := range d.snapshots {
		ids = append(ids, string(n.ID))
	}
	return ids
}

func (d *deletion) jobIDs() (ids []string) {
	for _, j := range d.jobs {
		ids = append(ids, string(j.ID))
	}
	return ids
}

func (d *deletion) show(req cubeapi.TemplateDeleteRequest) cubeapi.TemplateDeleteAnswer {
	a := cubeapi.TemplateDeleteAnswer{TemplateID: string(d.id()), ArtifactID: string(d.artifact.ID), Users: d.userIDs(), Jobs: d.jobIDs(), Outcome: cubeapi.DeleteDone}
	if !d.shared {
		a.FreedBytes = d.artifact.SizeBytes
	}
	if !req.DryRun {
		return a
	}
	a.Outcome = cubeapi.DeletePlanned
	a.Hosts = hostNames(d.held)
	if err := d.blocked(req.Force); err != nil {
		a.BlockedBy = fault.Of(err).Name
	}
	return a
}

// unused releases an artifact that nothing refers to any more.
func unused(ctx context.Context, tx *store.Tx, id template.ArtifactID) error {
	if id == "" {
		return nil
	}
	n, err := templatedb.ArtifactReferences(ctx, tx, id)
	if err != nil || n > 0 {
		return err
	}
	a, err := templatedb.GetArtifact(ctx, tx, id)
	if errors.Is(err, fault.ArtifactNotFound) {
		return nil
	}
	if err != nil || a.State == template.ArtifactCleanup || a.State == template.ArtifactDeleting {
		return err
	}
	_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactUnused)
	return err
}

// finishSoon does the slow part behind the call, and returns with it or when a
// caller has waited enough: what is not done then is done by this process, or
// by any other one's sweep.
func (m *Master) finishSoon(ctx context.Context, d deletion, sync bool) ([]cubeapi.PendingHost, error) {
	type outcome struct {
		pending []cubeapi.PendingHost
		err     error
	}
	ended := make(chan outcome, 1)
	m.background(ctx, func(ctx context.Context) {
		pending, err := m.finishDelete(ctx, d)
		ended <- outcome{pending, err}
	})
	wait := m.pace.deleteWait
	if sync {
		wait = syncWait
	}
	select {
	case o := <-ended:
		return o.pending, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(wait):
	}
	var pending []cubeapi.PendingHost
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		pending, err = pendingHosts(ctx, tx, d.artifact.ID)
		return err
	})
	if err == nil && len(pending) == 0 {
		pending = []cubeapi.PendingHost{{Reason: "its end is not written yet"}}
	}
	return pending, err
}

// pendingHosts returns who still holds an artifact that was released.
func pendingHosts(ctx context.Context, tx *store.Tx, id template.ArtifactID) ([]cubeapi.PendingHost, error) {
	a, err := templatedb.GetArtifact(ctx, tx, id)
	if errors.Is(err, fault.ArtifactNotFound) || err == nil && a.State != template.ArtifactCleanup {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	held, err := templatedb.ListPlacements(ctx, tx, id)
	var list []cubeapi.PendingHost
	for _, p := range held {
		list = append(list, cubeapi.PendingHost{NodeID: string(p.HostID)})
	}
	return list, err
}

// finishDelete does the slow part. It can be run again.
func (m *Master) finishDelete(ctx context.Context, d deletion) ([]cubeapi.PendingHost, error) {
	if d.artifact.ID != "" && !d.shared {
		pending, done, err := m.cleanArtifact(ctx, d.artifact.ID, cleanWait)
		if err != nil || len(pending) > 0 {
			return pending, err
		}
		if !done {
			return []cubeapi.PendingHost{{Reason: "its bytes are in another's hands"}}, nil
		}
	}
	if !d.defined {
		return nil, nil
	}
	gone, err := m.forgetDeleted(ctx, d.definition)
	if err == nil && !gone {
		return []cubeapi.PendingHost{{Reason: "its bytes were placed again meanwhile"}}, nil
	}
	return nil, err
}

// forgetDeleted removes a deleted template of which no host has anything. One
// that has to wait for its hosts lets those behind it go first.
func (m *Master) forgetDeleted(ctx context.Context, d template.Definition) (gone bool, err error) {
	err = m.update(ctx, func(tx *store.Tx) error {
		gone = true
		now, err := templatedb.GetDefinition(ctx, tx, d.ID)
		if errors.Is(err, fault.TemplateNotFound) {
			return nil
		}
		if err != nil || now.State != template.Deleting {
			return err
		}
		a, err := templatedb.GetArtifact(ctx, tx, now.ArtifactID)
		if err != nil && !errors.Is(err, fault.ArtifactNotFound) {
			return err
		}
		if err == nil && a.State == template.ArtifactCleanup {
			gone = false
			return templatedb.DeferDefinition(ctx, tx, now)
		}
		return templatedb.RemoveDefinition(ctx, tx, now)
	})
	return gone, err
}

// hostNames are the hosts of a plan or an answer, sorted.
func hostNames(held []template.Placement) []string {
	var names []string
	for _, p := range held {
		names = append(names, string(p.HostID))
	}
	slices.Sort(names)
	return names
}

func (m *Master) host(ctx context.Context, id host.ID) (f host.Facts, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		f, err = sandboxdb.GetHost(ctx, tx, id)
		return err
	})
	return f, err
}
