package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	hostCall = 15 * time.Second

	// How long it is waited between two looks at what somebody else makes.
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
	var who tenant
	if err == nil {
		who, err = tenantOf(r, &req)
	}
	if err == nil {
		s, f, made, err = m.create(r.Context(), who, req)
	}
	m.createEnded(began, err)
	if err != nil {
		refuseCreate(w, r, err)
		return
	}
	ext := map[string]string{"cube-e2e": fmt.Sprintf("%.1f", time.Since(began).Seconds()*1000)}
	for step, us := range made.GetStepUs() {
		ext["step-"+step] = fmt.Sprintf("%.1f", float64(us)/1000)
	}
	shown := showSecrets(s)
	answer := cubeapi.SandboxAnswer{Envelope: cubeapi.OK(named(r, req.RequestID)), SandboxID: string(s.ID), SandboxIP: s.IP, HostID: string(s.HostID), HostIP: f.IP, ExtInfo: ext, Sandbox: &shown}
	answer.Warnings = warnings(unknown)
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) createEnded(began time.Time, err error) {
	outcome := "success"
	if err != nil {
		outcome = fault.Of(err).Name
	}
	m.metrics.create.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
}

// refuseCreate tells why there is no sandbox; of one that found no host, also
// what kept which hosts out.
func refuseCreate(w http.ResponseWriter, r *http.Request, err error) {
	var u *unplaced
	if errors.As(err, &u) {
		serve.WriteErrorWith(w, r, err, u.show())
		return
	}
	serve.WriteError(w, r, err)
}

// create is the whole transaction: row, choice, host, row. Whatever fails
// after a host was called is undone by an outbox message, whether or not the
// caller is still there.
func (m *Master) create(whole context.Context, who tenant, req cubeapi.SandboxCreateRequest) (sandbox.Sandbox, host.Facts, *hostpb.Sandbox, error) {
	ctx, cancel := context.WithTimeout(whole, m.cfg.Master.CreateTimeout)
	defer cancel()
	if err := checkCreate(&req); err != nil {
		return sandbox.Sandbox{}, host.Facts{}, nil, err
	}
	leave, err := m.enter(ctx, who.name, kindOf(req))
	if err != nil {
		return sandbox.Sandbox{}, host.Facts{}, nil, inTime(ctx, m.cfg.Master.CreateTimeout, err)
	}
	leave = sync.OnceFunc(leave)
	defer leave()
	p, err := m.begin(ctx, req)
	if err == nil && p.again {
		leave() // it only waits: another makes it
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
			// The try that was followed failed: it is our turn.
			if leave, err = m.enter(longer, who.name, kindOf(req)); err != nil {
				break
			}
			leave = sync.OnceFunc(leave)
			defer leave()
			if p, err = m.begin(longer, req); p.again {
				leave()
			}
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
	p.who = who.name
	f, made, err := m.place(ctx, p)
	if err == nil {
		if err := m.step("master.create.after_host"); err != nil {
			return p.row, f, nil, err
		}
		p.row.IP = made.GetSandbox().GetIp()
		err = m.started(ctx, &p.row)
	}
	if err != nil {
		m.abandon(ctx, p, err)
		return p.row, f, nil, inTime(ctx, limit, err)
	}
	m.fleet.took(p.row.ID, f.ID, p.row.ChangedAt, made.GetTruth())
	return p.row, f, made.GetSandbox(), nil
}

// keepMaking shows that sandboxes are being made until the returned function is
// called: a row that nobody touches is one whose master has ended. Most creates
// are over before the first time.
func (m *Master) keepMaking(ctx context.Context, ids ...sandbox.ID) (stop func()) {
	// A create whose time is up still has to write how it ended.
	return every(context.WithoutCancel(ctx), m.pace.createBeat, func(ctx context.Context) {
		bounded, cancel := context.WithTimeout(ctx, m.pace.createQuiet)
		defer cancel()
		err := m.db.Update(bounded, func(tx *store.Tx) error {
			for _, id := range ids {
				if err := sandboxdb.TouchSandbox(bounded, tx, id); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "sandbox not touched", slog.String("sandbox_id", string(ids[0])), slog.String("error", err.Error()))
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

// started notes that a sandbox runs. Somebody who was faster has deleted it.
func (m *Master) started(ctx context.Context, s *sandbox.Sandbox) error {
	var next sandbox.Sandbox
	err := m.db.Update(ctx, func(tx *store.Tx) (err error) {
		if next, err = sandboxdb.MoveSandbox(ctx, tx, *s, sandbox.OnStarted); err != nil {
			return err
		}
		return m.routeChanged(ctx, tx, s.ID)
	})
	if err != nil {
		return changed(err, s.ID)
	}
	*s = next
	m.deliverSoon(topicRoute)
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
func (m *Master) abandon(ctx context.Context, p *plan, why error) {
	s := p.row
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostCall)
	defer cancel()
	m.fleet.ledger.Release(s.ID)
	err := m.update(ctx, func(tx *store.Tx) error { return m.abandonIn(ctx, tx, p, why) })
	if err != nil {
		m.log.ErrorContext(ctx, "failed create not undone; a sweep will try again", slog.String("sandbox_id", string(s.ID)), slog.String("error", err.Error()))
		return
	}
	m.deliverSoon(topicSandboxDelete)
}

func (m *Master) abandonIn(ctx context.Context, tx *store.Tx, p *plan, why error) error {
	s := p.row
	before, err := sandboxdb.GetSandbox(ctx, tx, s.ID)
	if err != nil {
		return err
	}
	if before.State == sandbox.Terminating || before.State == sandbox.Terminated {
		if s.HostID == "" {
			return nil
		}
		return enqueueDelete(ctx, tx, removal{s.ID, s.HostID, reasonRequest, false}, 0)
	}
	if p.missed != nil {
		if err := m.remember(ctx, tx, *p.missed); err != nil {
			return err
		}
	}
	_, err = m.endIn(ctx, tx, s.ID, reasonFailed+why.Error(), 0)
	return err
}
