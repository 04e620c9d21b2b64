package serve

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/logs"
)

// host answers each call by what its id asks for.
type host struct {
	hostpb.UnimplementedHostServiceServer
	mu  sync.Mutex
	ids []string // request ids that were seen
}

func (h *host) do(ctx context.Context, what string) error {
	h.mu.Lock()
	h.ids = append(h.ids, logs.RequestID(ctx))
	h.mu.Unlock()
	switch what {
	case "panic":
		panic("hunter2")
	case "plain":
		return errors.New("hunter2")
	case "status":
		return status.Error(codes.InvalidArgument, "by hand")
	case "ok":
		return nil
	}
	return fault.Wrap(fault.HostFull, errors.New("why"), "sandbox %s", what)
}

func (h *host) GetSandbox(ctx context.Context, r *hostpb.GetSandboxRequest) (*hostpb.GetSandboxResponse, error) {
	if err := h.do(ctx, r.GetSandboxId()); err != nil {
		return nil, err
	}
	return &hostpb.GetSandboxResponse{}, nil
}

func (h *host) ReadFile(r *hostpb.ReadFileRequest, s grpc.ServerStreamingServer[hostpb.ReadFileResponse]) error {
	if err := s.Send(&hostpb.ReadFileResponse{}); err != nil {
		return err
	}
	return h.do(s.Context(), r.GetSandboxId())
}

// dialled serves h and returns a client, the log and the registry. h sees no
// call after the test.
func dialled(t *testing.T, h *host) (hostpb.HostServiceClient, *lines, *prometheus.Registry) {
	t.Helper()
	log, reg := &lines{}, prometheus.NewRegistry()
	g := NewGRPC("test", logs.New(log, "debug", "json"), reg)
	hostpb.RegisterHostServiceServer(g, h)
	s, err := GRPC(t.Context(), "127.0.0.1:0", g)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn, err := grpc.NewClient(s.Addr(), append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return hostpb.NewHostServiceClient(conn), log, reg
}

// lines is a log that several goroutines write.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestFaultsCrossGRPC(t *testing.T) {
	h := &host{}
	client, log, reg := dialled(t, h)
	ctx := logs.WithRequestID(t.Context(), "req-given")
	for _, c := range []struct {
		ask  string
		code *fault.Code
		text string
	}{
		{"ok", nil, ""},
		{"i1", fault.HostFull, "sandbox i1: insufficient_capacity: why"},
		{"plain", fault.Bug, "internal error"},
		{"panic", fault.Bug, "internal error"},
		{"status", fault.Bug, "InvalidArgument: by hand"},
	} {
		_, unary := client.GetSandbox(ctx, &hostpb.GetSandboxRequest{SandboxId: c.ask})
		stream, err := client.ReadFile(ctx, &hostpb.ReadFileRequest{SandboxId: c.ask})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Errorf("%s: first message: %v", c.ask, err)
		}
		_, streamed := stream.Recv()
		if c.code == nil {
			if unary != nil || streamed != io.EOF { //nolint:errorlint // it must be itself
				t.Errorf("%s: %v, %v", c.ask, unary, streamed)
			}
			continue
		}
		for _, err := range []error{unary, streamed} {
			if !errors.Is(err, c.code) || fault.Of(err) != c.code || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v, want %s", c.ask, err, c.code.Name)
			}
		}
	}
	if d := fault.DetailOf(callErr(client.GetSandbox(ctx, &hostpb.GetSandboxRequest{SandboxId: "i1"}))); d.Cause != "why" || d.Remedy != fault.HostFull.Remedy || !d.Retryable {
		t.Errorf("the detail became %+v", d)
	}
	for _, id := range h.ids {
		if id != "req-given" {
			t.Errorf("the far end saw request id %q", id)
		}
	}
	for _, want := range []string{`"request_id":"req-given"`, `"code":"insufficient_capacity"`, `"panic":"hunter2"`, `"method":"/paddock.host.v1.HostService/GetSandbox"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	if n := count(t, reg, "paddock_grpc_request_seconds"); n != 6 {
		t.Errorf("%d histograms, want ok, insufficient_capacity and internal for each method", n)
	}
}

func callErr(_ any, err error) error { return err }

func TestACallWithoutRequestIDGetsOne(t *testing.T) {
	h := &host{}
	client, _, _ := dialled(t, h)
	if _, err := client.GetSandbox(t.Context(), &hostpb.GetSandboxRequest{SandboxId: "ok"}); err != nil {
		t.Fatal(err)
	}
	if len(h.ids) != 1 || !strings.HasPrefix(h.ids[0], "req-") {
		t.Errorf("ids %v", h.ids)
	}
}

func TestACallWithAnIDThatNoHeaderCarriesGetsOne(t *testing.T) {
	h := &host{}
	client, _, _ := dialled(t, h)
	for _, given := range []string{"a\x00b", "a\nb", "ä"} {
		if _, err := client.GetSandbox(logs.WithRequestID(t.Context(), given), &hostpb.GetSandboxRequest{SandboxId: "ok"}); err != nil {
			t.Errorf("%q: %v", given, err)
			continue
		}
		if got := h.ids[len(h.ids)-1]; !strings.HasPrefix(got, "req-") {
			t.Errorf("%q arrives as %q", given, got)
		}
	}
}

func TestWhatTheTransportSays(t *testing.T) {
	conn, err := grpc.NewClient("127.0.0.1:1", append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := hostpb.NewHostServiceClient(conn)
	if _, err := client.GetSandbox(t.Context(), &hostpb.GetSandboxRequest{}); !errors.Is(err, fault.PeerUnavailable) {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.GetSandbox(ctx, &hostpb.GetSandboxRequest{}); !errors.Is(err, fault.CallCancelled) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, err := client.GetSandbox(ctx, &hostpb.GetSandboxRequest{}); !errors.Is(err, fault.Deadline) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late: %v", err)
	}
}

func TestEveryCodeSurvivesAStatus(t *testing.T) {
	for _, c := range fault.All() {
		err := FromGRPC(GRPCError(fault.New(c, "x")))
		if fault.Of(err) != c || FromGRPC(err) != err { //nolint:errorlint // unchanged means the same value
			t.Errorf("%s became %v", c.Name, err)
		}
	}
	// A code of a newer peer keeps its class.
	err := FromGRPC(GRPCError(fault.Parse(fault.Detail{Code: "brand_new"}, 404)))
	if c := fault.Of(err); c.Name != "brand_new" || c.Class != fault.NotFound {
		t.Errorf("an unknown code became %s of class %s", c.Name, c.Class.Name)
	}
	if GRPCError(nil) != nil || FromGRPC(nil) != nil {
		t.Error("nil is no failure")
	}
	// A status that is only the cause of a fault does not replace it.
	err = FromGRPC(GRPCError(fault.Wrap(fault.BuildFailed, status.Error(codes.NotFound, "inner"), "build")))
	if fault.Of(err) != fault.BuildFailed {
		t.Errorf("the cause took over: %v", err)
	}
}

func TestATruthCrossesWithItsRefusal(t *testing.T) {
	truth := &hostpb.HostTruth{Revision: 7, Sandboxes: 3, Allocated: &hostpb.Resources{MilliCpu: 500}}
	sent := WithTruth(fault.Wrap(fault.HostFull, errors.New("why"), "sandbox i1"), truth)
	err := FromGRPC(GRPCError(sent))
	if got := TruthOf(err); !proto.Equal(got, truth) || fault.Of(err) != fault.HostFull || err.Error() != sent.Error() {
		t.Errorf("%v with %v", err, got)
	}
	// A master that passes it on says as much.
	if err = fault.Wrap(fault.NoCapacity, err, "sandbox i1"); TruthOf(FromGRPC(GRPCError(err))).GetRevision() != 7 {
		t.Errorf("passed on: %v", err)
	}
	if plain := fault.New(fault.HostFull, "x"); WithTruth(plain, nil) != plain || TruthOf(plain) != nil || TruthOf(nil) != nil || WithTruth(nil, truth) != nil { //nolint:errorlint // it must be itself
		t.Error("there is no truth")
	}
}
