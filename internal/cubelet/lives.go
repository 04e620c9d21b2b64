package cubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

const (
	// keepTime bounds how long a sandbox's state may take to be written.
	keepTime = 2 * time.Minute
)

// passage is a sandbox on its way from one life to the next.
type passage struct {
	phase      phase
	generation int64
	before     int64    // the life that was met before
	lost       *failure // and what it had come to
	done       chan struct{}
	err        error // set before done is closed
}

// meet looks at the order of lives before anything is done for a generation. It
// returns a passage to wait for, whose work is the caller's when mine is true;
// or nil, when the sandbox is already where it is to be.
func (c *Cubelet) meetLocked(id string, way phase, generation int64, from ...state) (s *instance, p *passage, mine bool, err error) {
	s, ok := c.live[id]
	if !ok {
		return nil, nil, false, fault.New(fault.SandboxNotFound, "sandbox %q on host %s", id, c.cfg.Cubelet.NodeID)
	}
	there := map[phase]state{toPause: paused, toRun: running, toSnapshot: running}[way]
	met := s.entry.Generation
	p = c.passages[id]
	switch {
	case generation < met:
		return s, nil, false, fault.New(fault.StaleGeneration, "sandbox %s: life %d is meant, and life %d was met", id, generation, met)
	case p != nil && p.generation == generation && p.phase == way:
		return s, p, false, nil // the same again
	case p != nil:
		return s, nil, false, fault.New(fault.SandboxNotReady, "sandbox %s is %s", id, s.state)
	case generation == met && s.entry.Failed != nil && s.entry.Failed.Generation == met:
		return s, nil, false, s.entry.Failed.fault()
	case s.ending || s.state == exited:
		return s, nil, false, fault.New(fault.SandboxGone, "sandbox %s is %s: %s", id, s.state, s.reason)
	case generation == met && s.state == there:
		return s, nil, false, nil
	case generation == met:
		return s, nil, false, fault.New(fault.StaleGeneration, "sandbox %s is %s in life %d, and nothing else was asked for that life", id, s.state, met)
	case s.state == there && way != toSnapshot:
		return s, c.passLocked(s, way, generation), true, nil // only the generation is to be noted
	}
	for _, is := range from {
		if s.state == is {
			return s, c.passLocked(s, way, generation), true, nil
		}
	}
	return s, nil, false, fault.New(fault.SandboxNotReady, "sandbox %s is %s %s", id, s.state, s.reason)
}

// passLocked begins a passage.
func (c *Cubelet) passLocked(s *instance, way phase, generation int64) *passage {
	p := &passage{phase: way, generation: generation, before: s.entry.Generation, lost: s.entry.Failed, done: make(chan struct{})}
	c.passages[s.id] = p
	s.entry.Generation, s.entry.Failed = generation, nil
	return p
}

// pass does the work of a passage. It goes on when its caller leaves, and ends
// with a delete or with the cubelet.
func (c *Cubelet) pass(ctx context.Context, s *instance, p *passage, limit time.Duration, do func(context.Context) error) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
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
		err := do(own)
		if err != nil {
			c.log.WarnContext(own, "a sandbox's life did not change", slog.String("sandbox_id", s.id), slog.String("way", string(p.phase)), slog.Int64("generation", p.generation), slog.String("error", err.Error()))
		}
		c.mu.Lock()
		if c.passages[s.id] == p {
			delete(c.passages, s.id)
		}
		c.mu.Unlock()
		p.err = err
		close(p.done)
		c.tellSoon()
		c.tendSoon()
	})
}

// wait waits for a passage; nil is one that is over.
func (p *passage) wait(ctx context.Context) error {
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// noted writes that s is in a later life, and is as it was.
func (c *Cubelet) noted(s *instance) error {
	s.life.Lock()
	defer s.life.Unlock()
	c.mu.Lock()
	e, ending := s.entry, s.ending
	c.mu.Unlock()
	if ending {
		return fault.New(fault.SandboxGone, "sandbox %s was deleted meanwhile", s.id)
	}
	if err := c.journal.put(e); err != nil {
		return fault.Wrap(fault.DataDir, err, "journal of sandbox %s", s.id)
	}
	return nil
}

// failed is how an error stays in the journal.
func failed(generation int64, err error) *failure {
	return &failure{Generation: generation, Detail: fault.Describe(err), HTTP: fault.Of(err).Class.HTTP}
}

func (f *failure) fault() error { return fault.Parse(f.Detail, f.HTTP) }

// voided is why a passage came to nothing, with the code of its kind unless the
// cause has one that tells the caller more.
func voided(ctx context.Context, code *fault.Code, s *instance, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errDeleted):
		return fault.Wrap(fault.SandboxGone, errDeleted, "sandbox %s", s.id)
	case errors.Is(cause, errStopping):
		return fault.Wrap(fault.HostUnreachable, errStopping, "sandbox %s", s.id)
	}
	for _, clear := range []*fault.Code{fault.DiskFull, fault.Unsupported, fault.HostFull, fault.HostBusy, fault.SandboxGone} {
		if errors.Is(err, clear) {
			return err
		}
	}
	return fault.Wrap(code, err, "sandbox %s", s.id)
}

// holds is what s has of the host.
func (s *instance) holds() host.Resources {
	switch {
	case s.charged:
		return s.entry.Resources
	case s.entry.Kept != nil:
		return host.Resources{DiskBytes: max(s.entry.Resources.DiskBytes, s.entry.Kept.Bytes)}
	}
	return host.Resources{}
}

// roomLocked refuses what e needs beyond what it holds already, when the host
// has not got it.
func (c *Cubelet) roomLocked(e entry, has host.Resources) error {
	if c.closing {
		return fault.New(fault.HostUnreachable, "host %s stops", c.cfg.Cubelet.NodeID)
	}
	if c.count.spent() {
		return fault.New(fault.DataDir, "host %s cannot keep count of its sandboxes in %s", c.cfg.Cubelet.NodeID, c.count.path)
	}
	if free := c.room.Sub(c.usedLocked()).Add(has); !e.Resources.Fits(free) {
		return c.fullLocked(fault.New(fault.HostFull, "sandbox %s asks for %s; host %s has %s free of %s", e.ID, show(e.Resources), c.cfg.Cubelet.NodeID, show(free), show(c.room)))
	}
	if limit := c.createLimit; limit > 0 && c.creatingLocked() >= limit {
		return c.fullLocked(fault.New(fault.HostBusy, "sandbox %s: host %s makes %d at once, which is its limit", e.ID, c.cfg.Cubelet.NodeID, limit))
	}
	return nil
}

// lifeName names one life of one sandbox to its guest.
func (e entry) lifeName() string { return fmt.Sprintf("%s.%d", e.ID, e.Generation) }
