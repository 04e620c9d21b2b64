package cubelet_test

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

func leftovers(w *world) ([]string, []string, error) { return cubelet.Leftovers(w.cfg.DataDir) }

// kernelOf returns the process of a sandbox, from the journal.
func (w *world) kernelOf(id string) int {
	w.t.Helper()
	b, err := os.ReadFile(w.path("sandboxes", id, "journal.json"))
	check(w.t, err)
	var e struct {
		Kernel struct {
			PID int `json:"pid"`
		} `json:"kernel"`
	}
	check(w.t, json.Unmarshal(b, &e))
	if e.Kernel.PID <= 1 {
		w.t.Fatalf("no kernel in %s", b)
	}
	return e.Kernel.PID
}

// exitedFor waits until the host tells that a sandbox ended, and why.
func (w *world) exitedFor(id, why string) {
	w.t.Helper()
	var last *hostpb.Sandbox
	runtimetest.Eventually(w.t, "the end is noticed", func() bool {
		s, err := w.get(id)
		check(w.t, err)
		last = s
		return s.GetState() == hostpb.SandboxState_SANDBOX_STATE_EXITED
	})
	if !strings.HasPrefix(last.GetReason(), why) {
		w.t.Errorf("reason %q, want %s", last.GetReason(), why)
	}
}

func TestOutOfMemoryIsNoticed(t *testing.T) {
	w := newWorld(t).open().hold()
	s := w.create(request())
	_, err := w.run(&hostpb.ExecStart{SandboxId: s.GetSandboxId(), Command: []string{"probe", "allocate", "1024"}}, nil)
	if err == nil {
		t.Error("1024 MiB of 256 were allocated")
	}
	w.exitedFor(s.GetSandboxId(), "oom")
	w.mustHaveReleased(s.GetSandboxId())
}

func TestDeathIsNoticed(t *testing.T) {
	w := newWorld(t).open().hold()
	s := w.create(request())
	check(t, syscall.Kill(w.kernelOf(s.GetSandboxId()), syscall.SIGKILL))
	w.exitedFor(s.GetSandboxId(), "exited")
	w.mustHaveReleased(s.GetSandboxId())
	if _, err := w.run(&hostpb.ExecStart{SandboxId: s.GetSandboxId(), Command: []string{"probe"}}, nil); err == nil || !strings.Contains(err.Error(), "exited") {
		t.Errorf("exec in a dead sandbox: %v", err)
	}
	w.delete(s.GetSandboxId())
	w.mustBeEmpty()
}

// The address of a dead sandbox goes to another, which keeps it when the dead
// one is deleted.
func TestADeadSandboxTakesNoNetworkWithIt(t *testing.T) {
	w := newWorld(t).open().hold()
	before, dead := w.create(request()), w.create(request())
	w.delete(before.GetSandboxId())
	check(t, syscall.Kill(w.kernelOf(dead.GetSandboxId()), syscall.SIGKILL))
	w.exitedFor(dead.GetSandboxId(), "exited")
	w.mustHaveReleased(dead.GetSandboxId())
	for given := ""; given != before.GetIp(); { // go round: then the next is that of the dead
		n, err := w.cube.Networks().Reserve("round")
		check(t, err)
		w.cube.Networks().Release(n)
		given = n.IP
	}
	s := w.create(request())
	if s.GetIp() != dead.GetIp() {
		t.Fatalf("it has %s, not %s", s.GetIp(), dead.GetIp())
	}
	w.delete(dead.GetSandboxId())
	if _, err := w.run(&hostpb.ExecStart{SandboxId: s.GetSandboxId(), Command: []string{"probe"}}, nil); err != nil {
		t.Errorf("exec: %v", err)
	}
	w.delete(s.GetSandboxId())
	w.mustBeEmpty()
}

// mustHaveReleased checks that of a dead sandbox only the record is left.
func (w *world) mustHaveReleased(id string) {
	w.t.Helper()
	runtimetest.Eventually(w.t, "only the record is left", func() bool {
		list, _, err := leftovers(w)
		check(w.t, err)
		return len(list) == 1 && strings.HasSuffix(list[0], "/sandboxes/"+id)
	})
}

// What a sandbox writes to its first program's output fills no disk.
func TestLogIsBounded(t *testing.T) {
	w := newWorld(t).open().hold()
	s := w.create(request())
	if got := w.exec(s.GetSandboxId(), "probe", "flood", "/proc/1/fd/2", "8"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	runtimetest.Eventually(t, "the log is short", func() bool {
		var st unix.Stat_t // its beginning becomes a hole
		check(t, unix.Stat(w.path("sandboxes", s.GetSandboxId(), "log"), &st))
		return st.Blocks*512 <= 1<<20
	})
}
