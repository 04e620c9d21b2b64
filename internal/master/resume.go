package master

import (
	"context"
	"encoding/json"
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
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	progressDistributing = 70
	progressRegistering  = 85
	resumeBeat           = 10 * time.Second
	resumeTime           = time.Hour
)

// resumeSoon brings a built job to its end in the background. Another process,
// or this one again, may try too: a named lock lets one do it.
func (m *Master) resumeSoon(ctx context.Context, id template.JobID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inHand[id] {
		return
	}
	m.inHand[id] = true
	ctx = context.WithoutCancel(ctx)
	m.work.Go(func() {
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.inHand, id)
		}()
		bounded, cancel := context.WithTimeout(ctx, resumeTime)
		defer cancel()
		_, err := m.db.WithLock(bounded, "paddock_resume_"+string(id), 0, func(ctx context.Context) error { return m.resume(ctx, id) })
		if err != nil {
			m.log.ErrorContext(bounded, "job not resumed; a sweep will try again", slog.String("job_id", string(id)), slog.String("error", err.Error()))
		}
	})
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
		if fault.Of(err).Class.Retry {
			return err
		}
		return m.giveUp(ctx, j, err)
	}
	stop := m.keepAlive(ctx, id)
	failures := m.distribute(ctx, j, a, targets)
	stop()
	if err := fail.Point("master.resume.after_distribute"); err != nil {
		return err
	}
	if len(failures) == len(targets) {
		return m.giveUp(ctx, j, fmt.Errorf("none of %d hosts took the template: %w", len(targets), errors.Join(failures...)))
	}
	return m.publish(ctx, id, len(targets), failures)
}

// targets chooses the hosts and moves the job to distributing.
func (m *Master) targets(ctx context.Context, j *template.Job) (list []host.Facts, a template.Artifact, err error) {
	var req cubeapi.FromImageRequest
	if err := json.Unmarshal(j.Request, &req); err != nil {
		return nil, a, err
	}
	err = m.db.Update(ctx, func(tx *store.Tx) (err error) {
		if *j, err = templatedb.GetJob(ctx, tx, j.ID); err != nil {
			return err
		}
		if a, err = templatedb.GetArtifact(ctx, tx, j.ArtifactID); err != nil {
			return err
		}
		all, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil {
			return err
		}
		if list, err = m.inScope(all, req, tx.Now); err != nil {
			return err
		}
		enter(j, template.PhaseDistributing, progressDistributing, tx)
		j.Expected = len(list)
		*j, err = templatedb.MoveJob(ctx, tx, *j, template.OnJobResumed)
		return err
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
	if len(list) == 0 {
		return nil, fault.New(fault.NoTemplateHosts, "%d hosts are registered", len(all))
	}
	for _, name := range req.DistributionScope {
		if !slices.ContainsFunc(list, func(f host.Facts) bool { return string(f.ID) == name || f.IP == name }) {
			return nil, fault.New(fault.NoTemplateHosts, "host %q of distribution_scope is unknown or not healthy", name)
		}
	}
	return list, nil
}

// keepAlive shows that the job is worked on until the returned function is
// called.
func (m *Master) keepAlive(ctx context.Context, id template.JobID) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(resumeBeat)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := m.db.Update(ctx, func(tx *store.Tx) error {
				j, err := templatedb.GetJob(ctx, tx, id)
				if err == nil {
					_, err = templatedb.TouchJob(ctx, tx, j)
				}
				return err
			})
			if err != nil && ctx.Err() == nil {
				m.log.WarnContext(ctx, "job not touched", slog.String("job_id", string(id)), slog.String("error", err.Error()))
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// distribute brings the artifact to each host and returns why it failed on
// those where it did.
func (m *Master) distribute(ctx context.Context, j template.Job, a template.Artifact, targets []host.Facts) []error {
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
		err = hostFault(err, f.ID)
	}
	event := template.OnReplicaHeld
	if err != nil {
		event = template.OnReplicaFailed
	}
	return errors.Join(err, m.setReplica(ctx, j, f.ID, event, err))
}

func (m *Master) setReplica(ctx context.Context, j template.Job, h host.ID, on template.ReplicaEvent, why error) error {
	return m.db.Update(ctx, func(tx *store.Tx) error {
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
			p.Error = why.Error()
		}
		if _, err = templatedb.MoveReplica(ctx, tx, p, on); err != nil {
			return err
		}
		if on == template.OnReplicaHeld {
			return templatedb.PutPlacement(ctx, tx, j.ArtifactID, h)
		}
		return nil
	})
}

// publish writes the template, its alias and the job's end, in one
// transaction: whoever sees READY can resolve the alias.
func (m *Master) publish(ctx context.Context, id template.JobID, expected int, failures []error) error {
	return m.db.Update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil || j.State != template.JobDistributing {
			return err
		}
		var req cubeapi.FromImageRequest
		if err := json.Unmarshal(j.Request, &req); err != nil {
			return err
		}
		d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: j.TemplateID, InstanceType: req.InstanceType, ArtifactID: j.ArtifactID, JobID: j.ID, ImageRef: j.ImageRef, Digest: j.Digest, Request: j.Request})
		if err != nil {
			return err
		}
		event := template.OnAllReady
		if len(failures) > 0 {
			event, d.Error = template.OnSomeReady, errors.Join(failures...).Error()
		}
		if d, err = templatedb.MoveDefinition(ctx, tx, d, event); err != nil {
			return err
		}
		if j.Alias != "" {
			_, err := templatedb.SetAlias(ctx, tx, d, j.Alias)
			if errors.Is(err, fault.AliasTaken) {
				j.Error = err.Error() // a warning: the template is good without it
			} else if err != nil {
				return err
			}
		}
		enter(&j, template.PhaseRegistering, progressRegistering, tx)
		enter(&j, template.PhaseReady, 100, tx)
		j.Expected, j.Ready, j.Failed = expected, expected-len(failures), len(failures)
		_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobDone)
		return err
	})
}

// giveUp ends a job of which nothing came: no template, no replicas, and an
// artifact that nobody needs.
func (m *Master) giveUp(ctx context.Context, j template.Job, why error) error {
	err := m.db.Update(ctx, func(tx *store.Tx) error {
		now, err := templatedb.GetJob(ctx, tx, j.ID)
		if err != nil || !now.State.Active() {
			return err
		}
		if err := templatedb.RemoveReplicas(ctx, tx, j.TemplateID); err != nil {
			return err
		}
		now.Error, now.ErrorCode = why.Error(), fault.Of(why).Name
		if _, err := templatedb.MoveJob(ctx, tx, now, template.OnJobFailed); err != nil {
			return err
		}
		return unused(ctx, tx, j.ArtifactID)
	})
	if err != nil {
		return err
	}
	return m.cleanArtifact(ctx, j.ArtifactID)
}
