package cubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
	"github.com/paddock-dev/paddock/internal/cubelet/mount"
	"github.com/paddock-dev/paddock/internal/cubelet/runsc"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/fail"
)

// state is where an instance stands on its host.
type state string

const (
	starting state = "starting"
	running  state = "running"
	stopping state = "stopping"
	exited   state = "exited"
)

const (
	// guestPath is where every template carries the guest.
	guestPath = "/.paddock/guest"
	// kernelMem is what the runtime itself may use on top of the sandbox's
	// memory.
	kernelMem = 96 << 20
	maxPIDs   = 4096
)

// instance is one sandbox on this host.
type instance struct {
	entry entry
	group *cgroup.Group
	guest *guestClient
	box   runsc.Sandbox
	ready chan struct{} // closed when the create ended, either way

	// Guarded by Cubelet.mu.
	state  state
	reason string
	failed error // why the create failed
	steps  map[string]time.Duration

	// life is held by whoever makes or unmakes the instance.
	life    sync.Mutex
	mounted bool
}

func (c *Cubelet) newInstance(e entry) *instance {
	group := c.cgroups.Group(e.ID)
	dir := c.journal.path(e.ID)
	return &instance{
		entry: e, group: group, state: starting, ready: make(chan struct{}), steps: map[string]time.Duration{},
		guest: newGuestClient(e.Network.IP),
		box: runsc.Sandbox{
			ID: e.ID, Dir: filepath.Join(dir, "runtime"), NetNS: e.Network.Path(), WritableBytes: e.Writable, Hostname: e.Hostname,
			Args: append([]string{guestPath}, startArgs(e.Command)...), Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Log: filepath.Join(dir, "log"), Command: group.Command,
		},
	}
}

func startArgs(command []string) []string {
	if len(command) == 0 {
		return nil
	}
	return append([]string{"--"}, command...)
}

// Create makes the sandbox of e and returns when its guest answers. The same
// request again returns what the first one made, another under the same id is
// fault.Exists. What fails is undone, also when ctx ends.
func (c *Cubelet) Create(ctx context.Context, e entry) (*instance, error) {
	s, mine, err := c.admit(e)
	if err != nil {
		c.metrics.refused.WithLabelValues(fault.Of(err).Name).Inc()
		return nil, err
	}
	if !mine {
		return c.join(ctx, s, e)
	}
	bounded, cancel := context.WithTimeout(ctx, c.cfg.Cubelet.StartTimeout)
	defer cancel()
	s.life.Lock()
	err = c.make(bounded, s)
	cleared := true
	if err != nil {
		// On no context: a caller that went away must leave nothing behind.
		if late := c.clear(s); late != nil {
			c.log.ErrorContext(ctx, "undoing a create failed", slog.String("sandbox_id", e.ID), slog.String("error", late.Error()))
			err, cleared = errors.Join(err, late), false
		}
	}
	s.life.Unlock()
	return s, c.settle(s, err, cleared)
}

// settle notes how a create ended. What could not be undone stays known, so
// that a delete tries again.
func (c *Cubelet) settle(s *instance, err error, cleared bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(s.ready)
	defer func() { c.metrics.running.Set(float64(len(c.live))) }()
	switch {
	case err != nil && cleared:
		delete(c.live, s.entry.ID)
	case err != nil:
		s.state, s.reason = stopping, err.Error()
	case s.state == starting:
		s.state = running
	default:
		err = fault.New(fault.SandboxNotReady, "sandbox %s was deleted while it started", s.entry.ID)
	}
	s.failed = err
	return err
}

// admit charges the host for e, atomically against what it holds, or refuses
// with fault.HostFull and the host's truth.
func (c *Cubelet) admit(e entry) (s *instance, mine bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.live[e.ID]; ok {
		return s, false, nil
	}
	used := c.usedLocked()
	if free := c.room.Sub(used); !e.Resources.Fits(free) {
		return nil, false, fault.New(fault.HostFull, "sandbox %s asks for %s; host %s has %s free of %s", e.ID, show(e.Resources), c.cfg.Cubelet.NodeID, show(free), show(c.room))
	}
	if _, err := os.Stat(c.images.path(e.ArtifactID)); err != nil {
		return nil, false, fault.New(fault.ArtifactNotFound, "artifact %s on host %s", e.ArtifactID, c.cfg.Cubelet.NodeID)
	}
	if e.Network, err = c.nets.Reserve(e.ID); err != nil {
		return nil, false, fault.Wrap(fault.HostFull, err, "network of sandbox %s", e.ID)
	}
	s = c.newInstance(e)
	c.live[e.ID] = s
	return s, true, nil
}

func (c *Cubelet) usedLocked() host.Resources {
	var used host.Resources
	for _, s := range c.live {
		used = used.Add(s.entry.Resources)
	}
	return used
}

func show(r host.Resources) string {
	return fmt.Sprintf("%dm CPU, %d MiB memory, %d MiB disk, %d slots", r.MilliCPU, r.MemBytes>>20, r.DiskBytes>>20, r.Slots)
}

// join waits for another call's create of the same sandbox.
func (c *Cubelet) join(ctx context.Context, s *instance, e entry) (*instance, error) {
	have := s.entry
	if have.TemplateID != e.TemplateID || have.ArtifactID != e.ArtifactID || have.Resources != e.Resources || have.Writable != e.Writable || !reflect.DeepEqual(have.Command, e.Command) {
		return nil, fault.New(fault.Exists, "sandbox %s, from another request", e.ID)
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.failed != nil {
		return nil, s.failed
	}
	if s.state != running {
		return nil, fault.New(fault.SandboxNotReady, "sandbox %s is %s", e.ID, s.state)
	}
	return s, nil
}

// make does the steps. Those that need nothing of each other run at once.
func (c *Cubelet) make(ctx context.Context, s *instance) error {
	if err := c.timed(s, "journal", func() error { return c.journal.put(s.entry) }); err != nil {
		return fault.Wrap(fault.DataDir, err, "journal of sandbox %s", s.entry.ID)
	}
	if err := fail.Point("cubelet.create.after_journal"); err != nil {
		return err
	}
	net := make(chan error, 1)
	go func() {
		net <- c.timed(s, "network", func() error { return c.nets.Create(s.entry.Network) })
	}()
	err := c.timed(s, "rootfs", func() (err error) {
		s.box.RootFS, err = c.mounts.Acquire(s.entry.ArtifactID, c.images.path(s.entry.ArtifactID))
		s.mounted = err == nil
		return err
	})
	err = errors.Join(err, c.timed(s, "cgroup", func() error {
		return s.group.Create(cgroup.Limits{MemBytes: s.entry.Resources.MemBytes + kernelMem, PIDs: maxPIDs})
	}), <-net)
	if err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "sandbox %s", s.entry.ID)
	}
	if err := fail.Point("cubelet.create.before_start"); err != nil {
		return err
	}
	return c.start(ctx, s)
}

func (c *Cubelet) start(ctx context.Context, s *instance) error {
	id := s.entry.ID
	err := c.timed(s, "runtime", func() (err error) {
		s.entry.PID, err = c.driver.Start(ctx, s.box)
		return err
	})
	if err != nil {
		return c.startFault(ctx, err, fault.RuntimeFailed, id)
	}
	if err := c.timed(s, "guest", func() error { return s.guest.ready(ctx) }); err != nil {
		return c.startFault(ctx, err, fault.GuestUnreachable, id)
	}
	return c.timed(s, "init", func() error {
		if err := s.guest.init(ctx, s.entry.Envs); err != nil {
			return c.startFault(ctx, err, fault.GuestUnreachable, id)
		}
		if err := s.group.LimitCPU(s.entry.Resources.MilliCPU); err != nil {
			return fault.Wrap(fault.RuntimeFailed, err, "cpu limit of sandbox %s", id)
		}
		s.entry.PIDBorn = born(s.entry.PID)
		if err := c.journal.put(s.entry); err != nil {
			return fault.Wrap(fault.DataDir, err, "journal of sandbox %s", id)
		}
		return fail.Point("cubelet.create.after_start")
	})
}

// startFault tells a caller that went away from a start that failed.
func (c *Cubelet) startFault(ctx context.Context, err error, code *fault.Code, id string) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return fault.Wrap(fault.CallCancelled, err, "sandbox %s", id)
	}
	return fault.Wrap(code, err, "sandbox %s", id)
}

func (c *Cubelet) timed(s *instance, step string, do func() error) error {
	began := time.Now()
	err := do()
	took := time.Since(began)
	c.metrics.step.WithLabelValues(step).Observe(took.Seconds())
	c.mu.Lock()
	s.steps[step] = took
	c.mu.Unlock()
	return err
}

// Delete ends a sandbox and removes all that it had. It reports whether the
// host knew it. It wins over a create that is still on its way.
func (c *Cubelet) Delete(ctx context.Context, id, reason string) (existed bool, err error) {
	c.mu.Lock()
	s, ok := c.live[id]
	if ok {
		s.state, s.reason = stopping, reason
	}
	c.mu.Unlock()
	if !ok {
		return false, nil
	}
	// A start that waits for its guest gives up once its processes are gone.
	_ = s.group.Destroy() // clear tells of what stays
	select {
	case <-s.ready:
	case <-ctx.Done():
		return true, ctx.Err()
	}
	s.life.Lock()
	defer s.life.Unlock()
	c.mu.Lock()
	mine := c.live[id] == s
	c.mu.Unlock()
	if !mine {
		return true, nil // its create, or another delete, removed it
	}
	if err := c.clear(s); err != nil {
		return true, fault.Wrap(fault.RuntimeFailed, err, "removing sandbox %s", id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.live, id)
	c.metrics.running.Set(float64(len(c.live)))
	return true, nil
}

// clear removes everything of s, whatever of it exists. It can be run again.
func (c *Cubelet) clear(s *instance) error {
	s.guest.close()
	// The runtime leaves a mount in its state directory.
	errs := []error{s.group.Destroy(), c.nets.Destroy(s.entry.Network), mount.DetachBelow(c.journal.path(s.entry.ID))}
	if s.mounted {
		errs = append(errs, c.mounts.Release(s.entry.ArtifactID))
		s.mounted = false
	}
	if err := errors.Join(errs...); err != nil {
		return err // the journal stays, so that the next start tries again
	}
	return c.journal.remove(s.entry.ID)
}
