package master_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
)

// fakeHost is a cubelet without a runtime: it admits against its own room,
// downloads artifacts over real HTTP, and serves real gRPC.
type fakeHost struct {
	hostpb.UnimplementedHostServiceServer
	t      *testing.T
	id     host.ID
	port   int
	server *grpc.Server
	mute   net.Listener // holds the port while the host is away
	tell   *cubeapi.HostClient

	mu        sync.Mutex
	room      host.Resources
	zone      string // when it registers
	artifacts map[string]bool
	boxes     map[string]*hostpb.Sandbox
	files     map[string][]byte
	calls     map[string]int // how often each call came
	signals   chan int32     // to the program that sleeps; nil: none does
	created   []*hostpb.CreateSandboxRequest
	revision  int64 // counts what it admitted and let go, and its reports
	life      fakeLife
	most      host.Resources // the most that it ever held at once
	ensured   []*hostpb.EnsureArtifactRequest

	// Knobs.
	ensure  func(ctx context.Context) error    // before an artifact is fetched
	fetched func()                             // after it
	create  func(ctx context.Context) error    // before a sandbox is made
	made    func() error                       // after it, before the answer
	refuse  func(id string, cpu int64) error   // before a sandbox is made, by what is asked for
	removal func() error                       // before an artifact or a sandbox is removed
	report  func(q *cubeapi.HostStatusRequest) // what it says of itself
	holdOn  func(ctx context.Context)          // before an artifact is removed, without holding up the rest

	telling sync.Mutex // held while a report is on its way
	silent  bool       // sends no reports
}

var plenty = host.Resources{MilliCPU: 64_000, MemBytes: 64 << 30, DiskBytes: 1 << 40, Slots: 100}

// host starts a host that reports to the master until the test ends.
func (r *rig) host(i int, room host.Resources) *fakeHost {
	r.t.Helper()
	h := &fakeHost{
		t: r.t, id: hostID(i), room: room, tell: cubeapi.NewHostClient(r.front.URL, hostToken),
		artifacts: map[string]bool{}, boxes: map[string]*hostpb.Sandbox{}, files: map[string][]byte{}, calls: map[string]int{}, life: newFakeLife(),
	}
	h.listen("127.0.0.1:0")
	r.t.Cleanup(func() { h.server.Stop() })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); h.beat(ctx) }()
	r.t.Cleanup(func() { cancel(); <-ended })
	eventually(r.t, "host "+string(h.id)+" is healthy", func() bool {
		shown, err := r.api.Host(r.t.Context(), string(h.id))
		return err == nil && shown.Health == string(host.Healthy)
	})
	return h
}

func (h *fakeHost) listen(addr string) {
	h.t.Helper()
	l, err := net.Listen("tcp", addr)
	must(h.t, err)
	h.port = l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	s := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}), grpc.ChainUnaryInterceptor(auth.UnaryServer(hostToken, false)), grpc.ChainStreamInterceptor(auth.StreamServer(hostToken, false)))
	hostpb.RegisterHostServiceServer(s, h)
	h.server = s
	go func() { _ = s.Serve(l) }()
}

// away takes the host off the network. Its port stays taken by a listener that
// answers nobody: another test's host must not be met in its place.
func (h *fakeHost) away() {
	h.t.Helper()
	h.server.Stop()
	var err error
	h.mute, err = net.Listen("tcp", h.address())
	must(h.t, err)
	go func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}(h.mute)
	h.t.Cleanup(func() {
		if h.mute != nil {
			_ = h.mute.Close() // nothing follows
		}
	})
}

// inZones has hosts registered anew with their zones.
func (r *rig) inZones(hosts []*fakeHost, zone func(*fakeHost) string) {
	r.t.Helper()
	for _, h := range hosts {
		h.hush()
		h.set(func(h *fakeHost) { h.zone = zone(h) })
		must(r.t, h.register(r.t.Context()))
		must(r.t, h.say(r.t.Context()))
		h.speak()
	}
}

// back brings it back where it was.
func (h *fakeHost) back() {
	h.t.Helper()
	if h.mute != nil {
		must(h.t, h.mute.Close())
		h.mute = nil
	}
	h.listen(h.address())
}

func (h *fakeHost) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(h.port)) }

// set turns knobs.
func (h *fakeHost) set(turn func(*fakeHost)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	turn(h)
}

// hush ends the reports; none is on its way when it returns.
func (h *fakeHost) hush() {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.silent = true
}

// silence is hush, long ago: by its row the host is stale at once, however
// loaded the machine is that the others are not.
func (r *rig) silence(h *fakeHost) {
	r.t.Helper()
	h.hush()
	r.update(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE host SET heard_us = 1 WHERE id = ?`, []byte(h.id))
		return err
	})
}

// speak lets the reports go on.
func (h *fakeHost) speak() {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.silent = false
}

// beat registers and reports, again and again.
func (h *fakeHost) beat(ctx context.Context) {
	registered := false
	for {
		h.once(ctx, &registered)
		select {
		case <-ctx.Done():
			return
		case <-time.After(30 * time.Millisecond):
		}
	}
}

func (h *fakeHost) once(ctx context.Context, registered *bool) {
	h.telling.Lock()
	defer h.telling.Unlock()
	if h.silent {
		return
	}
	if !*registered {
		*registered = h.register(ctx) == nil
	}
	if *registered {
		*registered = !errors.Is(h.say(ctx), fault.HostUnknown)
	}
}

func (h *fakeHost) register(ctx context.Context) error {
	return h.tell.Register(ctx, cubeapi.HostRegisterRequest{
		Zone: h.zone, NodeID: string(h.id), HostIP: "127.0.0.1", GRPCPort: h.port, InstanceType: "cubebox", Capacity: h.room, Allocatable: h.room, Version: "test", Revision: h.count64(),
	})
}

func (h *fakeHost) say(ctx context.Context) error {
	h.mu.Lock()
	h.revision++
	q := cubeapi.HostStatusRequest{Ready: true, Allocated: h.used(), Sandboxes: len(h.boxes), Artifacts: slices.Collect(maps.Keys(h.artifacts)), Revision: h.revision}
	if h.report != nil {
		h.report(&q)
	}
	h.mu.Unlock()
	return h.tell.Report(ctx, h.id, q)
}

// next counts a report that a test sends for it.
func (h *fakeHost) next() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revision++
	return h.revision
}

func (h *fakeHost) count64() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revision
}

// truth is what it holds now.
func (h *fakeHost) truth() *hostpb.HostTruth {
	u := h.used()
	return &hostpb.HostTruth{Revision: h.revision, Sandboxes: int32(len(h.boxes)), Allocated: messageOf(u), Allocatable: messageOf(h.room)} //nolint:gosec // a few
}

func messageOf(r host.Resources) *hostpb.Resources {
	return &hostpb.Resources{MilliCpu: r.MilliCPU, MemBytes: r.MemBytes, DiskBytes: r.DiskBytes, Slots: r.Slots}
}

func resourcesOf(r *hostpb.Resources) host.Resources {
	return host.Resources{MilliCPU: r.GetMilliCpu(), MemBytes: r.GetMemBytes(), DiskBytes: r.GetDiskBytes(), Slots: r.GetSlots()}
}

func (h *fakeHost) used() (sum host.Resources) {
	for _, b := range h.boxes {
		if b.GetState() == boxPaused {
			sum = sum.Add(diskOf(b))
			continue
		}
		sum = sum.Add(resourcesOf(b.GetResources()))
	}
	return sum
}

func (h *fakeHost) live() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.boxes))
}

func (h *fakeHost) holds(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.artifacts[id]
}

func (h *fakeHost) called(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[name]
}

func (h *fakeHost) count(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[name]++
}

// EnsureArtifact downloads, as a cubelet does.
func (h *fakeHost) EnsureArtifact(ctx context.Context, q *hostpb.EnsureArtifactRequest) (*hostpb.EnsureArtifactResponse, error) {
	h.count("ensure")
	h.mu.Lock()
	before := h.ensure
	h.ensured = append(h.ensured, q)
	h.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	n, err := fetch(ctx, q)
	if err == nil {
		h.set(func(h *fakeHost) {
			if h.artifacts[q.GetArtifactId()] = true; h.fetched != nil {
				h.fetched()
			}
		})
	}
	return &hostpb.EnsureArtifactResponse{FetchedBytes: n}, serve.GRPCError(err)
}

func fetch(ctx context.Context, q *hostpb.EnsureArtifactRequest) (int64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, q.GetUrl(), nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set(cubeapi.HeaderArtifactToken, q.GetToken())
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, fault.Wrap(fault.PeerUnavailable, err, "download")
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return 0, fault.New(fault.ArtifactNotFound, "download: HTTP %d", answer.StatusCode)
	}
	if sum(data) != q.GetSha256() || int64(len(data)) != q.GetSizeBytes() {
		return 0, fault.New(fault.ArtifactCorrupt, "download of %s", q.GetArtifactId())
	}
	return int64(len(data)), nil
}

// RemoveArtifact refuses what a sandbox uses.
func (h *fakeHost) RemoveArtifact(ctx context.Context, q *hostpb.RemoveArtifactRequest) (*hostpb.RemoveArtifactResponse, error) {
	h.count("remove_artifact")
	h.mu.Lock()
	before := h.holdOn
	h.mu.Unlock()
	if before != nil {
		before(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.removal != nil {
		if err := h.removal(); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	for id, b := range h.boxes {
		if b.GetArtifactId() == q.GetArtifactId() {
			return nil, serve.GRPCError(fault.New(fault.TemplateInUse, "sandbox %s", id))
		}
	}
	delete(h.artifacts, q.GetArtifactId())
	return &hostpb.RemoveArtifactResponse{}, nil
}

// CreateSandbox admits atomically, and is idempotent by id.
func (h *fakeHost) CreateSandbox(ctx context.Context, q *hostpb.CreateSandboxRequest) (*hostpb.CreateSandboxResponse, error) {
	h.count("create")
	h.mu.Lock()
	before, after, refuse := h.create, h.made, h.refuse
	h.mu.Unlock()
	if refuse != nil {
		if err := refuse(q.GetSandboxId(), q.GetResources().GetMilliCpu()); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	if before != nil {
		if err := before(ctx); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	b, truth, err := h.admit(q)
	if err == nil && after != nil {
		err = after()
	}
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	return &hostpb.CreateSandboxResponse{Sandbox: b, Truth: truth}, nil
}

func (h *fakeHost) admit(q *hostpb.CreateSandboxRequest) (*hostpb.Sandbox, *hostpb.HostTruth, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.created = append(h.created, q)
	if b, ok := h.boxes[q.GetSandboxId()]; ok {
		return proto.CloneOf(b), h.truth(), nil
	}
	if !h.artifacts[q.GetArtifactId()] {
		return nil, nil, fault.New(fault.ArtifactNotFound, "artifact %s", q.GetArtifactId())
	}
	if free := h.room.Sub(h.used()); !resourcesOf(q.GetResources()).Fits(free) {
		return nil, nil, serve.WithTruth(fault.New(fault.HostFull, "host %s", h.id), h.truth())
	}
	b := &hostpb.Sandbox{
		SandboxId: q.GetSandboxId(), TemplateId: q.GetTemplateId(), ArtifactId: q.GetArtifactId(), State: hostpb.SandboxState_SANDBOX_STATE_RUNNING,
		Generation: q.GetGeneration(), NetworkRevision: q.GetNetworkRevision(), Driver: "runsc", Ip: "10.0.0.2", Resources: q.GetResources(), StepUs: map[string]int64{"runtime": 1500},
	}
	if h.boxes == nil {
		h.boxes = map[string]*hostpb.Sandbox{}
	}
	if k := q.GetSnapshotId(); k != "" {
		if h.life.snaps[k] == nil {
			return nil, nil, fault.New(fault.SnapshotNotFound, "snapshot %s", k)
		}
		h.life.notes[q.GetSandboxId()] = h.life.noted[k]
	}
	h.boxes[q.GetSandboxId()] = b
	h.revision++
	u := h.used()
	h.most = host.Resources{MilliCPU: max(h.most.MilliCPU, u.MilliCPU), MemBytes: max(h.most.MemBytes, u.MemBytes), DiskBytes: max(h.most.DiskBytes, u.DiskBytes), Slots: max(h.most.Slots, u.Slots)}
	return proto.CloneOf(b), h.truth(), nil
}

// DeleteSandbox is idempotent.
func (h *fakeHost) DeleteSandbox(_ context.Context, q *hostpb.DeleteSandboxRequest) (*hostpb.DeleteSandboxResponse, error) {
	h.count("delete")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.removal != nil {
		if err := h.removal(); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	_, existed := h.boxes[q.GetSandboxId()]
	delete(h.boxes, q.GetSandboxId())
	h.revision++
	return &hostpb.DeleteSandboxResponse{Existed: existed, Truth: h.truth()}, nil
}

// ListSandboxes is the host's truth.
func (h *fakeHost) ListSandboxes(context.Context, *hostpb.ListSandboxesRequest) (*hostpb.ListSandboxesResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls["list"]++
	// Copies, because gRPC reads them when the lock is no longer held.
	list := make([]*hostpb.Sandbox, 0, len(h.boxes))
	for _, b := range h.boxes {
		list = append(list, proto.CloneOf(b))
	}
	return &hostpb.ListSandboxesResponse{Sandboxes: list}, nil
}

// Exec knows four programs: echo, cat, fail and sleep, which a signal ends.
func (h *fakeHost) Exec(stream hostpb.HostService_ExecServer) error {
	return serve.GRPCError(h.exec(stream))
}

func (h *fakeHost) exec(stream hostpb.HostService_ExecServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	program, args := start.GetCommand()[0], start.GetCommand()[1:]
	if !slices.Contains([]string{"echo", "cat", "fail", "sleep", "break"}, program) {
		return fault.New(fault.CommandNotFound, "%s", program)
	}
	say := func(m *hostpb.ExecResponse) { err = errors.Join(err, stream.Send(m)) }
	out := func(b []byte) { say(&hostpb.ExecResponse{Message: &hostpb.ExecResponse_Stdout{Stdout: b}}) }
	exit := func(code int32) {
		say(&hostpb.ExecResponse{Message: &hostpb.ExecResponse_Exited{Exited: &hostpb.ExecExited{ExitCode: code}}})
	}
	h.count("exec_" + program)
	signals := make(chan int32, 1)
	if program == "sleep" {
		h.set(func(h *fakeHost) { h.signals = signals })
	}
	say(&hostpb.ExecResponse{Message: &hostpb.ExecResponse_Started{Started: &hostpb.ExecStarted{Pid: 7}}})
	switch program {
	case "echo":
		out([]byte(strings.Join(args, " ") + "\n"))
		exit(0)
	case "cat":
		for {
			m, err := stream.Recv()
			if err != nil || m.GetCloseStdin() {
				break
			}
			out(m.GetStdin())
		}
		exit(0)
	case "fail":
		say(&hostpb.ExecResponse{Message: &hostpb.ExecResponse_Stderr{Stderr: []byte("it failed\n")}})
		exit(3)
	case "sleep":
		select {
		case n := <-signals:
			say(&hostpb.ExecResponse{Message: &hostpb.ExecResponse_Exited{Exited: &hostpb.ExecExited{ExitCode: -1, Signal: syscall.Signal(n).String(), SignalNumber: n}}})
		case <-stream.Context().Done():
			h.count("exec_ended")
		}
	}
	return err // "break" ends without an exit
}

// Signal ends the program that sleeps.
func (h *fakeHost) Signal(_ context.Context, q *hostpb.SignalRequest) (*hostpb.SignalResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case q.GetPid() == 0 || q.GetSignal() == 0:
		return nil, serve.GRPCError(fault.New(fault.InvalidInput, "signal %d to process %d", q.GetSignal(), q.GetPid()))
	case h.signals == nil:
		return nil, serve.GRPCError(fault.New(fault.NoSuchThing, "process %d", q.GetPid()))
	}
	h.signals <- q.GetSignal()
	h.signals = nil
	return &hostpb.SignalResponse{}, nil
}

// ReadFile hands out what WriteFile took.
func (h *fakeHost) ReadFile(q *hostpb.ReadFileRequest, stream hostpb.HostService_ReadFileServer) error {
	h.mu.Lock()
	data, ok := h.files[q.GetPath()]
	h.mu.Unlock()
	if !ok {
		return serve.GRPCError(fault.New(fault.FileNotFound, "%s", q.GetPath()))
	}
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), 64<<10)
		m := &hostpb.ReadFileResponse{Data: data[:n]}
		if first {
			m.SizeBytes = int64(len(data))
		}
		if err := stream.Send(m); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// WriteFile keeps a file once it is whole.
func (h *fakeHost) WriteFile(stream hostpb.HostService_WriteFileServer) error {
	var path string
	var data []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			h.count("write_broken")
			return err
		}
		if t := m.GetTarget(); t != nil {
			path = t.GetPath()
		}
		data = append(data, m.GetData()...)
	}
	if path == "/full" {
		return serve.GRPCError(fault.New(fault.SandboxDiskFull, "%s", path))
	}
	h.set(func(h *fakeHost) { h.files[path] = data })
	return stream.SendAndClose(&hostpb.WriteFileResponse{WrittenBytes: int64(len(data))})
}
