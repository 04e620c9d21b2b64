package scheduler_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

var now = time.Unix(1_800_000_000, 0)

const gib = int64(1) << 30

// fit is a host with room for ten of ask that holds rfs-a.
func fit(id string) host.Facts {
	return host.Facts{
		Registration: host.Registration{
			ID: host.ID(id), InstanceType: "cubebox",
			Allocatable: host.Resources{MilliCPU: 10_000, MemBytes: 10 * gib, DiskBytes: 100 * gib, Slots: 10},
		},
		Status:  host.Status{Ready: true, Artifacts: []string{"rfs-a"}},
		HeardAt: now,
	}
}

func ask() scheduler.Request {
	return scheduler.Request{
		Sandbox: "i1", Artifact: "rfs-a", InstanceType: "cubebox",
		Resources: host.Resources{MilliCPU: 1000, MemBytes: gib, DiskBytes: gib, Slots: 1},
	}
}

func newScheduler(t testing.TB) *scheduler.Scheduler {
	t.Helper()
	s, err := scheduler.New(scheduler.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryFilterDropsAndSaysWhy(t *testing.T) {
	cases := map[string]struct {
		host   func(*host.Facts)
		ask    func(*scheduler.Request)
		plugin string
		reason string
		code   *fault.Code
	}{
		"silent host":       {host: func(h *host.Facts) { h.HeardAt = now.Add(-time.Minute) }, plugin: "health", reason: "not heard of for 1m0s", code: fault.NoHost},
		"host not ready":    {host: func(h *host.Facts) { h.Ready, h.Reason = false, "no runsc" }, plugin: "health", reason: "not ready: no runsc", code: fault.NoHost},
		"cordoned host":     {host: func(h *host.Facts) { h.Cordoned = true }, plugin: "health", reason: "cordoned", code: fault.NoHost},
		"failed before":     {ask: func(r *scheduler.Request) { r.Exclude = []host.ID{"h1"} }, plugin: "excluded", reason: "earlier attempt", code: fault.NoHost},
		"out of scope":      {ask: func(r *scheduler.Request) { r.Scope = []host.ID{"h2"} }, plugin: "scope", reason: "scope", code: fault.NoHost},
		"other type":        {ask: func(r *scheduler.Request) { r.InstanceType = "gpu" }, plugin: "instance_type", reason: "serves cubebox, not gpu", code: fault.NoHost},
		"lacks the image":   {ask: func(r *scheduler.Request) { r.Artifact = "rfs-b" }, plugin: "template_locality", reason: "rfs-b", code: fault.NoHost},
		"too little cpu":    {ask: func(r *scheduler.Request) { r.Resources.MilliCPU = 10_001 }, plugin: "cpu", reason: "1m short", code: fault.NoCapacity},
		"too little memory": {ask: func(r *scheduler.Request) { r.Resources.MemBytes = 10*gib + 1 }, plugin: "mem", reason: "1 bytes short", code: fault.NoCapacity},
		"too little disk":   {ask: func(r *scheduler.Request) { r.Resources.DiskBytes = 101 * gib }, plugin: "disk", reason: "disk", code: fault.NoCapacity},
		"no slot":           {host: func(h *host.Facts) { h.Allocated.Slots = 10 }, plugin: "slots", reason: "0 free, 1 asked", code: fault.NoCapacity},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h, r := fit("h1"), ask()
			if c.host != nil {
				c.host(&h)
			}
			if c.ask != nil {
				c.ask(&r)
			}
			r.Explain = true
			d, err := newScheduler(t).Decide(scheduler.NewView([]host.Facts{h}, now), scheduler.NewLedger(), r, now)
			if !errors.Is(err, c.code) {
				t.Fatalf("got %v, want %v", err, c.code)
			}
			if len(d.Dropped) != 1 || d.Dropped[0].Plugin != c.plugin || !strings.Contains(d.Dropped[0].Reason, c.reason) {
				t.Errorf("dropped %+v, want by %s because %q", d.Dropped, c.plugin, c.reason)
			}
		})
	}
}

func TestExactlyEnoughRoomFits(t *testing.T) {
	r := ask()
	r.Resources = fit("h1").Allocatable
	if _, err := newScheduler(t).Decide(scheduler.NewView([]host.Facts{fit("h1")}, now), scheduler.NewLedger(), r, now); err != nil {
		t.Errorf("a request for all of a host was refused: %v", err)
	}
}

func TestNoHostAtAll(t *testing.T) {
	_, err := newScheduler(t).Decide(scheduler.NewView(nil, now), scheduler.NewLedger(), ask(), now)
	if !errors.Is(err, fault.NoHost) || !strings.Contains(err.Error(), "no host is registered") {
		t.Errorf("got %v", err)
	}
}

func TestLeastAllocatedWins(t *testing.T) {
	busy, idle := fit("a"), fit("b")
	busy.Allocated = host.Resources{MilliCPU: 5000, MemBytes: 5 * gib}
	d, err := newScheduler(t).Decide(scheduler.NewView([]host.Facts{busy, idle}, now), scheduler.NewLedger(), ask(), now)
	if err != nil || d.Host != "b" || d.RunnerUp != "a" || d.Considered != 2 || d.Fit != 2 {
		t.Errorf("got %+v, %v", d, err)
	}
}

func TestTiesSpreadAndRepeat(t *testing.T) {
	var hosts []host.Facts
	for i := range 20 {
		hosts = append(hosts, fit(fmt.Sprintf("h%02d", i)))
	}
	v, s := scheduler.NewView(hosts, now), newScheduler(t)
	seen := map[host.ID]int{}
	for seed := range uint64(2000) {
		r := ask()
		r.Seed = seed
		first, err := s.Decide(v, scheduler.NewLedger(), r, now)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := s.Decide(v, scheduler.NewLedger(), r, now)
		if again.Host != first.Host || again.RunnerUp != first.RunnerUp {
			t.Fatalf("seed %d chose %s, then %s", seed, first.Host, again.Host)
		}
		seen[first.Host]++
	}
	for id, n := range seen {
		if n < 50 || n > 150 {
			t.Errorf("%s was drawn %d times of 2000 over 20 hosts: ties do not spread", id, n)
		}
	}
	if len(seen) != 20 {
		t.Errorf("only %d of 20 hosts were ever drawn", len(seen))
	}
}

func TestBadConfigurationNamesEveryFault(t *testing.T) {
	_, err := scheduler.New(scheduler.Config{
		Filters: []string{"cpu", "cpu", "gpu"},
		Scores:  []scheduler.Weighted{{Name: "luck", Weight: 1}, {Name: "least_allocated", Weight: math.NaN()}, {Name: "create_pressure", Weight: -1}},
		Pick:    "dice",
	})
	if !errors.Is(err, fault.BadConfig) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"stale_after", `"cpu" is listed twice`, `"gpu" is unknown`, `"luck" is unknown`, "NaN", "-1", `"dice" is unknown`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in:\n%v", want, err)
		}
	}
}

// Concurrent choices on one view must never count on the same room: this is
// what the charge inside Choose is for.
func TestConcurrentChoicesNeverOversell(t *testing.T) {
	s, l := newScheduler(t), scheduler.NewLedger()
	v := scheduler.NewView([]host.Facts{fit("a"), fit("b"), fit("c")}, now)
	var mu sync.Mutex
	placed := map[host.ID]int{}
	var refused int
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			r := ask()
			r.Sandbox = sandbox.ID(fmt.Sprintf("i%03d", i))
			d, err := s.Choose(v, l, r, now)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused++
				return
			}
			placed[d.Host]++
		})
	}
	wg.Wait()
	if refused != 70 || placed["a"] != 10 || placed["b"] != 10 || placed["c"] != 10 {
		t.Errorf("placed %v, refused %d: want 10 on each host and 70 refused", placed, refused)
	}
}

// The room of a sandbox is counted once at every moment of its start: by the
// charge until a newer report shows it, by the report from then on.
func TestChargeEndsWithANewerReport(t *testing.T) {
	s, l := newScheduler(t), scheduler.NewLedger()
	h := fit("a")
	if _, err := s.Choose(scheduler.NewView([]host.Facts{h}, now), l, ask(), now); err != nil {
		t.Fatal(err)
	}
	l.ConfirmAt("i1", now.Add(time.Second), 0)
	l.Observe(scheduler.NewView([]host.Facts{h}, now))
	if got := l.Charged("a"); got != ask().Resources {
		t.Errorf("an older report ended the charge: %+v", got)
	}
	h.HeardAt, h.Allocated = now.Add(2*time.Second), ask().Resources
	l.Observe(scheduler.NewView([]host.Facts{h}, now))
	if got := l.Charged("a"); got != (host.Resources{}) || l.Len() != 0 {
		t.Errorf("a newer report left %+v, %d open", got, l.Len())
	}
}

func TestUnconfirmedChargeOutlivesReportsUntilItExpires(t *testing.T) {
	s, l := newScheduler(t), scheduler.NewLedger()
	h := fit("a")
	if _, err := s.Choose(scheduler.NewView([]host.Facts{h}, now), l, ask(), now); err != nil {
		t.Fatal(err)
	}
	h.HeardAt = now.Add(time.Hour)
	l.Observe(scheduler.NewView([]host.Facts{h}, h.HeardAt))
	if l.Len() != 1 {
		t.Fatal("a report ended a charge that nobody confirmed")
	}
	if ended := l.Expire(now); len(ended) != 0 {
		t.Errorf("expired %v too early", ended)
	}
	if ended := l.Expire(now.Add(time.Nanosecond)); len(ended) != 1 || l.Len() != 0 {
		t.Errorf("expired %v, %d left", ended, l.Len())
	}
}

// Whatever happens in whatever order, a ledger without open charges holds
// nothing against anybody.
func TestLedgerBalances(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l := scheduler.NewLedger()
		id := func() sandbox.ID { return sandbox.ID(fmt.Sprintf("i%d", rng.IntN(8))) }
		for range 200 {
			switch rng.IntN(4) {
			case 0, 1:
				l.Charge(scheduler.Charge{Sandbox: id(), Host: host.ID(fmt.Sprintf("h%d", rng.IntN(3))), Resources: host.Resources{MilliCPU: rng.Int64N(100), Slots: 1}, At: now})
			case 2:
				l.ConfirmAt(id(), now, 0)
			case 3:
				l.Release(id())
			}
		}
		l.Expire(now.Add(time.Second))
		for _, h := range []host.ID{"h0", "h1", "h2"} {
			if got := l.Charged(h); got != (host.Resources{}) {
				t.Fatalf("seed %d: %s is left with %+v", seed, h, got)
			}
		}
	}
}

func BenchmarkDecide10000(b *testing.B) {
	hosts := make([]host.Facts, 10_000)
	for i := range hosts {
		hosts[i] = fit(fmt.Sprintf("h%05d", i))
		hosts[i].Allocated.MilliCPU = int64(i % 9000)
	}
	v := scheduler.NewView(hosts, now)
	s, err := scheduler.New(scheduler.DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	l, r := scheduler.NewLedger(), ask()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Decide(v, l, r, now); err != nil {
			b.Fatal(err)
		}
	}
}
