package master

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// commitSnapshot begins the request ids of snapshots that templates are made of.
const commitSnapshot = "commit:"

// serveCommit makes a template of what a sandbox or snapshot has on disk. It is
// a build whose image is that snapshot; the answer is its job.
func (m *Master) serveCommit(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.CommitRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	if err == nil {
		req.RequestID = named(r, req.RequestID)
		err = checkCommit(req)
	}
	var j template.Job
	if err == nil {
		j, err = m.commit(r.Context(), req)
	}
	m.answerJob(w, r, req.RequestID, j, err, warnings(unknown)...)
}

func checkCommit(r cubeapi.CommitRequest) error {
	if err := checkRequestID(r.RequestID); err != nil {
		return err
	}
	if r.Alias != "" {
		if err := template.CheckAlias(r.Alias); err != nil {
			return err
		}
	}
	switch {
	case (r.SandboxID == "") == (r.SnapshotID == ""):
		return fault.New(fault.InvalidInput, "one of sandbox_id and snapshot_id must be given")
	case r.SnapshotID != "":
		return checkSnapshotID(r.SnapshotID)
	}
	return checkID(r.SandboxID)
}

// commit submits the job. Of a sandbox a snapshot is taken first, of its disk
// alone: the job may wait, and be begun again, and is to find the same each
// time. It goes when the job has it, or by itself.
func (m *Master) commit(ctx context.Context, req cubeapi.CommitRequest) (template.Job, error) {
	if j, found, err := m.committed(ctx, req); err != nil || found {
		return j, err
	}
	id := sandbox.SnapshotID(req.SnapshotID)
	if req.SandboxID != "" {
		without := false
		taken := cubeapi.SnapshotRequest{RequestID: commitSnapshot + req.RequestID, SandboxID: req.SandboxID, Name: "commit", Memory: &without}
		if err := checkRequestID(taken.RequestID); err != nil {
			return template.Job{}, err
		}
		n, err := m.snapshot(ctx, taken, m.pace.commitKept)
		if err != nil {
			return template.Job{}, err
		}
		id = n.ID
	}
	var build cubeapi.FromImageRequest
	err := m.update(ctx, func(tx *store.Tx) error {
		n, err := readySnapshot(ctx, tx, id)
		if err != nil {
			return err
		}
		d, err := templatedb.GetDefinition(ctx, tx, n.TemplateID)
		if err != nil {
			return err
		}
		k, err := keptOf(d.Request)
		if err != nil {
			return err
		}
		// All else is as its template has it; the agent of its own is not kept
		// anywhere, and the usual one takes its place.
		build = k.FromImageRequest
		build.RequestID, build.Alias, build.SourceImageRef, build.EnvdSHA256, build.Priority, build.DistributionScope = req.RequestID, req.Alias, cubeapi.SnapshotRef+string(n.ID), "", 0, nil
		return audit(ctx, tx, actSandboxCommit, string(n.SandboxID), "snapshot", string(n.ID), "alias", req.Alias)
	})
	if err == nil {
		err = normaliseSpec(&build)
	}
	if err != nil {
		return template.Job{}, err
	}
	return m.submit(ctx, build)
}

// committed finds the job of the same request.
func (m *Master) committed(ctx context.Context, req cubeapi.CommitRequest) (j template.Job, found bool, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) error {
		if j, found, err = templatedb.JobByRequest(ctx, tx, req.RequestID, template.OpCreate); err != nil || !found {
			return err
		}
		of, ok := snapshotOf(j)
		same := ok && j.Alias == req.Alias
		if n, err := sandboxdb.GetSnapshot(ctx, tx, of); same && err == nil {
			same = string(n.SandboxID) == req.SandboxID || string(n.ID) == req.SnapshotID
		} else if err != nil && !errors.Is(err, fault.SnapshotNotFound) {
			return err
		}
		if !same {
			return fault.New(fault.SubmissionReused, "request %s, which asked for job %s", req.RequestID, j.ID)
		}
		return nil
	})
	return j, found, err
}

// snapshotOf is what a job makes a template of, if that is a snapshot.
func snapshotOf(j template.Job) (sandbox.SnapshotID, bool) {
	ref, ok := strings.CutPrefix(j.ImageRef, cubeapi.SnapshotRef)
	ref, _, _ = strings.Cut(ref, "@")
	return sandbox.SnapshotID(ref), ok
}

// committedIn lets go the snapshot that was taken for a job which has its bytes,
// or ended. One that a user took is the user's.
func committedIn(ctx context.Context, tx *store.Tx, j template.Job) error {
	id, ok := snapshotOf(j)
	if !ok {
		return nil
	}
	n, err := sandboxdb.GetSnapshot(ctx, tx, id)
	if errors.Is(err, fault.SnapshotNotFound) || err == nil && (n.ExpiresAt.IsZero() || n.State == sandbox.SnapGone) {
		return nil
	}
	if err == nil {
		_, err = dropSnapshotIn(ctx, tx, n, 0)
	}
	return err
}

// serveRoot streams the root of a snapshot to the template centre, as one tar
// archive. A refusal before the first byte has its HTTP status; a stream that
// breaks off later is cut.
func (m *Master) serveRoot(w http.ResponseWriter, r *http.Request) {
	if err := m.root(w, r); err != nil {
		serve.WriteError(w, r, err)
	}
}

func (m *Master) root(w http.ResponseWriter, r *http.Request) error {
	given := r.URL.Query().Get("snapshot_id")
	if err := checkSnapshotID(given); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var n sandbox.Snapshot
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		n, err = readySnapshot(ctx, tx, sandbox.SnapshotID(given))
		return err
	})
	if err != nil {
		return err
	}
	client, err := m.hostOf(ctx, n.HostID)
	if err != nil {
		return err
	}
	stream, err := client.ExportRoot(ctx, &hostpb.ExportRootRequest{SnapshotId: given})
	if err != nil {
		return hostFault(ctx, err, n.HostID)
	}
	part, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return hostFault(ctx, err, n.HostID)
	}
	w.Header().Set("Content-Type", "application/x-tar")
	for err == nil {
		if _, gone := w.Write(part.GetData()); gone != nil {
			return nil // the caller went away
		}
		part, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		m.log.WarnContext(ctx, "root of a snapshot broke off", slog.String("snapshot_id", given), slog.String("error", err.Error()))
		panic(http.ErrAbortHandler) // so that nobody takes what came for the whole
	}
	return nil
}
