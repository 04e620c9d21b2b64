package cubelets

import (
	"context"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// Artifact is what the template of a fleet is made of.
const Artifact = template.ArtifactID("rfs-load00000000000000000000")

// AddTemplate stores a template that is ready on so many hosts, with a small
// writable layer, and returns its id. Nobody built it: the hosts only say that
// they hold it.
func AddTemplate(ctx context.Context, db *store.Store, hosts int) (id template.ID, err error) {
	id = "tpl-load000000000000000000"
	return id, db.Update(ctx, func(tx *store.Tx) error {
		a, err := templatedb.AddArtifact(ctx, tx, template.Artifact{ID: Artifact, ContentKey: "load", ImageRef: "registry.invalid/load:1", SizeBytes: 1 << 20, Backend: "dir", Location: "load"})
		if err == nil {
			_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored)
		}
		if err != nil {
			return err
		}
		d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: id, InstanceType: kind, ArtifactID: Artifact, ImageRef: a.ImageRef, Request: []byte(`{"writable_layer_size":"64Mi"}`)})
		if err == nil {
			_, err = templatedb.MoveDefinition(ctx, tx, d, template.OnAllReady)
		}
		for i := range hosts {
			if err == nil {
				err = addReplica(ctx, tx, template.Replica{TemplateID: id, HostID: hostID(i), ArtifactID: Artifact})
			}
		}
		return err
	})
}

func addReplica(ctx context.Context, tx *store.Tx, r template.Replica) error {
	r, err := templatedb.AddReplica(ctx, tx, r)
	if err == nil {
		_, err = templatedb.MoveReplica(ctx, tx, r, template.OnReplicaHeld)
	}
	if err != nil {
		return err
	}
	return templatedb.PutPlacement(ctx, tx, Artifact, r.HostID)
}
