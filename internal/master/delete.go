package master

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// cleanWait is how long a delete that somebody waits for lets a distribution
// of the same bytes go first.
const cleanWait = 10 * time.Second

var liveStates = []sandbox.State{sandbox.Allocating, sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Terminating}

func (m *Master) serveTemplateDelete(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TemplateDeleteRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil && req.TemplateID == "" {
		err = fault.New(fault.InvalidInput, "template_id is missing")
	}
	if err == nil {
		err = m.deleteTemplate(r.Context(), req.TemplateID)
	}
	m.answer(w, r, req.RequestID, err)
}

// deleteTemplate takes a template out of use at once, cleans its hosts and lets
// the bytes go when nothing else needs them. A host that does not answer leaves
// the rest to the sweep: the template stays DELETING until it is done.
func (m *Master) deleteTemplate(ctx context.Context, name string) error {
	var d template.Definition
	var defined bool
	err := m.update(ctx, func(tx *store.Tx) (err error) {
		d, err = templatedb.Resolve(ctx, tx, name)
		if errors.Is(err, fault.TemplateNotFound) {
			return deleteJobs(ctx, tx, template.ID(name))
		}
		if err != nil {
			return err
		}
		defined = true
		if err := noActiveJob(ctx, tx, d.ID); err != nil {
			return err
		}
		// The row is changed first, so that a create that pins it is seen.
		if d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnDeleteAsked); err != nil {
			return err
		}
		users, err := sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{TemplateID: d.ID, States: liveStates, Limit: 20})
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return fault.New(fault.TemplateInUse, "template %s: sandboxes %s", d.ID, ids(users))
		}
		if d.Alias != "" {
			if d, err = templatedb.SetAlias(ctx, tx, d, ""); err != nil {
				return err
			}
		}
		return unused(ctx, tx, d.ArtifactID)
	})
	if err != nil || !defined {
		return err
	}
	if err := m.step("master.delete.after_commit"); err != nil {
		return err
	}
	return m.finishDelete(ctx, d, cleanWait)
}

func noActiveJob(ctx context.Context, tx *store.Tx, id template.ID) error {
	j, active, err := templatedb.ActiveJob(ctx, tx, id)
	if err == nil && active {
		err = fault.New(fault.BuildInProgress, "template %s: job %s is %s", id, j.ID, cubeapi.JobStatus[j.State])
	}
	return err
}

// deleteJobs forgets a template that never came to be: only its jobs tell of
// it.
func deleteJobs(ctx context.Context, tx *store.Tx, id template.ID) error {
	if err := noActiveJob(ctx, tx, id); err != nil {
		return err
	}
	_, found, err := templatedb.LatestJob(ctx, tx, id)
	if err == nil && !found {
		err = fault.New(fault.TemplateNotFound, "template %.128q", id)
	}
	if err != nil {
		return err
	}
	return templatedb.DeleteJobs(ctx, tx, id)
}

func ids(list []sandbox.Sandbox) string {
	words := make([]string, len(list))
	for i, s := range list {
		words[i] = string(s.ID)
	}
	return strings.Join(words, ", ")
}

// unused releases an artifact that nothing refers to any more.
func unused(ctx context.Context, tx *store.Tx, id template.ArtifactID) error {
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

// finishDelete does the slow part. It can be run again.
func (m *Master) finishDelete(ctx context.Context, d template.Definition, wait time.Duration) error {
	clean, err := m.cleanArtifact(ctx, d.ArtifactID, wait)
	if err != nil {
		return err
	}
	if !clean {
		return fault.New(fault.StateConflict, "template %s: its bytes are in another's hands; it stays DELETING, and a sweep ends it", d.ID)
	}
	return m.forgetDeleted(ctx, d)
}

// forgetDeleted removes a deleted template of which no host has anything.
func (m *Master) forgetDeleted(ctx context.Context, d template.Definition) error {
	return m.update(ctx, func(tx *store.Tx) error {
		now, err := templatedb.GetDefinition(ctx, tx, d.ID)
		if errors.Is(err, fault.TemplateNotFound) {
			return nil
		}
		if err != nil || now.State != template.Deleting {
			return err
		}
		return templatedb.RemoveDefinition(ctx, tx, now)
	})
}

// cleanArtifact removes a released artifact from its hosts and then hands the
// bytes to the template centre, which alone may remove them. One that is in
// use is left alone. done is false when another was at work on it for all of
// wait: nothing is known of it then.
func (m *Master) cleanArtifact(ctx context.Context, id template.ArtifactID, wait time.Duration) (done bool, err error) {
	return m.db.WithLock(ctx, artifactLock(id), wait, func(ctx context.Context) error { return m.cleanLocked(ctx, id) })
}

func (m *Master) cleanLocked(ctx context.Context, id template.ArtifactID) error {
	var held []template.Placement
	err := m.db.View(ctx, func(tx *store.Tx) error {
		a, err := templatedb.GetArtifact(ctx, tx, id)
		if errors.Is(err, fault.ArtifactNotFound) || err == nil && a.State != template.ArtifactCleanup {
			held = nil
			return nil
		}
		if err == nil {
			held, err = templatedb.ListPlacements(ctx, tx, id)
		}
		return err
	})
	if err != nil {
		return err
	}
	// No transaction is open while hosts are called.
	var group errgroup.Group
	group.SetLimit(m.cfg.Master.DistributeWorkers)
	for _, p := range held {
		group.Go(func() error { return m.cleanHost(ctx, p) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	m.fleet.changed()
	if err := m.step("master.clean.after_hosts"); err != nil {
		return err
	}
	if err := m.release(ctx, id); err != nil {
		return err
	}
	m.deliverSoon(topicArtifactDelete)
	return nil
}

// release lets the template centre remove the bytes, once no host has them and
// nothing needs them.
func (m *Master) release(ctx context.Context, id template.ArtifactID) error {
	return m.update(ctx, func(tx *store.Tx) error {
		a, err := templatedb.GetArtifact(ctx, tx, id)
		if errors.Is(err, fault.ArtifactNotFound) || err == nil && a.State != template.ArtifactCleanup {
			return nil
		}
		if err != nil {
			return err
		}
		left, err := templatedb.ListPlacements(ctx, tx, id)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fault.New(fault.StateConflict, "artifact %s was placed again meanwhile", id)
		}
		n, err := templatedb.ArtifactReferences(ctx, tx, id)
		if err != nil {
			return err
		}
		if n > 0 {
			_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactUsed)
			return err
		}
		if _, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactHostsClean); err != nil {
			return err
		}
		return tx.Enqueue(ctx, store.Message{Topic: topicArtifactDelete, Key: string(id), Trace: traceOf(ctx)}, 0)
	})
}

// cleanHost removes an artifact from one host. A host that is in no book any
// more holds nothing of ours.
func (m *Master) cleanHost(ctx context.Context, p template.Placement) error {
	f, err := m.host(ctx, p.HostID)
	if err == nil {
		err = m.removeArtifact(ctx, f, p.ArtifactID)
	}
	if err != nil && !errors.Is(err, fault.HostUnknown) {
		return err
	}
	return m.update(ctx, func(tx *store.Tx) error { return templatedb.DeletePlacement(ctx, tx, p.ArtifactID, p.HostID) })
}

func (m *Master) removeArtifact(ctx context.Context, f host.Facts, id template.ArtifactID) error {
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	_, err = client.RemoveArtifact(bounded, &hostpb.RemoveArtifactRequest{ArtifactId: string(id)})
	return hostFault(ctx, err, f.ID)
}

func (m *Master) host(ctx context.Context, id host.ID) (f host.Facts, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		f, err = sandboxdb.GetHost(ctx, tx, id)
		return err
	})
	return f, err
}

// deleteBytes asks the template centre to let an artifact's bytes and row go.
func (m *Master) deleteBytes(ctx context.Context, msg store.Message) error {
	ctx, cancel := context.WithTimeout(ctx, centerCall)
	defer cancel()
	err := m.center.DeleteArtifact(ctx, msg.Key)
	if errors.Is(err, fault.StateConflict) {
		return nil // it is wanted again
	}
	return err
}
