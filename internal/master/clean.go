package master

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// cleanArtifact removes a released artifact from its hosts and then hands the
// bytes to the template centre, which alone may remove them. One that is in
// use is left alone. pending are the hosts that could not be cleaned yet. done is
// false when another was at work on it for all of wait: nothing is known of it
// then.
func (m *Master) cleanArtifact(ctx context.Context, id template.ArtifactID, wait time.Duration) (pending []cubeapi.PendingHost, done bool, err error) {
	done, err = m.db.WithLock(ctx, artifactLock(id), wait, func(ctx context.Context) (err error) {
		pending, err = m.cleanLocked(ctx, id)
		return err
	})
	return pending, done, err
}

// holder is a host that holds an artifact. Why says that it cannot be asked.
type holder struct {
	template.Placement
	facts host.Facts
	known bool // else it is in no book any more, and holds nothing of ours
	why   string
}

func (m *Master) cleanLocked(ctx context.Context, id template.ArtifactID) ([]cubeapi.PendingHost, error) {
	a, held, err := m.holders(ctx, id)
	if err != nil || a.State != template.ArtifactCleanup {
		return nil, err
	}
	// No transaction is open while hosts are called.
	pending, err := m.cleanHosts(ctx, held)
	if err != nil {
		return nil, err
	}
	if len(pending) > 0 {
		return pending, m.waitBehind(ctx, a)
	}
	m.fleet.changed()
	if err := m.step("master.clean.after_hosts"); err != nil {
		return nil, err
	}
	if err := m.release(ctx, id); err != nil {
		return nil, err
	}
	if err := m.step("master.clean.after_release"); err != nil {
		return nil, err
	}
	m.deliverSoon(topicArtifactDelete)
	return nil, nil
}

// waitBehind lets the artifacts that wait behind a go first next time: hosts that
// are away must not hold up what others can give back. It is done although the
// time for the hosts may be over.
func (m *Master) waitBehind(ctx context.Context, a template.Artifact) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostCall)
	defer cancel()
	return m.update(ctx, func(tx *store.Tx) error { return templatedb.DeferArtifact(ctx, tx, a) })
}

// holders returns an artifact and who holds it, as far as it was released: in
// any other state nobody is to be asked.
func (m *Master) holders(ctx context.Context, id template.ArtifactID) (a template.Artifact, list []holder, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) error {
		list = nil
		a, err = templatedb.GetArtifact(ctx, tx, id)
		if errors.Is(err, fault.ArtifactNotFound) {
			a = template.Artifact{}
			return nil
		}
		if err != nil || a.State != template.ArtifactCleanup {
			return err
		}
		held, err := templatedb.ListPlacements(ctx, tx, id)
		if err != nil {
			return err
		}
		list, err = m.holding(ctx, tx, held)
		return err
	})
	return a, list, err
}

func (m *Master) holding(ctx context.Context, tx *store.Tx, held []template.Placement) ([]holder, error) {
	var list []holder
	for _, p := range held {
		h := holder{Placement: p, known: true}
		var err error
		h.facts, err = sandboxdb.GetHost(ctx, tx, p.HostID)
		if errors.Is(err, fault.HostUnknown) {
			h.known, err = false, nil
		} else if err == nil && host.HealthOf(h.facts, tx.Now, m.cfg.Master.HostStaleAfter) == host.Unknown {
			// It is not asked: to wait for it would hold up the rest.
			h.why = "not heard of for " + tx.Now.Sub(h.facts.HeardAt).Round(time.Second).String()
		}
		if err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	return list, nil
}

// cleanHosts takes an artifact from those that can be asked, and returns the
// others with what they said. A host that cannot do it is no failure.
func (m *Master) cleanHosts(ctx context.Context, held []holder) ([]cubeapi.PendingHost, error) {
	var mu sync.Mutex
	var pending []cubeapi.PendingHost
	wait := func(h holder, why string) {
		mu.Lock()
		defer mu.Unlock()
		pending = append(pending, cubeapi.PendingHost{NodeID: string(h.HostID), Reason: why})
	}
	var group errgroup.Group
	group.SetLimit(m.cfg.Master.DistributeWorkers)
	for _, h := range held {
		if h.why != "" {
			wait(h, h.why)
			continue
		}
		group.Go(func() error {
			if h.known {
				if err := m.removeArtifact(ctx, h.facts, h.ArtifactID); err != nil {
					m.log.InfoContext(ctx, "host not clean yet", slog.String("host_id", string(h.HostID)), slog.String("artifact_id", string(h.ArtifactID)), logs.Err(err))
					wait(h, fault.DetailOf(err).Message)
					return nil
				}
			}
			if err := m.step("master.clean.after_host"); err != nil {
				return err
			}
			return m.update(ctx, func(tx *store.Tx) error { return templatedb.DeletePlacement(ctx, tx, h.ArtifactID, h.HostID) })
		})
	}
	err := group.Wait()
	slices.SortFunc(pending, func(a, b cubeapi.PendingHost) int { return strings.Compare(a.NodeID, b.NodeID) })
	return pending, err
}

// release lets the template centre remove the bytes, once no host has them and
// nothing needs them.
func (m *Master) release(ctx context.Context, id template.ArtifactID) error {
	return m.update(ctx, func(tx *store.Tx) error {
		a, err := templatedb.GetArtifact(ctx, tx, id)
		if errors.Is(err, fault.ArtifactNotFound) || err == nil && a.State != template.ArtifactCleanup {
			return nil
		}
		if err != nil {
			return err
		}
		left, err := templatedb.ListPlacements(ctx, tx, id)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fault.New(fault.StateConflict, "artifact %s was placed again meanwhile", id)
		}
		n, err := templatedb.ArtifactReferences(ctx, tx, id)
		if err != nil {
			return err
		}
		if n > 0 {
			_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactUsed)
			return err
		}
		if _, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactHostsClean); err != nil {
			return err
		}
		return tx.Enqueue(ctx, store.Message{Topic: topicArtifactDelete, Key: string(id), Trace: traceOf(ctx)}, 0)
	})
}

func (m *Master) removeArtifact(ctx context.Context, f host.Facts, id template.ArtifactID) error {
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	_, err = client.RemoveArtifact(bounded, &hostpb.RemoveArtifactRequest{ArtifactId: string(id)})
	return hostFault(ctx, err, f.ID)
}

// deleteBytes asks the template centre to let an artifact's bytes and row go.
func (m *Master) deleteBytes(ctx context.Context, msg store.Message) error {
	ctx, cancel := context.WithTimeout(ctx, centerCall)
	defer cancel()
	err := m.center.DeleteArtifact(ctx, msg.Key)
	if errors.Is(err, fault.StateConflict) {
		return nil // it is wanted again
	}
	return err
}

// sweepDeletes goes on with deletes that waited for a host.
func (m *Master) sweepDeletes(ctx context.Context) error {
	var unclean, kept []template.Artifact
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if unclean, err = templatedb.ListArtifacts(ctx, tx, templatedb.ArtifactFilter{States: []template.ArtifactState{template.ArtifactCleanup}, Limit: sweepLimit}); err != nil {
			return err
		}
		kept, err = templatedb.ListArtifacts(ctx, tx, templatedb.ArtifactFilter{States: []template.ArtifactState{template.ArtifactDeleting}, ChangedBefore: tx.Now.Add(-m.pace.deletingKept), Limit: sweepLimit})
		return err
	})
	errs := []error{err}
	for _, a := range kept {
		// Its message was given up, or its removal fails: begin again.
		err := m.db.Update(ctx, func(tx *store.Tx) error {
			_, err := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactKept)
			return err
		})
		if !errors.Is(err, fault.VersionConflict) { // else somebody went on meanwhile
			errs = append(errs, err)
		}
	}
	errs = append(errs, m.cleanAll(ctx, unclean))
	return errors.Join(append(errs, m.endDeleted(ctx))...)
}

// cleansAtOnce is how many deletes a sweep has in hand at a time, so that a
// host which does not answer holds up few of them.
const cleansAtOnce = 8

func (m *Master) cleanAll(ctx context.Context, list []template.Artifact) error {
	var mu sync.Mutex
	var errs []error
	var group errgroup.Group
	group.SetLimit(cleansAtOnce)
	for _, a := range list {
		group.Go(func() error {
			_, done, err := m.cleanArtifact(ctx, a.ID, 0)
			if err == nil && done {
				return nil
			}
			// What fails, or is in another's hands, must not come first again.
			err = errors.Join(err, m.waitBehind(ctx, a))
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			return nil
		})
	}
	_ = group.Wait() // each failure is in the list
	return errors.Join(errs...)
}

// endDeleted ends the templates whose hosts are clean.
func (m *Master) endDeleted(ctx context.Context) error {
	var list []template.Definition
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = templatedb.DefinitionsIn(ctx, tx, template.Deleting, sweepLimit)
		return err
	})
	errs := []error{err}
	for _, d := range list {
		_, err := m.forgetDeleted(ctx, d)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
