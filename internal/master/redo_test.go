package master_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

func scope(hosts ...*fakeHost) (names []string) {
	for _, h := range hosts {
		names = append(names, string(h.id))
	}
	return names
}

// redo submits a redo and returns its job at its end.
func (r *rig) redo(q cubeapi.RedoRequest) *cubeapi.Job {
	r.t.Helper()
	a, err := r.api.Redo(r.t.Context(), q)
	must(r.t, err)
	return r.ended(a.Job.JobID)
}

// jobs returns the rows of a template's jobs.
func (r *rig) jobs(id string) (list []template.Job) {
	r.t.Helper()
	r.view(func(ctx context.Context, tx *store.Tx) (err error) {
		list, err = templatedb.ListJobs(ctx, tx, templatedb.JobFilter{TemplateID: template.ID(id)})
		return err
	})
	return list
}

func (r *rig) artifact(id string) (a template.Artifact) {
	r.t.Helper()
	r.view(func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = templatedb.GetArtifact(ctx, tx, template.ArtifactID(id))
		return err
	})
	return a
}

// moveArtifact writes an artifact's row in the place of whoever would.
func (r *rig) moveArtifact(id string, on template.ArtifactEvent, change func(*template.Artifact)) {
	r.t.Helper()
	must(r.t, r.db.Update(r.t.Context(), func(tx *store.Tx) error {
		a, err := templatedb.GetArtifact(r.t.Context(), tx, template.ArtifactID(id))
		if err != nil {
			return err
		}
		if change != nil {
			change(&a)
		}
		_, err = templatedb.MoveArtifact(r.t.Context(), tx, a, on)
		return err
	}))
}

func (r *rig) shown(id string) cubeapi.Template {
	r.t.Helper()
	d, err := r.api.Template(r.t.Context(), id)
	must(r.t, err)
	return d
}

// A host that had lost the bytes, and said so, is chosen as soon as a redo has
// brought them back: its next report may be a while.
func TestWhatARedoBroughtIsUsedAtOnce(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	h := hosts[0]
	h.hush()
	h.set(func(h *fakeHost) { clear(h.artifacts) })
	must(t, h.say(t.Context()))
	r.update(func(ctx context.Context, tx *store.Tx) error { // it was brought there long ago
		_, err := tx.Exec(ctx, `UPDATE placement SET created_us = 1`)
		return err
	})
	if _, err := r.create("base"); fault.Of(err) != fault.NoHost {
		t.Fatalf("before the redo: %v", err)
	}
	if j := r.redo(cubeapi.RedoRequest{TemplateID: "base"}); j.Status != "READY" {
		t.Fatalf("job: %+v", j)
	}
	_, err := r.create("base")
	must(t, err)
}

// A redo uses the bytes that are there, and asks no builder.
func TestARedoReusesReadyBytes(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		a, b := r.host(0, plenty), r.host(1, plenty)
		b.set(func(h *fakeHost) { h.ensure = broken })
		made := r.template(alias("app"))
		b.set(func(h *fakeHost) { h.ensure = nil })

		plan, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "app", FailedOnly: true, DryRun: true})
		must(t, err)
		if p := plan.Plan; plan.Job != nil || p.Rebuild || p.RedoMode != "FAILED_ONLY" || len(p.Targets) != 1 || p.Targets[0].NodeID != string(b.id) || p.Targets[0].Replica != "FAILED" || p.Targets[0].Holds || p.BytesToMove != p.ArtifactBytes || p.ArtifactBytes == 0 {
			t.Errorf("plan: %+v", p)
		}
		if n := len(r.jobs(made.TemplateID)); n != 1 {
			t.Errorf("a plan left %d jobs", n)
		}

		asked := a.called("ensure")
		j := r.redo(cubeapi.RedoRequest{TemplateID: "app", FailedOnly: true})
		if j.Status != "READY" || j.Operation != "REDO" || j.RedoMode != "FAILED_ONLY" || j.AttemptNo != 2 || j.RetryOfJobID != made.JobID || j.ResumePhase != "DISTRIBUTING" || j.ExpectedNodeCount != 1 || j.ReadyNodeCount != 1 {
			t.Errorf("job: %+v", j)
		}
		if d := r.shown("app"); d.Status != "READY" || d.LastError != "" {
			t.Errorf("template: %+v", d)
		}
		if n := r.center.jobs(); n != 1 {
			t.Errorf("the centre was asked %d times", n)
		}
		if a.called("ensure") != asked || !b.holds(made.ArtifactID) {
			t.Error("the wrong host was served")
		}
		_, err = r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "app", FailedOnly: true})
		refused(t, err, fault.StateConflict)
		if !strings.Contains(err.Error(), "no failed replicas matched") {
			t.Errorf("%v", err)
		}
		for _, c := range []struct {
			q    cubeapi.RedoRequest
			mode string
			n    int
		}{
			{cubeapi.RedoRequest{}, "ALL", 2},
			{cubeapi.RedoRequest{DistributionScope: scope(b)}, "NODES", 1},
		} {
			c.q.TemplateID = made.TemplateID
			if j := r.redo(c.q); j.Status != "READY" || j.RedoMode != c.mode || j.ReadyNodeCount != c.n {
				t.Errorf("%s: %+v", c.mode, j)
			}
		}
		r.reported(made.ArtifactID, b)
		b.set(func(h *fakeHost) { delete(h.artifacts, made.ArtifactID); h.ensure = broken })
		eventually(t, "the host reports its loss", func() bool { return r.reports(b, made.ArtifactID) == 0 })
		r.redo(cubeapi.RedoRequest{TemplateID: "app"})
		b.set(func(h *fakeHost) { h.ensure = nil })
		if d := r.shown("app"); d.Status != "PARTIALLY_READY" {
			t.Errorf("template: %+v", d)
		}
		_, err = r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "app", FailedOnly: true, DistributionScope: scope(a)})
		refused(t, err, fault.StateConflict)
		if j := r.redo(cubeapi.RedoRequest{TemplateID: "app", FailedOnly: true, DistributionScope: scope(a, b)}); j.Status != "READY" || j.RedoMode != "FAILED_NODES" || j.ExpectedNodeCount != 1 {
			t.Errorf("FAILED_NODES: %+v", j)
		}
	})
}

// reported waits until hosts have told that they hold an artifact.
func (r *rig) reported(artifact string, hosts ...*fakeHost) {
	r.t.Helper()
	for _, h := range hosts {
		eventually(r.t, "host "+string(h.id)+" reports what it holds", func() bool { return r.reports(h, artifact) == 1 })
	}
}

// reports counts an artifact in what the master last heard of a host.
func (r *rig) reports(h *fakeHost, artifact string) (n int) {
	r.t.Helper()
	r.view(func(ctx context.Context, tx *store.Tx) error {
		f, err := hostRow(ctx, tx, h.id)
		if slices.Contains(f.Artifacts, artifact) {
			n = 1
		}
		return err
	})
	return n
}

// What is being built, or removed, or not described in full, is never reused:
// it would be half an image.
func TestARedoNeverReusesWhatIsNotReady(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	other := func(n int) func(*cubeapi.FromImageRequest) {
		return func(q *cubeapi.FromImageRequest) { q.SourceImageRef = fmt.Sprintf("registry.local/n:%d", n) }
	}
	for i, spoil := range []func(id string){
		func(id string) { r.moveArtifact(id, template.OnArtifactLost, nil) },
		func(id string) { // claimed: being built
			r.moveArtifact(id, template.OnArtifactLost, nil)
			r.moveArtifact(id, template.OnArtifactClaimed, nil)
		},
		func(id string) { r.moveArtifact(id, template.OnArtifactUnused, nil) },
		func(id string) {
			r.moveArtifact(id, template.OnArtifactStored, func(a *template.Artifact) { a.SHA256 = "" })
		},
		func(id string) {
			r.moveArtifact(id, template.OnArtifactStored, func(a *template.Artifact) { a.SizeBytes = 0 })
		},
	} {
		made := r.template(other(i))
		spoil(made.ArtifactID)
		j := r.redo(cubeapi.RedoRequest{TemplateID: made.TemplateID})
		if j.ResumePhase != "PULLING" {
			t.Errorf("case %d: it was not built again: %+v", i, j)
		}
		if i != 1 && j.Status != "READY" { // who claims an artifact registers it, and nobody does here
			t.Errorf("case %d: %+v", i, j)
		}
	}
}

// Bytes of another size are not the artifact's, and are built again.
func TestARedoLooksAtTheSizeBeforeItReuses(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	made := r.template()
	r.center.set(func(c *fakeCenter) { c.bytes[made.ArtifactID] = []byte("half") })
	plan, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: made.TemplateID, DryRun: true})
	must(t, err)
	if !plan.Plan.Rebuild || !strings.Contains(plan.Plan.Why, "4 bytes") {
		t.Errorf("plan: %+v", plan.Plan)
	}
	if j := r.redo(cubeapi.RedoRequest{TemplateID: made.TemplateID}); j.Status != "READY" || r.center.jobs() != 2 {
		t.Errorf("job: %+v", j)
	}
}

// Bytes of the right size that hosts find corrupt are read by the template
// centre, and an artifact that is not what its row says is no more reused.
func TestBytesThatHostsFindCorruptAreBuiltAgain(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	made := r.template()
	r.reported(made.ArtifactID, h)
	r.center.set(func(c *fakeCenter) { c.bytes[made.ArtifactID][0] ^= 1 })
	h.set(func(h *fakeHost) { delete(h.artifacts, made.ArtifactID) })
	eventually(t, "the host reports its loss", func() bool { return r.reports(h, made.ArtifactID) == 0 })
	if j := r.redo(cubeapi.RedoRequest{TemplateID: made.TemplateID}); j.Status != "FAILED" || j.ErrorCode != "artifact_corrupt" {
		t.Errorf("job: %+v", j)
	}
	if a := r.artifact(made.ArtifactID); a.State != template.ArtifactFailed || !strings.Contains(a.Error, "other bytes") {
		t.Errorf("artifact: %s %s", a.State, a.Error)
	}
	if j := r.redo(cubeapi.RedoRequest{TemplateID: made.TemplateID}); j.Status != "READY" || r.center.jobs() != 2 {
		t.Errorf("job: %+v", j)
	}
}

// Whatever refuses a redo does so before anything is touched.
func TestARedoRefusesBeforeItTouchesAnything(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		a, b := r.host(0, plenty), r.host(1, plenty)
		public := r.template(alias("public"))
		private := r.template(alias("private"), func(q *cubeapi.FromImageRequest) {
			q.SourceImageRef, q.RegistryUsername, q.RegistryPassword = "registry.local/private:1", "u", "p"
		})
		must(t, r.cordon(b, true))
		before := r.everything()
		try := func(what string, code *fault.Code, q cubeapi.RedoRequest) {
			t.Helper()
			for _, q.DryRun = range []bool{true, false} {
				if _, err := r.api.Redo(t.Context(), q); err == nil || fault.Of(err) != code {
					t.Errorf("%s: got %v, want %s", what, err, code.Name)
				}
			}
			if now := r.everything(); now != before {
				t.Errorf("%s changed\n%s\nto\n%s", what, before, now)
			}
		}
		try("no template", fault.InvalidInput, cubeapi.RedoRequest{})
		try("unknown", fault.TemplateNotFound, cubeapi.RedoRequest{TemplateID: "tpl-000000000000000000000000"})
		try("unknown host", fault.NoTemplateHosts, cubeapi.RedoRequest{TemplateID: "public", DistributionScope: []string{"nowhere"}})
		try("cordoned host", fault.NoTemplateHosts, cubeapi.RedoRequest{TemplateID: "public", DistributionScope: scope(a, b)})
		try("nothing failed", fault.StateConflict, cubeapi.RedoRequest{TemplateID: "public", FailedOnly: true})
		try("password without a name", fault.InvalidInput, cubeapi.RedoRequest{TemplateID: "public", RegistryPassword: "p"})
		r.center.set(func(c *fakeCenter) { c.stating = fault.New(fault.StoreUnavailable, "bucket") })
		try("store away", fault.StoreUnavailable, cubeapi.RedoRequest{TemplateID: "public"})
		r.center.set(func(c *fakeCenter) { c.stating = nil })
		r.center.front.hide()
		try("template centre away", fault.PeerUnavailable, cubeapi.RedoRequest{TemplateID: "public"})
		r.center.front.back()
		r.center.set(func(c *fakeCenter) { delete(c.bytes, private.ArtifactID) })
		try("a private image must be pulled again", fault.CredentialsNeeded, cubeapi.RedoRequest{TemplateID: "private"})
		must(t, r.cordon(a, true))
		before = r.everything()
		try("no host", fault.NoTemplateHosts, cubeapi.RedoRequest{TemplateID: public.TemplateID})
		must(t, r.cordon(a, false))

		j := r.redo(cubeapi.RedoRequest{TemplateID: "private", RegistryUsername: "u", RegistryPassword: "q"})
		builds := r.center.builds()
		if last := builds[len(builds)-1]; j.Status != "READY" || last.Request.RegistryPassword != "q" || !strings.Contains(last.Request.SourceImageRef, "@sha256:") {
			t.Errorf("%+v %+v", j, last.Request.SourceImageRef)
		}
		if r.m.Lends(j.JobID) {
			t.Error("the master keeps credentials of a build that has begun")
		}
	})
}

func (r *rig) cordon(h *fakeHost, on bool) error {
	_, err := r.api.CordonHost(r.t.Context(), string(h.id), on)
	return err
}

// everything is all rows of templates as one text.
func (r *rig) everything() string {
	r.t.Helper()
	var text strings.Builder
	r.view(func(ctx context.Context, tx *store.Tx) error {
		text.Reset()
		list, err := templatedb.PageOfDefinitions(ctx, tx, templatedb.Filter{})
		if err != nil {
			return err
		}
		jobs, err := templatedb.ListJobs(ctx, tx, templatedb.JobFilter{})
		if err != nil {
			return err
		}
		artifacts, err := templatedb.ListArtifacts(ctx, tx, templatedb.ArtifactFilter{})
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%+v\n%+v\n%+v\n", list, jobs, artifacts)
		for _, d := range list {
			replicas, err := templatedb.ListReplicas(ctx, tx, d.ID)
			if err != nil {
				return err
			}
			fmt.Fprintf(&text, "%+v\n", replicas)
		}
		waiting, _, err := tx.OutboxLen(ctx)
		fmt.Fprintln(&text, waiting)
		return err
	})
	return text.String()
}

// A redo that fails on every host ends, and leaves what was good as it was.
func TestARedoThatFailsEverywhereKeepsWhatWasGood(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		a, b := r.host(0, plenty), r.host(1, plenty)
		made := r.template(alias("app"))
		r.reported(made.ArtifactID, a, b)
		for _, h := range []*fakeHost{a, b} {
			h.set(func(h *fakeHost) { h.ensure = broken })
		}
		j := r.redo(cubeapi.RedoRequest{TemplateID: "app"})
		if j.Status != "FAILED" || j.ErrorCode != "disk_full" || j.ExpectedNodeCount != 2 || j.ReadyNodeCount != 0 || j.FailedNodeCount != 2 || j.TemplateStatus != "READY" {
			t.Errorf("job: %+v", j)
		}
		if d := r.shown("app"); d.Status != "READY" || d.Replicas[0].Status != "READY" || d.Replicas[1].Status != "READY" || d.ArtifactID != made.ArtifactID {
			t.Errorf("template: %+v", d)
		}
		if _, err := r.create("app"); err != nil {
			t.Errorf("the template is not usable: %v", err)
		}
		// A host that has lost the bytes is not good any more.
		b.set(func(h *fakeHost) { delete(h.artifacts, made.ArtifactID) })
		eventually(t, "the host reports its loss", func() bool { return r.reports(b, made.ArtifactID) == 0 })
		if j = r.redo(cubeapi.RedoRequest{TemplateID: "app"}); j.Status != "FAILED" || j.TemplateStatus != "PARTIALLY_READY" {
			t.Errorf("job: %+v", j)
		}
		// With none left the template has failed, and is still there.
		a.set(func(h *fakeHost) { clear(h.boxes); delete(h.artifacts, made.ArtifactID) })
		eventually(t, "the host reports its loss", func() bool { return r.reports(a, made.ArtifactID) == 0 })
		if j = r.redo(cubeapi.RedoRequest{TemplateID: "app"}); j.Status != "FAILED" || j.TemplateStatus != "FAILED" {
			t.Errorf("job: %+v", j)
		}
		for _, h := range []*fakeHost{a, b} {
			h.set(func(h *fakeHost) { h.ensure = nil })
		}
		if j = r.redo(cubeapi.RedoRequest{TemplateID: "app"}); j.Status != "READY" || j.TemplateStatus != "READY" || j.AttemptNo != 5 {
			t.Errorf("job: %+v", j)
		}
	})
}

// A template that never came to be is brought to its end by a redo, with the
// alias that its create asked for.
func TestARedoEndsACreateThatFailed(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		h := r.host(0, plenty)
		h.set(func(h *fakeHost) { h.ensure = broken })
		made, err := r.api.FromImage(t.Context(), image(alias("app")))
		must(t, err)
		if made = r.ended(made.JobID); made.Status != "FAILED" {
			t.Fatalf("job: %+v", made)
		}
		eventually(t, "the bytes that nobody needs go", func() bool { return slices.Contains(r.center.removed(), made.ArtifactID) })
		h.set(func(h *fakeHost) { h.ensure = nil })
		if j := r.redo(cubeapi.RedoRequest{TemplateID: made.TemplateID, FailedOnly: true}); j.Status != "READY" || j.AttemptNo != 2 || j.TemplateStatus != "READY" {
			t.Errorf("job: %+v", j)
		}
		if d := r.shown("app"); d.TemplateID != made.TemplateID || d.Status != "READY" {
			t.Errorf("template: %+v", d)
		}
		if _, err := r.create("app"); err != nil {
			t.Error(err)
		}
	})
}

// The alias is the operator's since the template exists: a redo gives back none
// that was taken away or moved.
func TestARedoResurrectsNoAlias(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.host(0, plenty)
		first := r.template(alias("app"))
		second := r.template(func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/second:1" })
		for _, holder := range []string{"", second.TemplateID} {
			if holder == "" {
				_, err := r.api.SetAlias(t.Context(), first.TemplateID, "")
				must(t, err)
			} else {
				_, err := r.api.SetAlias(t.Context(), holder, "app")
				must(t, err)
			}
			for _, lost := range []bool{false, true} {
				if lost {
					r.center.set(func(c *fakeCenter) { delete(c.bytes, first.ArtifactID) })
				}
				if j := r.redo(cubeapi.RedoRequest{TemplateID: first.TemplateID}); j.Status != "READY" || j.ErrorMessage != "" {
					t.Errorf("job: %+v", j)
				}
				if d := r.shown(first.TemplateID); d.Alias != "" {
					t.Errorf("the alias %q is back", d.Alias)
				}
			}
		}
		if d := r.shown("app"); d.TemplateID != second.TemplateID {
			t.Errorf("the alias names %s", d.TemplateID)
		}
	})
}

// Bytes that the store has lost are built again from the very image; other
// bytes than before (a new guest) come to every host that had the old ones.
func TestARedoBuildsLostBytesAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		a, b := r.host(0, plenty), r.host(1, plenty)
		made := r.template(alias("app"))
		r.reported(made.ArtifactID, a, b)
		r.center.set(func(c *fakeCenter) { delete(c.bytes, made.ArtifactID) })
		plan, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "app", DryRun: true})
		must(t, err)
		if p := plan.Plan; !p.Rebuild || p.BytesToMove != 0 || !p.Targets[0].Holds {
			t.Errorf("plan: %+v", p)
		}
		j := r.redo(cubeapi.RedoRequest{TemplateID: "app"})
		if j.Status != "READY" || j.ResumePhase != "PULLING" || j.ArtifactID != made.ArtifactID || j.TemplateStatus != "READY" {
			t.Errorf("job: %+v", j)
		}
		if row := r.artifact(made.ArtifactID); row.State != template.ArtifactReady || row.Error != "" {
			t.Errorf("artifact: %s %q", row.State, row.Error)
		}

		r.center.set(func(c *fakeCenter) { delete(c.bytes, made.ArtifactID); c.flavour = " with a new guest" })
		j = r.redo(cubeapi.RedoRequest{TemplateID: "app", DistributionScope: scope(a)})
		if j.Status != "READY" || j.ArtifactID == made.ArtifactID || j.TemplateStatus != "PARTIALLY_READY" {
			t.Errorf("job: %+v", j)
		}
		d := r.shown("app")
		if d.ArtifactID != j.ArtifactID || d.Replicas[0].Status != "READY" || d.Replicas[1].Status != "FAILED" || !strings.Contains(d.Replicas[1].ErrorMessage, made.ArtifactID) {
			t.Errorf("template: %+v", d)
		}
		eventually(t, "the old bytes go from the hosts", func() bool { return !a.holds(made.ArtifactID) && !b.holds(made.ArtifactID) })
		if j = r.redo(cubeapi.RedoRequest{TemplateID: "app", FailedOnly: true}); j.Status != "READY" || j.TemplateStatus != "READY" || !b.holds(j.ArtifactID) {
			t.Errorf("job: %+v", j)
		}
	})
}
