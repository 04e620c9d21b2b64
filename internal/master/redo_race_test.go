package master_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// One job works on a template at a time, whichever master was asked: the same
// request gets the same job, another is refused.
func TestTwoMastersHaveOneRedo(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn, func(c *config.Config) { c.Master.DistributeTimeout = time.Minute })
		r.start()
		second, other := r.process(), newFace(t)
		other.show(second.Handler())
		apis := []*cubeapi.Client{r.api, cubeapi.NewClient(other.URL, apiKey)}
		h := r.host(0, plenty)
		made := r.template()
		for round := range 5 {
			gate := make(chan struct{})
			h.set(func(h *fakeHost) {
				h.ensure = func(ctx context.Context) error {
					select {
					case <-gate:
					case <-ctx.Done():
					}
					return ctx.Err()
				}
			})
			var mu sync.Mutex
			jobs, busy := map[string]string{}, 0
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					name := fmt.Sprintf("round-%d-%d", round, i/2%2) // two requests, each to both masters
					a, err := apis[i%2].Redo(t.Context(), cubeapi.RedoRequest{RequestID: name, TemplateID: made.TemplateID})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case errors.Is(err, fault.BuildInProgress):
						busy++
					case err != nil:
						t.Error(err)
					case jobs[name] != "" && jobs[name] != a.Job.JobID:
						t.Errorf("%s has jobs %s and %s", name, jobs[name], a.Job.JobID)
					default:
						jobs[name] = a.Job.JobID
					}
				})
			}
			all.Wait()
			if len(jobs) != 1 || busy != 4 {
				t.Errorf("jobs %v, %d refused", jobs, busy)
			}
			if n := len(r.jobs(made.TemplateID)); n != round+2 {
				t.Errorf("round %d: %d jobs", round, n)
			}
			refused(t, r.api.DeleteTemplate(t.Context(), made.TemplateID), fault.BuildInProgress)
			close(gate)
			for name, id := range jobs {
				if j := r.ended(id); j.Status != "READY" {
					t.Errorf("%+v", j)
				}
				a, err := apis[round%2].Redo(t.Context(), cubeapi.RedoRequest{RequestID: name, TemplateID: made.TemplateID})
				if err != nil || a.Job.JobID != id {
					t.Errorf("the same request later: %+v %v", a.Job, err)
				}
				_, err = r.api.Redo(t.Context(), cubeapi.RedoRequest{RequestID: name, TemplateID: made.TemplateID, FailedOnly: true})
				refused(t, err, fault.SubmissionReused)
			}
		}
	})
}

// A master that ends in the middle of a redo leaves a job that the next one
// brings to its end.
func TestARedoSurvivesACrashAtEachStep(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, step := range []string{"master.redo.after_commit", "master.resume.after_targets", "master.resume.after_host", "master.resume.after_distribute", "master.resume.after_publish"} {
			t.Run(fmt.Sprintf("%s lost %t", step, lost), func(t *testing.T) {
				r := newRig(t, sqlite(t))
				r.start()
				r.host(0, plenty)
				made := r.template(alias("app"))
				r.crash()
				crash, reached := crashAt(step)
				r.start(crash)
				if lost {
					r.center.set(func(c *fakeCenter) { delete(c.bytes, made.ArtifactID) })
				}
				q := cubeapi.RedoRequest{RequestID: "once", TemplateID: "app"}
				_, _ = r.api.Redo(t.Context(), q) // the answer may be lost
				wait(t, step, reached)
				r.crash()
				r.start()
				if j := r.redo(q); j.Status != "READY" || j.AttemptNo != 2 || j.TemplateStatus != "READY" {
					t.Errorf("job: %+v", j)
				}
				if d := r.shown("app"); d.Status != "READY" || len(d.Replicas) != 1 {
					t.Errorf("template: %+v", d)
				}
			})
		}
	}
}

// A request that reaches two masters at once is one job.
func TestTwoMastersHaveOneCreate(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		second, other := r.process(), newFace(t)
		other.show(second.Handler())
		apis := []*cubeapi.Client{r.api, cubeapi.NewClient(other.URL, apiKey)}
		r.host(0, plenty)
		for round := range 4 {
			q := image(func(q *cubeapi.FromImageRequest) { q.RequestID = fmt.Sprintf("create-%d", round) })
			var mu sync.Mutex
			jobs := map[string]bool{}
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					j, err := apis[i%2].FromImage(t.Context(), q)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Error(err)
						return
					}
					jobs[j.JobID] = true
				})
			}
			all.Wait()
			if len(jobs) != 1 {
				t.Errorf("round %d: jobs %v", round, jobs)
			}
			for id := range jobs {
				j := r.ended(id)
				if j.Status != "READY" || len(r.jobs(j.TemplateID)) != 1 {
					t.Errorf("job: %+v", j)
				}
			}
		}
	})
}

// What becomes of job and template, by how many hosts take it again and how
// many had it before.
func TestTheMatrixOfRedos(t *testing.T) {
	for _, c := range []struct {
		name           string
		had, take      [2]bool // hosts that hold it before the redo; hosts that take it
		job, template  string
		ready, replica int // hosts of the job, replicas of the template
	}{
		{"all had, all take", [2]bool{true, true}, [2]bool{true, true}, "READY", "READY", 2, 2},
		{"none had, all take", [2]bool{}, [2]bool{true, true}, "READY", "READY", 2, 2},
		{"one had, all take", [2]bool{true, false}, [2]bool{true, true}, "READY", "READY", 2, 2},
		{"all had, one takes", [2]bool{true, true}, [2]bool{true, false}, "READY", "READY", 1, 2},
		{"none had, one takes", [2]bool{}, [2]bool{true, false}, "READY", "PARTIALLY_READY", 1, 1},
		{"one had, the other takes", [2]bool{true, false}, [2]bool{false, true}, "READY", "READY", 1, 2},
		{"all had, none takes", [2]bool{true, true}, [2]bool{}, "FAILED", "READY", 0, 2},
		{"one had, none takes", [2]bool{true, false}, [2]bool{}, "FAILED", "PARTIALLY_READY", 0, 1},
		{"none had, none takes", [2]bool{}, [2]bool{}, "FAILED", "FAILED", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, sqlite(t))
			r.start()
			hosts := []*fakeHost{r.host(0, plenty), r.host(1, plenty)}
			made := r.template(alias("app"))
			r.reported(made.ArtifactID, hosts...)
			for i, h := range hosts {
				h.set(func(h *fakeHost) {
					if !c.had[i] {
						clear(h.artifacts)
					}
					if !c.take[i] {
						h.ensure = broken
					}
				})
				if !c.had[i] {
					eventually(t, "the host reports its loss", func() bool { return r.reports(h, made.ArtifactID) == 0 })
				}
			}
			j := r.redo(cubeapi.RedoRequest{TemplateID: "app"})
			if j.Status != c.job || j.TemplateStatus != c.template || j.ExpectedNodeCount != 2 || j.ReadyNodeCount != c.ready || j.FailedNodeCount != 2-c.ready {
				t.Errorf("job: %+v", j)
			}
			ready := 0
			for _, p := range r.shown("app").Replicas {
				if p.Status == "READY" {
					ready++
				}
			}
			if ready != c.replica {
				t.Errorf("%d replicas are ready, want %d", ready, c.replica)
			}
		})
	}
}
