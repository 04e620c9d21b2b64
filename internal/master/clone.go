package master

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
)

// serveClone makes sandboxes that begin as another is at that moment. Its host
// keeps that for them, and forgets it when they are there.
func (m *Master) serveClone(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var req cubeapi.CloneRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	if err == nil {
		err = checkID(req.SandboxID)
	}
	if err == nil {
		err = checkRequestID(req.RequestID)
	}
	if err == nil && (req.Count < 0 || req.Count > cubeapi.MaxBatch) {
		err = fault.New(fault.InvalidInput, "count %d: 1 to %d", req.Count, cubeapi.MaxBatch)
	}
	var parts []*part
	if err == nil {
		parts, err = m.clone(r, req)
	}
	m.createEnded(began, err)
	answer := showBatch(cubeapi.BatchAll, parts)
	switch {
	case err != nil && len(parts) > 0:
		serve.WriteErrorWith(w, r, err, answer)
	case err != nil:
		refuseCreate(w, r, err)
	default:
		answer.Envelope = cubeapi.OK(named(r, req.RequestID))
		answer.Warnings = warnings(unknown)
		serve.WriteJSON(w, http.StatusOK, answer)
	}
}

func (m *Master) clone(r *http.Request, req cubeapi.CloneRequest) ([]*part, error) {
	ctx := r.Context()
	s, err := m.sandbox(ctx, sandbox.ID(req.SandboxID))
	if err != nil {
		return nil, err
	}
	made := cubeapi.SandboxBatchRequest{Count: max(1, req.Count), Mode: cubeapi.BatchAll}
	made.Labels = maps.Clone(s.Metadata)
	who, err := tenantOf(r, &made.SandboxCreateRequest)
	if err != nil {
		return nil, err
	}
	taken := cubeapi.SnapshotRequest{SandboxID: req.SandboxID, Memory: req.Memory, Name: "clone"}
	if req.RequestID != "" {
		taken.RequestID, made.RequestID = "clone:"+req.RequestID, req.RequestID
		if err := checkRequestID(taken.RequestID); err != nil {
			return nil, err
		}
	}
	// Should this process end meanwhile, the time of the snapshot ends by itself.
	n, err := m.snapshot(ctx, taken, m.pace.cloneKept)
	if err != nil {
		return nil, err
	}
	if err := m.update(ctx, func(tx *store.Tx) error {
		return audit(ctx, tx, actSandboxClone, req.SandboxID, "snapshot", string(n.ID), "count", strconv.Itoa(made.Count))
	}); err != nil {
		return nil, err
	}
	made.SnapshotID = string(n.ID)
	parts, err := m.createBatch(ctx, who, &made)
	if req.RequestID == "" || err != nil { // else the request may come again
		m.dropClone(ctx, n.ID)
	}
	return parts, err
}

// dropClone forgets what clones were made of, whether or not the caller is
// still there.
func (m *Master) dropClone(ctx context.Context, id sandbox.SnapshotID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostCall)
	defer cancel()
	late, err := m.deleteSnapshot(ctx, id)
	if err = errors.Join(late, err); err != nil {
		m.log.WarnContext(ctx, "what clones were made of is deleted later", slog.String("snapshot_id", string(id)), slog.String("error", err.Error()))
	}
}
