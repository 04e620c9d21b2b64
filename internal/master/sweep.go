package master

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	sweepLimit     = 100
	startGrace     = 30 * time.Second // beyond create_timeout, for a create to write its own end
	orphanGrace    = time.Minute      // a host may have a sandbox before its row says so
	terminatedKept = 24 * time.Hour
)

// sweepLoop repairs what got stuck. The first round takes up everything that
// an earlier process left, the later ones only what waits for too long.
func (m *Master) sweepLoop(ctx context.Context) {
	orphans := map[string]time.Time{}
	for first := true; ; first = false {
		m.sweep(ctx, first, orphans)
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.cfg.Master.SweepInterval):
		}
	}
}

func (m *Master) sweep(ctx context.Context, first bool, orphans map[string]time.Time) {
	errs := []error{m.sweepJobs(ctx, first)}
	// One master at a time: the rest have nothing to add.
	_, err := m.db.WithLock(ctx, "paddock_master_sweep", 0, func(ctx context.Context) error {
		return errors.Join(m.sweepDeletes(ctx), m.sweepSandboxes(ctx, first), m.compareHosts(ctx, orphans), m.forgetOld(ctx))
	})
	if err := errors.Join(append(errs, err)...); err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "sweep", slog.String("error", err.Error()))
	}
	m.fleet.ledger.Expire(time.Now().Add(-m.cfg.Master.CreateTimeout - startGrace))
}

// sweepJobs resumes jobs that are built and go no further.
func (m *Master) sweepJobs(ctx context.Context, first bool) error {
	var list []template.Job
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		f := templatedb.JobFilter{States: []template.JobState{template.JobBuilt, template.JobDistributing}, ChangedBefore: tx.Now.Add(-m.cfg.Master.BuiltStaleAfter), Limit: sweepLimit}
		if first {
			f.ChangedBefore = tx.Now
		}
		list, err = templatedb.ListJobs(ctx, tx, f)
		return err
	})
	for _, j := range list {
		m.resumeSoon(ctx, j.ID)
	}
	return err
}

// sweepDeletes finishes deletes that waited for a host.
func (m *Master) sweepDeletes(ctx context.Context) error {
	var list []template.Definition
	var artifacts []template.Artifact
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if list, err = templatedb.DefinitionsIn(ctx, tx, template.Deleting, sweepLimit); err != nil {
			return err
		}
		artifacts, err = templatedb.ListArtifacts(ctx, tx, templatedb.ArtifactFilter{States: []template.ArtifactState{template.ArtifactCleanup}, Limit: sweepLimit})
		return err
	})
	errs := []error{err}
	for _, d := range list {
		errs = append(errs, m.finishDelete(ctx, d))
	}
	for _, a := range artifacts {
		errs = append(errs, m.cleanArtifact(ctx, a.ID))
	}
	return errors.Join(errs...)
}

// sweepSandboxes ends sandboxes that are on their way for longer than a create
// may take: whoever made them has gone. On the first round that is all of
// them, if this is the only master.
func (m *Master) sweepSandboxes(ctx context.Context, _ bool) error {
	var list []sandbox.Sandbox
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{
			States:        []sandbox.State{sandbox.Allocating, sandbox.Starting},
			ChangedBefore: tx.Now.Add(-m.cfg.Master.CreateTimeout - startGrace), Limit: sweepLimit, OldestFirst: true,
		})
		return err
	})
	errs := []error{err}
	for _, s := range list {
		m.log.WarnContext(ctx, "sandbox that never started is ended", slog.String("sandbox_id", string(s.ID)))
		errs = append(errs, m.end(ctx, s.ID, "its create was lost"))
	}
	return errors.Join(errs...)
}

// compareHosts holds each host's own list against the rows. A host that does
// not answer proves nothing.
func (m *Master) compareHosts(ctx context.Context, orphans map[string]time.Time) error {
	var list []host.Facts
	var now time.Time
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		now = tx.Now
		list, err = sandboxdb.ListHosts(ctx, tx)
		return err
	})
	errs := []error{err}
	for _, f := range list {
		if host.HealthOf(f, now, m.cfg.Master.HostStaleAfter) == host.Unknown {
			continue
		}
		errs = append(errs, m.compareHost(ctx, f, orphans))
	}
	return errors.Join(errs...)
}

func (m *Master) compareHost(ctx context.Context, f host.Facts, orphans map[string]time.Time) error {
	// The rows first: what started between the two looks is then known to the
	// host and not to the rows, which waits; the other order would end it.
	var rows []sandbox.Sandbox
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		rows, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{HostID: f.ID, States: liveStates, Limit: 20_000})
		return err
	})
	if err != nil {
		return err
	}
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	answer, err := client.ListSandboxes(bounded, &hostpb.ListSandboxesRequest{})
	if err != nil {
		return hostFault(err, f.ID)
	}
	there := map[string]*hostpb.Sandbox{}
	for _, s := range answer.GetSandboxes() {
		there[s.GetSandboxId()] = s
	}
	var errs []error
	for _, row := range rows {
		shown, ok := there[string(row.ID)]
		delete(there, string(row.ID))
		switch {
		case row.State != sandbox.Running:
		case !ok:
			errs = append(errs, m.end(ctx, row.ID, "its host has it no more"))
		case shown.GetState() == hostpb.SandboxState_SANDBOX_STATE_EXITED:
			errs = append(errs, m.end(ctx, row.ID, shown.GetReason()))
		}
	}
	return errors.Join(append(errs, m.removeOrphans(ctx, f, there, orphans))...)
}

// removeOrphans removes sandboxes that no row knows, once they were seen for
// longer than a create may take to write its row.
func (m *Master) removeOrphans(ctx context.Context, f host.Facts, there map[string]*hostpb.Sandbox, seen map[string]time.Time) error {
	var errs []error
	for id := range there {
		key := string(f.ID) + "/" + id
		if seen[key].IsZero() {
			seen[key] = time.Now()
		}
		if time.Since(seen[key]) < orphanGrace {
			continue
		}
		m.log.WarnContext(ctx, "sandbox in no book is removed", slog.String("sandbox_id", id), slog.String("host_id", string(f.ID)))
		if err := m.removeFrom(ctx, sandbox.ID(id), f.ID, "orphaned"); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(seen, key)
	}
	return errors.Join(errs...)
}

func (m *Master) forgetOld(ctx context.Context) error {
	return m.db.Update(ctx, func(tx *store.Tx) error {
		_, err := sandboxdb.ForgetSandboxes(ctx, tx, tx.Now.Add(-terminatedKept), sweepLimit)
		if err == nil {
			_, err = tx.ForgetSubmissions(ctx, sweepLimit)
		}
		if errors.Is(err, fault.VersionConflict) {
			return nil
		}
		return err
	})
}
