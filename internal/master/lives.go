package master

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

// passing are the states in which a host is at work on a sandbox that runs or
// is kept. One transaction moves a sandbox there, with a new generation and a
// message; the host is called; another transaction moves it on by what the host
// has. Whoever asked, the outbox and the sweep all do the latter two in the same
// way, side by side: the host joins calls of one generation, and the row takes
// one answer.
var passing = []sandbox.State{sandbox.Pausing, sandbox.Resuming, sandbox.RollingBack}

func isPassing(s sandbox.State) bool { return slices.Contains(passing, s) }

const (
	topicLife = "life"

	// longestRest is how long it is waited between two looks at a sandbox that a
	// host is at work on.
	longestRest = 250 * time.Millisecond
	// busyPause is the first pause after a host that had its hands full.
	busyPause = 20 * time.Millisecond
)

// intend moves a sandbox that stands still into a passing state: its host is to
// be called, at the latest by the outbox after the given time.
func (m *Master) intend(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, on sandbox.Event, after time.Duration) (sandbox.Sandbox, error) {
	s.Life.Generation++
	s, err := sandboxdb.MoveSandbox(ctx, tx, s, on)
	if err != nil {
		return s, err
	}
	if err := m.routeChanged(ctx, tx, s.ID); err != nil {
		return s, err
	}
	return s, enqueueLife(ctx, tx, s, after)
}

func enqueueLife(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, after time.Duration) error {
	return tx.Enqueue(ctx, store.Message{Topic: topicLife, Key: string(s.ID), Payload: []byte(strconv.FormatInt(int64(s.Life.Generation), 10)), Trace: traceOf(ctx)}, after)
}

// ask is intend for somebody who waits. prepare sees the row in the transaction
// and may refuse. moved tells that somebody else was faster: look again.
func (m *Master) ask(ctx context.Context, id sandbox.ID, on sandbox.Event, prepare func(tx *store.Tx, s *sandbox.Sandbox) error) (s sandbox.Sandbox, moved bool, err error) {
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		moved = false
		if s, err = sandboxdb.GetSandbox(ctx, tx, id); err != nil {
			return err
		}
		_, no := sandbox.Machine.Step(s.State, on, fsm.None{})
		if moved = no != nil; moved {
			return nil
		}
		if err := prepare(tx, &s); err != nil {
			return err
		}
		s, err = m.intend(ctx, tx, s, on, followUp)
		return err
	})
	if err != nil || moved {
		return s, moved, err
	}
	m.deliverSoon(topicRoute)
	return s, false, m.step("master.life.after_commit")
}

// fulfil calls the host of a sandbox in a passing state, settles it, and refuses
// unless it is then where it was to go, or has been there. The work goes on when
// the caller does not: it has begun.
func (m *Master) fulfil(ctx context.Context, s sandbox.Sandbox, want sandbox.State) (sandbox.Sandbox, error) {
	next, err := m.passOn(ctx, s)
	if err == nil && next.State == s.State && next.Life.Generation == s.Life.Generation {
		next, err = m.atRest(ctx, s.ID) // its host is at work on it still
	}
	if next.Life.Generation == s.Life.Generation {
		switch next.State {
		case want:
			return next, nil
		case sandbox.Terminating, sandbox.Terminated:
			return next, errors.Join(unfit(next), err)
		}
	}
	if err == nil && next.Life.Generation == s.Life.Generation {
		err = fault.New(fault.SandboxNotReady, "sandbox %s is %s %s", next.ID, next.State, next.Reason)
	}
	return next, err
}

// passOn carries a sandbox, and again when what failed is to be done otherwise.
func (m *Master) passOn(ctx context.Context, s sandbox.Sandbox) (next sandbox.Sandbox, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Master.LifeTimeout)
	defer cancel()
	defer context.AfterFunc(m.base, cancel)()
	if next, err = m.carry(ctx, s); next.State == sandbox.Pausing && s.State == sandbox.Pausing && next.Life.Generation > s.Life.Generation && errors.Is(err, fault.Unsupported) {
		return m.carry(ctx, next) // without its memory
	}
	return next, err
}

// live carries what a message tells of, unless it is over.
func (m *Master) live(ctx context.Context, msg store.Message) error {
	s, err := m.sandbox(ctx, sandbox.ID(msg.Key))
	if errors.Is(err, fault.SandboxNotFound) {
		return nil
	}
	if err != nil || !isPassing(s.State) || strconv.FormatInt(int64(s.Life.Generation), 10) != string(msg.Payload) {
		return err
	}
	next, err := m.carry(ctx, s)
	if !isPassing(next.State) || next.Life.Generation != s.Life.Generation {
		m.deliverSoon(topicLife) // what follows from it, if anything does
		return nil               // it is settled, whichever way
	}
	return err
}

// carry calls the host and settles the row by its answer. The error is the
// host's, or why it could not be asked: then the row stands where it stood, and
// the outbox asks again.
func (m *Master) carry(ctx context.Context, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	f, err := m.host(ctx, s.HostID)
	if err != nil {
		return s, err
	}
	client, err := m.hosts.to(f)
	if err != nil {
		return s, err
	}
	shown, truth, err := m.callLife(ctx, client, s)
	if err == nil {
		if err := m.step("master.life.after_host"); err != nil {
			return s, err
		}
		next, err := m.settle(ctx, s, shown, nil)
		m.fleetSettled(next, truth)
		return next, err
	}
	m.fleet.ledger.Release(s.ID)
	if t := serve.TruthOf(err); t != nil {
		m.fleet.learned(s.HostID, t)
	}
	return m.settleByTruth(ctx, client, s, err)
}

// callLife asks the host for what a passing state is on the way to.
func (m *Master) callLife(ctx context.Context, client hostpb.HostServiceClient, s sandbox.Sandbox) (shown *hostpb.Sandbox, truth *hostpb.HostTruth, err error) {
	id, generation := string(s.ID), int64(s.Life.Generation)
	switch s.State {
	case sandbox.Pausing:
		a, err := client.PauseSandbox(ctx, &hostpb.PauseSandboxRequest{SandboxId: id, Generation: generation, WithMemory: s.Life.WithMemory, Reason: reasonOfPause(s)})
		return a.GetSandbox(), a.GetTruth(), hostFault(ctx, err, s.HostID)
	case sandbox.RollingBack:
		a, err := client.RollbackSandbox(ctx, &hostpb.RollbackSandboxRequest{SandboxId: id, SnapshotId: string(s.Life.Wish.Snapshot), Generation: generation})
		return a.GetSandbox(), a.GetTruth(), hostFault(ctx, err, s.HostID)
	}
	if _, _, err := m.fleet.now(ctx); err != nil {
		return nil, nil, err
	}
	// What it takes is held for it, so that creates are not sent into its way.
	m.fleet.choosing(func(_ *scheduler.View, now time.Time) {
		m.fleet.ledger.Charge(scheduler.Charge{Sandbox: s.ID, Host: s.HostID, Template: s.TemplateID, Resources: s.Resources, At: now})
	})
	for pause := busyPause; ; pause = min(2*pause, maxDelay) {
		a, err := client.ResumeSandbox(ctx, &hostpb.ResumeSandboxRequest{SandboxId: id, Generation: generation})
		if err = hostFault(ctx, err, s.HostID); !errors.Is(err, fault.HostBusy) {
			return a.GetSandbox(), a.GetTruth(), err
		}
		if wait(ctx, pause) != nil {
			return nil, nil, err
		}
	}
}

func reasonOfPause(s sandbox.Sandbox) string {
	if s.Life.Wish.Timeout {
		return reasonTimeout
	}
	return reasonRequest
}

// firm reports whether a host itself said no: it was reached, and its answer
// was not lost.
func firm(err error) bool {
	switch fault.Of(err) {
	case fault.HostUnreachable, fault.PeerUnavailable, fault.Deadline, fault.CallCancelled, fault.HostBusy:
		return false
	}
	return true
}

// settleByTruth asks the host what it has, after a call that did not succeed,
// and settles the row by that. A host that cannot be asked settles nothing.
func (m *Master) settleByTruth(ctx context.Context, client hostpb.HostServiceClient, s sandbox.Sandbox, why error) (sandbox.Sandbox, error) {
	// The call may have used up its time, and the answer is worth the wait.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostCall)
	defer cancel()
	defer context.AfterFunc(m.base, cancel)()
	a, err := client.GetSandbox(ctx, &hostpb.GetSandboxRequest{SandboxId: string(s.ID)})
	switch err = hostFault(ctx, err, s.HostID); {
	case errors.Is(err, fault.SandboxNotFound):
		next, err := m.settle(ctx, s, nil, why)
		m.fleetSettled(next, nil)
		return next, errors.Join(why, err)
	case err != nil:
		return s, why
	}
	shown := a.GetSandbox()
	met := shown.GetGeneration() >= int64(s.Life.Generation)
	if s.State == sandbox.RollingBack {
		met = met && shown.GetState() != hostpb.SandboxState_SANDBOX_STATE_RUNNING // it does not tell which of the two states it has
	}
	if !firm(why) && !met {
		return s, why // it may not have heard of it: it is told again
	}
	next, err := m.settle(ctx, s, shown, why)
	m.fleetSettled(next, nil)
	return next, errors.Join(why, err)
}

// settle moves a row out of the passing state that s has it in, by what its host
// shows, nil for nothing. why is the host's refusal. A row that has gone on
// since, or that the host is still at work on, stays.
func (m *Master) settle(ctx context.Context, s sandbox.Sandbox, shown *hostpb.Sandbox, why error) (next sandbox.Sandbox, err error) {
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		if next, err = sandboxdb.GetSandbox(ctx, tx, s.ID); err != nil {
			return err
		}
		if next.State != s.State || next.Life.Generation != s.Life.Generation {
			return nil // a stale answer changes nothing
		}
		next, err = m.settleIn(ctx, tx, next, shown, why)
		return err
	})
	if err != nil {
		return s, err
	}
	if next.State != s.State {
		m.deliverSoon(topicRoute)
		m.deliverSoon(topicSandboxDelete)
	}
	return next, nil
}

func (m *Master) settleIn(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, shown *hostpb.Sandbox, why error) (sandbox.Sandbox, error) {
	if shown == nil {
		return m.endIn(ctx, tx, s.ID, reasonVanished, 0)
	}
	if shown.GetState() == hostpb.SandboxState_SANDBOX_STATE_EXITED {
		return m.endIn(ctx, tx, s.ID, endedBy(shown, why), 0)
	}
	on, ok := outcome(s.State, shown.GetState(), why)
	if !ok {
		return s, nil // it is at work on it
	}
	wish := s.Life.Wish
	without := on == sandbox.OnPauseVoid && s.Life.WithMemory && !wish.Memory && errors.Is(why, fault.Unsupported)
	s, err := m.arrive(ctx, tx, s, on, shown, why)
	if err != nil || !without {
		return s, err
	}
	// Nobody insists on the memory, and its driver cannot keep it.
	s.Life.WithMemory, s.Life.Wish, s.Reason, s.ExpiresAt = false, wish, "", time.Time{}
	return m.intend(ctx, tx, s, sandbox.OnPauseAsked, followUp)
}

func endedBy(shown *hostpb.Sandbox, why error) string {
	switch {
	case shown.GetReason() != "":
		return shown.GetReason()
	case why != nil:
		return reasonFailed + why.Error()
	}
	return "it ended by itself"
}

// outcome is what became of a passing sandbox that its host has in a state.
func outcome(s sandbox.State, shown hostpb.SandboxState, why error) (on sandbox.Event, ok bool) {
	running, paused := shown == hostpb.SandboxState_SANDBOX_STATE_RUNNING, shown == hostpb.SandboxState_SANDBOX_STATE_PAUSED
	switch {
	case s == sandbox.Pausing && paused:
		return sandbox.OnPaused, true
	case s == sandbox.Pausing && running:
		return sandbox.OnPauseVoid, true
	case s == sandbox.Resuming && running:
		return sandbox.OnResumed, true
	case s == sandbox.Resuming && paused:
		return sandbox.OnWakeVoid, true
	case s == sandbox.RollingBack && running && why == nil:
		return sandbox.OnRolledBack, true
	case s == sandbox.RollingBack && running:
		return sandbox.OnRollbackVoid, true
	case s == sandbox.RollingBack && paused:
		return sandbox.OnRollbackKept, true
	}
	return "", false
}

// arrive moves a sandbox to a state in which it stands still, and notes what its
// host shows of it there.
func (m *Master) arrive(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, on sandbox.Event, shown *hostpb.Sandbox, why error) (sandbox.Sandbox, error) {
	wish := s.Life.Wish
	l := &s.Life
	l.Wish, s.Reason = sandbox.Wish{}, ""
	l.Generation = max(l.Generation, sandbox.Generation(shown.GetGeneration()))
	if shown.GetDriver() != "" {
		l.Driver = shown.GetDriver()
	}
	if why != nil {
		s.Reason = string(on) + ": " + why.Error()
	}
	if on == sandbox.OnPaused || on == sandbox.OnWakeVoid || on == sandbox.OnRollbackKept {
		// What is kept waits for as long as nobody wants it.
		s.IP, s.ExpiresAt, l.KeptBytes, l.WithMemory = "", time.Time{}, shown.GetKeptBytes(), shown.GetWithMemory()
	} else {
		s.IP, l.KeptBytes, l.WithMemory = shown.GetIp(), 0, false
		s.ExpiresAt = expiry(tx.Now, l.Timeout)
	}
	switch {
	case on == sandbox.OnRolledBack, on == sandbox.OnRollbackKept:
		l.Snapshot = wish.Snapshot
	case on == sandbox.OnPauseVoid && wish.Timeout:
		// It is due still, and tried again, ever later.
		l.Wish.Tries = wish.Tries + 1
		s.ExpiresAt = tx.Now.Add(min(m.pace.pauseFirst<<min(wish.Tries, 10), m.pace.pauseLast))
	}
	s, err := sandboxdb.MoveSandbox(ctx, tx, s, on)
	if err != nil {
		return s, err
	}
	if on == sandbox.OnPauseVoid && wish.Timeout && wish.Tries == 0 && !errors.Is(why, fault.Unsupported) {
		m.log.WarnContext(ctx, "sandbox whose time is up could not be paused; it is tried again", slog.String("sandbox_id", string(s.ID)), slog.String("host_id", string(s.HostID)), slog.String("error", s.Reason))
	}
	return s, m.routeChanged(ctx, tx, s.ID)
}

// expiry is when the time of a sandbox that is used now is up.
func expiry(now time.Time, timeout time.Duration) time.Time {
	if timeout <= 0 {
		return time.Time{}
	}
	return now.Add(timeout)
}

// fleetSettled corrects what the scheduler knows of a host by what became of one
// of its sandboxes.
func (m *Master) fleetSettled(s sandbox.Sandbox, t *hostpb.HostTruth) {
	if s.State == sandbox.Running {
		m.fleet.took(s.ID, s.HostID, s.ChangedAt, t)
		return
	}
	m.fleet.ledger.Release(s.ID)
	m.fleet.learned(s.HostID, t)
}

// atRest waits until no host is at work on a sandbox and returns its row.
func (m *Master) atRest(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	for pause := firstDelay; ; pause = min(2*pause, longestRest) {
		s, err := m.sandbox(ctx, id)
		if err != nil || !isPassing(s.State) {
			return s, err
		}
		if wait(ctx, pause) != nil {
			return s, fault.Wrap(fault.SandboxNotReady, ctx.Err(), "sandbox %s is %s, and its host %s has not ended that", id, s.State, s.HostID)
		}
	}
}

// unfit is why nothing can be done with a sandbox in a state that is none of
// those in which it could.
func unfit(s sandbox.Sandbox) error {
	if s.State == sandbox.Terminating || s.State == sandbox.Terminated {
		return fault.New(fault.SandboxGone, "sandbox %s ended: %s", s.ID, s.Reason)
	}
	return fault.New(fault.SandboxNotReady, "sandbox %s is %s %s", s.ID, s.State, s.Reason)
}

// sweepLives sees to it that no sandbox stays in a passing state of which no
// message tells any more.
func (m *Master) sweepLives(ctx context.Context) error {
	var list []sandbox.Sandbox
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{States: passing, ChangedBefore: tx.Now.Add(-m.pace.lifeQuiet), Limit: sweepLimit, OldestFirst: true})
		return err
	})
	if err != nil || len(list) == 0 {
		return err
	}
	err = m.update(ctx, func(tx *store.Tx) error {
		for _, s := range list {
			waits, err := tx.Waits(ctx, topicLife, string(s.ID))
			if err == nil && !waits {
				err = enqueueLife(ctx, tx, s, 0)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	m.deliverSoon(topicLife)
	return err
}

// hostOf returns the client of a sandbox's host.
func (m *Master) hostOf(ctx context.Context, id host.ID) (hostpb.HostServiceClient, error) {
	f, err := m.host(ctx, id)
	if err != nil {
		return nil, err
	}
	return m.hosts.to(f)
}
