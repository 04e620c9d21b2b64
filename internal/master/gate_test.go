package master_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

func newGate(t *testing.T, change func(*scheduler.QueueConfig)) master.Gate {
	t.Helper()
	c := scheduler.DefaultQueueConfig()
	change(&c)
	g, err := master.NewGate(c)
	must(t, err)
	return g
}

// crowd are creates that wait at a gate; each tells when it is let through and
// stays until it is told to leave.
type crowd struct {
	t       *testing.T
	g       master.Gate
	entered chan string
	end     chan struct{}
	all     sync.WaitGroup
}

func newCrowd(t *testing.T, g master.Gate) *crowd {
	return &crowd{t: t, g: g, entered: make(chan string, 10_000), end: make(chan struct{}, 10_000)}
}

// send lets n creates of a tenant come, and returns when they are in.
func (c *crowd) send(tenant, kind string, n int) {
	c.t.Helper()
	w, u := c.g.Counts()
	for range n {
		c.all.Go(func() {
			leave, err := c.g.Enter(context.Background(), tenant, kind, 1)
			if err != nil {
				c.t.Error(err)
				return
			}
			c.entered <- tenant + kind
			<-c.end
			leave()
		})
	}
	eventually(c.t, "they are in", func() bool { w2, u2 := c.g.Counts(); return w2+u2 == w+u+n })
}

// One tenant sends fifty times what can be done, another one now and then: until
// one of the second's is let through, no more of the first's are than its share.
func TestABurstHoldsUpNobodyElse(t *testing.T) {
	const room, burst = 4, 200
	c := newCrowd(t, newGate(t, func(c *scheduler.QueueConfig) { c.InFlight = room }))
	c.send("burst", "", room+burst)
	for range room {
		<-c.entered
	}
	worst := 0
	for range 30 {
		c.send("trickle", "", 1)
		before := 0
		for c.end <- struct{}{}; <-c.entered != "trickle"; c.end <- struct{}{} {
			before++
		}
		worst = max(worst, before)
	}
	if worst > 1 {
		t.Errorf("%d creates of the burst went before one that came later of another tenant", worst)
	}
	for range room + burst + 30 {
		c.end <- struct{}{}
	}
	c.all.Wait()
	if w, u := c.g.Counts(); w+u != 0 {
		t.Errorf("%d wait and %d are under way when all have left", w, u)
	}
}

// The types of a master take turns, whoever waits for them.
func TestInstanceTypesTakeTurns(t *testing.T) {
	c := newCrowd(t, newGate(t, func(c *scheduler.QueueConfig) { c.InFlight = 1 }))
	c.send("a", "x", 1)
	<-c.entered
	c.send("a", "x", 50)
	c.send("a", "y", 3)
	got := map[string]int{}
	for range 6 {
		c.end <- struct{}{}
		got[<-c.entered]++
	}
	if got["ax"] != 3 || got["ay"] != 3 {
		t.Errorf("%v of the first six", got)
	}
	for range 54 {
		c.end <- struct{}{}
	}
	c.all.Wait()
}

func TestWhoMayNotWaitIsToldWhenToComeAgain(t *testing.T) {
	g := newGate(t, func(c *scheduler.QueueConfig) { c.InFlight, c.PerTenant, c.Total = 1, 1, 2 })
	leave, err := g.Enter(t.Context(), "a", "", 1)
	must(t, err)
	c := newCrowd(t, g)
	c.send("a", "", 1)
	refuse := func(ctx context.Context, tenant, reason, says string) {
		t.Helper()
		_, err := g.Enter(ctx, tenant, "", 1)
		var busy *scheduler.BusyError
		if !errors.Is(err, fault.QueueFull) || !errors.As(err, &busy) || busy.Reason != reason || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s: %s", err, reason, says)
			return
		}
		w := httptest.NewRecorder()
		serve.WriteError(w, httptest.NewRequest("POST", "/", nil), fmt.Errorf("create: %w", err))
		if w.Code != 429 || w.Header().Get("Retry-After") == "" || w.Header().Get("Retry-After") == "0" {
			t.Errorf("%d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
		}
	}
	refuse(t.Context(), "a", scheduler.ShedTenant, "1 creates of tenant \"a\" wait already; try again in 1s")
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(10*time.Millisecond))
	defer cancel()
	refuse(late, "b", scheduler.ShedLate, "its time is up")
	short, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	refuse(short, "b", "time_up", "its time was up after")
	c.send("b", "", 1)
	refuse(t.Context(), "c", scheduler.ShedTotal, "2 creates wait already")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, g.Adopt(scheduler.QueueConfig{PerTenant: 5, Total: 10, InFlight: 1}))
	if _, err := g.Enter(gone, "c", "", 1); !errors.Is(err, fault.CallCancelled) || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who went away: %v", err)
	}
	leave()
	leave() // twice is once
	for range 2 {
		<-c.entered
		c.end <- struct{}{}
	}
	c.all.Wait()
	reg := prometheus.NewRegistry()
	reg.MustRegister(g.Metrics()...)
	text := metricsOf(t, reg)
	for _, line := range []string{
		"in_flight 0", "waiting 0", `shed_total{reason="gone"} 1`, `shed_total{reason="tenant_full"} 1`, `shed_total{reason="time_up"} 1`, `shed_total{reason="too_late"} 1`, `shed_total{reason="total_full"} 1`, "wait_seconds_count 3",
	} {
		if !strings.Contains(text, "\npaddock_create_queue_"+line+"\n") {
			t.Errorf("the metrics do not say %s:\n%s", line, text)
		}
	}
}

// metricsOf returns what a registry shows.
func metricsOf(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	telemetry.Handler(reg).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// Many at once are let through together and pay together.
func TestABatchPaysAsMany(t *testing.T) {
	g := newGate(t, func(c *scheduler.QueueConfig) { c.InFlight = 4 })
	leave, err := g.Enter(t.Context(), "a", "", 10) // more than there is room for at all
	must(t, err)
	c := newCrowd(t, g)
	c.send("a", "", 1)
	if w, u := g.Counts(); w != 1 || u != 10 {
		t.Errorf("%d wait, %d are under way", w, u)
	}
	leave()
	<-c.entered
	c.end <- struct{}{}
	c.all.Wait()
	if w, u := g.Counts(); w+u != 0 {
		t.Errorf("%d wait, %d are under way", w, u)
	}
	// It takes no more places than it calls hosts at once, and gives them all back.
	if leave, err = g.Enter(t.Context(), "a", "", 1000); err != nil {
		t.Fatal(err)
	}
	if _, u := g.Counts(); u >= 100 {
		t.Errorf("a batch of 1000 takes %d places", u)
	}
	leave()
	if _, u := g.Counts(); u != 0 {
		t.Errorf("%d are under way", u)
	}
}

// More room wakes those who wait.
func TestMoreRoomWakes(t *testing.T) {
	g := newGate(t, func(c *scheduler.QueueConfig) { c.InFlight = 1 })
	c := newCrowd(t, g)
	c.send("a", "", 10)
	<-c.entered
	conf := scheduler.DefaultQueueConfig()
	conf.InFlight = 7
	must(t, g.Adopt(conf))
	for range 6 {
		<-c.entered
	}
	if w, u := g.Counts(); w != 3 || u != 7 {
		t.Errorf("%d wait, %d are under way", w, u)
	}
	for range 10 {
		c.end <- struct{}{}
	}
	c.all.Wait()
}

// Whoever comes, waits, goes away or is too late: never more than the bound are
// through, and nobody is lost.
func TestAGateUnderAnyLoad(t *testing.T) {
	const room = 5
	g := newGate(t, func(c *scheduler.QueueConfig) {
		c.InFlight, c.PerTenant, c.Total, c.Service = room, 20, 60, time.Millisecond
	})
	var under, most, through atomic.Int64
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(worker))) //nolint:gosec // the same in every run
			for range 150 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(8))*time.Millisecond)
				if rng.IntN(4) == 0 {
					cancel()
				}
				leave, err := g.Enter(ctx, fmt.Sprint(rng.IntN(4)), fmt.Sprint(rng.IntN(2)), 1)
				if err == nil {
					n := under.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					through.Add(1)
					if rng.IntN(3) == 0 {
						<-ctx.Done() // as long as it may
					}
					under.Add(-1)
					leave()
				} else if !errors.Is(err, fault.QueueFull) && !errors.Is(err, fault.CallCancelled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if w, u := g.Counts(); w+u != 0 || most.Load() > room || through.Load() == 0 {
		t.Errorf("%d wait and %d are under way at the end; %d were at most, of %d; %d went through", w, u, most.Load(), room, through.Load())
	}
}

// Types take turns, so made-up ones must share one line: else their sender has
// most of the turns, and the room for all who wait.
func TestMadeUpTypesAreOneLine(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty, patient)
	must(t, r.m.Look(t.Context()))
	for kind, want := range map[string]string{"cubebox": "cubebox", "made-up": "", "": ""} {
		if got := r.m.LineOf(kind); got != want {
			t.Errorf("type %q waits in line %q, want %q", kind, got, want)
		}
	}
}
