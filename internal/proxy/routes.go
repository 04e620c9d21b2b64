package proxy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// Source is where routes come from: the master.
type Source interface {
	Route(ctx context.Context, id string) (cubeapi.Route, error)
	RouteEvents(ctx context.Context, feed string, after int64, patience time.Duration) (cubeapi.RouteEvents, error)
	Wake(ctx context.Context, id string) (cubeapi.Route, error)
	Activity(ctx context.Context, r cubeapi.ActivityRequest) error
}

const (
	routeTime  = 5 * time.Second // of one question
	routeFresh = time.Minute     // how long a route counts while changes are heard of
	routeBlind = 2 * time.Second // and while they are not
	routeNone  = time.Second     // how long it counts that there is no such sandbox
	routesMost = 50_000
	listenFor  = 20 * time.Second
	listenRest = time.Second // after a master that did not answer
)

// known is what was answered of a route, and when.
type known struct {
	route cubeapi.Route
	err   error
	at    time.Time
}

// routes remembers where sandboxes are. What a change is heard of is asked for
// again; a route that was used is not younger for that.
type routes struct {
	source  Source
	log     *slog.Logger
	changed func(id string, all bool) // is told of what may have changed
	asking  singleflight.Group

	mu    sync.Mutex
	known map[string]known
	hears bool             // changes are heard of
	count map[string]int64 // of changes of what is being asked for
	epoch int64            // counts what may have changed all
}

func newRoutes(s Source, log *slog.Logger) *routes {
	return &routes{source: s, log: log, changed: func(string, bool) {}, known: map[string]known{}, count: map[string]int64{}}
}

// of returns where a sandbox is, from memory or from the source. No answer of
// the source while an older one is remembered is that one, unless it changed.
func (r *routes) of(ctx context.Context, id string) (cubeapi.Route, error) {
	r.mu.Lock()
	k, ok := r.known[id]
	limit := routeBlind
	if r.hears {
		limit = routeFresh
	}
	if k.err != nil {
		limit = routeNone
	}
	r.mu.Unlock()
	if ok && time.Since(k.at) < limit {
		return k.route, k.err
	}
	return r.ask(ctx, id)
}

// ask asks the source, once for all who ask at the same time.
func (r *routes) ask(ctx context.Context, id string) (cubeapi.Route, error) {
	answers := r.asking.DoChan(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), routeTime)
		defer cancel()
		r.mu.Lock()
		before, epoch := r.count[id], r.epoch
		r.mu.Unlock()
		route, err := r.source.Route(ctx, id)
		r.put(id, route, err, before, epoch)
		return route, err
	})
	select {
	case a := <-answers:
		route, _ := a.Val.(cubeapi.Route)
		return route, a.Err
	case <-ctx.Done():
		return cubeapi.Route{}, ctx.Err()
	}
}

// put remembers an answer, unless something changed while it was on its way.
func (r *routes) put(id string, route cubeapi.Route, err error, before, epoch int64) {
	if err != nil && !errors.Is(err, fault.SandboxNotFound) {
		return // it proves nothing
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count[id] != before || r.epoch != epoch {
		return
	}
	if len(r.known) >= routesMost {
		clear(r.known)
	}
	r.known[id] = known{route, err, time.Now()}
}

func (r *routes) forget(ids []string, all bool) {
	r.mu.Lock()
	if all {
		clear(r.known)
		clear(r.count)
		r.epoch++
	}
	for _, id := range ids {
		delete(r.known, id)
		if len(r.count) < routesMost {
			r.count[id]++
		} else { // too many to tell apart
			clear(r.count)
			r.epoch++
		}
	}
	r.mu.Unlock()
	if all {
		r.changed("", true)
		return
	}
	for _, id := range ids {
		r.changed(id, false)
	}
}

// listen hears of changes until ctx ends.
func (r *routes) listen(ctx context.Context) {
	feed, after, quiet := "", int64(0), false
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, listenFor+routeTime)
		a, err := r.source.RouteEvents(bounded, feed, after, listenFor)
		cancel()
		r.mu.Lock()
		r.hears = err == nil
		r.mu.Unlock()
		if err != nil {
			if !quiet && ctx.Err() == nil {
				r.log.WarnContext(ctx, "the master tells no changes of routes; they are asked for more often", slog.String("error", err.Error()))
			}
			quiet, feed = true, "" // what came meanwhile is not known
			select {
			case <-ctx.Done():
			case <-time.After(listenRest):
			}
			continue
		}
		quiet, feed, after = false, a.Feed, a.Next
		r.forget(a.SandboxIDs, a.Reset)
	}
}
