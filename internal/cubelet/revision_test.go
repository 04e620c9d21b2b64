package cubelet_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// made makes a sandbox and returns what the host holds with it.
func (w *world) made(r *hostpb.CreateSandboxRequest) *hostpb.HostTruth {
	w.t.Helper()
	answer, err := w.host.CreateSandbox(w.ctx(), r)
	if err != nil {
		w.t.Fatal(serve.FromGRPC(err))
	}
	return answer.GetTruth()
}

// ended deletes a sandbox and returns what the host holds without it.
func (w *world) ended(id string) *hostpb.HostTruth {
	w.t.Helper()
	answer, err := w.host.DeleteSandbox(w.ctx(), &hostpb.DeleteSandboxRequest{SandboxId: id, Reason: "request"})
	check(w.t, err)
	return answer.GetTruth()
}

func TestTruthsFollowOneAnother(t *testing.T) {
	w := newWorld(t).open().hold()
	a, b := request(), request()
	with := w.made(a)
	if m := with.GetAllocated(); m.GetMilliCpu() != 1000 || m.GetMemBytes() != 256<<20 || m.GetDiskBytes() != 32<<20 || m.GetSlots() != 1 || with.GetSandboxes() != 1 || with.GetCreating() != 0 || with.GetAllocatable().GetSlots() != int64(w.cfg.Cubelet.MaxSandboxes) {
		t.Errorf("with one sandbox: %v", with)
	}
	both := w.made(b)
	if again := w.made(b); both.GetRevision() <= with.GetRevision() || again.GetRevision() != both.GetRevision() || again.GetSandboxes() != 2 {
		t.Errorf("with two %v, after a repeat %v, with one %v", both, again, with)
	}
	without := w.ended(a.GetSandboxId())
	if without.GetRevision() <= both.GetRevision() || without.GetAllocated().GetSlots() != 1 || without.GetSandboxes() != 1 {
		t.Errorf("after a delete: %v", without)
	}
	if same := w.ended(a.GetSandboxId()); same.GetRevision() != without.GetRevision() {
		t.Errorf("deleting nothing: %v, want revision %d", same, without.GetRevision())
	}
	w.delete(b.GetSandboxId())
}

func TestARefusalTellsTheTruth(t *testing.T) {
	w := newWorld(t)
	w.cfg.Cubelet.MaxSandboxes = 1
	w.open().hold()
	r := request()
	held := w.made(r)
	_, err := w.host.CreateSandbox(w.ctx(), request())
	err = serve.FromGRPC(err)
	if said := serve.TruthOf(err); fault.Of(err) != fault.HostFull || said.GetRevision() != held.GetRevision() || said.GetAllocated().GetSlots() != 1 || said.GetAllocatable().GetSlots() != 1 {
		t.Errorf("%v with %v, want %s with %v", err, serve.TruthOf(err), fault.HostFull.Name, held)
	}
	other := request()
	other.ArtifactId = "rfs-000000000000000000000000"
	w.delete(r.GetSandboxId())
	_, err = w.host.CreateSandbox(w.ctx(), other)
	if err = serve.FromGRPC(err); fault.Of(err) != fault.ArtifactNotFound || serve.TruthOf(err) != nil {
		t.Errorf("an artifact that is not there: %v with %v", err, serve.TruthOf(err))
	}
}

func TestNoNetworkLeftIsAFullHost(t *testing.T) {
	w := newWorld(t)
	w.cfg.Cubelet.Subnet = "10.230.0.0/30" // one sandbox's
	w.open().hold()
	r := request()
	held := w.made(r)
	_, err := w.host.CreateSandbox(w.ctx(), request())
	err = serve.FromGRPC(err)
	if said := serve.TruthOf(err); fault.Of(err) != fault.HostFull || said.GetRevision() != held.GetRevision() || said.GetSandboxes() != 1 {
		t.Errorf("%v with %v, want %s with %v", err, said, fault.HostFull.Name, held)
	}
	w.delete(r.GetSandboxId())
}

// A revision of a process that was killed is never told again for something
// else.
func TestRevisionsNeverGoBack(t *testing.T) {
	w := newWorld(t)
	last := int64(0)
	for range 3 {
		kill, died := w.openChild("")
		w.hold()
		r := request()
		first := w.made(r).GetRevision()
		if first <= last {
			t.Errorf("revision %d after %d", first, last)
		}
		last = w.ended(r.GetSandboxId()).GetRevision()
		kill()
		<-died
	}
	w.open().hold()
	r := request()
	if n := w.made(r).GetRevision(); n <= last {
		t.Errorf("revision %d after %d", n, last)
	}
	w.delete(r.GetSandboxId())
}

func TestRevisionsAreReservedAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revision")
	reserved := func() int64 {
		b, err := os.ReadFile(path)
		check(t, err)
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		check(t, err)
		return n
	}
	first, err := cubelet.OpenRevisions(path)
	check(t, err)
	if reserved() <= first {
		t.Errorf("reserved up to %d, at %d", reserved(), first)
	}
	before := reserved()
	second, err := cubelet.OpenRevisions(path)
	check(t, err)
	if second != before || reserved() <= second {
		t.Errorf("it goes on at %d, want %d; reserved up to %d", second, before, reserved())
	}
	check(t, os.Remove(path))
	// A directory that was lost: the clock is above all that was counted.
	if third, err := cubelet.OpenRevisions(path); err != nil || third <= first {
		t.Errorf("anew at %d, %v; it was at %d", third, err, first)
	}
	check(t, os.WriteFile(path, []byte("12x\n"), 0o600))
	if _, err := cubelet.OpenRevisions(path); fault.Of(err) != fault.DataDir {
		t.Errorf("a damaged file: %v", err)
	}
}

// Counts go on while sandboxes come and go, and when none can be reserved only
// new ones are refused.
func TestRevisionsRunOut(t *testing.T) {
	w := newWorld(t).open().hold()
	r := request()
	w.create(r)
	path := w.path("revision")
	check(t, os.Remove(path))
	check(t, os.Mkdir(path, 0o700)) // nothing can take its place
	w.cube.SpendRevisions()
	_, err := w.host.CreateSandbox(w.ctx(), request())
	if err = serve.FromGRPC(err); fault.Of(err) != fault.DataDir {
		t.Errorf("with no revision left: %v", err)
	}
	before := w.cube.Revision()
	if after := w.ended(r.GetSandboxId()).GetRevision(); after <= before {
		t.Errorf("an end is counted %d after %d", after, before)
	}
	check(t, os.Remove(path))
	runtimetest.Eventually(t, "revisions are there again", func() bool {
		_, err := w.host.CreateSandbox(w.ctx(), r)
		return err == nil
	})
	w.delete(r.GetSandboxId())
}
