// Package sim runs traces on the production scheduler in virtual time.
//
// A trace, recorded or drawn from a seed, is replayed event by event against
// hosts that admit by their own truth, report late and lose replies as told.
// The same trace, fleet and seed give the same run, bit for bit, on every
// machine. This package must never read a clock: what a decision costs is
// measured by a watch that the caller brings.
package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// Event is one create of a trace.
type Event struct {
	At       time.Duration  `json:"at"` // since the begin of the trace
	Sandbox  sandbox.ID     `json:"sandbox"`
	Tenant   string         `json:"tenant"`
	Template int            `json:"template"` // 0: none
	Kind     string         `json:"instance_type"`
	Size     host.Resources `json:"resources"`
	Life     time.Duration  `json:"life"`     // 0: it stays
	Deadline time.Duration  `json:"deadline"` // after At; 0: none
}

// maxEvents bounds a trace that is read.
const maxEvents = 10_000_000

// Read reads a trace, one JSON object a line, in the order of time.
func Read(r io.Reader) ([]Event, error) {
	var all []Event
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fault.Wrap(fault.InvalidInput, err, "trace, line %d", n)
		}
		if err := e.check(all); err != nil {
			return nil, fault.Wrap(fault.InvalidInput, err, "trace, line %d", n)
		}
		if all = append(all, e); len(all) > maxEvents {
			return nil, fault.New(fault.InvalidInput, "trace has more than %d events", maxEvents)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "trace")
	}
	return all, nil
}

func (e Event) check(before []Event) error {
	s := e.Size
	switch {
	case e.Sandbox == "":
		return errors.New("no sandbox")
	case len(before) > 0 && e.At < before[len(before)-1].At || e.At < 0:
		return fmt.Errorf("at %s: goes back in time", e.At)
	case e.Life < 0 || e.Deadline < 0 || e.Template < 0 || s.MilliCPU < 0 || s.MemBytes < 0 || s.DiskBytes < 0 || s.Slots < 0:
		return errors.New("a value is under 0")
	}
	return nil
}

// Write writes a trace as Read reads it.
func Write(w io.Writer, trace []Event) error {
	e := json.NewEncoder(w)
	for i := range trace {
		if err := e.Encode(trace[i]); err != nil {
			return err
		}
	}
	return nil
}

// Size is what sandboxes ask for, and how many of them do.
type Size struct {
	Resources host.Resources
	Weight    float64
}

// Tenant is who sends how much of the load.
type Tenant struct {
	Name   string
	Weight float64
}

// Load says what a drawn trace is like.
type Load struct {
	Creates   int
	PerSecond float64
	Life      time.Duration // mean
	Sizes     []Size
	Templates int     // 0: sandboxes without one
	Skew      float64 // how much more the first templates are used: 0 is even, 1 is Zipf's law
	Tenants   []Tenant
	Deadline  time.Duration
}

// Generate draws a trace: arrivals by chance, lives of exponential length.
func Generate(seed uint64, l Load) []Event {
	rng := rand.New(rand.NewPCG(seed, 0x7261))
	sizes, tenants, templates := make([]float64, len(l.Sizes)), make([]float64, len(l.Tenants)), make([]float64, l.Templates)
	for i, s := range l.Sizes {
		sizes[i] = s.Weight
	}
	for i, t := range l.Tenants {
		tenants[i] = t.Weight
	}
	for i := range templates {
		templates[i] = math.Pow(float64(i+1), -l.Skew)
	}
	trace := make([]Event, 0, l.Creates)
	var at time.Duration
	for n := range l.Creates {
		at += time.Duration(rng.ExpFloat64() / l.PerSecond * float64(time.Second))
		e := Event{At: at, Sandbox: sandbox.ID(fmt.Sprintf("i%024x", n)), Kind: "cubebox", Deadline: l.Deadline}
		e.Size = l.Sizes[draw(rng, sizes)].Resources
		if len(tenants) > 0 {
			e.Tenant = l.Tenants[draw(rng, tenants)].Name
		}
		if l.Templates > 0 {
			e.Template = 1 + draw(rng, templates)
		}
		if l.Life > 0 {
			e.Life = time.Duration(rng.ExpFloat64()*float64(l.Life)) + 1
		}
		trace = append(trace, e)
	}
	return trace
}

// draw returns an index by weight.
func draw(rng *rand.Rand, weights []float64) int {
	var sum float64
	for _, w := range weights {
		sum += w
	}
	x := rng.Float64() * sum
	for i, w := range weights {
		if x < w {
			return i
		}
		x -= w
	}
	return len(weights) - 1
}

// Fleet says what drawn hosts are like.
type Fleet struct {
	Hosts     int
	Has       host.Resources
	Zones     int
	Templates int
	Holding   float64 // share of the hosts that hold a template
}

// epoch is the begin of every run.
var epoch = time.Unix(1_800_000_000, 0)

// Build draws the hosts. Every template is held by at least one.
func (f Fleet) Build(seed uint64) []host.Facts {
	rng := rand.New(rand.NewPCG(seed, 0x666c))
	hosts := make([]host.Facts, f.Hosts)
	for i := range hosts {
		hosts[i] = host.Facts{
			Registration: host.Registration{ID: host.ID(fmt.Sprintf("host-%05d", i)), InstanceType: "cubebox", Capacity: f.Has, Allocatable: f.Has},
			Status:       host.Status{Ready: true}, HeardAt: epoch,
		}
		if f.Zones > 0 {
			hosts[i].Zone = fmt.Sprintf("zone-%d", i%f.Zones)
		}
	}
	for t := range f.Templates {
		first := rng.IntN(f.Hosts)
		for i := range hosts {
			if i == first || rng.Float64() < f.Holding {
				hosts[i].Artifacts = append(hosts[i].Artifacts, artifact(t+1))
			}
		}
	}
	return hosts
}

func artifact(template int) string { return fmt.Sprintf("rfs-%d", template) }
