package templatecenter_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/internal/templatecenter"
)

// second starts another template centre on the same database and store, with a
// work directory of its own.
func (r *rig) second() *rig {
	other := *r
	other.deps.Config.TemplateCenter.WorkDir = filepath.Join(r.t.TempDir(), "work")
	other.deps.Config.TemplateCenter.CacheDir = filepath.Join(r.t.TempDir(), "layers")
	other.start()
	return &other
}

// quicken starts the centre anew with short leases.
func (r *rig) quicken() {
	r.stop()
	r.quick = true
	r.start()
}

// privately makes a request one with credentials.
func privately(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "ann", "pw" }

// dead makes a job look as if builders had died of it: so many had it, and the
// lease of the last is over. It stands in the given state.
func (r *rig) dead(b cubeapi.TCBuildRequest, state template.JobState, builders int) {
	r.t.Helper()
	r.update(func(ctx context.Context, tx *store.Tx) error {
		for i := range builders {
			l, err := tx.Acquire(ctx, template.BuildSubject(template.JobID(b.JobID)), fmt.Sprintf("dead-%d", i), time.Hour)
			if err != nil {
				return err
			}
			if err := tx.Release(ctx, l.Fence()); err != nil {
				return err
			}
		}
		if state != template.JobBuilding {
			return nil
		}
		j, err := templatedb.GetJob(ctx, tx, template.JobID(b.JobID))
		if err == nil {
			_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobStarted)
		}
		return err
	})
}

// leaseOf returns the lease on a job.
func (r *rig) leaseOf(b cubeapi.TCBuildRequest) (l lease.Lease, hold template.Hold) {
	r.t.Helper()
	r.update(func(ctx context.Context, tx *store.Tx) (err error) {
		hold, l, err = templatedb.HoldOf(ctx, tx, template.Job{ID: template.JobID(b.JobID)})
		return err
	})
	return l, hold
}

// order waits for the outcome of jobs and returns in which order they were built.
func (r *rig) order(jobs ...cubeapi.TCBuildRequest) (ids []string) {
	r.t.Helper()
	var began []time.Time
	for _, b := range jobs {
		if out := r.master.outcome(b.JobID); out.Status != cubeapi.StatusBuilt {
			r.t.Errorf("outcome %+v", out)
		}
		first := r.master.of(b.JobID)[0]
		at := time.UnixMilli(first.Log[0].AtMS)
		i, _ := slices.BinarySearchFunc(began, at, time.Time.Compare)
		began, ids = slices.Insert(began, i, at), slices.Insert(ids, i, b.JobID)
	}
	return ids
}

// The rows are the queue: nobody need hand a job over. The highest priority is
// first, and of equal ones whoever came first.
func TestThePriorityAndThenTheTimeDecide(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, func(d *templatecenter.Deps) { d.Config.TemplateCenter.MaxConcurrentBuilds = 1 })
		r.gate.shut()
		first := r.job(r.image("first", "1"))
		r.submit(first)
		eventually(t, "the first build asks", func() bool { return r.gate.waiting() == 1 })
		var want [6]string
		var jobs []cubeapi.TCBuildRequest
		for i, c := range []struct{ priority, place int }{{0, 3}, {-5, 5}, {100, 0}, {0, 4}, {7, 1}, {7, 2}} {
			b := r.job(r.image("app", strings.Repeat("x", i+1)))
			r.update(func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.Exec(ctx, `UPDATE job SET priority = ? WHERE id = ?`, c.priority, b.JobID)
				return err
			})
			want[c.place], jobs = b.JobID, append(jobs, b)
		}
		r.update(func(ctx context.Context, tx *store.Tx) error {
			for i, id := range want {
				j, err := templatedb.GetJob(ctx, tx, template.JobID(id))
				if err != nil {
					return err
				}
				if place, err := templatedb.QueuePlace(ctx, tx, j); err != nil || place != i+1 {
					t.Errorf("job %d stands at %d, %v", i+1, place, err)
				}
			}
			return nil
		})
		expectMetric(t, r, "paddock_builds_waiting 6")
		r.gate.open()
		if got := r.order(jobs...); !slices.Equal(got, want[:]) {
			t.Errorf("order %v, want %v", got, want)
		}
		expectMetric(t, r, "paddock_build_wait_seconds_count 7")
		expectMetric(t, r, "paddock_builds_waiting 0")
	})
}

// Two centres take from one queue: each job has one builder, and neither has
// more builds than it may.
func TestTwoCentresBuildEachJobOnce(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		const limit, jobs = 2, 12
		r := newRig(t, db, func(d *templatecenter.Deps) { d.Config.TemplateCenter.MaxConcurrentBuilds = limit })
		other := r.second()
		var mu sync.Mutex
		builders := map[string]string{}
		running, most := map[string]int{}, 0
		r.master.set(func(jobID string, rep cubeapi.JobReport) int {
			mu.Lock()
			defer mu.Unlock()
			centre, _, _ := strings.Cut(rep.Holder, ".")
			if was, ok := builders[jobID]; ok && was != rep.Holder || rep.Epoch != 1 {
				t.Errorf("job %s is reported on by %s and %s, epoch %d", jobID, was, rep.Holder, rep.Epoch)
			} else if !ok {
				builders[jobID] = rep.Holder
				running[centre]++
				most = max(most, running[centre])
			}
			if rep.Status == cubeapi.StatusBuilt {
				running[centre]--
			}
			return 0
		})
		r.gate.shut()
		var list []cubeapi.TCBuildRequest
		for i := range jobs {
			b := r.job(r.image("app", strings.Repeat("x", i+1)))
			list = append(list, b)
			if i%2 == 0 {
				r.submit(b)
			} else {
				other.submit(b)
			}
		}
		eventually(t, "all builders have work", func() bool { return r.gate.waiting() == 2*limit })
		r.gate.open()
		for _, b := range list {
			if out := r.master.outcome(b.JobID); out.Status != cubeapi.StatusBuilt {
				t.Errorf("outcome %+v", out)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		centres := map[string]bool{}
		for _, holder := range builders {
			centre, _, _ := strings.Cut(holder, ".")
			centres[centre] = true
		}
		if most > limit || len(centres) != 2 || len(builders) != jobs {
			t.Errorf("%d builds at once in one centre, by %d centres, of %d jobs", most, len(centres), len(builders))
		}
	})
}

// A builder whose lease is another's stops, writes nothing any more, and leaves
// nothing, wherever it was.
func TestABuilderThatLostItsLeaseStops(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		for _, place := range []string{"pulling", "templatecenter.before_store"} {
			t.Run(place, func(t *testing.T) {
				r := newRig(t, db, nil)
				r.quicken()
				b := r.job(r.image("app", place))
				release := r.gate.open
				at := func() bool { return r.gate.waiting() == 1 }
				if place == "pulling" {
					r.gate.shut()
				} else {
					release = fail.Arm(place, "hang")
					at = func() bool { return fail.Visits(place) == 1 }
				}
				defer release()
				r.submit(b)
				eventually(t, "the build is there", at)
				l, _ := r.leaseOf(b)
				r.update(func(ctx context.Context, tx *store.Tx) error {
					if err := tx.Release(ctx, l.Fence()); err != nil {
						return err
					}
					_, err := tx.Acquire(ctx, l.Subject, "another", time.Hour)
					return err
				})
				told := len(r.master.of(b.JobID))
				if place != "pulling" {
					eventually(t, "it sees so", func() bool { return r.log.has("build stopped") })
					release() // only now can it stop
				}
				expectMetric(t, r, `paddock_build_seconds_count{outcome="stale_controller"} 1`)
				for _, rep := range r.master.of(b.JobID)[told:] {
					if rep.Status != cubeapi.StatusRunning {
						t.Errorf("told after the loss: %+v", rep)
					}
				}
				if now, hold := r.leaseOf(b); now.Holder != "another" || hold != template.Held {
					t.Errorf("lease %+v", now)
				}
				if work, kept := r.left(); len(work)+len(kept) > 0 {
					t.Errorf("left in work %v, in the store %v", work, kept)
				}
			})
		}
	})
}

// A builder that cannot reach the database stops before its lease is over, by
// its own clock.
func TestABuilderThatCannotRenewStopsInTime(t *testing.T) {
	dsn := sqlite(t)
	r := newRig(t, open(t, dsn), nil)
	cut := open(t, dsn)
	r.deps.Store = cut
	r.quicken()
	r.gate.shut()
	b := r.job(r.image("app", "1"))
	r.submit(b)
	eventually(t, "the build asks", func() bool { return r.gate.waiting() == 1 })
	if err := cut.Close(); err != nil {
		t.Fatal(err)
	}
	var over bool
	eventually(t, "the end of the build", func() bool {
		_, hold := r.leaseOf(b)
		over = over || hold != template.Held
		_, body := r.do(request(t, r.url+cubeapi.PathMetrics))
		return strings.Contains(body, `paddock_build_seconds_count{outcome="stale_controller"} 1`) || over
	})
	if over {
		t.Error("the lease was over before its builder stopped")
	}
	if work, _ := r.left(); len(work) > 0 {
		t.Errorf("left in work %v", work)
	}
}

func request(t *testing.T, url string) *http.Request {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// What a dead builder had in hand is built anew by another, whether it had said
// a word or not, but not for ever: an image may be what builders die of. A
// private one cannot be built without its credentials, which died too.
func TestJobsOfDeadBuilders(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, func(d *templatecenter.Deps) {
			d.Config.TemplateCenter.MaxConcurrentBuilds = 1
		})
		r.stop() // so that nobody takes them before they are dead
		for _, c := range []struct {
			state    template.JobState
			builders int
			private  bool
			epoch    int64 // 0: it ends as stalled
		}{
			{template.JobQueued, 1, false, 2},
			{template.JobBuilding, 1, false, 2},
			{template.JobBuilding, template.MaxBuilders - 1, false, template.MaxBuilders},
			{template.JobBuilding, template.MaxBuilders, false, 0},
			{template.JobQueued, template.MaxBuilders, false, 0},
			{template.JobBuilding, 1, true, 0},
		} {
			t.Run(fmt.Sprintf("%s after %d, private %t", c.state, c.builders, c.private), func(t *testing.T) {
				b := r.job(r.image("app", "1"), func(q *cubeapi.FromImageRequest) {
					if c.private {
						privately(q)
					}
				})
				r.dead(b, c.state, c.builders)
				r.start()
				defer r.stop()
				if c.epoch == 0 {
					eventually(t, "the end of the job", func() bool { return r.jobRow(b.JobID).State == template.JobFailed })
					if j := r.jobRow(b.JobID); j.ErrorCode != fault.BuildStalled.Name || len(r.master.of(b.JobID)) > 0 {
						t.Errorf("job %+v", j)
					}
					return
				}
				if out := r.master.outcome(b.JobID); out.Status != cubeapi.StatusBuilt || out.Epoch != c.epoch {
					t.Errorf("outcome %+v, want epoch %d", out, c.epoch)
				}
			})
		}
	})
}

// The tiers are for what no lease tells of: another builder that went silent,
// and jobs that nobody can build.
func TestStalledJobsEnd(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, func(d *templatecenter.Deps) {
			c := &d.Config.TemplateCenter
			c.PendingStaleAfter, c.PullingStaleAfter, c.RunningStaleAfter, c.ReconcileInterval, c.MaxConcurrentBuilds = 3*time.Second, 3*time.Second, 3*time.Second, time.Second, 1
		})
		r.gate.shut()
		running := r.job(r.image("one", "1"))
		r.submit(running)
		eventually(t, "the first build asks", func() bool { return r.gate.waiting() == 1 })
		waiting, lost := r.job(r.image("two", "2")), r.job(r.image("three", "3"))
		r.dead(lost, template.JobBuilding, 1) // it waits for another builder
		pulling, storing, private := r.job("x/lost:1"), r.job("x/lost:2"), r.job("x/lost:3", privately)
		r.update(func(ctx context.Context, tx *store.Tx) error {
			for b, phase := range map[string]template.Phase{pulling.JobID: template.PhasePulling, storing.JobID: template.PhaseStoring} {
				j, err := templatedb.GetJob(ctx, tx, template.JobID(b))
				if err != nil {
					return err
				}
				j.Phase = phase
				if _, err := templatedb.MoveJob(ctx, tx, j, template.OnJobStarted); err != nil {
					return err
				}
			}
			return nil
		})
		for _, b := range []cubeapi.TCBuildRequest{pulling, storing, private} {
			eventually(t, "the end of "+b.JobID, func() bool { return r.jobRow(b.JobID).State == template.JobFailed })
			if j := r.jobRow(b.JobID); j.ErrorCode != fault.BuildStalled.Name || j.Error == "" {
				t.Errorf("job %+v", j)
			}
		}
		expectMetric(t, r, "paddock_jobs_stalled_total 3")
		// Nothing is said of these for longer than that, and they are alive.
		eventually(t, "time", func() bool {
			var old bool
			r.update(func(ctx context.Context, tx *store.Tx) error {
				j, err := templatedb.GetJob(ctx, tx, template.JobID(waiting.JobID))
				old = tx.Now.Sub(j.ChangedAt) > 5*time.Second
				return err
			})
			return old
		})
		for _, b := range []cubeapi.TCBuildRequest{waiting, lost} {
			if j := r.jobRow(b.JobID); j.State != template.JobQueued && j.State != template.JobBuilding {
				t.Errorf("a job that waits its turn: %s, %s", j.State, j.Error)
			}
		}
		r.gate.open()
		for _, b := range []cubeapi.TCBuildRequest{running, waiting, lost} {
			if out := r.master.outcome(b.JobID); out.Status != cubeapi.StatusBuilt {
				t.Errorf("outcome %+v", out)
			}
		}
	})
}

// A private job is built only where its credentials are, which are kept no
// longer than it waits.
func TestCredentialsAreKeptWhileTheirJobWaits(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) { d.Config.TemplateCenter.MaxConcurrentBuilds = 1 })
	r.quicken()
	other := r.second()
	r.gate.shut()
	private, cancelled, after := r.job(r.image("one", "1"), privately), r.job(r.image("two", "2"), privately), r.job(r.image("three", "3"), privately)
	r.submit(private)
	eventually(t, "the build asks", func() bool { return r.gate.waiting() == 1 })
	r.submit(cancelled)
	r.submit(after)
	if n, m := r.center.Keeps(), other.center.Keeps(); n != 2 || m != 0 {
		t.Errorf("credentials of %d and %d jobs are kept", n, m)
	}
	r.update(func(ctx context.Context, tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, template.JobID(cancelled.JobID))
		if err == nil {
			_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobCancelled)
		}
		return err
	})
	eventually(t, "those of a job that is over are forgotten", func() bool { return r.center.Keeps() == 1 })
	r.gate.open()
	one, two := r.master.outcome(private.JobID), r.master.outcome(after.JobID)
	if centre := func(h string) string { c, _, _ := strings.Cut(h, "."); return c }; one.Status != cubeapi.StatusBuilt || two.Status != cubeapi.StatusBuilt || centre(one.Holder) != centre(two.Holder) {
		t.Errorf("outcomes\n%+v\n%+v", one, two)
	}
	if n := r.center.Keeps(); n != 0 || len(r.master.of(cancelled.JobID)) > 0 {
		t.Errorf("credentials of %d jobs are kept; a cancelled job was told of: %+v", n, r.master.of(cancelled.JobID))
	}
}

// A job that is cancelled while it is built stops at once and leaves nothing.
func TestACancelledBuildLeavesNothing(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		for _, place := range []string{"pulling", "templatecenter.before_store", "templatecenter.after_store", "templatecenter.before_built"} {
			t.Run(place, func(t *testing.T) {
				r := newRig(t, db, nil)
				r.quicken()
				b := r.job(r.image("app", place))
				release := r.gate.open
				at := func() bool { return r.gate.waiting() == 1 }
				if place == "pulling" {
					r.gate.shut()
				} else {
					release = fail.Arm(place, "hang")
					at = func() bool { return fail.Visits(place) == 1 }
				}
				defer release()
				r.submit(b)
				eventually(t, "the build is there", at)
				r.update(func(ctx context.Context, tx *store.Tx) error {
					j, err := templatedb.GetJob(ctx, tx, template.JobID(b.JobID))
					if err == nil {
						j.Error, j.ErrorCode = "by a user", fault.BuildCancelled.Name
						_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobCancelled)
					}
					return err
				})
				if place != "pulling" {
					release()
				}
				expectMetric(t, r, `paddock_build_seconds_count{outcome="state_conflict"} 1`)
				expectMetric(t, r, "paddock_builds_running 0")
				if work, kept := r.left(); len(work)+len(kept) > 0 {
					t.Errorf("left in work %v, in the store %v", work, kept)
				}
				if j := r.jobRow(b.JobID); j.State != template.JobFailed || j.Error != "by a user" {
					t.Errorf("job is %s: %s", j.State, j.Error)
				}
				if _, hold := r.leaseOf(b); hold == template.Held {
					t.Error("its lease is still held")
				}
			})
		}
	})
}
