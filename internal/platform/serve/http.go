package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/paddock-dev/paddock/internal/fault"
)

// stopTime bounds how long open requests may go on after a stop was asked.
const stopTime = 10 * time.Second

// HTTPServer serves one handler on one address.
type HTTPServer struct {
	listener net.Listener
	server   *http.Server
	stopTime time.Duration
}

// Listen binds addr at once, so that a port in use is known before anything
// else starts: fault.PortInUse, or fault.BadConfig for an address that cannot
// be bound. key is the configuration key to name; it may be empty.
func Listen(ctx context.Context, key, addr string) (net.Listener, error) {
	if key == "" {
		key = "listen"
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.Wrap(fault.PortInUse, err, "%s %s", key, addr)
	case err != nil:
		return nil, fault.Wrap(fault.BadConfig, err, "%s %q cannot be listened on", key, addr)
	}
	return l, nil
}

// HTTP binds listen at once (see Listen for the faults) and returns a server
// for h that has not begun to answer: Run does.
func HTTP(ctx context.Context, log *slog.Logger, listen string, h http.Handler) (*HTTPServer, error) {
	l, err := Listen(ctx, "", listen)
	if err != nil {
		return nil, err
	}
	return HTTPOn(l, log, h), nil
}

// HTTPOn returns a server for h on l. The write side has no time limit, since
// answers may stream; each handler bounds itself.
func HTTPOn(l net.Listener, log *slog.Logger, h http.Handler) *HTTPServer {
	return &HTTPServer{listener: l, stopTime: stopTime, server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
}

// WithHTTP2 has the server speak HTTP/2 too, without TLS, to who begins with it.
func (s *HTTPServer) WithHTTP2() *HTTPServer {
	s.server.Protocols = new(http.Protocols)
	s.server.Protocols.SetHTTP1(true)
	s.server.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// Addr returns where the server listens.
func (s *HTTPServer) Addr() string { return s.listener.Addr().String() }

// Close gives the address back without serving; for a start that was given up.
func (s *HTTPServer) Close() error { return s.listener.Close() }

// Run serves until ctx ends, then lets open requests end within a bound.
// Requests see their context end only when the bound is over.
func (s *HTTPServer) Run(ctx context.Context) error {
	requests, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	s.server.BaseContext = func(net.Listener) context.Context { return requests }
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(s.listener) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(requests, s.stopTime)
	defer cancel()
	err := s.server.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.server.Close() // and abort tells those that do not read
	}
	<-done //nolint:errcheck // ErrServerClosed, as asked
	return err
}

// GRPCServer serves one gRPC server on one address.
type GRPCServer struct {
	listener net.Listener
	server   *grpc.Server
	stopTime time.Duration
}

// GRPC binds listen at once (see Listen for the faults) and returns a service
// that runs s on it.
func GRPC(ctx context.Context, listen string, s *grpc.Server) (*GRPCServer, error) {
	l, err := Listen(ctx, "", listen)
	if err != nil {
		return nil, err
	}
	return GRPCOn(l, s), nil
}

// GRPCOn returns a service that runs s on l.
func GRPCOn(l net.Listener, s *grpc.Server) *GRPCServer {
	return &GRPCServer{listener: l, server: s, stopTime: stopTime}
}

// Addr returns where the server listens.
func (s *GRPCServer) Addr() string { return s.listener.Addr().String() }

// Close gives the address back without serving; for a start that was given up.
func (s *GRPCServer) Close() error { return s.listener.Close() }

// Run serves until ctx ends, then lets open calls end within a bound.
func (s *GRPCServer) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(s.listener) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	force := time.AfterFunc(s.stopTime, s.server.Stop)
	defer force.Stop()
	s.server.GracefulStop()
	return <-done
}
