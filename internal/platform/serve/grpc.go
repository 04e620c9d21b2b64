package serve

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
)

// metadataRequestID is headerRequestID as gRPC writes it.
var metadataRequestID = strings.ToLower(headerRequestID)

// calls is what every gRPC face does around its handlers.
type calls struct {
	log      *slog.Logger
	duration *prometheus.HistogramVec
}

// NewGRPC returns a server for the face called name, with request ids, an
// access log, spans, a histogram, an end to panics, and failures that carry
// their detail. more follows inside of that: authentication, limits.
func NewGRPC(name string, log *slog.Logger, reg prometheus.Registerer, more ...grpc.ServerOption) *grpc.Server {
	c := &calls{log: log, duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:        "paddock_grpc_request_seconds",
		Help:        "Duration of gRPC calls by method and code of failure.",
		ConstLabels: prometheus.Labels{"face": name},
		Buckets:     telemetry.Seconds,
	}, []string{"method", "code"})}
	reg.MustRegister(c.duration)
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: aliveEvery / 2, PermitWithoutStream: true}),
		grpc.StatsHandler(otelgrpc.NewServerHandler()),
		grpc.ChainUnaryInterceptor(c.unary),
		grpc.ChainStreamInterceptor(c.stream),
	}, more...)...)
}

func (c *calls) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
	ctx = incoming(ctx)
	err = c.around(ctx, info.FullMethod, func() (err error) {
		answer, err = next(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (c *calls) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx := incoming(s.Context())
	return c.around(ctx, info.FullMethod, func() error { return next(srv, &serverStream{s, ctx}) })
}

// around runs one call and returns its failure as a status.
func (c *calls) around(ctx context.Context, method string, call func() error) error {
	began := time.Now()
	err := c.contained(ctx, method, call)
	// An interceptor further in may have made it a status already.
	seen, took := FromGRPC(err), time.Since(began)
	code, level := "ok", slog.LevelDebug
	attrs := []slog.Attr{slog.String("method", method), slog.Duration(logs.KeyTook, took)}
	if seen != nil {
		code, level = fault.Of(seen).Name, levelOf(seen)
		attrs = append(attrs, logs.Err(seen))
	}
	c.duration.WithLabelValues(method, code).Observe(took.Seconds())
	c.log.LogAttrs(ctx, level, "call", attrs...)
	return GRPCError(err)
}

func (c *calls) contained(ctx context.Context, method string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.log.ErrorContext(ctx, "handler panicked", slog.String("method", method), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = fault.New(fault.Bug, "%s", fmt.Sprint(p))
		}
	}()
	return call()
}

// levelOf: an expected refusal is news, a failure of this server a warning.
func levelOf(err error) slog.Level {
	if fault.Of(err).Class.HTTP >= 500 {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// incoming gives ctx the caller's request id, or a new one.
func incoming(ctx context.Context) context.Context {
	given := ""
	if v := metadata.ValueFromIncomingContext(ctx, metadataRequestID); len(v) == 1 {
		given = v[0]
	}
	return logs.WithRequestID(ctx, requestID(given))
}

// requestID returns given when it is well formed, and otherwise a new id.
func requestID(given string) string {
	if requestIDForm.MatchString(given) {
		return given
	}
	return id.New("req-")
}

// outgoing passes the request id of ctx on.
func outgoing(ctx context.Context) context.Context {
	if v := logs.WireID(ctx); v != "" {
		return metadata.AppendToOutgoingContext(ctx, metadataRequestID, v)
	}
	return ctx
}

// serverStream is a stream with the request id in its context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

// A peer that went away without a word is found out by a client that hears
// nothing of it for so long: a call must not wait for it until its own end.
const (
	aliveEvery = 10 * time.Second // between signs of life; gRPC takes no less
	aliveWait  = 5 * time.Second  // for the answer
)

// DialOptions are what every client of a gRPC face needs: signs of life, spans, the request
// id passed on, and failures turned back into faults (see FromGRPC).
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveEvery, Timeout: aliveWait, PermitWithoutStream: true}),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler()),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return FromGRPC(invoke(outgoing(ctx), method, req, reply, cc, o...))
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(outgoing(ctx), d, cc, method, o...)
			if err != nil {
				return nil, FromGRPC(err)
			}
			return clientStream{s}, nil
		}),
	}
}

// clientStream turns the failures of a stream back into faults.
type clientStream struct{ grpc.ClientStream }

func (s clientStream) RecvMsg(m any) error { return FromGRPC(s.ClientStream.RecvMsg(m)) }
func (s clientStream) SendMsg(m any) error { return FromGRPC(s.ClientStream.SendMsg(m)) }
func (s clientStream) CloseSend() error    { return FromGRPC(s.ClientStream.CloseSend()) }

func (s clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, FromGRPC(err)
}
