package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// RetryClass is what a failed attempt allows.
type RetryClass string

// The classes of failures, in the order in which they are asked for.
const (
	RetryExclude   RetryClass = "exclude"   // never tried again
	RetryTransport RetryClass = "transport" // the host did not answer
	RetryReuse     RetryClass = "reuse"     // the same host may do it next time
	RetryLoop      RetryClass = "loop"      // another host may
	RetryRuntime   RetryClass = "runtime"   // another host may, unless the image is the cause
	RetryNone      RetryClass = "none"      // the answer stands
)

// RetryConfig adds codes to the classes, and bounds each of them.
type RetryConfig struct {
	Exclude []int `yaml:"exclude_loop_retry_code"`
	Reuse   []int `yaml:"reuse_retry_code"`
	Loop    []int `yaml:"loop_retry_code"`
	Runtime []int `yaml:"runtime_retry_code"`
	Circuit []int `yaml:"circuit_break_code"`
	Backoff []int `yaml:"backoff_retry_code"`

	MaxRetries     int           `yaml:"max_retries"`           // of class reuse
	LoopMaxRetries int           `yaml:"loop_max_retries"`      // of class loop
	MaxTransport   int           `yaml:"transport_max_retries"` // of class transport
	MaxRuntime     int           `yaml:"runtime_max_retries"`   // of class runtime
	FirstDelay     time.Duration `yaml:"backoff_retry_delay"`
	MaxDelay       time.Duration `yaml:"max_delay"`

	// Share is how many retries a cluster makes for each request, in the long
	// run; Burst how many it may make at once.
	Share float64 `yaml:"retry_share"`
	Burst int     `yaml:"retry_burst"`
}

// DefaultRetryConfig is spec/scheduling 6.2 and 6.3, with a bound on what had
// none.
func DefaultRetryConfig() RetryConfig {
	return RetryConfig{MaxRetries: 5, LoopMaxRetries: 100, MaxTransport: 10, MaxRuntime: 1, FirstDelay: 5 * time.Millisecond, MaxDelay: time.Second, Share: 0.1, Burst: 1000}
}

// The built-in members, as ret codes.
var (
	excludeCodes = []int{130499}
	reuseCodes   = []int{130524, 130525, 130457}
	loopCodes    = []int{130592, 130480, 130513, 130567, 130527, 130524, 130525, 130457}
	runtimeCodes = []int{130508, 130539}
	circuitCodes = []int{130567, 130527, 130596, 130595}
	backoffCodes = []int{130480, 130513}

	// hostCodes are of class loop too: the host lacks the artifact, has a broken
	// data directory, or refuses the token that the others take.
	hostCodes = []int{130498, 130545, 130401}
)

// RetryPolicy is a checked RetryConfig. It is immutable.
type RetryPolicy struct {
	conf                                            RetryConfig
	exclude, reuse, loop, runtime, circuit, backoff map[int]bool
}

// NewRetryPolicy checks c. Every fault is reported with its key and
// fault.BadConfig; the caller keeps its last good policy.
func NewRetryPolicy(c RetryConfig) (*RetryPolicy, error) {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf("scheduler."+format, args...)) }
	codes := func(key string, own, more []int) map[int]bool {
		set := map[int]bool{}
		for _, n := range own {
			set[n] = true
		}
		for _, n := range more {
			if n != -1 && (n < 130000 || n > 131000) {
				bad("%s: %d is no ret code: those are 130000 to 131000", key, n)
			}
			set[n] = true
		}
		return set
	}
	p := &RetryPolicy{
		conf: c, exclude: codes("exclude_loop_retry_code", excludeCodes, c.Exclude), reuse: codes("reuse_retry_code", reuseCodes, c.Reuse),
		loop: codes("loop_retry_code", slices.Concat(loopCodes, hostCodes), c.Loop), runtime: codes("runtime_retry_code", runtimeCodes, c.Runtime), circuit: codes("circuit_break_code", circuitCodes, c.Circuit), backoff: codes("backoff_retry_code", backoffCodes, c.Backoff),
	}
	for _, n := range []struct {
		key  string
		n    int
		most int
	}{{"max_retries", c.MaxRetries, 1000}, {"loop_max_retries", c.LoopMaxRetries, 1000}, {"transport_max_retries", c.MaxTransport, 1000}, {"runtime_max_retries", c.MaxRuntime, 1000}, {"retry_burst", c.Burst, 1e9}} {
		if n.n < 0 || n.n > n.most {
			bad("%s %d: must be within 0 and %d", n.key, n.n, n.most)
		}
	}
	if c.FirstDelay <= 0 || c.MaxDelay < c.FirstDelay {
		bad("backoff_retry_delay %s, max_delay %s: must be positive, and the largest not below the first", c.FirstDelay, c.MaxDelay)
	}
	if !(c.Share >= 0 && c.Share <= 10) {
		bad("retry_share %v: must be within 0 and 10", c.Share)
	}
	if len(faults) > 0 {
		return nil, fault.Wrap(fault.BadConfig, errors.Join(faults...), "scheduler configuration")
	}
	return p, nil
}

// Class returns the class of a failed attempt. A code that may stay on its host
// is of class reuse until those tries are used up.
func (p *RetryPolicy) Class(code int, transport bool) RetryClass {
	switch {
	case p.exclude[code]:
		return RetryExclude
	case transport:
		return RetryTransport
	case p.reuse[code]:
		return RetryReuse
	case p.loop[code]:
		return RetryLoop
	case p.runtime[code]:
		return RetryRuntime
	}
	return RetryNone
}

// Breaks reports whether a code speaks against the host for a while.
func (p *RetryPolicy) Breaks(code int) bool { return p.circuit[code] }

// Retries is what one request has used up. The zero value has used nothing.
type Retries struct {
	Reuse, Loop, Transport, Runtime int
	delay                           time.Duration
}

// Verdict is what to do after a failed attempt.
type Verdict struct {
	Again    bool
	SameHost bool // else that host is not chosen again in this request
	Wait     time.Duration
	Class    RetryClass
	Reason   string // why not again
}

// After returns what to do after an attempt that failed with code, or by its
// transport, when left remains of the request's time. u is a random number in
// [0,1). b is the budget of the cluster.
func (p *RetryPolicy) After(r *Retries, code int, transport bool, u float64, left time.Duration, b *RetryBudget) Verdict {
	v := Verdict{Class: p.Class(code, transport)}
	if v.Class == RetryReuse && r.Reuse >= p.conf.MaxRetries && p.loop[code] {
		v.Class = RetryLoop
	}
	var used *int
	var most int
	switch v.Class {
	case RetryReuse:
		used, most, v.SameHost = &r.Reuse, p.conf.MaxRetries, true
	case RetryLoop:
		used, most = &r.Loop, p.conf.LoopMaxRetries
	case RetryTransport:
		used, most = &r.Transport, p.conf.MaxTransport
	case RetryRuntime:
		used, most = &r.Runtime, p.conf.MaxRuntime
	case RetryExclude, RetryNone:
		v.Reason = "nothing would be different"
		return v
	}
	if *used >= most {
		v.Reason = fmt.Sprintf("%d retries of class %s are used up", most, v.Class)
		return v
	}
	if transport || p.backoff[code] {
		v.Wait = p.next(r, u)
	}
	switch {
	case left <= v.Wait:
		v.Reason = "its time is up"
	case !b.spend():
		v.Reason = "the cluster makes too many retries"
	default:
		*used++
		v.Again = true
	}
	return v
}

// next grows the delay by a random factor: 1 to 1.8.
func (p *RetryPolicy) next(r *Retries, u float64) time.Duration {
	if r.delay == 0 {
		r.delay = p.conf.FirstDelay
	} else {
		r.delay = min(p.conf.MaxDelay, time.Duration(float64(r.delay)*(1+0.8*min(1, max(0, u)))))
	}
	return r.delay
}

// RetryBudget bounds the retries of all requests together: a cluster in trouble
// is not made busier by them. It is not safe for concurrent use.
type RetryBudget struct {
	share, burst, tokens float64
}

// Budget returns a full budget.
func (p *RetryPolicy) Budget() *RetryBudget {
	return &RetryBudget{share: p.conf.Share, burst: float64(p.conf.Burst), tokens: float64(p.conf.Burst)}
}

// Earn notes a request, which pays for its share of retries.
func (b *RetryBudget) Earn() { b.tokens = min(b.burst, b.tokens+b.share) }

// Adopt makes b go by another policy from now on. What was spent stays spent.
func (b *RetryBudget) Adopt(p *RetryPolicy) {
	spent := b.burst - b.tokens
	b.share, b.burst = p.conf.Share, float64(p.conf.Burst)
	b.tokens = max(0, b.burst-spent)
}

func (b *RetryBudget) spend() bool {
	if b == nil {
		return true
	}
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
