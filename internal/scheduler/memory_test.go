package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/template"
)

// What a ledger remembers of pages never shows: through any history of charges,
// reports, hosts that come and go, time and breakers, it decides as one that
// has just been made of the same charges.
func TestWhatIsRememberedNeverShows(t *testing.T) {
	config := scheduler.ClusterConfig()
	config.Relax = []string{"template_locality"}
	config.Limits.ObserverShare = 0 // hosts fall silent one by one
	s, err := scheduler.New(config)
	if err != nil {
		t.Fatal(err)
	}
	chosen, stale, barred := 0, 0, 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 31))
		at := now
		fleet := drawFleet(rng, 1+rng.IntN(400))
		for i := range fleet {
			fleet[i].HeardAt = at.Add(-time.Duration(rng.IntN(9000)) * time.Millisecond)
		}
		v, l, b := scheduler.NewView(fleet, at), scheduler.NewLedger(), newBreakers(t)
		var open []scheduler.Charge
		for n := range 150 {
			switch rng.IntN(10) {
			case 0, 1, 2: // a report, perhaps of a new host, or of one that holds something else now
				h := drawHost(rng, fmt.Sprintf("h%04d", rng.IntN(420)))
				h.HeardAt = at
				v = v.With(at, []host.Facts{h})
			case 3:
				v = v.With(at, nil, host.ID(fmt.Sprintf("h%04d", rng.IntN(420))))
			case 4:
				at = at.Add(time.Duration(rng.IntN(2400)-600) * time.Millisecond) // clocks of two readers differ
			case 5:
				for range 5 {
					b.Report(host.ID(fmt.Sprintf("h%04d", n%len(fleet))), "x", scheduler.TransportFailed, at)
				}
			case 6:
				if len(open) > 0 {
					i := rng.IntN(len(open))
					if rng.IntN(2) == 0 {
						l.ConfirmAt(open[i].Sandbox, at, 0)
						open[i].ConfirmedAt = at
					} else {
						l.Release(open[i].Sandbox)
						open = append(open[:i], open[i+1:]...)
					}
				}
			}
			r := ask() // of twelve shapes
			r.Sandbox, r.Seed, r.Breakers = sandbox.ID(fmt.Sprint("i", n)), rng.Uint64(), b
			r.Artifact = template.ArtifactID([]string{"", "rfs-a", "rfs-b", "rfs-d"}[rng.IntN(4)])
			r.Resources.MilliCPU = []int64{100, 1000, 20_000}[rng.IntN(3)]
			if rng.IntN(5) == 0 {
				r.Exclude = []host.ID{host.ID(fmt.Sprintf("h%04d", rng.IntN(420))), host.ID(fmt.Sprintf("h%04d", rng.IntN(420)))}
			}
			anew := scheduler.NewLedger()
			for _, c := range open {
				anew.Charge(c)
			}
			want, wantErr := s.Decide(v, anew, r, at)
			got, gotErr := s.Choose(v, l, r, at)
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Fatalf("seed %d, step %d:\n%+v, %v; a new ledger says\n%+v, %v", seed, n, got, gotErr, want, wantErr)
			}
			if gotErr == nil {
				chosen++
				open = append(open, scheduler.Charge{Sandbox: r.Sandbox, Host: got.Host, Resources: r.Resources, At: at})
			}
			for _, o := range got.Out {
				if o.Plugin == "breaker" {
					barred++
				}
				if o.Plugin == "health" && at.Sub(now) > 12*time.Second {
					stale++
				}
			}
		}
	}
	if chosen < 1000 || stale == 0 || barred == 0 {
		t.Errorf("%d chosen, %d times after hosts fell silent, %d times a host was out: the histories are of no use", chosen, stale, barred)
	}
}

// More shapes than are remembered push each other out, and still decide.
func TestMoreShapesThanAreRemembered(t *testing.T) {
	v, l, s := graded(10), scheduler.NewLedger(), newScheduler(t)
	for n := range 500 {
		r := ask()
		r.Resources.MilliCPU = int64(n % 150 * 60)
		want, _ := s.Decide(v, scheduler.NewLedger(), r, now)
		if d, err := s.Decide(v, l, r, now); err != nil || d.Host != want.Host || d.Fit != want.Fit || d.Score != want.Score {
			t.Fatalf("%d: %+v, %v, want %+v", n, d, err, want)
		}
	}
}

// What was seen of a page with silent hosts holds for that moment alone.
func TestSilenceIsNotRemembered(t *testing.T) {
	h := fit("a")
	h.HeardAt = now.Add(-9 * time.Second)
	v, l, s := scheduler.NewView([]host.Facts{h}, now), scheduler.NewLedger(), newScheduler(t)
	for n := range 6 {
		at, want := now, 1
		if n%2 == 0 {
			at, want = now.Add(2*time.Second), 0
		}
		if d, _ := s.Decide(v, l, ask(), at); d.Fit != want {
			t.Fatalf("look %d, at %s: %d fit, want %d", n, at.Sub(now), d.Fit, want)
		}
	}
}
