package master_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// leave makes an artifact that nothing refers to, as a job does that ended
// between two steps: its row says READY, a host and the centre have its bytes.
func (r *rig) leave(name string, h *fakeHost, age time.Duration) template.Artifact {
	r.t.Helper()
	key, data := sum([]byte(name)), []byte("bytes of "+name)
	r.center.set(func(c *fakeCenter) { c.bytes[string(template.ArtifactIDOf(key))] = data })
	var a template.Artifact
	must(r.t, r.db.Update(r.t.Context(), func(tx *store.Tx) (err error) {
		ctx := r.t.Context()
		if a, err = templatedb.AddArtifact(ctx, tx, template.Artifact{ID: template.ArtifactIDOf(key), ContentKey: key, Token: "dl"}); err != nil {
			return err
		}
		a.SHA256, a.SizeBytes, a.Backend = sum(data), int64(len(data)), "dir"
		if a, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored); err != nil {
			return err
		}
		if h != nil {
			if err := templatedb.PutPlacement(ctx, tx, a.ID, h.id); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `UPDATE artifact SET changed_us = ? WHERE id = ?`, tx.Now.Add(-age).UnixMicro(), string(a.ID))
		return err
	}))
	if h != nil {
		h.set(func(h *fakeHost) { h.artifacts[string(a.ID)] = true })
	}
	return a
}

const longAgo = 30 * 24 * time.Hour

// byHand leaves what nobody needs to the call, not to the sweep.
func byHand(p *running) { p.CollectEvery(24 * time.Hour) }

func TestWhatNobodyNeedsIsCollected(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty)
		r.crash()
		r.start(byHand, (*running).notCollected)
		used, err := r.api.Template(t.Context(), "base")
		must(t, err)
		must(t, r.db.Update(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE artifact SET changed_us = 1`) // old, and needed
			return err
		}))
		young := r.leave("young", hosts[0], time.Hour)
		third := r.leave("third", hosts[0], longAgo-time.Hour)
		plan, err := r.api.GC(t.Context(), cubeapi.GCRequest{DryRun: true})
		must(t, err)
		if !plan.DryRun || len(plan.Artifacts) != 1 || plan.TotalBytes != third.SizeBytes || plan.Artifacts[0].ArtifactID != string(third.ID) || len(plan.Artifacts[0].Hosts) != 1 {
			t.Errorf("plan: %+v", plan)
		}
		if _, err := r.api.Artifact(t.Context(), string(third.ID)); err != nil {
			t.Errorf("the plan changed it: %v", err)
		}
		done, err := r.api.GC(t.Context(), cubeapi.GCRequest{})
		if must(t, err); len(done.Artifacts) != 1 || done.DryRun {
			t.Errorf("collected: %+v", done)
		}
		r.crash()
		swept := r.leave("swept", hosts[0], longAgo) // and this is the sweep's
		r.start()
		for _, a := range []template.Artifact{swept, third} {
			eventually(t, "artifact "+string(a.ID)+" goes from host and store", func() bool {
				_, err := r.api.Artifact(t.Context(), string(a.ID))
				return fault.Of(err) == fault.ArtifactNotFound && !hosts[0].holds(string(a.ID))
			})
		}
		for _, id := range []string{string(young.ID), used.ArtifactID} {
			if a, err := r.api.Artifact(t.Context(), id); err != nil || a.Status != "READY" || !hosts[0].holds(id) {
				t.Errorf("artifact %s: %+v %v", id, a, err)
			}
		}
	})
}

// The older go first, and what is referred to hides nothing behind it.
func TestTheOldestGoesFirst(t *testing.T) {
	r := newRig(t, sqlite(t))
	var want []string
	for i := range 3 {
		want = append(want, string(r.leave(fmt.Sprintf("a%d", i), nil, longAgo-time.Duration(i)*time.Hour).ID))
	}
	r.start(byHand, (*running).notCollected)
	plan, err := r.api.GC(t.Context(), cubeapi.GCRequest{DryRun: true})
	must(t, err)
	var have []string
	for _, a := range plan.Artifacts {
		have = append(have, a.ArtifactID)
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("plan %v, want %v", have, want)
	}
}

// What a build is just finding, or has just found, is never taken: while its
// lock is held, and when it is referred to between the choice and the act.
func TestCollectingDoesNotRaceWithABuild(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.host(0, plenty)
		r.crash()
		inHand := r.leave("in hand", nil, longAgo)
		r.center.set(func(c *fakeCenter) { c.idle = true })
		must(t, func() error {
			_, err := r.db.WithLock(t.Context(), inHand.ID.BuildLock(), time.Second, func(context.Context) error {
				p := r.start(byHand, (*running).notCollected)
				plan, err := r.api.GC(t.Context(), cubeapi.GCRequest{DryRun: true})
				if err == nil && len(plan.Artifacts) != 1 {
					t.Errorf("plan: %+v", plan)
				}
				done, err2 := r.api.GC(t.Context(), cubeapi.GCRequest{})
				if err2 == nil && len(done.Artifacts) != 0 {
					t.Errorf("taken from a build: %+v", done)
				}
				p.stop()
				return firstOf(err, err2)
			})
			return err
		}())
		// The build tells of it between the choice and the act.
		var job cubeapi.TCBuildRequest
		var told bool
		r.start(byHand, (*running).notCollected, func(p *running) {
			p.At(func(step string) error {
				if step == "master.gc.before_release" && job.JobID != "" && !told {
					told = true
					rep := r.center.built(job)
					rep.ContentKey, rep.ArtifactID, rep.Ext4SHA256, rep.Ext4SizeBytes = inHand.ContentKey, string(inHand.ID), inHand.SHA256, inHand.SizeBytes
					return r.center.report.Job(context.Background(), job.JobID, rep)
				}
				return nil
			})
		})
		j, err := r.api.FromImage(t.Context(), image())
		must(t, err)
		eventually(t, "the centre has the job", func() bool { return len(r.center.builds()) > 0 })
		job = r.center.builds()[0]
		done, err := r.api.GC(t.Context(), cubeapi.GCRequest{})
		must(t, err)
		if !told || len(done.Artifacts) != 0 {
			t.Errorf("told %v, taken: %+v", told, done)
		}
		a, err := r.api.Artifact(t.Context(), string(inHand.ID))
		if must(t, err); a.Status != "READY" {
			t.Errorf("it is %s, and job %s was told that it is there", a.Status, j.JobID)
		}
	})
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// notCollected makes a process that leaves all collecting to the call.
func (p *running) notCollected() { p.CollectedNow() }

// Rows of what is gone go too: outcomes that hosts wrote after a delete, and
// placements of artifacts that have no row.
func TestOrphanRowsGo(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty, func(c *config.Config) { c.Master.HostStaleAfter = time.Minute })
		stray := template.ArtifactIDOf(sum([]byte("of no row")))
		hosts[0].set(func(h *fakeHost) { h.artifacts[string(stray)] = true })
		must(t, r.db.Update(t.Context(), func(tx *store.Tx) error {
			ctx := t.Context()
			if _, err := templatedb.AddReplica(ctx, tx, template.Replica{TemplateID: "tpl-gone", HostID: hosts[0].id}); err != nil {
				return err
			}
			if err := templatedb.PutPlacement(ctx, tx, stray, hosts[0].id); err != nil {
				return err
			}
			return templatedb.PutPlacement(ctx, tx, stray, host.ID("host-of-no-book"))
		}))
		eventually(t, "no orphan is left", func() (none bool) {
			r.view(func(ctx context.Context, tx *store.Tx) error {
				list, err := templatedb.ListReplicas(ctx, tx, "tpl-gone")
				if err != nil {
					return err
				}
				held, err := templatedb.ListPlacements(ctx, tx, stray)
				none = len(list)+len(held) == 0
				return err
			})
			return none && !hosts[0].holds(string(stray))
		})
		if d, err := r.api.Template(t.Context(), "base"); err != nil || len(d.Replicas) != 1 {
			t.Errorf("the template that is there: %+v %v", d, err)
		}
	})
}
