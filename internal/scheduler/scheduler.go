// Package scheduler chooses the host of a sandbox, and says why.
//
// A choice is a pipeline of named plugins compiled from configuration:
// prefilters drop hosts that may not be chosen at all, filters drop those that
// cannot take this request, scores rank the rest, and a pick takes one. It
// looks at an immutable View of the fleet and at the Ledger of what earlier
// choices took, so the same View, Ledger and Request give the same Decision on
// every machine.
//
// This package decides and does nothing else: it must never call a host, read
// a clock or a database, start a goroutine, or log. Time is an argument.
package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/template"
)

// Request is what is to be placed.
type Request struct {
	Sandbox      sandbox.ID
	Template     template.ID
	Artifact     template.ArtifactID // empty: no template, so locality says nothing
	InstanceType string              // empty: any
	Resources    host.Resources
	Scope        []host.ID // empty: the whole fleet
	Exclude      []host.ID // hosts of failed attempts of this same request
	Seed         uint64    // breaks ties; the same seed breaks them the same way
	Explain      bool      // fill Decision.Dropped and Decision.Scores
}

// Weighted is a score with its weight in the mean.
type Weighted struct {
	Name   string
	Weight float64
}

// Config names the plugins in the order in which they run.
type Config struct {
	Prefilters []string
	Filters    []string
	Scores     []Weighted
	Pick       string
	// StaleAfter is how long a host may be silent before it is not chosen.
	StaleAfter time.Duration
}

// DefaultConfig spreads load, prefers hosts that hold the template, and lets
// only hosts that hold it be chosen.
func DefaultConfig() Config {
	return Config{
		Prefilters: []string{"excluded", "health", "scope", "instance_type"},
		Filters:    []string{"template_locality", "cpu", "mem", "disk", "slots"},
		Scores:     []Weighted{{"least_allocated", 1}, {"create_pressure", 0.5}},
		Pick:       "highest",
		StaleAfter: 10 * time.Second,
	}
}

// Scheduler is a compiled Config. It is immutable and safe for concurrent use.
type Scheduler struct {
	filters    []filter
	scores     []score
	weights    []float64 // of scores; they sum to 1
	pick       picker
	staleAfter time.Duration
}

// New compiles c. Every unknown name and bad number is reported at once, with
// code fault.BadConfig.
func New(c Config) (*Scheduler, error) {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	s := &Scheduler{staleAfter: c.StaleAfter}
	if c.StaleAfter <= 0 {
		bad("scheduler stale_after %s: must be positive", c.StaleAfter)
	}
	for _, name := range slices.Concat(c.Prefilters, c.Filters) {
		f, ok := filters[name]
		if !ok {
			bad("scheduler filter %q is unknown: known are %s", name, known(filters))
		}
		if slices.ContainsFunc(s.filters, func(have filter) bool { return have.name == name }) {
			bad("scheduler filter %q is listed twice", name)
		}
		f.name = name
		s.filters = append(s.filters, f)
	}
	var sum float64
	for _, w := range c.Scores {
		sc, ok := scores[w.Name]
		if !ok {
			bad("scheduler score %q is unknown: known are %s", w.Name, known(scores))
		}
		// Written so that NaN is refused too.
		if !(w.Weight > 0 && w.Weight <= 1e6) {
			bad("scheduler score %q has weight %v: must be over 0 and at most 1000000", w.Name, w.Weight)
		}
		s.scores = append(s.scores, sc)
		s.weights = append(s.weights, w.Weight)
		sum += w.Weight
	}
	for i := range s.weights {
		s.weights[i] /= sum
	}
	pick, ok := pickers[c.Pick]
	if !ok {
		bad("scheduler pick %q is unknown: known are %s", c.Pick, known(pickers))
	}
	s.pick = pick
	if len(faults) > 0 {
		return nil, fault.Wrap(fault.BadConfig, errors.Join(faults...), "scheduler configuration")
	}
	return s, nil
}

// Decision is a choice with its reasons.
type Decision struct {
	Host       host.ID
	Score      float64 // 0..100
	RunnerUp   host.ID // empty when only one host was fit
	Considered int     // hosts that were looked at
	Fit        int     // hosts that passed every filter
	Out        []Count // how many each plugin dropped, in pipeline order
	Dropped    []Drop  // each of them, when the request asked to explain
	Scores     []Scored
}

// Count is how many hosts one plugin dropped.
type Count struct {
	Plugin string
	Hosts  int
}

// Drop is why one host was not fit: the first plugin that refused it.
type Drop struct {
	Host   host.ID
	Plugin string
	Reason string
}

// Scored is a fit host and what it scored.
type Scored struct {
	Host  host.ID
	Score float64
}

// Choose decides and charges the chosen host in one step, so that two choices
// never count on the same room. Its refusals are those of Decide.
func (s *Scheduler) Choose(v *View, l *Ledger, r Request, now time.Time) (Decision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, err := s.decide(v, l, r, now)
	if err == nil {
		l.charge(Charge{Sandbox: r.Sandbox, Host: d.Host, Resources: r.Resources, At: now})
	}
	return d, err
}

// Decide returns the host for r, or fault.NoHost when no host may be chosen at
// all, or fault.NoCapacity when some may but none has room. The message counts
// the refusals by plugin.
func (s *Scheduler) Decide(v *View, l *Ledger, r Request, now time.Time) (Decision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.decide(v, l, r, now)
}

func (s *Scheduler) decide(v *View, l *Ledger, r Request, now time.Time) (Decision, error) {
	c := newCycle(v, l, r, now, s.staleAfter)
	d := Decision{Considered: len(v.hosts)}
	out := make([]int, len(s.filters))
	fit := make([]int32, 0, len(v.hosts))
	for i := range v.hosts {
		if f := s.refusing(c, i); f < 0 {
			fit = append(fit, int32(i))
		} else {
			out[f]++
			if r.Explain {
				d.Dropped = append(d.Dropped, Drop{v.hosts[i].ID, s.filters[f].name, s.filters[f].why(c, i)})
			}
		}
	}
	d.Fit = len(fit)
	for f, n := range out {
		if n > 0 {
			d.Out = append(d.Out, Count{s.filters[f].name, n})
		}
	}
	if len(fit) == 0 {
		return d, s.refusal(d, r)
	}
	ranked := s.rank(c, fit)
	best, second := s.pick(c, ranked)
	d.Host, d.Score = v.hosts[ranked[best].at].ID, ranked[best].score
	if second >= 0 {
		d.RunnerUp = v.hosts[ranked[second].at].ID
	}
	if r.Explain {
		for _, k := range ranked {
			d.Scores = append(d.Scores, Scored{v.hosts[k.at].ID, k.score})
		}
		slices.SortStableFunc(d.Scores, func(a, b Scored) int { return compareDown(a.Score, b.Score) })
	}
	return d, nil
}

// refusing returns the index of the first filter that drops host i, or -1.
func (s *Scheduler) refusing(c *cycle, i int) int {
	for f := range s.filters {
		if !s.filters[f].pass(c, i) {
			return f
		}
	}
	return -1
}

func (s *Scheduler) rank(c *cycle, fit []int32) []ranked {
	list := make([]ranked, len(fit))
	for k, at := range fit {
		var total float64
		for n, score := range s.scores {
			total += s.weights[n] * score(c, int(at))
		}
		list[k] = ranked{at: at, score: total}
	}
	return list
}

// refusal tells apart a fleet that may not be used from one that is full: the
// first needs an operator, the second only time or another host.
func (s *Scheduler) refusal(d Decision, r Request) error {
	code, parts := fault.NoHost, []string{}
	for _, c := range d.Out {
		parts = append(parts, fmt.Sprintf("%s %d", c.Plugin, c.Hosts))
		if filters[c.Plugin].capacity {
			code = fault.NoCapacity
		}
	}
	reasons := "no host is registered"
	if len(parts) > 0 {
		reasons = "dropped by " + strings.Join(parts, ", ")
	}
	return fault.New(code, "place sandbox %s: %d hosts considered, %s", r.Sandbox, d.Considered, reasons)
}

func known[T any](m map[string]T) string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
