package cubelet_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// warmly has up to n sandboxes wait.
func (w *world) warmly(n int) *world {
	w.cfg.Cubelet.Warm.MaxPerTemplate, w.cfg.Cubelet.Warm.MinPerTemplate = n, n
	return w
}

// awaitWarm waits until n sandboxes wait for a create.
func (w *world) awaitWarm(n int) {
	w.t.Helper()
	runtimetest.Eventually(w.t, "sandboxes wait", func() bool { return w.cube.Warm() == n })
}

// cool ends all that wait, and checks that nothing else is left.
func (w *world) cool() {
	w.t.Helper()
	_, err := w.host.RemoveArtifact(w.ctx(), &hostpb.RemoveArtifactRequest{ArtifactId: artifactID})
	check(w.t, err)
	w.mustBeEmpty()
}

// waited reports whether s was made of one that waited.
func waited(s *hostpb.Sandbox) bool {
	return s.GetStepUs()["claim"] > 0 && s.GetStepUs()["runtime"] == 0
}

// A sandbox that waited is, to all that looks, as one that was started when it
// was asked for; and while it waited it was nobody's and reached nothing.
func TestOneThatWaitedIsAsAnyOther(t *testing.T) {
	w := newWorld(t).warmly(1).open().hold()
	asked := func() *hostpb.CreateSandboxRequest {
		r := request()
		r.Envs["SECRET"] = "of one"
		r.WorkingDir, r.Command = "/tmp", []string{"/bin/probe", "serve", ":7000"}
		r.Probe = tcp(asks(time.Minute), 7000)
		r.Egress = &hostpb.Egress{Internet: true}
		r.Resolver = &hostpb.Resolver{Servers: []string{"198.51.100.1"}}
		r.AccessToken = "a token of this sandbox"
		return r
	}
	look := func(s *hostpb.Sandbox) string {
		id := s.GetSandboxId()
		var b strings.Builder
		for _, file := range []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc/sys/kernel/hostname", "/proc/mounts"} {
			b.WriteString(file + ":\n" + w.exec(id, "probe", "cat", file).out)
		}
		for _, file := range []string{"/proc/1/status", "/proc/self/status"} {
			for line := range strings.Lines(w.exec(id, "probe", "cat", file).out) {
				if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "Uid") {
					b.WriteString(file + ": " + line)
				}
			}
		}
		for line := range strings.Lines(w.exec(id, "probe", "cat", "/proc/meminfo").out) {
			if strings.HasPrefix(line, "MemTotal") {
				b.WriteString(line)
			}
		}
		b.WriteString(w.exec(id, "probe", "where").out + w.exec(id, "probe", "env").out)
		return strings.NewReplacer(id, "ID", s.GetIp(), "ADDRESS").Replace(b.String())
	}
	cold := w.create(asked())
	w.awaitWarm(1)
	list, err := w.host.ListSandboxes(w.ctx(), &hostpb.ListSandboxesRequest{})
	check(t, err)
	if got := w.cube.Truth(); len(list.GetSandboxes()) != 1 || got.GetSandboxes() != 1 || got.GetAllocated().GetSlots() != 1 {
		t.Errorf("one that waits is told of as a sandbox: %v, %v", list, got)
	}
	if open := w.open4(); strings.Count(open, "10.230.") != 1 {
		t.Errorf("ways out while one waits: %s", open)
	}
	warm := w.create(asked())
	if !waited(warm) || waited(cold) {
		t.Fatalf("steps: %v, and of the first %v", warm.GetStepUs(), cold.GetStepUs())
	}
	if got, want := look(warm), look(cold); got != want {
		t.Errorf("it is\n%s\nand one that was started for its create\n%s", got, want)
	}
	if open := w.open4(); !strings.Contains(open, warm.GetIp()) {
		t.Errorf("its policy does not hold: %s", open)
	}
	w.delete(cold.GetSandboxId())
	w.delete(warm.GetSandboxId())
	w.cool()
}

// open4 is the addresses that may reach anything.
func (w *world) open4() string {
	w.t.Helper()
	out, err := exec.CommandContext(w.ctx(), "nft", "list", "set", "inet", "paddock_"+cubelet.Tag(w.cfg.DataDir), "away").CombinedOutput()
	if err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// More creates at once than wait: each gets a sandbox of its own, and none is
// given twice.
func TestNoneThatWaitsIsGivenTwice(t *testing.T) {
	w := newWorld(t).warmly(2).open().hold()
	w.delete(w.create(request()).GetSandboxId())
	w.awaitWarm(2)
	const n = 5
	made := make([]*hostpb.Sandbox, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			r := request()
			answer, err := w.host.CreateSandbox(w.ctx(), r)
			if err != nil {
				t.Error(serve.FromGRPC(err))
				return
			}
			made[i] = answer.GetSandbox()
			again, err := w.host.CreateSandbox(w.ctx(), r) // the reply was lost
			if err != nil || again.GetSandbox().GetIp() != made[i].GetIp() {
				t.Errorf("the same again: %v, %v", again, err)
			}
		})
	}
	all.Wait()
	count, ips := 0, map[string]bool{}
	for _, s := range made {
		ips[s.GetIp()] = true
		if waited(s) {
			count++
		}
		if got := w.exec(s.GetSandboxId(), "probe", "cat", "/etc/hostname"); got.out != s.GetSandboxId()+"\n" {
			t.Errorf("sandbox %s is called %q", s.GetSandboxId(), got.out)
		}
		w.delete(s.GetSandboxId())
	}
	if count != 2 || len(ips) != n {
		t.Errorf("%d of 2 that waited were given, %d addresses to %d sandboxes", count, len(ips), n)
	}
	w.awaitWarm(2)
	w.cool()
}

// The cubelet is killed while one starts ahead, and at each step of its claim:
// the next one finds a whole sandbox or nothing.
func TestCrashAroundAClaimConverges(t *testing.T) {
	for _, c := range []struct {
		step  string
		whole bool
	}{{"warm.started", false}, {"claim.journal", false}, {"claim.parts", false}, {"claim.init", false}, {"create.init@2", false}, {"create.confirm@2", true}} {
		t.Run(c.step, func(t *testing.T) {
			w := newWorld(t)
			step, visit, _ := strings.Cut(c.step, "@")
			arm := "cubelet." + step + "=crash"
			if visit != "" {
				arm += "@" + visit
			}
			_, died := w.openChild(arm, childWarm+"=yes")
			w.hold()
			_, err := w.host.CreateSandbox(w.ctx(), request())
			r := request()
			if step != "warm.started" { // else the crash may be as quick as the reply
				check(t, err)
				runtimetest.Eventually(t, "one waits", func() bool { _, err := os.Stat(w.path("waits")); return err == nil })
				if _, err := w.host.CreateSandbox(w.ctx(), r); err == nil {
					t.Fatal("the crash was not met")
				}
			}
			<-died
			w.open()
			s, err := w.get(r.GetSandboxId())
			switch {
			case c.whole && err != nil:
				t.Fatalf("a whole sandbox after the crash: %v", err)
			case c.whole:
				if got := w.exec(r.GetSandboxId(), "probe", "cat", "/etc/hostname"); got.out != s.GetSandboxId()+"\n" {
					t.Errorf("after its adoption: %+v", got)
				}
			case !errors.Is(err, fault.SandboxNotFound):
				t.Fatalf("half of a sandbox after the crash: %v, %v", s, err)
			}
			list, err := w.host.ListSandboxes(w.ctx(), &hostpb.ListSandboxesRequest{})
			check(t, err)
			for _, s := range list.GetSandboxes() {
				w.delete(s.GetSandboxId())
			}
			w.mustBeEmpty()
			w.delete(w.create(r).GetSandboxId())
		})
	}
}

// One that is of no use costs its create time, and nothing else.
func TestOneOfNoUseIsReplaced(t *testing.T) {
	w := newWorld(t).warmly(1).open().hold()
	w.delete(w.create(request()).GetSandboxId())
	w.awaitWarm(1)
	for _, place := range []string{"cubelet.claim.journal", "cubelet.claim.init"} {
		disarm := fail.Arm(place, "error")
		s := w.create(request())
		disarm()
		if waited(s) || s.GetStepUs()["runtime"] == 0 {
			t.Errorf("%s: steps %v", place, s.GetStepUs())
		}
		if got := w.exec(s.GetSandboxId(), "probe", "cat", "/etc/hostname"); got.out != s.GetSandboxId()+"\n" {
			t.Errorf("%s: %+v", place, got)
		}
		w.delete(s.GetSandboxId())
		w.awaitWarm(1)
	}
	before := w.cube.WarmKernels()
	check(t, syscall.Kill(before[0], syscall.SIGKILL))
	runtimetest.Eventually(t, "another waits", func() bool {
		now := w.cube.WarmKernels()
		return w.cube.Warm() == 1 && len(now) == 1 && now[0] != before[0]
	})
	s := w.create(request())
	if !waited(s) {
		t.Errorf("steps %v", s.GetStepUs())
	}
	w.delete(s.GetSandboxId())
	w.cool()
}

// What waits is in nobody's way: neither its slot nor its address is missed.
func TestWhatWaitsGivesWay(t *testing.T) {
	other := func() *hostpb.CreateSandboxRequest {
		r := request()
		r.WritableBytes += 1 << 20 // fits none that waits
		return r
	}
	t.Run("room", func(t *testing.T) {
		w := newWorld(t).warmly(1)
		w.cfg.Cubelet.MaxSandboxes = 2
		w.open().hold()
		first := w.create(request())
		w.awaitWarm(1)
		second := w.create(other())
		_, err := w.host.CreateSandbox(w.ctx(), other())
		if err = serve.FromGRPC(err); !errors.Is(err, fault.HostFull) || serve.TruthOf(err).GetSandboxes() != 2 {
			t.Errorf("a third sandbox: %v", err)
		}
		runtimetest.Eventually(t, "nothing waits", func() bool { return w.cube.Warm() == 0 && len(w.cube.WarmKernels()) == 0 })
		w.delete(first.GetSandboxId())
		w.delete(second.GetSandboxId())
		w.cool()
	})
	t.Run("address", func(t *testing.T) {
		w := newWorld(t).warmly(1)
		w.open().hold()
		first := w.create(request())
		w.awaitWarm(1)
		release := w.cube.TakeAddresses()
		second := w.create(other())
		if _, err := w.host.CreateSandbox(w.ctx(), other()); !errors.Is(serve.FromGRPC(err), fault.HostFull) {
			t.Errorf("without an address: %v", err)
		}
		release()
		w.delete(first.GetSandboxId())
		w.delete(second.GetSandboxId())
		w.cool()
	})
}
