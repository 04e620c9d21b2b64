package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
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
func (m *Master) resumeSoon(ctx context.Context, id template.JobID) {
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
		case m.resuming <- struct{}{}:
			defer func() { <-m.resuming }()
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
	_, err = m.db.WithLock(ctx, artifactLock(j.ArtifactID), artifactWait, func(ctx context.Context) error { return m.resume(ctx, id) })
	return err
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
	targets, a, err := m.targets(ctx, &j)
	if err != nil {
		if m.maySoonBeOtherwise(err) {
			return err
		}
		return m.giveUp(ctx, j, 0, err)
	}
	if err := m.step("master.resume.after_targets"); err != nil {
		return err
	}
	active, done := m.whileActive(ctx, id)
	stop := m.keepAlive(active, id)
	failures := m.distribute(active, j, a, targets)
	stop()
	cancelled := active.Err() != nil
	done()
	if err := m.step("master.resume.after_distribute"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // the master ends: what it broke off is no failure of the hosts
	}
	if cancelled {
		return nil // whoever ended the job wrote its outcome
	}
	if len(failures) == len(targets) {
		return m.giveUp(ctx, j, len(failures), fmt.Errorf("none of %d hosts took the template: %w", len(targets), errors.Join(failures...)))
	}
	if err := m.publish(ctx, id, targets, failures); err != nil {
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
func (m *Master) targets(ctx context.Context, j *template.Job) (list []host.Facts, a template.Artifact, err error) {
	req, err := keptOf(j.Request)
	if err != nil {
		return nil, a, err
	}
	id := j.ID
	err = m.update(ctx, func(tx *store.Tx) error {
		now, err := templatedb.GetJob(ctx, tx, id)
		if err != nil {
			return err
		}
		if a, err = templatedb.GetArtifact(ctx, tx, now.ArtifactID); err != nil {
			return err
		}
		if a.State != template.ArtifactReady {
			return fault.New(fault.ArtifactNotFound, "artifact %s is %s", a.ID, a.State)
		}
		all, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil {
			return err
		}
		if list, err = m.inScope(all, req.FromImageRequest, tx.Now); err != nil {
			return err
		}
		enter(&now, template.PhaseDistributing, progressDistributing, tx)
		now.Expected = len(list)
		if *j, err = templatedb.MoveJob(ctx, tx, now, template.OnJobResumed); err != nil {
			return err
		}
		return say(ctx, tx, id, "distributing artifact %s, %d bytes, to %d hosts", a.ID, a.SizeBytes, len(list))
	})
	return list, a, err
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

// keepAlive shows that the job is worked on until the returned function is
// called.
func (m *Master) keepAlive(ctx context.Context, id template.JobID) (stop func()) {
	return every(ctx, m.pace.beat, func(ctx context.Context) {
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
}

// distribute brings the artifact to each host and returns why it failed on
// those where it did.
func (m *Master) distribute(ctx context.Context, j template.Job, a template.Artifact, targets []host.Facts) []error {
	ctx, cancel := context.WithTimeout(ctx, resumeTime)
	defer cancel()
	var mu sync.Mutex
	var failures []error
	var group errgroup.Group
	group.SetLimit(m.cfg.Master.DistributeWorkers)
	for _, f := range targets {
		group.Go(func() error {
			if err := m.bring(ctx, j, a, f); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, fmt.Errorf("host %s: %w", f.ID, err))
			}
			return nil
		})
	}
	_ = group.Wait() // each failure is in the list
	m.fleet.changed()
	return failures
}

// bring makes one host hold the artifact, and writes what came of it. The row
// is there before the call, and pessimistic.
func (m *Master) bring(ctx context.Context, j template.Job, a template.Artifact, f host.Facts) error {
	if err := m.setReplica(ctx, j, f.ID, template.OnReplicaRetried, nil); err != nil {
		return err
	}
	client, err := m.hosts.to(f)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, m.cfg.Master.DistributeTimeout)
		_, err = client.EnsureArtifact(bounded, &hostpb.EnsureArtifactRequest{
			ArtifactId: string(a.ID), Token: a.Token, Sha256: a.SHA256, SizeBytes: a.SizeBytes,
			// From the configuration, never from a request's Host header.
			Url: m.cfg.Master.DownloadBaseURL + cubeapi.PathArtifactDownload + "?artifact_id=" + url.QueryEscape(string(a.ID)),
		})
		cancel()
		err = hostFault(ctx, err, f.ID)
	}
	if err := m.step("master.resume.after_host"); err != nil {
		return err
	}
	event := template.OnReplicaHeld
	if err != nil {
		event = template.OnReplicaFailed
	}
	return errors.Join(err, m.setReplica(ctx, j, f.ID, event, err))
}

func (m *Master) setReplica(ctx context.Context, j template.Job, h host.ID, on template.ReplicaEvent, why error) error {
	return m.update(ctx, func(tx *store.Tx) error {
		if over, err := ended(ctx, tx, j.ID); err != nil || over {
			return errors.Join(err, lateReplica(ctx, tx, j, h, on))
		}
		p, found, err := templatedb.GetReplica(ctx, tx, j.TemplateID, h)
		if err == nil && !found {
			p, err = templatedb.AddReplica(ctx, tx, template.Replica{TemplateID: j.TemplateID, HostID: h, ArtifactID: j.ArtifactID, JobID: j.ID})
		}
		if err != nil {
			return err
		}
		if on == template.OnReplicaRetried && p.State == template.ReplicaReady {
			return nil // a job that is resumed again
		}
		if p.ArtifactID, p.JobID, p.Error = j.ArtifactID, j.ID, ""; why != nil {
			p.Error = clip(why.Error())
		}
		began := p.ChangedAt
		if _, err = templatedb.MoveReplica(ctx, tx, p, on); err != nil {
			return err
		}
		switch on {
		case template.OnReplicaHeld:
			if err := templatedb.PutPlacement(ctx, tx, j.ArtifactID, h); err != nil {
				return err
			}
			return say(ctx, tx, j.ID, "host %s is ready, after %s", h, short(tx.Now.Sub(began)))
		case template.OnReplicaFailed:
			return say(ctx, tx, j.ID, "host %s failed, after %s: %s", h, short(tx.Now.Sub(began)), p.Error)
		}
		return nil
	})
}

// publish writes the template, its alias and the job's end, in one
// transaction: whoever sees READY can resolve the alias.
func (m *Master) publish(ctx context.Context, id template.JobID, targets []host.Facts, failures []error) error {
	return m.update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil || j.State != template.JobDistributing {
			return err
		}
		req, err := keptOf(j.Request)
		if err != nil {
			return err
		}
		d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: j.TemplateID, InstanceType: req.InstanceType, ArtifactID: j.ArtifactID, JobID: j.ID, ImageRef: j.ImageRef, Digest: j.Digest, Request: j.Request})
		if err != nil {
			return err
		}
		event := template.OnAllReady
		if len(failures) > 0 {
			event, d.Error = template.OnSomeReady, clip(errors.Join(failures...).Error())
		}
		if d, err = templatedb.MoveDefinition(ctx, tx, d, event); err != nil {
			return err
		}
		if err := dropOthers(ctx, tx, j.TemplateID, targets); err != nil {
			return err
		}
		if j.Alias != "" {
			_, err := templatedb.SetAlias(ctx, tx, d, j.Alias)
			if errors.Is(err, fault.AliasTaken) {
				j.Error = clip(err.Error()) // a warning: the template is good without it
			} else if err != nil {
				return err
			}
		}
		enter(&j, template.PhaseRegistering, progressRegistering, tx)
		enter(&j, template.PhaseReady, 100, tx)
		j.Expected, j.Ready, j.Failed = len(targets), len(targets)-len(failures), len(failures)
		if _, err = templatedb.MoveJob(ctx, tx, j, template.OnJobDone); err != nil {
			return err
		}
		return logDone(ctx, tx, j)
	})
}

// dropOthers ends the replicas that an earlier try began on hosts which are no
// targets any more: nobody is at work on them.
func dropOthers(ctx context.Context, tx *store.Tx, id template.ID, targets []host.Facts) error {
	list, err := templatedb.ListReplicas(ctx, tx, id)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.State != template.ReplicaPending || slices.ContainsFunc(targets, func(f host.Facts) bool { return f.ID == p.HostID }) {
			continue
		}
		p.Error = "its host went away while the template was distributed"
		if _, err := templatedb.MoveReplica(ctx, tx, p, template.OnReplicaFailed); err != nil {
			return err
		}
	}
	return nil
}

// giveUp ends a job of which nothing came: no template, no replicas, and an
// artifact that the sweep takes from the hosts unless something else needs it.
func (m *Master) giveUp(ctx context.Context, j template.Job, failed int, why error) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		now, err := templatedb.GetJob(ctx, tx, j.ID)
		if err != nil || !now.State.Active() {
			return err
		}
		if err := templatedb.RemoveReplicas(ctx, tx, j.TemplateID); err != nil {
			return err
		}
		now.Error, now.ErrorCode, now.Failed = clip(why.Error()), fault.Of(why).Name, failed
		if _, err := templatedb.MoveJob(ctx, tx, now, template.OnJobFailed); err != nil {
			return err
		}
		if err := say(ctx, tx, j.ID, "failed: %s", now.Error); err != nil {
			return err
		}
		return unused(ctx, tx, now.ArtifactID)
	})
	m.sweepNow()
	return err
}
