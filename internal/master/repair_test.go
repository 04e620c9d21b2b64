package master_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const often = 20 * time.Millisecond

func repairing(p *running) { p.Repair(often) }

// becomes waits until a template has a status.
func (r *rig) becomes(id, status string) cubeapi.Template {
	r.t.Helper()
	var d cubeapi.Template
	eventually(r.t, "template "+id+" is "+status, func() bool {
		var err error
		d, err = r.api.Template(r.t.Context(), id)
		return err == nil && d.Status == status
	})
	return d
}

// A template that only some hosts took becomes READY when the others do, with
// bytes and rows, and without anybody's request.
func TestAPartlyReadyTemplateIsRepaired(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start(repairing)
		r.host(0, plenty)
		b := r.host(1, plenty)
		b.set(func(h *fakeHost) { h.ensure = broken })
		made := r.template(alias("app"))
		if d := r.shown("app"); d.Status != "PARTIALLY_READY" || !strings.Contains(d.Replicas[1].ErrorMessage, "disk_full") {
			t.Errorf("template: %+v", d)
		}
		b.set(func(h *fakeHost) { h.ensure = nil })
		if d := r.becomes("app", "READY"); d.LastError != "" || d.Replicas[1].Status != "READY" || !b.holds(made.ArtifactID) {
			t.Errorf("template: %+v", d)
		}
		r.view(func(ctx context.Context, tx *store.Tx) error {
			held, err := templatedb.ListPlacements(ctx, tx, template.ArtifactID(made.ArtifactID))
			if len(held) != 2 {
				t.Errorf("placements: %+v", held)
			}
			return err
		})
		if n := len(r.jobs(made.TemplateID)); n != 1 {
			t.Errorf("%d jobs", n)
		}
	})
}

// A template that failed on every host comes back with its hosts.
func TestAFailedTemplateIsRepaired(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	made := r.template(alias("app"))
	r.reported(made.ArtifactID, h)
	h.set(func(h *fakeHost) { h.ensure = broken; clear(h.artifacts) })
	eventually(t, "the host reports its loss", func() bool { return r.reports(h, made.ArtifactID) == 0 })
	r.redo(cubeapi.RedoRequest{TemplateID: "app"})
	r.becomes("app", "FAILED")
	r.crash()
	h.set(func(h *fakeHost) { h.ensure = nil })
	r.start(repairing)
	r.becomes("app", "READY")
}

// A host that joins later gets the templates that are meant for it, and no
// others; a cordoned one gets none until it is let in.
func TestAHostThatJoinsLaterIsServed(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start(repairing)
		a := r.host(0, plenty)
		all := r.template(alias("all"))
		scoped := r.template(func(q *cubeapi.FromImageRequest) {
			q.SourceImageRef, q.DistributionScope = "registry.local/scoped:1", scope(a)
		})
		b := r.host(1, plenty)
		eventually(t, "the host that came later has it", func() bool {
			d := r.shown("all")
			return b.holds(all.ArtifactID) && d.Status == "READY" && len(d.Replicas) == 2 && d.Replicas[1].Status == "READY"
		})
		must(t, r.cordon(b, true))
		other := r.template(alias("other"), func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/other:1" })
		c := r.host(2, plenty)
		eventually(t, "another host has it", func() bool { return c.holds(other.ArtifactID) })
		if b.holds(other.ArtifactID) {
			t.Error("a cordoned host was served")
		}
		must(t, r.cordon(b, false))
		eventually(t, "the host has it", func() bool { return b.holds(other.ArtifactID) && len(r.becomes("other", "READY").Replicas) == 3 })
		if b.holds(scoped.ArtifactID) || c.holds(scoped.ArtifactID) {
			t.Error("a host outside of the scope was served")
		}
	})
}

// After a host lost its disk the templates come back to it.
func TestAHostThatLostItsBytesIsServedAgain(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(repairing)
	h := r.host(0, plenty)
	made := r.template()
	h.set(func(h *fakeHost) { clear(h.artifacts) })
	eventually(t, "the host has it again", func() bool { return h.holds(made.ArtifactID) })
	r.becomes(made.TemplateID, "READY")
}

// A host that fails again and again is asked ever less often, and says why.
func TestABadHostIsBackedOff(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(func(p *running) { p.Repair(often); p.RepairPause(often, time.Hour) })
	r.host(0, plenty)
	b := r.host(1, plenty)
	var asked []time.Time
	b.set(func(h *fakeHost) {
		h.ensure = func(ctx context.Context) error {
			h.set(func(*fakeHost) { asked = append(asked, time.Now()) })
			return broken(ctx)
		}
	})
	r.template(alias("app"))
	eventually(t, "it is asked a few times", func() bool { return b.called("ensure") >= 5 })
	b.set(func(*fakeHost) {
		// Each pause is at least twice the one before; the first call is the job's.
		for i := 3; i < len(asked); i++ {
			if least := often << (i - 2); asked[i].Sub(asked[i-1]) < least {
				t.Errorf("call %d came after %s, want at least %s", i, asked[i].Sub(asked[i-1]), least)
			}
		}
	})
	if d := r.shown("app"); !strings.Contains(d.Replicas[1].ErrorMessage, "disk_full") {
		t.Errorf("template: %+v", d)
	}
}

// A template whose last bad host was removed is READY: nothing lacks any more.
func TestATemplateIsWhatItsReplicasMakeOfIt(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(repairing)
	r.host(0, plenty)
	b := r.host(1, plenty)
	b.set(func(h *fakeHost) { h.ensure = broken })
	r.template(alias("app"))
	r.becomes("app", "PARTIALLY_READY")
	r.silence(b)
	eventually(t, "the host is removed", func() bool { return r.api.RemoveHost(t.Context(), string(b.id), true) == nil })
	if d := r.becomes("app", "READY"); len(d.Replicas) != 1 {
		t.Errorf("template: %+v", d)
	}
}

// What is brought to a host while it is removed from the books leaves no replica
// of it: the template would lack it for ever.
func TestARemovedHostHasNoReplica(t *testing.T) {
	for name, came := range map[string]error{"it came": nil, "it failed": fault.New(fault.DataDir, "disk")} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) {
				r := newRig(t, dsn)
				r.start(repairing)
				r.host(0, plenty)
				r.template(alias("app"))
				asked, gate, told := make(chan struct{}, 100), make(chan struct{}), make(chan struct{}, 100)
				b := r.host(1, plenty)
				b.set(func(h *fakeHost) {
					clear(h.artifacts)
					h.ensure = func(ctx context.Context) error {
						asked <- struct{}{}
						defer func() { told <- struct{}{} }()
						select {
						case <-gate:
							return came
						case <-ctx.Done():
							return ctx.Err()
						}
					}
				})
				wait(t, "the repair is at the host", asked)
				r.silence(b)
				eventually(t, "the host is removed", func() bool { return r.api.RemoveHost(t.Context(), string(b.id), true) == nil })
				close(gate)
				wait(t, "the host has answered", told)
				_, err := r.db.WithLock(t.Context(), "paddock_master_repair", time.Minute, func(context.Context) error { return nil }) // its round is over
				must(t, err)
				eventually(t, "the template is ready without it", func() bool {
					d, err := r.api.Template(t.Context(), "app")
					return err == nil && d.Status == "READY" && len(d.Replicas) == 1
				})
			})
		})
	}
}

// A repair does not resurrect what is deleted under it, and a delete finds what
// a repair placed.
func TestADeleteWinsOverARepair(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start(repairing)
		r.host(0, plenty)
		made := r.template(alias("app"))
		asked, gate := make(chan struct{}, 100), make(chan struct{})
		var on atomic.Bool
		on.Store(true)
		c := r.host(1, plenty)
		c.set(func(h *fakeHost) {
			h.ensure = func(ctx context.Context) error {
				if on.Load() {
					asked <- struct{}{}
					select {
					case <-gate:
					case <-ctx.Done():
					}
				}
				return ctx.Err()
			}
		})
		// It may have been served before it was told to wait; then it loses it.
		if c.holds(made.ArtifactID) {
			c.set(func(h *fakeHost) { clear(h.artifacts) })
		}
		wait(t, "the repair is at the host", asked)
		gone := make(chan error, 1)
		go func() { gone <- r.api.DeleteTemplate(t.Context(), "app") }()
		eventually(t, "the template is being deleted", func() bool {
			d, err := r.api.Template(t.Context(), made.TemplateID)
			return err != nil || d.Status == "DELETING"
		})
		on.Store(false)
		close(gate)
		must(t, <-gone)
		eventually(t, "nothing is left", func() bool {
			_, err := r.api.Template(t.Context(), made.TemplateID)
			return fault.Of(err) == fault.TemplateNotFound && !c.holds(made.ArtifactID)
		})
	})
}

// A repair that a host holds up says nothing of a template that is gone
// meanwhile: neither a line of its job nor a replica.
func TestARepairLeavesNoRowOfADeletedTemplate(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start(func(p *running) { repairing(p); p.CollectEvery(time.Hour); p.CollectedNow() })
		r.host(0, plenty)
		made := r.template(alias("app"))
		// Of the same bytes, so that the delete need not wait for a host.
		other := r.template(func(q *cubeapi.FromImageRequest) { q.DistributionScope = []string{string(hostID(0))} })
		asked, gate := make(chan struct{}, 100), make(chan struct{})
		c := r.host(1, plenty)
		c.set(func(h *fakeHost) {
			h.ensure = func(ctx context.Context) error {
				asked <- struct{}{}
				select {
				case <-gate:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
		})
		if c.holds(made.ArtifactID) {
			c.set(func(h *fakeHost) { clear(h.artifacts) })
		}
		wait(t, "the repair is at the host", asked)
		must(t, r.api.DeleteTemplate(t.Context(), "app"))
		close(gate)
		eventually(t, "that the host has it is noted", func() (noted bool) {
			r.view(func(ctx context.Context, tx *store.Tx) error {
				held, err := templatedb.ListPlacements(ctx, tx, template.ArtifactID(other.ArtifactID))
				noted = len(held) == 2
				return err
			})
			return noted && c.holds(other.ArtifactID)
		})
		r.view(func(ctx context.Context, tx *store.Tx) error {
			lines, err := templatedb.JobLog(ctx, tx, template.JobID(made.JobID), 0, 10)
			replicas, late := templatedb.ListReplicas(ctx, tx, tplID(made))
			if len(lines) > 0 || len(replicas) > 0 {
				t.Errorf("left: %v, %v", lines, replicas)
			}
			return errors.Join(err, late)
		})
	})
}

// A ready row whose bytes are gone is noticed, and the bytes are built again
// from the very image.
func TestAReadyArtifactWithoutBytesHeals(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start(repairing)
		h := r.host(0, plenty)
		made := r.template(alias("app"))
		r.center.set(func(c *fakeCenter) { delete(c.bytes, made.ArtifactID) })
		eventually(t, "the bytes are there again", func() bool {
			r.center.mu.Lock()
			defer r.center.mu.Unlock()
			return r.center.bytes[made.ArtifactID] != nil
		})
		eventually(t, "the job ends", func() bool {
			list := r.jobs(made.TemplateID)
			return len(list) == 2 && !list[0].State.Active() && !list[1].State.Active()
		})
		if d := r.shown("app"); d.Status != "READY" || d.LastError != "" || r.artifact(made.ArtifactID).State != template.ArtifactReady {
			t.Errorf("template: %+v", d)
		}
		builds := r.center.builds()
		if last := builds[len(builds)-1].Request; !strings.HasSuffix(last.SourceImageRef, "@"+made.SourceImageDigest) || !strings.HasPrefix(last.RequestID, "heal-") {
			t.Errorf("request: %+v", last)
		}
		if !h.holds(made.ArtifactID) {
			t.Error("the host lost it")
		}
	})
}

// What cannot be built again by itself says so, and goes on serving from the
// hosts that hold it.
func TestLostBytesThatCannotBeBuiltAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		config func(*config.Config)
		image  func(*cubeapi.FromImageRequest)
		words  string
	}{
		"private": {func(*config.Config) {}, func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "u", "p" }, "credentials_needed"},
		"off":     {func(c *config.Config) { c.Master.HealRebuild = false }, func(*cubeapi.FromImageRequest) {}, "artifact_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sqlite(t), c.config)
			r.start(repairing)
			r.host(0, plenty)
			made := r.template(alias("app"), c.image)
			r.center.set(func(c *fakeCenter) { delete(c.bytes, made.ArtifactID) })
			eventually(t, "the template says so", func() bool { return strings.Contains(r.shown("app").LastError, c.words) })
			if d := r.shown("app"); d.Status != "READY" || r.artifact(made.ArtifactID).State != template.ArtifactFailed || len(r.jobs(made.TemplateID)) != 1 {
				t.Errorf("template: %+v", d)
			}
			if _, err := r.create("app"); err != nil {
				t.Errorf("the hosts that hold it serve it no more: %v", err)
			}
		})
	}
}

// An artifact of which nothing can be told keeps no other from being looked at,
// nor lost ones from being built again.
func TestWhatCannotBeToldHidesNothing(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(repairing)
	r.host(0, plenty)
	first, next := r.template(), r.template(func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/other:1" })
	if first.ArtifactID > next.ArtifactID {
		first, next = next, first
	}
	r.center.set(func(c *fakeCenter) {
		c.stating, c.statingOf = fault.New(fault.StoreUnavailable, "no access"), first.ArtifactID
		delete(c.bytes, next.ArtifactID)
	})
	eventually(t, "the lost bytes are built again", func() (there bool) {
		r.center.set(func(c *fakeCenter) { there = c.bytes[next.ArtifactID] != nil })
		return there
	})
}

// A template centre, or a store, that does not answer proves nothing.
func TestWhatCannotBeToldChangesNothing(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(repairing)
	h := r.host(0, plenty)
	made := r.template(alias("app"))
	r.reported(made.ArtifactID, h)
	before := r.everything()
	rounds := func() {
		asked := make(chan struct{})
		go func() { // a few rounds
			defer close(asked)
			<-time.After(10 * often) // only that nothing happens is waited for
		}()
		wait(t, "some rounds", asked)
	}
	for _, code := range []*fault.Code{fault.StoreUnavailable, fault.BytesElsewhere} {
		r.center.set(func(c *fakeCenter) { c.stating = fault.New(code, "bucket") })
		rounds()
	}
	r.center.front.hide()
	rounds()
	if now := r.everything(); now != before {
		t.Errorf("an outage changed\n%s\nto\n%s", before, now)
	}
	r.center.front.back()
}

// A built job is resumed from its rows, also when its bytes are in S3: no file
// is looked for.
func TestABuiltJobWithBytesInS3IsResumed(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		crash, reached := crashAt("master.built.after_commit")
		r.start(crash)
		r.host(0, plenty)
		r.center.set(func(c *fakeCenter) { c.idle = true })
		j, err := r.api.FromImage(t.Context(), image())
		must(t, err)
		eventually(t, "the centre has it", func() bool { return len(r.center.builds()) > 0 })
		rep := r.center.built(r.center.builds()[0])
		rep.StorageBackend, rep.ObjectKey, rep.Ext4Path = "s3", "art/"+rep.ObjectKey, ""
		_ = r.center.report.Job(t.Context(), j.JobID, rep) // the answer is lost
		wait(t, "built", reached)
		r.crash()
		r.start()
		if j = r.ended(j.JobID); j.Status != "READY" {
			t.Errorf("job: %+v", j)
		}
		if a := r.artifact(j.ArtifactID); a.Backend != "s3" {
			t.Errorf("artifact: %+v", a)
		}
	})
}
