package sandbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

func TestProbeDefaults(t *testing.T) {
	p := sandbox.Probe{HTTP: &sandbox.HTTPProbe{Port: 8080}}
	p.Defaults()
	if p.Timeout != 30*time.Second || p.Period != 500*time.Millisecond || p.Failures != 60 || p.Successes != 1 || p.HTTP.Path != "/" {
		t.Errorf("%+v", p)
	}
	long := sandbox.Probe{TCPPort: 1, Timeout: time.Minute}
	long.Defaults()
	if long.Failures != 120 { // not 60: those would be over before the timeout
		t.Errorf("%d failures within %s", long.Failures, long.Timeout)
	}
	short := sandbox.Probe{TCPPort: 1, Timeout: 100 * time.Millisecond}
	short.Defaults()
	for _, q := range []sandbox.Probe{p, long, short} {
		if err := q.Check(); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

func TestProbeCheck(t *testing.T) {
	get := func(change func(*sandbox.HTTPProbe)) sandbox.Probe {
		h := &sandbox.HTTPProbe{Port: 8080, Path: "/health"}
		change(h)
		return sandbox.Probe{HTTP: h}
	}
	path := func(s string) sandbox.Probe { return get(func(h *sandbox.HTTPProbe) { h.Path = s }) }
	header := func(name, value string) sandbox.Probe {
		return get(func(h *sandbox.HTTPProbe) { h.Headers = []sandbox.Header{{Name: name, Value: value}} })
	}
	for name, c := range map[string]struct {
		probe sandbox.Probe
		good  bool
	}{
		"http":               {path("/health?deep=1"), true},
		"tcp":                {sandbox.Probe{TCPPort: 65535}, true},
		"exec":               {sandbox.Probe{Exec: []string{"pg_isready"}}, true},
		"header":             {header("X-Key", "a b"), true},
		"nothing":            {sandbox.Probe{}, false},
		"two":                {sandbox.Probe{TCPPort: 1, Exec: []string{"a"}}, false},
		"port":               {sandbox.Probe{TCPPort: 65536}, false},
		"negative port":      {sandbox.Probe{TCPPort: -1}, false},
		"http port":          {get(func(h *sandbox.HTTPProbe) { h.Port = 0 }), false},
		"path":               {path("health"), false},
		"path with host":     {path("@elsewhere/"), false},
		"path with space":    {path("/a b"), false},
		"path with newline":  {path("/a\r\nX: y"), false},
		"path with fragment": {path("/a#b"), false},
		"long path":          {path("/" + strings.Repeat("a", 2000)), false},
		"host":               {get(func(h *sandbox.HTTPProbe) { h.Host = "a\r\nb" }), false},
		"header's name":      {header("X Key", "a"), false},
		"header's value":     {header("X-Key", "a\r\nb: c"), false},
		"own header":         {header("host", "a"), false},
		"many headers":       {get(func(h *sandbox.HTTPProbe) { h.Headers = make([]sandbox.Header, 17) }), false},
		"long":               {sandbox.Probe{TCPPort: 1, Timeout: time.Hour}, false},
		"late":               {sandbox.Probe{TCPPort: 1, InitialDelay: 5 * time.Minute}, false},
		"negative delay":     {sandbox.Probe{TCPPort: 1, InitialDelay: -time.Second}, false},
		"negative time":      {sandbox.Probe{TCPPort: 1, Timeout: -time.Second}, false},
		"often":              {sandbox.Probe{TCPPort: 1, Period: time.Millisecond}, false},
		"hasty":              {sandbox.Probe{TCPPort: 1, TryTimeout: time.Millisecond}, false},
		"thresholds":         {sandbox.Probe{TCPPort: 1, Failures: -1}, false},
		"successes":          {sandbox.Probe{TCPPort: 1, Successes: 1 << 30}, false},
		"empty command":      {sandbox.Probe{Exec: []string{""}}, false},
		"zero byte":          {sandbox.Probe{Exec: []string{"a\x00"}}, false},
		"long command":       {sandbox.Probe{Exec: []string{strings.Repeat("a", 5000)}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.probe.Defaults()
			err := c.probe.Check()
			if c.good && err != nil || !c.good && !errors.Is(err, fault.InvalidInput) {
				t.Errorf("%+v: %v", c.probe, err)
			}
		})
	}
}
