package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/scheduler/sim"
)

const gib = int64(1) << 30

func fleet(n int) sim.Fleet {
	return sim.Fleet{Hosts: n, Has: host.Resources{MilliCPU: 32_000, MemBytes: 64 * gib, DiskBytes: 500 * gib, Slots: 100}, Zones: 3, Templates: 20, Holding: 0.3}
}

func load(creates int, perSecond float64) sim.Load {
	return sim.Load{
		Creates: creates, PerSecond: perSecond, Life: 20 * time.Second, Templates: 20, Skew: 1,
		Sizes: []sim.Size{
			{Resources: host.Resources{MilliCPU: 1000, MemBytes: gib, DiskBytes: gib, Slots: 1}, Weight: 3},
			{Resources: host.Resources{MilliCPU: 2000, MemBytes: 8 * gib, DiskBytes: gib, Slots: 1}, Weight: 1},
			{Resources: host.Resources{MilliCPU: 8000, MemBytes: 4 * gib, DiskBytes: gib, Slots: 1}, Weight: 1},
		},
	}
}

func do(t *testing.T, change func(r *sim.Run)) sim.Result {
	t.Helper()
	r := sim.Defaults()
	r.Hosts, r.Trace, r.Seed = fleet(30).Build(1), sim.Generate(1, load(2000, 200)), 1
	if change != nil {
		change(&r)
	}
	got, err := r.Do()
	if err != nil {
		t.Fatal(err)
	}
	if sum := got.Placed + got.Refused + got.TurnedAway + got.Late + got.GivenUp; sum != len(r.Trace) {
		t.Errorf("%d of %d creates ended: %+v", sum, len(r.Trace), got)
	}
	if got.Oversold != 0 || got.Doubled != 0 || got.Leaked != 0 {
		t.Errorf("oversold %d, doubled %d, leaked %d: all must be 0", got.Oversold, got.Doubled, got.Leaked)
	}
	return got
}

func TestSameSeedSameRunBitForBit(t *testing.T) {
	hard := func(seed uint64) func(r *sim.Run) {
		return func(r *sim.Run) { r.Lost, r.Seed = 0.05, seed }
	}
	first := do(t, hard(1))
	if again := do(t, hard(1)); !reflect.DeepEqual(first, again) {
		t.Errorf("\n%+v, then\n%+v", first, again)
	}
	if other := do(t, hard(2)); other.Digest == first.Digest {
		t.Error("another seed made the same decisions")
	}
	var file bytes.Buffer
	if err := sim.Write(&file, sim.Generate(1, load(2000, 200))); err != nil {
		t.Fatal(err)
	}
	recorded, err := sim.Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	if again := do(t, func(r *sim.Run) { hard(1)(r); r.Trace = recorded }); !reflect.DeepEqual(first, again) {
		t.Errorf("as recorded:\n%+v, was\n%+v", again, first)
	}
	// It is the same on every machine, and in every later version that decides alike.
	if want := "8f5516862639f10e"; first.Digest != want {
		t.Errorf("digest %s, was %s: if decisions were to change, write the new one here", first.Digest, want)
	}
}

func TestOverloadAndLostRepliesNeverOversellDoubleOrLeak(t *testing.T) {
	refused, full, lost := 0, 0, 0
	for seed := range uint64(6) {
		r := do(t, func(r *sim.Run) {
			r.Seed, r.Lost, r.Masters = seed, 0.02, 1+int(seed)
			r.Hosts = fleet(8).Build(seed)
			r.Trace = sim.Generate(seed, load(3000, 300))
			r.Config.Filters = []string{"cpu", "mem", "disk", "slots"}
		})
		refused, full, lost = refused+r.Refused, full+r.HostSaidFull, lost+r.RepliesLost
		if seed == 0 && r.HostSaidFull > 0 && r.RepliesLost == 0 {
			t.Errorf("the only master was refused by hosts %d times", r.HostSaidFull)
		}
	}
	if refused == 0 || full == 0 || lost == 0 {
		t.Errorf("%d refused, %d times a host was full, %d replies lost: the runs are of no use", refused, full, lost)
	}
}

func TestOneMasterIsNeverRefusedByAHost(t *testing.T) {
	r := do(t, func(r *sim.Run) { r.Masters, r.Hosts = 1, fleet(8).Build(1) })
	if r.HostSaidFull != 0 || r.Refused == 0 {
		t.Errorf("hosts refused %d, the scheduler %d", r.HostSaidFull, r.Refused)
	}
}

func TestConfigurationsDoWhatTheyAreFor(t *testing.T) {
	spread := do(t, nil)
	pack := do(t, func(r *sim.Run) {
		r.Config.Scores, r.Config.Filters = []scheduler.Weighted{{Name: "most_allocated", Weight: 1}}, []string{"cpu", "mem", "disk", "slots"}
		r.Trace = sim.Generate(1, load(2000, 40))
	})
	if pack.Active >= spread.Active || pack.Jain >= spread.Jain || spread.Jain < 0.8 {
		t.Errorf("packed: %.1f hosts active, Jain %.3f; spread: %.1f, %.3f", pack.Active, pack.Jain, spread.Active, spread.Jain)
	}
	if spread.Hits != 1 {
		t.Errorf("template hits %.3f with a filter for them", spread.Hits)
	}
	hits := func(scores ...scheduler.Weighted) float64 {
		return do(t, func(r *sim.Run) {
			r.Config.Filters, r.Config.Scores, r.Trace = []string{"cpu", "mem", "disk", "slots"}, scores, sim.Generate(1, load(2000, 15))
		}).Hits
	}
	blind, local := hits(scheduler.Weighted{Name: "least_allocated", Weight: 1}), hits(scheduler.Weighted{Name: "least_allocated", Weight: 1}, scheduler.Weighted{Name: "template_locality", Weight: 3})
	if local < 0.9 || blind > 0.6 {
		t.Errorf("template hits %.3f with the score, %.3f without", local, blind)
	}
}

func TestBurstOfOneTenantDoesNotMoveAnothersLatency(t *testing.T) {
	burst := load(20_000, 5000)
	burst.Tenants = []sim.Tenant{{Name: "burst", Weight: 50}, {Name: "trickle", Weight: 1}}
	burst.Deadline, burst.Life = 10*time.Second, 100*time.Millisecond
	r := do(t, func(r *sim.Run) {
		r.Masters, r.InFlight, r.Trace = 1, 10, sim.Generate(1, burst)
	})
	if got := r.Latency["trickle"]; got.P99 > 200*time.Millisecond || got.N < 300 {
		t.Errorf("trickle: %+v", got)
	}
	if got := r.Latency["burst"]; got.P99 < 500*time.Millisecond || r.TurnedAway == 0 {
		t.Errorf("burst: %+v, %d turned away: it is no burst", got, r.TurnedAway)
	}
}

func TestTenThousandHosts(t *testing.T) {
	var clock time.Duration
	r := do(t, func(r *sim.Run) {
		r.Hosts, r.Trace = fleet(10_000).Build(1), sim.Generate(1, load(1500, 1000))
		r.Watch = func() time.Duration { clock += time.Millisecond; return clock }
	})
	if r.Placed != 1500 || r.HostSaidFull != 0 || r.PerSecond != 1000 || r.P99 != time.Millisecond {
		t.Errorf("%+v", r)
	}
}

func TestBadTracesAndRunsAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"line 1": "x", "no sandbox": `{"at":1}`, "back in time": `{"at":2,"sandbox":"a"}` + "\n" + `{"at":1,"sandbox":"b"}`, "under 0": `{"sandbox":"a","life":-1}`,
	} {
		if _, err := sim.Read(strings.NewReader(text)); !errors.Is(err, fault.InvalidInput) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, change := range map[string]func(r *sim.Run){
		"hosts": func(r *sim.Run) { r.Hosts = nil }, "luck": func(r *sim.Run) { r.Config.Pick = "luck" }, "queue": func(r *sim.Run) { r.Queue.Total = 0 },
		"retry_share": func(r *sim.Run) { r.Retry.Share = -1 }, "breaker": func(r *sim.Run) { r.Breaker.Rate = 0 },
	} {
		r := sim.Defaults()
		r.Hosts = fleet(1).Build(1)
		change(&r)
		if _, err := r.Do(); !errors.Is(err, fault.BadConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A master that is full with one type lets another type in when it has room
// again, so every run ends.
func TestTypesDoNotKeepEachOtherOut(t *testing.T) {
	r := sim.Defaults()
	r.Masters, r.InFlight, r.Seed = 1, 1, 1
	r.Hosts = sim.Fleet{Hosts: 2, Has: host.Resources{MilliCPU: 8000, MemBytes: 8 << 30, DiskBytes: 1 << 40, Slots: 8}}.Build(1)
	r.Hosts[1].InstanceType = "large"
	size := host.Resources{MilliCPU: 1000, MemBytes: 1 << 30, DiskBytes: 1 << 30, Slots: 1}
	for i, kind := range []string{"cubebox", "large", "cubebox", "large"} {
		r.Trace = append(r.Trace, sim.Event{Sandbox: sandbox.ID(fmt.Sprint("i", i)), Kind: kind, Size: size})
	}
	steps := 0
	r.Stop = func() bool { steps++; return steps > 100 }
	got, err := r.Do()
	if err != nil || got.Placed != 4 {
		t.Errorf("%d placed, %v", got.Placed, err)
	}
}
