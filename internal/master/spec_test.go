package master_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// I1 (spec section 3.7): of one template spec one job is active, whichever
// master is asked, also when it is built and not yet distributed.
func TestOneActiveJobPerSpec(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		second, front := r.process(), newFace(t)
		front.show(second.Handler())
		other := cubeapi.NewClient(front.URL, apiKey)
		r.center.set(func(c *fakeCenter) { c.idle = true })
		apis := []*cubeapi.Client{r.api, other}
		request := func(id string, change ...func(*cubeapi.FromImageRequest)) cubeapi.FromImageRequest {
			return image(append(change, alias("base"), func(q *cubeapi.FromImageRequest) { q.RequestID = id })...)
		}
		var jobs [8]*cubeapi.Job
		var twins sync.WaitGroup
		for i := range jobs {
			twins.Go(func() {
				j, err := apis[i%2].FromImage(t.Context(), request("req-"+string(rune('a'+i))))
				if err != nil {
					t.Error(err)
				}
				jobs[i] = j
			})
		}
		twins.Wait()
		for _, j := range jobs {
			if j == nil || j.JobID != jobs[0].JobID || j.TemplateID != jobs[0].TemplateID {
				t.Fatalf("one spec got %+v and %+v", jobs[0], j)
			}
		}
		otherwise := map[string]func(*cubeapi.FromImageRequest){
			"alias":    alias("another"),
			"priority": func(q *cubeapi.FromImageRequest) { q.Priority = 3 },
		}
		conflicts := func(state string) {
			t.Helper()
			for what, change := range otherwise {
				q := request("req-other-" + what)
				change(&q)
				_, err := other.FromImage(t.Context(), q)
				refused(t, err, fault.BuildInProgress)
				if !strings.Contains(err.Error(), jobs[0].JobID) {
					t.Errorf("%s, another %s: %v does not name the job", state, what, err)
				}
			}
		}
		conflicts("queued")
		apart, err := r.api.FromImage(t.Context(), request("req-spec", spec(1)))
		must(t, err)
		if apart.JobID == jobs[0].JobID {
			t.Error("another spec is the same job")
		}
		// Built, and on its way to a host.
		asked, gate := make(chan struct{}, 100), make(chan struct{})
		r.host(0, plenty).set(func(h *fakeHost) {
			h.ensure = func(ctx context.Context) error {
				asked <- struct{}{}
				select {
				case <-gate:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		must(t, r.center.report.Job(t.Context(), jobs[0].JobID, r.center.built(r.taken(jobs[0].JobID))))
		wait(t, "the host is asked", asked)
		conflicts("built")
		close(gate)
		if j := r.ended(jobs[0].JobID); j.Status != cubeapi.StatusReady {
			t.Fatalf("job: %+v", j)
		}
		// What was said stays said, and the spec is free.
		for i := range jobs {
			j, err := apis[(i+1)%2].FromImage(t.Context(), request("req-"+string(rune('a'+i))))
			must(t, err)
			if j.JobID != jobs[0].JobID {
				t.Errorf("request %d is answered with job %s, was %s", i, j.JobID, jobs[0].JobID)
			}
		}
		changed := request("req-b", spec(2))
		_, err = r.api.FromImage(t.Context(), changed)
		refused(t, err, fault.SubmissionReused)
		again, err := r.api.FromImage(t.Context(), request("req-new"))
		must(t, err)
		if again.JobID == jobs[0].JobID {
			t.Error("an ended job was joined")
		}
	})
}

// A request that joined a job whose template was deleted since is a new one.
func TestARequestOutlivesTheJobItJoined(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	first, q := r.submitIdle()
	join := image(func(q *cubeapi.FromImageRequest) { q.RequestID = "req-join" })
	j, err := r.api.FromImage(t.Context(), join)
	must(t, err)
	if j.JobID != first.JobID {
		t.Fatalf("job %s, want %s", j.JobID, first.JobID)
	}
	must(t, r.center.report.Job(t.Context(), first.JobID, r.center.built(q)))
	made := r.ended(first.JobID)
	must(t, r.api.DeleteTemplate(t.Context(), first.TemplateID))
	r.center.set(func(c *fakeCenter) { c.idle = false })
	r.gone(first.TemplateID, made.ArtifactID) // else its bytes, which the next has too, are still on their way out
	j, err = r.api.FromImage(t.Context(), join)
	must(t, err)
	if j = r.ended(j.JobID); j.JobID == first.JobID || j.Status != cubeapi.StatusReady {
		t.Errorf("job: %+v", j)
	}
}

// The next version of a template takes its alias when it is ready; of two that
// are made, the one that was asked for last has it, whichever ends first.
func TestTheLastToAskHasTheAlias(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.host(0, plenty)
		one := r.template(alias("app"))
		holds := func(want string) {
			t.Helper()
			d, err := r.api.Template(t.Context(), "app")
			must(t, err)
			if d.TemplateID != want {
				t.Errorf("alias app is %s, want %s", d.TemplateID, want)
			}
		}
		two, q2 := r.submitIdle(alias("app"), spec(2))
		three, q3 := r.submitIdle(alias("app"), spec(3))
		four, q4 := r.submitIdle(alias("app"), spec(4))
		holds(one.TemplateID)
		must(t, r.center.report.Job(t.Context(), three.JobID, r.center.built(q3)))
		if j := r.ended(three.JobID); j.Status != cubeapi.StatusReady || j.ErrorMessage != "" {
			t.Fatalf("job: %+v", j)
		}
		holds(three.TemplateID)
		if d, err := r.api.Template(t.Context(), one.TemplateID); err != nil || d.Alias != "" || d.Status != "READY" {
			t.Errorf("the first: %+v, %v", d, err)
		}
		must(t, r.center.report.Job(t.Context(), two.JobID, r.center.built(q2)))
		if j := r.ended(two.JobID); j.Status != cubeapi.StatusReady || !strings.Contains(j.ErrorMessage, three.TemplateID) {
			t.Errorf("one that was asked for earlier: %+v", j)
		}
		holds(three.TemplateID)
		// What an operator said after the fourth was asked for counts more.
		_, err := r.api.SetAlias(t.Context(), one.TemplateID, "app")
		must(t, err)
		must(t, r.center.report.Job(t.Context(), four.JobID, r.center.built(q4)))
		if j := r.ended(four.JobID); j.Status != cubeapi.StatusReady || j.ErrorMessage == "" {
			t.Errorf("the fourth: %+v", j)
		}
		holds(one.TemplateID)
		// Also when it has the alias already.
		five, q5 := r.submitIdle(alias("app"), spec(5))
		_, err = r.api.SetAlias(t.Context(), one.TemplateID, "app")
		must(t, err)
		must(t, r.center.report.Job(t.Context(), five.JobID, r.center.built(q5)))
		if j := r.ended(five.JobID); j.Status != cubeapi.StatusReady || j.ErrorMessage == "" {
			t.Errorf("the fifth: %+v", j)
		}
		holds(one.TemplateID)
		// A create that is done again asks no later than it did.
		six, _ := r.submitIdle(alias("app"), spec(6))
		must(t, r.center.report.Job(t.Context(), six.JobID, cubeapi.JobReport{Status: "FAILED", ErrorCode: "registry_unavailable", ErrorMessage: "away"}))
		r.ended(six.JobID)
		seven, q7 := r.submitIdle(alias("app"), spec(7))
		must(t, r.center.report.Job(t.Context(), seven.JobID, r.center.built(q7)))
		r.ended(seven.JobID)
		holds(seven.TemplateID)
		r.center.set(func(c *fakeCenter) { c.idle = false })
		for range 2 { // and so does one that does a redo again
			if j := r.redo(cubeapi.RedoRequest{TemplateID: six.TemplateID}); j.Status != cubeapi.StatusReady {
				t.Errorf("the sixth: %+v", j)
			}
			holds(seven.TemplateID)
		}
	})
}
