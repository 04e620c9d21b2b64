// Package sim runs traces on the production scheduler in virtual time.
//
// A trace, recorded or drawn from a seed, is replayed event by event against
// hosts that admit by their own truth, report late and lose replies as told.
// The same trace, fleet and seed give the same run, bit for bit, on every
// machine. This package must never read a clock: what a decision costs is
// measured by a watch that the caller brings.
package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/template"
)

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
		hold(rng, hosts, artifact(t+1), f.Holding)
	}
	return hosts
}

// Hold lets hosts hold what the creates of a trace name, as drawn hosts hold
// drawn templates: each by the given share of them, and by one at least.
func Hold(seed uint64, hosts []host.Facts, trace []Event, share float64) {
	rng := rand.New(rand.NewPCG(seed, 0x686f))
	known := map[template.ArtifactID]bool{"": true}
	for i := range trace {
		if a := trace[i].Artifact; !known[a] {
			known[a] = true
			hold(rng, hosts, string(a), share)
		}
	}
}

func hold(rng *rand.Rand, hosts []host.Facts, artifact string, share float64) {
	first := rng.IntN(len(hosts))
	for i := range hosts {
		if i == first || rng.Float64() < share {
			hosts[i].Artifacts = append(hosts[i].Artifacts, artifact)
		}
	}
}

func artifact(template int) string { return fmt.Sprintf("rfs-%d", template) }
