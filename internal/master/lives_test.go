package master_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// lively is a rig with one host and a template.
func lively(t *testing.T, dsn string, change ...func(*config.Config)) (*rig, *fakeHost) {
	t.Helper()
	r := newRig(t, dsn, change...)
	r.start()
	h := r.host(0, plenty)
	r.template(alias("box"))
	return r, h
}

// live makes a sandbox, with a timeout of an hour unless change says otherwise.
func (r *rig) live(change ...func(*cubeapi.SandboxCreateRequest)) string {
	r.t.Helper()
	hour := int64(3600)
	q := cubeapi.SandboxCreateRequest{TemplateID: "box", Timeout: &hour, Labels: map[string]string{"of": "test"}}
	for _, f := range change {
		f(&q)
	}
	a, err := r.api.CreateSandbox(r.t.Context(), q)
	must(r.t, err)
	return a.SandboxID
}

func (r *rig) pause(id string) error {
	_, err := r.api.Pause(r.t.Context(), cubeapi.PauseRequest{SandboxID: id})
	return err
}

func (r *rig) resume(id string) error {
	_, err := r.api.Resume(r.t.Context(), cubeapi.ResumeRequest{SandboxID: id})
	return err
}

func (r *rig) info(id string) cubeapi.Sandbox {
	r.t.Helper()
	s, err := r.api.Sandbox(r.t.Context(), id)
	must(r.t, err)
	return *s
}

// stands waits until a sandbox is in a state.
func (r *rig) stands(id, status string) cubeapi.Sandbox {
	r.t.Helper()
	var s cubeapi.Sandbox
	eventually(r.t, id+" is "+status, func() bool {
		s = r.info(id)
		return s.Status == status
	})
	return s
}

var errLostAnswer = fault.New(fault.HostUnreachable, "the answer was lost")

// Stuck 39: a resume right after a pause does something; so does one while the
// pause is under way.
func TestAResumeRightAfterAPauseResumes(t *testing.T) {
	r, h := lively(t, sqlite(t))
	id := r.live()
	h.note(id, "kept")
	must(t, r.pause(id))
	must(t, r.resume(id))
	if got := h.stateOf(id); got != boxRunning {
		t.Fatalf("it is %s", got)
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	h.set(func(h *fakeHost) {
		h.life.before = on("pause", func() error { close(begun); <-goOn; return nil })
	})
	var group sync.WaitGroup
	group.Go(func() { must(t, r.pause(id)) })
	wait(t, "the pause begins", begun)
	h.set(func(h *fakeHost) { h.life.before = nil })
	group.Go(func() { must(t, r.resume(id)) })
	close(goOn)
	group.Wait()
	if got := r.stands(id, "RUNNING"); got.SandboxIP == "" || h.remembers(id) != "kept" {
		t.Errorf("it is %+v, and remembers %q", got, h.remembers(id))
	}
}

// Stuck 40, 43: what is asked again is answered, not done again; each answer may
// be lost.
func TestPauseAndResumeAreAnsweredAgain(t *testing.T) {
	r, h := lively(t, sqlite(t))
	id := r.live()
	for range 3 {
		for _, act := range []struct {
			call string
			do   func(string) error
			is   string
		}{{"pause", r.pause, "PAUSED"}, {"resume", r.resume, "RUNNING"}} {
			lost := once(errLostAnswer)
			h.set(func(h *fakeHost) { h.life.after = on(act.call, lost) })
			must(t, act.do(id))
			must(t, act.do(id))
			if got := r.info(id).Status; got != act.is {
				t.Fatalf("after a %s whose answer was lost it is %s", act.call, got)
			}
		}
	}
	if got := r.info(id); got.Generation != 7 {
		t.Errorf("its generation is %d, after six passages", got.Generation)
	}
}

// Stuck 41, 42: a sandbox can be deleted in every state, and one that cannot be
// resumed can still be.
func TestADeleteWinsInEveryState(t *testing.T) {
	r, h := lively(t, sqlite(t))
	paused := r.live()
	must(t, r.pause(paused))
	must(t, r.api.DeleteSandbox(t.Context(), paused))

	broken := r.live()
	must(t, r.pause(broken))
	h.set(func(h *fakeHost) {
		h.life.before = on("resume", func() error { return fault.New(fault.CannotResume, "its memory is broken") })
	})
	refused(t, r.resume(broken), fault.CannotResume)
	if got := r.info(broken); got.Status != "PAUSED" || !strings.Contains(got.Reason, "its memory is broken") {
		t.Errorf("after a resume that failed: %+v", got)
	}
	must(t, r.api.DeleteSandbox(t.Context(), broken))

	for _, call := range []string{"pause", "resume", "rollback"} {
		id := r.live()
		k, err := r.api.Snapshot(t.Context(), cubeapi.SnapshotRequest{SandboxID: id})
		must(t, err)
		if call == "resume" {
			must(t, r.pause(id))
		}
		begun, goOn := make(chan struct{}), make(chan struct{})
		h.set(func(h *fakeHost) {
			h.life.before = on(call, func() error { close(begun); <-goOn; h.life.before = nil; return nil })
		})
		var group sync.WaitGroup
		group.Go(func() {
			var err error
			switch call {
			case "pause":
				err = r.pause(id)
			case "resume":
				err = r.resume(id)
			default:
				_, err = r.api.Rollback(t.Context(), cubeapi.RollbackRequest{SandboxID: id, SnapshotID: k.SnapshotID})
			}
			if !errors.Is(err, fault.SandboxGone) && !errors.Is(err, fault.SandboxNotFound) {
				t.Errorf("%s of one that is deleted meanwhile: %v", call, err)
			}
		})
		wait(t, call+" begins", begun)
		must(t, r.api.DeleteSandbox(t.Context(), id))
		close(goOn)
		group.Wait()
		if got := r.info(id).Status; got != "TERMINATED" {
			t.Errorf("deleted during its %s it is %s", call, got)
		}
	}
	if got := h.live(); len(got) != 0 {
		t.Errorf("left on the host: %v", got)
	}
}

// Stuck 44, 46: a master that ends in the middle, at any step, is no matter: the
// next one goes on; and what nobody tells of any more is taken up.
func TestALifeGoesOnAfterTheMaster(t *testing.T) {
	for _, step := range []string{"master.life.after_commit", "master.life.after_host"} {
		t.Run(step, func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) {
				r := newRig(t, dsn)
				r.start()
				h := r.host(0, plenty)
				r.template(alias("box"))
				id := r.live()
				h.note(id, "kept")
				for _, act := range []struct {
					do func(string) error
					is string
				}{{r.pause, "PAUSED"}, {r.resume, "RUNNING"}} {
					r.m.stop()
					change, reached := crashAt(step)
					r.start(change)
					var group sync.WaitGroup
					group.Go(func() { _ = act.do(id) }) // its answer is lost
					wait(t, "the master ends at "+step, reached)
					r.crash()
					group.Wait()
					r.start()
					if got := r.stands(id, act.is); got.Labels["of"] != "test" {
						t.Errorf("it has the labels %v", got.Labels)
					}
				}
				if h.remembers(id) != "kept" {
					t.Error("it has lost what it had")
				}
			})
		})
	}
}

// Stuck 47, 48: a host that is away ends nothing: its sandboxes wait for it, and
// say so.
func TestASilentHostSettlesNothing(t *testing.T) {
	r, h := lively(t, sqlite(t), func(c *config.Config) { c.Master.LifeTimeout = 500 * time.Millisecond })
	id := r.live()
	must(t, r.pause(id))
	h.away()
	if err := r.resume(id); !errors.Is(err, fault.HostUnreachable) && !errors.Is(err, fault.SandboxNotReady) && !errors.Is(err, fault.Deadline) {
		t.Errorf("a resume: %v", err)
	}
	if got := r.info(id).Status; got != "RESUMING" {
		t.Errorf("it is %s", got)
	}
	h.back()
	r.stands(id, "RUNNING")
	if got := h.stateOf(id); got != boxRunning {
		t.Errorf("on its host it is %s", got)
	}
}

// Stuck 49, 50, 51: timeouts are enforced: kill or pause as told; a use puts them
// off; a sandbox that its user paused waits for ever.
func TestTimeoutsDoWhatTheySay(t *testing.T) {
	r, h := lively(t, sqlite(t))
	user := r.live(func(q *cubeapi.SandboxCreateRequest) { q.OnTimeout = "kill" })
	must(t, r.pause(user))
	if got := r.info(user); got.EndAt != "" || got.Timeout != 3600 {
		t.Errorf("paused by its user it ends at %q, with a timeout of %d", got.EndAt, got.Timeout)
	}
	_, err := r.api.SetTimeout(t.Context(), cubeapi.TimeoutRequest{SandboxID: user, Timeout: 0})
	must(t, err)

	killed, paused := r.live(), r.live(func(q *cubeapi.SandboxCreateRequest) { q.OnTimeout, q.AutoResume = "pause", true })
	for _, id := range []string{killed, paused} {
		_, err := r.api.SetTimeout(t.Context(), cubeapi.TimeoutRequest{SandboxID: id, Timeout: 0})
		must(t, err)
	}
	if got := r.stands(killed, "TERMINATED"); got.Reason != "timeout" {
		t.Errorf("it ended because of %q", got.Reason)
	}
	if got := r.stands(paused, "PAUSED"); got.Timeout != 3600 || got.EndAt != "" {
		t.Errorf("paused in time: %+v", got)
	}
	if got := r.info(user).Status; got != "PAUSED" {
		t.Errorf("the one that its user paused is %s", got)
	}
	// Traffic wakes the one that it may wake, and no other.
	_, err = r.api.Resume(t.Context(), cubeapi.ResumeRequest{SandboxID: paused, Reason: cubeapi.ReasonTraffic})
	must(t, err)
	if got := r.info(paused); got.EndAt == "" {
		t.Error("woken, its time does not run")
	}
	_, err = r.api.Resume(t.Context(), cubeapi.ResumeRequest{SandboxID: user, Reason: cubeapi.ReasonTraffic})
	refused(t, err, fault.SandboxNotReady)

	// Its use puts its end off; one long ago does not.
	before := r.info(paused).EndAt
	must(t, h.tell.Activity(t.Context(), cubeapi.ActivityRequest{Seen: []cubeapi.Seen{{SandboxID: paused, AgoUS: int64(time.Hour / time.Microsecond)}}}))
	if got := r.info(paused).EndAt; got != before {
		t.Errorf("a use long ago moved its end from %s to %s", before, got)
	}
	must(t, h.tell.Activity(t.Context(), cubeapi.ActivityRequest{Seen: []cubeapi.Seen{{SandboxID: paused}}}))
	if got := r.info(paused).EndAt; got <= before {
		t.Errorf("a use moved its end from %s to %s", before, got)
	}
	// A pause that is due and fails is tried again.
	refusal := once(fault.New(fault.CannotKeep, "the disk is full"))
	h.set(func(h *fakeHost) { h.life.before = on("pause", refusal) })
	_, err = r.api.SetTimeout(t.Context(), cubeapi.TimeoutRequest{SandboxID: paused, Timeout: 0})
	must(t, err)
	r.stands(paused, "PAUSED")
	if n := h.called("pause"); n < 3 {
		t.Errorf("the host was asked %d times", n)
	}
}

// Stuck 52, 53: labels, timeout, tokens and network outlive a pause, and lists
// tell the truth.
func TestWhatASandboxIsOutlivesItsPause(t *testing.T) {
	r, _ := lively(t, sqlite(t))
	yes := true
	id := r.live(func(q *cubeapi.SandboxCreateRequest) {
		q.Secure, q.Network = true, &cubeapi.NetworkConfig{AllowInternetAccess: &yes}
	})
	other := r.live(func(q *cubeapi.SandboxCreateRequest) { q.Labels = map[string]string{"of": "others"} })
	before := r.info(id)
	must(t, r.pause(id))
	listed := func(q cubeapi.SandboxQuery, want ...string) {
		t.Helper()
		a, err := r.api.SandboxesBy(t.Context(), q)
		must(t, err)
		var got []string
		for _, s := range a.Data {
			got = append(got, s.SandboxID)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%+v lists %v, want %v", q, got, want)
		}
	}
	listed(cubeapi.SandboxQuery{}, other, id)
	listed(cubeapi.SandboxQuery{States: []string{"paused"}}, id)
	listed(cubeapi.SandboxQuery{States: []string{"RUNNING"}}, other)
	listed(cubeapi.SandboxQuery{Labels: map[string]string{"of": "test"}}, id)
	page, err := r.api.SandboxesBy(t.Context(), cubeapi.SandboxQuery{Limit: 1})
	must(t, err)
	if len(page.Data) != 1 || page.Next == "" {
		t.Fatalf("a page of one: %+v", page)
	}
	r.live() // the cursor stays good
	listed(cubeapi.SandboxQuery{Limit: 1, Cursor: page.Next}, id)
	must(t, r.resume(id))
	after := r.info(id)
	after.Generation, after.SandboxIP, after.EndAt = before.Generation, before.SandboxIP, before.EndAt
	if a, b := after, before; a.Labels["of"] != b.Labels["of"] || a.Timeout != b.Timeout || a.Network == nil || !*a.Network.AllowInternetAccess || a.Status != b.Status {
		t.Errorf("before %+v, after %+v", b, a)
	}
}

// Stuck 54, 55: one that died, running or kept, is not shown as alive.
func TestWhatDiedIsNotShownAsAlive(t *testing.T) {
	r, h := lively(t, sqlite(t))
	dead, oom, lost := r.live(), r.live(), r.live()
	must(t, r.pause(lost))
	h.set(func(h *fakeHost) {
		h.boxes[dead].State, h.boxes[dead].Reason = hostpb.SandboxState_SANDBOX_STATE_EXITED, "exited: its first process ended"
		h.boxes[oom].State, h.boxes[oom].Reason = hostpb.SandboxState_SANDBOX_STATE_EXITED, "oom: it needed more than its 512 MiB of memory"
		delete(h.boxes, lost)
	})
	for id, why := range map[string]string{dead: "exited", oom: "oom", lost: "lost"} {
		if got := r.stands(id, "TERMINATED"); !strings.HasPrefix(got.Reason, why) {
			t.Errorf("it ended because of %q, want %s", got.Reason, why)
		}
		refused(t, r.pause(id), fault.SandboxGone)
		refused(t, r.resume(id), fault.SandboxGone)
	}
}

// A pause that its host refuses leaves the sandbox running, one that the driver
// cannot do with memory is done without, unless the memory is asked for.
func TestAPauseThatCannotKeepMemory(t *testing.T) {
	r, h := lively(t, sqlite(t))
	id := r.live()
	h.set(func(h *fakeHost) { h.life.noMemory = true })
	yes := true
	_, err := r.api.Pause(t.Context(), cubeapi.PauseRequest{SandboxID: id, Memory: &yes})
	refused(t, err, fault.Unsupported)
	if got := r.info(id).Status; got != "RUNNING" {
		t.Errorf("it is %s", got)
	}
	must(t, r.pause(id))
	if got := r.info(id); got.Status != "PAUSED" || got.Memory {
		t.Errorf("paused: %+v", got)
	}
	k, err := r.api.Snapshot(t.Context(), cubeapi.SnapshotRequest{SandboxID: id})
	must(t, err)
	if k.Memory {
		t.Errorf("its snapshot: %+v", k)
	}
}

// What is paused takes disk alone of its host, and a host that is full by then
// says so: the sandbox stays kept.
func TestAPausedSandboxLeavesItsRoom(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, host.Resources{MilliCPU: 1000, MemBytes: 1 << 30, DiskBytes: 1 << 40, Slots: 10})
	r.template(alias("box"))
	first := r.live()
	if _, err := r.create("box"); !errors.Is(err, fault.NoCapacity) {
		t.Fatalf("a second one: %v", err)
	}
	must(t, r.pause(first))
	second := r.live()
	refused(t, r.resume(first), fault.NoCapacity)
	if got := r.info(first).Status; got != "PAUSED" {
		t.Errorf("it is %s", got)
	}
	must(t, r.api.DeleteSandbox(t.Context(), second))
	must(t, r.resume(first))
	if got := h.stateOf(first); got != boxRunning {
		t.Errorf("it is %s", got)
	}
}

// A change of the network reaches the host in the end, whatever happens to the
// call or to the master.
func TestANetworkChangeReachesTheHost(t *testing.T) {
	r, h := lively(t, sqlite(t))
	id := r.live()
	revision := func() (n int64) {
		h.set(func(h *fakeHost) { n = h.boxes[id].GetNetworkRevision() })
		return n
	}
	yes := true
	change := cubeapi.SandboxUpdateRequest{SandboxID: id, Network: &cubeapi.NetworkConfig{AllowInternetAccess: &yes}}
	s, err := r.api.Update(t.Context(), change)
	must(t, err)
	if s.Network == nil || !*s.Network.AllowInternetAccess || revision() != 2 {
		t.Errorf("changed: %+v, revision %d", s, revision())
	}
	lost := once(errLostAnswer)
	h.set(func(h *fakeHost) { h.life.before = on("update", lost) })
	_, err = r.api.Update(t.Context(), change)
	must(t, err)
	eventually(t, "the host follows", func() bool { return revision() == 3 })

	r.m.stop()
	crash, reached := crashAt("master.update.after_commit")
	r.start(crash)
	_, _ = r.api.Update(t.Context(), change) // its answer is lost
	wait(t, "the master ends", reached)
	r.crash()
	r.start()
	eventually(t, "the host follows", func() bool { return revision() == 4 })
	// A host that has forgotten it is told again.
	h.set(func(h *fakeHost) { h.boxes[id].NetworkRevision = 1 })
	eventually(t, "the host follows", func() bool { return revision() == 4 })
	refusal := once(fault.New(fault.InvalidInput, "no such network"))
	h.set(func(h *fakeHost) { h.life.before = on("update", refusal) })
	no := false
	change.Network = &cubeapi.NetworkConfig{AllowInternetAccess: &no}
	_, err = r.api.Update(t.Context(), change)
	refused(t, err, fault.InvalidInput)
	if got := r.info(id).Network; got == nil || !*got.AllowInternetAccess {
		t.Errorf("what the host refused stands: %+v", got)
	}
}

func TestLogsAndUsageComeFromTheHost(t *testing.T) {
	r, _ := lively(t, sqlite(t))
	id := r.live()
	var text strings.Builder
	must(t, r.api.Logs(t.Context(), id, 2, true, &text))
	if text.String() != "two\nthree\nlater\n" {
		t.Errorf("logs: %q", text.String())
	}
	list, err := r.api.Usage(t.Context(), id)
	must(t, err)
	if len(list) != 1 || list[0].SandboxID != id || list[0].CPUUS != 7 {
		t.Errorf("usage: %+v", list)
	}
	if list, err = r.api.Usage(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("of all: %+v, %v", list, err)
	}
	refused(t, r.api.Logs(t.Context(), "i00000000000000000000000f", 0, false, &text), fault.SandboxNotFound)
	_, err = r.api.Usage(t.Context(), "what")
	refused(t, err, fault.InvalidInput)
}
