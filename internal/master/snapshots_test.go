package master_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

func (r *rig) snapshot(id string) *cubeapi.Snapshot {
	r.t.Helper()
	k, err := r.api.Snapshot(r.t.Context(), cubeapi.SnapshotRequest{SandboxID: id})
	must(r.t, err)
	return k
}

// Snapshots are kept beside their sandbox, outlive it, make others, and are
// where it can go back to.
func TestSnapshotsAreKeptAndBegunWith(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		h := r.host(0, plenty)
		job := r.template(alias("box"))
		id := r.live(func(q *cubeapi.SandboxCreateRequest) { q.Envs, q.Secure = map[string]string{"A": "first"}, true })
		h.note(id, "then")
		k := r.snapshot(id)
		if k.Status != "READY" || k.SizeBytes == 0 || !k.Memory || k.HostID != string(h.id) || k.SandboxID != id {
			t.Errorf("it is %+v", k)
		}
		h.note(id, "later")
		s, err := r.api.Rollback(t.Context(), cubeapi.RollbackRequest{SandboxID: id, SnapshotID: k.SnapshotID})
		must(t, err)
		if h.remembers(id) != "then" || s.Status != "RUNNING" || s.SandboxIP != "10.0.0.4" {
			t.Errorf("rolled back it remembers %q: %+v", h.remembers(id), s)
		}
		other := r.live()
		_, err = r.api.Rollback(t.Context(), cubeapi.RollbackRequest{SandboxID: other, SnapshotID: k.SnapshotID})
		refused(t, err, fault.InvalidInput)

		must(t, r.api.DeleteSandbox(t.Context(), id))
		a, err := r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{SnapshotID: k.SnapshotID, Envs: map[string]string{"B": "second"}, Labels: map[string]string{"of": "snapshot"}})
		must(t, err)
		made := h.created[len(h.created)-1]
		if made.GetSnapshotId() != k.SnapshotID || made.GetEnvs()["A"] != "first" || made.GetEnvs()["B"] != "second" || made.GetAccessToken() == "" || made.GetAccessToken() != a.Sandbox.AccessToken {
			t.Errorf("the host was asked for %v", made)
		}
		if got := r.info(a.SandboxID); h.remembers(a.SandboxID) != "then" || got.SnapshotID != k.SnapshotID || got.Labels["of"] != "snapshot" || got.AccessToken != "" {
			t.Errorf("it remembers %q: %+v", h.remembers(a.SandboxID), got)
		}
		_, err = r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{SnapshotID: k.SnapshotID, TemplateID: "box"})
		refused(t, err, fault.InvalidInput)

		list, err := r.api.Snapshots(t.Context(), id)
		must(t, err)
		if len(list) != 1 || list[0].SnapshotID != k.SnapshotID {
			t.Errorf("list: %+v", list)
		}
		must(t, r.api.DeleteSandbox(t.Context(), a.SandboxID))
		must(t, r.api.DeleteSandbox(t.Context(), other))
		err = r.api.DeleteTemplate(t.Context(), job.TemplateID)
		refused(t, err, fault.TemplateInUse)
		if !strings.Contains(err.Error(), k.SnapshotID) {
			t.Errorf("it does not say by what: %v", err)
		}
		must(t, r.api.DeleteSnapshot(t.Context(), k.SnapshotID))
		refused(t, r.api.DeleteSnapshot(t.Context(), k.SnapshotID), fault.SnapshotNotFound)
		_, err = r.api.GetSnapshot(t.Context(), k.SnapshotID)
		refused(t, err, fault.SnapshotNotFound)
		_, err = r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{SnapshotID: k.SnapshotID})
		refused(t, err, fault.SnapshotNotFound)
		if got := h.snapshots(); len(got) != 0 {
			t.Errorf("left on the host: %v", got)
		}
		must(t, r.api.DeleteTemplate(t.Context(), job.TemplateID))
	})
}

// An answer that is lost, a master that ends and a request that comes again make
// one snapshot.
func TestASnapshotIsMadeOnce(t *testing.T) {
	r, h := lively(t, sqlite(t))
	id := r.live()
	lost := once(errLostAnswer)
	h.set(func(h *fakeHost) { h.life.after = on("snapshot", lost) })
	q := cubeapi.SnapshotRequest{RequestID: "one", SandboxID: id}
	first, err := r.api.Snapshot(t.Context(), q)
	if err != nil { // told that the answer was lost, it is asked again
		first, err = r.api.Snapshot(t.Context(), q)
	}
	must(t, err)
	again, err := r.api.Snapshot(t.Context(), q)
	must(t, err)
	if first.SnapshotID != again.SnapshotID || len(h.snapshots()) != 1 {
		t.Errorf("%s and %s; the host has %v", first.SnapshotID, again.SnapshotID, h.snapshots())
	}
	q.Name = "another"
	_, err = r.api.Snapshot(t.Context(), q)
	refused(t, err, fault.SubmissionReused)

	for _, step := range []string{"master.snapshot.after_commit", "master.snapshot.after_host"} {
		r.m.stop()
		crash, reached := crashAt(step)
		r.start(crash)
		q := cubeapi.SnapshotRequest{RequestID: step, SandboxID: id}
		_, _ = r.api.Snapshot(t.Context(), q) // its answer is lost
		wait(t, "the master ends at "+step, reached)
		r.crash()
		r.start()
		k, err := r.api.Snapshot(t.Context(), q)
		must(t, err)
		if !slices.Contains(h.snapshots(), k.SnapshotID) {
			t.Errorf("%s: the host has %v, and not %s", step, h.snapshots(), k.SnapshotID)
		}
	}
	if got := h.snapshots(); len(got) != 3 {
		t.Errorf("the host has %v", got)
	}
}

// What a host refuses has failed, and says why; what it lost is told of as lost;
// what is in no book is removed; a delete reaches a host that was away.
func TestSnapshotsAreHeldAgainstTheirHost(t *testing.T) {
	r, h := lively(t, sqlite(t))
	id := r.live()
	h.set(func(h *fakeHost) {
		h.life.before = on("snapshot", func() error { return fault.New(fault.SnapshotFailed, "no room") })
	})
	_, err := r.api.Snapshot(t.Context(), cubeapi.SnapshotRequest{SandboxID: id})
	refused(t, err, fault.SnapshotFailed)
	h.set(func(h *fakeHost) { h.life.before = nil })
	list, err := r.api.Snapshots(t.Context(), id)
	must(t, err)
	if len(list) != 1 || list[0].Status != "FAILED" || !strings.Contains(list[0].Error, "no room") {
		t.Errorf("list: %+v", list)
	}
	must(t, r.api.DeleteSnapshot(t.Context(), list[0].SnapshotID))

	lost, kept := r.snapshot(id), r.snapshot(id)
	h.set(func(h *fakeHost) {
		delete(h.life.snaps, lost.SnapshotID)
		h.life.snaps["snap-0123456789abcdef01234567"] = &hostpb.Snapshot{SnapshotId: "snap-0123456789abcdef01234567"}
	})
	eventually(t, "the loss is noted, and the stranger gone", func() bool {
		k, err := r.api.GetSnapshot(t.Context(), lost.SnapshotID)
		return err == nil && k.Status == "FAILED" && slices.Equal(h.snapshots(), []string{kept.SnapshotID})
	})
	_, err = r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{SnapshotID: lost.SnapshotID})
	refused(t, err, fault.SnapshotNotReady)

	h.away()
	must(t, r.api.DeleteSnapshot(t.Context(), kept.SnapshotID)) // it goes on behind
	h.back()
	eventually(t, "it is gone", func() bool { return len(h.snapshots()) == 0 })
}

// Clones begin as their sandbox is, all or none, and leave no snapshot.
func TestClonesBeginAsTheirSandboxIs(t *testing.T) {
	r, h := lively(t, sqlite(t))
	id := r.live()
	h.note(id, "now")
	a, err := r.api.Clone(t.Context(), cubeapi.CloneRequest{SandboxID: id, Count: 5})
	must(t, err)
	seen := map[string]bool{}
	for _, c := range a.Data {
		seen[c.SandboxID] = true
		if h.remembers(c.SandboxID) != "now" || r.info(c.SandboxID).Labels["of"] != "test" {
			t.Errorf("a clone remembers %q: %+v", h.remembers(c.SandboxID), r.info(c.SandboxID))
		}
	}
	if len(seen) != 5 || len(h.snapshots()) != 0 {
		t.Errorf("%d clones, and left %v", len(seen), h.snapshots())
	}
	// The same request again answers the same clones.
	q := cubeapi.CloneRequest{RequestID: "twins", SandboxID: id, Count: 2}
	first, err := r.api.Clone(t.Context(), q)
	must(t, err)
	again, err := r.api.Clone(t.Context(), q)
	must(t, err)
	if first.Data[0].SandboxID != again.Data[0].SandboxID || len(h.live()) != 8 {
		t.Errorf("first %+v, again %+v, %d sandboxes", first.Data, again.Data, len(h.live()))
	}
	h.set(func(h *fakeHost) {
		h.refuse = func(string, int64) error { return fault.New(fault.RuntimeFailed, "it cannot begin with that") }
	})
	if _, err := r.api.Clone(t.Context(), cubeapi.CloneRequest{SandboxID: id, Count: 3}); err == nil {
		t.Error("clones that their host refuses are made")
	}
	eventually(t, "nothing of them is left", func() bool { return len(h.live()) == 8 })
	for _, bad := range []cubeapi.CloneRequest{{SandboxID: "what"}, {SandboxID: id, Count: -1}, {SandboxID: id, Count: cubeapi.MaxBatch + 1}} {
		_, err := r.api.Clone(t.Context(), bad)
		refused(t, err, fault.InvalidInput)
	}
	_, err = r.api.Clone(t.Context(), cubeapi.CloneRequest{SandboxID: "i00000000000000000000000f"})
	refused(t, err, fault.SandboxNotFound)
}

// Snapshots whose time is up go by themselves, and with a host that is removed.
func TestSnapshotsEnd(t *testing.T) {
	r, h := lively(t, sqlite(t), func(c *config.Config) { c.Master.HostStaleAfter = 300 * time.Millisecond })
	id := r.live()
	r.m.stop()
	r.start(func(p *running) { p.CloneKept(time.Millisecond) })
	h.set(func(h *fakeHost) {
		h.life.before = on("delete_snapshot", once(fault.New(fault.HostUnreachable, "away")))
	})
	_, err := r.api.Clone(t.Context(), cubeapi.CloneRequest{RequestID: "kept", SandboxID: id})
	if err != nil && !errors.Is(err, fault.SnapshotNotFound) && !errors.Is(err, fault.SnapshotNotReady) {
		t.Fatal(err)
	}
	eventually(t, "its time is up", func() bool { return len(h.snapshots()) == 0 })
	h.set(func(h *fakeHost) { h.life.before = nil })

	k := r.snapshot(id)
	for _, s := range r.sandboxes() {
		must(t, r.api.DeleteSandbox(t.Context(), string(s.ID)))
	}
	_, err = r.api.CordonHost(t.Context(), string(h.id), true)
	must(t, err)
	eventually(t, "its snapshot alone keeps the host in the books", func() bool {
		err := r.api.RemoveHost(t.Context(), string(h.id), false)
		refused(t, err, fault.StateConflict)
		return strings.Contains(err.Error(), "1 snapshots")
	})
	r.silence(h)
	must(t, r.api.RemoveHost(t.Context(), string(h.id), true))
	_, err = r.api.GetSnapshot(t.Context(), k.SnapshotID)
	refused(t, err, fault.SnapshotNotFound)
}

// Many callers at once see one order of lives: nothing is lost, and the row and
// the host agree in the end.
func TestManyCallersOfOneLife(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		second := r.process()
		h := r.host(0, plenty)
		r.template(alias("box"))
		id := r.live()
		h.note(id, "kept")
		other := newFace(t)
		other.show(watched(t, second))
		api := cubeapi.NewClient(other.URL, apiKey)
		var group sync.WaitGroup
		for n := range 16 {
			c := []*cubeapi.Client{r.api, api}[n%2]
			group.Go(func() {
				for range 3 {
					var err error
					if n%4 < 2 {
						_, err = c.Pause(t.Context(), cubeapi.PauseRequest{SandboxID: id})
					} else {
						_, err = c.Resume(t.Context(), cubeapi.ResumeRequest{SandboxID: id})
					}
					if err != nil && !errors.Is(err, fault.SandboxNotReady) && !errors.Is(err, fault.StaleGeneration) {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		must(t, r.resume(id))
		if got := r.stands(id, "RUNNING"); h.stateOf(id) != boxRunning || h.remembers(id) != "kept" || got.Generation < 2 {
			t.Errorf("in the end it is %+v, on its host %s", got, h.stateOf(id))
		}
	})
}
