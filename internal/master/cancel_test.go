package master_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// taken waits until the centre has the build of a job and returns it.
func (r *rig) taken(jobID string) (q cubeapi.TCBuildRequest) {
	r.t.Helper()
	eventually(r.t, "the centre has the job", func() bool {
		for _, b := range r.center.builds() {
			if b.JobID == jobID {
				q = b
			}
		}
		return q.JobID != ""
	})
	return q
}

// submitIdle submits a job that the centre only takes.
func (r *rig) submitIdle(change ...func(*cubeapi.FromImageRequest)) (*cubeapi.Job, cubeapi.TCBuildRequest) {
	r.t.Helper()
	r.center.set(func(c *fakeCenter) { c.idle = true })
	j, err := r.api.FromImage(r.t.Context(), image(change...))
	must(r.t, err)
	return j, r.taken(j.JobID)
}

func (r *rig) update(do func(ctx context.Context, tx *store.Tx) error) {
	r.t.Helper()
	must(r.t, r.db.Update(r.t.Context(), func(tx *store.Tx) error { return do(r.t.Context(), tx) }))
}

// claimed gives a job's build to so many builders, one after another; the lease
// of the last one lasts for the given time.
func (r *rig) claimed(jobID string, builders int, ttl time.Duration) (fences []lease.Fence) {
	r.t.Helper()
	r.update(func(ctx context.Context, tx *store.Tx) error {
		fences = nil
		for range builders {
			for _, f := range fences {
				if err := tx.Release(ctx, f); err != nil && !errors.Is(err, fault.StaleController) {
					return err
				}
			}
			l, err := tx.Acquire(ctx, template.BuildSubject(template.JobID(jobID)), "builder-"+string(rune('a'+len(fences))), ttl)
			if err != nil {
				return err
			}
			fences = append(fences, l.Fence())
		}
		return nil
	})
	return fences
}

func building(rep cubeapi.JobReport) cubeapi.JobReport {
	rep.Status, rep.Phase, rep.Progress = "RUNNING", "BUILDING_EXT4", 40
	return rep
}

// artifactGone waits until the bytes of an artifact were let go, and its row.
func (r *rig) artifactGone(id string) {
	r.t.Helper()
	eventually(r.t, "the bytes that nobody needs go", func() bool { return slices.Contains(r.center.removed(), id) })
	eventually(r.t, "their placements too", func() bool {
		var list []template.Placement
		r.view(func(ctx context.Context, tx *store.Tx) (err error) {
			list = nil
			for i := range 3 {
				of, err := templatedb.PlacementsOfHost(ctx, tx, hostID(i))
				if err != nil {
					return err
				}
				list = append(list, of...)
			}
			return nil
		})
		return len(list) == 0
	})
}

// A job can be cancelled wherever it stands, and nothing of it is left.
func TestAJobIsCancelledInEachState(t *testing.T) {
	for name, stand := range map[string]func(t *testing.T, r *rig) *cubeapi.Job{
		"queued": func(_ *testing.T, r *rig) *cubeapi.Job {
			j, _ := r.submitIdle(alias("gone"))
			return j
		},
		"building": func(t *testing.T, r *rig) *cubeapi.Job {
			j, _ := r.submitIdle(alias("gone"))
			must(t, r.center.report.Job(t.Context(), j.JobID, building(cubeapi.JobReport{})))
			return j
		},
		"distributing": func(t *testing.T, r *rig) *cubeapi.Job {
			j, err := r.api.FromImage(t.Context(), image(alias("gone")))
			must(t, err)
			return j
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) {
				r := newRig(t, dsn, func(c *config.Config) { c.Master.DistributeWorkers, c.Master.DistributeTimeout = 1, 30*time.Second })
				r.start()
				hosts := []*fakeHost{r.host(0, plenty), r.host(1, plenty)}
				began := make(chan struct{}, 2)
				for _, h := range hosts {
					h.set(func(h *fakeHost) {
						h.ensure = func(ctx context.Context) error { began <- struct{}{}; <-ctx.Done(); return ctx.Err() }
					})
				}
				j := stand(t, r)
				if name == "distributing" {
					wait(t, "a host is called", began)
				}
				got, err := r.api.CancelJob(t.Context(), j.JobID)
				must(t, err)
				if got.Status != "FAILED" || got.ErrorCode != "build_cancelled" || !strings.Contains(got.ErrorMessage, "cancelled") || !strings.Contains(got.ErrorMessage, "by a user") {
					t.Errorf("job: %+v", got)
				}
				again, err := r.api.CancelJob(t.Context(), j.JobID)
				must(t, err)
				if again.ErrorMessage != got.ErrorMessage || again.UpdatedAt != got.UpdatedAt {
					t.Errorf("the second cancel changed the job: %+v", again)
				}
				switch name {
				case "building":
					refused(t, r.center.report.Job(t.Context(), j.JobID, building(cubeapi.JobReport{})), fault.StateConflict)
				case "distributing":
					now, err := r.api.Job(t.Context(), j.JobID)
					must(t, err)
					r.artifactGone(now.ArtifactID)
					if n := hosts[0].called("ensure") + hosts[1].called("ensure"); n != 1 || hosts[0].holds(now.ArtifactID) || hosts[1].holds(now.ArtifactID) {
						t.Errorf("%d hosts were called", n)
					}
				}
				nothingLeft(t, r, j, "gone")
				must(t, r.api.DeleteTemplate(t.Context(), j.TemplateID))
				_, err = r.api.Job(t.Context(), j.JobID)
				refused(t, err, fault.JobNotFound)
			})
		})
	}
}

// A job that is built and waits for its turn to be distributed never is.
func TestABuiltJobIsCancelled(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		h := r.host(0, plenty)
		j, q := r.submitIdle()
		good := r.center.built(q)
		// Whoever distributes waits for this.
		_, err := r.db.WithLock(t.Context(), "paddock_artifact_"+good.ArtifactID, 20*time.Second, func(context.Context) error {
			must(t, r.center.report.Job(t.Context(), j.JobID, good))
			_, err := r.api.CancelJob(t.Context(), j.JobID)
			return err
		})
		must(t, err)
		r.artifactGone(good.ArtifactID)
		nothingLeft(t, r, j, "none")
		if now := r.ended(j.JobID); now.ErrorCode != "build_cancelled" || h.called("ensure") != 0 {
			t.Errorf("job %+v, hosts called %d times", now, h.called("ensure"))
		}
	})
}

// What a host took although its job was cancelled meanwhile is taken from it.
func TestBytesThatCameTooLateAreTakenAway(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	began, goOn := make(chan struct{}), make(chan struct{})
	h.set(func(h *fakeHost) { h.ensure = func(context.Context) error { close(began); <-goOn; return nil } })
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	wait(t, "the host is called", began)
	_, err = r.api.CancelJob(t.Context(), j.JobID)
	must(t, err)
	close(goOn)
	now, err := r.api.Job(t.Context(), j.JobID)
	must(t, err)
	r.artifactGone(now.ArtifactID)
	eventually(t, "the host is clean", func() bool { return !h.holds(now.ArtifactID) })
	nothingLeft(t, r, j, "none")
}

func TestWhatCannotBeCancelled(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	ready := r.template(alias("stays"))
	_, err := r.api.CancelJob(t.Context(), ready.JobID)
	refused(t, err, fault.StateConflict)
	if !strings.Contains(err.Error(), "READY") {
		t.Errorf("the refusal does not name the status: %v", err)
	}
	if d, err := r.api.Template(t.Context(), "stays"); err != nil || d.Status != "READY" {
		t.Errorf("template: %+v, %v", d, err)
	}
	failed, _ := r.submitIdle()
	must(t, r.center.report.Job(t.Context(), failed.JobID, cubeapi.JobReport{Status: "FAILED", ErrorCode: "image_not_found", ErrorMessage: "none"}))
	_, err = r.api.CancelJob(t.Context(), failed.JobID)
	refused(t, err, fault.StateConflict)
	_, err = r.api.CancelJob(t.Context(), "job-nobody")
	refused(t, err, fault.JobNotFound)
	_, err = cubeapi.NewClient(r.front.URL, "guess").CancelJob(t.Context(), failed.JobID)
	refused(t, err, fault.Unauthenticated)
}

// After "no space left" a job of the public system stays PENDING for ever,
// cannot be cancelled and cannot be deleted (issue 66 there).
func TestAJobThatNobodyBuildsIsCancelledAndDeleted(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.center.set(func(c *fakeCenter) { c.refuse = fault.New(fault.DiskFull, "work directory") })
	j, err := r.api.FromImage(t.Context(), image(alias("full"), func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "u", "p" }))
	must(t, err)
	refused(t, r.api.DeleteTemplate(t.Context(), j.TemplateID), fault.BuildInProgress)
	_, err = r.api.CancelJob(t.Context(), j.JobID)
	must(t, err)
	if r.m.Lends(j.JobID) {
		t.Error("the credentials of a cancelled job are kept")
	}
	must(t, r.api.DeleteTemplate(t.Context(), j.TemplateID))
	nothingLeft(t, r, j, "full")
}

// Only the builder that has a job may report on it: one that was taken for dead
// and comes back changes nothing, whatever it says.
func TestASupersededBuilderIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.host(0, plenty)
		j, q := r.submitIdle()
		by := func(f lease.Fence, rep cubeapi.JobReport) cubeapi.JobReport {
			rep.Holder, rep.Epoch = f.Holder, int64(f.Epoch)
			return rep
		}
		fences := r.claimed(j.JobID, 2, time.Hour)
		good := r.center.built(q)
		bad := cubeapi.JobReport{Status: "FAILED", ErrorCode: "image_not_found", ErrorMessage: "none"}
		for name, f := range map[string]lease.Fence{
			"an earlier one":          fences[0],
			"one of another epoch":    {Holder: fences[1].Holder, Epoch: 1},
			"one of a later epoch":    {Holder: fences[1].Holder, Epoch: 3},
			"another of this epoch":   {Holder: "somebody", Epoch: fences[1].Epoch},
			"one that names no epoch": {Holder: fences[1].Holder},
			"one that names nothing":  {},
		} {
			for _, rep := range []cubeapi.JobReport{building(cubeapi.JobReport{}), good, bad} {
				if err := r.center.report.Job(t.Context(), j.JobID, by(f, rep)); fault.Of(err) != fault.StaleController {
					t.Errorf("%s says %s: %v", name, rep.Status, err)
				}
			}
		}
		now, err := r.api.Job(t.Context(), j.JobID)
		must(t, err)
		if now.Status != "PENDING" || now.Progress != 0 {
			t.Errorf("job: %+v", now)
		}
		if _, err := r.api.Artifact(t.Context(), good.ArtifactID); fault.Of(err) != fault.ArtifactNotFound {
			t.Errorf("a superseded builder registered an artifact: %v", err)
		}
		must(t, r.center.report.Job(t.Context(), j.JobID, by(fences[1], building(cubeapi.JobReport{}))))
		r.update(func(ctx context.Context, tx *store.Tx) error { return tx.Release(ctx, fences[1]) })
		refused(t, r.center.report.Job(t.Context(), j.JobID, by(fences[1], good)), fault.StaleController) // its time is over
		third := r.claimed(j.JobID, 1, time.Hour)[0]
		must(t, r.center.report.Job(t.Context(), j.JobID, by(third, good)))
		if now := r.ended(j.JobID); now.Status != "READY" {
			t.Errorf("job: %+v", now)
		}
		must(t, r.api.DeleteTemplate(t.Context(), j.TemplateID))
		r.view(func(ctx context.Context, tx *store.Tx) error {
			if _, found, err := tx.LeaseOf(ctx, third.Subject); err != nil || found {
				t.Errorf("the lease outlives its job: %v", err)
			}
			lines, err := templatedb.JobLog(ctx, tx, template.JobID(j.JobID), 0, 10)
			if len(lines) > 0 {
				t.Errorf("the log outlives its job: %+v", lines)
			}
			return err
		})
	})
}

func TestAJobSaysWhereItStandsInTheQueue(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		priority := func(n int) func(*cubeapi.FromImageRequest) {
			return func(q *cubeapi.FromImageRequest) { q.Priority = n }
		}
		var jobs []*cubeapi.Job
		for i, n := range []int{0, 0, 5, -100, 100} {
			j, _ := r.submitIdle(priority(n), spec(i))
			jobs = append(jobs, j)
		}
		stand := func(want ...int) {
			t.Helper()
			length := 0
			for _, n := range want {
				length = max(length, n)
			}
			for i, j := range jobs {
				now, err := r.api.Job(t.Context(), j.JobID)
				must(t, err)
				if now.QueuePosition != want[i] || want[i] > 0 && now.QueueLength != length {
					t.Errorf("job %d, priority %d: %d of %d, want %d of %d", i, now.Priority, now.QueuePosition, now.QueueLength, want[i], length)
				}
			}
		}
		stand(3, 4, 2, 5, 1)
		must(t, r.center.report.Job(t.Context(), jobs[4].JobID, building(cubeapi.JobReport{})))
		_, err := r.api.CancelJob(t.Context(), jobs[0].JobID)
		must(t, err)
		stand(0, 2, 1, 3, 0)
		for _, n := range []int{-101, 101} {
			_, err := r.api.FromImage(t.Context(), image(priority(n)))
			refused(t, err, fault.InvalidInput)
		}
	})
}
