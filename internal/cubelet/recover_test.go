package cubelet_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

// A cubelet is killed at each step of a create; the next one finds nothing, and
// works.
func TestCrashAtAnyStepConverges(t *testing.T) {
	for _, step := range []string{"journal", "parts", "runtime", "init", "probe", "confirm"} {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t)
			_, died := w.openChild(fmt.Sprintf("cubelet.create.%s=crash", step))
			w.hold()
			r := request()
			r.Probe = tcp(asks(time.Minute), 49983)
			if _, err := w.host.CreateSandbox(w.ctx(), r); err == nil {
				t.Fatal("the crash was not met")
			}
			<-died
			w.open()
			s, err := w.get(r.GetSandboxId())
			if step == "confirm" { // it was whole: nobody may lose it
				if err != nil || s.GetState() != hostpb.SandboxState_SANDBOX_STATE_RUNNING {
					t.Fatalf("a whole sandbox after the crash: %v, %v", s, err)
				}
				w.delete(r.GetSandboxId())
			} else if !errors.Is(err, fault.SandboxNotFound) {
				t.Fatalf("a half-made sandbox after the crash: %v, %v", s, err)
			}
			w.mustBeEmpty()
			w.delete(w.create(r).GetSandboxId())
		})
	}
}

// The kill comes from outside, at no step in particular: also while the
// runtime itself is half way.
func TestKillAtAnyMomentConverges(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	for range 6 {
		kill, died := w.openChild("")
		w.hold()
		created := make(chan error, 1)
		r := request()
		go func() {
			_, err := w.host.CreateSandbox(w.ctx(), r)
			created <- err
		}()
		select {
		case <-time.After(time.Duration(random.IntN(600)) * time.Millisecond):
		case <-created:
		}
		kill()
		<-died
	}
	w.open()
	list, err := w.host.ListSandboxes(w.ctx(), &hostpb.ListSandboxesRequest{})
	check(t, err)
	for _, s := range list.GetSandboxes() {
		if s.GetState() != hostpb.SandboxState_SANDBOX_STATE_RUNNING {
			t.Errorf("%s is %s: %s", s.GetSandboxId(), s.GetState(), s.GetReason())
		}
		if got := w.exec(s.GetSandboxId(), "probe", "echo", "on"); got.out != "on\n" {
			t.Errorf("%s: %+v", s.GetSandboxId(), got)
		}
		w.delete(s.GetSandboxId())
	}
	w.mustBeEmpty()
}

func TestRunningSandboxesAreAdopted(t *testing.T) {
	w := newWorld(t)
	kill, died := w.openChild("")
	w.hold()
	a, b, c := w.create(request()), w.create(request()), w.create(request())
	check(t, w.write(a.GetSandboxId(), "/root/kept", []byte("since before")))
	kernel := w.kernelOf(c.GetSandboxId())
	kill()
	<-died
	check(t, syscall.Kill(kernel, syscall.SIGKILL)) // while nobody looks

	w.open()
	if got, err := w.read(a.GetSandboxId(), "/root/kept"); err != nil || string(got) != "since before" {
		t.Errorf("%q, %v", got, err)
	}
	if s, err := w.get(a.GetSandboxId()); err != nil || s.GetIp() != a.GetIp() || s.GetStepUs()["runtime"] != a.GetStepUs()["runtime"] {
		t.Errorf("%v, %v; want %v", s, err, a)
	}
	w.exitedFor(c.GetSandboxId(), "exited")
	if _, err := w.host.RemoveArtifact(w.ctx(), &hostpb.RemoveArtifactRequest{ArtifactId: artifactID}); !errors.Is(fromGRPC(err), fault.TemplateInUse) {
		t.Errorf("removing an artifact in use: %v", err)
	}
	// What was adopted is watched, and its network is its own.
	d := w.create(request())
	if d.GetIp() == a.GetIp() || d.GetIp() == b.GetIp() {
		t.Errorf("the address of a running sandbox was given again: %s", d.GetIp())
	}
	check(t, syscall.Kill(w.kernelOf(b.GetSandboxId()), syscall.SIGKILL))
	w.exitedFor(b.GetSandboxId(), "exited")
	for _, s := range []*hostpb.Sandbox{a, b, c, d} {
		w.delete(s.GetSandboxId())
	}
	w.mustBeEmpty()
	_, err := w.host.RemoveArtifact(w.ctx(), &hostpb.RemoveArtifactRequest{ArtifactId: artifactID})
	check(t, err)
}

// A sandbox that runs is no dead one because its guest is slow.
func TestASilentGuestIsAdopted(t *testing.T) {
	w := newWorld(t)
	kill, died := w.openChild("")
	w.hold()
	s := w.create(request())
	check(t, w.write(s.GetSandboxId(), "/root/kept", []byte("since before")))
	kernel := w.kernelOf(s.GetSandboxId())
	kill()
	<-died
	check(t, syscall.Kill(kernel, syscall.SIGSTOP))
	w.open()
	check(t, syscall.Kill(kernel, syscall.SIGCONT))
	if got, err := w.read(s.GetSandboxId(), "/root/kept"); err != nil || string(got) != "since before" {
		t.Errorf("%q, %v", got, err)
	}
	w.delete(s.GetSandboxId())
	w.mustBeEmpty()
}

// A stop that was told to keep sandboxes keeps them, and what they need.
func TestStopKeepsSandboxes(t *testing.T) {
	w := newWorld(t)
	w.cfg.Cubelet.OnStop = "keep"
	w.open().hold()
	s := w.create(request())
	w.stop()
	if err := syscall.Kill(w.kernelOf(s.GetSandboxId()), 0); err != nil {
		t.Fatalf("the sandbox ended with the cubelet: %v", err)
	}
	w.open()
	if got := w.exec(s.GetSandboxId(), "probe", "echo", "on"); got.out != "on\n" {
		t.Errorf("%+v", got)
	}
	w.delete(s.GetSandboxId())
	// With none left it leaves nothing, however it was configured.
}

// A torn journal, files of no sandbox and a download that broke off are
// removed; a file of somebody else's is not.
func TestLeftoversAreRemoved(t *testing.T) {
	w := newWorld(t).open().hold()
	w.stop()
	check(t, os.MkdirAll(w.path("sandboxes", "i00000000000000000000000f"), 0o700))
	check(t, os.WriteFile(w.path("sandboxes", "i00000000000000000000000f", "journal.json"), []byte(`{"id":"i0000`), 0o600))
	check(t, os.WriteFile(w.path("images", "rfs-00000000000000000000000f.ext4.0123456789abcdef.download"), []byte("half"), 0o600))
	check(t, os.WriteFile(w.path("images", "rfs-00000000000000000000000f.ext4"), []byte("without proof"), 0o600))
	check(t, os.WriteFile(w.path("foreign"), nil, 0o600))
	w.open()
	w.mustBeEmpty()
	names, err := os.ReadDir(w.path("images"))
	check(t, err)
	var list []string
	for _, n := range names {
		list = append(list, n.Name())
	}
	if got := strings.Join(list, " "); got != artifactID+".ext4 "+artifactID+".json" {
		t.Errorf("images: %s", got)
	}
	if _, err := os.Stat(w.path("foreign")); err != nil {
		t.Error(err)
	}
}

// Two cubelets on one machine, on the same addresses, do not touch each other's
// sandboxes, not even when one of them recovers.
func TestTwoCubeletsOnOneMachine(t *testing.T) {
	a := newWorld(t).open().hold()
	b := newWorld(t).open().hold()
	first, second := a.create(request()), b.create(request())
	if first.GetIp() == second.GetIp() {
		t.Fatalf("both have %s", first.GetIp())
	}
	b.stop()
	b.open()
	if got := a.exec(first.GetSandboxId(), "probe", "echo", "on"); got.out != "on\n" {
		t.Errorf("%+v", got)
	}
	runtimetest.Eventually(t, "the other one is gone", func() bool {
		_, err := b.get(second.GetSandboxId())
		return errors.Is(err, fault.SandboxNotFound)
	})
	a.delete(first.GetSandboxId())
}
