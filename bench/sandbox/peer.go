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
	"golang.org/x/sys/unix"
)

// peer is a sandbox that the runtime alone runs, of the bundle that Paddock
// made for one of its own.
type peer struct {
	runsc, id, dir, netns string
}

// startPeer starts the bundle of the sandbox called id once more, without
// Paddock: no journal, no limits, no waiting for the guest. Only the runtime's
// own start is timed.
func (r *rig) startPeer(ctx context.Context, id string) (*peer, time.Duration, error) {
	r.peers++
	p := &peer{
		runsc: filepath.Join(r.bin, "runsc"), id: fmt.Sprintf("b%024x", r.peers),
		dir: filepath.Join(r.dir, fmt.Sprintf("peer%d", r.peers)), netns: fmt.Sprintf("paddock-bench-%d-%d", os.Getpid(), r.peers),
	}
	if err := command(ctx, "ip", "netns", "add", p.netns); err != nil {
		return nil, 0, err
	}
	r.peer = p // from here on there is something to end
	if err := r.copyBundle(id, p); err != nil {
		return nil, 0, err
	}
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return nil, 0, err
	}
	defer log.Close()
	start := exec.CommandContext(ctx, p.runsc, p.args("run", "-detach", "-bundle", p.dir, p.id)...)
	start.Stdout, start.Stderr = log, log // it is handed on to the sandbox, so it must be a file
	began := time.Now()
	err = start.Run()
	return p, time.Since(began), err
}

// args are the flags with which the cubelet runs a sandbox, and words.
func (p *peer) args(words ...string) []string {
	return append([]string{
		"--root", filepath.Join(p.dir, "state"), "--ignore-cgroups", "--network=sandbox", "--platform=systrap", "--allow-rootfs-tar-annotation", "--allow-suid", "--host-settings=ignore",
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d", filepath.Join(p.dir, "upper"), 1<<30),
	}, words...)
}

// copyBundle gives p the bundle of a sandbox of the rig's Paddock, in a
// network namespace of its own.
func (r *rig) copyBundle(id string, p *peer) error {
	for _, dir := range []string{"state", "upper"} {
		if err := os.MkdirAll(filepath.Join(p.dir, dir), 0o700); err != nil {
			return err
		}
	}
	var found []string
	for _, below := range []string{"bundle", "*/bundle"} {
		some, err := filepath.Glob(filepath.Join(r.dir, "data", "cubelet", "*", id, below, "config.json"))
		if err != nil {
			return err
		}
		found = append(found, some...)
	}
	if len(found) != 1 {
		return fmt.Errorf("%d bundles of sandbox %s", len(found), id)
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return err
	}
	for i, n := range spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			spec.Linux.Namespaces[i].Path = "/run/netns/" + p.netns
		}
	}
	if b, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dir, "config.json"), b, 0o600)
}

// exec runs a program by the runtime's own exec and tells how long it took.
func (p *peer) exec(ctx context.Context, program string) (time.Duration, error) {
	began := time.Now()
	err := command(ctx, p.runsc, p.args("exec", p.id, program)...)
	return time.Since(began), err
}

// end removes the peer and all that it had.
func (p *peer) end(ctx context.Context) error {
	errs := []error{
		command(ctx, p.runsc, p.args("delete", "-force", p.id)...),
		command(ctx, "ip", "netns", "delete", p.netns),
	}
	// The runtime leaves an empty network namespace mounted in its state.
	err := unix.Unmount(filepath.Join(p.dir, "state", "null-netns"), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
