package master

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	progressSnapshotting = 80

	// A host without room for a trial is asked again, ever later.
	trialFirst = 100 * time.Millisecond
	trialLast  = 5 * time.Second
)

// checkProbe refuses a probe that breaks a rule, and writes out what it means, so
// that two that mean the same are the same.
func checkProbe(o *cubeapi.ContainerOverride) error {
	if o == nil || o.Probe == nil {
		return nil
	}
	if h := o.Probe.Handler; h.TCPSocket != nil && h.TCPSocket.Port == 0 || h.Exec != nil && len(h.Exec.Command) == 0 {
		return fault.New(fault.InvalidInput, "container_overrides.probe: tcp_socket needs a port, exec a command")
	}
	p := probeOf(o.Probe)
	if err := p.Check(); err != nil {
		return fault.Wrap(fault.InvalidInput, err, "container_overrides.probe")
	}
	q := o.Probe
	q.InitialDelayMS, q.TimeoutMS, q.PeriodMS, q.ProbeTimeoutMS = p.InitialDelay.Milliseconds(), p.Timeout.Milliseconds(), p.Period.Milliseconds(), p.TryTimeout.Milliseconds()
	q.InitialDelaySeconds, q.TimeoutSeconds, q.SuccessThreshold, q.FailureThreshold = 0, 0, p.Successes, p.Failures
	if p.HTTP != nil {
		q.Handler.HTTPGet.Path = p.HTTP.Path
	}
	return nil
}

// probeOf reads a probe of a request; nil for none.
func probeOf(q *cubeapi.Probe) *sandbox.Probe {
	if q == nil {
		return nil
	}
	ms := sandbox.Milliseconds
	p := &sandbox.Probe{
		InitialDelay: ms(q.InitialDelayMS) + 1000*ms(q.InitialDelaySeconds), Timeout: ms(q.TimeoutMS) + 1000*ms(q.TimeoutSeconds), Period: ms(q.PeriodMS), TryTimeout: ms(q.ProbeTimeoutMS),
		Successes: q.SuccessThreshold, Failures: q.FailureThreshold,
	}
	if h := q.Handler.HTTPGet; h != nil {
		p.HTTP = &sandbox.HTTPProbe{Port: h.Port, Path: h.Path, Host: h.Host}
		for _, e := range h.Headers {
			p.HTTP.Headers = append(p.HTTP.Headers, sandbox.Header(e))
		}
	}
	if t := q.Handler.TCPSocket; t != nil {
		p.TCPPort = t.Port
	}
	if e := q.Handler.Exec; e != nil {
		p.Exec = e.Command
	}
	p.Defaults()
	return p
}

// probeMessage writes a probe, which was checked, as a host reads it.
func probeMessage(p *sandbox.Probe) *hostpb.Probe {
	if p == nil {
		return nil
	}
	m := &hostpb.Probe{
		InitialDelayMs: p.InitialDelay.Milliseconds(), TimeoutMs: p.Timeout.Milliseconds(), PeriodMs: p.Period.Milliseconds(), TryTimeoutMs: p.TryTimeout.Milliseconds(),
		SuccessThreshold: int32(p.Successes), FailureThreshold: int32(p.Failures), //nolint:gosec // bounded by Check
	}
	switch {
	case p.HTTP != nil:
		h := &hostpb.HttpGetProbe{Port: int32(p.HTTP.Port), Path: p.HTTP.Path, Host: p.HTTP.Host} //nolint:gosec // a port
		for _, e := range p.HTTP.Headers {
			h.Headers = append(h.Headers, &hostpb.HttpHeader{Name: e.Name, Value: e.Value})
		}
		m.Handler = &hostpb.Probe_HttpGet{HttpGet: h}
	case p.TCPPort != 0:
		m.Handler = &hostpb.Probe_TcpSocket{TcpSocket: &hostpb.TcpSocketProbe{Port: int32(p.TCPPort)}} //nolint:gosec // a port
	default:
		m.Handler = &hostpb.Probe_Exec{Exec: &hostpb.ExecProbe{Command: p.Exec}}
	}
	return m
}

// trialOf is the sandbox that tries a template out: as a user's would be who asks
// for nothing of his own.
func trialOf(j template.Job, a template.Artifact) (*plan, error) {
	p := &plan{template: template.Definition{ID: j.TemplateID, ArtifactID: a.ID, Request: j.Request}, artifact: a}
	if err := p.merge(); err != nil {
		return nil, err
	}
	p.row.ID = sandbox.ID(id.New(sandbox.TrialPrefix)[:len(p.row.ID)])
	return p, nil
}

// try makes a sandbox of a template on a host that has its bytes, has its probe
// asked, and removes it again. A template without a probe is not tried. A host
// that has no room for it just now proves nothing about the template: it is
// asked again for a short while, and then fault.HostFull leaves it to the caller,
// who has more to do, to try it again. first says that nobody tried it yet.
func (m *Master) try(ctx context.Context, j template.Job, a template.Artifact, f host.Facts, first bool) error {
	p, err := trialOf(j, a)
	if err != nil || p.probe == nil {
		return err
	}
	if err := m.clearTrials(ctx, j.TemplateID, f); err != nil {
		return err
	}
	if first {
		if err := m.beginTrial(ctx, j, p, f.ID); err != nil {
			return err
		}
		if err := m.step("master.trial.begun"); err != nil {
			return err
		}
	}
	began := time.Now()
	for wait := trialFirst; ; wait = min(2*wait, trialLast) {
		err := m.tryOnce(ctx, p, f)
		if !noRoom(err) && !errors.Is(err, fault.DiskFull) {
			return err
		}
		if time.Since(began)+wait > m.pace.trialRoom {
			return fault.Wrap(fault.HostFull, err, "a trial of template %s found no room", j.TemplateID)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// tryOnce makes the sandbox of a trial and removes it, whatever came of it. Its
// room is charged, so that the scheduler does not give it away meanwhile.
func (m *Master) tryOnce(ctx context.Context, p *plan, f host.Facts) error {
	_, now, err := m.fleet.now(ctx)
	if err != nil {
		return err
	}
	m.fleet.ledger.Charge(scheduler.Charge{Sandbox: p.row.ID, Host: f.ID, Resources: p.row.Resources, At: now})
	defer m.fleet.ledger.Release(p.row.ID)
	_, err = m.callCreate(ctx, p, f)
	if noRoom(err) {
		return err // nothing was made
	}
	if err := m.step("master.trial.made"); err != nil {
		return err
	}
	// On a context of its own: whoever gave the trial up must leave nothing.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostCall)
	defer cancel()
	if late := m.removeFrom(bounded, p.row.ID, f.ID, "trial"); late != nil {
		m.log.WarnContext(ctx, "trial sandbox not removed; a sweep will try again", slog.String("sandbox_id", string(p.row.ID)), slog.String("host_id", string(f.ID)), slog.String("error", late.Error()))
	}
	return err
}

// clearTrials removes what earlier trials of a template left on a host: whoever
// made them has gone, since the artifact's lock is ours.
func (m *Master) clearTrials(ctx context.Context, name template.ID, f host.Facts) error {
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	answer, err := client.ListSandboxes(bounded, &hostpb.ListSandboxesRequest{})
	if err != nil {
		return hostFault(ctx, err, f.ID)
	}
	var errs []error
	for _, s := range answer.GetSandboxes() {
		if sandbox.Trial(s.GetSandboxId()) && s.GetTemplateId() == string(name) {
			errs = append(errs, m.removeFrom(bounded, sandbox.ID(s.GetSandboxId()), f.ID, "trial"))
		}
	}
	return errors.Join(errs...)
}

// beginTrial notes that a host has the bytes of a template and tries it.
func (m *Master) beginTrial(ctx context.Context, j template.Job, p *plan, h host.ID) error {
	return m.update(ctx, func(tx *store.Tx) error {
		gone := ended
		if j.State == "" { // see setReplica
			gone = noRepair
		}
		if over, err := gone(ctx, tx, j); err != nil || over {
			return errors.Join(err, lateReplica(ctx, tx, j, h, template.OnReplicaRetried)) // bring notes the bytes
		}
		if err := inBooks(ctx, tx, h); err != nil {
			return err
		}
		if err := templatedb.PutPlacement(ctx, tx, p.artifact.ID, h); err != nil {
			return err
		}
		r, found, err := templatedb.GetReplica(ctx, tx, j.TemplateID, h)
		if err != nil {
			return err
		}
		if found && r.State == template.ReplicaPending {
			r.Phase = template.PhaseSnapshotting
			if _, err := templatedb.MoveReplica(ctx, tx, r, template.OnReplicaRetried); err != nil {
				return err
			}
		}
		if err := enterTrial(ctx, tx, j); err != nil {
			return err
		}
		return say(ctx, tx, j.ID, "host %s has the bytes; trial sandbox %s is asked: %s, for up to %s", h, p.row.ID, p.probe, short(p.probe.Limit()))
	})
}

// enterTrial shows that the first host of a job has come so far.
func enterTrial(ctx context.Context, tx *store.Tx, j template.Job) error {
	if j.State == "" {
		return nil // a repair shows in no job
	}
	now, err := templatedb.GetJob(ctx, tx, j.ID)
	if err != nil || now.State != template.JobDistributing || now.Phase == template.PhaseSnapshotting && now.Progress >= progressSnapshotting {
		return err
	}
	enter(&now, template.PhaseSnapshotting, progressSnapshotting, tx)
	_, err = templatedb.MoveJob(ctx, tx, now, template.OnJobResumed)
	return err
}

// onlyTrial reports whether a redo has nothing to bring: every host has the
// bytes, and only the trial is left.
func (r *redoing) onlyTrial() bool {
	if r.rebuild != "" || r.request.Overrides == nil || r.request.Overrides.Probe == nil {
		return false
	}
	return !slices.ContainsFunc(r.targets, func(f host.Facts) bool { return !slices.Contains(f.Artifacts, string(r.artifact.ID)) })
}
