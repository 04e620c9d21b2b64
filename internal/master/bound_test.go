package master_test

import (
	"context"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// From every state that a job of an image can be in, with any one process dead
// for ever, the job ends within its bound. The bounds are short here; that of a
// state is the longest of those that its row in docs/operations.md names.
func TestAJobEndsWhoeverIsDead(t *testing.T) {
	type stand func(t *testing.T, r *rig) string
	private := func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "u", "p" }
	states := map[string]stand{
		"queued":          func(_ *testing.T, r *rig) string { j, _ := r.submitIdle(); return j.JobID },
		"queued, private": func(_ *testing.T, r *rig) string { j, _ := r.submitIdle(private); return j.JobID },
		"queued, claimed": func(_ *testing.T, r *rig) string {
			j, _ := r.submitIdle()
			r.claimed(j.JobID, 1, 500*time.Millisecond)
			return j.JobID
		},
		"queued, spent": func(_ *testing.T, r *rig) string {
			j, _ := r.submitIdle()
			r.claimed(j.JobID, template.MaxBuilders, 500*time.Millisecond)
			return j.JobID
		},
		"building": func(t *testing.T, r *rig) string {
			j, _ := r.submitIdle()
			must(t, r.center.report.Job(t.Context(), j.JobID, building(cubeapi.JobReport{})))
			return j.JobID
		},
		"building, claimed": func(t *testing.T, r *rig) string {
			j, _ := r.submitIdle()
			f := r.claimed(j.JobID, 1, 2*time.Second)[0]
			must(t, r.center.report.Job(t.Context(), j.JobID, building(cubeapi.JobReport{Holder: f.Holder, Epoch: int64(f.Epoch)})))
			return j.JobID
		},
		"built": func(t *testing.T, r *rig) string {
			j, q := r.submitIdle()
			_ = r.center.report.Job(t.Context(), j.JobID, r.center.built(q)) // it was committed and not answered
			return j.JobID
		},
		"distributing": func(t *testing.T, r *rig) string {
			j, q := r.submitIdle()
			must(t, r.center.report.Job(t.Context(), j.JobID, r.center.built(q)))
			eventually(t, "it is distributed", func() bool {
				now, err := r.api.Job(t.Context(), j.JobID)
				return err == nil && (now.Phase == "DISTRIBUTING" || now.Status == "READY")
			})
			return j.JobID
		},
	}
	deaths := map[string]func(r *rig, h *fakeHost){
		"template centre": func(r *rig, _ *fakeHost) { r.center.front.hide() },
		"master": func(r *rig, _ *fakeHost) {
			r.crash()
			r.center.front.hide() // the dead master's is the only word that it waits for
			r.start()
		},
		"host": func(r *rig, h *fakeHost) { h.away(); r.center.front.hide() },
	}
	for state, to := range states {
		for who, dies := range deaths {
			t.Run(state+", dead "+who, func(t *testing.T) {
				onBoth(t, func(t *testing.T, dsn string) {
					r := newRig(t, dsn, func(c *config.Config) {
						c.TemplateCenter.PendingStaleAfter, c.TemplateCenter.RunningStaleAfter, c.TemplateCenter.ReconcileInterval = time.Second, 500*time.Millisecond, 100*time.Millisecond
						c.Master.DistributeTimeout = time.Second
					})
					r.start(func(p *running) {
						p.At(func(name string) error { // nobody goes on from there
							if state == "built" && name == "master.built.after_commit" {
								return context.Canceled
							}
							return nil
						})
					})
					h := r.host(0, plenty)
					id := to(t, r)
					dies(r, h)
					j := r.ended(id)
					if j.Status == "FAILED" && (j.ErrorCode == "" || j.ErrorMessage == "") {
						t.Errorf("job failed without a word: %+v", j)
					}
				})
			})
		}
	}
}

// While a template centre is up somewhere, a public job that the one at the
// master's address does not take waits for its turn; when none is, it ends.
func TestAJobWaitsWhileACentreIsUp(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn, func(c *config.Config) { c.TemplateCenter.PendingStaleAfter = time.Second })
		r.start()
		r.center.front.hide()
		r.update(func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Acquire(ctx, template.CentersSubject, "another", 3*time.Second)
			return err
		})
		j, err := r.api.FromImage(t.Context(), image())
		must(t, err)
		// Its message is given up, and the sweep passes it by, for as long as that.
		left := true
		eventually(t, "the centre is gone", func() bool {
			now, err := r.api.Job(t.Context(), j.JobID)
			must(t, err)
			r.view(func(ctx context.Context, tx *store.Tx) error {
				l, _, err := tx.LeaseOf(ctx, template.CentersSubject)
				left = l.Until.After(tx.Now)
				return err
			})
			if left && now.Status != "PENDING" {
				t.Fatalf("job: %+v", now)
			}
			return !left
		})
		if j = r.ended(j.JobID); j.ErrorCode != "peer_unavailable" {
			t.Errorf("job: %+v", j)
		}
	})
}
