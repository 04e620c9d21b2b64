package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
)

// Result is what came of a run. All of it but the cost of decisions is the same
// each time.
type Result struct {
	Digest    string `json:"digest"` // of every decision, in order
	Decisions int    `json:"decisions"`

	// How creates ended; they add up to the trace.
	Placed     int `json:"placed"`
	Refused    int `json:"refused"`     // no host was fit
	TurnedAway int `json:"turned_away"` // by the queue
	Late       int `json:"late"`        // its turn came too late
	GivenUp    int `json:"given_up"`    // after attempts

	Retries      int `json:"retries"`
	HostSaidFull int `json:"host_said_full"`
	RepliesLost  int `json:"replies_lost"`
	Oversold     int `json:"oversold"` // must be 0
	Doubled      int `json:"doubled"`  // sandboxes on two hosts at the end; must be 0
	Leaked       int `json:"leaked"`   // charges that nobody answers for at the end; must be 0

	Latency  map[string]Latency `json:"latency"` // by tenant, in virtual time
	Fairness float64            `json:"tenant_fairness"`
	Jain     float64            `json:"jain"` // of the hosts' use of CPU, over time
	Active   float64            `json:"active_hosts"`
	Hits     float64            `json:"template_hits"`
	Used     float64            `json:"cpu_used"`
	Stranded float64            `json:"stranded"` // share of the CPU that is free where no usual sandbox fits

	PerSecond float64       `json:"decisions_per_s,omitempty"` // by the watch
	P50       time.Duration `json:"decision_p50,omitempty"`
	P99       time.Duration `json:"decision_p99,omitempty"`

	spent           []time.Duration
	hits, templated int
	usual           host.Resources
}

// Latency is how long creates took, from arrival to ready.
type Latency struct {
	N   int           `json:"n"`
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
}

// samples are sums of what was looked at once a report interval.
type samples struct {
	n                      int
	jain, active, stranded float64
	used                   float64
}

// sample looks at the hosts as they are.
func (p *play) sample() {
	var sum, squares, used, all, stranded float64
	active := 0
	usual := p.usual()
	for _, id := range p.order {
		t := p.hosts[id]
		has := t.facts.Allocatable
		if has.MilliCPU == 0 {
			continue
		}
		x := float64(t.sum.MilliCPU) / float64(has.MilliCPU)
		sum, squares = sum+x, squares+x*x
		if len(t.has) > 0 {
			active++
		}
		used, all = used+float64(t.sum.MilliCPU), all+float64(has.MilliCPU)
		free := has.Sub(t.sum)
		stranded += float64(free.MilliCPU - min(free.MilliCPU, fit(free, usual)*usual.MilliCPU))
	}
	if sum == 0 {
		return
	}
	s := &p.samples
	s.n++
	s.jain += sum * sum / (float64(len(p.order)) * squares)
	s.active, s.used, s.stranded = s.active+float64(active), s.used+used/all, s.stranded+stranded/all
}

// usual is the size in the middle of the trace's.
func (p *play) usual() host.Resources {
	if p.result.usual == (host.Resources{}) && len(p.Trace) > 0 {
		sizes := make([]host.Resources, len(p.Trace))
		for i := range p.Trace {
			sizes[i] = p.Trace[i].Size
		}
		slices.SortFunc(sizes, func(a, b host.Resources) int { return int(min(1, max(-1, a.MilliCPU-b.MilliCPU))) })
		p.result.usual = sizes[len(sizes)/2]
	}
	return p.result.usual
}

// fit is how many times one fits into free.
func fit(free, one host.Resources) int64 {
	n := int64(1) << 40
	for _, d := range [][2]int64{{free.MilliCPU, one.MilliCPU}, {free.MemBytes, one.MemBytes}, {free.DiskBytes, one.DiskBytes}, {free.Slots, one.Slots}} {
		if d[1] > 0 {
			n = min(n, d[0]/d[1])
		}
	}
	return n
}

func (p *play) finish() Result {
	r := p.result
	r.Digest = fmt.Sprintf("%x", p.digest)
	r.Latency = map[string]Latency{}
	for tenant, waits := range p.waits {
		slices.Sort(waits)
		r.Latency[tenant] = Latency{len(waits), waits[len(waits)/2], waits[(len(waits)-1)*99/100]}
	}
	var sum, squares float64
	for _, tenant := range slices.Sorted(maps.Keys(p.asked)) {
		x := float64(p.served[tenant]) / float64(p.asked[tenant])
		sum, squares = sum+x, squares+x*x
	}
	if squares > 0 {
		r.Fairness = sum * sum / (float64(len(p.asked)) * squares)
	}
	if s := p.samples; s.n > 0 {
		n := float64(s.n)
		r.Jain, r.Active, r.Used, r.Stranded = s.jain/n, s.active/n, s.used/n, s.stranded/n
	}
	if r.templated > 0 {
		r.Hits = float64(r.hits) / float64(r.templated)
	}
	where := map[string]int{}
	for _, id := range p.order {
		for s := range p.hosts[id].has {
			where[string(s)]++
		}
	}
	for _, n := range where {
		if n > 1 {
			r.Doubled++
		}
	}
	for _, m := range p.masters {
		r.Leaked += m.ledger.Len()
	}
	if len(r.spent) > 0 {
		var all time.Duration
		for _, d := range r.spent {
			all += d
		}
		slices.Sort(r.spent)
		r.PerSecond, r.P50, r.P99 = float64(len(r.spent))/max(all.Seconds(), 1e-9), r.spent[(len(r.spent)-1)/2], r.spent[(len(r.spent)-1)*99/100]
	}
	r.spent = nil
	return r
}
