package proxy

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

const (
	useTell = 5 * time.Second // between two reports of what was used
	useTime = 5 * time.Second // of one report
)

// stream is one request on its way.
type stream struct {
	id         string
	generation int64
	cut        context.CancelCauseFunc
}

// streams are the requests on their way, and what was used of late.
type streams struct {
	most, mostEach int

	mu    sync.Mutex
	total int
	open  map[string]map[*stream]struct{}
	used  map[string]time.Time // since the last report
}

func newStreams(most, each int) *streams {
	return &streams{most: most, mostEach: each, open: map[string]map[*stream]struct{}{}, used: map[string]time.Time{}}
}

// add counts a request to a life of a sandbox; ok is false when there are too
// many.
func (s *streams) add(id string, generation int64, cut context.CancelCauseFunc) (one *stream, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= s.most || len(s.open[id]) >= s.mostEach {
		return nil, false
	}
	one = &stream{id, generation, cut}
	if s.open[id] == nil {
		s.open[id] = map[*stream]struct{}{}
	}
	s.open[id][one] = struct{}{}
	s.total++
	s.used[id] = time.Now()
	return one, true
}

func (s *streams) remove(one *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open[one.id], one)
	if len(s.open[one.id]) == 0 {
		delete(s.open, one.id)
	}
	s.total--
	s.used[one.id] = time.Now()
}

// busy are the sandboxes with open requests.
func (s *streams) busy() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.open {
		ids = append(ids, id)
	}
	return ids
}

// has reports whether a sandbox has open requests.
func (s *streams) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open[id]) > 0
}

// cut ends the requests to a sandbox but those to one life of it.
func (s *streams) cut(id string, but int64, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.open[id] {
		if one.generation != but {
			one.cut(why)
		}
	}
}

// take takes what was used since the last time: an open request is a use.
func (s *streams) take(now time.Time) (seen []cubeapi.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.open {
		s.used[id] = now
	}
	for id, at := range s.used {
		seen = append(seen, cubeapi.Seen{SandboxID: id, AgoUS: now.Sub(at).Microseconds()})
		delete(s.used, id)
		if len(seen) == cubeapi.MaxSeen {
			break
		}
	}
	return seen
}

// giveBack is for what could not be told.
func (s *streams) giveBack(seen []cubeapi.Seen, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range seen {
		if at := now.Add(-time.Duration(one.AgoUS) * time.Microsecond); at.After(s.used[one.SandboxID]) {
			s.used[one.SandboxID] = at
		}
	}
}

// tell reports what is used until ctx ends, and once more then.
func (s *streams) tell(ctx context.Context, source Source, log *slog.Logger) {
	tick := time.NewTicker(useTell)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			over = true
		case <-tick.C:
		}
		now := time.Now()
		seen := s.take(now)
		if len(seen) == 0 {
			continue
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), useTime)
		err := source.Activity(bounded, cubeapi.ActivityRequest{Seen: seen})
		cancel()
		if err != nil {
			s.giveBack(seen, now)
			log.WarnContext(ctx, "the master was not told which sandboxes are used; it is told again", slog.String("error", err.Error()))
		}
	}
}
