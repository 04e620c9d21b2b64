package master_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// gone waits until nothing tells of a template, nor of its bytes anywhere.
func (r *rig) gone(id, artifact string) {
	r.t.Helper()
	eventually(r.t, "nothing is left of "+id, func() bool {
		_, err := r.api.Template(r.t.Context(), id)
		_, bytes := r.api.Artifact(r.t.Context(), artifact)
		return fault.Of(err) == fault.TemplateNotFound && (artifact == "" || fault.Of(bytes) == fault.ArtifactNotFound)
	})
	r.view(func(ctx context.Context, tx *store.Tx) error {
		list, err := templatedb.ListReplicas(ctx, tx, template.ID(id))
		if len(list) > 0 {
			r.t.Errorf("replicas are left: %+v", list)
		}
		return err
	})
}

// A host that died blocks no delete for ever: the answer comes at once, and the
// rest when the host is back or when an operator says that it is gone
// (reports 1621, 822).
func TestADeadHostBlocksNoDelete(t *testing.T) {
	for name, end := range map[string]func(r *rig, h *fakeHost){
		"it returns": func(_ *rig, h *fakeHost) { h.back(); h.speak() },
		"it is removed": func(r *rig, h *fakeHost) {
			eventually(r.t, "the host may be removed", func() bool { return r.api.RemoveHost(r.t.Context(), string(h.id), true) == nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) {
				r, hosts := ready(t, dsn, 2, plenty)
				d, err := r.api.Template(t.Context(), "base")
				must(t, err)
				dead := hosts[1]
				r.silence(dead)
				dead.away()
				eventually(t, "the host is missed", func() bool {
					h, err := r.api.Host(t.Context(), string(dead.id))
					return err == nil && h.Health == string(host.Unknown)
				})
				called := dead.called("remove_artifact")
				answer, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: "base"})
				must(t, err)
				if answer.Outcome != cubeapi.DeletePending || len(answer.PendingHosts) != 1 || answer.PendingHosts[0].NodeID != string(dead.id) || !strings.Contains(answer.PendingHosts[0].Reason, "not heard of") {
					t.Errorf("the delete answers %+v", answer)
				}
				if hosts[0].holds(d.ArtifactID) {
					t.Error("the host that lives was not cleaned")
				}
				shown, err := r.api.Template(t.Context(), d.TemplateID)
				if must(t, err); shown.Status != "DELETING" {
					t.Errorf("it is shown as %s", shown.Status)
				}
				_, err = r.create(d.TemplateID)
				refused(t, err, fault.TemplateNotReady)
				if len(r.center.removed()) > 0 || dead.called("remove_artifact") != called {
					t.Error("the bytes went, or a host that is missed was asked")
				}
				end(r, dead)
				r.gone(d.TemplateID, d.ArtifactID)
			})
		})
	}
}

// A host refuses while a sandbox still maps the file: it is asked again.
func TestAHostThatStillUsesTheBytesIsAskedAgain(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	d, err := r.api.Template(t.Context(), "base")
	must(t, err)
	hosts[0].set(func(h *fakeHost) {
		h.removal = func() error { return fault.New(fault.TemplateInUse, "sandbox of another book") }
	})
	answer, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: "base"})
	must(t, err)
	if answer.Outcome != cubeapi.DeletePending || !strings.Contains(answer.PendingHosts[0].Reason, "another book") {
		t.Errorf("the delete answers %+v", answer)
	}
	hosts[0].set(func(h *fakeHost) { h.removal = nil })
	r.gone(d.TemplateID, d.ArtifactID)
	if hosts[0].holds(d.ArtifactID) {
		t.Error("the host holds it still")
	}
}

// A job that is stuck does not make a template undeletable (reports 66, 275).
func TestForceEndsAStuckJob(t *testing.T) {
	r, q := waiting(t)
	_, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: q.TemplateID})
	refused(t, err, fault.BuildInProgress)
	answer, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: q.TemplateID, Force: true})
	must(t, err)
	if answer.Outcome != cubeapi.DeleteDone || !slices.Equal(answer.Jobs, []string{q.JobID}) {
		t.Errorf("the delete answers %+v", answer)
	}
	noRows(t, r, &cubeapi.Job{TemplateID: q.TemplateID, JobID: q.JobID})
	// Its builder goes on and is told that nobody wants it.
	refused(t, r.center.report.Job(t.Context(), q.JobID, r.center.built(q)), fault.JobNotFound)
}

// A delete by force while the bytes are being brought to a host leaves nothing,
// whatever the host does afterwards.
func TestForceEndsADistribution(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		h := r.host(0, plenty)
		began, goOn := make(chan struct{}, 1), make(chan struct{})
		h.set(func(h *fakeHost) {
			h.ensure = func(ctx context.Context) error {
				began <- struct{}{}
				select {
				case <-goOn:
				case <-ctx.Done():
				}
				return nil
			}
		})
		j, err := r.api.FromImage(t.Context(), image(alias("base")))
		must(t, err)
		wait(t, "the host is asked", began)
		answer, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: j.TemplateID, Force: true})
		close(goOn)
		must(t, err)
		if !slices.Equal(answer.Jobs, []string{j.JobID}) {
			t.Errorf("the delete answers %+v", answer)
		}
		_, err = r.api.Template(t.Context(), j.TemplateID)
		refused(t, err, fault.TemplateNotFound)
		eventually(t, "the bytes go, and the host has none", func() bool { return len(r.center.removed()) > 0 && !h.holds(r.center.removed()[0]) })
		eventually(t, "no row of a host is left", func() (none bool) {
			r.view(func(ctx context.Context, tx *store.Tx) error {
				list, err := templatedb.ListReplicas(ctx, tx, tplID(j))
				none = len(list) == 0
				return err
			})
			return none
		})
	})
}

// raw sends a delete and returns the answer as it travels.
func (r *rig) raw(body string) (int, cubeapi.TemplateDeleteAnswer) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodDelete, r.front.URL+cubeapi.PathTemplate, strings.NewReader(body))
	must(r.t, err)
	q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	a, err := http.DefaultClient.Do(q)
	must(r.t, err)
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	must(r.t, err)
	var answer cubeapi.TemplateDeleteAnswer
	must(r.t, json.Unmarshal(b, &answer))
	return a.StatusCode, answer
}

// Who is in the way is named, in words and as a list; force takes nothing from
// users (report 1621).
func TestARefusedDeleteNamesItsUsers(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	var boxes []string
	for range 3 {
		a, err := r.create("base")
		must(t, err)
		boxes = append(boxes, a.SandboxID)
	}
	slices.Sort(boxes)
	for _, body := range []string{`{"template_id":"base"}`, `{"template_id":"base","force":true}`} {
		status, a := r.raw(body)
		slices.Sort(a.Users)
		if status != http.StatusConflict || a.Ret.Code != 130409 || a.Error.Code != fault.TemplateInUse.Name || !slices.Equal(a.Users, boxes) || !strings.Contains(a.Error.Message, boxes[2]) {
			t.Errorf("%s: %d %+v", body, status, a)
		}
		if d, err := r.api.Template(t.Context(), "base"); err != nil || d.Status != "READY" {
			t.Errorf("a refused delete changed it: %+v %v", d, err)
		}
	}
	status, a := r.raw(`{"template_id":"base","dry_run":true}`)
	if status != http.StatusOK || a.Outcome != cubeapi.DeletePlanned || a.BlockedBy != fault.TemplateInUse.Name || len(a.Users) != 3 {
		t.Errorf("plan: %d %+v", status, a)
	}
}

func TestADryRunOfADeleteChangesNothing(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, plenty)
	d, err := r.api.Template(t.Context(), "base")
	must(t, err)
	art, err := r.api.Artifact(t.Context(), d.ArtifactID)
	must(t, err)
	plan := func(name string) cubeapi.TemplateDeleteAnswer {
		a, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: name, DryRun: true})
		must(t, err)
		return a
	}
	a := plan("base")
	if a.TemplateID != d.TemplateID || a.ArtifactID != d.ArtifactID || a.FreedBytes != art.Ext4SizeBytes || !slices.Equal(a.Hosts, []string{string(hosts[0].id), string(hosts[1].id)}) || a.BlockedBy != "" {
		t.Errorf("plan: %+v", a)
	}
	if after, err := r.api.Template(t.Context(), "base"); err != nil || after.Status != "READY" || !hosts[0].holds(d.ArtifactID) {
		t.Errorf("the plan changed it: %+v %v", after, err)
	}
	r.template(alias("second")) // of the same bytes
	if a := plan("base"); a.FreedBytes != 0 || len(a.Hosts) != 0 {
		t.Errorf("plan of shared bytes: %+v", a)
	}
	_, err = r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: "nosuch", DryRun: true})
	refused(t, err, fault.TemplateNotFound)
}

// Deletes that cannot go on, because their host is away, hold up none behind
// them: more than one round of a sweep takes are in front.
func TestDeletesThatWaitHoldUpNone(t *testing.T) {
	r := newRig(t, sqlite(t))
	const many = 150
	dead := host.ID("host-dead")
	must(t, r.db.Update(t.Context(), func(tx *store.Tx) error {
		ctx := t.Context()
		if err := sandboxdb.PutHost(ctx, tx, host.Registration{ID: dead, IP: "127.0.0.1", GRPCPort: 1, InstanceType: "cubebox"}); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE host SET heard_us = 1`); err != nil {
			return err
		}
		for i := range many + 1 {
			id, err := addDeleting(ctx, tx, i)
			if err != nil {
				return err
			}
			if i < many {
				if err := templatedb.PutPlacement(ctx, tx, id, dead); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	r.start()
	r.gone(deletingID(many), "")
	if list, err := r.api.TemplatesBy(t.Context(), cubeapi.TemplateQuery{Status: "DELETING"}); err != nil || len(list) != many {
		t.Errorf("%d still wait for their host, want %d: %v", len(list), many, err)
	}
	must(t, r.api.RemoveHost(t.Context(), string(dead), true))
	eventually(t, "all go once the host is removed", func() bool {
		list, err := r.api.Templates(t.Context())
		return err == nil && len(list) == 0
	})
}

func deletingID(i int) string { return fmt.Sprintf("tpl-%024d", i) }

// addDeleting makes a template that is DELETING, and its bytes, older the lower i
// is.
func addDeleting(ctx context.Context, tx *store.Tx, i int) (template.ArtifactID, error) {
	key := sum([]byte{byte(i), byte(i >> 8)})
	a, err := templatedb.AddArtifact(ctx, tx, template.Artifact{ID: template.ArtifactIDOf(key), ContentKey: key})
	if err != nil {
		return "", err
	}
	if _, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactUnused); err != nil {
		return "", err
	}
	d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: template.ID(deletingID(i)), ArtifactID: a.ID})
	if err != nil {
		return "", err
	}
	if _, err = templatedb.MoveDefinition(ctx, tx, d, template.OnDeleteAsked); err != nil {
		return "", err
	}
	for _, q := range []string{`UPDATE definition SET changed_us = ? WHERE id = ?`, `UPDATE artifact SET changed_us = ? WHERE id = ?`} {
		id := string(a.ID)
		if strings.Contains(q, "definition") {
			id = string(d.ID)
		}
		if _, err := tx.Exec(ctx, q, 1000+i, id); err != nil {
			return "", err
		}
	}
	return a.ID, nil
}

// A caller that has waited enough is answered although a host has not.
func TestADeleteAnswersThoughAHostHangs(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	d, err := r.api.Template(t.Context(), "base")
	must(t, err)
	goOn := make(chan struct{})
	hosts[0].set(func(h *fakeHost) {
		h.holdOn = func(ctx context.Context) {
			select {
			case <-goOn:
			case <-ctx.Done():
			}
		}
	})
	answer, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: "base"})
	must(t, err)
	if answer.Outcome != cubeapi.DeletePending || len(answer.PendingHosts) != 1 || answer.PendingHosts[0].NodeID != string(hosts[0].id) {
		t.Errorf("the delete answers %+v", answer)
	}
	close(goOn)
	r.gone(d.TemplateID, d.ArtifactID)
}

// A delete by force that ends a redo lets what that has built go too, although
// nobody lives who would.
func TestForceTakesWhatARedoHasBuilt(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn, func(c *config.Config) { c.Master.BuiltStaleAfter = time.Hour })
		var alone atomic.Bool
		r.start(func(p *running) {
			p.CollectEvery(time.Hour)
			p.CollectedNow()
			p.At(func(name string) error { // nobody goes on from there
				if alone.Load() && name == "master.built.after_commit" {
					return context.Canceled
				}
				return nil
			})
		})
		r.host(0, plenty)
		made := r.template(alias("app"))
		r.center.set(func(c *fakeCenter) { delete(c.bytes, made.ArtifactID); c.flavour = " with a new guest" })
		alone.Store(true)
		a, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "app"})
		must(t, err)
		var built string
		eventually(t, "it is built", func() bool {
			j, err := r.api.Job(t.Context(), a.Job.JobID)
			if err == nil && j.Status == cubeapi.StatusBuilt {
				built = j.ArtifactID
			}
			return built != ""
		})
		answer, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: "app", Force: true})
		if err != nil || built == made.ArtifactID {
			t.Fatalf("%+v %v", answer, err)
		}
		eventually(t, "what it built goes", func() bool { return slices.Contains(r.center.removed(), built) })
	})
}
