package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/paddock-dev/paddock/internal/cubelet/mount"
	"github.com/paddock-dev/paddock/internal/cubelet/runsc"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
)

// peer is a sandbox that the runtime alone runs, of the bundle that Paddock
// made for one of its own.
type peer struct {
	driver *runsc.Driver
	binary string
	box    runtime.Sandbox
	netns  string
}

// startPeer starts the bundle of the sandbox called id once more, without
// Paddock: no journal, no limits, no waiting for the guest. Only the runtime's
// own start is timed.
func (r *rig) startPeer(ctx context.Context, id string) (*peer, time.Duration, error) {
	spec, err := r.bundle(id)
	if err != nil {
		return nil, 0, err
	}
	r.peers++
	p := &peer{binary: filepath.Join(r.bin, "runsc"), netns: fmt.Sprintf("paddock-bench-%d-%d", os.Getpid(), r.peers)}
	dir := filepath.Join(r.dir, fmt.Sprintf("peer%d", r.peers))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, 0, err
	}
	if p.driver, err = runsc.Open(p.binary, filepath.Join(dir, "state")); err != nil {
		return nil, 0, err
	}
	if err := command(ctx, "ip", "netns", "add", p.netns); err != nil {
		return nil, 0, err
	}
	p.box = runtime.Sandbox{
		ID: fmt.Sprintf("i%024x", r.peers), Dir: dir, RootFS: spec.Root.Path, NetNS: "/run/netns/" + p.netns, WritableBytes: 1 << 30,
		Args: spec.Process.Args, Env: spec.Process.Env, Hostname: spec.Hostname, Log: filepath.Join(dir, "log"), Join: exec.CommandContext,
	}
	r.peer = p // from here on there is something to end
	began := time.Now()
	_, err = p.driver.Start(ctx, p.box)
	return p, time.Since(began), err
}

// bundle reads the bundle of a sandbox of the rig's Paddock.
func (r *rig) bundle(id string) (*specs.Spec, error) {
	found, err := filepath.Glob(filepath.Join(r.dir, "data", "cubelet", "*", id, "runtime", "bundle", "config.json"))
	if err != nil || len(found) != 1 {
		return nil, errors.Join(fmt.Errorf("%d bundles of sandbox %s", len(found), id), err)
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		return nil, err
	}
	var spec specs.Spec
	return &spec, json.Unmarshal(b, &spec)
}

func (p *peer) runsc(args ...string) []string { return append(p.driver.Flags(p.box), args...) }

// exec runs a program by the runtime's own exec and tells how long it took.
func (p *peer) exec(ctx context.Context, program string) (time.Duration, error) {
	began := time.Now()
	err := command(ctx, p.binary, p.runsc("exec", p.box.ID, program)...)
	return time.Since(began), err
}

// end removes the peer and all that it had.
func (p *peer) end(ctx context.Context) error {
	return errors.Join(
		command(ctx, p.binary, p.runsc("delete", "-force", p.box.ID)...),
		command(ctx, "ip", "netns", "delete", p.netns),
		mount.DetachBelow(p.box.Dir), // the runtime leaves one in its state
		os.RemoveAll(p.box.Dir))
}

func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
