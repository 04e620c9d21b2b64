package master

import (
	"context"
	"errors"
	"net/http"
	"strings"

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

var liveStates = []sandbox.State{sandbox.Allocating, sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Terminating}

func (m *Master) serveTemplateDelete(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TemplateDeleteRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = m.deleteTemplate(r.Context(), req.TemplateID)
	}
	m.answer(w, r, req.RequestID, err)
}

// deleteTemplate takes a template out of use at once, cleans its hosts and lets
// the bytes go when nothing else needs them. A host that does not answer leaves
// the rest to the sweep: the template stays DELETING until it is done.
func (m *Master) deleteTemplate(ctx context.Context, name string) error {
	if name == "" {
		return fault.New(fault.InvalidInput, "template_id is missing")
	}
	var d template.Definition
	err := m.db.Update(ctx, func(tx *store.Tx) (err error) {
		if d, err = templatedb.Resolve(ctx, tx, name); err != nil {
			return err
		}
		if j, active, err := templatedb.ActiveJob(ctx, tx, d.ID); err != nil {
			return err
		} else if active {
			return fault.New(fault.BuildInProgress, "template %s: job %s is %s", d.ID, j.ID, j.State)
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
	if err != nil {
		return err
	}
	return m.finishDelete(ctx, d)
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
func (m *Master) finishDelete(ctx context.Context, d template.Definition) error {
	if err := m.cleanArtifact(ctx, d.ArtifactID); err != nil {
		return err
	}
	return m.db.Update(ctx, func(tx *store.Tx) error {
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
// bytes to the template centre, which alone may remove them. No transaction is
// open while hosts are called.
func (m *Master) cleanArtifact(ctx context.Context, id template.ArtifactID) error {
	var a template.Artifact
	var held []template.Placement
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if a, err = templatedb.GetArtifact(ctx, tx, id); err != nil {
			return err
		}
		held, err = templatedb.ListPlacements(ctx, tx, id)
		return err
	})
	if errors.Is(err, fault.ArtifactNotFound) || err == nil && a.State != template.ArtifactCleanup {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range held {
		if err := m.cleanHost(ctx, p); err != nil {
			return err
		}
	}
	m.fleet.changed()
	return m.db.Update(ctx, func(tx *store.Tx) error {
		now, err := templatedb.GetArtifact(ctx, tx, id)
		if errors.Is(err, fault.ArtifactNotFound) || err == nil && now.State != template.ArtifactCleanup {
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
		if n, err := templatedb.ArtifactReferences(ctx, tx, id); err != nil {
			return err
		} else if n > 0 {
			_, err = templatedb.MoveArtifact(ctx, tx, now, template.OnArtifactUsed)
			return err
		}
		if _, err = templatedb.MoveArtifact(ctx, tx, now, template.OnArtifactHostsClean); err != nil {
			return err
		}
		return tx.Enqueue(ctx, store.Message{Topic: topicArtifactDelete, Key: string(id)}, 0)
	})
}

func (m *Master) cleanHost(ctx context.Context, p template.Placement) error {
	f, err := m.host(ctx, p.HostID)
	if err != nil {
		return err
	}
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	if _, err := client.RemoveArtifact(bounded, &hostpb.RemoveArtifactRequest{ArtifactId: string(p.ArtifactID)}); err != nil {
		return hostFault(err, p.HostID)
	}
	return m.db.Update(ctx, func(tx *store.Tx) error { return templatedb.DeletePlacement(ctx, tx, p.ArtifactID, p.HostID) })
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
	err := m.center.DeleteArtifact(ctx, msg.Key)
	if errors.Is(err, fault.StateConflict) {
		return nil // it is wanted again
	}
	return err
}
