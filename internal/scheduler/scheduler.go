// Package scheduler chooses the host of a sandbox, and says why.
//
// A choice is a pipeline of named plugins compiled from configuration:
// prefilters drop hosts that may not be chosen at all, filters drop those that
// cannot take this request, scores rank the rest, and a pick takes one. It
// looks at an immutable View of the fleet and at the Ledger of what earlier
// choices took, so the same View, Ledger and Request give the same Decision on
// every machine.
//
// Plugins work on pages of 64 hosts: a filter takes the hosts still in as the
// bits of a word and returns those that pass, a score adds to a column. That
// is why every host of a large fleet can be looked at for every choice.
//
// This package decides and does nothing else: it must never call a host, read
// a clock or a database, start a goroutine, or log. Time is an argument.
package scheduler

import (
	"cmp"
	"slices"
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
	ImageBytes   int64               // of the artifact; 0: unknown
	InstanceType string              // empty: any
	Labels       map[string]string   // choose the profile
	Resources    host.Resources
	Affinity     *Affinity
	Scope        []host.ID // hosts, or zones by name; empty: the whole fleet
	Exclude      []host.ID // hosts of failed attempts of this same request
	Breakers     *Breakers // nil: no host is shut out
	// External are scores of the hosts that Best returned, 0..100, made by
	// somebody else; nil: there are none, and no host is the worse for it.
	External map[host.ID]float64
	// Direct names the one host to take, for debugging: only its health and its
	// room are looked at, and with Force not even these.
	Direct  host.ID
	Force   bool
	Seed    uint64 // breaks ties; the same seed breaks them the same way
	Explain bool   // fill what Decision has for readers

	lists bool // the list of fit hosts is wanted
}

// Decision is a choice with its reasons.
type Decision struct {
	Host       host.ID
	Score      float64 // 0..100, before what white lists add
	RunnerUp   host.ID // empty when only one host was fit
	NextScore  float64 // of the runner-up
	Considered int     // hosts that were looked at
	Fit        int     // hosts that passed every filter
	Out        []Count // how many each plugin dropped, in pipeline order
	Profile    string
	Relaxed    []string // filters that were left out so that a host was fit
	// Blind tells that so many hosts fell silent at once that whoever hears
	// them is suspected; they were taken as last known.
	Blind   bool
	Nearest *Nearest // if no host had room: the one that lacked the least

	// When the request asked to explain.
	Dropped       []Drop
	Scores        []Scored
	Parts         []Part // of the host's score
	RunnerUpParts []Part
}

// Count is how many hosts one plugin dropped.
type Count struct {
	Plugin string
	Hosts  int
}

// Choose decides and charges the chosen host in one step, so that two choices
// never count on the same room. Its refusals are those of Decide.
func (s *Scheduler) Choose(v *View, l *Ledger, r Request, now time.Time) (Decision, error) {
	var d Decision
	err := s.ChooseInto(&d, v, l, &r, now)
	return d, err
}

// ChooseInto is Choose into a Decision whose room is used again.
func (s *Scheduler) ChooseInto(d *Decision, v *View, l *Ledger, r *Request, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := s.decide(d, v, l, r, now)
	if err == nil {
		s.charge(d, l, r, now)
	}
	return err
}

// ChooseAll is Choose for each request, in their order and in one step: what one
// takes is gone for the next. If all is set, either each gets its host or none
// is charged, and the first refusal is everybody's.
func (s *Scheduler) ChooseAll(v *View, l *Ledger, requests []Request, all bool, now time.Time) ([]Decision, []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	decisions, errs := make([]Decision, len(requests)), make([]error, len(requests))
	for i := range requests {
		r := &requests[i]
		if errs[i] = s.decide(&decisions[i], v, l, r, now); errs[i] == nil {
			s.charge(&decisions[i], l, r, now)
		} else if all {
			for k := range requests[:i] {
				l.release(requests[k].Sandbox)
			}
			for k := range errs {
				if errs[k] = errs[i]; k != i {
					decisions[k] = Decision{}
				}
			}
			break
		}
	}
	return decisions, errs
}

func (s *Scheduler) charge(d *Decision, l *Ledger, r *Request, now time.Time) {
	l.charge(Charge{Sandbox: r.Sandbox, Host: d.Host, Template: r.Template, Resources: r.Resources, At: now})
	r.Breakers.chosen(d.Host, r.Sandbox, now)
}

// Decide returns the host for r, or fault.NoHost when no host may be chosen at
// all, or fault.NoCapacity when some may but none has room. The message counts
// the refusals by plugin, and tells what the nearest host lacks.
func (s *Scheduler) Decide(v *View, l *Ledger, r Request, now time.Time) (Decision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var d Decision
	err := s.decide(&d, v, l, &r, now)
	return d, err
}

// Best returns the n best of the hosts that are fit for r, best first, for
// somebody else to score. Its refusals are those of Decide.
func (s *Scheduler) Best(v *View, l *Ledger, r Request, n int, now time.Time) ([]Scored, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var d Decision
	r.lists, r.Explain = true, false
	if err := s.decide(&d, v, l, &r, now); err != nil {
		return nil, err
	}
	c := &l.cycle
	best := slices.Clone(c.list)
	slices.SortFunc(best, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(mix(v.pages[b.at/lanes].lot[b.at%lanes]^c.seed), mix(v.pages[a.at/lanes].lot[a.at%lanes]^c.seed)))
	})
	out := make([]Scored, min(n, len(best)))
	for i := range out {
		out[i] = Scored{v.at(best[i].at).ID, best[i].score}
	}
	return out, nil
}

func (s *Scheduler) decide(d *Decision, v *View, l *Ledger, r *Request, now time.Time) error {
	if r.Resources.MilliCPU < 0 || r.Resources.MemBytes < 0 || r.Resources.DiskBytes < 0 || r.Resources.Slots < 0 {
		return fault.New(fault.InvalidInput, "place sandbox %s: resources under 0", r.Sandbox)
	}
	l.bind(v)
	c := &l.cycle
	if err := c.begin(s, v, l, r, now); err != nil {
		return err
	}
	defer c.end()
	for skip := 0; ; skip++ {
		*d = Decision{Considered: v.Len(), Profile: c.prof.name, Blind: c.blind, Out: d.Out[:0], Relaxed: c.prof.relax[:skip]}
		if c.run(d, c.prof.relax[:skip]); d.Fit > 0 {
			return nil
		}
		if skip == len(c.prof.relax) {
			d.Relaxed = nil
			return c.refusal(d)
		}
	}
}

// ranked is a fit host, by its lane in the view, and what it scored.
type ranked struct {
	at    int32
	score float64
}

// run is one pass of the pipeline without the filters named in relaxed.
func (c *cycle) run(d *Decision, relaxed []string) {
	c.active(relaxed)
	c.scoring()
	best, second := ranked{at: -1}, ranked{at: -1}
	c.list, c.lists, c.explains = c.list[:0], c.prof.ranks || c.req.Explain || c.req.lists, nil
	if c.req.Explain {
		c.explains = d
	}
	m, sum := c.memory(len(relaxed)), &c.sum
	if *sum = (tally{}); m != nil {
		sum = &m.sum
	}
	for k := range c.view.pages {
		e := &c.seen
		if m != nil {
			e = c.recall(m, k)
		} else {
			c.look(e, k)
			sum.add(e, len(c.prof.filters), 1)
		}
		if e.bests != 0 {
			best, second = c.compete(e, k, best, second)
		}
	}
	d.Fit = sum.fit
	for f := range c.prof.filters {
		if n := sum.out[f]; n > 0 {
			d.Out = append(d.Out, Count{c.prof.filters[f].name, n})
		}
	}
	if d.Fit == 0 {
		return
	}
	if len(c.list) > 0 {
		best, second = c.choose(d)
	}
	d.Host, d.Score = c.view.at(best.at).ID, best.score
	if second.at >= 0 {
		d.RunnerUp, d.NextScore = c.view.at(second.at).ID, second.score
	}
	if c.req.Explain {
		d.Parts = c.parts(best.at)
		if second.at >= 0 {
			d.RunnerUpParts = c.parts(second.at)
		}
	}
}

// offer keeps the two best of those offered so far.
func (c *cycle) offer(best, second, r ranked) (ranked, ranked) {
	switch {
	case best.at < 0:
		return r, second
	case c.better(r, best):
		return r, best
	case second.at < 0 || c.better(r, second):
		return best, r
	}
	return best, second
}

// better tells equal scores apart by what hosts draw, so that ties spread over
// the fleet and yet repeat.
func (c *cycle) better(a, b ranked) bool {
	if a.score != b.score {
		return a.score > b.score
	}
	if x, y := c.draw(a.at), c.draw(b.at); x != y {
		return x > y
	}
	return a.at < b.at
}

// draw is what the host in lane n draws in a tie.
func (c *cycle) draw(n int32) uint64 { return mix(c.lot(n) ^ c.seed) }

// lot is a number of the host in lane n, whatever the lane.
func (c *cycle) lot(n int32) uint64 { return c.view.pages[n/lanes].lot[n%lanes] }
