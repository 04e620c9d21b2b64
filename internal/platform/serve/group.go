// Package serve runs the long-lived parts of a role and the faces that they
// show: servers, middleware, the translation of failures. It must never know
// what a request means.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/logs"
)

const (
	// readyTime bounds how long a part may take until the next is started.
	readyTime = 30 * time.Second
	// partStopTime bounds how long a part may take to stop that asks for no
	// other time. A server needs stopTime of it for its open requests.
	partStopTime = stopTime + 5*time.Second
)

// Service is a long-lived part. Run returns when ctx ends or it cannot go on,
// after every goroutine that it started has ended.
type Service interface {
	Run(ctx context.Context) error
}

// Named is a Service with a name for the log.
type Named struct {
	Name string
	Service
	// Ready, when not nil, returns when the part can be used by those after it;
	// they are started only then. Its ctx ends when the part or the group does.
	Ready func(ctx context.Context) error
	// StopTime, when not zero, is how long the part may take to stop.
	StopTime time.Duration
}

// Func makes a function a Service.
type Func func(ctx context.Context) error

// Run calls f.
func (f Func) Run(ctx context.Context) error { return f(ctx) }

// Group starts services in order and runs them until ctx ends or one of them
// returns, panics or does not become ready. Then it stops them one by one, last
// first, so that a part outlives those that were started after it and may use
// it. It returns why the first one ended, joined with what went wrong while the
// others stopped; nil when ctx ended and all stopped well. A part that does not
// stop in its time is left behind and reported as fault.Deadline.
func Group(ctx context.Context, log *slog.Logger, services ...Named) error {
	return group{log: log, ready: readyTime, stop: partStopTime}.run(ctx, services)
}

type group struct {
	log         *slog.Logger
	ready, stop time.Duration
}

// part is a service that runs.
type part struct {
	Named
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
	err    error         // why it did; read after done
}

func (g group) run(ctx context.Context, services []Named) error {
	// life ends when ctx does, or when a part has put itself into first.
	life, end := context.WithCancel(ctx)
	defer end()
	first := make(chan *part, len(services))
	var parts []*part
	var errs []error
	for _, s := range services {
		p := g.start(ctx, s, func(p *part) { first <- p; end() })
		parts = append(parts, p)
		if err := g.await(life, p); err != nil && life.Err() == nil {
			errs = append(errs, err)
			end()
		}
		if life.Err() != nil {
			break
		}
	}
	<-life.Done()
	var cause *part
	select {
	case cause = <-first:
		errs = append(errs, fmt.Errorf("%s ended: %w", cause.Name, orClosed(cause.err)))
	default:
	}
	for i := len(parts) - 1; i >= 0; i-- {
		if err := g.halt(ctx, parts[i]); parts[i] != cause {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// start runs s on a context of its own, since ctx's end must not stop all
// parts at once, and calls ended when it has returned.
func (g group) start(ctx context.Context, s Named, ended func(*part)) *part {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{Named: s, cancel: cancel, done: make(chan struct{})}
	g.log.DebugContext(ctx, "part starts", slog.String("part", s.Name))
	go func() {
		defer ended(p)
		defer close(p.done)
		defer func() {
			if v := recover(); v != nil {
				g.log.ErrorContext(ctx, "part panicked", slog.String("part", s.Name), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
				p.err = fault.New(fault.Bug, "panic: %v", v)
			}
		}()
		p.err = s.Run(own)
	}()
	return p
}

// await returns when p is ready, or why it is not.
func (g group) await(life context.Context, p *part) error {
	if p.Ready == nil {
		return nil
	}
	bound, cancel := context.WithTimeout(life, g.ready)
	defer cancel()
	if err := p.Ready(bound); err != nil {
		return fmt.Errorf("%s is not ready: %w", p.Name, err)
	}
	return nil
}

// halt stops p and returns what went wrong with that.
func (g group) halt(ctx context.Context, p *part) error {
	p.cancel()
	stop := g.stop
	if p.StopTime > 0 {
		stop = p.StopTime
	}
	late := time.NewTimer(stop)
	defer late.Stop()
	select {
	case <-late.C:
		return fault.New(fault.Deadline, "%s did not stop in %s", p.Name, stop)
	case <-p.done:
	}
	if p.err != nil && !errors.Is(p.err, context.Canceled) && !errors.Is(p.err, http.ErrServerClosed) {
		g.log.WarnContext(ctx, "part stopped badly", slog.String("part", p.Name), logs.Err(p.err))
		return fmt.Errorf("stop of %s: %w", p.Name, p.err)
	}
	g.log.DebugContext(ctx, "part stopped", slog.String("part", p.Name))
	return nil
}

var errClosed = errors.New("it stopped without being asked")

func orClosed(err error) error {
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return errClosed
	}
	return err
}
