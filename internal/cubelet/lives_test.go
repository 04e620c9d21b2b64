package cubelet_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// counts asks for a sandbox whose program counts in its memory.
func counts() *hostpb.CreateSandboxRequest {
	r := request()
	r.Command = []string{"/bin/probe", "count", "/root/count"}
	r.AccessToken, r.Generation = "token of "+r.GetSandboxId(), 1
	return r
}

func (w *world) counted(id string) int {
	w.t.Helper()
	got := w.exec(id, "probe", "cat", "/root/count")
	n, err := strconv.Atoi(got.out)
	if got.code != 0 || err != nil {
		return 0
	}
	return n
}

func (w *world) countsBeyond(id string, n int) {
	w.t.Helper()
	runtimetest.Eventually(w.t, fmt.Sprintf("%s counts beyond %d", id, n), func() bool { return w.counted(id) > n })
}

func (w *world) pause(id string, generation int64, withMemory bool) error {
	_, err := w.host.PauseSandbox(w.ctx(), &hostpb.PauseSandboxRequest{SandboxId: id, Generation: generation, WithMemory: withMemory, Reason: "request"})
	return serve.FromGRPC(err)
}

func (w *world) resume(id string, generation int64) error {
	_, err := w.host.ResumeSandbox(w.ctx(), &hostpb.ResumeSandboxRequest{SandboxId: id, Generation: generation})
	return serve.FromGRPC(err)
}

func (w *world) rollback(id, snapshot string, generation int64) error {
	_, err := w.host.RollbackSandbox(w.ctx(), &hostpb.RollbackSandboxRequest{SandboxId: id, SnapshotId: snapshot, Generation: generation})
	return serve.FromGRPC(err)
}

func (w *world) snapshot(of string, withMemory bool) *hostpb.Snapshot {
	w.t.Helper()
	answer, err := w.host.CreateSnapshot(w.ctx(), &hostpb.CreateSnapshotRequest{SnapshotId: id.New("snap-"), SandboxId: of, WithMemory: withMemory})
	if err != nil {
		w.t.Fatal(serve.FromGRPC(err))
	}
	return answer.GetSnapshot()
}

func (w *world) dropSnapshot(id string) {
	w.t.Helper()
	_, err := w.host.DeleteSnapshot(w.ctx(), &hostpb.DeleteSnapshotRequest{SnapshotId: id})
	check(w.t, err)
}

func (w *world) state(id string) hostpb.SandboxState {
	w.t.Helper()
	s, err := w.get(id)
	check(w.t, err)
	return s.GetState()
}

const (
	isRunning = hostpb.SandboxState_SANDBOX_STATE_RUNNING
	isPaused  = hostpb.SandboxState_SANDBOX_STATE_PAUSED
	isExited  = hostpb.SandboxState_SANDBOX_STATE_EXITED
)

// A paused sandbox has nothing of the host but disk, and goes on where it was.
func TestAPausedSandboxGoesOnWhereItWas(t *testing.T) {
	for _, withMemory := range []bool{true, false} {
		t.Run(fmt.Sprintf("memory=%v", withMemory), func(t *testing.T) {
			w := newWorld(t).open().hold()
			r := counts()
			w.create(r)
			i := r.GetSandboxId()
			w.countsBeyond(i, 10)
			if got := w.exec(i, "probe", "fill", "/root/mine", "3"); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			generation := int64(1)
			for range 2 {
				generation++
				check(t, w.pause(i, generation, withMemory))
				check(t, w.pause(i, generation, withMemory)) // the reply was lost
				s, err := w.get(i)
				check(t, err)
				if s.GetState() != isPaused || s.GetKeptBytes() == 0 || s.GetWithMemory() != withMemory || s.GetIp() != "" || s.GetGeneration() != generation {
					t.Errorf("paused: %v", s)
				}
				truth := w.cube.Truth()
				if a := truth.GetAllocated(); a.GetMemBytes() != 0 || a.GetMilliCpu() != 0 || a.GetSlots() != 0 || a.GetDiskBytes() < r.GetResources().GetDiskBytes() || truth.GetSandboxes() != 0 {
					t.Errorf("it is charged with %v", truth)
				}
				w.mustHoldFilesOnly(i)
				if _, err := w.host.RemoveArtifact(w.ctx(), &hostpb.RemoveArtifactRequest{ArtifactId: artifactID}); !errors.Is(serve.FromGRPC(err), fault.TemplateInUse) {
					t.Errorf("its template could be removed: %v", err)
				}
				if got := w.refused(i); !errors.Is(got, fault.SandboxNotReady) {
					t.Errorf("a command in it: %v", got)
				}
				generation++
				check(t, w.resume(i, generation))
				check(t, w.resume(i, generation))
				before := w.counted(i)
				if withMemory && before < 10 {
					t.Errorf("it counts from %d: its memory is gone", before)
				}
				w.countsBeyond(i, before)
				if got := w.exec(i, "probe", "list", "/root"); !strings.Contains(got.out, "mine") {
					t.Errorf("its files: %+v", got)
				}
				s, err = w.get(i)
				check(t, err)
				for _, file := range []string{"/etc/hosts", "/etc/hostname"} {
					if got := w.exec(i, "probe", "cat", file); !strings.Contains(got.out, i) {
						t.Errorf("%s: %+v", file, got)
					}
				}
				if got := w.exec(i, "probe", "cat", "/etc/hosts"); !strings.Contains(got.out, s.GetIp()) {
					t.Errorf("its address is %s: %+v", s.GetIp(), got)
				}
				if s.GetKeptBytes() != 0 || s.GetGeneration() != generation {
					t.Errorf("resumed: %v", s)
				}
			}
			for _, old := range []error{w.pause(i, 2, true), w.resume(i, 3), w.rollback(i, "", 1)} {
				if !errors.Is(old, fault.StaleGeneration) {
					t.Errorf("a command of an earlier life: %v", old)
				}
			}
			check(t, w.pause(i, 20, withMemory))
			w.delete(i)
			w.mustBeEmpty()
			if err := w.resume(i, 21); !errors.Is(err, fault.SandboxNotFound) {
				t.Errorf("a resume of what is gone: %v", err)
			}
		})
	}
}

// mustHoldFilesOnly checks that a sandbox has files, and nothing else.
func (w *world) mustHoldFilesOnly(id string) {
	w.t.Helper()
	runtimetest.Eventually(w.t, id+" has only files", func() bool {
		list, _, err := cubelet.Leftovers(w.cfg.DataDir)
		check(w.t, err)
		return len(list) == 1 && strings.HasSuffix(list[0], filepath.Join("sandboxes", id))
	})
}

// Snapshots outlive their sandbox; any number of others begin with one, each
// with its own name, address and token; and the sandbox can go back to it.
func TestSnapshotsMakeSandboxes(t *testing.T) {
	w := newWorld(t).open().hold()
	r := counts()
	w.create(r)
	i := r.GetSandboxId()
	w.countsBeyond(i, 10)
	memory, disk := w.snapshot(i, true), w.snapshot(i, false)
	then := w.counted(i)
	w.countsBeyond(i, then)
	if got := w.exec(i, "probe", "fill", "/root/later", "1"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	// Back, twice: with its memory, and without.
	for n, k := range []*hostpb.Snapshot{memory, disk} {
		check(t, w.rollback(i, k.GetSnapshotId(), int64(10+n)))
		check(t, w.rollback(i, k.GetSnapshotId(), int64(10+n)))
		if got := w.exec(i, "probe", "list", "/root"); strings.Contains(got.out, "later") {
			t.Errorf("after the rollback: %+v", got)
		}
		w.countsBeyond(i, w.counted(i))
	}
	// Of a paused one.
	check(t, w.pause(i, 20, true))
	third := w.snapshot(i, true)
	check(t, w.rollback(i, memory.GetSnapshotId(), 21))
	w.countsBeyond(i, w.counted(i))
	w.delete(i)
	if _, err := w.host.RemoveArtifact(w.ctx(), &hostpb.RemoveArtifactRequest{ArtifactId: artifactID}); !errors.Is(serve.FromGRPC(err), fault.TemplateInUse) {
		t.Errorf("the template of snapshots could be removed: %v", err)
	}
	w.stop()
	w.open()
	list, err := w.host.ListSnapshots(w.ctx(), &hostpb.ListSnapshotsRequest{})
	check(t, err)
	if len(list.GetSnapshots()) != 3 {
		t.Errorf("after a restart: %v", list)
	}
	if a := w.cube.Truth().GetAllocated(); a.GetDiskBytes() != memory.GetSizeBytes()+disk.GetSizeBytes()+third.GetSizeBytes() {
		t.Errorf("snapshots of %v are charged as %v", list, a)
	}
	var clones []*hostpb.CreateSandboxRequest
	for n := range 9 {
		c := counts()
		c.SnapshotId = []*hostpb.Snapshot{memory, disk, third}[n%3].GetSnapshotId()
		clones = append(clones, c)
	}
	var group sync.WaitGroup
	for n, c := range clones {
		group.Go(func() {
			if _, err := w.host.CreateSandbox(w.ctx(), c); err != nil {
				t.Error(serve.FromGRPC(err))
				return
			}
			before := w.counted(c.GetSandboxId())
			if n%3 != 1 && before < 10 {
				t.Errorf("a clone counts from %d", before)
			}
			w.countsBeyond(c.GetSandboxId(), before)
			for _, file := range []string{"/etc/hosts", "/etc/hostname"} {
				if got := w.exec(c.GetSandboxId(), "probe", "cat", file); !strings.Contains(got.out, c.GetSandboxId()) || strings.Contains(got.out, i) {
					t.Errorf("%s of a clone: %+v", file, got)
				}
			}
		})
	}
	// They are deleted while sandboxes start with them.
	for _, k := range []*hostpb.Snapshot{memory, disk, third} {
		if k == memory {
			continue
		}
		defer w.dropSnapshot(k.GetSnapshotId())
	}
	group.Wait()
	w.dropSnapshot(memory.GetSnapshotId())
	again := counts()
	again.SnapshotId = memory.GetSnapshotId()
	if _, err := w.host.CreateSandbox(w.ctx(), again); !errors.Is(serve.FromGRPC(err), fault.SnapshotNotFound) {
		t.Errorf("a create from a deleted snapshot: %v", err)
	}
	for _, c := range clones {
		w.delete(c.GetSandboxId())
	}
	w.mustBeEmpty()
}

// What fails leaves the sandbox as it was, and says so again when it is asked
// again.
func TestALifeThatFailsLeavesTheLifeBefore(t *testing.T) {
	w := newWorld(t).open().hold()
	r := counts()
	w.create(r)
	i := r.GetSandboxId()
	w.countsBeyond(i, 10)
	k := w.snapshot(i, true)
	generation := int64(1)
	broken := func(place string, code *fault.Code, act func(generation int64) error, is hostpb.SandboxState) {
		t.Helper()
		generation++
		disarm := fail.Arm(place, "error")
		err := act(generation)
		disarm()
		if !errors.Is(err, code) {
			t.Fatalf("%s: %v", place, err)
		}
		if again := act(generation); !errors.Is(again, code) {
			t.Errorf("%s: the same again: %v", place, again)
		}
		if got := w.state(i); got != is {
			t.Fatalf("%s: it is %s", place, got)
		}
		if is == isRunning {
			w.countsBeyond(i, w.counted(i))
		}
	}
	pause := func(g int64) error { return w.pause(i, g, true) }
	resume := func(g int64) error { return w.resume(i, g) }
	rollback := func(g int64) error { return w.rollback(i, k.GetSnapshotId(), g) }
	broken("cubelet.pause.journal", fault.CannotKeep, pause, isRunning)
	broken("cubelet.pause.kept", fault.CannotKeep, pause, isRunning)
	broken("cubelet.rollback.journal", fault.CannotRollBack, rollback, isRunning)
	broken("cubelet.rollback.kept", fault.CannotRollBack, rollback, isRunning)
	generation++
	check(t, w.pause(i, generation, true))
	for _, place := range []string{"cubelet.create.journal", "cubelet.create.parts", "cubelet.create.runtime", "cubelet.create.init", "cubelet.create.confirm"} {
		broken(place, fault.CannotResume, resume, isPaused)
		w.mustHoldFilesOnly(i)
	}
	broken("cubelet.rollback.kept", fault.CannotRollBack, rollback, isPaused)
	generation++
	check(t, w.resume(i, generation))
	w.countsBeyond(i, 10)
	broken("cubelet.rollback.given", fault.CannotRollBack, rollback, isPaused)
	w.mustHoldFilesOnly(i)
	generation++
	check(t, w.resume(i, generation))
	for _, place := range []string{"cubelet.snapshot.kept", "cubelet.snapshot.confirm"} {
		disarm := fail.Arm(place, "error")
		_, err := w.host.CreateSnapshot(w.ctx(), &hostpb.CreateSnapshotRequest{SnapshotId: id.New("snap-"), SandboxId: i, WithMemory: true})
		disarm()
		if !errors.Is(serve.FromGRPC(err), fault.SnapshotFailed) {
			t.Errorf("%s: %v", place, err)
		}
		w.countsBeyond(i, w.counted(i))
	}
	names, err := os.ReadDir(w.path("snapshots"))
	check(t, err)
	if len(names) != 1 {
		t.Errorf("snapshots that failed leave %v", names)
	}
	w.dropSnapshot(k.GetSnapshotId())
	w.delete(i)
	w.mustBeEmpty()
}

// The cubelet is killed at each step of a life: the next one finds the sandbox
// running as before, or kept, and can go on from there.
func TestCrashAroundALifeConverges(t *testing.T) {
	for _, c := range []struct {
		step string
		is   hostpb.SandboxState
	}{
		{"pause.journal", isRunning},
		{"pause.kept", isRunning},
		{"create.journal@2", isPaused},
		{"create.runtime@2", isPaused},
		{"create.init@2", isPaused},
		{"create.confirm@2", isRunning},
		{"snapshot.kept", isRunning},
		{"snapshot.confirm", isRunning},
		{"rollback.journal", isRunning},
		{"rollback.kept", isRunning},
		{"rollback.given", isPaused},
	} {
		t.Run(c.step, func(t *testing.T) {
			w := newWorld(t)
			step, visit, _ := strings.Cut(c.step, "@")
			arm := "cubelet." + step + "=crash"
			if visit != "" {
				arm += "@" + visit
			}
			_, died := w.openChild(arm)
			w.hold()
			r := counts()
			w.create(r)
			i := r.GetSandboxId()
			w.countsBeyond(i, 10)
			switch {
			case strings.HasPrefix(step, "pause"):
				_ = w.pause(i, 2, true)
			case strings.HasPrefix(step, "create"):
				check(t, w.pause(i, 2, true))
				_ = w.resume(i, 3)
			default:
				k := id.New("snap-")
				_, err := w.host.CreateSnapshot(w.ctx(), &hostpb.CreateSnapshotRequest{SnapshotId: k, SandboxId: i, WithMemory: true})
				if strings.HasPrefix(step, "rollback") {
					check(t, err)
					_ = w.rollback(i, k, 2)
				}
			}
			<-died
			w.open()
			if got := w.state(i); got != c.is {
				t.Fatalf("it is %s", got)
			}
			if c.is == isPaused {
				w.mustHoldFilesOnly(i)
				check(t, w.resume(i, 10))
			}
			before := w.counted(i)
			if before < 10 {
				t.Errorf("it counts from %d", before)
			}
			w.countsBeyond(i, before)
			check(t, w.pause(i, 11, true))
			check(t, w.resume(i, 12))
			w.countsBeyond(i, before)
			w.delete(i)
			list, err := w.host.ListSnapshots(w.ctx(), &hostpb.ListSnapshotsRequest{})
			check(t, err)
			for _, k := range list.GetSnapshots() {
				w.dropSnapshot(k.GetSnapshotId())
			}
			w.mustBeEmpty()
		})
	}
}

// A delete wins over whatever a sandbox goes through.
func TestADeleteWinsOverEachLife(t *testing.T) {
	w := newWorld(t).open().hold()
	k := ""
	for n, act := range []func(i string){
		func(i string) { _ = w.pause(i, 2, true) },
		func(i string) { check(t, w.pause(i, 2, true)); _ = w.resume(i, 3) },
		func(i string) { _ = w.rollback(i, k, 2) },
		func(i string) {
			_, _ = w.host.CreateSnapshot(w.ctx(), &hostpb.CreateSnapshotRequest{SnapshotId: id.New("snap-"), SandboxId: i, WithMemory: true})
		},
	} {
		r := counts()
		w.create(r)
		i := r.GetSandboxId()
		if k == "" {
			k = w.snapshot(i, true).GetSnapshotId()
		}
		var group sync.WaitGroup
		group.Go(func() { act(i) })
		runtimetest.Eventually(t, "it is on its way", func() bool { s, err := w.get(i); return err != nil || s.GetGeneration() > int64(1+n%2) || n == 3 })
		for range 3 {
			group.Go(func() { w.delete(i) })
		}
		group.Wait()
		if _, err := w.get(i); !errors.Is(err, fault.SandboxNotFound) {
			t.Errorf("act %d: after the delete: %v", n, err)
		}
		w.delete(i)
	}
	list, err := w.host.ListSnapshots(w.ctx(), &hostpb.ListSnapshotsRequest{})
	check(t, err)
	for _, k := range list.GetSnapshots() {
		w.dropSnapshot(k.GetSnapshotId())
	}
	w.mustBeEmpty()
}

// refused is why a command cannot be run in a sandbox.
func (w *world) refused(id string) error {
	w.t.Helper()
	_, err := w.run(&hostpb.ExecStart{SandboxId: id, Command: []string{"probe", "env"}}, nil)
	return err
}
