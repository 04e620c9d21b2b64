package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// BreakerState is whether a host may be called.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed   BreakerState = "closed"
	BreakerOpen     BreakerState = "open"
	BreakerHalfOpen BreakerState = "half_open"
)

// BreakerEvent is what happened to a breaker.
type BreakerEvent string

// The events of a breaker.
const (
	OnTripped     BreakerEvent = "tripped"
	OnWaited      BreakerEvent = "waited"
	OnProbeGood   BreakerEvent = "probe_succeeded"
	OnProbeFailed BreakerEvent = "probe_failed"
)

// Breaking is the life of a breaker.
var Breaking = fsm.Must(fsm.Spec[BreakerState, BreakerEvent, fsm.None]{
	Name:    "breaker",
	Initial: BreakerClosed,
	States:  []BreakerState{BreakerClosed, BreakerOpen, BreakerHalfOpen},
	Rules: []fsm.Rule[BreakerState, BreakerEvent]{
		{On: OnTripped, From: []BreakerState{BreakerClosed}, To: BreakerOpen, Why: "too many of the last calls failed"},
		{On: OnWaited, From: []BreakerState{BreakerOpen}, To: BreakerHalfOpen, Why: "its pause is over"},
		{On: OnProbeGood, From: []BreakerState{BreakerHalfOpen}, To: BreakerClosed},
		{On: OnProbeFailed, From: []BreakerState{BreakerHalfOpen}, To: BreakerOpen, Why: "with a longer pause"},
	},
})

// Outcome is how a call of a host ended.
type Outcome int

// Only what speaks against the host counts against it: a refusal for lack of
// room, and a fault of the request, are answers.
const (
	Succeeded Outcome = iota
	TransportFailed
	RuntimeFailed
	CapacityRefused
	RequestRefused
)

// BreakerConfig says when a host is shut out, and for how long.
type BreakerConfig struct {
	Window   time.Duration `yaml:"window"`    // over which calls are counted
	MinCalls int           `yaml:"min_calls"` // fewer prove nothing
	Rate     float64       `yaml:"rate"`      // of failures, from which on it trips
	Pause    time.Duration `yaml:"pause"`     // the first; each failed probe doubles it
	MaxPause time.Duration `yaml:"max_pause"`
	Probe    time.Duration `yaml:"probe"`     // after which a probe without an answer is given up
	MaxShare float64       `yaml:"max_share"` // of the fleet that may be out at once
	Runtime  float64       `yaml:"runtime_weight"`
}

// DefaultBreakerConfig shuts out a host of which half of at least five calls
// failed in half a minute, and never more than a fifth of the fleet.
func DefaultBreakerConfig() BreakerConfig {
	return BreakerConfig{Window: 30 * time.Second, MinCalls: 5, Rate: 0.5, Pause: 5 * time.Second, MaxPause: time.Minute, Probe: time.Minute, MaxShare: 0.2, Runtime: 0.5}
}

// ticks is in how many parts a window is counted.
const ticks = 10

// Breakers keep hosts away that answer badly, for all requests of a master. A
// nil one keeps nobody away. It is safe for concurrent use.
type Breakers struct {
	conf BreakerConfig

	mu    sync.Mutex
	hosts map[host.ID]*breaker
	edits int // counts what changed who is out

	// The last answer of barred, and how long it holds.
	words  words
	of     *roster
	at     int
	until  time.Time
	sorted []*breaker
}

type breaker struct {
	id     host.ID
	state  BreakerState
	calls  [ticks]float64
	failed [ticks]float64
	tick   int64 // the part of time that was counted last

	opened time.Time // when it tripped
	until  time.Time // end of the pause, or of the probe
	pause  time.Duration
	probe  sandbox.ID // empty: none is under way
}

// NewBreakers checks c. Every fault is reported with its key and
// fault.BadConfig.
func NewBreakers(c BreakerConfig) (*Breakers, error) {
	var faults []error
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("scheduler.breaker."+format, args...))
	}
	if c.Window < ticks*time.Millisecond {
		bad("window %s: must be at least 10ms", c.Window)
	}
	if c.MinCalls < 1 {
		bad("min_calls %d: must be positive", c.MinCalls)
	}
	if !(c.Rate > 0 && c.Rate <= 1) {
		bad("rate %v: must be over 0 and at most 1", c.Rate)
	}
	if c.Pause <= 0 || c.MaxPause < c.Pause || c.Probe <= 0 {
		bad("pause %s, max_pause %s, probe %s: must be positive, and the longest not shorter than the first", c.Pause, c.MaxPause, c.Probe)
	}
	if !(c.MaxShare >= 0 && c.MaxShare <= 1) || !(c.Runtime >= 0 && c.Runtime <= 1) {
		bad("max_share %v, runtime_weight %v: must be within 0 and 1", c.MaxShare, c.Runtime)
	}
	if len(faults) > 0 {
		return nil, fault.Wrap(fault.BadConfig, errors.Join(faults...), "scheduler configuration")
	}
	return &Breakers{conf: c, hosts: map[host.ID]*breaker{}}, nil
}

// Adopt makes b go by the configuration of to from now on. What it knows stays:
// hosts that are out are out as long as they were to be.
func (b *Breakers) Adopt(to *Breakers) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conf.Window != to.conf.Window {
		for _, h := range b.hosts { // its parts are counted otherwise
			h.calls, h.failed, h.tick = [ticks]float64{}, [ticks]float64{}, 0
		}
	}
	b.conf = to.conf
	b.edits++
}

// Report counts how the call of a host for a sandbox ended at now.
func (b *Breakers) Report(id host.ID, s sandbox.ID, o Outcome, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	failed := map[Outcome]float64{TransportFailed: 1, RuntimeFailed: b.conf.Runtime}[o]
	h := b.hosts[id]
	if h == nil {
		if failed == 0 {
			return // nothing that could trip
		}
		h = &breaker{id: id, state: Breaking.Initial(), pause: b.conf.Pause}
		b.hosts[id] = h
	}
	b.wait(h, now)
	switch h.state {
	case BreakerClosed:
		h.count(b.conf.Window, failed, now)
		if calls, bad := h.sums(); bad > 0 && calls >= float64(b.conf.MinCalls) && bad >= b.conf.Rate*calls {
			h.opened, h.pause = now, b.conf.Pause
			b.move(h, OnTripped, now.Add(h.pause))
		} else if bad == 0 {
			delete(b.hosts, id)
		}
	case BreakerHalfOpen:
		switch {
		case h.probe == "" || h.probe != s: // an answer to a call from before
		case failed > 0:
			h.pause = min(b.conf.MaxPause, 2*h.pause)
			b.move(h, OnProbeFailed, now.Add(h.pause))
		default:
			b.move(h, OnProbeGood, time.Time{})
			delete(b.hosts, id)
		}
	case BreakerOpen: // what was on its way when it tripped
	}
}

// State returns whether a host may be called at now.
func (b *Breakers) State(id host.ID, now time.Time) BreakerState {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hosts[id]
	if h == nil {
		return Breaking.Initial()
	}
	b.wait(h, now)
	return h.state
}

// States returns how many hosts are in each state at now, of those of which
// anything is known.
func (b *Breakers) States(now time.Time) map[BreakerState]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[BreakerState]int{}
	for _, h := range b.hosts {
		b.wait(h, now)
		n[h.state]++
	}
	return n
}

// Forget drops what is known of a host that left.
func (b *Breakers) Forget(id host.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.hosts, id)
	b.edits++
}

// move changes the state of h. Every event is raised in a state that knows it.
func (b *Breakers) move(h *breaker, on BreakerEvent, until time.Time) {
	to, err := Breaking.Step(h.state, on, fsm.None{})
	if err != nil {
		panic(err) // the table above and the switch in Report disagree
	}
	h.state, h.until, h.probe = to, until, ""
	h.calls, h.failed = [ticks]float64{}, [ticks]float64{}
	b.edits++
}

// wait lets time pass for h.
func (b *Breakers) wait(h *breaker, now time.Time) {
	switch {
	case h.state == BreakerOpen && !now.Before(h.until):
		b.move(h, OnWaited, time.Time{})
	case h.state == BreakerHalfOpen && h.probe != "" && !now.Before(h.until):
		h.probe = "" // it was never answered; another may try
		b.edits++
	}
}

// count adds one call to the window.
func (h *breaker) count(window time.Duration, failed float64, now time.Time) {
	tick := now.UnixNano() / int64(window/ticks)
	for t := max(h.tick+1, tick-ticks+1); t <= tick; t++ {
		h.calls[t%ticks], h.failed[t%ticks] = 0, 0
	}
	h.tick = max(h.tick, tick)
	h.calls[h.tick%ticks]++
	h.failed[h.tick%ticks] += failed
}

func (h *breaker) sums() (calls, failed float64) {
	for i := range ticks {
		calls, failed = calls+h.calls[i], failed+h.failed[i]
	}
	return calls, failed
}

// chosen makes the choice of a half-open host its one probe.
func (b *Breakers) chosen(id host.ID, s sandbox.ID, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.hosts[id]; h != nil && h.state == BreakerHalfOpen && h.probe == "" {
		h.probe, h.until = s, now.Add(b.conf.Probe)
		b.edits++
	}
}

// Out returns the hosts of v that are kept away at now, in the order of v.
func (b *Breakers) Out(v *View, now time.Time) []host.ID {
	var ids []host.ID
	for k, w := range b.barred(v, now) {
		for ; w != 0; w &= w - 1 {
			ids = append(ids, v.pages[k].facts[bits.TrailingZeros64(w)].ID)
		}
	}
	return ids
}

// barred returns the lanes of the hosts that are out at now: those that pause,
// and those whose probe is under way. Of more than the largest share, those
// that tripped first are out.
func (b *Breakers) barred(v *View, now time.Time) words {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == v.roster && b.at == b.edits && (b.until.IsZero() || now.Before(b.until)) {
		return b.words
	}
	b.until, b.sorted = time.Time{}, b.sorted[:0]
	for _, h := range b.hosts {
		if b.wait(h, now); h.state == BreakerOpen || h.probe != "" {
			b.sorted = append(b.sorted, h)
			if b.until.IsZero() || h.until.Before(b.until) {
				b.until = h.until
			}
		}
	}
	slices.SortFunc(b.sorted, func(x, y *breaker) int {
		return cmp.Or(x.opened.Compare(y.opened), strings.Compare(string(x.id), string(y.id)))
	})
	out := int(b.conf.MaxShare * float64(v.Len()))
	b.words = words(nil).fill(len(v.pages), 0) // a decision may still read the last ones
	for _, h := range b.sorted {
		if n, ok := v.roster.index.get(h.id); ok && out > 0 {
			b.words[n/lanes] |= 1 << (n % lanes)
			out--
		}
	}
	b.of, b.at = v.roster, b.edits
	return b.words
}
