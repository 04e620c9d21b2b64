package cubelet

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

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
		SnapshotId: k.ID, SandboxId: k.SandboxID, TemplateId: k.TemplateID, ArtifactId: k.ArtifactID, WithMemory: k.WithMemory, SizeBytes: k.Bytes,
		CreatedAt: timestamppb.New(k.CreatedAt), Resources: wireResources(k.Resources), WritableBytes: k.Writable,
	}
}
