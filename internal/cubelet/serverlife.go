package cubelet

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// PauseSandbox keeps a sandbox on disk.
func (s *Server) PauseSandbox(ctx context.Context, r *hostpb.PauseSandboxRequest) (*hostpb.PauseSandboxResponse, error) {
	if err := s.c.Pause(ctx, r.GetSandboxId(), r.GetGeneration(), r.GetWithMemory(), r.GetReason()); err != nil {
		return nil, serve.GRPCError(err)
	}
	i, err := s.c.find(r.GetSandboxId())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	return &hostpb.PauseSandboxResponse{Sandbox: s.c.show(i), Truth: s.c.truth()}, nil
}

// ResumeSandbox brings a kept sandbox back.
func (s *Server) ResumeSandbox(ctx context.Context, r *hostpb.ResumeSandboxRequest) (*hostpb.ResumeSandboxResponse, error) {
	if err := s.c.Resume(ctx, r.GetSandboxId(), r.GetGeneration()); err != nil {
		return nil, serve.GRPCError(err)
	}
	i, err := s.c.find(r.GetSandboxId())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	return &hostpb.ResumeSandboxResponse{Sandbox: s.c.show(i), Truth: s.c.truth()}, nil
}

// RollbackSandbox gives a sandbox the state of a snapshot.
func (s *Server) RollbackSandbox(ctx context.Context, r *hostpb.RollbackSandboxRequest) (*hostpb.RollbackSandboxResponse, error) {
	if err := s.c.Rollback(ctx, r.GetSandboxId(), r.GetSnapshotId(), r.GetGeneration()); err != nil {
		return nil, serve.GRPCError(err)
	}
	i, err := s.c.find(r.GetSandboxId())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	return &hostpb.RollbackSandboxResponse{Sandbox: s.c.show(i), Truth: s.c.truth()}, nil
}

// UpdateSandbox changes what a sandbox may reach, and which ports others may.
func (s *Server) UpdateSandbox(ctx context.Context, r *hostpb.UpdateSandboxRequest) (*hostpb.UpdateSandboxResponse, error) {
	egress, err := egressOf(r.GetEgress())
	if err == nil {
		err = s.c.Update(ctx, r.GetSandboxId(), r.GetRevision(), egress, r.GetExposedPorts())
	}
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	i, err := s.c.find(r.GetSandboxId())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	return &hostpb.UpdateSandboxResponse{Sandbox: s.c.show(i)}, nil
}

// CreateSnapshot keeps a sandbox's state beside it.
func (s *Server) CreateSnapshot(ctx context.Context, r *hostpb.CreateSnapshotRequest) (*hostpb.CreateSnapshotResponse, error) {
	if err := sandbox.CheckID(r.GetSandboxId()); err != nil {
		return nil, serve.GRPCError(err)
	}
	k, err := s.c.Snapshot(ctx, r.GetSnapshotId(), r.GetSandboxId(), r.GetWithMemory())
	if err != nil {
		return nil, serve.GRPCError(err)
	}
	return &hostpb.CreateSnapshotResponse{Snapshot: wireSnapshot(k), Truth: s.c.truth()}, nil
}

// DeleteSnapshot removes a snapshot. Absent is success.
func (s *Server) DeleteSnapshot(ctx context.Context, r *hostpb.DeleteSnapshotRequest) (*hostpb.DeleteSnapshotResponse, error) {
	existed, err := s.c.DeleteSnapshot(ctx, r.GetSnapshotId())
	return &hostpb.DeleteSnapshotResponse{Existed: existed, Truth: s.c.truth()}, serve.GRPCError(err)
}

// ListSnapshots tells all snapshots of the host.
func (s *Server) ListSnapshots(context.Context, *hostpb.ListSnapshotsRequest) (*hostpb.ListSnapshotsResponse, error) {
	answer := &hostpb.ListSnapshotsResponse{}
	for _, k := range s.c.Snapshots() {
		answer.Snapshots = append(answer.Snapshots, wireSnapshot(k))
	}
	return answer, nil
}

// wireSnapshot tells what does not change once a snapshot is made.
func wireSnapshot(k *snapshot) *hostpb.Snapshot {
	return &hostpb.Snapshot{
		SnapshotId: k.ID, Driver: driverName, SandboxId: k.SandboxID, TemplateId: k.TemplateID, ArtifactId: k.ArtifactID, WithMemory: k.WithMemory, SizeBytes: k.Bytes,
		CreatedAt: timestamppb.New(k.CreatedAt), Resources: wireResources(k.Resources), WritableBytes: k.Writable,
	}
}

// StatSandboxes tells what sandboxes use.
func (s *Server) StatSandboxes(_ context.Context, r *hostpb.StatSandboxesRequest) (*hostpb.StatSandboxesResponse, error) {
	return &hostpb.StatSandboxesResponse{Sandboxes: s.c.Stats(r.GetSandboxIds())}, nil
}

// ReadLogs streams what a sandbox's program and its runtime wrote.
func (s *Server) ReadLogs(r *hostpb.ReadLogsRequest, stream hostpb.HostService_ReadLogsServer) error {
	return serve.GRPCError(s.c.ReadLogs(stream.Context(), r.GetSandboxId(), int(r.GetTail()), r.GetFollow(), func(b []byte) error {
		return stream.Send(&hostpb.ReadLogsResponse{Data: b})
	}))
}

// ExportRoot streams the whole root of a sandbox or snapshot.
func (s *Server) ExportRoot(r *hostpb.ExportRootRequest, stream hostpb.HostService_ExportRootServer) error {
	if (r.GetSandboxId() == "") == (r.GetSnapshotId() == "") {
		return serve.GRPCError(fault.New(fault.InvalidInput, "export: name a sandbox or a snapshot"))
	}
	return serve.GRPCError(s.c.ExportRoot(stream.Context(), r.GetSandboxId(), r.GetSnapshotId(), rootSink{stream}))
}

// rootSink sends what is written to it.
type rootSink struct {
	stream hostpb.HostService_ExportRootServer
}

func (w rootSink) Write(b []byte) (int, error) {
	if err := w.stream.Send(&hostpb.ExportRootResponse{Data: b}); err != nil {
		return 0, err
	}
	return len(b), nil
}
