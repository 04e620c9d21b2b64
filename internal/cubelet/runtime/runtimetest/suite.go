package runtimetest

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
)

// World is where a driver's sandboxes live during the suite.
type World struct {
	Driver runtime.Driver
	// New makes everything that a sandbox needs around it: root filesystem,
	// network, limits. It removes it, and the sandbox, with the test.
	New func(tb testing.TB, o Options) runtime.Sandbox
	// LimitCPU bounds a sandbox that runs.
	LimitCPU func(tb testing.TB, id string, milli int64)
	// Processes tells how many processes and threads a sandbox has on the host.
	Processes func(tb testing.TB, id string) int
}

// Options of one sandbox. Zero is a default that is enough.
type Options struct {
	Args          []string
	WritableBytes int64
	MemBytes      int64
	PIDs          int64
	Layer         string
	Privileges    runtime.Privileges
	Mounts        []runtime.Mount
}

// Run runs the suite.
func Run(t *testing.T, w World) {
	for name, test := range map[string]func(*testing.T, World){
		"StartExecDelete":           startExecDelete,
		"SeesItsOwnAndNotTheHost":   seesItsOwn,
		"WritesAreBounded":          writesAreBounded,
		"WritesArePrivate":          writesArePrivate,
		"MemoryIsBounded":           memoryIsBounded,
		"CPUIsBounded":              cpuIsBounded,
		"ProcessesAreBounded":       processesAreBounded,
		"DeathIsSeen":               deathIsSeen,
		"FirstProgramEndsIt":        firstProgramEndsIt,
		"ListTellsAll":              listTellsAll,
		"CancelledStartIsRemoved":   cancelledStart,
		"StartsAtOnce":              startsAtOnce,
		"UnknownIsDeletedAndAbsent": unknown,
	} {
		t.Run(name, func(t *testing.T) { test(t, w) })
	}
	if d, ok := w.Driver.(runtime.Freezer); ok {
		t.Run("Freeze", func(t *testing.T) { freeze(t, w, d) })
	}
	if d, ok := w.Driver.(runtime.Differ); ok {
		t.Run("Diff", func(t *testing.T) { diff(t, w, d) })
	}
	if d, ok := w.Driver.(runtime.Checkpointer); ok {
		t.Run("Checkpoint", func(t *testing.T) { checkpoint(t, w, d) })
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (w World) start(t *testing.T, o Options) (runtime.Sandbox, runtime.Process) {
	t.Helper()
	if o.Args == nil {
		o.Args = []string{ProbePath, "sleep", "3600"}
	}
	s := w.New(t, o)
	p, err := w.Driver.Start(bounded(t), s)
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

// exec runs the probe and returns its status and what it said.
func (w World) exec(t *testing.T, id string, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	status, err := w.Driver.Exec(bounded(t), id, runtime.Command{Args: append([]string{ProbePath}, args...), Stdout: &out})
	if err != nil {
		t.Fatalf("exec %v: %v", args, err)
	}
	return status, strings.TrimSpace(out.String())
}

func startExecDelete(t *testing.T, w World) {
	s, p := w.start(t, Options{})
	if !p.Alive() {
		t.Fatal("the process that Start returned does not run")
	}
	st, ok, err := w.Driver.Status(bounded(t), s.ID)
	if err != nil || !ok || !st.Running || st.Process != p {
		t.Fatalf("status %+v, %v, %v; want process %+v running", st, ok, err, p)
	}
	if status, out := w.exec(t, s.ID, "echo", "hello", "world"); status != 0 || out != "hello world" {
		t.Errorf("echo: status %d, %q", status, out)
	}
	if status, _ := w.exec(t, s.ID, "exit", "7"); status != 7 {
		t.Errorf("exit status %d, want 7", status)
	}
	for range 2 { // the second time there is nothing left
		if err := w.Driver.Delete(bounded(t), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if p.Alive() {
		t.Error("the sandbox runs after its delete")
	}
	if _, ok, err := w.Driver.Status(bounded(t), s.ID); ok || err != nil {
		t.Errorf("status after delete: %v, %v", ok, err)
	}
	if _, err := w.Driver.Exec(bounded(t), s.ID, runtime.Command{Args: []string{ProbePath, "echo"}}); err == nil {
		t.Error("exec in a deleted sandbox succeeds")
	}
}

func seesItsOwn(t *testing.T, w World) {
	s, _ := w.start(t, Options{})
	for path, want := range map[string]string{"/etc/hostname": s.Hostname, "/etc/hosts": "localhost", "/etc/passwd": "root:x:0:0"} {
		if status, out := w.exec(t, s.ID, "cat", path); status != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: status %d, %q; want %q in it", path, status, out, want)
		}
	}
	_, mounts := w.exec(t, s.ID, "cat", "/proc/mounts")
	for _, path := range []string{s.RootFS, s.Dir, "/dev/loop", "cgroup"} {
		if strings.Contains(mounts, path) {
			t.Errorf("/proc/mounts tells of the host's %s:\n%s", path, mounts)
		}
	}
	_, procs := w.exec(t, s.ID, "list", "/proc")
	n := 0
	for _, name := range strings.Fields(procs) {
		if _, err := strconv.Atoi(name); err == nil {
			n++
		}
	}
	if n == 0 || n > 3 {
		t.Errorf("%d processes are visible, want its own", n)
	}
	for _, dir := range []string{"/proc", "/dev", "/sys", "/tmp"} {
		if status, out := w.exec(t, s.ID, "list", dir); status != 0 || out == "" && dir != "/tmp" {
			t.Errorf("%s: status %d, %q", dir, status, out)
		}
	}
}

func writesAreBounded(t *testing.T, w World) {
	s, p := w.start(t, Options{WritableBytes: 16 << 20})
	for _, path := range []string{"/root/big", "/tmp/big"} {
		if status, out := w.exec(t, s.ID, "fill", path, "64"); status == 0 || !strings.Contains(out, "ENOSPC") {
			t.Errorf("64 MiB to %s of 16: status %d, %q", path, status, out)
		}
	}
	if !p.Alive() {
		t.Error("a full layer ended the sandbox")
	}
	if status, out := w.exec(t, s.ID, "echo", "still"); status != 0 || out != "still" {
		t.Errorf("with a full layer: status %d, %q", status, out)
	}
}

func writesArePrivate(t *testing.T, w World) {
	a, _ := w.start(t, Options{})
	b, _ := w.start(t, Options{})
	if status, out := w.exec(t, a.ID, "fill", "/root/mine", "1"); status != 0 {
		t.Fatalf("status %d, %q", status, out)
	}
	if _, out := w.exec(t, a.ID, "list", "/root"); out != "mine\nsub" {
		t.Errorf("its own file is not there: %q", out)
	}
	if _, out := w.exec(t, b.ID, "list", "/root"); out != "sub" {
		t.Errorf("the neighbour sees %q", out)
	}
}

func memoryIsBounded(t *testing.T, w World) {
	s, p := w.start(t, Options{MemBytes: 128 << 20})
	if status, out := w.exec(t, s.ID, "allocate", "32"); status != 0 || out != "allocated 32" {
		t.Errorf("32 MiB of 128: status %d, %q", status, out)
	}
	var out bytes.Buffer
	status, err := w.Driver.Exec(bounded(t), s.ID, runtime.Command{Args: []string{ProbePath, "allocate", "512"}, Stdout: &out})
	if err == nil && status == 0 {
		t.Errorf("512 MiB of 128: %s", out.String())
	}
	// A runtime may end the process or the whole sandbox, but must say which.
	// The kernel of a sandbox that is killed takes a moment to be gone.
	Eventually(t, "the runtime and the process table agree", func() bool {
		st, ok, err := w.Driver.Status(bounded(t), s.ID)
		return err == nil && ok && st.Running == p.Alive()
	})
}

func cpuIsBounded(t *testing.T, w World) {
	s, _ := w.start(t, Options{})
	rounds := func() int {
		_, out := w.exec(t, s.ID, "spin", "700")
		n, err := strconv.Atoi(out)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// A new sandbox may ask its clock the slow way until it has calibrated it,
	// and the rounds ask the clock.
	free := max(rounds(), rounds(), rounds())
	w.LimitCPU(t, s.ID, 100)
	if slow := rounds(); slow > free/2 {
		t.Errorf("with a tenth of a core %d rounds, without a limit %d", slow, free)
	}
}

// A runtime may refuse the fork or end the sandbox; the host sees no more
// processes than were allowed.
func processesAreBounded(t *testing.T, w World) {
	const limit = 200
	s, p := w.start(t, Options{PIDs: limit})
	ctx, cancel := context.WithTimeout(bounded(t), 10*time.Second)
	defer cancel()
	bombed := make(chan error, 1)
	var out bytes.Buffer
	go func() {
		_, err := w.Driver.Exec(ctx, s.ID, runtime.Command{Args: []string{ProbePath, "fork", "400"}, Stdout: &out})
		bombed <- err
	}()
	for {
		if n := w.Processes(t, s.ID); n > limit {
			t.Fatalf("%d processes of %d allowed", n, limit)
		}
		select {
		case err := <-bombed:
			if strings.Contains(out.String(), "forked 400") {
				t.Errorf("400 processes of %d allowed (%v); the sandbox runs: %v", limit, err, p.Alive())
			}
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func deathIsSeen(t *testing.T, w World) {
	s, p := w.start(t, Options{})
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	st, ok, err := w.Driver.Status(bounded(t), s.ID)
	if err != nil || !ok || st.Running {
		t.Errorf("status of a dead sandbox: %+v, %v, %v", st, ok, err)
	}
	if err := w.Driver.Delete(bounded(t), s.ID); err != nil {
		t.Error(err)
	}
}

func firstProgramEndsIt(t *testing.T, w World) {
	s, p := w.start(t, Options{Args: []string{ProbePath, "sleep", "1"}})
	if err := p.Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if st, _, err := w.Driver.Status(bounded(t), s.ID); st.Running || err != nil {
		t.Errorf("status %+v, %v", st, err)
	}
}

func listTellsAll(t *testing.T, w World) {
	a, _ := w.start(t, Options{})
	b, _ := w.start(t, Options{})
	running := func() map[string]bool {
		list, err := w.Driver.List(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, s := range list {
			found[s.ID] = s.Running
		}
		return found
	}
	if got := running(); !got[a.ID] || !got[b.ID] {
		t.Errorf("list %v, want %s and %s", got, a.ID, b.ID)
	}
	if err := w.Driver.Delete(bounded(t), a.ID); err != nil {
		t.Fatal(err)
	}
	if got := running(); got[a.ID] || !got[b.ID] {
		t.Errorf("list %v after the delete of %s", got, a.ID)
	}
}

// cancelledStart gives a start up at several moments: whatever it came to,
// Delete leaves nothing of it.
func cancelledStart(t *testing.T, w World) {
	for _, after := range []time.Duration{0, 30 * time.Millisecond, 120 * time.Millisecond, 250 * time.Millisecond} {
		s := w.New(t, Options{Args: []string{ProbePath, "sleep", "3600"}})
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := w.Driver.Start(ctx, s)
		cancel()
		if err == nil {
			t.Logf("it started within %s", after)
		}
		if err := w.Driver.Delete(bounded(t), s.ID); err != nil {
			t.Fatal(err)
		}
		if st, ok, err := w.Driver.Status(bounded(t), s.ID); ok || err != nil {
			t.Errorf("after %s: %+v, %v", after, st, err)
		}
		Eventually(t, "no process is left", func() bool { return w.Processes(t, s.ID) == 0 })
	}
}

func startsAtOnce(t *testing.T, w World) {
	list := make([]runtime.Sandbox, 4)
	for i := range list {
		list[i] = w.New(t, Options{Args: []string{ProbePath, "sleep", "3600"}})
	}
	errs := make([]error, len(list))
	var group sync.WaitGroup
	for i, s := range list {
		group.Go(func() { _, errs[i] = w.Driver.Start(bounded(t), s) })
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
		if status, out := w.exec(t, list[i].ID, "cat", "/etc/hostname"); status != 0 || out != list[i].Hostname {
			t.Errorf("status %d, %q, want %q", status, out, list[i].Hostname)
		}
	}
}

func unknown(t *testing.T, w World) {
	const id = "i000000000000000000000000"
	if err := w.Driver.Delete(bounded(t), id); err != nil {
		t.Error(err)
	}
	if _, ok, err := w.Driver.Status(bounded(t), id); ok || err != nil {
		t.Errorf("status: %v, %v", ok, err)
	}
}
