package cubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/template"
)

// Server is the host's gRPC face. It translates; Cubelet does.
type Server struct {
	hostpb.UnimplementedHostServiceServer
	c *Cubelet
}

// NewServer returns the face of c.
func NewServer(c *Cubelet) *Server { return &Server{c: c} }

const chunk = 64 << 10

// EnsureArtifact makes the host hold an artifact.
func (s *Server) EnsureArtifact(ctx context.Context, r *hostpb.EnsureArtifactRequest) (*hostpb.EnsureArtifactResponse, error) {
	got, err := s.c.images.Ensure(ctx, r)
	return &hostpb.EnsureArtifactResponse{FetchedBytes: got.Wire, PeerBytes: got.Peers, LocalBytes: got.Local}, serve.GRPCError(err)
}

// ReadArtifact streams a part of an artifact to another host.
func (s *Server) ReadArtifact(r *hostpb.ReadArtifactRequest, stream hostpb.HostService_ReadArtifactServer) error {
	return serve.GRPCError(s.c.images.Read(r, func(b []byte) error { return stream.Send(&hostpb.ReadArtifactResponse{Data: b}) }))
}

// RemoveArtifact removes an artifact that no sandbox uses.
func (s *Server) RemoveArtifact(ctx context.Context, r *hostpb.RemoveArtifactRequest) (*hostpb.RemoveArtifactResponse, error) {
	return &hostpb.RemoveArtifactResponse{}, serve.GRPCError(s.c.removeArtifact(ctx, r.GetArtifactId()))
}

func (c *Cubelet) removeArtifact(ctx context.Context, id string) error {
	if err := c.unusedBy(id); err != nil {
		return err
	}
	c.mu.Lock()
	for s := range c.warm.demand {
		if s.artifact == id {
			delete(c.warm.demand, s)
		}
	}
	c.mu.Unlock()
	if !c.dropWarm(ctx.Done(), "its template is removed", func(e entry) bool { return e.ArtifactID == id }) {
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock() // a create cannot be admitted meanwhile
	if err := c.unusedLocked(id); err != nil {
		return err
	}
	return c.images.Remove(id)
}

func (c *Cubelet) unusedBy(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unusedLocked(id)
}

// unusedLocked returns fault.TemplateInUse when a sandbox has the artifact.
func (c *Cubelet) unusedLocked(id string) error {
	for _, s := range c.live {
		if s.entry.ArtifactID == id && (s.charged || s.entry.Kept != nil) {
			return fault.New(fault.TemplateInUse, "artifact %s: sandbox %s on host %s", id, s.entry.ID, c.cfg.Cubelet.NodeID)
		}
	}
	for _, k := range c.snaps {
		if k.ArtifactID == id {
			return fault.New(fault.TemplateInUse, "artifact %s: snapshot %s on host %s", id, k.ID, c.cfg.Cubelet.NodeID)
		}
	}
	return nil
}

// CreateSandbox makes a sandbox and returns when it is usable.
func (s *Server) CreateSandbox(ctx context.Context, r *hostpb.CreateSandboxRequest) (*hostpb.CreateSandboxResponse, error) {
	if err := errors.Join(sandbox.CheckID(r.GetSandboxId()), template.CheckID(r.GetArtifactId())); err != nil {
		return nil, serve.GRPCError(err)
	}
	hostname := r.GetHostname()
	if hostname == "" {
		hostname = r.GetSandboxId()
	}
	res := r.GetResources()
	if res.GetMilliCpu() <= 0 || res.GetMemBytes() < minMem || r.GetWritableBytes() < minWritable || res.GetDiskBytes() < 0 {
		return nil, serve.GRPCError(fault.New(fault.InvalidInput, "sandbox %s: cpu must be over 0, memory at least %d MiB, the writable layer at least %d MiB", r.GetSandboxId(), minMem>>20, minWritable>>20))
	}
	egress, err := egressOf(r.GetEgress())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	resolve, err := resolverOf(r.GetResolver())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	probe, err := probeOf(r.GetProbe())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	i, err := s.c.Create(ctx, entry{
		ID: r.GetSandboxId(), TemplateID: r.GetTemplateId(), ArtifactID: r.GetArtifactId(), Writable: r.GetWritableBytes(),
		Resources: host.Resources{MilliCPU: res.GetMilliCpu(), MemBytes: res.GetMemBytes(), DiskBytes: res.GetDiskBytes(), Slots: 1},
		Probe:     probe,
		Envs:      r.GetEnvs(), Command: r.GetCommand(), WorkingDir: r.GetWorkingDir(), User: r.GetUser(), Hostname: hostname, Metadata: r.GetMetadata(), CreatedAt: time.Now().UTC(),
		Egress: egress, Resolver: resolve, OpenFiles: r.GetOpenFiles(), AccessToken: r.GetAccessToken(),
		Snapshot: r.GetSnapshotId(), Generation: r.GetGeneration(), Ports: r.GetExposedPorts(), NetworkRevision: r.GetNetworkRevision(),
	})
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	return &hostpb.CreateSandboxResponse{Sandbox: s.c.show(i), Truth: s.c.truth()}, nil
}

// DeleteSandbox ends a sandbox. Absent is success.
func (s *Server) DeleteSandbox(ctx context.Context, r *hostpb.DeleteSandboxRequest) (*hostpb.DeleteSandboxResponse, error) {
	existed, err := s.c.Delete(ctx, r.GetSandboxId(), r.GetReason())
	return &hostpb.DeleteSandboxResponse{Existed: existed, Truth: s.c.truth()}, serve.GRPCError(err)
}

// GetSandbox tells what the host knows of one sandbox.
func (s *Server) GetSandbox(_ context.Context, r *hostpb.GetSandboxRequest) (*hostpb.GetSandboxResponse, error) {
	i, err := s.c.find(r.GetSandboxId())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	return &hostpb.GetSandboxResponse{Sandbox: s.c.show(i)}, nil
}

// ListSandboxes tells all sandboxes of the host.
func (s *Server) ListSandboxes(context.Context, *hostpb.ListSandboxesRequest) (*hostpb.ListSandboxesResponse, error) {
	answer := &hostpb.ListSandboxesResponse{}
	for _, i := range s.c.all() {
		answer.Sandboxes = append(answer.Sandboxes, s.c.show(i))
	}
	return answer, nil
}

var wireStates = map[state]hostpb.SandboxState{
	starting: hostpb.SandboxState_SANDBOX_STATE_STARTING,
	running:  hostpb.SandboxState_SANDBOX_STATE_RUNNING,
	stopping: hostpb.SandboxState_SANDBOX_STATE_STOPPING,
	exited:   hostpb.SandboxState_SANDBOX_STATE_EXITED,

	pausing:     hostpb.SandboxState_SANDBOX_STATE_PAUSING,
	paused:      hostpb.SandboxState_SANDBOX_STATE_PAUSED,
	resuming:    hostpb.SandboxState_SANDBOX_STATE_RESUMING,
	rollingBack: hostpb.SandboxState_SANDBOX_STATE_ROLLING_BACK,
}

func (c *Cubelet) show(s *instance) *hostpb.Sandbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	steps := map[string]int64{}
	for name, took := range s.steps {
		steps[name] = took.Microseconds()
	}
	m := &hostpb.Sandbox{
		SandboxId: s.entry.ID, TemplateId: s.entry.TemplateID, ArtifactId: s.entry.ArtifactID, State: wireStates[s.state], Ip: s.entry.Network.IP, Reason: s.reason, StepUs: steps,
		Resources: wireResources(s.entry.Resources), CreatedAt: timestamppb.New(s.entry.CreatedAt), Generation: s.entry.Generation, Warm: s.entry.Box != "",
		NetworkRevision: s.entry.NetworkRevision, Driver: driverName,
	}
	if k := s.entry.Kept; k != nil {
		m.KeptBytes, m.WithMemory = k.Bytes, k.WithMemory
		if !s.charged {
			m.Ip = "" // another may have it
		}
	}
	return m
}

func wireResources(r host.Resources) *hostpb.Resources {
	return &hostpb.Resources{MilliCpu: r.MilliCPU, MemBytes: r.MemBytes, DiskBytes: r.DiskBytes, Slots: r.Slots}
}

// ReadFile streams one file out of a sandbox.
func (s *Server) ReadFile(r *hostpb.ReadFileRequest, stream hostpb.HostService_ReadFileServer) error {
	return serve.GRPCError(s.readFile(r, stream))
}

func (s *Server) readFile(r *hostpb.ReadFileRequest, stream hostpb.HostService_ReadFileServer) error {
	i, err := s.c.usable(r.GetSandboxId())
	if err != nil {
		return err
	}
	ctx, cancel := i.during(stream.Context())
	defer cancel()
	body, size, err := i.guest.read(ctx, placeOf(r), r.GetPath(), r.GetUser())
	if err != nil {
		return s.c.explain(i, err)
	}
	defer body.Close()
	return s.c.explain(i, send(stream, r.GetPath(), body, size))
}

// placeOf is where the guest has files, or directories as archives.
func placeOf(r interface{ GetArchive() bool }) string {
	if r.GetArchive() {
		return guestArchive
	}
	return guestFiles
}

// send carries a file's bytes on. The first message tells their number, also
// when there are none.
func send(stream hostpb.HostService_ReadFileServer, path string, body io.Reader, size int64) error {
	buffer := make([]byte, chunk)
	for first := true; ; first = false {
		n, err := body.Read(buffer)
		if n > 0 || first {
			m := &hostpb.ReadFileResponse{Data: buffer[:n]}
			if first {
				m.SizeBytes = size
			}
			if err := stream.Send(m); err != nil {
				return fault.Wrap(fault.CallCancelled, err, "read")
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fault.Wrap(fault.GuestUnreachable, err, "reading %s", path)
		}
	}
}

// WriteFile streams one file into a sandbox.
func (s *Server) WriteFile(stream hostpb.HostService_WriteFileServer) error {
	return serve.GRPCError(s.writeFile(stream))
}

func (s *Server) writeFile(stream hostpb.HostService_WriteFileServer) error {
	first, err := stream.Recv()
	if err != nil {
		return fault.Wrap(fault.CallCancelled, err, "write")
	}
	target := first.GetTarget()
	if target == nil {
		return fault.New(fault.InvalidInput, "write: the first message must name the file")
	}
	i, err := s.c.usable(target.GetSandboxId())
	if err != nil {
		return err
	}
	data := &received{stream: stream}
	ctx, cancel := i.during(stream.Context())
	defer cancel()
	if err := i.guest.write(ctx, placeOf(target), target.GetPath(), target.GetUser(), data); err != nil {
		return s.c.explain(i, err)
	}
	return stream.SendAndClose(&hostpb.WriteFileResponse{WrittenBytes: data.total})
}

// received reads the data of a client's messages.
type received struct {
	stream hostpb.HostService_WriteFileServer
	rest   []byte
	total  int64
}

func (r *received) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, fmt.Errorf("the client went away: %w", err)
		}
		r.rest = m.GetData()
	}
	n := copy(b, r.rest)
	r.rest, r.total = r.rest[n:], r.total+int64(n)
	return n, nil
}
