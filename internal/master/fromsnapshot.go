package master

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"regexp"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
)

var snapshotForm = regexp.MustCompile(`^` + sandbox.SnapshotPrefix + `[0-9a-f]{24}$`)

// checkSnapshotID refuses what can be no snapshot's id.
func checkSnapshotID(id string) error {
	if id == "" {
		return fault.New(fault.InvalidInput, "snapshot_id is missing")
	}
	if !snapshotForm.MatchString(id) {
		return fault.New(fault.InvalidInput, "%.64q is no snapshot's id", id)
	}
	return nil
}

// readSnapshot resolves what a sandbox begins with. Its template is still there:
// it is not deleted while a snapshot needs it.
func (p *plan) readSnapshot(ctx context.Context, tx *store.Tx) (err error) {
	if p.from, err = readySnapshot(ctx, tx, sandbox.SnapshotID(p.req.SnapshotID)); err != nil {
		return err
	}
	if p.template, err = templatedb.GetDefinition(ctx, tx, p.from.TemplateID); err != nil {
		return err
	}
	return p.inherit()
}

// inherit takes from the sandbox of the snapshot what the request does not say:
// the program and its size, what it reaches, and how it lives. Labels are each
// sandbox's own.
func (p *plan) inherit() error {
	var was cubeapi.SandboxCreateRequest
	if err := json.Unmarshal(p.from.Request, &was); err != nil {
		return fault.Wrap(fault.Bug, err, "stored request of snapshot %s", p.from.ID)
	}
	r := &p.req
	if len(r.Containers) == 0 {
		r.Containers = was.Containers
	}
	if r.Network == nil {
		r.Network = was.Network
	}
	if r.Timeout == nil {
		r.Timeout = was.Timeout
	}
	r.OnTimeout, r.Driver, r.InstanceType = cmp.Or(r.OnTimeout, was.OnTimeout), cmp.Or(r.Driver, was.Driver), cmp.Or(r.InstanceType, was.InstanceType)
	r.AutoResume, r.Secure = r.AutoResume || was.AutoResume, r.Secure || was.Secure
	r.Envs, r.Annotations = laidOver(was.Envs, r.Envs), laidOver(was.Annotations, r.Annotations)
	delete(r.Annotations, cubeapi.AnnotationTemplate)
	return nil
}

// laidOver is a with what b says.
func laidOver(a, b map[string]string) map[string]string {
	if len(a) == 0 {
		return b
	}
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}
