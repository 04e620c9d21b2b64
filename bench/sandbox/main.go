// Command sandbox measures what Paddock adds to its runtime: a create and an
// exec against the runtime's own start and exec of the same bundle, in the
// same run; and what becomes of sandboxes: creates that find one waiting, pauses,
// resumes and snapshots. It must never measure ours and the peer's at different times.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/paddock-dev/paddock/bench"
	"github.com/paddock-dev/paddock/internal/cubeapi"
)

func main() {
	asJSON := flag.Bool("json", false, "print one JSON object for each figure")
	n := flag.Int("n", 11, "rounds")
	bin := flag.String("bin", "bin", "directory of paddock, paddock-guest and runsc")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	figures, err := measure(ctx, *bin, *n)
	if err == nil {
		var more []bench.Figure
		more, err = measureLives(ctx, *bin, *n)
		figures = append(figures, more...)
	}
	if err == nil {
		err = bench.Print(os.Stdout, *asJSON, figures...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1) //nolint:gocritic // stop frees nothing that the exit does not
	}
}

// samples are the durations of one run.
type samples struct{ create, start, exec, runtimeExec []time.Duration }

func measure(ctx context.Context, bin string, n int) (_ []bench.Figure, err error) {
	if n < 1 {
		return nil, fmt.Errorf("-n %d: at least one round is needed", n)
	}
	bin, err = filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	r, err := newRig(ctx, bin, false)
	if err != nil {
		return nil, err
	}
	defer func() {
		if late := r.close(); err == nil {
			err = late
		}
	}()
	var s samples
	// The first of each warms caches and is not counted.
	for i := range n + 1 {
		if err := round(ctx, r, &s, i > 0); err != nil {
			return nil, err
		}
	}
	return s.figures(), nil
}

// round does each thing once, ours beside the peer's.
func round(ctx context.Context, r *rig, s *samples, counts bool) error {
	keep := func(into *[]time.Duration, d time.Duration) {
		if counts {
			*into = append(*into, d)
		}
	}
	began := time.Now()
	box, err := r.api.CreateSandbox(ctx, cubeapi.SandboxCreateRequest{TemplateID: template})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	keep(&s.create, time.Since(began))
	peer, took, err := r.startPeer(ctx, box.SandboxID)
	if err != nil {
		return fmt.Errorf("runsc run: %w", err)
	}
	keep(&s.start, took)

	began = time.Now()
	exit, err := r.api.Exec(ctx, cubeapi.ExecRequest{SandboxID: box.SandboxID, Command: []string{"/bin/true"}}, io.Discard, io.Discard)
	if err != nil || exit.Code != 0 {
		return fmt.Errorf("exec: status %d, %w", exit.Code, err)
	}
	keep(&s.exec, time.Since(began))
	took, err = peer.exec(ctx, "/bin/true")
	if err != nil {
		return fmt.Errorf("runsc exec: %w", err)
	}
	keep(&s.runtimeExec, took)
	r.peer = nil
	if err := peer.end(ctx); err != nil {
		return fmt.Errorf("runsc delete: %w", err)
	}
	return r.api.DeleteSandbox(ctx, box.SandboxID)
}

func (s samples) figures() []bench.Figure {
	create, start, exec, peer := bench.P50(s.create), bench.P50(s.start), bench.P50(s.exec), bench.P50(s.runtimeExec)
	n := len(s.create)
	return []bench.Figure{
		{Name: "sandbox.create_vs_runtime", Value: create / start, Unit: "x", N: n, Note: "p50 create-to-usable through the master over p50 `runsc run` of the same bundle; bound 1.3"},
		{Name: "sandbox.create_ms", Value: create, Unit: "ms", N: n, Note: "p50; " + bench.Range(s.create)},
		{Name: "sandbox.runtime_start_ms", Value: start, Unit: "ms", N: n, Note: "p50 of the peer; " + bench.Range(s.start)},
		{Name: "sandbox.exec_vs_runtime", Value: exec / peer, Unit: "x", N: n, Note: "p50 exec of /bin/true through the master over p50 `runsc exec`; bound 3"},
		{Name: "sandbox.exec_ms", Value: exec, Unit: "ms", N: n, Note: "p50; " + bench.Range(s.exec)},
		{Name: "sandbox.runtime_exec_ms", Value: peer, Unit: "ms", N: n, Note: "p50 of the peer; " + bench.Range(s.runtimeExec)},
	}
}
