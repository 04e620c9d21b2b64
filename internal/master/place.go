package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

// directTries is how often a host that a request names is asked: it never goes
// to another.
const directTries = 5

// attempts is what one create has tried so far. It keeps the rules that it
// began with.
type attempts struct {
	rules   *rules
	used    scheduler.Retries
	request scheduler.Request
	chosen  int   // how often
	full    int   // hosts that had no room after all
	last    error // of the last attempt; nil: there was none
}

// unplaced is a create that no host was found for.
type unplaced struct {
	error
	decision scheduler.Decision
}

func (u *unplaced) Unwrap() error { return u.error }

func (u *unplaced) show() cubeapi.Unplaced {
	p := cubeapi.Placing{Considered: u.decision.Considered, Dropped: map[string]int{}}
	for _, o := range u.decision.Out {
		p.Dropped[o.Plugin] += o.Hosts
	}
	if n := u.decision.Nearest; n != nil {
		p.Nearest = n.String()
	}
	return cubeapi.Unplaced{Placing: p}
}

// place chooses hosts until one makes the sandbox, none is left, or time is up.
func (m *Master) place(ctx context.Context, p *plan) (host.Facts, *hostpb.CreateSandboxResponse, error) {
	t := &attempts{rules: p.rules, request: p.asks}
	t.request.Sandbox, t.request.Seed = p.row.ID, rand.Uint64()
	if err := m.locate(ctx, p, &t.request); err != nil {
		return host.Facts{}, nil, err
	}
	t.rules.budget.earn()
	for {
		f, err := m.charge(ctx, p, t)
		if err != nil {
			return f, nil, t.explain(err)
		}
		if err := m.step("master.create.after_charge"); err != nil {
			return f, nil, err
		}
		made, v, err := m.askHost(ctx, p, f, t)
		if err == nil || !v.Again {
			return f, made, err
		}
		m.log.InfoContext(ctx, "sandbox placed anew", slog.String("sandbox_id", string(p.row.ID)), slog.String("host_id", string(f.ID)), slog.String("error", err.Error()))
		// The host may have it after all: whatever it made is removed.
		if err := m.bounce(ctx, p); err != nil {
			return f, nil, err
		}
		t.request.Exclude = append(t.request.Exclude, f.ID)
		if wait(ctx, v.Wait) != nil {
			return f, nil, errors.Join(ctx.Err(), err)
		}
	}
}

// wait waits, for as long as ctx lasts.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// charge chooses a host and notes it in the row. A host that was shut since the
// view was read is not called: another is chosen.
func (m *Master) charge(ctx context.Context, p *plan, t *attempts) (host.Facts, error) {
	for {
		t.chosen++
		if err := m.score(ctx, t.rules, &t.request); err != nil {
			return host.Facts{}, err
		}
		c := choice{request: t.request, attempt: t.chosen, after: t.last, tenant: p.who}
		var err error
		if c.decision, c.at, err = m.choose(ctx, t.rules, t.request); err != nil {
			if noHostFits(err) {
				c.refused, p.missed = err, &c
			}
			return host.Facts{}, &unplaced{err, c.decision}
		}
		var f host.Facts
		var row sandbox.Sandbox
		var shut string
		err = m.db.Update(ctx, func(tx *store.Tx) (err error) {
			if f, shut, err = gate(ctx, tx, c.decision.Host); err != nil || shut != "" && !t.request.Force {
				return err
			}
			row, err = m.chargedIn(ctx, tx, p.row, c)
			return err
		})
		switch {
		case err != nil:
			return f, changed(err, p.row.ID)
		case shut == "" || t.request.Force:
			p.row = row
			return f, nil
		}
		m.fleet.ledger.Release(p.row.ID)
		m.fleet.changed()
		m.metrics.refused.WithLabelValues("gate").Inc()
		t.last = fault.New(fault.NoHost, "host %s: %s", c.decision.Host, shut)
		if t.request.Direct != "" {
			return f, t.last
		}
		t.request.Exclude = append(t.request.Exclude, c.decision.Host)
	}
}

// gate reads the row of a host just before it is called, and says why it may
// not be; empty: it may. How long it was silent is the scheduler's to judge.
func gate(ctx context.Context, tx *store.Tx, id host.ID) (f host.Facts, shut string, err error) {
	f, err = sandboxdb.GetHost(ctx, tx, id)
	switch {
	case errors.Is(err, fault.HostUnknown):
		return host.Facts{Registration: host.Registration{ID: id}}, "it was removed", nil
	case err != nil:
		return f, "", err
	case f.Cordoned:
		return f, "it was cordoned", nil
	case !f.Ready:
		return f, "it is not ready: " + f.Reason, nil
	}
	return f, "", nil
}

// choose takes a host by the rules and charges it. A refusal by a view that is
// not the newest is no answer yet; nor is one for want of an artifact by a view
// that is older than the request, which may know that a template is ready.
func (m *Master) choose(ctx context.Context, r *rules, q scheduler.Request) (d scheduler.Decision, at time.Time, err error) {
	began := time.Now()
	if _, _, err := m.fleet.now(ctx); err != nil {
		return d, at, err
	}
	d, at, err = m.pick(r, q)
	if err == nil || m.fleet.fresh() && (!missesArtifact(d) || m.fleet.readSince(began)) {
		return d, at, err
	}
	m.fleet.changed()
	if _, _, err := m.fleet.now(ctx); err != nil {
		return d, at, err
	}
	return m.pick(r, q)
}

// missesArtifact reports whether hosts were left out for lack of the artifact.
func missesArtifact(d scheduler.Decision) bool {
	return slices.ContainsFunc(d.Out, func(o scheduler.Count) bool { return o.Plugin == "template_locality" })
}

func (m *Master) pick(r *rules, q scheduler.Request) (d scheduler.Decision, at time.Time, err error) {
	began := time.Now()
	m.fleet.choosing(func(v *scheduler.View, now time.Time) {
		at = now
		d, err = r.placer.Choose(v, m.fleet.ledger, q, now)
	})
	m.decided(d, time.Since(began))
	return d, at, err
}

// decided counts a decision.
func (m *Master) decided(d scheduler.Decision, took time.Duration) {
	m.metrics.decision.Observe(took.Seconds())
	for _, o := range d.Out {
		m.metrics.refused.WithLabelValues(o.Plugin).Add(float64(o.Hosts))
	}
	if d.Blind {
		m.metrics.blind.Inc()
	}
}

// askHost asks one host until it makes the sandbox, or is left. The verdict
// says whether another may be asked. A host that is asked again knows the
// sandbox by its id, so that an answer that was lost makes no second one.
func (m *Master) askHost(ctx context.Context, p *plan, f host.Facts, t *attempts) (*hostpb.CreateSandboxResponse, scheduler.Verdict, error) {
	for tries := 1; ; tries++ {
		made, err := m.callCreate(ctx, p, f)
		if err == nil || ctx.Err() == nil {
			m.reported(t.rules, f.ID, p.row.ID, err)
		}
		if err == nil || ctx.Err() != nil {
			return made, scheduler.Verdict{}, err
		}
		v := t.after(ctx, err)
		if v.Again && t.request.Direct != "" {
			v.SameHost, v.Again = true, tries < directTries
			v.Reason = fmt.Sprintf("a host that is named is asked %d times", directTries)
		}
		m.metrics.retries.WithLabelValues(string(v.Class), map[bool]string{true: "tried again", false: "given up"}[v.Again]).Inc()
		switch {
		case !v.Again:
			if v.Class != scheduler.RetryNone && v.Class != scheduler.RetryExclude {
				err = fmt.Errorf("%w (not tried again: %s)", err, v.Reason)
			}
			return nil, v, err
		case !v.SameHost:
			return nil, v, err
		}
		if wait(ctx, v.Wait) != nil {
			return nil, scheduler.Verdict{}, errors.Join(ctx.Err(), err)
		}
	}
}

// after notes why a host did not make it and says what to do.
func (t *attempts) after(ctx context.Context, err error) scheduler.Verdict {
	t.last = err
	if noRoom(err) {
		t.full++
	}
	left := time.Duration(1<<63 - 1)
	if until, ok := ctx.Deadline(); ok {
		left = time.Until(until)
	}
	code, transport := retOf(err)
	return t.rules.after(&t.used, code, transport, left)
}

// after is the policy's word on a failed attempt, paid for by all creates
// together.
func (r *rules) after(used *scheduler.Retries, code int, transport bool, left time.Duration) scheduler.Verdict {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	return r.retry.After(used, code, transport, rand.Float64(), left, r.budget.RetryBudget)
}

func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Earn()
}

// retOf is the number under which the retry classes know a failed attempt, and
// whether the host did not answer at all. Of an artifact and of a directory, a
// host's word has another number than a user's mistake.
func retOf(err error) (ret int, transport bool) {
	switch c := fault.Of(err); c {
	case fault.ArtifactNotFound:
		return 130498, false
	case fault.DataDir:
		return 130545, false
	default:
		return c.RetCode(), c == fault.HostUnreachable
	}
}

// reported tells the breakers how a call of a host ended. What the program of
// the image does wrong, and what is wrong with the request, does not count.
func (m *Master) reported(r *rules, h host.ID, s sandbox.ID, err error) {
	o := scheduler.RequestRefused
	ret, transport := 0, false
	if err != nil {
		ret, transport = retOf(err)
	}
	switch {
	case err == nil:
		o = scheduler.Succeeded
	case transport, r.retry.Breaks(ret):
		o = scheduler.TransportFailed
	case r.retry.Class(ret, false) == scheduler.RetryRuntime, errors.Is(err, fault.DataDir):
		o = scheduler.RuntimeFailed
	case noRoom(err):
		o = scheduler.CapacityRefused
	}
	m.fleet.choosing(func(_ *scheduler.View, now time.Time) { r.breakers.Report(h, s, o, now) })
	if t := serve.TruthOf(err); t != nil {
		m.fleet.learned(h, t)
	}
}

// noRoom reports whether a host has no room now, and nothing was made there.
func noRoom(err error) bool { return errors.Is(err, fault.HostFull) || errors.Is(err, fault.HostBusy) }

// explain words a choice that found no host after others were tried: hosts
// that said that they are full are no missing hosts.
func (t *attempts) explain(err error) error {
	var u *unplaced
	switch {
	case t.last == nil || !errors.As(err, &u):
		return err
	case t.full > 0 && errors.Is(err, fault.NoHost):
		return &unplaced{fault.Wrap(fault.NoCapacity, t.last, "%d hosts had no room after all; %s", t.full, err), u.decision}
	}
	return errors.Join(err, t.last)
}

func (m *Master) callCreate(ctx context.Context, p *plan, f host.Facts) (*hostpb.CreateSandboxResponse, error) {
	client, err := m.hosts.to(f)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, m.onOneHost(p))
	defer cancel()
	answer, err := client.CreateSandbox(bounded, p.order())
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() == nil && (bounded.Err() != nil || status.Code(err) == codes.DeadlineExceeded || errors.Is(serve.FromGRPC(err), fault.Deadline)): // the host's clock may be the first to say so
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
func (m *Master) bounce(ctx context.Context, p *plan) error {
	m.fleet.ledger.Release(p.row.ID)
	var row sandbox.Sandbox
	err := m.db.Update(ctx, func(tx *store.Tx) (err error) {
		row, err = m.bounceIn(ctx, tx, p.row)
		return err
	})
	if err != nil {
		return changed(err, p.row.ID)
	}
	p.row = row
	m.deliverSoon(topicSandboxDelete)
	return nil
}

func (m *Master) bounceIn(ctx context.Context, tx *store.Tx, row sandbox.Sandbox) (sandbox.Sandbox, error) {
	from := row.HostID
	row.HostID = ""
	row, err := sandboxdb.MoveSandbox(ctx, tx, row, sandbox.OnBounced)
	if err != nil {
		return row, err
	}
	return row, enqueueDelete(ctx, tx, removal{row.ID, from, "bounced", false}, 0)
}
