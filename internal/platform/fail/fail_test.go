package fail_test

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
)

// Two of the program's places.
const (
	here      = "rootfs.pull"
	elsewhere = "master.create.after_row"
)

// The test program is also the program that is broken: with a task in its
// environment it does that task instead of testing.
func TestMain(m *testing.M) {
	switch os.Getenv("FAIL_TASK") {
	case "visit":
		if fail.Check() != nil {
			os.Exit(3)
		}
		for range 2 {
			if fail.Point(here) != nil {
				os.Exit(4)
			}
			_, _ = os.Stdout.WriteString("passed\n")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func visit(t *testing.T, list string) (string, *os.ProcessState) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "FAIL_TASK=visit", fail.Variable+"="+list)
	out, _ := c.Output() // how it ended is in the state
	return string(out), c.ProcessState
}

func TestTheEnvironmentBreaksTheProgram(t *testing.T) {
	for _, c := range []struct {
		list, out string
		exit      int // -1: killed
	}{
		{"", "passed\npassed\n", 0},
		{elsewhere + "=crash", "passed\npassed\n", 0},
		{here + "=error", "", 4},
		{here + "=error@2", "passed\n", 4},
		{here + "=crash", "", -1},
		{" " + elsewhere + "=error, " + here + "=crash@2", "passed\n", -1},
		{here + "=explode", "", 3},
		{here, "", 3},
		{here + "=crash@0", "", 3},
		{"=crash", "", 3},
		{"nowhere=crash", "", 3},
		{here + "=crash,rootfs.pul=crash", "", 3},
	} {
		out, state := visit(t, c.list)
		if out != c.out || state.ExitCode() != c.exit {
			t.Errorf("%q: printed %q and %v, want %q and status %d", c.list, out, state, c.out, c.exit)
		}
		if c.exit == -1 && state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("%q: ended by %v, want a kill", c.list, state)
		}
	}
}

func TestArmWithinATest(t *testing.T) {
	if err := fail.Point("p"); err != nil || fail.Visits("p") != 0 {
		t.Fatalf("unarmed: %v", err)
	}
	disarm := fail.Arm("p", "error@2")
	if err := fail.Point("p"); err != nil {
		t.Errorf("first visit: %v", err)
	}
	err := fail.Point("p")
	if !errors.Is(err, fail.ErrInjected) || !strings.Contains(err.Error(), "p: ") || fault.Of(err) != fault.Bug {
		t.Errorf("second visit: %v", err)
	}
	if !slices.Equal(fail.Armed(), []string{"p"}) || fail.Visits("p") != 2 {
		t.Errorf("armed %v, visits %d", fail.Armed(), fail.Visits("p"))
	}
	disarm()
	disarm()
	if err := fail.Point("p"); err != nil || len(fail.Armed()) != 0 {
		t.Errorf("disarmed: %v", err)
	}
}

func TestDisarmFreesWhatHangs(t *testing.T) {
	disarm := fail.Arm("h", "hang")
	done := make(chan error)
	go func() { done <- fail.Point("h") }()
	select {
	case err := <-done:
		t.Fatalf("it did not hang: %v", err)
	default:
	}
	disarm()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func BenchmarkUnarmed(b *testing.B) {
	for b.Loop() {
		_ = fail.Point("nowhere")
	}
}
