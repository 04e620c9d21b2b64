package master_test

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// fakeLife is what a fakeHost keeps of lives beside its boxes.
type fakeLife struct {
	failed map[string]error // what the present generation of a box came to
	kept   map[string]string
	notes  map[string]string // what the program of a box remembers
	snaps  map[string]*hostpb.Snapshot
	noted  map[string]string // by snapshot

	noMemory bool // its driver keeps none
	// before and after see each call with its box, and may refuse it: before, as
	// the host's own word when the box must stay as it is, or as a call that never
	// came; after, as an answer that was lost.
	before, after func(call, id string) error
}

func newFakeLife() fakeLife {
	return fakeLife{failed: map[string]error{}, kept: map[string]string{}, notes: map[string]string{}, snaps: map[string]*hostpb.Snapshot{}, noted: map[string]string{}}
}

const (
	boxRunning = hostpb.SandboxState_SANDBOX_STATE_RUNNING
	boxPaused  = hostpb.SandboxState_SANDBOX_STATE_PAUSED
)

// diskOf is what a paused one has of its host.
func diskOf(b *hostpb.Sandbox) host.Resources {
	return host.Resources{DiskBytes: b.GetResources().GetDiskBytes()}
}

// note has the program of a box remember something.
func (h *fakeHost) note(id, text string) { h.set(func(h *fakeHost) { h.life.notes[id] = text }) }

func (h *fakeHost) remembers(id string) (text string) {
	h.set(func(h *fakeHost) { text = h.life.notes[id] })
	return text
}

func (h *fakeHost) stateOf(id string) (s hostpb.SandboxState) {
	h.set(func(h *fakeHost) { s = h.boxes[id].GetState() })
	return s
}

// pass is one call of a life: do changes the box, or says why not.
func (h *fakeHost) pass(call, id string, generation int64, do func(b *hostpb.Sandbox) error) (*hostpb.Sandbox, *hostpb.HostTruth, error) {
	h.count(call)
	h.mu.Lock()
	before, after := h.life.before, h.life.after
	h.mu.Unlock()
	if before != nil {
		if err := before(call, id); err != nil {
			return nil, nil, serve.GRPCError(err)
		}
	}
	b, truth, err := h.passLocked(id, generation, do)
	if err == nil && after != nil {
		err = after(call, id)
	}
	return b, truth, serve.GRPCError(err)
}

func (h *fakeHost) passLocked(id string, generation int64, do func(b *hostpb.Sandbox) error) (*hostpb.Sandbox, *hostpb.HostTruth, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.boxes[id]
	switch {
	case !ok:
		return nil, nil, fault.New(fault.SandboxNotFound, "sandbox %s", id)
	case generation < b.GetGeneration():
		return nil, nil, fault.New(fault.StaleGeneration, "sandbox %s: %d, and %d was met", id, generation, b.GetGeneration())
	case generation == b.GetGeneration() && h.life.failed[id] != nil:
		return nil, nil, h.life.failed[id]
	case generation > b.GetGeneration():
		if err := do(b); err != nil {
			if fault.Of(err) == fault.HostFull { // nothing was done: it may be asked again
				return nil, nil, serve.WithTruth(err, h.truth())
			}
			b.Generation = generation
			h.life.failed[id] = err
			return nil, nil, err
		}
		b.Generation = generation
		delete(h.life.failed, id)
	}
	h.revision++
	return proto.CloneOf(b), h.truth(), nil
}

func (h *fakeHost) PauseSandbox(_ context.Context, q *hostpb.PauseSandboxRequest) (*hostpb.PauseSandboxResponse, error) {
	b, truth, err := h.pass("pause", q.GetSandboxId(), q.GetGeneration(), func(b *hostpb.Sandbox) error {
		if q.GetWithMemory() && h.life.noMemory {
			return fault.New(fault.Unsupported, "no memory is kept")
		}
		if b.GetState() == boxRunning {
			b.State, b.Ip, b.KeptBytes, b.WithMemory = boxPaused, "", 1<<20, q.GetWithMemory()
		}
		return nil
	})
	return &hostpb.PauseSandboxResponse{Sandbox: b, Truth: truth}, err
}

func (h *fakeHost) ResumeSandbox(_ context.Context, q *hostpb.ResumeSandboxRequest) (*hostpb.ResumeSandboxResponse, error) {
	b, truth, err := h.pass("resume", q.GetSandboxId(), q.GetGeneration(), func(b *hostpb.Sandbox) error {
		if b.GetState() == boxPaused {
			if free := h.room.Sub(h.used()).Add(diskOf(b)); !resourcesOf(b.GetResources()).Fits(free) {
				return fault.New(fault.HostFull, "host %s", h.id)
			}
			b.State, b.Ip, b.KeptBytes, b.WithMemory = boxRunning, "10.0.0.3", 0, false
		}
		return nil
	})
	return &hostpb.ResumeSandboxResponse{Sandbox: b, Truth: truth}, err
}

func (h *fakeHost) RollbackSandbox(_ context.Context, q *hostpb.RollbackSandboxRequest) (*hostpb.RollbackSandboxResponse, error) {
	b, truth, err := h.pass("rollback", q.GetSandboxId(), q.GetGeneration(), func(b *hostpb.Sandbox) error {
		if h.life.snaps[q.GetSnapshotId()] == nil {
			return fault.New(fault.SnapshotNotFound, "snapshot %s", q.GetSnapshotId())
		}
		h.life.notes[b.GetSandboxId()] = h.life.noted[q.GetSnapshotId()]
		b.State, b.Ip = boxRunning, "10.0.0.4"
		return nil
	})
	return &hostpb.RollbackSandboxResponse{Sandbox: b, Truth: truth}, err
}

func (h *fakeHost) GetSandbox(_ context.Context, q *hostpb.GetSandboxRequest) (*hostpb.GetSandboxResponse, error) {
	h.count("get")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.before != nil {
		if err := h.life.before("get", q.GetSandboxId()); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	b, ok := h.boxes[q.GetSandboxId()]
	if !ok {
		return nil, serve.GRPCError(fault.New(fault.SandboxNotFound, "sandbox %s", q.GetSandboxId()))
	}
	return &hostpb.GetSandboxResponse{Sandbox: proto.CloneOf(b)}, nil
}

func (h *fakeHost) UpdateSandbox(_ context.Context, q *hostpb.UpdateSandboxRequest) (*hostpb.UpdateSandboxResponse, error) {
	h.count("update")
	h.mu.Lock()
	before := h.life.before
	h.mu.Unlock()
	if before != nil {
		if err := before("update", q.GetSandboxId()); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.boxes[q.GetSandboxId()]
	if !ok {
		return nil, serve.GRPCError(fault.New(fault.SandboxNotFound, "sandbox %s", q.GetSandboxId()))
	}
	b.NetworkRevision = max(b.GetNetworkRevision(), q.GetRevision())
	return &hostpb.UpdateSandboxResponse{Sandbox: proto.CloneOf(b)}, nil
}

func (h *fakeHost) StatSandboxes(_ context.Context, q *hostpb.StatSandboxesRequest) (*hostpb.StatSandboxesResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	answer := &hostpb.StatSandboxesResponse{}
	for _, id := range slices.Sorted(maps.Keys(h.boxes)) {
		if len(q.GetSandboxIds()) == 0 || slices.Contains(q.GetSandboxIds(), id) {
			answer.Sandboxes = append(answer.Sandboxes, &hostpb.SandboxStats{SandboxId: id, CpuUs: 7, MemBytes: 1 << 20})
		}
	}
	return answer, nil
}

// ReadLogs has three lines, and with follow one more that comes later.
func (h *fakeHost) ReadLogs(q *hostpb.ReadLogsRequest, stream hostpb.HostService_ReadLogsServer) error {
	h.mu.Lock()
	_, ok := h.boxes[q.GetSandboxId()]
	h.mu.Unlock()
	if !ok {
		return serve.GRPCError(fault.New(fault.SandboxNotFound, "sandbox %s", q.GetSandboxId()))
	}
	lines := []string{"one\n", "two\n", "three\n"}
	if n := int(q.GetTail()); n > 0 && n < len(lines) {
		lines = lines[len(lines)-n:]
	}
	if q.GetFollow() {
		lines = append(lines, "later\n")
	}
	for _, line := range lines {
		if err := stream.Send(&hostpb.ReadLogsResponse{Data: []byte(line)}); err != nil {
			return err
		}
	}
	return nil
}

func (h *fakeHost) CreateSnapshot(_ context.Context, q *hostpb.CreateSnapshotRequest) (*hostpb.CreateSnapshotResponse, error) {
	h.count("snapshot")
	h.mu.Lock()
	before, after := h.life.before, h.life.after
	h.mu.Unlock()
	if before != nil {
		if err := before("snapshot", q.GetSandboxId()); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	k, truth, err := h.snap(q)
	if err == nil && after != nil {
		err = after("snapshot", q.GetSandboxId())
	}
	return &hostpb.CreateSnapshotResponse{Snapshot: k, Truth: truth}, serve.GRPCError(err)
}

func (h *fakeHost) snap(q *hostpb.CreateSnapshotRequest) (*hostpb.Snapshot, *hostpb.HostTruth, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := h.life.snaps[q.GetSnapshotId()]; k != nil {
		return proto.CloneOf(k), h.truth(), nil
	}
	b, ok := h.boxes[q.GetSandboxId()]
	if !ok {
		return nil, nil, fault.New(fault.SandboxNotFound, "sandbox %s", q.GetSandboxId())
	}
	if q.GetWithMemory() && h.life.noMemory {
		return nil, nil, fault.New(fault.Unsupported, "no memory is kept")
	}
	k := &hostpb.Snapshot{SnapshotId: q.GetSnapshotId(), SandboxId: q.GetSandboxId(), TemplateId: b.GetTemplateId(), ArtifactId: b.GetArtifactId(), WithMemory: q.GetWithMemory(), SizeBytes: 1 << 20}
	h.life.snaps[k.GetSnapshotId()], h.life.noted[k.GetSnapshotId()] = k, h.life.notes[q.GetSandboxId()]
	h.revision++
	return proto.CloneOf(k), h.truth(), nil
}

func (h *fakeHost) DeleteSnapshot(_ context.Context, q *hostpb.DeleteSnapshotRequest) (*hostpb.DeleteSnapshotResponse, error) {
	h.count("delete_snapshot")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.before != nil {
		if err := h.life.before("delete_snapshot", q.GetSnapshotId()); err != nil {
			return nil, serve.GRPCError(err)
		}
	}
	_, existed := h.life.snaps[q.GetSnapshotId()]
	delete(h.life.snaps, q.GetSnapshotId())
	h.revision++
	return &hostpb.DeleteSnapshotResponse{Existed: existed, Truth: h.truth()}, nil
}

func (h *fakeHost) ListSnapshots(context.Context, *hostpb.ListSnapshotsRequest) (*hostpb.ListSnapshotsResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	answer := &hostpb.ListSnapshotsResponse{}
	for _, k := range h.life.snaps {
		answer.Snapshots = append(answer.Snapshots, proto.CloneOf(k))
	}
	return answer, nil
}

func (h *fakeHost) snapshots() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.life.snaps))
}

// ExportRoot has a root of a few bytes.
func (h *fakeHost) ExportRoot(q *hostpb.ExportRootRequest, stream hostpb.HostService_ExportRootServer) error {
	h.count("export")
	for _, part := range []string{"root of ", q.GetSandboxId(), q.GetSnapshotId()} {
		if err := stream.Send(&hostpb.ExportRootResponse{Data: []byte(part)}); err != nil {
			return err
		}
	}
	return nil
}

// once returns an error the first time and nil later.
func once(err error) func() error {
	return func() error {
		e := err
		err = nil
		return e
	}
}

// on is a knob that meets one call.
func on(call string, do func() error) func(string, string) error {
	return func(met, _ string) error {
		if met != call {
			return nil
		}
		return do()
	}
}
