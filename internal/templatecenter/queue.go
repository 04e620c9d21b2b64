package templatecenter

import (
	"context"
	"sync"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/template"
)

// queue runs builds in the order in which they came, a few at a time. None is
// refused for want of a builder: it waits, and its row shows that it is alive
// (see Center.beat). It lives in memory: the rows of jobs that a crash loses
// are ended by the sweep.
type queue struct {
	build   func(ctx context.Context, r cubeapi.TCBuildRequest)
	limit   int
	metrics *metrics
	ctx     context.Context // of all builds
	cancel  context.CancelFunc

	mu      sync.Mutex
	waiting []cubeapi.TCBuildRequest
	inHand  map[string]bool // by job: those that wait and those that run
	running int
	ended   bool
	builds  sync.WaitGroup
}

func newQueue(limit int, m *metrics, build func(ctx context.Context, r cubeapi.TCBuildRequest)) *queue {
	q := &queue{build: build, limit: max(1, limit), metrics: m, inHand: map[string]bool{}}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// add takes a job in. One that is in hand is fault.BuildInProgress; after stop,
// everything is fault.PeerUnavailable.
func (q *queue) add(r cubeapi.TCBuildRequest) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.ended:
		return fault.New(fault.PeerUnavailable, "template centre: it stops")
	case q.inHand[r.JobID]:
		return fault.New(fault.BuildInProgress, "job %s", r.JobID)
	}
	q.inHand[r.JobID] = true
	q.waiting = append(q.waiting, r)
	q.fill()
	return nil
}

// has reports whether a job waits or runs here.
func (q *queue) has(jobID string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inHand[jobID]
}

// line returns the jobs that wait for their turn.
func (q *queue) line() []template.JobID {
	q.mu.Lock()
	defer q.mu.Unlock()
	ids := make([]template.JobID, 0, len(q.waiting))
	for _, r := range q.waiting {
		ids = append(ids, template.JobID(r.JobID))
	}
	return ids
}

// fill starts builds while there are builders. Once the queue has ended it
// starts all that wait: each finds its context over and tells the master.
func (q *queue) fill() {
	for len(q.waiting) > 0 && (q.running < q.limit || q.ended) {
		next := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.running++
		q.builds.Go(func() {
			defer q.leave(next.JobID)
			q.build(q.ctx, next)
		})
	}
	q.metrics.waiting.Set(float64(len(q.waiting)))
	q.metrics.running.Set(float64(q.running))
}

func (q *queue) leave(jobID string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.inHand, jobID)
	q.running--
	q.fill()
}

// stop cancels every build and waits until each has ended.
func (q *queue) stop() {
	q.cancel()
	q.mu.Lock()
	q.ended = true
	q.fill()
	q.mu.Unlock()
	q.builds.Wait()
}
