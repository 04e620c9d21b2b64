package scheduler_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

func breakers(t *testing.T, change func(*scheduler.BreakerConfig)) *scheduler.Breakers {
	t.Helper()
	c := scheduler.DefaultBreakerConfig()
	change(&c)
	b, err := scheduler.NewBreakers(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// New limits hold from now on; hosts that are out stay out.
func TestBreakersKeepWhatTheyKnow(t *testing.T) {
	b := breakers(t, func(c *scheduler.BreakerConfig) { c.MinCalls, c.Pause = 2, 10*time.Second })
	fails := func(id host.ID, n int, at time.Time) {
		for range n {
			b.Report(id, "i1", scheduler.TransportFailed, at)
		}
	}
	fails("out", 2, now)
	fails("half", 1, now)
	b.Adopt(breakers(t, func(c *scheduler.BreakerConfig) { c.MinCalls, c.Window, c.Pause = 3, 2*time.Minute, time.Second }))
	if s := b.State("out", now.Add(9*time.Second)); s != scheduler.BreakerOpen {
		t.Errorf("a host that was out is %s", s)
	}
	if s := b.State("out", now.Add(10*time.Second)); s != scheduler.BreakerHalfOpen {
		t.Errorf("after its pause it is %s", s)
	}
	at := now.Add(time.Second)
	fails("half", 2, at)
	if s := b.State("half", at); s != scheduler.BreakerClosed {
		t.Errorf("two calls of a window of three: %s", s)
	}
	fails("half", 1, at)
	if s := b.State("half", at); s != scheduler.BreakerOpen {
		t.Errorf("three of three: %s", s)
	}
}

func TestABudgetKeepsWhatWasSpent(t *testing.T) {
	policy := func(burst int) *scheduler.RetryPolicy {
		c := scheduler.DefaultRetryConfig()
		c.Burst, c.Share = burst, 0
		p, err := scheduler.NewRetryPolicy(c)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := policy(10)
	b := p.Budget()
	again := func(n int) (granted int) {
		for range n {
			var r scheduler.Retries
			if p.After(&r, 130592, false, 0, time.Hour, b).Again {
				granted++
			}
		}
		return granted
	}
	if n := again(6); n != 6 {
		t.Fatal(n)
	}
	b.Adopt(policy(8))
	if n := again(10); n != 2 {
		t.Errorf("%d more of 8, six of which were spent", n)
	}
	b.Adopt(policy(3))
	if n := again(10); n != 0 {
		t.Errorf("%d more of 3, eight of which were spent", n)
	}
}

// New weights hold for those who wait already, too.
func TestAQueueKeepsWhoWaits(t *testing.T) {
	q := newQueue(t, nil)
	push(t, q, "a", 400, now)
	push(t, q, "b", 400, now)
	for range 100 {
		q.Pop("", now)
	}
	q.Adopt(newQueue(t, func(c *scheduler.QueueConfig) { c.PerTenant, c.Weights = 100, map[string]float64{"a": 3} }))
	got := map[string]int{}
	for range 200 {
		x, ok, _ := q.Pop("", now)
		if !ok {
			t.Fatal("somebody who waited is lost")
		}
		got[x.Tenant]++
	}
	if got["a"] < 147 || got["a"] > 153 {
		t.Errorf("%v, want three to one", got)
	}
	var busy *scheduler.BusyError
	if err := q.Push(scheduler.Ticket{ID: "x", Tenant: "a"}, now); !errors.As(err, &busy) || busy.Reason != scheduler.ShedTenant || !errors.Is(err, fault.QueueFull) {
		t.Errorf("a tenant with more than the new bound: %v", err)
	}
	for n := q.Len(); n > 0; n-- {
		if _, ok, _ := q.Pop("", now); !ok {
			t.Fatalf("%d are lost", n)
		}
	}
}

func TestTheBestOfThoseThatAreFit(t *testing.T) {
	var hosts []host.Facts
	for i := range 200 {
		h := fit(fmt.Sprintf("h%03d", i))
		h.Allocated = host.Resources{MilliCPU: int64(i) * 50, MemBytes: int64(i) * gib / 20}
		hosts = append(hosts, h)
	}
	v, l, s := scheduler.NewView(hosts, now), scheduler.NewLedger(), newScheduler(t)
	r := ask()
	r.Explain = true
	d, err := s.Decide(v, l, r, now)
	if err != nil {
		t.Fatal(err)
	}
	best, err := s.Best(v, l, ask(), 20, now)
	if err != nil || len(best) != 20 {
		t.Fatal(best, err)
	}
	for i, b := range best {
		if b != d.Scores[i] {
			t.Errorf("%d: %v, and explained it is %v", i, b, d.Scores[i])
		}
	}
	if all, err := s.Best(v, l, ask(), 1000, now); err != nil || len(all) != d.Fit {
		t.Errorf("%d of %d: %v", len(all), d.Fit, err)
	}
	r.Resources.MilliCPU = 1 << 40
	if _, err := s.Best(v, l, r, 5, now); !errors.Is(err, fault.NoCapacity) {
		t.Error(err)
	}
}
