// Command scheduler measures what a decision costs: the production scheduler,
// with every guard, the default scores and a ledger that lives, on fleets of
// 300 to 50,000 hosts, beside a plain filter and sort over the same hosts in
// the same run. It must never count what the decision itself does not do: no
// database, no network.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/bench"
	"github.com/paddock-dev/paddock/bench/fleet"
	"github.com/paddock-dev/paddock/internal/host"
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
	far, err := regret(10_000, n)
	if err != nil {
		return err
	}
	run, err := simulated(10_000, n)
	if err != nil {
		return err
	}
	return bench.Print(os.Stdout, asJSON, append(append(figures, change, run), far...)...)
}

// spent is the time that this thread has worked.
func spent() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // the kernel has had this clock for as long as threads
	}
	return time.Duration(t.Nano())
}

// decisions measures choices that are all different, and those of a few
// templates, as most are.
func decisions(size, n int) ([]bench.Figure, error) {
	reqs := fleet.Requests(n + n/10)
	figures, mean, err := choices(size, reqs, "", "choices with their charge on one core, no two of one size, every host looked at")
	if err != nil {
		return nil, err
	}
	hosts, rounds := fleet.Hosts(size), min(100, n)
	began, sum := spent(), 0.0
	for i := range rounds {
		sum += plain(hosts, &reqs[i])
	}
	peer := (spent() - began) / time.Duration(rounds)
	if sum == 0 {
		return nil, fmt.Errorf("the plain scheduler chose nothing on %d hosts", size)
	}
	fleet.Popular(reqs)
	few, _, err := choices(size, reqs, "few_templates_", "the same of 20 templates in 4 sizes: what has not changed since the last choice of a template is remembered, to the same end")
	if err != nil {
		return nil, err
	}
	return append(append(figures, few...), bench.Figure{
		Name: fmt.Sprintf("scheduler.vs_sort.%d", size), Value: float64(peer) / float64(mean), Unit: "x", N: rounds,
		Note: fmt.Sprintf("plain filter and sort of the same hosts takes %.0f us, beside the first of these", us(peer)),
	}), nil
}

// reports is how often all hosts report while choices are measured.
const reports = 8

// choices makes choices on a fleet that lives: hosts take what is placed on
// them and let it go again, so that a few hundred are held, and report. What
// it costs to take in the reports is told beside, and not counted.
func choices(size int, reqs []scheduler.Request, prefix, note string) ([]bench.Figure, time.Duration, error) {
	n := len(reqs) * 10 / 11
	s, err := scheduler.New(scheduler.ClusterConfig())
	if err != nil {
		return nil, 0, err
	}
	l := newLiving(size)
	var d scheduler.Decision
	var refresh time.Duration
	var before, after runtime.MemStats
	var counted, allocated uint64
	held := min(2*size, n/20)
	costs := make([]time.Duration, 0, len(reqs))
	warm := len(reqs) - n
	for i := range reqs {
		if i%(n/reports) == 0 && i > 0 {
			refresh += l.report()
		}
		counts := i >= warm && i%16 == 0
		if counts {
			runtime.ReadMemStats(&before)
		}
		began := spent()
		if err := s.ChooseInto(&d, l.view, l.books, &reqs[i], l.now); err != nil {
			return nil, 0, err
		}
		if took := spent() - began; i >= warm {
			costs = append(costs, took)
		}
		if counts {
			runtime.ReadMemStats(&after)
			counted, allocated = counted+1, allocated+after.Mallocs-before.Mallocs
		}
		l.take(&reqs[i], d.Host)
		if i >= held {
			l.drop(&reqs[i-held])
		}
	}
	var total time.Duration
	for _, c := range costs {
		total += c
	}
	slices.Sort(costs)
	mean, p50, p99 := total/time.Duration(n), costs[n/2], costs[n*99/100]
	name := func(of string) string { return fmt.Sprintf("scheduler.%s%s.%d", prefix, of, size) }
	rate := "per_s"
	if prefix == "" {
		rate = "exact_per_s"
	}
	figures := []bench.Figure{
		{Name: name(rate), Value: float64(time.Second) / float64(mean), Unit: "/s", N: n, Note: note + "; by the time of the thread"},
		{Name: name("p99_us"), Value: us(p99), Unit: "us", N: n, Note: fmt.Sprintf("median %.1f us; %d of %d hosts were fit for the last", us(p50), d.Fit, size)},
		{Name: name("allocs"), Value: float64(allocated) / float64(counted), Unit: "allocs", N: int(counted), Note: "of memory, for one decision and its charge"},
	}
	if prefix == "" {
		figures = append(figures, bench.Figure{Name: name("reports_ms"), Value: us(refresh) / 1000 / reports, Unit: "ms", N: reports, Note: "to take in a report of every host at once, which a master does twice a second"})
	}
	return figures, mean, nil
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// changes measures what the report of one host costs.
func changes(size, n int) (bench.Figure, error) {
	hosts := fleet.Hosts(size)
	v := scheduler.NewView(hosts, fleet.Begin)
	began := spent()
	for i := range n {
		h := hosts[i*7919%size]
		h.Allocated.MilliCPU++
		v = v.With(fleet.Begin, []host.Facts{h})
	}
	each := (spent() - began) / time.Duration(n)
	if v.Len() != size {
		return bench.Figure{}, fmt.Errorf("the view has %d of %d hosts", v.Len(), size)
	}
	return bench.Figure{Name: fmt.Sprintf("scheduler.change_us.%d", size), Value: us(each), Unit: "us", N: n, Note: "a view in which one host has changed"}, nil
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
