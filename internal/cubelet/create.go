package cubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// undoTime bounds one attempt to remove what a sandbox had.
const undoTime = 20 * time.Second

// Create makes the sandbox of e and returns when its guest answers, its command
// runs and its probe, if it has one, passed. The same request again returns what the first one made, another
// under the same id is fault.Exists. What fails is undone before the answer, or
// behind it when ctx ends first; a create that nobody waits for is given up.
// Without room it is fault.HostFull, with too many creates under way
// fault.HostBusy; both carry the host's truth.
func (c *Cubelet) Create(ctx context.Context, e entry) (*instance, error) {
	for {
		s, mine, err := c.admit(e)
		if y := (*yielding)(nil); errors.As(err, &y) {
			// What waits for nobody yet has the last address.
			select {
			case <-y.going.gone:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if err != nil {
			c.metrics.refused.WithLabelValues(fault.Of(err).Name).Inc()
			return nil, err
		}
		if s.undoing(c) {
			// A failed create of the same id is on its way out: wait, then begin.
			select {
			case <-s.gone:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if mine {
			c.spawn(ctx, s)
		}
		err = c.await(ctx, s)
		if errors.Is(err, errAbandoned) && ctx.Err() == nil {
			continue // the callers before us gave it up, we do not
		}
		return s, err
	}
}

// undoing reports whether s is a create that failed and is being undone.
func (s *instance) undoing(c *Cubelet) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.failed != nil && !errors.Is(s.failed, errDeleted) && s.ending
}

// admit charges the host for e, atomically against what it holds, or joins a
// create that was admitted before.
func (c *Cubelet) admit(e entry) (s *instance, mine bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.live[e.ID]; ok {
		if !same(s.entry, e) {
			return nil, false, fault.New(fault.Exists, "sandbox %s, from another request", e.ID)
		}
		s.waiting++
		return s, false, nil
	}
	if err := c.roomLocked(e, host.Resources{}); err != nil {
		return nil, false, err
	}
	if _, err := os.Stat(c.images.Path(e.ArtifactID)); err != nil {
		return nil, false, fault.New(fault.ArtifactNotFound, "artifact %s on host %s", e.ArtifactID, c.cfg.Cubelet.NodeID)
	}
	from, err := c.originLocked(e)
	if err != nil {
		return nil, false, err
	}
	var w *instance
	if from == nil {
		w = c.takeLocked(e)
	}
	if w != nil {
		e.Box, e.Network = w.id, w.entry.Network
	} else if e.Network, err = c.reserveLocked(e.ID); err != nil {
		return nil, false, err
	}
	s = c.newInstance(e)
	if w != nil {
		s.ahead, s.guest = w, w.guest.showing(e.AccessToken)
	}
	s.waiting = 1
	if from != nil {
		s.from = from
		c.snaps[e.Snapshot].refs++
	} else {
		c.demandLocked(e)
	}
	c.live[e.ID] = s
	c.yieldLocked(time.Now())
	c.countLocked()
	c.metrics.running.Set(float64(len(c.live)))
	return s, true, nil
}

// fullLocked adds what the host holds to a refusal for lack of room: whoever
// asked need not ask again to know.
func (c *Cubelet) fullLocked(err error) error { return serve.WithTruth(err, c.truthLocked()) }

// same reports whether two requests ask for the same sandbox.
func same(a, b entry) bool {
	return a.TemplateID == b.TemplateID && a.ArtifactID == b.ArtifactID && a.Resources == b.Resources && a.Writable == b.Writable &&
		a.Hostname == b.Hostname && a.User == b.User && a.WorkingDir == b.WorkingDir && reflect.DeepEqual(a.Command, b.Command) && reflect.DeepEqual(a.Probe, b.Probe) &&
		maps.Equal(a.Envs, b.Envs) && maps.Equal(a.Metadata, b.Metadata) &&
		reflect.DeepEqual(a.Egress, b.Egress) && reflect.DeepEqual(a.Resolver, b.Resolver) && a.OpenFiles == b.OpenFiles && a.AccessToken == b.AccessToken && a.Snapshot == b.Snapshot
}

// spawn begins the create. It lives on its own context, since several callers
// may wait for it: only the last one's leaving, a delete or a stop end it.
func (c *Cubelet) spawn(ctx context.Context, s *instance) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Cubelet.StartTimeout+s.entry.Probe.Limit())
	own, abort := context.WithCancelCause(own)
	c.mu.Lock()
	s.abort = abort
	if s.ending {
		abort(errDeleted)
	}
	c.mu.Unlock()
	unhook := context.AfterFunc(c.base, func() { abort(errStopping) })
	c.work.Go(func() {
		defer cancel()
		defer unhook()
		began := time.Now()
		s.life.Lock()
		err := c.make(own, s)
		s.life.Unlock()
		c.begun(s)
		defer c.tendSoon()
		if err == nil {
			c.metrics.create.Observe(time.Since(began).Seconds())
		}
		c.settle(own, s, err)
	})
}

// settle notes how a create ended, and has a failed one undone.
func (c *Cubelet) settle(ctx context.Context, s *instance, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(s.made)
	switch cause := context.Cause(ctx); {
	case err == nil && s.state == starting:
		s.state = running
		c.watch(s)
		return
	case err == nil || errors.Is(cause, errDeleted):
		err = fault.Wrap(fault.SandboxNotReady, errDeleted, "sandbox %s", s.id)
	case errors.Is(cause, errAbandoned):
		err = fault.Wrap(fault.CallCancelled, fmt.Errorf("%w: %w", errAbandoned, err), "sandbox %s", s.id)
	case errors.Is(cause, errStopping):
		err = fault.Wrap(fault.HostUnreachable, errStopping, "sandbox %s", s.id)
	}
	s.failed = err
	c.log.WarnContext(ctx, "sandbox was not made", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
	c.endLocked(s, err.Error(), nil)
}

// await waits for the create of s, and when it failed until it is undone.
func (c *Cubelet) await(ctx context.Context, s *instance) error {
	select {
	case <-s.made:
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.waiting--; s.waiting == 0 && s.state == starting {
			s.abort(errAbandoned)
		}
		return ctx.Err()
	}
	c.mu.Lock()
	failed, state, reason := s.failed, s.state, s.reason
	c.mu.Unlock()
	switch {
	case failed != nil:
		select {
		case <-s.gone:
		case <-ctx.Done():
		case <-time.After(undoTime): // the undoing goes on
		}
		return failed
	case state != running:
		return fault.New(fault.SandboxNotReady, "sandbox %s is %s: %s", s.id, state, reason)
	}
	return nil
}

// make does the steps: all of them, or those that are left for a sandbox that
// waited.
func (c *Cubelet) make(ctx context.Context, s *instance) error {
	if s.ahead != nil {
		err := c.claim(ctx, s)
		if err == nil {
			return c.serve(ctx, s)
		}
		if !errors.Is(err, errCold) {
			return err
		}
	}
	if err := c.build(ctx, s); err != nil {
		return err
	}
	if err := c.tellLife(ctx, s); err != nil {
		return err
	}
	return c.serve(ctx, s)
}

// tellLife tells the guest what it must know in this life.
func (c *Cubelet) tellLife(ctx context.Context, s *instance) error {
	how, tell, asked := "cold", settingsOf(s.entry), s.guest
	if s.from.withMemory() {
		// The guest is the one of before, and asks for what it asked for then.
		how, asked = "restored", s.guest.showing(s.from.token)
		tell.NewLife, tell.Hostname, tell.Resolver = s.entry.lifeName(), s.entry.Hostname, resolvConf(s.entry, hostResolver)
	}
	c.metrics.starts.WithLabelValues(how).Inc()
	return c.timed(s, "init", func() error {
		return s.whileAlive(ctx, func(ctx context.Context) error { return asked.init(ctx, tell) })
	})
}

// build makes a sandbox up to where its guest answers. What needs nothing of
// each other is done at once.
func (c *Cubelet) build(ctx context.Context, s *instance) error {
	if err := c.timed(s, "journal", func() error { return c.journal.put(s.entry) }); err != nil {
		return fault.Wrap(fault.DataDir, err, "journal of sandbox %s", s.id)
	}
	if err := point(ctx, "cubelet.create.journal"); err != nil {
		return err
	}
	var parts errgroup.Group
	parts.Go(func() error { return c.timed(s, "network", func() error { return c.connect(ctx, s) }) })
	parts.Go(func() error {
		return c.timed(s, "cgroup", func() error {
			err := s.group.Create(cgroup.Limits{MemBytes: s.entry.Resources.MemBytes, PIDs: maxPIDs})
			if err == nil && s.box.Unnamed {
				err = s.group.Weigh(warmShare)
			}
			return err
		})
	})
	err := c.timed(s, "rootfs", func() (err error) {
		s.box.RootFS, err = c.mounts.Acquire(s.entry.ArtifactID, c.images.Path(s.entry.ArtifactID))
		s.mounted = err == nil
		return err
	})
	if err := errors.Join(err, parts.Wait()); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "sandbox %s", s.id)
	}
	if err := point(ctx, "cubelet.create.parts"); err != nil {
		return err
	}
	return c.start(ctx, s)
}

// connect makes the sandbox's network. Another program may have taken the
// address since it was chosen; then it chooses again, a few times.
func (c *Cubelet) connect(ctx context.Context, s *instance) error {
	for try := 0; ; try++ {
		err := c.nets.Create(s.entry.Network)
		if err == nil {
			return c.nets.Permit(ctx, ways(s.entry))
		}
		if !errors.Is(err, network.ErrTaken) || try == 7 {
			return err
		}
		old := s.entry.Network
		next, err := c.nets.Reserve(s.id)
		if err != nil {
			return err
		}
		if err := c.nets.Destroy(old); err != nil {
			return err
		}
		c.mu.Lock()
		s.entry.Network = next
		c.mu.Unlock()
		if err := c.journal.put(s.entry); err != nil {
			return err
		}
		s.guest.close()
		c.mu.Lock()
		s.guest = newGuestClient(next.IP, s.entry.AccessToken)
		c.mu.Unlock()
		s.box.Files, s.box.NetNS = files(s.entry), next.Path()
	}
}

// start starts the runtime and waits for the guest.
func (c *Cubelet) start(ctx context.Context, s *instance) error {
	err := c.timed(s, "runtime", func() error {
		p, err := c.launch(ctx, s)
		c.mu.Lock()
		s.entry.Kernel = p
		c.mu.Unlock()
		return err
	})
	if err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "sandbox %s", s.id)
	}
	if err := point(ctx, "cubelet.create.runtime"); err != nil {
		return err
	}
	if err := c.timed(s, "guest", func() error { return s.await(ctx) }); err != nil {
		return fault.Wrap(fault.GuestUnreachable, err, "sandbox %s", s.id)
	}
	return nil
}

// launch starts the runtime with what the sandbox begins with.
func (c *Cubelet) launch(ctx context.Context, s *instance) (runtime.Process, error) {
	switch {
	case s.from == nil:
	case s.from.memory:
		d, ok := c.driver.(runtime.Checkpointer)
		if !ok {
			return runtime.Process{}, fault.New(fault.Unsupported, "sandbox %s: its runtime has no memory to begin with", s.id)
		}
		return d.Restore(ctx, s.box, filepath.Join(s.from.path, memoryDir))
	default:
		s.box.Layer = filepath.Join(s.from.path, layerFile)
	}
	return c.driver.Start(ctx, s.box)
}

// serve starts the sandbox's command, when its guest knows all that it must,
// and makes the sandbox usable. In memory that was kept, the command runs
// already.
func (c *Cubelet) serve(ctx context.Context, s *instance) error {
	c.mu.Lock()
	s.built = true
	c.mu.Unlock()
	c.tendSoon()
	if err := c.timed(s, "command", func() error { return c.command(ctx, s) }); err != nil {
		return err
	}
	if err := point(ctx, "cubelet.create.init"); err != nil {
		return err
	}
	if s.entry.Probe != nil && !s.from.withMemory() {
		if err := c.timed(s, "probe", func() error { return c.serveWell(ctx, s) }); err != nil {
			return err
		}
		if err := point(ctx, "cubelet.create.probe"); err != nil {
			return err
		}
	}
	c.mu.Lock()
	s.entry.Steps = maps.Clone(s.steps)
	c.mu.Unlock()
	if err := c.timed(s, "confirm", func() error { return c.journal.put(s.entry) }); err != nil {
		return fault.Wrap(fault.DataDir, err, "journal of sandbox %s", s.id)
	}
	return point(ctx, "cubelet.create.confirm")
}

// await waits for the guest's first answer, or for the end of the sandbox.
func (s *instance) await(ctx context.Context) error { return s.whileAlive(ctx, s.guest.ready) }

// whileAlive runs do with a context that ends with the sandbox, too.
func (s *instance) whileAlive(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if s.entry.Kernel.Wait(ctx) == nil {
			_, reason := deathOf(s)
			cancel(errors.New(reason))
		}
	}()
	err := do(ctx)
	cancel(nil)
	<-ended
	return err
}

// settingsOf is what the guest must know.
func settingsOf(e entry) settings {
	return settings{EnvVars: e.Envs, AccessToken: e.AccessToken, DefaultUser: e.User, DefaultWorkdir: e.WorkingDir}
}

// command starts the sandbox's command. The CPU limit comes now: during the
// start it would only make it longer.
func (c *Cubelet) command(ctx context.Context, s *instance) error {
	if err := s.group.LimitCPU(s.entry.Resources.MilliCPU); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "cpu limit of sandbox %s", s.id)
	}
	if len(s.entry.Command) == 0 || s.entry.Probe != nil || s.from.withMemory() { // else serveWell starts it
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := s.guest.launch(ctx, s.entry.Command)
	if err != nil {
		return err
	}
	_ = events.Close() // it runs on when we stop listening
	return nil
}

// point is a place where a test may break the create.
func point(ctx context.Context, name string) error {
	if err := fail.Point(name); err != nil {
		return err
	}
	return ctx.Err()
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
