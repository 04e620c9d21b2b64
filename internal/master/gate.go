package master

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// turnstile lets so many creates through at a time and says who is next: tenants of
// an instance type get shares by weight, and instance types take turns.
// Whoever leaves wakes those who may go on; nobody looks by the clock.
type turnstile struct {
	mu      sync.Mutex
	queue   *scheduler.Queue
	turns   map[string]*turn // who waits, by ticket
	waiting map[string]int   // how many, by instance type
	kinds   []string         // that somebody waits for; the first has the next turn
	under   int              // creates under way
	tickets uint64

	metrics gateMetrics
}

// turn is one who waits.
type turn struct {
	n    int
	kind string
	said chan error // nil: it is let through
}

type gateMetrics struct {
	waiting, under prometheus.GaugeFunc
	shed           *prometheus.CounterVec
	wait           prometheus.Histogram
}

// Why a create that waited is not made, beside the words of the queue.
const (
	shedTimeUp = "time_up" // its time was up
	shedGone   = "gone"    // its caller went away
)

func newGate(c scheduler.QueueConfig) (*turnstile, error) {
	q, err := scheduler.NewQueue(c)
	if err != nil {
		return nil, err
	}
	g := &turnstile{queue: q, turns: map[string]*turn{}, waiting: map[string]int{}}
	count := func(of func() int) func() float64 {
		return func() float64 {
			g.mu.Lock()
			defer g.mu.Unlock()
			return float64(of())
		}
	}
	g.metrics = gateMetrics{
		waiting: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "paddock_create_queue_waiting", Help: "Creates that wait for their turn in this master."}, count(func() int { return g.queue.Len() })),
		under:   prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "paddock_create_queue_in_flight", Help: "Creates that this master has under way."}, count(func() int { return g.under })),
		shed:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_create_queue_shed_total", Help: "Creates that were not begun, by reason."}, []string{"reason"}),
		wait:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "paddock_create_queue_wait_seconds", Help: "How long creates waited that were let through.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}),
	}
	return g, nil
}

func (m gateMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.waiting, m.under, m.shed, m.wait}
}

// enter waits until it is the turn of a create of a tenant and instance type.
// leave lets the next one through. It is refused with a *scheduler.BusyError,
// which is a fault.QueueFull, if too many wait or its time would not do.
func (m *Master) enter(ctx context.Context, tenant, kind string) (leave func(), err error) {
	return m.enterN(ctx, tenant, kind, 1)
}

// enterN is enter for n creates at once. They are let through together, also
// where fewer are free, and pay as n, but take no more places than hosts are
// called at once: else one large batch keeps all others out until its end.
func (m *Master) enterN(ctx context.Context, tenant, kind string, n int) (leave func(), err error) {
	return m.gate.enter(ctx, tenant, m.lineOf(kind), n)
}

// lineOf is where an instance type waits. Types take turns, so one that no host
// has must not be a line of its own: else who makes up many has most turns.
func (m *Master) lineOf(kind string) string {
	if m.fleet.serves(kind) {
		return kind
	}
	return ""
}

func (g *turnstile) enter(ctx context.Context, tenant, kind string, n int) (leave func(), err error) {
	began := time.Now()
	places := min(max(1, n), batchCalls)
	id, t, err := g.ask(ctx, tenant, kind, max(1, n), places, began)
	if err != nil {
		return nil, err
	}
	if t != nil {
		select {
		case err = <-t.said:
		case <-ctx.Done():
			if err = g.giveUp(ctx, id, t, tenant, began); err == nil {
				err = <-t.said // it was called in the same moment
			}
		}
		if err != nil {
			return nil, err
		}
	}
	g.metrics.wait.Observe(time.Since(began).Seconds())
	return sync.OnceFunc(func() { g.leave(places) }), nil
}

// ask lets a create through at once, without a turn, or makes it wait.
func (g *turnstile) ask(ctx context.Context, tenant, kind string, n, places int, now time.Time) (id string, t *turn, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queue.Len() == 0 && g.under < g.queue.InFlight() && ctx.Err() == nil {
		g.under += places
		return "", nil, nil
	}
	g.tickets++
	ticket := scheduler.Ticket{ID: strconv.FormatUint(g.tickets, 10), Tenant: tenant, InstanceType: kind, Cost: float64(n)}
	ticket.Deadline, _ = ctx.Deadline()
	if err := g.queue.Push(ticket, now); err != nil {
		var busy *scheduler.BusyError
		if errors.As(err, &busy) {
			g.metrics.shed.WithLabelValues(busy.Reason).Inc()
		}
		return "", nil, err
	}
	t = &turn{n: places, kind: kind, said: make(chan error, 1)}
	g.turns[ticket.ID] = t
	if g.waiting[kind]++; g.waiting[kind] == 1 {
		g.kinds = append(g.kinds, kind)
	}
	return ticket.ID, t, nil
}

// giveUp takes one out whose context has ended, and words it; nil: it is no
// longer in.
func (g *turnstile) giveUp(ctx context.Context, id string, t *turn, tenant string, began time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.queue.Cancel(id) {
		return nil
	}
	g.gone(id, t)
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		g.metrics.shed.WithLabelValues(shedGone).Inc()
		return fault.Wrap(fault.CallCancelled, ctx.Err(), "create that waited for its turn")
	}
	g.metrics.shed.WithLabelValues(shedTimeUp).Inc()
	return scheduler.Busy(g.queue.Wait(tenant, t.kind), shedTimeUp, "its time was up after %s of waiting for its turn, with %d creates under way", time.Since(began).Round(time.Millisecond), g.under)
}

// gone forgets one who waited.
func (g *turnstile) gone(id string, t *turn) {
	delete(g.turns, id)
	if g.waiting[t.kind]--; g.waiting[t.kind] == 0 {
		delete(g.waiting, t.kind)
		g.kinds = slices.DeleteFunc(g.kinds, func(k string) bool { return k == t.kind })
	}
}

func (g *turnstile) leave(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.under -= n
	g.next(time.Now())
}

// next calls those whose turn it is.
func (g *turnstile) next(now time.Time) {
	for len(g.kinds) > 0 && g.under < g.queue.InFlight() {
		kind := g.kinds[0]
		g.kinds = append(g.kinds[1:], kind)
		ticket, ok, late := g.queue.Pop(kind, now)
		for _, l := range late {
			g.metrics.shed.WithLabelValues(scheduler.ShedLate).Inc()
			g.call(l.ID, scheduler.Busy(g.queue.Wait(l.Tenant, kind), scheduler.ShedLate, "its turn came with too little of its time left"))
		}
		if ok {
			g.under += g.turns[ticket.ID].n
			g.call(ticket.ID, nil)
		}
	}
}

func (g *turnstile) call(id string, said error) {
	t := g.turns[id]
	g.gone(id, t)
	t.said <- said
}

// adopt makes the gate go by other bounds from now on. Who waits stays.
func (g *turnstile) adopt(c scheduler.QueueConfig) error {
	q, err := scheduler.NewQueue(c)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue.Adopt(q)
	g.next(time.Now())
	return nil
}
