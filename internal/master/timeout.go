package master

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	maxRefresh = 3600 // in seconds
	// longestAgo is how long ago a use may have been that is told of.
	longestAgo = int64(24 * time.Hour / time.Microsecond)
	// maxActivity is more than a report of MaxSeen sandboxes has.
	maxActivity = 2 << 20
	// seenAtOnce is how many uses are noted in one transaction.
	seenAtOnce = 500
)

func (m *Master) serveTimeout(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TimeoutRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	var id sandbox.ID
	if err == nil {
		id, err = namedEither(req.SandboxID, req.SandboxID2)
	}
	switch {
	case err != nil:
	case req.Timeout < forever || req.Timeout > maxTimeout:
		err = fault.New(fault.InvalidInput, "timeout %d: 0 to %d seconds, or %d for none", req.Timeout, int64(maxTimeout), forever)
	default:
		err = checkOnTimeout(req.OnTimeout)
	}
	var s sandbox.Sandbox
	if err == nil {
		s, err = m.setTimeout(r.Context(), id, req)
	}
	m.answerSandbox(w, r, req.RequestID, s, err, warnings(unknown)...)
}

// namedEither is the id under one of two names.
func namedEither(id, older string) (sandbox.ID, error) {
	id, err := oneOf("sandbox_id", id, "sandboxID", older)
	if err == nil {
		err = checkID(id)
	}
	return sandbox.ID(id), err
}

func checkOnTimeout(word string) error {
	if word != "" && word != cubeapi.OnTimeoutKill && word != cubeapi.OnTimeoutPause {
		return fault.New(fault.InvalidInput, "on_timeout %.64q: %s or %s", word, cubeapi.OnTimeoutKill, cubeapi.OnTimeoutPause)
	}
	return nil
}

// changeTime changes the time of a sandbox that lives.
func (m *Master) changeTime(ctx context.Context, id sandbox.ID, change func(tx *store.Tx, s *sandbox.Sandbox) error) (s sandbox.Sandbox, err error) {
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		if s, err = sandboxdb.GetSandbox(ctx, tx, id); err != nil {
			return err
		}
		if s.State == sandbox.Terminating || s.State == sandbox.Terminated {
			return unfit(s)
		}
		if err := change(tx, &s); err != nil {
			return err
		}
		s, err = sandboxdb.SetTimeout(ctx, tx, s)
		return err
	})
	return s, err
}

// timed reports whether the time of a sandbox goes on in its state: what is
// kept, or about to be, waits for ever.
func timed(s sandbox.Sandbox) bool {
	return s.State == sandbox.Running || s.State == sandbox.Starting || s.State == sandbox.Allocating
}

func (m *Master) setTimeout(ctx context.Context, id sandbox.ID, req cubeapi.TimeoutRequest) (sandbox.Sandbox, error) {
	s, err := m.changeTime(ctx, id, func(tx *store.Tx, s *sandbox.Sandbox) error {
		if req.Timeout != 0 { // else its time is up now; what it has when it is woken stays
			s.Life.Timeout = within(req.Timeout)
		}
		if timed(*s) {
			if s.ExpiresAt = expiry(tx.Now, s.Life.Timeout); req.Timeout == 0 {
				s.ExpiresAt = tx.Now
			}
		}
		if req.OnTimeout != "" {
			s.Life.OnTimeout = sandbox.OnTimeout(req.OnTimeout)
		}
		if req.AutoResume != nil {
			s.Life.AutoResume = *req.AutoResume
		}
		return audit(ctx, tx, actSandboxTimeout, string(id), "timeout", strconv.FormatInt(req.Timeout, 10), "on_timeout", req.OnTimeout)
	})
	if err == nil && req.Timeout == 0 {
		m.sweepNow()
	}
	return s, err
}

// extend gives a sandbox that runs another timeout, which does not bring its end
// nearer.
func (m *Master) extend(ctx context.Context, id sandbox.ID, seconds int64) (sandbox.Sandbox, error) {
	return m.changeTime(ctx, id, func(tx *store.Tx, s *sandbox.Sandbox) error {
		end := s.ExpiresAt
		s.Life.Timeout = within(seconds)
		if timed(*s) {
			if s.ExpiresAt = expiry(tx.Now, s.Life.Timeout); end.IsZero() || !s.ExpiresAt.IsZero() && end.After(s.ExpiresAt) {
				s.ExpiresAt = end
			}
		}
		return nil
	})
}

func (m *Master) serveRefresh(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.RefreshRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	var id sandbox.ID
	if err == nil {
		id, err = namedEither(req.SandboxID, req.SandboxID2)
	}
	if err == nil && (req.Duration < forever || req.Duration > maxRefresh) {
		err = fault.New(fault.InvalidInput, "duration %d: 0 to %d seconds, or %d for ever", req.Duration, maxRefresh, forever)
	}
	var s sandbox.Sandbox
	if err == nil {
		s, err = m.refresh(r.Context(), id, req.Duration)
	}
	m.answerSandbox(w, r, req.RequestID, s, err, warnings(unknown)...)
}

// refresh counts as a use: the end of a sandbox is not before the given time
// from now, 0 for its timeout.
func (m *Master) refresh(ctx context.Context, id sandbox.ID, seconds int64) (sandbox.Sandbox, error) {
	return m.changeTime(ctx, id, func(tx *store.Tx, s *sandbox.Sandbox) error {
		switch {
		case !timed(*s) || s.ExpiresAt.IsZero():
		case seconds == forever:
			s.ExpiresAt = time.Time{}
		default:
			end := expiry(tx.Now, s.Life.Timeout)
			if seconds > 0 {
				end = tx.Now.Add(time.Duration(seconds) * time.Second)
			}
			if end.After(s.ExpiresAt) {
				s.ExpiresAt = end
			}
		}
		return nil
	})
}

// serveActivity takes from the proxies which sandboxes were used, and when.
func (m *Master) serveActivity(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.ActivityRequest
	err := serve.ReadJSON(r, maxActivity, &req)
	if err == nil && len(req.Seen) > cubeapi.MaxSeen {
		err = fault.New(fault.InvalidInput, "%d sandboxes, at most %d", len(req.Seen), cubeapi.MaxSeen)
	}
	for _, s := range req.Seen {
		if err == nil {
			err = checkID(s.SandboxID)
		}
		if err == nil && s.AgoUS < 0 {
			err = fault.New(fault.InvalidInput, "at_us_ago %d of sandbox %s: it counts back from now", s.AgoUS, s.SandboxID)
		}
	}
	for part := range slices.Chunk(req.Seen, seenAtOnce) {
		if err != nil {
			break
		}
		err = m.db.Update(r.Context(), func(tx *store.Tx) error {
			for _, s := range part {
				used := tx.Now.Add(-time.Duration(min(s.AgoUS, longestAgo)) * time.Microsecond)
				if err := sandboxdb.PutOff(r.Context(), tx, sandbox.ID(s.SandboxID), used); err != nil {
					return err
				}
			}
			return nil
		})
	}
	m.answer(w, r, "", err)
}

// sweepExpired ends or pauses sandboxes whose time is up.
func (m *Master) sweepExpired(ctx context.Context) error {
	var list []sandbox.Sandbox
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{
			States:    []sandbox.State{sandbox.Allocating, sandbox.Starting, sandbox.Running},
			ExpiredBy: tx.Now, Limit: sweepLimit, OldestFirst: true,
		})
		return err
	})
	errs := []error{err}
	for _, s := range list {
		errs = append(errs, m.expire(ctx, s.ID))
	}
	if len(list) > 0 {
		for _, topic := range []string{topicSandboxDelete, topicLife, topicRoute} {
			m.deliverSoon(topic)
		}
	}
	return errors.Join(errs...)
}

// expire does to one sandbox what is to follow from its time being up, unless
// somebody used it meanwhile. The wish and its message are one commit: neither is
// lost, and a host that is away is told when it is back.
func (m *Master) expire(ctx context.Context, id sandbox.ID) error {
	return m.update(ctx, func(tx *store.Tx) error {
		s, err := sandboxdb.GetSandbox(ctx, tx, id)
		if err != nil || !timed(s) {
			return err
		}
		over, err := sandboxdb.TakeExpired(ctx, tx, id, s.State)
		if err != nil || !over {
			return err
		}
		if s.Life.OnTimeout != sandbox.Pause || s.State != sandbox.Running {
			_, err = m.endIn(ctx, tx, id, reasonTimeout, 0)
			return err
		}
		s.ExpiresAt, s.Life.WithMemory = time.Time{}, true
		s.Life.Wish = sandbox.Wish{Timeout: true, Tries: s.Life.Wish.Tries}
		_, err = m.intend(ctx, tx, s, sandbox.OnPauseAsked, 0)
		return err
	})
}
