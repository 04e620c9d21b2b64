package scheduler_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

func newQueue(t *testing.T, change func(*scheduler.QueueConfig)) *scheduler.Queue {
	t.Helper()
	c := scheduler.DefaultQueueConfig()
	if change != nil {
		change(&c)
	}
	q, err := scheduler.NewQueue(c)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func push(t *testing.T, q *scheduler.Queue, tenant string, n int, at time.Time) {
	t.Helper()
	for i := range n {
		if err := q.Push(scheduler.Ticket{ID: fmt.Sprintf("%s-%d", tenant, i), Tenant: tenant}, at); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTenantsGetSharesByWeightWhateverTheySend(t *testing.T) {
	q := newQueue(t, func(c *scheduler.QueueConfig) { c.Weights = map[string]float64{"gold": 3} })
	push(t, q, "burst", 900, now)
	push(t, q, "gold", 300, now)
	push(t, q, "small", 100, now)
	got := map[string]int{}
	last := map[string]string{}
	for range 500 {
		x, ok, late := q.Pop("", now)
		if !ok || len(late) > 0 {
			t.Fatal(ok, late)
		}
		got[x.Tenant]++
		if prev := last[x.Tenant]; prev != "" && len(x.ID) < len(prev) {
			t.Errorf("%s after %s: one tenant's tickets are served in their order", x.ID, prev)
		}
		last[x.Tenant] = x.ID
	}
	for tenant, want := range map[string]int{"gold": 300, "small": 100, "burst": 100} {
		if n := got[tenant]; n < want-2 || n > want+2 {
			t.Errorf("%s was served %d times of 500, want %d", tenant, n, want)
		}
	}
}

// A tenant who was served alone for long owes nothing, and one who was away
// saved up nothing.
func TestNobodySavesUpAndNobodyOwes(t *testing.T) {
	q := newQueue(t, nil)
	push(t, q, "a", 500, now)
	for range 400 {
		q.Pop("", now)
	}
	push(t, q, "b", 100, now)
	got := map[string]int{}
	for range 100 {
		x, _, _ := q.Pop("", now)
		got[x.Tenant]++
	}
	if got["a"] < 48 || got["a"] > 52 {
		t.Errorf("%v, want halves", got)
	}
}

// One tenant sends fifty times what can be done; another sends a trickle, and
// must not notice.
func TestBurstOfOneTenantDoesNotMoveAnother(t *testing.T) {
	q := newQueue(t, nil)
	at, service := now, 10*time.Millisecond
	pushed := map[string]time.Time{}
	var waits []time.Duration
	refused, n := 0, 0
	for step := range 6000 {
		at = at.Add(service)
		for range 50 {
			n++
			err := q.Push(scheduler.Ticket{ID: fmt.Sprint("b", n), Tenant: "burst", Deadline: at.Add(5 * time.Second)}, at)
			var busy *scheduler.BusyError
			if errors.As(err, &busy) {
				refused++
				if busy.RetryAfter < time.Second || busy.RetryAfter > time.Minute || !errors.Is(err, fault.QueueFull) {
					t.Fatalf("%v: retry after %s", err, busy.RetryAfter)
				}
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if step%20 == 0 {
			id := fmt.Sprint("t", step)
			pushed[id] = at
			if err := q.Push(scheduler.Ticket{ID: id, Tenant: "trickle", Deadline: at.Add(time.Second)}, at); err != nil {
				t.Fatalf("step %d: the trickle is refused: %v", step, err)
			}
		}
		x, ok, late := q.Pop("", at)
		if !ok {
			t.Fatal("nothing waits")
		}
		for _, l := range append(late, x) {
			if from, is := pushed[l.ID]; is {
				waits = append(waits, at.Sub(from))
			}
		}
		if !x.Deadline.IsZero() && x.Deadline.Sub(at) < 50*time.Millisecond {
			t.Fatalf("%s is begun %s before its time is up", x.ID, x.Deadline.Sub(at))
		}
	}
	slices.Sort(waits)
	if p99 := waits[len(waits)*99/100]; p99 > 30*time.Millisecond || len(waits) < 290 {
		t.Errorf("p99 of %d waits of the trickle is %s", len(waits), p99)
	}
	if refused == 0 || q.Len() > 1200 {
		t.Errorf("%d were refused, %d wait", refused, q.Len())
	}
}

func TestQueueRefusesAndForgets(t *testing.T) {
	q := newQueue(t, func(c *scheduler.QueueConfig) { c.PerTenant, c.Total = 3, 5 })
	push(t, q, "a", 3, now)
	busy := func(x scheduler.Ticket, want string) {
		t.Helper()
		if err := q.Push(x, now); !errors.Is(err, fault.QueueFull) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	busy(scheduler.Ticket{ID: "a-3", Tenant: "a"}, `3 creates of tenant "a" wait already`)
	busy(scheduler.Ticket{ID: "c-0", Tenant: "c", Deadline: now.Add(time.Millisecond)}, "its time is up in 1ms")
	push(t, q, "b", 2, now)
	busy(scheduler.Ticket{ID: "c-0", Tenant: "c"}, "5 creates wait already")
	if err := q.Push(scheduler.Ticket{ID: "a-0", Tenant: "a"}, now); !errors.Is(err, fault.InvalidInput) {
		t.Errorf("a ticket twice: %v", err)
	}
	if !q.Cancel("a-0") || q.Cancel("a-0") || q.Len() != 4 {
		t.Errorf("cancel: %d left", q.Len())
	}
	if _, ok, _ := q.Pop("gpu", now); ok {
		t.Error("another instance type's turn")
	}
	for range 4 {
		if x, ok, _ := q.Pop("", now); !ok || x.ID == "a-0" {
			t.Errorf("%+v, %v", x, ok)
		}
	}
	if _, ok, _ := q.Pop("", now); ok || q.Len() != 0 {
		t.Error("something is left")
	}
}

// Whatever is pushed comes out once: served, late or cancelled.
func TestNothingIsLostInTheQueue(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 4))
		q := newQueue(t, func(c *scheduler.QueueConfig) { c.PerTenant, c.Total = 20, 60 })
		in, at := map[string]bool{}, now
		gone := func(id string) {
			if !in[id] {
				t.Fatalf("seed %d: %s came out twice, or never went in", seed, id)
			}
			delete(in, id)
		}
		for n := range 1000 {
			at = at.Add(time.Duration(rng.IntN(30)) * time.Millisecond)
			switch rng.IntN(5) {
			case 0, 1, 2:
				x := scheduler.Ticket{ID: fmt.Sprint(n), Tenant: fmt.Sprint(rng.IntN(5)), InstanceType: fmt.Sprint(rng.IntN(2)), Cost: []float64{0, 1, 3, math.NaN()}[rng.IntN(4)]}
				if rng.IntN(2) == 0 {
					x.Deadline = at.Add(time.Duration(rng.IntN(500)) * time.Millisecond)
				}
				if q.Push(x, at) == nil {
					in[x.ID] = true
				}
			case 3:
				x, ok, late := q.Pop(fmt.Sprint(rng.IntN(2)), at)
				for _, l := range late {
					gone(l.ID)
				}
				if ok {
					gone(x.ID)
				}
			case 4:
				if id := fmt.Sprint(rng.IntN(n + 1)); q.Cancel(id) {
					gone(id)
				}
			}
			if q.Len() != len(in) {
				t.Fatalf("seed %d: %d wait, want %d", seed, q.Len(), len(in))
			}
		}
		for _, kind := range []string{"0", "1"} {
			for {
				x, ok, late := q.Pop(kind, now)
				for _, l := range late {
					gone(l.ID)
				}
				if !ok {
					break
				}
				gone(x.ID)
			}
		}
		if len(in) > 0 || q.Len() > 0 {
			t.Fatalf("seed %d: %d are lost", seed, len(in))
		}
	}
}

func TestBadQueueConfigNamesEveryKey(t *testing.T) {
	_, err := scheduler.NewQueue(scheduler.QueueConfig{Service: -1, Weights: map[string]float64{"x": 0, "y": math.NaN()}})
	if !errors.Is(err, fault.BadConfig) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"queue.per_tenant 0", "queue.service", "queue.weights.x 0", "queue.weights.y NaN"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in:\n%v", want, err)
		}
	}
}

// What was not served costs nothing: a tenant whose callers went away is due as
// if they had never come.
func TestTicketsThatAreNotServedAreGivenBack(t *testing.T) {
	q := newQueue(t, nil)
	push(t, q, "a", 20, now)
	for i := range 20 {
		q.Cancel(fmt.Sprint("a-", i))
	}
	for i := range 20 { // and some whose time is up before their turn
		if err := q.Push(scheduler.Ticket{ID: fmt.Sprint("late-", i), Tenant: "a", Deadline: now.Add(time.Second)}, now); err != nil {
			t.Fatal(err)
		}
	}
	push(t, q, "a", 10, now)
	push(t, q, "b", 10, now)
	at, got, late := now.Add(time.Minute), map[string]int{}, 0
	for range 10 {
		x, _, l := q.Pop("", at)
		got[x.Tenant]++
		late += len(l)
	}
	if got["a"] < 4 || got["a"] > 6 || late != 20 {
		t.Errorf("served %v of ten, and %d were late: want halves, and 20", got, late)
	}
}

// A time in which it went slowly is over when nobody waits any more.
func TestASlowTimeIsForgotten(t *testing.T) {
	q, err := scheduler.NewQueue(scheduler.DefaultQueueConfig())
	if err != nil {
		t.Fatal(err)
	}
	at, n := now, 0
	push := func() error {
		n++
		return q.Push(scheduler.Ticket{ID: fmt.Sprint(n), Tenant: "a", InstanceType: "k", Deadline: at.Add(5 * time.Second)}, at)
	}
	for range 3 {
		if err := push(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // one in three seconds
		at = at.Add(3 * time.Second)
		q.Pop("k", at)
	}
	for range 20 {
		if err := push(); err != nil {
			t.Fatalf("turned away for what is over: %v", err)
		}
	}
}
