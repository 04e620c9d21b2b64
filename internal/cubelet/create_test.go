package cubelet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

func TestCreateIsIdempotent(t *testing.T) {
	w := newWorld(t).open().hold()
	r := request()
	answers, errs := make([]*hostpb.CreateSandboxResponse, 4), make([]error, 4)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i], errs[i] = w.host.CreateSandbox(w.ctx(), r) })
	}
	group.Wait()
	again := w.create(r) // also long after
	for i, a := range answers {
		check(t, errs[i])
		if !proto.Equal(a.GetSandbox(), again) {
			t.Errorf("answer %d differs: %v, then %v", i, a.GetSandbox(), again)
		}
	}
	if got := kernels(t, w); len(got) != 1 {
		t.Errorf("%d sandboxes run: %v", len(got), got)
	}
	other := proto.Clone(r).(*hostpb.CreateSandboxRequest)
	other.Envs = map[string]string{"FROM": "elsewhere"}
	if _, err := w.host.CreateSandbox(w.ctx(), other); !errors.Is(fromGRPC(err), fault.Exists) {
		t.Errorf("other content under the same id: %v", err)
	}
}

// kernels returns the ids of the sandboxes that have a cgroup.
func kernels(t *testing.T, w *world) []string {
	ofSandboxes, _, err := leftovers(w)
	check(t, err)
	return slices.DeleteFunc(ofSandboxes, func(s string) bool { return len(s) < 10 || s[:10] != "network na" })
}

func TestAdmissionNeverOversells(t *testing.T) {
	w := newWorld(t)
	w.cfg.Cubelet.MaxSandboxes = 2
	w.open().hold()
	const callers = 8
	requests, errs := make([]*hostpb.CreateSandboxRequest, callers), make([]error, callers)
	var group sync.WaitGroup
	for i := range requests {
		requests[i] = request()
		group.Go(func() { _, errs[i] = w.host.CreateSandbox(w.ctx(), requests[i]) })
	}
	group.Wait()
	var held []string
	for i, err := range errs {
		switch {
		case err == nil:
			held = append(held, requests[i].GetSandboxId())
		case !errors.Is(fromGRPC(err), fault.HostFull):
			t.Errorf("refused with %v, want %s", err, fault.HostFull.Name)
		}
	}
	if len(held) != 2 {
		t.Errorf("%d sandboxes on a host with room for 2", len(held))
	}
	// A delete makes room at once.
	w.delete(held[0])
	w.create(request())
}

func TestCancelledCreateLeavesNothing(t *testing.T) {
	w := newWorld(t).open().hold()
	for _, after := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		r := request()
		_, err := w.host.CreateSandbox(ctx, r)
		cancel()
		if err == nil {
			t.Logf("it was made within %s", after)
			w.delete(r.GetSandboxId())
		}
		runtimetest.Eventually(t, "the create is forgotten", func() bool {
			_, err := w.get(r.GetSandboxId())
			return errors.Is(err, fault.SandboxNotFound)
		})
		w.mustBeEmpty()
	}
}

// Of two callers that wait for one create, one goes away: the other is served.
func TestOneCallerLeavesAnotherStays(t *testing.T) {
	w := newWorld(t).open().hold()
	r := request()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	left := make(chan error, 1)
	go func() {
		_, err := w.host.CreateSandbox(ctx, r)
		left <- err
	}()
	runtimetest.Eventually(t, "the create began", func() bool { _, err := w.get(r.GetSandboxId()); return err == nil })
	w.create(r)
	if got := w.exec(r.GetSandboxId(), "probe", "echo", "here"); got.out != "here\n" {
		t.Errorf("%+v", got)
	}
	<-left
}

func TestDeleteWinsOverACreate(t *testing.T) {
	w := newWorld(t).open().hold()
	for _, step := range []string{"journal.json", "runtime", "runtime/pid"} {
		r := request()
		created := make(chan error, 1)
		go func() {
			_, err := w.host.CreateSandbox(w.ctx(), r)
			created <- err
		}()
		runtimetest.Eventually(t, "the create came to "+step, func() bool {
			_, err := os.Stat(w.path("sandboxes", r.GetSandboxId(), step))
			return err == nil
		})
		w.delete(r.GetSandboxId())
		if err := fromGRPC(<-created); err != nil && !errors.Is(err, fault.SandboxNotReady) {
			t.Errorf("the create ended with %v", err)
		}
		if _, err := w.get(r.GetSandboxId()); !errors.Is(err, fault.SandboxNotFound) {
			t.Errorf("after the delete: %v", err)
		}
		w.mustBeEmpty()
	}
}

// A template whose image is broken, or has no guest: the create says so and
// leaves nothing.
func TestBrokenTemplateIsUndone(t *testing.T) {
	w := newWorld(t).open().hold()
	check(t, os.Truncate(w.path("images", artifactID+".ext4"), 4096))
	_, err := w.host.CreateSandbox(w.ctx(), request())
	if !errors.Is(fromGRPC(err), fault.RuntimeFailed) {
		t.Errorf("a cut image: %v", err)
	}
	w.mustBeEmpty()
}

func TestFailureOfAnyStepIsUndone(t *testing.T) {
	for _, step := range []string{"journal", "parts", "runtime", "init", "confirm"} {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t)
			kill, _ := w.openChild(fmt.Sprintf("cubelet.create.%s=error", step))
			w.hold()
			if _, err := w.host.CreateSandbox(w.ctx(), request()); err == nil {
				t.Fatal("the injected failure was not met")
			}
			w.mustBeEmpty()
			kill()
			w.open() // with it, what is left of the host is removed
		})
	}
}
