package scheduler_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm/fsmtest"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

func TestBreakerDiagram(t *testing.T) {
	fsmtest.Diagram(t, scheduler.Breaking, "../../docs/machines/breaker.md")
}

func newBreakers(t *testing.T) *scheduler.Breakers {
	t.Helper()
	b, err := scheduler.NewBreakers(scheduler.DefaultBreakerConfig())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func ten() *scheduler.View {
	var hosts []host.Facts
	for i := range 10 {
		h := fit(fmt.Sprint("h", i))
		h.HeardAt = now.Add(24 * time.Hour) // time passes in these tests
		hosts = append(hosts, h)
	}
	return scheduler.NewView(hosts, now)
}

func TestBreakerTripsWaitsProbesAndCloses(t *testing.T) {
	b, s, v, l := newBreakers(t), newScheduler(t), ten(), scheduler.NewLedger()
	at := now
	out := func() bool {
		r := ask()
		r.Scope, r.Breakers = []host.ID{"h1"}, b
		_, err := s.Decide(v, l, r, at)
		if err != nil && !strings.Contains(err.Error(), "breaker 1") {
			t.Fatal(err)
		}
		return err != nil
	}
	is := func(want scheduler.BreakerState, wantOut bool) {
		t.Helper()
		if got := b.State("h1", at); got != want || out() != wantOut {
			t.Fatalf("at %s: %s, out %v, want %s, %v", at.Sub(now), got, out(), want, wantOut)
		}
	}
	for range 4 {
		b.Report("h1", "i1", scheduler.TransportFailed, at)
	}
	is(scheduler.BreakerClosed, false) // four calls prove nothing
	b.Report("h1", "i1", scheduler.TransportFailed, at)
	is(scheduler.BreakerOpen, true)
	b.Report("h1", "i1", scheduler.Succeeded, at) // what was on its way says nothing
	at = at.Add(5*time.Second - time.Nanosecond)
	is(scheduler.BreakerOpen, true)
	at = at.Add(time.Nanosecond)
	is(scheduler.BreakerHalfOpen, false)
	r := ask()
	r.Scope, r.Breakers, r.Sandbox = []host.ID{"h1"}, b, "probe"
	if _, err := s.Choose(v, l, r, at); err != nil {
		t.Fatal(err)
	}
	is(scheduler.BreakerHalfOpen, true) // one probe, and no more
	b.Report("h1", "i1", scheduler.Succeeded, at)
	is(scheduler.BreakerHalfOpen, true) // another's answer is no answer of the probe
	b.Report("h1", "probe", scheduler.TransportFailed, at)
	is(scheduler.BreakerOpen, true)
	at = at.Add(10*time.Second - time.Nanosecond)
	is(scheduler.BreakerOpen, true) // twice as long
	at = at.Add(time.Nanosecond)
	r.Sandbox = "probe2"
	if _, err := s.Choose(v, l, r, at); err != nil {
		t.Fatal(err)
	}
	is(scheduler.BreakerHalfOpen, true)
	at = at.Add(time.Minute) // nobody ever told how it ended
	is(scheduler.BreakerHalfOpen, false)
	r.Sandbox = "probe3"
	if _, err := s.Choose(v, l, r, at); err != nil {
		t.Fatal(err)
	}
	b.Report("h1", "probe3", scheduler.CapacityRefused, at) // a host that says that it is full is alive
	is(scheduler.BreakerClosed, false)
}

func TestWhatCountsAgainstAHost(t *testing.T) {
	for name, c := range map[string]struct {
		calls []scheduler.Outcome
		every time.Duration
		want  scheduler.BreakerState
	}{
		"transport":               {[]scheduler.Outcome{scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed, scheduler.Succeeded, scheduler.Succeeded}, 0, scheduler.BreakerOpen},
		"mostly good":             {[]scheduler.Outcome{scheduler.TransportFailed, scheduler.TransportFailed, scheduler.Succeeded, scheduler.Succeeded, scheduler.Succeeded}, 0, scheduler.BreakerClosed},
		"runtime counts half":     {[]scheduler.Outcome{scheduler.RuntimeFailed, scheduler.RuntimeFailed, scheduler.RuntimeFailed, scheduler.RuntimeFailed, scheduler.Succeeded}, 0, scheduler.BreakerClosed},
		"nothing but runtime":     {[]scheduler.Outcome{scheduler.RuntimeFailed, scheduler.RuntimeFailed, scheduler.RuntimeFailed, scheduler.RuntimeFailed, scheduler.RuntimeFailed}, 0, scheduler.BreakerOpen},
		"full is an answer":       {[]scheduler.Outcome{scheduler.CapacityRefused, scheduler.CapacityRefused, scheduler.CapacityRefused, scheduler.CapacityRefused, scheduler.CapacityRefused}, 0, scheduler.BreakerClosed},
		"a bad request is one":    {[]scheduler.Outcome{scheduler.RequestRefused, scheduler.RequestRefused, scheduler.RequestRefused, scheduler.RequestRefused, scheduler.RequestRefused}, 0, scheduler.BreakerClosed},
		"slower than the window":  {[]scheduler.Outcome{scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed}, 8 * time.Second, scheduler.BreakerClosed},
		"as fast as the window":   {[]scheduler.Outcome{scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed}, 6 * time.Second, scheduler.BreakerOpen},
		"a clock that goes back":  {[]scheduler.Outcome{scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed, scheduler.TransportFailed}, -time.Second, scheduler.BreakerOpen},
		"fewer than prove enough": {[]scheduler.Outcome{scheduler.TransportFailed}, 0, scheduler.BreakerClosed},
	} {
		b, at := newBreakers(t), now
		for _, o := range c.calls {
			b.Report("h", "i", o, at)
			at = at.Add(c.every)
		}
		if got := b.State("h", at.Add(-c.every)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Whatever happens, only a share of the fleet is out, and a host out is never
// chosen.
func TestBreakersKeepTheirBounds(t *testing.T) {
	s := newScheduler(t)
	tripped := 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b, v, l, at := newBreakers(t), ten(), scheduler.NewLedger(), now
		probing := map[host.ID]sandbox.ID{}
		for n := range 400 {
			at = at.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
			id := host.ID(fmt.Sprint("h", rng.IntN(10)))
			r := ask()
			r.Sandbox, r.Breakers, r.Explain, r.Seed = sandbox.ID(fmt.Sprint("i", n)), b, true, rng.Uint64()
			d, err := s.Choose(v, l, r, at)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			out := 0
			for _, o := range d.Out {
				if o.Plugin == "breaker" {
					out = o.Hosts
				}
			}
			tripped += out
			if out > 2 {
				t.Fatalf("seed %d: %d of 10 hosts are out", seed, out)
			}
			if b.State(d.Host, at) == scheduler.BreakerHalfOpen {
				if probing[d.Host] == "" {
					probing[d.Host] = r.Sandbox
				}
			} else {
				delete(probing, d.Host)
			}
			l.Release(r.Sandbox)
			b.Report(id, r.Sandbox, []scheduler.Outcome{scheduler.TransportFailed, scheduler.TransportFailed, scheduler.Succeeded}[rng.IntN(3)], at)
		}
	}
	if tripped == 0 {
		t.Error("no breaker ever tripped")
	}
}

func TestOneHostAloneIsNeverShutOut(t *testing.T) {
	b, r := newBreakers(t), ask()
	for range 10 {
		b.Report("a", "i", scheduler.TransportFailed, now)
	}
	r.Breakers = b
	if d, err := newScheduler(t).Decide(scheduler.NewView([]host.Facts{fit("a")}, now), scheduler.NewLedger(), r, now); err != nil {
		t.Errorf("%+v, %v: there is no other", d, err)
	}
}

func TestBadBreakerConfigNamesEveryKey(t *testing.T) {
	_, err := scheduler.NewBreakers(scheduler.BreakerConfig{Rate: 2, MaxShare: -1})
	if !errors.Is(err, fault.BadConfig) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"breaker.window", "breaker.min_calls", "breaker.rate 2", "breaker.pause", "breaker.max_share -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in:\n%v", want, err)
		}
	}
}
