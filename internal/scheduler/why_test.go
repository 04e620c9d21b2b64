package scheduler_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// Whoever is dropped for the affinity is told a requirement that it does not
// meet, whatever the operators: the reason is found apart from the drop.
func TestReasonsOfTheAffinityAgreeWithIt(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(1_800_000_000, 0)
	const size = 70 // more than a page
	hosts := make([]host.Facts, size)
	for i := range hosts {
		room := host.Resources{MilliCPU: int64(1+i%4) * 1000, MemBytes: int64(1+i%3) << 30, DiskBytes: 1 << 40, Slots: 10}
		hosts[i] = host.Facts{Registration: host.Registration{ID: host.ID(fmt.Sprintf("h%02d", i)), Zone: fmt.Sprintf("z%d", i%3), Capacity: room, Allocatable: room, Labels: map[string]string{}}, Status: host.Status{Ready: true}, HeardAt: now}
		if i%2 == 0 {
			hosts[i].Labels["disk"] = fmt.Sprintf("d%d", i%4)
		}
	}
	v, l := scheduler.NewView(hosts, now), scheduler.NewLedger()
	c := scheduler.DefaultConfig()
	c.Prefilters, c.Filters = []string{"affinity"}, []string{"slots"}
	s, err := scheduler.New(c)
	if err != nil {
		t.Fatal(err)
	}
	all := []scheduler.Requirement{
		{Key: scheduler.LabelZone, Operator: scheduler.In, Values: []string{"z0", "z2"}},
		{Key: scheduler.LabelZone, Operator: scheduler.NotIn, Values: []string{"z1"}},
		{Key: "disk", Operator: scheduler.Exists},
		{Key: "disk", Operator: scheduler.DoesNotExist},
		{Key: "disk", Operator: scheduler.In, Values: []string{"d0"}},
		{Key: "disk", Operator: scheduler.NotIn, Values: []string{"d0"}},
		{Key: scheduler.LabelMemory, Operator: scheduler.Gt, Values: []string{"2Gi"}},
		{Key: scheduler.LabelCores, Operator: scheduler.Lt, Values: []string{"2"}},
	}
	dropped := 0
	for range 300 {
		var terms []scheduler.Term
		for range 1 + rng.IntN(2) {
			var term scheduler.Term
			for range 1 + rng.IntN(3) {
				term = append(term, all[rng.IntN(len(all))])
			}
			terms = append(terms, term)
		}
		a, err := scheduler.Affinity{Terms: terms}.Checked()
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Decide(v, l, scheduler.Request{Affinity: a, Explain: true}, now)
		if err != nil && !errors.Is(err, fault.NoHost) {
			t.Fatal(err)
		}
		for _, o := range d.Dropped {
			dropped++
			// One part for each term: none of them holds there.
			if parts := strings.Split(strings.TrimPrefix(o.Reason, "needs "), "; or "); len(parts) != len(terms) || !strings.Contains(parts[0], ", and it has ") {
				t.Fatalf("%v: %s: %q", terms, o.Host, o.Reason)
			}
		}
	}
	if dropped < 1000 {
		t.Errorf("%d hosts were dropped: it proves nothing", dropped)
	}
}
