package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// QueueConfig bounds what waits for a decision.
type QueueConfig struct {
	PerTenant int                `yaml:"per_tenant"` // waiting, of one tenant and instance type
	Total     int                `yaml:"total"`      // waiting, of all
	Weights   map[string]float64 `yaml:"weights"`    // of tenants; 1 if not named
	// Service is how long a create takes once it is let through: what cannot be
	// done in time is not begun.
	Service time.Duration `yaml:"service"`
	// InFlight is how many creates a master has under way at once: the others
	// wait. 0: as DefaultQueueConfig says.
	InFlight int `yaml:"in_flight"`
}

// DefaultQueueConfig lets a tenant wait with a thousand creates.
func DefaultQueueConfig() QueueConfig {
	return QueueConfig{PerTenant: 1000, Total: 20_000, Service: 50 * time.Millisecond, InFlight: 256}
}

// Ticket is one request that waits.
type Ticket struct {
	ID           string
	Tenant       string
	InstanceType string
	Cost         float64   // in units of an ordinary create; 0: one
	Deadline     time.Time // zero: none
}

// BusyError is a refusal for lack of time or room in a queue.
type BusyError struct {
	RetryAfter time.Duration // when trying again may help, at a guess
	Reason     string        // one of the Shed words
	cause      error
}

// Why a ticket is not served.
const (
	ShedTenant = "tenant_full" // too many of its tenant wait
	ShedTotal  = "total_full"  // too many wait
	ShedLate   = "too_late"    // it would not be done in time
)

// Busy returns a refusal that asks to try again after a while: a second at
// least, a minute at most.
func Busy(after time.Duration, reason, format string, args ...any) *BusyError {
	after = min(time.Minute, max(time.Second, after))
	return &BusyError{after, reason, fault.New(fault.QueueFull, format+"; try again in %s", append(args, after.Round(time.Second))...)}
}

func (e *BusyError) Error() string { return e.cause.Error() }

// After is RetryAfter, for those who know no queue.
func (e *BusyError) After() time.Duration { return e.RetryAfter }

// Unwrap is always a fault.QueueFull.
func (e *BusyError) Unwrap() error { return e.cause }

// Queue says who is next. Tenants of an instance type get shares by weight,
// whatever they send: each request is due when all tenants before it, served a
// little each in turn, would have been served. A Queue is not safe for
// concurrent use.
type Queue struct {
	conf  QueueConfig
	kinds map[string]*line
	where map[string]*flow // by ticket
	n     int
	seq   uint64
}

// line is what waits for one instance type.
type line struct {
	flows map[string]*flow // of tenants who wait, or were served beyond the clock
	n     int              // waiting
	clock float64          // when the last one was due
	rate  float64          // let through a second, lately
	since time.Time        // begin of the second that is counted
	count float64
}

// maxLines is how many instance types are known before those that nobody waits
// for are forgotten.
const maxLines = 1000

// maxFlows is how many tenants of a line are known before those that do not wait
// are forgotten.
const maxFlows = 4096

type flow struct {
	line    *line
	tenant  string
	weight  float64
	tickets []waiting
	last    float64 // when its last ticket is served
}

type waiting struct {
	Ticket
	start float64
	seq   uint64
}

// NewQueue checks c. Every fault is reported with its key and fault.BadConfig.
func NewQueue(c QueueConfig) (*Queue, error) {
	var faults []error
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("scheduler.queue."+format, args...))
	}
	if c.PerTenant < 1 || c.Total < c.PerTenant {
		bad("per_tenant %d, total %d: must be positive, and the total not the smaller", c.PerTenant, c.Total)
	}
	if c.Service < 0 {
		bad("service %s: must not be negative", c.Service)
	}
	if c.InFlight < 0 || c.InFlight > 1e6 {
		bad("in_flight %d: must be within 0 and 1000000", c.InFlight)
	}
	for tenant, w := range c.Weights {
		if !(w > 0 && w <= 1e6) {
			bad("weights.%s %v: must be over 0 and at most 1000000", tenant, w)
		}
	}
	if len(faults) > 0 {
		slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, fault.Wrap(fault.BadConfig, errors.Join(faults...), "scheduler configuration")
	}
	return &Queue{conf: c, kinds: map[string]*line{}, where: map[string]*flow{}}, nil
}

// Adopt makes q go by the configuration of to from now on. Who waits stays, and
// keeps its place beside the others of its tenant.
func (q *Queue) Adopt(to *Queue) {
	q.conf = to.conf
	for _, l := range q.kinds {
		for _, f := range l.flows {
			w := cmp.Or(q.conf.Weights[f.tenant], 1)
			scale, from := f.weight/w, l.clock
			if len(f.tickets) > 0 {
				from = f.tickets[0].start
			}
			for i := range f.tickets {
				f.tickets[i].start = from + scale*(f.tickets[i].start-from)
			}
			f.last, f.weight = from+scale*(f.last-from), w
		}
	}
}

// InFlight is how many may be under way at once.
func (q *Queue) InFlight() int { return cmp.Or(q.conf.InFlight, DefaultQueueConfig().InFlight) }

// Wait estimates how long a ticket of that tenant and instance type would wait;
// 0: nothing is known yet.
func (q *Queue) Wait(tenant, instanceType string) time.Duration {
	l := q.kinds[instanceType]
	if l == nil {
		return 0
	}
	f := l.flows[tenant]
	if f == nil {
		f = &flow{line: l, weight: cmp.Or(q.conf.Weights[tenant], 1), last: l.clock}
	}
	return l.estimate(f, 1)
}

// Len returns how many wait.
func (q *Queue) Len() int { return q.n }

// Push lets t wait, or refuses it with a *BusyError: too many of its tenant
// wait, too many wait at all, or it would not be its turn in time.
func (q *Queue) Push(t Ticket, now time.Time) error {
	if _, ok := q.where[t.ID]; ok || t.ID == "" {
		return fault.New(fault.InvalidInput, "ticket %q waits already, or has no name", t.ID)
	}
	if !(t.Cost > 0 && t.Cost <= 1e6) {
		t.Cost = 1
	}
	l := q.kinds[t.InstanceType]
	if l == nil {
		if len(q.kinds) >= maxLines {
			maps.DeleteFunc(q.kinds, func(_ string, l *line) bool { return l.n == 0 })
		}
		l = &line{flows: map[string]*flow{}}
		q.kinds[t.InstanceType] = l
	}
	f := l.flows[t.Tenant]
	if f == nil {
		if len(l.flows) >= maxFlows { // callers may name themselves as they like
			maps.DeleteFunc(l.flows, func(_ string, f *flow) bool { return len(f.tickets) == 0 })
		}
		f = &flow{line: l, tenant: t.Tenant, weight: cmp.Or(q.conf.Weights[t.Tenant], 1), last: l.clock}
	}
	wait := l.estimate(f, t.Cost)
	switch {
	case len(f.tickets) >= q.conf.PerTenant:
		return Busy(wait, ShedTenant, "%d creates of tenant %q wait already", len(f.tickets), t.Tenant)
	case q.n >= q.conf.Total:
		return Busy(wait, ShedTotal, "%d creates wait already", q.n)
	case !t.Deadline.IsZero() && t.Deadline.Sub(now) < wait+q.conf.Service:
		return Busy(wait+q.conf.Service-t.Deadline.Sub(now), ShedLate, "its turn is in about %s, and its time is up in %s", wait.Round(time.Millisecond), t.Deadline.Sub(now).Round(time.Millisecond))
	}
	if l.n == 0 {
		// An idle time says nothing of how fast it goes, and what was slow once need
		// not be: nobody is turned away for it.
		l.since, l.count, l.rate = now, 0, 0
	}
	start := max(l.clock, f.last)
	f.last = start + t.Cost/f.weight
	f.tickets = append(f.tickets, waiting{t, start, q.seq})
	l.flows[t.Tenant], q.where[t.ID] = f, f
	q.seq++
	q.n++
	l.n++
	return nil
}

// estimate returns how long a new ticket of f would wait.
func (l *line) estimate(f *flow, cost float64) time.Duration {
	if l.rate <= 0 {
		return 0 // nothing is known yet
	}
	// Until its turn, every other tenant is served no more than its weight
	// allows, and no more than it has waiting.
	span := max(0, f.last-l.clock) + cost/f.weight
	var ahead int64 // in millionths: the order of a map must not show
	for _, o := range l.flows {
		if o != f {
			ahead += int64(1e6 * min(float64(len(o.tickets)), span*o.weight))
		}
	}
	seconds := (float64(ahead)/1e6 + float64(len(f.tickets))) / l.rate
	return time.Duration(min(3600, seconds) * float64(time.Second))
}

// Pop returns whose turn it is among those that wait for an instance type, and
// those that were before it and whose time is up, or would be before they are
// done: they are not begun.
func (q *Queue) Pop(instanceType string, now time.Time) (t Ticket, ok bool, late []Ticket) {
	l := q.kinds[instanceType]
	if l == nil {
		return Ticket{}, false, nil
	}
	for {
		var next *flow
		for tenant, f := range l.flows {
			switch {
			case len(f.tickets) > 0:
				if next == nil || f.before(next) {
					next = f
				}
			case f.last <= l.clock:
				delete(l.flows, tenant)
			}
		}
		if next == nil {
			return Ticket{}, false, late
		}
		w := next.tickets[0]
		if !w.Deadline.IsZero() && w.Deadline.Sub(now) < q.conf.Service {
			q.leave(next, 0, true)
			late = append(late, w.Ticket)
			continue
		}
		q.leave(next, 0, false)
		l.clock = max(l.clock, w.start)
		l.served(now)
		return w.Ticket, true, late
	}
}

// served counts one that was let through, while others wait.
func (l *line) served(now time.Time) {
	l.count++
	if span := now.Sub(l.since).Seconds(); span >= 1 {
		one := l.count / span
		if l.rate > 0 {
			one = 0.7*l.rate + 0.3*one
		}
		l.rate, l.since, l.count = one, now, 0
	}
}

func (f *flow) before(o *flow) bool {
	a, b := f.tickets[0], o.tickets[0]
	return a.start < b.start || a.start == b.start && a.seq < b.seq
}

// Cancel takes out a ticket whose caller has gone, and reports whether it was
// still waiting.
func (q *Queue) Cancel(id string) bool {
	f := q.where[id]
	if f == nil {
		return false
	}
	q.leave(f, slices.IndexFunc(f.tickets, func(w waiting) bool { return w.ID == id }), true)
	return true
}

// leave takes ticket i out of f. A ticket that was not served is given back:
// those behind it are due as if it had never been there.
func (q *Queue) leave(f *flow, i int, back bool) {
	gone := f.tickets[i]
	delete(q.where, gone.ID)
	f.tickets = slices.Delete(f.tickets, i, i+1)
	q.n--
	f.line.n--
	if !back {
		return
	}
	share := gone.Cost / f.weight
	for k := i; k < len(f.tickets); k++ {
		f.tickets[k].start -= share
	}
	f.last -= share
}
