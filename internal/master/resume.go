package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	progressDistributing = 70
	progressRegistering  = 85
	resumeTime           = time.Hour
	artifactWait         = time.Minute
)

// artifactLock is held by whoever brings an artifact to hosts or takes it from
// them, so that the two do not work against each other.
func artifactLock(id template.ArtifactID) string { return "paddock_artifact_" + string(id) }

// resumeSoon brings a built job to its end in the background. Another process,
// or this one again, may try too: a named lock lets one do it.
func (m *Master) resumeSoon(ctx context.Context, id template.JobID) { m.goOn(ctx, id, m.resuming) }

// goOn is resumeSoon for one of so many jobs at once as slots has room for.
func (m *Master) goOn(ctx context.Context, id template.JobID, slots chan struct{}) {
	m.mu.Lock()
	taken := m.inHand[id]
	m.inHand[id] = true
	m.mu.Unlock()
	if taken {
		return
	}
	m.background(ctx, func(ctx context.Context) {
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.inHand, id)
		}()
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return
		}
		if err := m.resumeLocked(ctx, id); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "job not resumed; a sweep will try again", slog.String("job_id", string(id)), slog.String("error", err.Error()))
		}
	})
}

func (m *Master) resumeLocked(ctx context.Context, id template.JobID) error {
	j, err := m.job(ctx, id)
	if err != nil {
		return err
	}
	todo := m.resume
	switch j.State {
	case template.JobBuilt, template.JobDistributing:
	case template.JobMigrating:
		todo = m.migrate
	default:
		return nil
	}
	_, err = m.db.WithLock(ctx, artifactLock(j.ArtifactID), artifactWait, func(ctx context.Context) error { return todo(ctx, id) })
	return err
}

// round is one distribution of an artifact: to whom, and why it failed on those
// where it did. A host of a redo that is not fit any more has failed from the
// start.
type round struct {
	job      template.Job
	artifact template.Artifact
	hosts    []host.Facts
	expected int

	mu     sync.Mutex
	failed map[host.ID]error
}

func (r *round) fail(id host.ID, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed[id] = err
}

// took reports whether a host of this round has the artifact.
func (r *round) took(id host.ID) bool {
	return r.failed[id] == nil && slices.ContainsFunc(r.hosts, func(f host.Facts) bool { return f.ID == id })
}

// all returns the failures, by host.
func (r *round) all() []error {
	errs := make([]error, 0, len(r.failed))
	for _, id := range slices.Sorted(maps.Keys(r.failed)) {
		errs = append(errs, fmt.Errorf("host %s: %w", id, r.failed[id]))
	}
	return errs
}

// resume distributes a built job's artifact and writes the outcome. An error
// means that the outcome could not be written; the job's own failure is an
// outcome.
func (m *Master) resume(ctx context.Context, id template.JobID) error {
	j, err := m.job(ctx, id)
	if err != nil {
		return err
	}
	if j.State != template.JobBuilt && j.State != template.JobDistributing {
		return nil
	}
	r, err := m.targets(ctx, j)
	if err != nil {
		if m.maySoonBeOtherwise(err) {
			return err
		}
		return m.giveUp(ctx, j, 0, err)
	}
	if err := m.step("master.resume.after_targets"); err != nil {
		return err
	}
	working, stop := m.keepAlive(ctx, id)
	m.distribute(working, r)
	over := working.Err() != nil
	stop()
	if err := m.step("master.resume.after_distribute"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // the master ends: what it broke off is no failure of the hosts
	}
	if over {
		return m.leaveJob(ctx, id)
	}
	m.doubtBytes(ctx, r)
	if len(r.failed) == r.expected {
		return m.giveUp(ctx, r.job, len(r.failed), fmt.Errorf("none of %d hosts took the template: %w", r.expected, errors.Join(r.all()...)))
	}
	if err := m.publish(ctx, r); err != nil {
		return err
	}
	return m.step("master.resume.after_publish")
}

// maySoonBeOtherwise reports whether a job is better tried again than failed:
// the database is away, or this master has just started and hosts that are up
// had no time to say so.
func (m *Master) maySoonBeOtherwise(err error) bool {
	if errors.Is(err, fault.NoTemplateHosts) {
		return time.Since(m.began) < m.pace.hostGrace
	}
	return fault.Of(err).Class.Retry || errors.Is(err, fault.VersionConflict) || errors.Is(err, context.Canceled)
}

// targets chooses the hosts and moves the job to distributing.
func (m *Master) targets(ctx context.Context, j template.Job) (r *round, err error) {
	req, err := keptOf(j.Request)
	if err != nil {
		return nil, err
	}
	err = m.update(ctx, func(tx *store.Tx) error {
		r = &round{failed: map[host.ID]error{}}
		now, err := templatedb.GetJob(ctx, tx, j.ID)
		if err != nil {
			return err
		}
		if r.artifact, err = templatedb.GetArtifact(ctx, tx, now.ArtifactID); err != nil {
			return err
		}
		if err := servable(r.artifact); err != nil {
			return err
		}
		all, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil {
			return err
		}
		if now.Operation == template.OpRedo {
			err = m.chosen(r, all, now.Plan.Targets, tx.Now)
		} else {
			r.hosts, err = m.inScope(all, req.FromImageRequest, tx.Now)
		}
		if err != nil {
			return err
		}
		r.expected = len(r.hosts) + len(r.failed)
		if now.Phase != template.PhaseSnapshotting { // else it is resumed in the midst of its trials
			enter(&now, template.PhaseDistributing, progressDistributing, tx)
		}
		now.Expected = r.expected
		if r.job, err = templatedb.MoveJob(ctx, tx, now, template.OnJobResumed); err != nil {
			return err
		}
		return say(ctx, tx, j.ID, "distributing artifact %s, %d bytes, to %d hosts", r.artifact.ID, r.artifact.SizeBytes, len(r.hosts))
	})
	return r, err
}

// servable refuses an artifact that must not be brought to any host: only a
// whole one that is described in full may.
func servable(a template.Artifact) error {
	switch {
	case a.State != template.ArtifactReady:
		return fault.New(fault.ArtifactNotFound, "artifact %s is %s", a.ID, a.State)
	case a.SizeBytes <= 0 || !hexForm.MatchString(a.SHA256) || a.Token == "":
		return fault.New(fault.ArtifactCorrupt, "artifact %s: its row lacks size, sha256 or token", a.ID)
	}
	return nil
}

// chosen takes the hosts that a redo chose when it was submitted. Those that
// are not fit any more have failed; when none is left there is nobody to serve.
func (m *Master) chosen(r *round, all []host.Facts, targets []host.ID, now time.Time) error {
	for _, id := range targets {
		i := slices.IndexFunc(all, func(f host.Facts) bool { return f.ID == id })
		if i < 0 {
			r.fail(id, fault.New(fault.HostUnknown, "host %s", id))
		} else if h := host.HealthOf(all[i], now, m.cfg.Master.HostStaleAfter); h != host.Healthy {
			r.fail(id, fault.New(fault.HostUnreachable, "host %s is %s", id, h))
		} else {
			r.hosts = append(r.hosts, all[i])
		}
	}
	if len(r.hosts) == 0 {
		return fault.New(fault.NoTemplateHosts, "none of the %d chosen hosts is healthy", len(targets))
	}
	return nil
}

// inScope returns the healthy hosts that the request wants. One that it names
// and that cannot take it fails the whole.
func (m *Master) inScope(all []host.Facts, req cubeapi.FromImageRequest, now time.Time) ([]host.Facts, error) {
	var list []host.Facts
	for _, f := range all {
		wanted := f.InstanceType == req.InstanceType
		if len(req.DistributionScope) > 0 {
			wanted = slices.Contains(req.DistributionScope, string(f.ID)) || slices.Contains(req.DistributionScope, f.IP)
		}
		if wanted && host.HealthOf(f, now, m.cfg.Master.HostStaleAfter) == host.Healthy {
			list = append(list, f)
		}
	}
	for _, name := range req.DistributionScope {
		if !slices.ContainsFunc(list, func(f host.Facts) bool { return string(f.ID) == name || f.IP == name }) {
			return nil, fault.New(fault.NoTemplateHosts, "host %.128q of distribution_scope is unknown or not healthy", name)
		}
	}
	if len(list) == 0 {
		return nil, fault.New(fault.NoTemplateHosts, "none of %d hosts is healthy and serves instance_type %s", len(all), req.InstanceType)
	}
	return list, nil
}

// keepAlive shows that the job is worked on until stop is called. The work's
// context ends when the job does: it was cancelled, or taken for stalled.
func (m *Master) keepAlive(ctx context.Context, id template.JobID) (working context.Context, stop func()) {
	working, done := m.whileActive(ctx, id)
	end := every(working, m.pace.beat, func(ctx context.Context) {
		err := m.update(ctx, func(tx *store.Tx) error {
			j, err := templatedb.GetJob(ctx, tx, id)
			if err == nil && j.State.Active() {
				_, err = templatedb.TouchJob(ctx, tx, j)
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "job not touched", slog.String("job_id", string(id)), slog.String("error", err.Error()))
		}
	})
	return working, func() { end(); done() }
}

// distribute brings the artifact to each host of the round. Those without room for
// a trial come last, again and again for as long as bytes may take to a host: they
// hold up none that has room.
func (m *Master) distribute(ctx context.Context, r *round) {
	ctx, cancel := context.WithTimeout(ctx, resumeTime)
	defer cancel()
	// The rows say only after a fetch who has it: until then it must be known here.
	defer m.spread.keep(r.artifact.ID)()
	full := m.bringAll(ctx, r, r.hosts, m.bring)
	for began := time.Now(); len(full) > 0; {
		select {
		case <-ctx.Done():
		case <-time.After(m.pace.trialRoom):
		}
		again := m.tryAgain
		if ctx.Err() != nil || time.Since(began) > m.cfg.Master.DistributeTimeout {
			again = m.tryLast
		}
		full = m.bringAll(ctx, r, full, again)
	}
	m.fleet.changed()
}

// bringAll serves hosts and returns those that have no outcome yet, for want of room
// for a trial.
func (m *Master) bringAll(ctx context.Context, r *round, hosts []host.Facts, serve func(context.Context, template.Job, template.Artifact, host.Facts) (bool, error)) (full []host.Facts) {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(m.cfg.Master.DistributeWorkers)
	for _, f := range hosts {
		group.Go(func() error {
			over, err := serve(ctx, r.job, r.artifact, f)
			switch {
			case !over:
				mu.Lock()
				defer mu.Unlock()
				full = append(full, f)
			case err != nil:
				r.fail(f.ID, err)
			}
			return nil
		})
	}
	_ = group.Wait() // each failure is in the round
	return full
}

// bring makes one host hold the artifact and tries the template there, and writes
// what came of it, unless that is not over: the host has no room for a trial just
// now. The row is there before the call, and pessimistic.
func (m *Master) bring(ctx context.Context, j template.Job, a template.Artifact, f host.Facts) (over bool, err error) {
	if err := m.setReplica(ctx, j, f.ID, template.OnReplicaRetried, nil); err != nil {
		return true, err
	}
	err = m.ensureOn(ctx, a, f)
	if err := m.step("master.resume.after_host"); err != nil {
		return true, err
	}
	held := err == nil
	if held {
		if err = m.try(ctx, j, a, f, true); errors.Is(err, fault.HostFull) {
			return false, err
		}
	}
	return true, m.endBring(ctx, j, a, f, held, err)
}

// tryAgain is bring for a host that has the bytes, and had no room for a trial.
func (m *Master) tryAgain(ctx context.Context, j template.Job, a template.Artifact, f host.Facts) (over bool, err error) {
	if err = m.try(ctx, j, a, f, false); errors.Is(err, fault.HostFull) {
		return false, err
	}
	return true, m.endBring(ctx, j, a, f, true, err)
}

// tryLast is tryAgain for the last time.
func (m *Master) tryLast(ctx context.Context, j template.Job, a template.Artifact, f host.Facts) (over bool, err error) {
	if over, err = m.tryAgain(ctx, j, a, f); !over {
		err = m.endBring(ctx, j, a, f, true, err)
	}
	return true, err
}

// endBring writes what came of bringing bytes to a host, which may have them also
// when it failed.
func (m *Master) endBring(ctx context.Context, j template.Job, a template.Artifact, f host.Facts, held bool, err error) error {
	event := template.OnReplicaHeld
	if err != nil {
		event = template.OnReplicaFailed
	}
	err = errors.Join(err, m.setReplica(ctx, j, f.ID, event, err))
	if held && err != nil {
		// On a context of its own: bytes that no row names stay on the host for ever.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostCall)
		defer cancel()
		err = errors.Join(err, m.update(late, func(tx *store.Tx) error { return noteBytes(late, tx, a.ID, f.ID) }))
	}
	return err
}

// inBooks refuses a host that was removed meanwhile: should it return, what it has
// is in no book and goes.
func inBooks(ctx context.Context, tx *store.Tx, h host.ID) error {
	known, err := sandboxdb.HoldHost(ctx, tx, h)
	if err == nil && !known {
		err = fault.New(fault.HostUnknown, "host %s was removed", h)
	}
	return err
}

// setReplica writes how a host stands in the work of j. What a host noted as
// ready has of the template's present artifact stays ready until the host
// itself shows otherwise: work that fails must not leave less than there was.
func (m *Master) setReplica(ctx context.Context, j template.Job, h host.ID, on template.ReplicaEvent, why error) error {
	return m.update(ctx, func(tx *store.Tx) error {
		gone := ended
		if j.State == "" { // a repair is of no job, and only names the template's last
			gone = noRepair
		}
		if over, err := gone(ctx, tx, j); err != nil || over {
			return errors.Join(err, lateReplica(ctx, tx, j, h, on))
		}
		if err := inBooks(ctx, tx, h); err != nil {
			return err
		}
		if on == template.OnReplicaHeld {
			if err := templatedb.PutPlacement(ctx, tx, j.ArtifactID, h); err != nil {
				return err
			}
		}
		p, found, err := templatedb.GetReplica(ctx, tx, j.TemplateID, h)
		if err == nil && !found {
			p, err = templatedb.AddReplica(ctx, tx, template.Replica{TemplateID: j.TemplateID, HostID: h, ArtifactID: j.ArtifactID, JobID: j.ID})
		}
		if err != nil {
			return err
		}
		if p.State == template.ReplicaReady {
			switch {
			case on == template.OnReplicaRetried: // a job that is resumed again, or a redo
				return nil
			case p.ArtifactID != j.ArtifactID: // until the job is published
				return nil
			case on == template.OnReplicaFailed && !errors.Is(why, fault.ProbeFailed):
				f, err := sandboxdb.GetHost(ctx, tx, h)
				if err != nil || slices.Contains(f.Artifacts, string(p.ArtifactID)) || !f.HeardAt.After(p.ChangedAt) {
					return err
				}
			}
		}
		p.ArtifactID, p.JobID = j.ArtifactID, j.ID
		switch {
		case errors.Is(why, fault.ProbeFailed):
			p.Phase = template.PhaseSnapshotting
		case on == template.OnReplicaRetried || p.Phase == "":
			p.Phase = template.PhaseDistributing
		}
		switch {
		case why != nil:
			p.Error = clip(why.Error())
		case on == template.OnReplicaHeld:
			p.Error = "" // else the last one is worth knowing while it is tried again
		}
		was := p
		if p, err = templatedb.MoveReplica(ctx, tx, p, on); err != nil {
			return err
		}
		switch {
		case on == template.OnReplicaFailed:
			return say(ctx, tx, j.ID, "host %s failed, after %s: %s", h, short(tx.Now.Sub(was.ChangedAt)), p.Error)
		case on == template.OnReplicaHeld && was.State == template.ReplicaReady:
			return say(ctx, tx, j.ID, "host %s is ready, as before", h)
		case on == template.OnReplicaHeld:
			return say(ctx, tx, j.ID, "host %s is ready, after %s", h, short(tx.Now.Sub(was.ChangedAt)))
		}
		return nil
	})
}
