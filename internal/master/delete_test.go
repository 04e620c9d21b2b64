package master_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// noRows demands that nothing tells of a template any more.
func noRows(t *testing.T, r *rig, j *cubeapi.Job) {
	t.Helper()
	_, err := r.api.Template(t.Context(), j.TemplateID)
	refused(t, err, fault.TemplateNotFound)
	_, err = r.api.Job(t.Context(), j.JobID)
	refused(t, err, fault.JobNotFound)
	r.view(func(ctx context.Context, tx *store.Tx) error {
		list, err := templatedb.ListReplicas(ctx, tx, tplID(j))
		if len(list) > 0 {
			t.Errorf("replicas are left: %+v", list)
		}
		return err
	})
}

func TestADeletedTemplateLeavesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 2, plenty)
		d, err := r.api.Template(t.Context(), "base")
		must(t, err)
		must(t, r.api.DeleteTemplate(t.Context(), "base")) // by alias
		noRows(t, r, &cubeapi.Job{TemplateID: d.TemplateID, JobID: d.JobID})
		for _, h := range hosts {
			if h.holds(d.ArtifactID) {
				t.Errorf("host %s still holds it", h.id)
			}
		}
		eventually(t, "the bytes go", func() bool { return len(r.center.removed()) == 1 })
		_, err = r.api.Artifact(t.Context(), d.ArtifactID)
		refused(t, err, fault.ArtifactNotFound)
		refused(t, r.api.DeleteTemplate(t.Context(), "base"), fault.TemplateNotFound)
		r.template(alias("base")) // the name and the bytes may come again
	})
}

func TestATemplateInUseIsNotDeleted(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, _ := ready(t, dsn, 1, plenty)
		a, err := r.create("base")
		must(t, err)
		err = r.api.DeleteTemplate(t.Context(), "base")
		refused(t, err, fault.TemplateInUse)
		if !strings.Contains(err.Error(), a.SandboxID) {
			t.Errorf("the refusal does not name the sandbox: %v", err)
		}
		if d, err := r.api.Template(t.Context(), "base"); err != nil || d.Status != "READY" {
			t.Errorf("template: %+v %v", d, err)
		}
		_, err = r.create("base") // a refused delete changes nothing
		must(t, err)
		for _, s := range r.sandboxes() {
			must(t, r.api.DeleteSandbox(t.Context(), string(s.ID)))
		}
		must(t, r.api.DeleteTemplate(t.Context(), "base"))
	})
}

func TestATemplateThatIsBeingMadeIsNotDeleted(t *testing.T) {
	r, q := waiting(t)
	refused(t, r.api.DeleteTemplate(t.Context(), q.TemplateID), fault.BuildInProgress)
	must(t, r.center.report.Job(t.Context(), q.JobID, cubeapi.JobReport{Status: "FAILED", ErrorMessage: "it broke"}))
	must(t, r.api.DeleteTemplate(t.Context(), q.TemplateID))
	_, err := r.api.Job(t.Context(), q.JobID)
	refused(t, err, fault.JobNotFound)
	refused(t, r.api.DeleteTemplate(t.Context(), q.TemplateID), fault.TemplateNotFound)
	refused(t, r.api.DeleteTemplate(t.Context(), ""), fault.InvalidInput)
}

// Two templates of equal bytes: the bytes stay until the last one goes.
func TestSharedBytesStayForTheLast(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	second := r.template(alias("second"))
	must(t, r.api.DeleteTemplate(t.Context(), "base"))
	if !hosts[0].holds(second.ArtifactID) || len(r.center.removed()) != 0 {
		t.Fatal("the bytes of the other template are gone")
	}
	_, err := r.create("second")
	must(t, err)
	must(t, r.api.DeleteSandbox(t.Context(), string(r.sandboxes()[0].ID)))
	must(t, r.api.DeleteTemplate(t.Context(), "second"))
	eventually(t, "the bytes go", func() bool { return !hosts[0].holds(second.ArtifactID) && len(r.center.removed()) == 1 })
}

// A host that is away leaves the template DELETING: out of use at once, gone
// when the host is back.
func TestADeleteWaitsForItsHosts(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 2, plenty)
		d, err := r.api.Template(t.Context(), "base")
		must(t, err)
		hosts[1].away()
		answer, err := r.api.Delete(t.Context(), cubeapi.TemplateDeleteRequest{TemplateID: "base"})
		must(t, err)
		if answer.Outcome != cubeapi.DeletePending || len(answer.PendingHosts) != 1 || answer.PendingHosts[0].NodeID != string(hosts[1].id) || answer.PendingHosts[0].Reason == "" {
			t.Errorf("the delete answers %+v", answer)
		}
		shown, err := r.api.Template(t.Context(), d.TemplateID)
		must(t, err)
		if shown.Status != "DELETING" || shown.Alias != "" || len(shown.PendingHosts) != 1 {
			t.Errorf("template: %+v", shown)
		}
		_, err = r.create(d.TemplateID)
		refused(t, err, fault.TemplateNotReady)
		if len(r.center.removed()) != 0 {
			t.Error("the bytes went before the hosts were clean")
		}
		hosts[1].back()
		eventually(t, "nothing is left", func() bool {
			_, err := r.api.Template(t.Context(), d.TemplateID)
			return fault.Of(err) == fault.TemplateNotFound && !hosts[1].holds(d.ArtifactID) && len(r.center.removed()) > 0
		})
	})
}

// The template centre fails to let bytes go: it is asked again.
func TestBytesThatStayAreAskedForAgain(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	r.center.set(func(c *fakeCenter) { c.keep = fault.New(fault.StoreUnavailable, "artifact store") })
	must(t, r.api.DeleteTemplate(t.Context(), "base"))
	eventually(t, "the centre refused", func() bool { return r.center.refusals() > 0 })
	r.center.set(func(c *fakeCenter) { c.keep = nil })
	eventually(t, "the bytes go", func() bool { return len(r.center.removed()) > 0 })
}

// The message that lets bytes go was given up: the sweep begins again.
func TestAnArtifactThatStaysDeletingIsTakenUp(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	d, err := r.api.Template(t.Context(), "base")
	must(t, err)
	// A template centre that says that it is wanted again ends the message.
	r.center.set(func(c *fakeCenter) { c.keep = fault.New(fault.StateConflict, "artifact") })
	must(t, r.api.DeleteTemplate(t.Context(), "base"))
	eventually(t, "the centre refused", func() bool { return r.center.refusals() > 0 })
	r.center.set(func(c *fakeCenter) { c.keep = nil })
	eventually(t, "the bytes go", func() bool {
		_, err := r.api.Artifact(t.Context(), d.ArtifactID)
		return fault.Of(err) == fault.ArtifactNotFound
	})
}

func TestADeleteSurvivesACrashAtEachStep(t *testing.T) {
	for _, step := range []string{"master.delete.after_commit", "master.clean.after_host", "master.clean.after_hosts", "master.clean.after_release"} {
		t.Run(step, func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) {
				r, hosts := ready(t, dsn, 1, plenty)
				d, err := r.api.Template(t.Context(), "base")
				must(t, err)
				r.crash()
				crash, reached := crashAt(step)
				r.start(crash)
				if err := r.api.DeleteTemplate(t.Context(), "base"); err == nil {
					t.Fatal("the delete did not end")
				}
				wait(t, step, reached)
				r.crash()
				r.start()
				eventually(t, "nothing is left", func() bool {
					_, err := r.api.Template(t.Context(), d.TemplateID)
					return fault.Of(err) == fault.TemplateNotFound && !hosts[0].holds(d.ArtifactID) && len(r.center.removed()) > 0
				})
				noRows(t, r, &cubeapi.Job{TemplateID: d.TemplateID, JobID: d.JobID})
			})
		})
	}
}

// A delete and creates at once: either the delete is refused, or no sandbox
// came to be.
func TestADeleteAndCreatesAgree(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, _ := ready(t, dsn, 1, plenty, patient)
		var group sync.WaitGroup
		var deleted error
		group.Go(func() { deleted = r.api.DeleteTemplate(t.Context(), "base") })
		for range 6 {
			group.Go(func() {
				_, err := r.create("base")
				if code := fault.Of(err); err != nil && code != fault.TemplateNotFound && code != fault.TemplateNotReady {
					t.Errorf("create: %v", err)
				}
			})
		}
		group.Wait()
		running := 0
		for _, s := range r.sandboxes() {
			if s.State == sandbox.Running {
				running++
			}
		}
		switch fault.Of(deleted) {
		case fault.TemplateInUse:
			if running == 0 {
				t.Error("the delete was refused and nothing runs")
			}
		default:
			must(t, deleted)
			if running > 0 {
				t.Errorf("%d sandboxes run of a template that is gone", running)
			}
		}
	})
}

// A crash between a host and its row leaves bytes that no row knows.
func TestStrayArtifactsAreRemoved(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	stray := string(template.ArtifactIDOf(sum([]byte("stray"))))
	hosts[0].set(func(h *fakeHost) { h.artifacts[stray] = true })
	eventually(t, "the stray goes", func() bool { return !hosts[0].holds(stray) })
	d, err := r.api.Template(t.Context(), "base")
	must(t, err)
	if !hosts[0].holds(d.ArtifactID) {
		t.Error("the template's own bytes went too")
	}
}

func TestAnAliasMoves(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	second := r.template(alias("second"))
	d, err := r.api.SetAlias(t.Context(), second.TemplateID, "base")
	must(t, err)
	if d.Alias != "base" || d.DisplayName != "base" || d.TemplateID != second.TemplateID {
		t.Errorf("template: %+v", d)
	}
	_, err = r.api.Template(t.Context(), "second")
	refused(t, err, fault.TemplateNotFound)
	d, err = r.api.SetAlias(t.Context(), "base", "")
	must(t, err)
	if d.Alias != "" {
		t.Errorf("alias %q is left", d.Alias)
	}
	_, err = r.api.SetAlias(t.Context(), second.TemplateID, "Bad Name")
	refused(t, err, fault.AliasInvalid)
	_, err = r.api.SetAlias(t.Context(), "nobody", "x")
	refused(t, err, fault.TemplateNotFound)
	if status, _ := put(t, r, strings.Replace(cubeapi.PathAlias, "{template_id}", second.TemplateID, 1), ""); status != 200 {
		t.Errorf("no body: %d", status)
	}
	if status, _ := put(t, r, strings.Replace(cubeapi.PathAlias, "{template_id}", second.TemplateID, 1), `{"alias":null}`); status != 200 {
		t.Errorf("null: %d", status)
	}
}
