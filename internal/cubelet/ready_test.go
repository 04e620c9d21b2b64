package cubelet_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

// asks returns a probe that asks often, for within.
func asks(within time.Duration) *hostpb.Probe {
	return &hostpb.Probe{TimeoutMs: within.Milliseconds(), PeriodMs: 50, TryTimeoutMs: 5000, SuccessThreshold: 1, FailureThreshold: 10_000}
}

func httpGet(p *hostpb.Probe, path string, headers ...*hostpb.HttpHeader) *hostpb.Probe {
	p.Handler = &hostpb.Probe_HttpGet{HttpGet: &hostpb.HttpGetProbe{Port: 8080, Path: path, Host: "app.example", Headers: headers}}
	return p
}

func tcp(p *hostpb.Probe, port int32) *hostpb.Probe {
	p.Handler = &hostpb.Probe_TcpSocket{TcpSocket: &hostpb.TcpSocketProbe{Port: port}}
	return p
}

func command(p *hostpb.Probe, words ...string) *hostpb.Probe {
	p.Handler = &hostpb.Probe_Exec{Exec: &hostpb.ExecProbe{Command: words}}
	return p
}

func TestCreateWaitsForTheProbe(t *testing.T) {
	w := newWorld(t).open().hold()
	long := time.Minute
	for name, c := range map[string]struct {
		command []string
		probe   *hostpb.Probe
	}{
		"http after a while": {[]string{"probe", "answer", ":8080", "700"}, httpGet(asks(long), "/health")},
		"a redirect":         {[]string{"probe", "answer", ":8080", "0"}, httpGet(asks(long), "/moved")},
		"headers":            {[]string{"probe", "answer", ":8080", "0"}, httpGet(asks(long), "/asked", &hostpb.HttpHeader{Name: "X-Asked", Value: "yes"})},
		"tcp":                {[]string{"probe", "answer", ":8080", "0"}, tcp(asks(long), 8080)},
		"exec":               {[]string{"probe", "fill", "/there", "1"}, command(asks(long), "probe", "cat", "/there")},
		"no program":         {nil, tcp(asks(long), 49983)},
	} {
		t.Run(name, func(t *testing.T) {
			r := request()
			r.Command, r.Probe = c.command, c.probe
			s := w.create(r)
			if s.GetState() != hostpb.SandboxState_SANDBOX_STATE_RUNNING || s.GetStepUs()["probe"] == 0 {
				t.Errorf("it is %v", s)
			}
			if name == "http after a while" && s.GetStepUs()["probe"] < 500_000 {
				t.Errorf("it was whole after %d us of its probe, before its program was", s.GetStepUs()["probe"])
			}
			if got := w.exec(s.GetSandboxId(), "probe", "echo", "on"); got.out != "on\n" {
				t.Errorf("%+v", got)
			}
			w.delete(s.GetSandboxId())
		})
	}
}

func TestAProbeThatFailsIsToldAndUndone(t *testing.T) {
	w := newWorld(t).open().hold()
	few := func() *hostpb.Probe { p := asks(time.Minute); p.FailureThreshold = 3; return p }
	hasty := func() *hostpb.Probe { p := few(); p.TryTimeoutMs = 300; return p }
	for name, c := range map[string]struct {
		command []string
		probe   *hostpb.Probe
		says    []string
	}{
		"nobody listens":    {[]string{"probe", "sleep", "1000"}, tcp(few(), 8081), []string{"probe tcp :8081", "3 failures in a row", "3 tries", "last answer: connection refused", "its program runs"}},
		"in time":           {[]string{"probe", "answer", ":8080", "1000000"}, httpGet(asks(time.Second), "/health"), []string{"probe http GET :8080/health", "no success within 1s", `last answer: 503 "starting"`, `its program runs, its last output: "warming up"`}},
		"a long answer":     {[]string{"probe", "answer", ":8080", "0"}, httpGet(few(), "/asked"), []string{`last answer: 403 "no no`}},
		"no answer":         {[]string{"probe", "answer", ":8080", "0"}, httpGet(hasty(), "/silent"), []string{"last answer: no answer in time"}},
		"it ended":          {[]string{"probe", "exit", "7"}, tcp(few(), 8080), []string{"its program ended, exit status 7"}},
		"exec":              {nil, command(few(), "probe", "nonsense"), []string{"probe exec probe nonsense", `exit status 1, its last output: "no such probe: \"nonsense\""`, "the template starts no program"}},
		"exec of nothing":   {nil, command(few(), "/no/such"), []string{"last answer:", "/no/such"}},
		"exec without end":  {nil, command(hasty(), "probe", "sleep", "1000"), []string{"last answer: no end in time"}},
		"delay past itself": {nil, func() *hostpb.Probe { p := tcp(asks(100*time.Millisecond), 1); p.InitialDelayMs = 200; return p }(), []string{"no success within 300ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := request()
			r.Command, r.Probe = c.command, c.probe
			_, err := w.host.CreateSandbox(w.ctx(), r)
			if err = fromGRPC(err); !errors.Is(err, fault.ProbeFailed) {
				t.Fatalf("got %v, want %s", err, fault.ProbeFailed.Name)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it says %q, not %q", err, want)
				}
			}
			if len(err.Error()) > 2000 {
				t.Errorf("%d bytes of words", len(err.Error()))
			}
			if _, err := w.get(r.GetSandboxId()); !errors.Is(err, fault.SandboxNotFound) {
				t.Errorf("it is there: %v", err)
			}
			w.mustBeEmpty()
		})
	}
}

// A sandbox that dies while it is asked is not asked until its time is up.
func TestASandboxDiesWhileItIsProbed(t *testing.T) {
	w := newWorld(t).open().hold()
	r := request()
	r.Resources.MemBytes = 64 << 20
	r.Command, r.Probe = []string{"probe", "allocate", "1024"}, tcp(asks(4*time.Minute), 8080)
	_, err := w.host.CreateSandbox(w.ctx(), r)
	if err = fromGRPC(err); !errors.Is(err, fault.ProbeFailed) || !strings.Contains(err.Error(), "oom") || !strings.Contains(err.Error(), "probe tcp :8080") {
		t.Errorf("got %v", err)
	}
	w.mustBeEmpty()
}

// Whoever asked goes away, or deletes it, while its probe is asked.
func TestAProbedCreateIsGivenUp(t *testing.T) {
	w := newWorld(t).open().hold()
	for name, end := range map[string]func(id string, leave context.CancelFunc){
		"left":    func(_ string, leave context.CancelFunc) { leave() },
		"deleted": func(id string, _ context.CancelFunc) { w.delete(id) },
	} {
		t.Run(name, func(t *testing.T) {
			r := request()
			r.Command, r.Probe = []string{"probe", "fill", "/begun", "1"}, tcp(asks(4*time.Minute), 8080)
			ctx, leave := context.WithCancel(w.ctx())
			defer leave()
			done := make(chan error, 1)
			go func() {
				_, err := w.host.CreateSandbox(ctx, r)
				done <- err
			}()
			runtimetest.Eventually(t, "its probe is asked", func() bool {
				s, err := w.get(r.GetSandboxId())
				return err == nil && s.GetStepUs()["init"] > 0
			})
			end(r.GetSandboxId(), leave)
			if err := fromGRPC(<-done); err == nil || errors.Is(err, fault.ProbeFailed) {
				t.Errorf("got %v", err)
			}
			runtimetest.Eventually(t, "it is forgotten", func() bool {
				_, err := w.get(r.GetSandboxId())
				return errors.Is(err, fault.SandboxNotFound)
			})
			w.mustBeEmpty()
		})
	}
}

func TestAHostRefusesABadProbe(t *testing.T) {
	w := newWorld(t).open().hold()
	for _, p := range []*hostpb.Probe{asks(time.Second), tcp(asks(time.Second), 70_000), tcp(asks(time.Hour), 80), httpGet(asks(time.Second), "elsewhere"), command(asks(time.Second), "")} {
		r := request()
		r.Probe = p
		if _, err := w.host.CreateSandbox(w.ctx(), r); !errors.Is(fromGRPC(err), fault.InvalidInput) {
			t.Errorf("%v: %v", p, err)
		}
	}
	r := request()
	r.Command, r.Probe = []string{"probe", "answer", ":8080", "0"}, tcp(asks(time.Minute), 8080)
	s := w.create(r)
	r.Probe = tcp(asks(time.Minute), 8081)
	if _, err := w.host.CreateSandbox(w.ctx(), r); !errors.Is(fromGRPC(err), fault.Exists) {
		t.Errorf("another probe under the same id: %v", err)
	}
	w.delete(s.GetSandboxId())
}

// The cubelet is killed while a probe is asked: nothing of it is left.
func TestKilledInAProbe(t *testing.T) {
	w := newWorld(t)
	kill, died := w.openChild("")
	w.hold()
	r := request()
	r.Command, r.Probe = []string{"probe", "sleep", "1000"}, tcp(asks(4*time.Minute), 8080)
	created := make(chan error, 1)
	go func() {
		_, err := w.host.CreateSandbox(w.ctx(), r)
		created <- err
	}()
	runtimetest.Eventually(t, "its probe is asked", func() bool {
		s, err := w.get(r.GetSandboxId())
		return err == nil && s.GetStepUs()["init"] > 0
	})
	kill()
	<-died
	if err := <-created; err == nil {
		t.Error("it was made")
	}
	w.open()
	if _, err := w.get(r.GetSandboxId()); !errors.Is(err, fault.SandboxNotFound) {
		t.Errorf("after the kill: %v", err)
	}
	w.mustBeEmpty()
}
