package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler/sim"
)

// simFlags are a run and what it runs on, as the command line has it.
type simFlags struct {
	run          sim.Run
	trace, fleet string // files; empty: drawn
	rules        string // a file; empty: the defaults
	load         sim.Load
	hosts        sim.Fleet
	cpu, mem     string // of a drawn host
	sizes        []string
	tenants      []string
	noTiming     bool
}

// simulated is what `paddock sim` prints.
type simulated struct {
	Hosts   int    `json:"hosts"`
	Creates int    `json:"creates"`
	Masters int    `json:"masters"`
	Seed    uint64 `json:"seed"`
	sim.Result
}

func (a *app) simCommand() *cobra.Command {
	s := simFlags{run: sim.Defaults()}
	c := &cobra.Command{
		Use: "sim", Short: "Run a recorded or drawn load on the scheduler, in virtual time", Args: args(0, 0),
		Long: "Run the creates of --trace on the hosts of --fleet, or drawn ones, through the scheduler that masters run: each master knows only what\n" +
			"it did and what hosts report, and hosts admit by their own truth. The same input and seed give the same decisions, bit for bit; with\n" +
			"--no-timing the same output. `paddock schedule trace` and `paddock schedule fleet` record what is simulated. The exit status is 1 if a\n" +
			"host was oversold, a sandbox doubled, or room leaked.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.run.Stop = func() bool { return cmd.Context().Err() != nil }
			out, err := a.simulate(s)
			if err != nil {
				return err
			}
			if err := a.show(out, func(w io.Writer) { printSimulated(w, out) }); err != nil {
				return err
			}
			if out.Oversold+out.Doubled+out.Leaked > 0 {
				return exitStatus(1)
			}
			return nil
		},
	}
	s.add(c)
	return c
}

func (s *simFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.trace, "trace", "", "`FILE` of creates, as \"paddock schedule trace\" prints them; - for standard input (default: drawn)")
	f.StringVar(&s.rules, "rules", "", "`FILE` of rules that the masters decide by (default: those of a master without one); external scorers are not asked")
	f.StringVar(&s.fleet, "fleet", "", "`FILE` of hosts, as \"paddock schedule fleet\" prints them (default: drawn)")
	f.Uint64Var(&s.run.Seed, "seed", 1, "of all chance")
	f.IntVar(&s.run.Masters, "masters", s.run.Masters, "masters that share the load")
	f.IntVar(&s.run.InFlight, "in-flight", s.run.InFlight, "creates that a master has under way at once")
	f.DurationVar(&s.run.Report, "report", s.run.Report, "how often a host reports")
	f.DurationVar(&s.run.Create, "create", s.run.Create, "how long a host takes to make a sandbox, on average")
	f.Float64Var(&s.run.Lost, "lost", 0, "share of the answers of hosts that get lost, 0 to 1")
	f.BoolVar(&s.noTiming, "no-timing", false, "leave out what is measured by a clock")

	f.IntVar(&s.load.Creates, "creates", 10_000, "drawn: how many")
	f.Float64Var(&s.load.PerSecond, "rate", 40, "drawn: creates a second")
	f.DurationVar(&s.load.Life, "life", 20*time.Second, "drawn: how long a sandbox lives on average; 0: for ever")
	f.DurationVar(&s.load.Deadline, "deadline", 0, "drawn: after which a create is given up; 0: never")
	f.IntVar(&s.load.Templates, "templates", 20, "drawn: how many templates there are; 0: none")
	f.Float64Var(&s.load.Skew, "skew", 1, "drawn: how much more the first templates are used: 0 is even, 1 is Zipf's law")
	f.StringSliceVar(&s.tenants, "tenant", nil, "drawn: NAME=WEIGHT of who sends creates")
	f.StringSliceVar(&s.sizes, "size", []string{"1:1Gi:3", "2:8Gi:1", "8:4Gi:1"}, "drawn: CPU:MEMORY:WEIGHT of sandboxes")

	f.IntVar(&s.hosts.Hosts, "hosts", 100, "drawn: how many hosts")
	f.StringVar(&s.cpu, "host-cpu", "32", "drawn: CPU of a host")
	f.StringVar(&s.mem, "host-memory", "64Gi", "drawn: memory of a host")
	f.Int64Var(&s.hosts.Has.Slots, "host-slots", 100, "drawn: sandboxes that a host takes")
	f.IntVar(&s.hosts.Zones, "zones", 3, "drawn: zones that the hosts are in")
	f.Float64Var(&s.hosts.Holding, "holding", 0.3, "drawn: share of the hosts that hold a template")
}

// Bounds of what is drawn: beyond them a run takes all memory, or for ever.
const (
	mostHosts   = 100_000
	mostCreates = 2_000_000
)

func (a *app) simulate(s simFlags) (out simulated, err error) {
	if s.rules != "" {
		rules, _, err := a.readRules("--rules", s.rules)
		if err != nil {
			return out, err
		}
		s.run.Config, s.run.Breaker, s.run.Retry, s.run.Queue = rules.Scheduler, rules.Breaker, rules.Retry, rules.Queue
	}
	if s.fleet != "" {
		s.run.Hosts, err = readFile(a, s.fleet, sim.ReadFleet)
	} else {
		s.run.Hosts, err = s.drawHosts()
	}
	if err != nil {
		return out, err
	}
	if s.trace != "" {
		s.run.Trace, err = readFile(a, s.trace, sim.Read)
		sim.Live(s.run.Trace)
	} else {
		s.run.Trace, err = s.drawLoad()
	}
	if err != nil {
		return out, err
	}
	if s.fleet == "" {
		sim.Hold(s.run.Seed, s.run.Hosts, s.run.Trace, s.hosts.Holding)
	}
	if began := time.Now(); !s.noTiming {
		s.run.Watch = func() time.Duration { return time.Since(began) }
	}
	out = simulated{Hosts: len(s.run.Hosts), Creates: len(s.run.Trace), Masters: s.run.Masters, Seed: s.run.Seed}
	out.Result, err = s.run.Do()
	return out, err
}

func readFile[T any](a *app, name string, read func(io.Reader) ([]T, error)) ([]T, error) {
	if name == "-" {
		return read(a.stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "simulation")
	}
	defer f.Close()
	list, err := read(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return list, err
}

func (s *simFlags) drawHosts() ([]host.Facts, error) {
	if s.hosts.Hosts < 1 || s.hosts.Hosts > mostHosts || s.hosts.Zones < 0 || !(s.hosts.Holding >= 0 && s.hosts.Holding <= 1) || s.hosts.Has.Slots < 0 {
		return nil, fault.New(fault.InvalidInput, "--hosts must be 1 to %d, --zones and --host-slots at least 0, --holding 0 to 1", mostHosts)
	}
	var err error
	if s.hosts.Has.MilliCPU, err = sandbox.MilliCPU(s.cpu); err != nil {
		return nil, fmt.Errorf("--host-cpu: %w", err)
	}
	if s.hosts.Has.MemBytes, err = sandbox.Bytes(s.mem, "Mi"); err != nil {
		return nil, fmt.Errorf("--host-memory: %w", err)
	}
	s.hosts.Has.DiskBytes, s.hosts.Templates = 1<<40, max(0, s.load.Templates)
	return s.hosts.Build(s.run.Seed), nil
}

func (s *simFlags) drawLoad() ([]sim.Event, error) {
	l := &s.load
	if l.Creates < 0 || l.Creates > mostCreates || !(l.PerSecond > 0 && l.PerSecond <= 1e9) || l.Life < 0 || l.Deadline < 0 || l.Templates < 0 || l.Templates > mostHosts || !(l.Skew >= 0 && l.Skew <= 100) {
		return nil, fault.New(fault.InvalidInput, "--creates must be 0 to %d, --rate over 0, --life and --deadline at least 0, --templates 0 to %d, --skew 0 to 100", mostCreates, mostHosts)
	}
	const longest = 31 * 24 * time.Hour
	if took := float64(l.Creates) / l.PerSecond; took > longest.Seconds() || l.Life > longest || l.Deadline > longest {
		return nil, fault.New(fault.InvalidInput, "--creates %d at --rate %g take too long, or --life or --deadline does: at most %s each", l.Creates, l.PerSecond, longest)
	}
	for _, text := range s.sizes {
		one := strings.Split(text, ":")
		if len(one) != 3 {
			return nil, fault.New(fault.InvalidInput, "--size %q: write CPU:MEMORY:WEIGHT, such as 2:8Gi:1", text)
		}
		r := host.Resources{DiskBytes: 1 << 30, Slots: 1}
		weight, err := weightOf("--size", one[2])
		if err == nil {
			r.MilliCPU, err = sandbox.MilliCPU(one[0])
		}
		if err == nil {
			r.MemBytes, err = sandbox.Bytes(one[1], "Mi")
		}
		if err != nil {
			return nil, fmt.Errorf("--size %s: %w", text, err)
		}
		l.Sizes = append(l.Sizes, sim.Size{Resources: r, Weight: weight})
	}
	if len(l.Sizes) == 0 {
		return nil, fault.New(fault.InvalidInput, "--size is missing")
	}
	for _, text := range s.tenants {
		name, weight, _ := strings.Cut(text, "=")
		if name == "" {
			return nil, fault.New(fault.InvalidInput, "--tenant %q: write NAME=WEIGHT", text)
		}
		w, err := weightOf("--tenant "+text, cmp.Or(weight, "1"))
		if err != nil {
			return nil, err
		}
		l.Tenants = append(l.Tenants, sim.Tenant{Name: name, Weight: w})
	}
	return sim.Generate(s.run.Seed, *l), nil
}

func weightOf(what, text string) (float64, error) {
	w, err := strconv.ParseFloat(text, 64)
	if err != nil || !(w > 0 && w <= 1e9) {
		return 0, fault.New(fault.InvalidInput, "%s: weight %q must be a number over 0", what, text)
	}
	return w, nil
}

func printSimulated(w io.Writer, s simulated) {
	fmt.Fprintf(w, "hosts:\t%d\nmasters:\t%d\nseed:\t%d\n", s.Hosts, s.Masters, s.Seed)
	fmt.Fprintf(w, "creates:\t%d\nplaced:\t%d\n", s.Creates, s.Placed)
	for _, one := range []struct {
		n          int
		name, note string
	}{
		{s.Refused, "refused", "no host was fit"},
		{s.TurnedAway, "turned away", "the queue was full"},
		{s.Late, "late", "its turn came after its deadline"},
		{s.GivenUp, "given up", "after attempts"},
	} {
		if one.n > 0 {
			fmt.Fprintf(w, "%s:\t%d, %s\n", one.name, one.n, one.note)
		}
	}
	fmt.Fprintf(w, "decisions:\t%d\n", s.Decisions)
	if s.PerSecond > 0 {
		fmt.Fprintf(w, "decisions/s:\t%.0f, p50 %s, p99 %s\n", s.PerSecond, s.Result.P50.Round(time.Microsecond/10), s.Result.P99.Round(time.Microsecond/10))
	}
	fmt.Fprintf(w, "retries:\t%d, a host had no room after all %d times, %d answers lost\n", s.Retries, s.HostSaidFull, s.RepliesLost)
	for _, tenant := range slices.Sorted(maps.Keys(s.Latency)) {
		l := s.Latency[tenant]
		fmt.Fprintf(w, "latency%s:\tp50 %s, p99 %s of %d\n", map[bool]string{true: "", false: " of " + tenant}[tenant == ""], l.P50.Round(time.Microsecond), l.P99.Round(time.Microsecond), l.N)
	}
	fmt.Fprintf(w, "fairness:\t%.4f between tenants, %.4f between hosts (Jain)\n", s.Fairness, s.Jain)
	fmt.Fprintf(w, "template hits:\t%.1f%%\nactive hosts:\t%.1f\ncpu used:\t%.1f%%\nstranded:\t%.1f%% of the CPU\n", 100*s.Hits, s.Active, 100*s.Used, 100*s.Stranded)
	fmt.Fprintf(w, "oversold:\t%d\ndoubled:\t%d\nleaked:\t%d\ndigest:\t%s\n", s.Oversold, s.Doubled, s.Leaked, s.Digest)
}
