// Command kube runs the scheduler of Kubernetes beside ours: over the same
// hosts, with the same requests, in the same run, each on one core. It is a
// module of its own, so that nothing else depends on Kubernetes.
//
// It must never make the peer do what it would not do for itself: its plugins,
// cache and snapshot are used as its own scheduling loop uses them, and the
// API server that it would talk to costs nothing here.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/bench"
	"github.com/paddock-dev/paddock/bench/fleet"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

var sizes = []int{300, 1000, 5000, 10_000}

func main() {
	asJSON := flag.Bool("json", false, "print one JSON object for each figure")
	n := flag.Int("n", 200, "decisions of each scheduler on each fleet")
	flag.Parse()
	runtime.GOMAXPROCS(1) // idle cores would collect garbage more often than there is need, and all time counts
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := fmt.Errorf("-n %d: must be at least 100", *n)
	if *n >= 100 {
		err = measure(ctx, *n, *asJSON)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1) //nolint:gocritic // stop frees nothing that the exit does not
	}
}

// placer is a scheduler: it chooses a host and counts what it took there.
type placer interface {
	place(ctx context.Context, i int) (host.ID, error)
	// remove ends what the request i was placed for.
	remove(i int) error
}

func measure(ctx context.Context, n int, asJSON bool) error {
	var figures []bench.Figure
	for _, size := range sizes {
		hosts, reqs := fleet.Hosts(size), fleet.Requests(n+n/10)
		own, err := run(ctx, hosts, reqs, newOurs)
		if err != nil {
			return err
		}
		ours := float64(time.Second) / float64(own.mean)
		figures = append(figures, bench.Figure{Name: fmt.Sprint("scheduler.beside_kube_per_s.", size), Value: ours, Unit: "/s", N: n, Note: fmt.Sprintf("ours, no two requests of one size; p99 %.0f us", own.p99)})
		for _, p := range []peer{
			{name: "vs_kube", plugins: likeOurs, percent: 100, note: "of kube-scheduler v1.34 that looks at every node, with the filters and the score that are like ours"},
			{name: "vs_kube_sampled", plugins: likeOurs, percent: 0, note: "of the same that looks at as few nodes as it does by default"},
			{name: "vs_kube_whole", plugins: nil, percent: 0, note: "of the same with all of its default plugins"},
		} {
			got, err := run(ctx, hosts, reqs, p.make)
			if err != nil {
				return fmt.Errorf("%s, %d hosts: %w", p.name, size, err)
			}
			theirs := float64(time.Second) / float64(got.mean)
			figures = append(figures,
				bench.Figure{Name: fmt.Sprintf("scheduler.%s_per_s.%d", p.name, size), Value: theirs, Unit: "/s", N: n, Note: fmt.Sprintf("decisions per second and core %s; p99 %.0f us", p.note, got.p99)},
				bench.Figure{Name: fmt.Sprintf("scheduler.%s.%d", p.name, size), Value: ours / theirs, Unit: "x", N: n, Note: "our decisions per second, which look at every host, over those"})
		}
	}
	return bench.Print(os.Stdout, asJSON, figures...)
}

type result struct {
	mean time.Duration
	p99  float64 // in microseconds
}

// run lets a scheduler place all requests on hosts of its own, of which the
// last few are held.
func run(ctx context.Context, hosts []host.Facts, reqs []scheduler.Request, with func(context.Context, []host.Facts, []scheduler.Request) (placer, error)) (result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends what the scheduler began
	p, err := with(ctx, hosts, reqs)
	if err != nil {
		return result{}, err
	}
	c := newCheck(hosts)
	warm, held := len(reqs)/11, len(reqs)/5
	var costs []time.Duration
	var total time.Duration
	for i := range reqs {
		began := spent()
		on, err := p.place(ctx, i)
		took := spent() - began
		if err == nil {
			err = c.take(&reqs[i], on)
		}
		if err == nil && i >= held {
			c.drop(&reqs[i-held])
			err = p.remove(i - held)
		}
		if err != nil {
			return result{}, fmt.Errorf("request %d: %w", i, err)
		}
		if i >= warm {
			costs, total = append(costs, took), total+took
		}
	}
	slices.Sort(costs)
	return result{mean: total / time.Duration(len(costs)), p99: float64(costs[len(costs)*99/100]) / float64(time.Microsecond)}, nil
}

// spent is the time that all threads of this process have worked: the peer's
// filters run on goroutines of their own.
func spent() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err) // the kernel has had this clock for as long as threads
	}
	return time.Duration(t.Nano())
}

// check keeps books of its own: a placement that is wrong is no decision.
type check struct {
	at   map[host.ID]*host.Facts
	free map[host.ID]host.Resources
	on   map[*scheduler.Request]host.ID
}

func newCheck(hosts []host.Facts) *check {
	c := &check{at: map[host.ID]*host.Facts{}, free: map[host.ID]host.Resources{}, on: map[*scheduler.Request]host.ID{}}
	for i := range hosts {
		h := &hosts[i]
		c.at[h.ID], c.free[h.ID] = h, h.Allocatable.Sub(h.Allocated)
	}
	return c
}

func (c *check) take(r *scheduler.Request, on host.ID) error {
	h := c.at[on]
	switch {
	case h == nil:
		return fmt.Errorf("host %q does not exist", on)
	case !h.Ready || h.Cordoned || h.InstanceType != r.InstanceType || !slices.Contains(h.Artifacts, string(r.Artifact)):
		return fmt.Errorf("host %s is not fit", on)
	case !r.Resources.Fits(c.free[on]):
		return fmt.Errorf("host %s has no room", on)
	}
	c.free[on], c.on[r] = c.free[on].Sub(r.Resources), on
	return nil
}

func (c *check) drop(r *scheduler.Request) { c.free[c.on[r]] = c.free[c.on[r]].Add(r.Resources) }

// ours is the production scheduler, with every guard.
type ours struct {
	s    *scheduler.Scheduler
	v    *scheduler.View
	l    *scheduler.Ledger
	reqs []scheduler.Request
	d    scheduler.Decision
}

func newOurs(_ context.Context, hosts []host.Facts, reqs []scheduler.Request) (placer, error) {
	s, err := scheduler.New(scheduler.ClusterConfig())
	return &ours{s: s, v: scheduler.NewView(hosts, fleet.Begin), l: scheduler.NewLedger(), reqs: reqs}, err
}

func (o *ours) place(_ context.Context, i int) (host.ID, error) {
	err := o.s.ChooseInto(&o.d, o.v, o.l, &o.reqs[i], fleet.Begin)
	return o.d.Host, err
}

func (o *ours) remove(i int) error {
	o.l.Release(o.reqs[i].Sandbox)
	return nil
}
