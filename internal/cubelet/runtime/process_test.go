package runtime_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
)

func start(t *testing.T) (*exec.Cmd, runtime.Process) {
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p, ok := runtime.Find(c.Process.Pid)
	if !ok || !p.Alive() {
		t.Fatal("a process that runs is not found")
	}
	return c, p
}

func TestWaitReturnsAtTheEnd(t *testing.T) {
	c, p := start(t)
	ended := make(chan error, 1)
	go func() { ended <- p.Wait(t.Context()) }()
	select {
	case err := <-ended:
		t.Fatalf("it ended before the process: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if p.Alive() {
		t.Error("its remains count as alive")
	}
	_ = c.Wait() // it was killed
	if err := p.Wait(t.Context()); err != nil {
		t.Errorf("waiting for one that is gone: %v", err)
	}
	if err := p.Kill(); err != nil {
		t.Errorf("killing one that is gone: %v", err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	c, p := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // it was killed
}

// A number that was given again is not the process that had it.
func TestNumberAloneIsNoProcess(t *testing.T) {
	me, ok := runtime.Find(os.Getpid())
	if !ok {
		t.Fatal("this process is not found")
	}
	other := runtime.Process{PID: me.PID, Born: "1@another-boot"}
	if other.Alive() || (runtime.Process{}).Alive() {
		t.Error("taken for a process that runs")
	}
	if err := other.Kill(); err != nil { // would end the test
		t.Error(err)
	}
	if err := other.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}
