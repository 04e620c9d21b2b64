package master

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// compareAtOnce is how many hosts are asked at a time, so that some that do not
// answer hold up nobody else.
const compareAtOnce = 8

// sightings are the sandboxes that a host had and no row knew, by when they
// were first seen so.
type sightings map[string]time.Time

// compareHosts holds each host's own list against the rows. A host that does
// not answer proves nothing.
func (m *Master) compareHosts(ctx context.Context, seen sightings) error {
	var list []host.Facts
	var now time.Time
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		now = tx.Now
		list, err = sandboxdb.ListHosts(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	strangers, failures := make([][]string, len(list)), make([]error, len(list))
	var group errgroup.Group
	group.SetLimit(compareAtOnce)
	for i, f := range list {
		if host.HealthOf(f, now, m.cfg.Master.HostStaleAfter) == host.Unknown {
			continue
		}
		group.Go(func() error {
			var err error
			strangers[i], err = m.compareHost(ctx, f)
			failures[i] = errors.Join(err, m.compareArtifacts(ctx, f))
			return nil
		})
	}
	_ = group.Wait() // each failure is in the list
	errs := []error{errors.Join(failures...), m.hosts.keep(list)}
	present := map[string]bool{}
	for i, f := range list {
		for _, id := range strangers[i] {
			present[string(f.ID)+"/"+id] = true
			if strings.HasPrefix(id, sandbox.SnapshotPrefix) {
				errs = append(errs, m.removeStrangeSnapshot(ctx, f, id, seen))
				continue
			}
			errs = append(errs, m.removeStranger(ctx, f, id, seen))
		}
	}
	for key := range seen {
		if !present[key] {
			delete(seen, key)
		}
	}
	return errors.Join(errs...)
}

// compareHost corrects the rows of one host's sandboxes and snapshots, and
// returns the ids that no row knows.
func (m *Master) compareHost(ctx context.Context, f host.Facts) ([]string, error) {
	// The rows first: what started between the two looks is then known to the
	// host and not to the rows, which waits; the other order would end it.
	var rows []sandbox.Sandbox
	var now time.Time
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		now = tx.Now
		rows, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{HostID: f.ID, States: liveStates, Limit: listLimit})
		return err
	})
	if err != nil {
		return nil, err
	}
	client, err := m.hosts.to(f)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	answer, err := client.ListSandboxes(bounded, &hostpb.ListSandboxesRequest{})
	if err != nil {
		return nil, hostFault(ctx, err, f.ID)
	}
	there := map[string]*hostpb.Sandbox{}
	for _, s := range answer.GetSandboxes() {
		there[s.GetSandboxId()] = s
	}
	var errs []error
	for _, row := range rows {
		errs = append(errs, m.compareRow(ctx, row, there[string(row.ID)], now))
		delete(there, string(row.ID))
	}
	strangers, err := m.compareSnapshots(ctx, f, client)
	errs = append(errs, err)
	for id := range there {
		strangers = append(strangers, id)
	}
	return strangers, errors.Join(errs...)
}

// compareRow corrects one row by what its host shows, nil for nothing.
func (m *Master) compareRow(ctx context.Context, row sandbox.Sandbox, shown *hostpb.Sandbox, now time.Time) error {
	var reason string
	switch {
	case row.State == sandbox.Terminating && now.Sub(row.ChangedAt) > m.onItsWay():
		// The message that would have seen to it may have been given up.
		if shown != nil {
			if err := m.removeFrom(ctx, row.ID, row.HostID, row.Reason); err != nil {
				return err
			}
		}
		return m.gone(ctx, row.ID)
	case !slices.Contains(holdsStill, row.State):
		return nil // somebody is at work on it
	case shown == nil:
		reason = reasonVanished
	case shown.GetState() == hostpb.SandboxState_SANDBOX_STATE_EXITED:
		reason = shown.GetReason()
	case shown.GetGeneration() > int64(row.Life.Generation):
		return nil // somebody is at work on it: the row was read before the host
	case row.State == sandbox.Running && shown.GetState() == hostpb.SandboxState_SANDBOX_STATE_PAUSED,
		row.State == sandbox.Paused && shown.GetState() == hostpb.SandboxState_SANDBOX_STATE_RUNNING:
		return m.straighten(ctx, row, shown)
	case shown.GetNetworkRevision() != 0 && shown.GetNetworkRevision() < row.Life.Revision:
		return m.followsNot(ctx, row)
	default:
		return nil
	}
	m.log.WarnContext(ctx, "sandbox ended by itself", slog.String("sandbox_id", string(row.ID)), slog.String("host_id", string(row.HostID)), slog.String("reason", reason))
	_, err := m.end(ctx, row.ID, reason, 0)
	return err
}

// straighten has a row follow its host, which has the sandbox otherwise in the
// same life: nobody loses what runs there, or what is kept there.
func (m *Master) straighten(ctx context.Context, row sandbox.Sandbox, shown *hostpb.Sandbox) error {
	on := sandbox.OnPauseAsked
	if row.State == sandbox.Paused {
		on = sandbox.OnWakeAsked
	}
	m.log.WarnContext(ctx, "a host has a sandbox otherwise than its row", slog.String("sandbox_id", string(row.ID)), slog.String("state", string(row.State)), slog.String("there", shown.GetState().String()))
	err := m.update(ctx, func(tx *store.Tx) error {
		s, err := sandboxdb.GetSandbox(ctx, tx, row.ID)
		if err != nil || s.State != row.State || s.Life.Generation != row.Life.Generation {
			return err
		}
		_, err = m.intend(ctx, tx, s, on, 0)
		return err
	})
	m.deliverSoon(topicLife)
	return err
}

// removeStranger removes a sandbox that no row knows, once it was seen for
// longer than a create may take to write its row.
func (m *Master) removeStranger(ctx context.Context, f host.Facts, id string, seen sightings) error {
	key := string(f.ID) + "/" + id
	if seen[key].IsZero() {
		seen[key] = time.Now()
	}
	grace := m.pace.orphanGrace
	if sandbox.Trial(id) { // no row ever knows it, and whoever tries it may be at it still
		grace = max(grace, m.pace.trialKept)
	}
	if time.Since(seen[key]) < grace {
		return nil
	}
	m.log.WarnContext(ctx, "sandbox in no book is removed", slog.String("sandbox_id", id), slog.String("host_id", string(f.ID)))
	if err := m.removeFrom(ctx, sandbox.ID(id), f.ID, "orphaned"); err != nil {
		return err
	}
	delete(seen, key)
	return m.update(ctx, func(tx *store.Tx) error {
		return audit(ctx, tx, actOrphan, id, "host", string(f.ID))
	})
}

// compareArtifacts removes what a host reports to hold and no row does: a
// distribution may have ended between the host and the row. What is still in
// use is noted, so that a delete finds it.
func (m *Master) compareArtifacts(ctx context.Context, f host.Facts) error {
	var stray []template.ArtifactID
	err := m.update(ctx, func(tx *store.Tx) error {
		stray = stray[:0]
		noted, err := templatedb.PlacementsOfHost(ctx, tx, f.ID)
		if err != nil {
			return err
		}
		for _, name := range f.Artifacts {
			id := template.ArtifactID(name)
			if slices.ContainsFunc(noted, func(p template.Placement) bool { return p.ArtifactID == id }) {
				continue
			}
			a, err := templatedb.GetArtifact(ctx, tx, id)
			switch {
			case errors.Is(err, fault.ArtifactNotFound):
				stray = append(stray, id)
				continue
			case err != nil:
				return err
			case a.State != template.ArtifactReady:
				continue // whoever cleans it, or makes it, is at work
			}
			if err := templatedb.PutPlacement(ctx, tx, id, f.ID); err != nil {
				return err
			}
		}
		return nil
	})
	errs := []error{err}
	for _, id := range stray {
		errs = append(errs, m.dropStray(ctx, f, id))
	}
	return errors.Join(errs...)
}

// dropStray removes an artifact of which there is no row, unless one has come
// meanwhile.
func (m *Master) dropStray(ctx context.Context, f host.Facts, id template.ArtifactID) error {
	if !strings.HasPrefix(string(id), template.ArtifactPrefix) {
		return nil // no name of ours: not ours to remove
	}
	_, err := m.db.WithLock(ctx, artifactLock(id), 0, func(ctx context.Context) error {
		err := m.db.View(ctx, func(tx *store.Tx) error {
			_, err := templatedb.GetArtifact(ctx, tx, id)
			return err
		})
		if !errors.Is(err, fault.ArtifactNotFound) {
			return err
		}
		m.log.InfoContext(ctx, "artifact in no book is removed", slog.String("artifact_id", string(id)), slog.String("host_id", string(f.ID)))
		return m.removeArtifact(ctx, f, id)
	})
	return err
}
