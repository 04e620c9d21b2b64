package master

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// gcLock is held by whoever chooses what goes, not while hosts are called.
	gcLock = "cubemaster_templatecenter_artifact_gc_v1"
	// gcWait is how long a user's call waits for another that chooses.
	gcWait = 10 * time.Second
)

func (m *Master) serveGC(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.GCRequest
	err := serve.ReadOptionalJSON(r, maxBody, &req)
	var answer cubeapi.GCAnswer
	if err == nil {
		var locked bool
		locked, err = m.db.WithLock(r.Context(), gcLock, gcWait, func(ctx context.Context) (err error) {
			answer, err = m.collect(ctx, req.DryRun)
			return err
		})
		if err == nil && !locked {
			err = fault.New(fault.StateConflict, "another master removes what is unused at this moment")
		}
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	answer.Envelope = cubeapi.OK(named(r, req.RequestID))
	serve.WriteJSON(w, http.StatusOK, answer)
}

// sweepGC takes what nothing refers to any more from hosts and store: leftovers
// of jobs that ended between two steps.
func (m *Master) sweepGC(ctx context.Context) error {
	m.mu.Lock()
	due := time.Since(m.collected) >= m.pace.gc
	m.mu.Unlock()
	if !due {
		return nil
	}
	_, err := m.collect(ctx, false)
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.collected = time.Now()
	}
	return err
}

// collect chooses what goes, the oldest first, and lets the sweep of deletes do
// the rest: hosts first, then the bytes.
func (m *Master) collect(ctx context.Context, dry bool) (cubeapi.GCAnswer, error) {
	answer := cubeapi.GCAnswer{DryRun: dry, Artifacts: []cubeapi.GCArtifact{}}
	var list []template.Artifact
	var replicas []template.Replica
	var stray []holder
	var shown []cubeapi.GCArtifact
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		shown = nil
		if list, err = templatedb.UnusedArtifacts(ctx, tx, tx.Now.Add(-m.cfg.Master.ArtifactGCAfter), sweepLimit+1); err != nil {
			return err
		}
		if answer.More = len(list) > sweepLimit; answer.More {
			list = list[:sweepLimit]
		}
		for _, a := range list {
			held, err := templatedb.ListPlacements(ctx, tx, a.ID)
			if err != nil {
				return err
			}
			shown = append(shown, cubeapi.GCArtifact{ArtifactID: string(a.ID), Status: cubeapi.ArtifactStatus.Word(a.State), SizeBytes: a.SizeBytes, UnusedSince: stamp(a.ChangedAt), Hosts: hostNames(held)})
		}
		old := tx.Now.Add(-m.pace.orphanRows)
		if replicas, err = templatedb.OrphanReplicas(ctx, tx, old, sweepLimit); err != nil {
			return err
		}
		placements, err := templatedb.OrphanPlacements(ctx, tx, old, sweepLimit)
		if err != nil {
			return err
		}
		stray, err = m.holding(ctx, tx, placements)
		return err
	})
	if err != nil {
		return answer, err
	}
	answer.OrphanRows = len(replicas) + len(stray)
	errs := []error{}
	for i, a := range list {
		taken := dry
		if !dry {
			taken, err = m.collectOne(ctx, a)
			errs = append(errs, err)
		}
		if taken {
			answer.Artifacts = append(answer.Artifacts, shown[i])
			answer.TotalBytes += a.SizeBytes
		}
	}
	if !dry {
		errs = append(errs, m.dropOrphans(ctx, replicas, stray))
		if len(answer.Artifacts) > 0 {
			m.sweepNow()
		}
	}
	return answer, errors.Join(errs...)
}

// collectOne releases one artifact that was found unused, unless it is wanted
// again: the lock of its bytes keeps a build out that is just finding it, and
// state and version are compared.
func (m *Master) collectOne(ctx context.Context, a template.Artifact) (taken bool, err error) {
	_, err = m.db.WithLock(ctx, a.ID.BuildLock(), 0, func(ctx context.Context) error {
		if err := m.step("master.gc.before_release"); err != nil {
			return err
		}
		return m.db.Update(ctx, func(tx *store.Tx) error {
			taken = false
			n, err := templatedb.ArtifactReferences(ctx, tx, a.ID)
			if err != nil || n > 0 {
				return err
			}
			if _, err := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactUnused); err != nil {
				return err
			}
			taken = true
			return audit(ctx, tx, actGC, string(a.ID), "bytes", strconv.FormatInt(a.SizeBytes, 10))
		})
	})
	if errors.Is(err, fault.VersionConflict) {
		return false, nil // it changed meanwhile: somebody needs it, or let it go
	}
	if err == nil && taken {
		m.log.InfoContext(ctx, "artifact that nobody needs is removed", slog.String("artifact_id", string(a.ID)), slog.Int64("bytes", a.SizeBytes))
	}
	return taken && err == nil, err
}

// dropOrphans removes rows of what is gone: outcomes of hosts that came after a
// delete, and placements of artifacts that there are not.
func (m *Master) dropOrphans(ctx context.Context, replicas []template.Replica, stray []holder) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		for _, p := range replicas {
			if err := templatedb.RemoveReplica(ctx, tx, p); err != nil {
				return err
			}
		}
		return nil
	})
	errs := []error{err}
	for _, h := range stray {
		_, err := m.db.WithLock(ctx, artifactLock(h.ArtifactID), 0, func(ctx context.Context) error {
			err := m.db.View(ctx, func(tx *store.Tx) error {
				_, err := templatedb.GetArtifact(ctx, tx, h.ArtifactID)
				return err
			})
			if !errors.Is(err, fault.ArtifactNotFound) {
				return err // its row is there again
			}
			pending, err := m.cleanHosts(ctx, []holder{h})
			if err != nil || len(pending) == 0 {
				return err
			}
			return m.update(ctx, func(tx *store.Tx) error { return templatedb.DeferPlacement(ctx, tx, h.Placement) })
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
