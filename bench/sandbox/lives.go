package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/paddock-dev/paddock/bench"
	"github.com/paddock-dev/paddock/internal/cubeapi"
)

// warmTries bounds the creates of which some find nothing that waits.
const warmTries = 5

// lives are the durations of what becomes of a sandbox.
type lives struct{ warm, remove, pause, resume, snapshot []time.Duration }

func measureLives(ctx context.Context, bin string, n int) (_ []bench.Figure, err error) {
	if bin, err = filepath.Abs(bin); err != nil {
		return nil, err
	}
	r, err := newRig(ctx, bin, true)
	if err != nil {
		return nil, err
	}
	defer func() {
		if late := r.close(); err == nil {
			err = late
		}
	}()
	var l lives
	for try := 0; len(l.warm) < n; try++ {
		if try == warmTries*(n+1) {
			return nil, fmt.Errorf("of %d creates only %d found a sandbox that waited", try, len(l.warm))
		}
		if err := l.round(ctx, r); err != nil {
			return nil, err
		}
	}
	figure := func(name string, all []time.Duration, note string) bench.Figure {
		return bench.Figure{Name: "sandbox." + name, Value: bench.P50(all), Unit: "ms", N: len(all), Note: "p50 through the master, " + note + "; " + bench.Range(all)}
	}
	return []bench.Figure{
		figure("create_warm_p50_ms", l.warm, "one at a time, of those that found one waiting"),
		figure("delete_p50_ms", l.remove, "until it is gone"),
		figure("pause_ms", l.pause, "with memory, idle"),
		figure("resume_ms", l.resume, "with memory, until it is usable"),
		figure("snapshot_ms", l.snapshot, "with memory, of a running one"),
	}, nil
}

func (l *lives) round(ctx context.Context, r *rig) error {
	began := time.Now()
	box, err := r.api.CreateSandbox(ctx, cubeapi.SandboxCreateRequest{TemplateID: template})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if _, waited := box.ExtInfo["step-claim"]; waited {
		l.warm = append(l.warm, time.Since(began))
	}
	id := box.SandboxID
	var kept *cubeapi.Snapshot
	for _, step := range []struct {
		into *[]time.Duration
		do   func() error
	}{
		{&l.pause, func() error { _, err := r.api.Pause(ctx, cubeapi.PauseRequest{SandboxID: id}); return err }},
		{&l.resume, func() error { _, err := r.api.Resume(ctx, cubeapi.ResumeRequest{SandboxID: id}); return err }},
		{&l.snapshot, func() (err error) {
			kept, err = r.api.Snapshot(ctx, cubeapi.SnapshotRequest{SandboxID: id})
			return err
		}},
		{&l.remove, func() error { return r.api.DeleteSandbox(ctx, id) }},
	} {
		began := time.Now()
		if err := step.do(); err != nil {
			return err
		}
		*step.into = append(*step.into, time.Since(began))
	}
	return r.api.DeleteSnapshot(ctx, kept.SnapshotID)
}
