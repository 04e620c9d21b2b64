package scheduler_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

func newRetries(t *testing.T, change func(*scheduler.RetryConfig)) *scheduler.RetryPolicy {
	t.Helper()
	c := scheduler.DefaultRetryConfig()
	if change != nil {
		change(&c)
	}
	p, err := scheduler.NewRetryPolicy(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestClassesOfCodes(t *testing.T) {
	p := newRetries(t, func(c *scheduler.RetryConfig) { c.Exclude, c.Loop = []int{130513}, []int{130599, -1} })
	for _, c := range []struct {
		code      int
		transport bool
		want      scheduler.RetryClass
		breaks    bool
	}{
		{130499, false, scheduler.RetryExclude, false},
		{130499, true, scheduler.RetryExclude, false},
		{130595, true, scheduler.RetryTransport, true},
		{130596, true, scheduler.RetryTransport, true},
		{130524, false, scheduler.RetryReuse, false},
		{130525, false, scheduler.RetryReuse, false},
		{130457, false, scheduler.RetryReuse, false},
		{130592, false, scheduler.RetryLoop, false},
		{130480, false, scheduler.RetryLoop, false},
		{130567, false, scheduler.RetryLoop, true},
		{130527, false, scheduler.RetryLoop, true},
		{130513, false, scheduler.RetryExclude, false}, // exclude wins over what is built in
		{130599, false, scheduler.RetryLoop, false},
		{130498, false, scheduler.RetryLoop, false},
		{130508, false, scheduler.RetryRuntime, false},
		{130539, false, scheduler.RetryRuntime, false},
		{-1, false, scheduler.RetryLoop, false},
		{130400, false, scheduler.RetryNone, false},
		{200, false, scheduler.RetryNone, false},
	} {
		if got := p.Class(c.code, c.transport); got != c.want || p.Breaks(c.code) != c.breaks {
			t.Errorf("%d, transport %v: %s, breaks %v; want %s, %v", c.code, c.transport, got, p.Breaks(c.code), c.want, c.breaks)
		}
	}
}

func TestEveryClassHasItsOwnBudget(t *testing.T) {
	p, hour := newRetries(t, nil), time.Hour
	count := func(r *scheduler.Retries, code int, transport bool) (same, other int, last scheduler.Verdict) {
		for {
			if last = p.After(r, code, transport, 0.5, hour, nil); !last.Again {
				return same, other, last
			}
			if last.SameHost {
				same++
			} else {
				other++
			}
		}
	}
	var r scheduler.Retries
	if same, other, last := count(&r, 130524, false); same != 5 || other != 100 || !strings.Contains(last.Reason, "100 retries of class loop are used up") {
		t.Errorf("reuse, then loop: %d, %d, %+v", same, other, last)
	}
	// Loop is used up, and the others are not.
	if same, other, last := count(&r, 130595, true); same != 0 || other != 10 || !strings.Contains(last.Reason, "class transport") {
		t.Errorf("transport: %d, %d, %+v", same, other, last)
	}
	if same, other, last := count(&r, 130508, false); same != 0 || other != 1 || !strings.Contains(last.Reason, "class runtime") {
		t.Errorf("runtime: %d, %d, %+v", same, other, last)
	}
	if v := p.After(&scheduler.Retries{}, 130400, false, 0, hour, nil); v.Again || v.Reason == "" {
		t.Errorf("an answer that stands: %+v", v)
	}
}

func TestDelayGrowsAsTheSpecSays(t *testing.T) {
	p := newRetries(t, nil)
	var r scheduler.Retries
	// A code that needs no pause gets none, and does not move the delay.
	if v := p.After(&r, 130527, false, 0.5, time.Hour, nil); !v.Again || v.Wait != 0 {
		t.Errorf("no backoff: %+v", v)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	last := time.Duration(0)
	for n := range 60 {
		v := p.After(&r, 130480, false, rng.Float64(), time.Hour, nil)
		switch {
		case !v.Again:
			t.Fatalf("after %d: %+v", n, v)
		case n == 0 && v.Wait != 5*time.Millisecond:
			t.Errorf("the first waits %s", v.Wait)
		case n > 0 && (v.Wait < last || v.Wait > min(time.Second, last*9/5+1)):
			t.Errorf("%d waits %s after %s", n, v.Wait, last)
		}
		last = v.Wait
	}
	if last != time.Second {
		t.Errorf("after 60 it waits %s, want the cap", last)
	}
	// What would end after the request's time is not begun.
	if v := p.After(&r, 130480, false, 0, time.Second, nil); v.Again || !strings.Contains(v.Reason, "time is up") {
		t.Errorf("too late: %+v", v)
	}
}

func TestClusterMakesATenthMoreCallsAtMost(t *testing.T) {
	p := newRetries(t, func(c *scheduler.RetryConfig) { c.Burst = 50 })
	b, retries := p.Budget(), 0
	for range 10_000 {
		b.Earn()
		var r scheduler.Retries
		for p.After(&r, 130527, false, 0, time.Hour, b).Again {
			retries++
		}
	}
	if retries < 990 || retries > 1050 {
		t.Errorf("%d retries for 10000 requests of which every attempt fails", retries)
	}
}

func TestBadRetryConfigNamesEveryKey(t *testing.T) {
	_, err := scheduler.NewRetryPolicy(scheduler.RetryConfig{Loop: []int{13}, MaxRetries: -1, LoopMaxRetries: 1001, Share: 11})
	if !errors.Is(err, fault.BadConfig) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"loop_retry_code: 13", "max_retries -1", "loop_max_retries 1001", "backoff_retry_delay", "retry_share 11"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in:\n%v", want, err)
		}
	}
}
