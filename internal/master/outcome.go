package master

import (
	"context"
	"errors"
	"fmt"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// publish writes the template, its alias and the job's end, in one
// transaction: whoever sees READY can resolve the alias.
func (m *Master) publish(ctx context.Context, r *round) error {
	return m.update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, r.job.ID)
		if err != nil || j.State != template.JobDistributing {
			return err
		}
		d, err := templatedb.GetDefinition(ctx, tx, j.TemplateID)
		switch {
		case errors.Is(err, fault.TemplateNotFound):
			d, err = define(ctx, tx, &j)
		case err == nil && d.State == template.Deleting:
			err = fault.New(fault.StateConflict, "template %s is being deleted", d.ID)
		}
		if err != nil {
			return err
		}
		old := d.ArtifactID
		d.ArtifactID, d.JobID = j.ArtifactID, j.ID
		if err := settleReplicas(ctx, tx, d, r.took); err != nil {
			return err
		}
		if d, err = judge(ctx, tx, d); err != nil {
			return err
		}
		enter(&j, template.PhaseRegistering, progressRegistering, tx)
		enter(&j, template.PhaseReady, 100, tx)
		j.Expected, j.Failed = r.expected, len(r.failed)
		j.Ready = j.Expected - j.Failed
		if _, err = templatedb.MoveJob(ctx, tx, j, template.OnJobDone); err != nil {
			return err
		}
		if err = logDone(ctx, tx, j); err != nil || old == d.ArtifactID {
			return err
		}
		return unused(ctx, tx, old)
	})
}

// define stores a template that comes to be, with the alias that its create
// asked for. It is the only place where a job gives an alias: a template that
// is there already has the one that it has.
func define(ctx context.Context, tx *store.Tx, j *template.Job) (template.Definition, error) {
	req, err := keptOf(j.Request)
	if err != nil {
		return template.Definition{}, err
	}
	d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: j.TemplateID, InstanceType: req.InstanceType, ArtifactID: j.ArtifactID, JobID: j.ID, ImageRef: j.ImageRef, Digest: j.Digest, Request: j.Request})
	if err != nil || j.Alias == "" {
		return d, err
	}
	named, from, err := templatedb.ClaimAlias(ctx, tx, d, j.Alias, j.AliasAsked())
	switch {
	case errors.Is(err, fault.AliasTaken):
		j.Error = clip(err.Error()) // a warning: the template is good without it
		return d, nil
	case err != nil || from == "":
		return named, err
	}
	return named, errors.Join(say(ctx, tx, j.ID, "alias %s moved here from template %s", j.Alias, from),
		audit(ctx, tx, actAliasMove, string(d.ID), "alias", j.Alias, "from", string(from)))
}

// settleReplicas ends what the work on a template left open: replicas that an
// earlier try began on hosts which are no targets any more, since nobody is at
// work on them, and those that hold another artifact than the template's.
func settleReplicas(ctx context.Context, tx *store.Tx, d template.Definition, took func(host.ID) bool) error {
	list, err := templatedb.ListReplicas(ctx, tx, d.ID)
	if err != nil {
		return err
	}
	for _, p := range list {
		on := template.OnReplicaFailed
		switch {
		case took(p.HostID) && (p.State != template.ReplicaReady || p.ArtifactID != d.ArtifactID):
			on, p.ArtifactID, p.JobID, p.Error = template.OnReplicaHeld, d.ArtifactID, d.JobID, ""
			if p.State == template.ReplicaFailed { // somebody else judged it meanwhile
				if p, err = templatedb.MoveReplica(ctx, tx, p, template.OnReplicaRetried); err != nil {
					return err
				}
			}
		case p.State == template.ReplicaPending:
			p.Error = "the work on it ended before its host had the template"
		case p.State == template.ReplicaReady && p.ArtifactID != d.ArtifactID:
			p.Error = fmt.Sprintf("it holds artifact %s, the template is made of %s now", p.ArtifactID, d.ArtifactID)
		default:
			continue
		}
		if _, err := templatedb.MoveReplica(ctx, tx, p, on); err != nil {
			return err
		}
	}
	return nil
}

// judge moves a template to what its replicas make of it.
func judge(ctx context.Context, tx *store.Tx, d template.Definition) (template.Definition, error) {
	list, err := templatedb.ListReplicas(ctx, tx, d.ID)
	if err != nil {
		return d, err
	}
	on, lacks := verdict(list)
	d.Error = ""
	if len(lacks) > 0 {
		d.Error = clip(errors.Join(lacks...).Error())
	}
	return templatedb.MoveDefinition(ctx, tx, d, on)
}

// verdict is what replicas make of their template, and why those that are not
// ready are not.
func verdict(list []template.Replica) (on template.Event, lacks []error) {
	for _, p := range list {
		if p.State != template.ReplicaReady {
			lacks = append(lacks, fmt.Errorf("host %s: %s", p.HostID, p.Error))
		}
	}
	switch len(lacks) {
	case len(list):
		return template.OnNoneReady, lacks
	case 0:
		return template.OnAllReady, lacks
	}
	return template.OnSomeReady, lacks
}

// giveUp ends a job of which nothing came.
func (m *Master) giveUp(ctx context.Context, j template.Job, failed int, why error) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		now, err := templatedb.GetJob(ctx, tx, j.ID)
		if err != nil || !now.State.Active() {
			return err
		}
		now.Error, now.ErrorCode, now.Failed = clip(why.Error()), fault.Of(why).Name, failed
		if now, err = templatedb.MoveJob(ctx, tx, now, template.OnJobFailed); err != nil {
			return err
		}
		if err := say(ctx, tx, j.ID, "failed: %s", now.Error); err != nil {
			return err
		}
		return undo(ctx, tx, now)
	})
	m.sweepNow()
	return err
}

// leaveJob cleans up after a job that somebody ended while it was distributed.
func (m *Master) leaveJob(ctx context.Context, id template.JobID) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil || j.State != template.JobFailed {
			return err
		}
		return undo(ctx, tx, j)
	})
	m.sweepNow()
	if errors.Is(err, fault.JobNotFound) {
		return nil // its template was deleted, and takes everything along
	}
	return err
}

// undo takes back what a job that failed began. Of a template that never came
// to be nothing stays: no replicas, and an artifact that the sweep takes from
// the hosts unless something else needs it. One that was there before keeps
// what it has.
func undo(ctx context.Context, tx *store.Tx, j template.Job) error {
	if j.Operation == template.OpMigrate {
		return nil // it touches no host
	}
	d, err := templatedb.GetDefinition(ctx, tx, j.TemplateID)
	switch {
	case errors.Is(err, fault.TemplateNotFound):
		err = templatedb.RemoveReplicas(ctx, tx, j.TemplateID)
	case err == nil && d.State != template.Deleting:
		if err = settleReplicas(ctx, tx, d, func(host.ID) bool { return false }); err == nil {
			_, err = judge(ctx, tx, d)
		}
	}
	if err != nil {
		return err
	}
	return unused(ctx, tx, j.ArtifactID)
}
