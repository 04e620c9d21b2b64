// Package cubelets is a fleet of hosts that run nothing: each admits, counts
// and reports as a cubelet does, over real gRPC and HTTP, and that is all.
//
// It is for load on masters, which must not be able to tell it from real
// hosts. It must never look into a master: what it knows came over the wire.
package cubelets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// Options say what the fleet is like.
type Options struct {
	Hosts     int
	Room      host.Resources // of each
	Artifacts []string       // that each holds
	Token     config.Secret
	Masters   []string      // each host reports to one of them after the other
	Every     time.Duration // between two reports of a host; 0: a second

	// Faults, drawn from Seed.
	Seed uint64
	Lost float64       // share of creates whose answer is lost after they were made
	Slow time.Duration // at most so long does a create take
}

// Fleet is hosts that report until Close.
type Fleet struct {
	Hosts []*Host

	o       Options
	cancel  context.CancelFunc
	reports sync.WaitGroup
}

// Start returns once every host has registered and reported.
func Start(ctx context.Context, o Options) (_ *Fleet, err error) {
	if o.Every == 0 {
		o.Every = time.Second
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &Fleet{o: o, cancel: cancel}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	for i := range o.Hosts {
		h, err := f.listen(ctx, i)
		if err != nil {
			return nil, err
		}
		f.Hosts = append(f.Hosts, h)
	}
	for _, h := range f.Hosts {
		if err := h.register(ctx, h.masters[0]); err != nil {
			return nil, fmt.Errorf("register %s: %w", h.ID, err)
		}
		if err := h.report(ctx, h.masters[0]); err != nil {
			return nil, fmt.Errorf("report %s: %w", h.ID, err)
		}
		f.reports.Go(func() { h.reportLoop(own, o.Every) })
	}
	return f, nil
}

// Close ends all hosts.
func (f *Fleet) Close() {
	f.cancel()
	f.reports.Wait()
	for _, h := range f.Hosts {
		h.server.Stop()
		<-h.served
	}
}

const kind = "cubebox"

func hostID(i int) host.ID { return host.ID(fmt.Sprintf("host-%03d", i)) }

// Host is one of a fleet.
type Host struct {
	hostpb.UnimplementedHostServiceServer
	ID host.ID

	o       *Options
	port    int
	server  *grpc.Server
	served  chan struct{}
	masters []*cubeapi.HostClient

	mu       sync.Mutex
	rng      *rand.Rand
	boxes    map[string]*hostpb.Sandbox
	used     host.Resources
	most     host.Resources // that were ever used
	revision int64
	creating int32
}

func (f *Fleet) listen(ctx context.Context, i int) (*Host, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &Host{
		ID: hostID(i), o: &f.o, served: make(chan struct{}), boxes: map[string]*hostpb.Sandbox{},
		rng: rand.New(rand.NewPCG(f.o.Seed, uint64(i))), //nolint:gosec // to be repeated
	}
	h.port = l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	for m := range f.o.Masters {
		h.masters = append(h.masters, cubeapi.NewHostClient(f.o.Masters[(i+m)%len(f.o.Masters)], f.o.Token.Reveal()))
	}
	h.server = grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(auth.UnaryServer(f.o.Token, false)))
	hostpb.RegisterHostServiceServer(h.server, h)
	go func() {
		defer close(h.served)
		_ = h.server.Serve(l) // it ends when it is stopped
	}()
	return h, nil
}

func (h *Host) register(ctx context.Context, to *cubeapi.HostClient) error {
	return to.Register(ctx, cubeapi.HostRegisterRequest{
		NodeID: string(h.ID), HostIP: "127.0.0.1", GRPCPort: h.port, InstanceType: kind, Capacity: h.o.Room, Allocatable: h.o.Room, Version: "test",
	})
}

func (h *Host) report(ctx context.Context, to *cubeapi.HostClient) error {
	h.mu.Lock()
	h.revision++ // counts reports too: one that is overtaken on its way is known for it
	q := cubeapi.HostStatusRequest{Ready: true, Allocated: h.used, Sandboxes: len(h.boxes), Artifacts: h.o.Artifacts, Revision: h.revision}
	h.mu.Unlock()
	return to.Report(ctx, h.ID, q)
}

// reportLoop reports to one master after the other, as behind a balancer. One
// that is away is passed by at the next turn.
func (h *Host) reportLoop(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		bounded, cancel := context.WithTimeout(ctx, 10*every)
		to := h.masters[n%len(h.masters)]
		if err := h.report(bounded, to); errors.Is(err, fault.HostUnknown) {
			_ = h.register(bounded, to) // the next report tells
		}
		cancel()
	}
}

// CreateSandbox admits atomically, and is idempotent by id.
func (h *Host) CreateSandbox(ctx context.Context, q *hostpb.CreateSandboxRequest) (*hostpb.CreateSandboxResponse, error) {
	box, lost, wait, err := h.admit(q)
	if err != nil {
		return nil, err
	}
	if wait > 0 {
		select {
		case <-ctx.Done(): // a real host goes on for a while as well
		case <-time.After(wait):
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.creating--
	if lost {
		return nil, status.Error(codes.Unavailable, "the answer is lost") // as a transport says it
	}
	return &hostpb.CreateSandboxResponse{Sandbox: box, Truth: h.truth()}, nil
}

func (h *Host) admit(q *hostpb.CreateSandboxRequest) (box *hostpb.Sandbox, lost bool, wait time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.o.Slow > 0 {
		wait = time.Duration(h.rng.Int64N(int64(h.o.Slow)))
	}
	lost = h.rng.Float64() < h.o.Lost
	if have, ok := h.boxes[q.GetSandboxId()]; ok {
		h.creating++
		return proto.CloneOf(have), lost, wait, nil
	}
	size := resourcesOf(q.GetResources())
	if free := h.o.Room.Sub(h.used); !size.Fits(free) {
		return nil, false, 0, h.full(q.GetSandboxId())
	}
	h.used = h.used.Add(size)
	h.most = host.Resources{MilliCPU: max(h.most.MilliCPU, h.used.MilliCPU), MemBytes: max(h.most.MemBytes, h.used.MemBytes), DiskBytes: max(h.most.DiskBytes, h.used.DiskBytes), Slots: max(h.most.Slots, h.used.Slots)}
	h.revision++
	h.creating++
	box = &hostpb.Sandbox{
		SandboxId: q.GetSandboxId(), TemplateId: q.GetTemplateId(), ArtifactId: q.GetArtifactId(), State: hostpb.SandboxState_SANDBOX_STATE_RUNNING, Ip: "10.0.0.2", Resources: q.GetResources(),
	}
	h.boxes[q.GetSandboxId()] = box
	return proto.CloneOf(box), lost, wait, nil
}

// full is the refusal for lack of room, with what the host holds.
func (h *Host) full(id string) error {
	s := status.Convert(serve.GRPCError(fault.New(fault.HostFull, "sandbox %s: host %s has no room", id, h.ID)))
	if with, err := s.WithDetails(h.truth()); err == nil {
		s = with
	}
	return s.Err()
}

func (h *Host) truth() *hostpb.HostTruth {
	return &hostpb.HostTruth{
		Revision: h.revision, Allocated: messageOf(h.used), Allocatable: messageOf(h.o.Room), Sandboxes: int32(len(h.boxes)), Creating: h.creating, //nolint:gosec // a few
	}
}

// DeleteSandbox is idempotent.
func (h *Host) DeleteSandbox(_ context.Context, q *hostpb.DeleteSandboxRequest) (*hostpb.DeleteSandboxResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	box, existed := h.boxes[q.GetSandboxId()]
	if existed {
		delete(h.boxes, q.GetSandboxId())
		h.used = h.used.Sub(resourcesOf(box.GetResources()))
		h.revision++
	}
	return &hostpb.DeleteSandboxResponse{Existed: existed, Truth: h.truth()}, nil
}

// GetSandbox tells of one.
func (h *Host) GetSandbox(_ context.Context, q *hostpb.GetSandboxRequest) (*hostpb.GetSandboxResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	box, ok := h.boxes[q.GetSandboxId()]
	if !ok {
		return nil, serve.GRPCError(fault.New(fault.SandboxNotFound, "sandbox %s", q.GetSandboxId()))
	}
	return &hostpb.GetSandboxResponse{Sandbox: proto.CloneOf(box)}, nil
}

// ListSandboxes is the host's truth.
func (h *Host) ListSandboxes(context.Context, *hostpb.ListSandboxesRequest) (*hostpb.ListSandboxesResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*hostpb.Sandbox
	for _, b := range h.boxes {
		list = append(list, proto.CloneOf(b))
	}
	return &hostpb.ListSandboxesResponse{Sandboxes: list}, nil
}

// Live is where each sandbox of the fleet is. One that two hosts have is an
// error.
func (f *Fleet) Live() (map[string]host.ID, error) {
	at := map[string]host.ID{}
	for _, h := range f.Hosts {
		h.mu.Lock()
		for id := range h.boxes {
			if other, ok := at[id]; ok {
				h.mu.Unlock()
				return nil, fmt.Errorf("sandbox %s is on %s and on %s", id, other, h.ID)
			}
			at[id] = h.ID
		}
		h.mu.Unlock()
	}
	return at, nil
}

// Most is what was ever used of the host at once.
func (h *Host) Most() host.Resources {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most
}

func resourcesOf(r *hostpb.Resources) host.Resources {
	return host.Resources{MilliCPU: r.GetMilliCpu(), MemBytes: r.GetMemBytes(), DiskBytes: r.GetDiskBytes(), Slots: r.GetSlots()}
}

func messageOf(r host.Resources) *hostpb.Resources {
	return &hostpb.Resources{MilliCpu: r.MilliCPU, MemBytes: r.MemBytes, DiskBytes: r.DiskBytes, Slots: r.Slots}
}
