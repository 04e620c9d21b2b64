package templatecenter_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// compat asks how far templates are behind.
func (r *rig) compat() cubeapi.CompatReport {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+cubeapi.PathTemplateCompat, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set(cubeapi.HeaderCallbackToken, token)
	status, body := r.do(req)
	var a cubeapi.CompatAnswer
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != http.StatusOK {
		r.t.Fatalf("%d %s", status, body)
	}
	return a.Data
}

// A template's guest is noted when it is built, held against that of today, and
// taken for today's by an operator's word when nobody noted it.
func TestCompat(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, nil)
		out := r.built(r.image("app", "1"))
		r.update(func(ctx context.Context, tx *store.Tx) error {
			for _, h := range []struct{ id, kind string }{{"host-a", "cubebox"}, {"host-b", "cubebox"}, {"host-c", "other"}} {
				if err := sandboxdb.PutHost(ctx, tx, host.Registration{ID: host.ID(h.id), IP: "10.0.0.1", GRPCPort: 1, InstanceType: h.kind, Version: "v7"}); err != nil {
					return err
				}
				if err := sandboxdb.HeardHost(ctx, tx, host.ID(h.id), host.Status{Ready: true}); err != nil {
					return err
				}
			}
			d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: "tpl-1", InstanceType: "cubebox", ArtifactID: template.ArtifactID(out.ArtifactID)})
			if err != nil {
				return err
			}
			if _, err := templatedb.MoveDefinition(ctx, tx, d, template.OnSomeReady); err != nil {
				return err
			}
			p, err := templatedb.AddReplica(ctx, tx, template.Replica{TemplateID: "tpl-1", HostID: "host-a"})
			if err == nil {
				_, err = templatedb.MoveReplica(ctx, tx, p, template.OnReplicaHeld)
			}
			return err
		})
		want := func(status string, s cubeapi.CompatSummary) {
			t.Helper()
			c := r.compat()
			if c.Summary != s || len(c.Templates) != 1 || len(c.Templates[0].Nodes) != 2 || c.Templates[0].Nodes[0].CompatStatus != status || c.Templates[0].Nodes[1].CompatStatus != cubeapi.CompatMissing || c.Templates[0].Nodes[0].CurrentAgentVersion != "v7" {
				t.Errorf("%+v", c)
			}
		}
		eventually(t, "the guest is noted", func() bool { return r.compat().Templates[0].Nodes[0].CompatStatus == cubeapi.CompatOK })
		want(cubeapi.CompatOK, cubeapi.CompatSummary{MissingReplicas: 1})
		if o := r.compat().Templates[0]; o.Overall != cubeapi.CompatMissing || o.Nodes[0].BoundGuestVersion != o.Nodes[0].CurrentGuestVersion {
			t.Errorf("%+v", o)
		}
		if err := os.WriteFile(r.deps.Config.TemplateCenter.GuestBinary, []byte("a newer guest"), 0o600); err != nil {
			t.Fatal(err)
		}
		want(cubeapi.CompatStale, cubeapi.CompatSummary{MissingReplicas: 1, StaleReplicas: 1, StaleTemplates: 1, AffectedNodes: 1})
		adopt := func(name string) string {
			_, body := r.post(cubeapi.PathTemplateCompat, token, `{"action":"adopt_baseline","template_id":"`+name+`"}`)
			return body
		}
		if body := adopt("tpl-1"); !strings.Contains(body, `"updated":0`) {
			t.Errorf("what is known was adopted: %s", body)
		}
		r.update(func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Exec(ctx, `DELETE FROM artifact_version`)
			return err
		})
		want(cubeapi.CompatUnknown, cubeapi.CompatSummary{MissingReplicas: 1, UnknownReplicas: 1})
		if body := adopt("tpl-1"); !strings.Contains(body, `"updated":1`) {
			t.Errorf("adopt: %s", body)
		}
		want(cubeapi.CompatOK, cubeapi.CompatSummary{MissingReplicas: 1})
		for body, code := range map[string]*fault.Code{
			`{"action":"rescan"}`: fault.InvalidInput, `{"action":"drop"}`: fault.InvalidInput, `{"action":"adopt_baseline"}`: fault.InvalidInput,
			`{"action":"adopt_baseline","template_id":"nosuch"}`: fault.TemplateNotFound, `{"action":"rescan","node_ids":["nosuch"]}`: fault.HostUnknown,
		} {
			if status, got := r.post(cubeapi.PathTemplateCompat, token, body); status != code.Class.HTTP || !strings.Contains(got, code.Name) {
				t.Errorf("%s: %d %s", body, status, got)
			}
		}
		for _, body := range []string{`{"action":"rescan","all_nodes":true}`, `{"action":"rescan","node_ids":["host-a"]}`} {
			if status, got := r.post(cubeapi.PathTemplateCompat, token, body); status != http.StatusOK {
				t.Errorf("%s: %d %s", body, status, got)
			}
		}
	})
}

// The version goes with its artifact.
func TestAVersionGoesWithItsArtifact(t *testing.T) {
	db := open(t, sqlite(t))
	r := newRig(t, db, nil)
	out := r.built(r.image("app", "1"))
	noted := func() (known bool) {
		r.update(func(ctx context.Context, tx *store.Tx) error {
			all, err := templatedb.Versions(ctx, tx, []template.ArtifactID{template.ArtifactID(out.ArtifactID)})
			known = len(all) > 0
			return err
		})
		return known
	}
	eventually(t, "the guest is noted", noted)
	r.release(out.ArtifactID)
	if status, body := r.post(cubeapi.PathTCArtifactDelete, token, `{"artifact_id":"`+out.ArtifactID+`"}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if noted() {
		t.Error("it is left")
	}
}
