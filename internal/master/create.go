package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	hostCall = 15 * time.Second

	// runtimeTries is how many hosts a sandbox that does not start is tried on:
	// the image may be the cause, and then every host would be asked in vain.
	runtimeTries = 2

	// The delay between attempts grows by a random factor of 1 to 1.8
	// (spec/scheduling 6.3).
	firstDelay = 5 * time.Millisecond
	maxDelay   = time.Second
)

func (m *Master) serveCreate(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var req cubeapi.SandboxCreateRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	var s sandbox.Sandbox
	var made *hostpb.Sandbox
	var f host.Facts
	if err == nil {
		s, f, made, err = m.create(r.Context(), req)
	}
	outcome := "success"
	if err != nil {
		outcome = fault.Of(err).Name
	}
	m.metrics.create.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	ext := map[string]string{"cube-e2e": fmt.Sprintf("%.1f", time.Since(began).Seconds()*1000)}
	for step, us := range made.GetStepUs() {
		ext["step-"+step] = fmt.Sprintf("%.1f", float64(us)/1000)
	}
	shown := showSandbox(s)
	answer := cubeapi.SandboxAnswer{Envelope: cubeapi.OK(named(r, req.RequestID)), SandboxID: string(s.ID), SandboxIP: s.IP, HostID: string(s.HostID), HostIP: f.IP, ExtInfo: ext, Sandbox: &shown}
	answer.Warnings = warnings(unknown)
	serve.WriteJSON(w, http.StatusOK, answer)
}

// create is the whole transaction: row, choice, host, row. Whatever fails
// after a host was called is undone by an outbox message, whether or not the
// caller is still there.
func (m *Master) create(whole context.Context, req cubeapi.SandboxCreateRequest) (sandbox.Sandbox, host.Facts, *hostpb.Sandbox, error) {
	ctx, cancel := context.WithTimeout(whole, m.cfg.Master.CreateTimeout)
	defer cancel()
	p, err := m.begin(ctx, req)
	if err == nil && p.again {
		// Who makes it may have a program with a time of its own. One that has ended is
		// swept: this is but a bound.
		limit := m.cfg.Master.CreateTimeout + sandbox.MaxProbeTime
		longer, done := context.WithTimeout(whole, limit)
		defer done()
		for err == nil && p.again {
			row, f, late := m.follow(longer, p.row.ID)
			if late == nil || !failedCreate(row) {
				return row, f, nil, inTime(longer, limit, late)
			}
			p, err = m.begin(longer, req) // the try that was followed failed: it is our turn
		}
		if err != nil {
			return p.row, host.Facts{}, nil, inTime(longer, limit, err)
		}
	}
	limit := m.cfg.Master.CreateTimeout + p.probe.Limit() // its program has its own time
	if err != nil {
		return p.row, host.Facts{}, nil, inTime(ctx, limit, err)
	}
	ctx, cancel = context.WithTimeout(whole, limit)
	defer cancel()
	defer m.keepMaking(ctx, p.row.ID)()
	if err := m.step("master.create.after_row"); err != nil {
		return p.row, host.Facts{}, nil, err
	}
	f, made, err := m.place(ctx, p)
	if err == nil {
		if err := m.step("master.create.after_host"); err != nil {
			return p.row, f, nil, err
		}
		p.row.IP = made.GetIp()
		err = m.move(ctx, &p.row, sandbox.OnStarted)
	}
	if err != nil {
		m.abandon(ctx, p.row, err)
		return p.row, f, nil, inTime(ctx, limit, err)
	}
	m.fleet.ledger.Confirm(p.row.ID, p.row.ChangedAt)
	return p.row, f, made, nil
}

// keepMaking shows that a sandbox is being made until the returned function is
// called: a row that nobody touches is one whose master has ended. Most creates
// are over before the first time.
func (m *Master) keepMaking(ctx context.Context, id sandbox.ID) (stop func()) {
	// A create whose time is up still has to write how it ended.
	return every(context.WithoutCancel(ctx), m.pace.createBeat, func(ctx context.Context) {
		bounded, cancel := context.WithTimeout(ctx, m.pace.createQuiet)
		defer cancel()
		err := m.db.Update(bounded, func(tx *store.Tx) error { return sandboxdb.TouchSandbox(bounded, tx, id) })
		if err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "sandbox not touched", slog.String("sandbox_id", string(id)), slog.String("error", err.Error()))
		}
	})
}

// inTime words what went wrong because the time of a create was up.
func inTime(ctx context.Context, limit time.Duration, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Wrap(fault.Deadline, err, "create within %s", limit)
	}
	return err
}

// attempts is what one create has tried so far.
type attempts struct {
	full    int // hosts that had no room after all
	runtime int // hosts on which it did not start
	last    error
}

// place chooses hosts until one makes the sandbox, none is left, or time is up.
func (m *Master) place(ctx context.Context, p *plan) (host.Facts, *hostpb.Sandbox, error) {
	r := scheduler.Request{Sandbox: p.row.ID, Template: p.template.ID, Artifact: p.template.ArtifactID, InstanceType: p.kind(), Resources: p.row.Resources, Seed: rand.Uint64()}
	for _, s := range p.req.Scope {
		r.Scope = append(r.Scope, host.ID(s))
	}
	var tried attempts
	for delay := firstDelay; ; delay = min(maxDelay, time.Duration(float64(delay)*(1+0.8*rand.Float64()))) {
		f, err := m.choose(ctx, r)
		if err != nil {
			return host.Facts{}, nil, tried.explain(err)
		}
		p.row.HostID = f.ID
		if err := m.move(ctx, &p.row, sandbox.OnCharged); err != nil {
			return f, nil, err
		}
		if err := m.step("master.create.after_charge"); err != nil {
			return f, nil, err
		}
		made, err := m.callCreate(ctx, p, f)
		if err == nil {
			return f, made, nil
		}
		if ctx.Err() != nil || !tried.elsewhere(err) {
			return f, nil, err
		}
		m.log.InfoContext(ctx, "sandbox placed anew", slog.String("sandbox_id", string(p.row.ID)), slog.String("host_id", string(f.ID)), slog.String("error", err.Error()))
		// The host may have it after all: whatever it made is removed.
		if err := m.bounce(ctx, p, f.ID); err != nil {
			return f, nil, err
		}
		r.Exclude = append(r.Exclude, f.ID)
		select {
		case <-ctx.Done():
			return f, nil, errors.Join(ctx.Err(), err)
		case <-time.After(delay):
		}
	}
}

// elsewhere notes why a host did not make it and reports whether another host
// may. Room and transport are a matter of the host, and are tried until time is
// up; a runtime that fails may be a matter of the image; the rest is a matter
// of the request, which every host would refuse.
func (a *attempts) elsewhere(err error) bool {
	a.last = err
	is := func(codes ...*fault.Code) bool {
		return slices.ContainsFunc(codes, func(c *fault.Code) bool { return errors.Is(err, c) })
	}
	switch {
	case is(fault.HostFull, fault.DiskFull):
		a.full++
		return true
	case is(fault.HostUnreachable, fault.ArtifactNotFound, fault.TokenRejected, fault.DataDir):
		return true
	case is(fault.RuntimeFailed, fault.GuestUnreachable):
		a.runtime++
		return a.runtime < runtimeTries
	}
	return false
}

// explain words a choice that found no host after others were tried: hosts
// that said that they are full are no missing hosts.
func (a *attempts) explain(err error) error {
	switch {
	case a.last == nil:
		return err
	case a.full > 0 && errors.Is(err, fault.NoHost):
		return fault.Wrap(fault.NoCapacity, a.last, "%d hosts had no room after all; %s", a.full, err)
	}
	return errors.Join(err, a.last)
}

func (m *Master) choose(ctx context.Context, r scheduler.Request) (host.Facts, error) {
	v, now, err := m.fleet.now(ctx)
	if err != nil {
		return host.Facts{}, err
	}
	began := time.Now()
	d, err := m.rules.Load().placer.Choose(v, m.fleet.ledger, r, now)
	m.metrics.decision.Observe(time.Since(began).Seconds())
	for _, o := range d.Out {
		m.metrics.refused.WithLabelValues(o.Plugin).Add(float64(o.Hosts))
	}
	f, _ := v.Host(d.Host)
	return f, err
}

func (m *Master) callCreate(ctx context.Context, p *plan, f host.Facts) (*hostpb.Sandbox, error) {
	client, err := m.hosts.to(f)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, m.onOneHost(p))
	defer cancel()
	answer, err := client.CreateSandbox(bounded, p.order())
	switch {
	case err == nil:
		return answer.GetSandbox(), nil
	case ctx.Err() == nil && (bounded.Err() != nil || status.Code(err) == codes.DeadlineExceeded): // the host's clock may be the first to say so
		return nil, fault.Wrap(fault.HostUnreachable, err, "host %s did not make sandbox %s in %s", f.ID, p.row.ID, m.onOneHost(p))
	}
	return nil, hostFault(ctx, err, f.ID)
}

// onOneHost is how long one host may take: it may not use up the time in which
// another could make the sandbox.
func (m *Master) onOneHost(p *plan) time.Duration {
	return m.cfg.Master.CreateTimeout*2/3 + p.probe.Limit()
}

// bounce takes a sandbox back from a host: the row is free for another, and
// the host is told to remove what it may have made.
func (m *Master) bounce(ctx context.Context, p *plan, from host.ID) error {
	m.fleet.ledger.Release(p.row.ID)
	row := p.row
	err := m.db.Update(ctx, func(tx *store.Tx) (err error) {
		row = p.row
		row.HostID = ""
		if row, err = sandboxdb.MoveSandbox(ctx, tx, row, sandbox.OnBounced); err != nil {
			return err
		}
		return enqueueDelete(ctx, tx, removal{row.ID, from, "bounced", false}, 0)
	})
	if err != nil {
		return changed(err, p.row.ID)
	}
	p.row = row
	m.deliverSoon(topicSandboxDelete)
	return nil
}

// move changes a sandbox's state in a transaction of its own. Somebody who was
// faster has deleted it.
func (m *Master) move(ctx context.Context, s *sandbox.Sandbox, on sandbox.Event) error {
	var next sandbox.Sandbox
	err := m.db.Update(ctx, func(tx *store.Tx) (err error) {
		next, err = sandboxdb.MoveSandbox(ctx, tx, *s, on)
		return err
	})
	if err != nil {
		return changed(err, s.ID)
	}
	*s = next
	return nil
}

func changed(err error, id sandbox.ID) error {
	if errors.Is(err, fault.VersionConflict) {
		return fault.New(fault.SandboxNotReady, "sandbox %s was deleted while it was made", id)
	}
	return err
}

// abandon ends a sandbox whose create failed. On a context of its own: the
// caller may have gone, and nothing may be left of it. A host that was called
// is told in every case, also when a delete was faster: that delete may have
// reached the host before the create did.
func (m *Master) abandon(ctx context.Context, s sandbox.Sandbox, why error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostCall)
	defer cancel()
	m.fleet.ledger.Release(s.ID)
	err := m.update(ctx, func(tx *store.Tx) error {
		before, err := sandboxdb.GetSandbox(ctx, tx, s.ID)
		if err != nil {
			return err
		}
		if before.State == sandbox.Terminating || before.State == sandbox.Terminated {
			if s.HostID == "" {
				return nil
			}
			return enqueueDelete(ctx, tx, removal{s.ID, s.HostID, "request", false}, 0)
		}
		_, err = endIn(ctx, tx, s.ID, reasonFailed+why.Error(), 0)
		return err
	})
	if err != nil {
		m.log.ErrorContext(ctx, "failed create not undone; a sweep will try again", slog.String("sandbox_id", string(s.ID)), slog.String("error", err.Error()))
		return
	}
	m.deliverSoon(topicSandboxDelete)
}
