package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/paddock-dev/paddock/bench"
	"github.com/paddock-dev/paddock/bench/fleet"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// mode is a way to pick among the hosts that are fit.
type mode struct {
	name, pick   string
	bestOf, topN int
	score        string // empty: as the default
}

var modes = []mode{
	{name: "best_of_2", pick: "best_of_k", bestOf: 2},
	{name: "best_of_16", pick: "best_of_k", bestOf: 16},
	{name: "weighted_top_10", pick: "weighted", topN: 10},
	{name: "spread_top_10", pick: "spread", topN: 10},
	{name: "random_top_10", pick: "random", topN: 10},
	{name: "random", pick: "random", topN: -1},
}

func (m mode) scheduler(guards bool) (*scheduler.Scheduler, error) {
	c := scheduler.ClusterConfig()
	if !guards {
		c = scheduler.DefaultConfig()
	}
	c.Pick, c.BestOf, c.TopN = m.pick, m.bestOf, m.topN
	if m.score != "" {
		c.Scores = []scheduler.Weighted{{Name: m.score, Weight: 1}}
	}
	return scheduler.New(c)
}

// regret measures how far what a mode places is from the best: of each choice,
// and of a fleet that is filled.
func regret(size, n int) ([]bench.Figure, error) {
	n = min(n, 1000)
	var all []bench.Figure
	for _, m := range modes {
		f, err := m.distance(size, n)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	more := append([]mode{
		{name: "highest", pick: "highest"},
		{name: "highest_most_allocated", pick: "highest", score: "most_allocated"},
		{name: "highest_resource_fit", pick: "highest", score: "resource_fit_score"},
	}, modes...)
	for _, m := range more {
		large, err := m.fills(100, 100_000, 10, volume)
		if err != nil {
			return nil, err
		}
		small, err := m.fills(3, 40, 100, exhaustive)
		if err != nil {
			return nil, err
		}
		all = append(all,
			bench.Figure{Name: "scheduler.stranded." + m.name, Value: large, Unit: "%", N: 10, Note: "fewer sandboxes of four sizes placed on 100 hosts before one finds no room, than the sum of all that the hosts have could take: a bound that nobody reaches"},
			bench.Figure{Name: "scheduler.stranded_small." + m.name, Value: small, Unit: "%", N: 100, Note: "fewer placed on 3 hosts before one finds no room, than the best of all placements (each was tried)"})
	}
	return all, nil
}

// distance is how many points of 100 the choices of m score less than the best
// host did at that moment, on the fleet that its own choices make.
func (m mode) distance(size, n int) (bench.Figure, error) {
	exact, err := mode{pick: "highest"}.scheduler(true)
	if err != nil {
		return bench.Figure{}, err
	}
	own, err := m.scheduler(true)
	if err != nil {
		return bench.Figure{}, err
	}
	l := newLiving(size)
	var sum, most float64
	for _, r := range fleet.Requests(n) {
		best, err := exact.Decide(l.view, l.books, r, l.now)
		if err != nil {
			return bench.Figure{}, err
		}
		one, err := own.Choose(l.view, l.books, r, l.now)
		if err != nil {
			return bench.Figure{}, err
		}
		if one.Score > best.Score {
			return bench.Figure{}, fmt.Errorf("%s found %v, better than the best %v", m.name, one.Score, best.Score)
		}
		sum, most = sum+best.Score-one.Score, max(most, best.Score-one.Score)
		l.take(&r, one.Host)
	}
	name := "scheduler.regret." + m.name
	if m.name == "best_of_16" {
		name = "scheduler.regret" // the one that is meant where no mode is named
	}
	return bench.Figure{Name: name, Value: sum / float64(n), Unit: "points", N: n, Note: fmt.Sprintf("of 100 that the choice of %s scores below the best of %d hosts; at most %.1f", m.name, size, most)}, nil
}

// fills lets m place a stream until a sandbox finds no room, on each of some
// fleets, and returns how many percent fewer it placed than best says.
func (m mode) fills(hosts, most, fleets int, best func(has host.Resources, hosts int, stream []host.Resources) int) (float64, error) {
	s, err := m.scheduler(false)
	if err != nil {
		return 0, err
	}
	has := host.Resources{MilliCPU: 16_000, MemBytes: 32 << 30, DiskBytes: 1 << 40, Slots: 1000}
	if best(has, 1, []host.Resources{has, has}) != 1 {
		return 0, fmt.Errorf("the bound of %s does not hold", m.name)
	}
	var sum float64
	for f := range fleets {
		rng := rand.New(rand.NewPCG(7, uint64(f))) //nolint:gosec // the same in every run
		if hosts < 10 {
			has = host.Resources{MilliCPU: 8_000, MemBytes: 16 << 30, DiskBytes: 1 << 40, Slots: 1000}
		}
		var stream []host.Resources
		for range most {
			// CPU and memory in no fixed ratio: that is what strands either.
			stream = append(stream, host.Resources{MilliCPU: 500 << rng.IntN(4), MemBytes: 1 << 30 << rng.IntN(4), DiskBytes: 1 << 30, Slots: 1})
		}
		placed, err := fill(s, has, hosts, stream, rng)
		if err != nil {
			return 0, err
		}
		could := best(has, hosts, stream)
		if placed > could {
			return 0, fmt.Errorf("%s placed %d: more than %d, which is the most that is possible", m.name, placed, could)
		}
		sum += 100 * float64(could-placed) / float64(could)
	}
	return sum / float64(fleets), nil
}

// fill places the sandboxes of stream until one finds no room, and returns how
// many it placed.
func fill(s *scheduler.Scheduler, has host.Resources, hosts int, stream []host.Resources, rng *rand.Rand) (int, error) {
	var list []host.Facts
	for i := range hosts {
		list = append(list, host.Facts{Registration: host.Registration{ID: host.ID(fmt.Sprintf("h%03d", i)), InstanceType: "cubebox", Capacity: has, Allocatable: has}, Status: host.Status{Ready: true}, HeardAt: fleet.Begin})
	}
	v, books := scheduler.NewView(list, fleet.Begin), scheduler.NewLedger()
	for i, size := range stream {
		id := sandbox.ID(fmt.Sprintf("i%024x", i))
		if _, err := s.Choose(v, books, scheduler.Request{Sandbox: id, InstanceType: "cubebox", Resources: size, Seed: rng.Uint64()}, fleet.Begin); err != nil {
			return i, noRoom(err)
		}
		books.ConfirmAt(id, fleet.Begin, 0)
	}
	return 0, fmt.Errorf("%d sandboxes did not fill %d hosts", len(stream), hosts)
}

// volume is how much of a stream fits into the sum of all hosts, if a sandbox
// could be cut in pieces: the bound of every placement.
func volume(has host.Resources, hosts int, stream []host.Resources) int {
	var all, sum host.Resources
	for range hosts {
		all = all.Add(has)
	}
	for i, size := range stream {
		if sum = sum.Add(size); !sum.Fits(all) {
			return i
		}
	}
	return len(stream)
}

// exhaustive is how much of a stream the best of all placements takes. Hosts
// that are alike are tried once.
func exhaustive(has host.Resources, hosts int, stream []host.Resources) int {
	bound, best := volume(has, hosts, stream), 0
	left := make([]host.Resources, hosts)
	for i := range left {
		left[i] = has
	}
	var try func(i int)
	met := map[string]bool{}
	try = func(i int) {
		if best = max(best, i); best == bound || i == len(stream) {
			return
		}
		key := stateOf(i, left)
		if met[key] {
			return
		}
		met[key] = true
		for h := range left {
			if !stream[i].Fits(left[h]) {
				continue
			}
			before := left[h]
			left[h] = left[h].Sub(stream[i])
			try(i + 1)
			left[h] = before
		}
	}
	try(0)
	return best
}

// stateOf names what is left, whichever host has it: what was tried from there
// need not be tried again.
func stateOf(i int, left []host.Resources) string {
	sorted := slices.Clone(left)
	slices.SortFunc(sorted, func(a, b host.Resources) int {
		return cmp.Or(cmp.Compare(a.MilliCPU, b.MilliCPU), cmp.Compare(a.MemBytes, b.MemBytes))
	})
	return fmt.Sprint(i, sorted)
}

// noRoom is nil for the refusal that ends a fill.
func noRoom(err error) error {
	if errors.Is(err, fault.NoCapacity) {
		return nil
	}
	return err
}
