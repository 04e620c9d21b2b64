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
}

// Listen binds addr at once, so that a port in use is known before anything
// else starts: fault.PortInUse, or fault.BadConfig for an address that cannot
// be bound. key is the configuration key to name.
func Listen(ctx context.Context, key, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.Wrap(fault.PortInUse, err, "%s %s", key, addr)
	case err != nil:
		return nil, fault.Wrap(fault.BadConfig, err, "%s %q cannot be listened on", key, addr)
	}
	return l, nil
}

// HTTP returns a server for h on l. The write side has no time limit, since
// answers may stream; each handler bounds itself.
func HTTP(l net.Listener, h http.Handler, log *slog.Logger) *HTTPServer {
	return &HTTPServer{listener: l, server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
}

// Addr returns where the server listens.
func (s *HTTPServer) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx ends, then lets open requests end within a bound.
func (s *HTTPServer) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(s.listener) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	err := s.server.Shutdown(stop)
	if err != nil {
		err = s.server.Close()
	}
	<-done
	return err
}

// GRPCServer serves one gRPC server on one address.
type GRPCServer struct {
	listener net.Listener
	server   *grpc.Server
}

// GRPC returns a service that runs s on l.
func GRPC(l net.Listener, s *grpc.Server) *GRPCServer { return &GRPCServer{l, s} }

// Addr returns where the server listens.
func (s *GRPCServer) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx ends, then lets open calls end within a bound.
func (s *GRPCServer) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(s.listener) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	force := time.AfterFunc(stopTime, s.server.Stop)
	defer force.Stop()
	s.server.GracefulStop()
	return <-done
}
