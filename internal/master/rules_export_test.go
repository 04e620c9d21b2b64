package master

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// Gate is a turnstile.
type Gate struct{ *turnstile }

// NewGate is newGate.
func NewGate(c scheduler.QueueConfig) (Gate, error) {
	g, err := newGate(c)
	return Gate{g}, err
}

// Enter is enter for n creates.
func (g Gate) Enter(ctx context.Context, tenant, kind string, n int) (func(), error) {
	return g.enter(ctx, tenant, kind, n)
}

// Adopt is adopt.
func (g Gate) Adopt(c scheduler.QueueConfig) error { return g.adopt(c) }

// Counts returns how many wait and how many are under way.
func (g Gate) Counts() (waiting, under int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.turns); n != g.queue.Len() {
		panic("the gate and its queue disagree about who waits")
	}
	return g.queue.Len(), g.under
}

// Metrics are what the gate counts.
func (g Gate) Metrics() []prometheus.Collector { return g.metrics.all() }

// Gate is the gate of m.
func (m *Master) Gate() Gate { return Gate{m.gate} }

// LookAtRules is what the loop does.
func (m *Master) LookAtRules() { m.lookAtRules(false) }

// Out reports whether the shared breaker of the rules keeps a host away.
func (m *Master) Out(id host.ID) bool {
	return m.rules.Load().breakers.State(id, time.Now()) == scheduler.BreakerOpen
}

// Fail tells the shared breaker of failed calls of a host, and the budget of as
// many retries; it returns how many of these it granted.
func (m *Master) Fail(id host.ID, n int) (granted int) {
	r := m.rules.Load()
	for range n {
		r.breakers.Report(id, "i1", scheduler.TransportFailed, time.Now())
		var used scheduler.Retries
		r.budget.mu.Lock()
		if r.retry.After(&used, 130596, true, 0, time.Hour, r.budget.RetryBudget).Again {
			granted++
		}
		r.budget.mu.Unlock()
	}
	return granted
}

// Choose asks for scores and chooses by the rules that hold.
func (m *Master) Choose(ctx context.Context, v *scheduler.View, l *scheduler.Ledger, q *scheduler.Request, now time.Time) (scheduler.Decision, error) {
	r := m.rules.Load()
	if err := r.score(ctx, q, r.question(v, l, q, now)); err != nil {
		return scheduler.Decision{}, err
	}
	return r.placer.Choose(v, l, *q, now)
}
