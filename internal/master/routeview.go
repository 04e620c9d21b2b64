package master

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

// serveRoute tells a proxy where a sandbox is.
func (m *Master) serveRoute(w http.ResponseWriter, r *http.Request) {
	given := r.URL.Query().Get("sandbox_id")
	err := checkID(given)
	var route cubeapi.Route
	if err == nil {
		route, err = m.viewRoute(r.Context(), sandbox.ID(given))
	}
	m.answerRoute(w, r, route, err)
}

func (m *Master) answerRoute(w http.ResponseWriter, r *http.Request, route cubeapi.Route, err error) {
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.RouteAnswer{Envelope: cubeapi.OK(requestID(r)), Route: &route})
}

func (m *Master) viewRoute(ctx context.Context, id sandbox.ID) (route cubeapi.Route, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) error {
		s, err := sandboxdb.GetSandbox(ctx, tx, id)
		if err != nil {
			return err
		}
		n, err := networkOf(s)
		if err != nil {
			return err
		}
		route = cubeapi.Route{
			SandboxID: string(s.ID), Status: cubeapi.SandboxStatus.Word(s.State), Reason: s.Reason, Generation: int64(s.Life.Generation), HostID: string(s.HostID), SandboxIP: s.IP,
			AutoResume: s.Life.AutoResume,
		}
		for _, p := range n.Ports {
			if p != guestPort {
				route.Ports = append(route.Ports, p)
			}
		}
		f, err := sandboxdb.GetHost(ctx, tx, s.HostID)
		if errors.Is(err, fault.HostUnknown) {
			return nil
		}
		route.HostIP = f.IP
		return err
	})
	return route, err
}

// serveWake wakes a sandbox because somebody wants to reach it.
func (m *Master) serveWake(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.WakeRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = checkID(req.SandboxID)
	}
	if err == nil {
		_, _, err = m.wake(r.Context(), sandbox.ID(req.SandboxID), nil, true)
	}
	var route cubeapi.Route
	if err == nil {
		route, err = m.viewRoute(r.Context(), sandbox.ID(req.SandboxID))
	}
	m.answerRoute(w, r, route, err)
}

const (
	feedKept  = 4096                   // events of which a proxy may have missed
	feedLook  = 100 * time.Millisecond // between two looks at the rows while somebody listens
	feedLap   = 5 * time.Second        // how long after its date a change may be committed
	feedWait  = 30 * time.Second       // at most for one answer
	feedAtAll = 1000                   // rows of one look; with more of them everything may have changed
)

// changeFeed numbers the changes of sandboxes' rows, of all masters, as one process
// sees them. Rows are dated before they are committed: a look goes back, and
// knows what it has seen by its version.
type changeFeed struct {
	id string

	look sync.Mutex // held while the rows are looked at
	at   time.Time  // the last time
	from time.Time  // the database's time of the last look
	seen map[sandbox.ID]sandboxdb.Change

	mu     sync.Mutex
	next   int64
	events []sandbox.ID // the last is next-1
	reset  int64        // what is before this is not known
}

func newFeed() *changeFeed {
	return &changeFeed{id: id.New("feed-"), seen: map[sandbox.ID]sandboxdb.Change{}}
}

// behind returns the changes behind a number; whole is false when there may be
// others.
func (f *changeFeed) behind(after int64) (list []sandbox.ID, next int64, whole bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.next - int64(len(f.events))
	if after < max(first, f.reset) || after > f.next {
		return nil, f.next, false
	}
	return append(list, f.events[after-first:]...), f.next, true
}

func (f *changeFeed) add(list []sandbox.ID, all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, list...)
	f.next += int64(len(list))
	if all {
		f.next++
		f.reset, f.events = f.next, nil
	}
	if more := len(f.events) - feedKept; more > 0 {
		f.events = append([]sandbox.ID(nil), f.events[more:]...)
	}
}

// watch looks at the rows, unless somebody has just done so.
func (m *Master) watch(ctx context.Context) error {
	f := m.feed
	f.look.Lock()
	defer f.look.Unlock()
	if time.Since(f.at) < feedLook {
		return nil
	}
	var list []sandboxdb.Change
	var now time.Time
	idle := f.from.IsZero() || time.Since(f.at) > feedLap
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		now = tx.Now
		from := f.from
		if idle {
			from = now
		}
		list, err = sandboxdb.ChangedSince(ctx, tx, from.Add(-feedLap), feedAtAll)
		return err
	})
	if err != nil {
		return err
	}
	var fresh []sandbox.ID
	for _, c := range list {
		if f.seen[c.ID].Version < c.Version {
			f.seen[c.ID] = c
			fresh = append(fresh, c.ID)
		}
	}
	for id, c := range f.seen {
		if c.At.Before(now.Add(-2 * feedLap)) {
			delete(f.seen, id)
		}
	}
	f.add(fresh, idle || len(list) == feedAtAll)
	f.at, f.from = time.Now(), now
	return nil
}

// serveRouteEvents tells a proxy what changed behind what it knows, as soon as
// something has.
func (m *Master) serveRouteEvents(w http.ResponseWriter, r *http.Request) {
	answer, err := m.routeEvents(r)
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) routeEvents(r *http.Request) (a cubeapi.RouteEvents, err error) {
	q := r.URL.Query()
	after, err := strconv.ParseInt(q.Get("after"), 10, 64)
	if q.Get("after") == "" {
		after, err = 0, nil
	}
	if err != nil || after < 0 {
		return a, fault.New(fault.InvalidInput, "after %.20q: must be a number that this feed gave", q.Get("after"))
	}
	patience := 0
	if given := q.Get("wait"); given != "" {
		if patience, err = strconv.Atoi(given); err != nil || patience < 0 {
			return a, fault.New(fault.InvalidInput, "wait %.20q: must be seconds", given)
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(feedWait, time.Duration(patience)*time.Second+time.Millisecond))
	defer cancel()
	a = cubeapi.RouteEvents{Envelope: cubeapi.OK(requestID(r)), Feed: m.feed.id, SandboxIDs: []string{}}
	for {
		if err := m.watch(context.WithoutCancel(r.Context())); err != nil {
			return a, err
		}
		list, next, whole := m.feed.behind(after)
		a.Next = next
		if a.Reset = !whole || q.Get("feed") != m.feed.id; a.Reset {
			return a, nil
		}
		for _, id := range list {
			a.SandboxIDs = append(a.SandboxIDs, string(id))
		}
		if len(list) > 0 || wait(ctx, feedLook) != nil {
			return a, nil
		}
	}
}
