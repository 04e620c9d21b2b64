package master_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
)

func broken(context.Context) error { return fault.New(fault.DiskFull, "artifact") }

// What becomes of the template, of its job and of each replica depends on how
// many of its hosts took it: all, some or none.
func TestTheMatrixOfOutcomes(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		a, b := r.host(0, plenty), r.host(1, plenty)
		submit := func(change ...func(*cubeapi.FromImageRequest)) *cubeapi.Job {
			j, err := r.api.FromImage(t.Context(), image(change...))
			must(t, err)
			return r.ended(j.JobID)
		}

		b.set(func(h *fakeHost) { h.ensure = broken })
		j := submit(alias("some"))
		if j.Status != "READY" || j.TemplateStatus != "PARTIALLY_READY" || j.ExpectedNodeCount != 2 || j.ReadyNodeCount != 1 || j.FailedNodeCount != 1 {
			t.Errorf("some hosts: %+v", j)
		}
		d, err := r.api.Template(t.Context(), "some")
		must(t, err)
		if d.Status != "PARTIALLY_READY" || len(d.Replicas) != 2 || d.Replicas[0].Status != "READY" || d.Replicas[1].Status != "FAILED" || !d.Replicas[1].CleanupRequired || !strings.Contains(d.Replicas[1].ErrorMessage, "disk_full") {
			t.Errorf("template: %+v", d)
		}

		a.set(func(h *fakeHost) { h.ensure = broken })
		other := func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/other:1" }
		j = submit(alias("none"), other)
		if j.Status != "FAILED" || j.ErrorCode != "disk_full" || j.ExpectedNodeCount != 2 || j.ReadyNodeCount != 0 || j.FailedNodeCount != 2 {
			t.Errorf("no host: %+v", j)
		}
		nothingLeft(t, r, j, "none")
		artifact := j.ArtifactID
		eventually(t, "the bytes that nobody needs go", func() bool {
			for _, id := range r.center.removed() {
				if id == artifact {
					return true
				}
			}
			return false
		})

		a.set(func(h *fakeHost) { h.ensure = nil })
		b.set(func(h *fakeHost) { h.ensure = nil })
		j = submit(alias("all"))
		if j.Status != "READY" || j.TemplateStatus != "READY" || j.ReadyNodeCount != 2 {
			t.Errorf("all hosts: %+v", j)
		}
		j = submit(func(q *cubeapi.FromImageRequest) { q.DistributionScope = []string{string(b.id)} })
		if d, err = r.api.Template(t.Context(), j.TemplateID); err != nil || len(d.Replicas) != 1 || d.Replicas[0].NodeID != string(b.id) {
			t.Errorf("a scope of one host: %+v %v", d, err)
		}
		r.silence(a)
		r.silence(b)
		j = submit(alias("nowhere"), spec(1))
		if j.Status != "FAILED" || j.ErrorCode != "no_template_hosts" || j.ExpectedNodeCount != 0 {
			t.Errorf("no target: %+v", j)
		}
		nothingLeft(t, r, j, "nowhere")
	})
}

// nothingLeft demands that a failed job left no template, replica or alias.
func nothingLeft(t *testing.T, r *rig, j *cubeapi.Job, alias string) {
	t.Helper()
	_, err := r.api.Template(t.Context(), alias)
	refused(t, err, fault.TemplateNotFound)
	r.view(func(ctx context.Context, tx *store.Tx) error {
		if _, err := templatedb.GetDefinition(ctx, tx, tplID(j)); fault.Of(err) != fault.TemplateNotFound {
			t.Errorf("a definition is left: %v", err)
		}
		list, err := templatedb.ListReplicas(ctx, tx, tplID(j))
		if len(list) > 0 {
			t.Errorf("replicas are left: %+v", list)
		}
		return err
	})
}

// A master that ends at any step of a resume leaves a job that the next one
// brings to its end, with one template and one replica on each host.
func TestAResumeSurvivesACrashAtEachStep(t *testing.T) {
	for _, step := range []string{
		"master.built.after_commit", "master.resume.after_targets", "master.resume.after_host", "master.resume.after_distribute", "master.resume.after_publish",
	} {
		t.Run(step, func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) {
				r := newRig(t, dsn)
				crash, reached := crashAt(step)
				r.start(crash)
				a := r.host(0, plenty)
				j, err := r.api.FromImage(t.Context(), image(alias("base")))
				must(t, err)
				wait(t, step, reached)
				r.crash()
				r.start()
				if j = r.ended(j.JobID); j.Status != "READY" || j.ReadyNodeCount != 1 {
					t.Fatalf("job: %+v", j)
				}
				d, err := r.api.Template(t.Context(), "base")
				must(t, err)
				if d.Status != "READY" || len(d.Replicas) != 1 || !a.holds(j.ArtifactID) {
					t.Errorf("template: %+v", d)
				}
				must(t, r.api.DeleteTemplate(t.Context(), "base"))
				eventually(t, "nothing is left", func() bool { return !a.holds(j.ArtifactID) && len(r.center.removed()) > 0 })
			})
		})
	}
}

// After a start hosts need a while to report: a job that was built before is
// not failed because nobody is known to be healthy yet.
func TestAStartWaitsForItsHosts(t *testing.T) {
	r := newRig(t, sqlite(t))
	crash, reached := crashAt("master.built.after_commit")
	r.start(crash)
	h := r.host(0, plenty)
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	wait(t, "built", reached)
	r.crash()
	r.silence(h)
	r.start(func(p *running) { p.HostGrace(time.Hour) })
	tried := make(chan struct{})
	go func() { // a few sweeps
		defer close(tried)
		<-time.After(150 * time.Millisecond) // only that nothing happens is waited for
	}()
	wait(t, "some sweeps", tried)
	if now, err := r.api.Job(t.Context(), j.JobID); err != nil || now.Status != "BUILT" {
		t.Fatalf("job: %+v %v", now, err)
	}
	h.speak()
	if j = r.ended(j.JobID); j.Status != "READY" {
		t.Errorf("job: %+v", j)
	}
}

// Two masters on one database: a job is distributed by one of them at a time,
// and either may end it.
func TestTwoMastersShareTheJobs(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		h := r.host(0, plenty)
		second := r.process()
		other := newFace(t)
		other.show(second.Handler())
		apis := []*cubeapi.Client{r.api, cubeapi.NewClient(other.URL, apiKey)}
		var jobs []*cubeapi.Job
		for i := range 6 {
			j, err := apis[i%2].FromImage(t.Context(), image(spec(i), func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/shared:" + string(rune('a'+i%3)) }))
			must(t, err)
			jobs = append(jobs, j)
		}
		for _, j := range jobs {
			if j = r.ended(j.JobID); j.Status != "READY" {
				t.Errorf("job: %+v", j)
			}
		}
		// Three images; each job asks once, and a repeat by the other master
		// would ask again.
		if n := h.called("ensure"); n != len(jobs) {
			t.Errorf("the host was asked %d times for %d jobs", n, len(jobs))
		}
	})
}

// A stop does not wait for a host, and the next start goes on.
func TestAStopBreaksOffADistribution(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Master.DistributeTimeout = time.Hour })
	m := r.start()
	h := r.host(0, plenty)
	asked := make(chan struct{})
	h.set(func(h *fakeHost) {
		h.ensure = func(ctx context.Context) error { close(asked); <-ctx.Done(); return ctx.Err() }
	})
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	wait(t, "the host is asked", asked)
	began := time.Now()
	m.stop()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the stop took %s", took)
	}
	h.set(func(h *fakeHost) { h.ensure = nil })
	r.start()
	if j = r.ended(j.JobID); j.Status != "READY" {
		t.Errorf("job: %+v", j)
	}
}
