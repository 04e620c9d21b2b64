// Command scheduler measures what a decision costs: the production scheduler,
// with every guard, the default scores and a ledger that lives, on fleets of
// 300 to 50,000 hosts, beside a plain filter and sort over the same hosts in
// the same run. It must never count what the decision itself does not do: no
// database, no network.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/bench"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/scheduler/sim"
)

var sizes = []int{300, 1000, 10_000, 50_000}

func main() {
	asJSON := flag.Bool("json", false, "print one JSON object for each figure")
	n := flag.Int("n", 4000, "decisions on each fleet")
	flag.Parse()
	err := fmt.Errorf("-n %d: must be at least 100", *n)
	if *n >= 100 {
		err = measure(*n, *asJSON)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func measure(n int, asJSON bool) error {
	// The time of this thread: what others do on the machine is not our cost.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var figures []bench.Figure
	for _, size := range sizes {
		f, err := decisions(size, n)
		if err != nil {
			return err
		}
		figures = append(figures, f...)
	}
	change, err := changes(10_000, n)
	if err != nil {
		return err
	}
	regret, err := sampled(10_000, n)
	if err != nil {
		return err
	}
	run, err := simulated(10_000, n)
	if err != nil {
		return err
	}
	return bench.Print(os.Stdout, asJSON, append(figures, change, regret, run)...)
}

// spent is the time that this thread has worked.
func spent() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // the kernel has had this clock for as long as threads
	}
	return time.Duration(t.Nano())
}

var begin = time.Unix(1_800_000_000, 0)

// fleet draws hosts in use: two types, three zones, fifty artifacts of which
// each host holds most, and what hosts measure.
func fleet(size int) []host.Facts {
	rng := rand.New(rand.NewPCG(1, uint64(size))) //nolint:gosec // the same in every run
	hosts := make([]host.Facts, size)
	has := host.Resources{MilliCPU: 64_000, MemBytes: 128 << 30, DiskBytes: 2 << 40, Slots: 256}
	for i := range hosts {
		used := rng.Float64() * 0.95
		part := func(n int64) int64 { return int64(float64(n) * used * (0.9 + rng.Float64()/10)) }
		h := host.Facts{
			Registration: host.Registration{ID: host.ID(fmt.Sprintf("host-%05d", i)), InstanceType: "cubebox", Zone: fmt.Sprint("zone-", i%3), Capacity: has, Allocatable: has},
			Status:       host.Status{Ready: i%50 != 0, Allocated: host.Resources{MilliCPU: part(has.MilliCPU), MemBytes: part(has.MemBytes), DiskBytes: part(has.DiskBytes), Slots: part(has.Slots)}, CPUUtil: 70 * used},
			Cordoned:     i%97 == 0, HeardAt: begin,
		}
		if i%10 == 0 {
			h.InstanceType = "large"
		}
		h.Sandboxes = int(h.Allocated.Slots)
		h.Usage = host.Usage{CPULoad: 40 * used, MemUsedBytes: part(has.MemBytes) / 2, DataDisk: 60 * used, StorageDisk: 60 * used, SysDisk: 30, Creating: int64(rng.IntN(20))}
		for a := range 50 {
			if rng.IntN(10) > 0 {
				h.Artifacts = append(h.Artifacts, fmt.Sprint("rfs-", a))
			}
		}
		hosts[i] = h
	}
	return hosts
}

// requests draws n creates.
func requests(n int) []scheduler.Request {
	rng := rand.New(rand.NewPCG(2, uint64(n))) //nolint:gosec // the same in every run
	all := make([]scheduler.Request, n)
	for i := range all {
		all[i] = scheduler.Request{
			Sandbox: sandbox.ID(fmt.Sprintf("i%024x", i)), Template: "tpl-a", InstanceType: "cubebox", Seed: rng.Uint64(),
			Resources: host.Resources{MilliCPU: 500*(1+rng.Int64N(8)) + int64(i), MemBytes: (1 + rng.Int64N(8)) << 29, DiskBytes: 10 << 30, Slots: 1},
		}
		all[i].Artifact = artifacts[rng.IntN(len(artifacts))]
	}
	return all
}

// decisions measures choices that are all different, and those of a few
// templates, as most are.
func decisions(size, n int) ([]bench.Figure, error) {
	reqs := requests(n + n/10)
	figures, mean, err := choices(size, reqs, "exact_per_s", "p99_us", "choices with their charge on one core, no two alike, every host looked at; by the time of the thread")
	if err != nil {
		return nil, err
	}
	for i := range reqs {
		reqs[i].Artifact, reqs[i].Resources = artifacts[i%20], host.Resources{MilliCPU: 1000, MemBytes: 2 << 30, DiskBytes: 10 << 30, Slots: 1}
	}
	few, _, err := choices(size, reqs, "few_templates_per_s", "few_templates_p99_us", "the same of 20 templates: what has not changed since the last choice of a template is remembered, to the same end")
	if err != nil {
		return nil, err
	}
	hosts, rounds := fleet(size), min(100, n)
	began, sum := spent(), 0.0
	for i := range rounds {
		sum += plain(hosts, &reqs[i])
	}
	peer := (spent() - began) / time.Duration(rounds)
	if sum == 0 {
		return nil, fmt.Errorf("the plain scheduler chose nothing on %d hosts", size)
	}
	return append(append(figures, few...), bench.Figure{
		Name: fmt.Sprintf("scheduler.vs_sort.%d", size), Value: float64(peer) / float64(mean), Unit: "x", N: rounds,
		Note: fmt.Sprintf("plain filter and sort of the same hosts takes %.0f us, beside the first of these", us(peer)),
	}), nil
}

// choices makes n choices of which the last few hundred are held.
func choices(size int, reqs []scheduler.Request, rate, tail, note string) ([]bench.Figure, time.Duration, error) {
	n := len(reqs) * 10 / 11
	s, err := scheduler.New(scheduler.ClusterConfig())
	if err != nil {
		return nil, 0, err
	}
	v, l := scheduler.NewView(fleet(size), begin), scheduler.NewLedger()
	var d scheduler.Decision
	held := min(2*size, n/20)
	costs := make([]time.Duration, 0, len(reqs))
	var before, after runtime.MemStats
	warm := len(reqs) - n
	for i := range reqs {
		if i == warm {
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
		began := spent()
		if err := s.ChooseInto(&d, v, l, &reqs[i], begin); err != nil {
			return nil, 0, err
		}
		if i >= warm {
			costs = append(costs, spent()-began)
		}
		if i >= held {
			l.Release(reqs[i-held].Sandbox)
		}
	}
	runtime.ReadMemStats(&after)
	var total time.Duration
	for _, c := range costs {
		total += c
	}
	slices.Sort(costs)
	mean, p50, p99 := total/time.Duration(n), costs[n/2], costs[n*99/100]
	name := func(what string) string { return fmt.Sprintf("scheduler.%s.%d", what, size) }
	figures := []bench.Figure{
		{Name: name(rate), Value: float64(time.Second) / float64(mean), Unit: "/s", N: n, Note: note},
		{Name: name(tail), Value: us(p99), Unit: "us", N: n, Note: fmt.Sprintf("median %.1f us; %d of %d hosts were fit for the last", us(p50), d.Fit, size)},
	}
	if rate == "exact_per_s" {
		figures = append(figures, bench.Figure{Name: name("allocs"), Value: float64(after.Mallocs-before.Mallocs) / float64(n), Unit: "allocs", N: n, Note: "of memory, for one decision and its charge"})
	}
	return figures, mean, nil
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// changes measures what the report of one host costs.
func changes(size, n int) (bench.Figure, error) {
	hosts := fleet(size)
	v := scheduler.NewView(hosts, begin)
	began := spent()
	for i := range n {
		h := hosts[i*7919%size]
		h.Allocated.MilliCPU++
		v = v.With(begin, []host.Facts{h})
	}
	each := (spent() - began) / time.Duration(n)
	if v.Len() != size {
		return bench.Figure{}, fmt.Errorf("the view has %d of %d hosts", v.Len(), size)
	}
	return bench.Figure{Name: fmt.Sprintf("scheduler.change_us.%d", size), Value: us(each), Unit: "us", N: n, Note: "a view in which one host has changed"}, nil
}

// sampled measures how much worse a choice among a few is than the best.
func sampled(size, n int) (bench.Figure, error) {
	config := scheduler.ClusterConfig()
	exact, err := scheduler.New(config)
	if err != nil {
		return bench.Figure{}, err
	}
	config.Pick, config.BestOf = "best_of_k", 16
	few, err := scheduler.New(config)
	if err != nil {
		return bench.Figure{}, err
	}
	v, l := scheduler.NewView(fleet(size), begin), scheduler.NewLedger()
	var sum float64
	n = min(n, 1000)
	for _, r := range requests(n) {
		best, err := exact.Decide(v, l, r, begin)
		if err != nil {
			return bench.Figure{}, err
		}
		one, err := few.Decide(v, l, r, begin)
		if err != nil {
			return bench.Figure{}, err
		}
		sum += 100 * (best.Score - one.Score) / best.Score
	}
	return bench.Figure{Name: "scheduler.regret", Value: sum / float64(n), Unit: "%", N: n, Note: fmt.Sprintf("of the score of the best of %d hosts, when the best of 16 is taken", size)}, nil
}

// simulated replays a trace with three masters.
func simulated(size, n int) (bench.Figure, error) {
	r := sim.Defaults()
	has := host.Resources{MilliCPU: 32_000, MemBytes: 64 << 30, DiskBytes: 500 << 30, Slots: 100}
	r.Hosts = sim.Fleet{Hosts: size, Has: has, Zones: 3, Templates: 50, Holding: 0.5}.Build(1)
	r.Trace = sim.Generate(1, sim.Load{
		Creates: n, PerSecond: 400, Life: 20 * time.Second, Templates: 50, Skew: 1, Deadline: 5 * time.Second,
		Sizes: []sim.Size{{Resources: host.Resources{MilliCPU: 1000, MemBytes: 2 << 30, DiskBytes: 1 << 30, Slots: 1}, Weight: 1}},
	})
	r.Seed, r.Watch = 1, spent
	got, err := r.Do()
	if err != nil {
		return bench.Figure{}, err
	}
	if got.Oversold+got.Doubled+got.Leaked > 0 {
		return bench.Figure{}, fmt.Errorf("oversold %d, doubled %d, leaked %d: all must be 0", got.Oversold, got.Doubled, got.Leaked)
	}
	return bench.Figure{Name: fmt.Sprintf("scheduler.sim_per_s.%d", size), Value: got.PerSecond, Unit: "/s", N: got.Decisions, Note: fmt.Sprintf("in simulation, 3 masters, views that change; %d placed, 0 oversold, Jain %.3f, template hits %.2f", got.Placed, got.Jain, got.Hits)}, nil
}
