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
}

// Func makes a function a Service.
type Func func(ctx context.Context) error

// Run calls f.
func (f Func) Run(ctx context.Context) error { return f(ctx) }

// Group runs services until ctx ends or one of them returns. Then it stops
// them one by one, last first, so that a part outlives those that were started
// after it and may use it. It returns why the first one ended; nil when ctx did.
func Group(ctx context.Context, log *slog.Logger, services ...Named) error {
	type ended struct {
		at  int
		err error
	}
	first := make(chan ended, len(services))
	stops, dones := make([]context.CancelFunc, len(services)), make([]chan struct{}, len(services))
	for i, s := range services {
		// A part lives on its own context: ctx's end must not stop them all at once.
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		stops[i], dones[i] = stop, make(chan struct{})
		go func() {
			defer close(dones[i])
			err := s.Run(own)
			first <- ended{i, err}
		}()
	}
	var why error
	select {
	case <-ctx.Done():
	case e := <-first:
		why = fmt.Errorf("%s ended: %w", services[e.at].Name, orClosed(e.err))
	}
	for i := len(services) - 1; i >= 0; i-- {
		stops[i]()
		<-dones[i]
		log.DebugContext(ctx, "stopped", slog.String("part", services[i].Name))
	}
	return why
}

var errClosed = errors.New("it stopped without being asked")

func orClosed(err error) error {
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return errClosed
	}
	return err
}
