package cubelet_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// hang begins a create that does not come to its end, and returns what gives it
// up.
func (w *world) hang() (stop func()) {
	w.t.Helper()
	r := request()
	r.Probe = tcp(asks(time.Minute), 1) // nobody listens
	ctx, cancel := context.WithCancel(w.ctx())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = w.host.CreateSandbox(ctx, r) // it is given up below
	}()
	runtimetest.Eventually(w.t, "the create is under way", func() bool { _, err := w.get(r.GetSandboxId()); return err == nil })
	return func() {
		cancel()
		<-done
		w.delete(r.GetSandboxId())
	}
}

func TestCreatesAtOnceAreBounded(t *testing.T) {
	w := newWorld(t)
	w.cfg.Cubelet.CreateConcurrency = 2
	w.open().hold()
	first, second := w.hang(), w.hang()
	_, err := w.host.CreateSandbox(w.ctx(), request())
	err = serve.FromGRPC(err)
	if said := serve.TruthOf(err); fault.Of(err) != fault.HostBusy || fault.Of(err).RetCode() != 130513 || said.GetCreating() != 2 || said.GetSandboxes() != 2 {
		t.Errorf("%v with %v, want %s", err, said, fault.HostBusy.Name)
	}
	// More than the host has is a matter of room, however busy it is.
	large := request()
	large.Resources.MemBytes = 1 << 50
	if _, err := w.host.CreateSandbox(w.ctx(), large); fault.Of(serve.FromGRPC(err)) != fault.HostFull {
		t.Errorf("%v, want %s", err, fault.HostFull.Name)
	}
	first()
	r := request()
	w.create(r)
	second()
	w.delete(r.GetSandboxId())
}

func TestAnyNumberOfCreatesWithoutALimit(t *testing.T) {
	w := newWorld(t)
	w.cfg.Cubelet.CreateConcurrency = 0
	w.open().hold()
	stop := w.hang()
	r := request()
	w.create(r)
	stop()
	w.delete(r.GetSandboxId())
}

// A quota is followed at once, outlives the process, and takes nothing from
// sandboxes that run.
func TestAHostFollowsItsQuota(t *testing.T) {
	at := func(n int64) *int64 { return &n }
	b := &books{tokens: map[string]bool{}}
	w := newWorld(t).reportingTo(b)
	w.cfg.Cubelet.OnStop = "keep"
	w.open().hold()
	r := request()
	w.create(r)
	told := func(what string, q *host.Quota, ok func(cubeapi.HostStatusRequest) bool) {
		t.Helper()
		b.look(func() { b.quota = q })
		runtimetest.Eventually(t, what, func() (is bool) { b.look(func() { is = ok(b.last) }); return is })
	}
	told("a quota below what is allocated", &host.Quota{Revision: 4, MilliCPU: at(1), CreateLimit: at(7)}, func(s cubeapi.HostStatusRequest) bool {
		return s.QuotaRevision == 4 && s.Allocatable.MilliCPU == 1 && s.Allocatable.Slots == int64(w.cfg.Cubelet.MaxSandboxes) && s.CreateLimit == 7 && s.Sandboxes == 1
	})
	_, err := w.host.CreateSandbox(w.ctx(), request())
	err = serve.FromGRPC(err)
	if said := serve.TruthOf(err); fault.Of(err) != fault.HostFull || said.GetAllocatable().GetMilliCpu() != 1 || said.GetAllocated().GetMilliCpu() != 1000 {
		t.Errorf("over the quota: %v with %v", err, said)
	}
	if got := w.exec(r.GetSandboxId(), "probe", "echo", "on"); got.out != "on\n" {
		t.Errorf("what ran before: %+v", got)
	}
	// Without a master that tells it, also after a restart.
	w.stop()
	b.look(func() { b.quota, b.registered = nil, nil })
	w.open()
	runtimetest.Eventually(t, "it registers", func() (is bool) { b.look(func() { is = len(b.registered) > 0 }); return is })
	b.look(func() {
		if got := b.registered[0]; got.Allocatable.MilliCPU != 1 || got.Revision == 0 {
			t.Errorf("registered anew: %+v", got)
		}
	})
	if _, err = w.host.CreateSandbox(w.ctx(), request()); fault.Of(serve.FromGRPC(err)) != fault.HostFull {
		t.Errorf("over the quota, after a restart: %v", err)
	}
	w.delete(r.GetSandboxId())
	// More than it would let sandboxes have by itself, then as it would.
	told("a large quota", &host.Quota{Revision: 5, MilliCPU: at(1 << 40)}, func(s cubeapi.HostStatusRequest) bool {
		return s.QuotaRevision == 5 && s.Allocatable.MilliCPU == 1<<40
	})
	told("no quota", &host.Quota{}, func(s cubeapi.HostStatusRequest) bool {
		return s.QuotaRevision == 0 && s.Allocatable.MilliCPU < 1<<40 && s.CreateLimit == int64(w.cfg.Cubelet.CreateConcurrency)
	})
	w.delete(w.create(request()).GetSandboxId())
}

// What cannot be kept is not followed: after a restart it would be another.
func TestAQuotaThatCannotBeKept(t *testing.T) {
	b := &books{tokens: map[string]bool{}}
	w := newWorld(t).reportingTo(b).open().hold()
	check(t, os.Mkdir(w.path("quota.json"), 0o700))
	none := int64(0)
	b.look(func() { b.quota = &host.Quota{Revision: 1, Slots: &none} })
	reports := 0
	b.look(func() { reports = b.reports })
	runtimetest.Eventually(t, "some reports", func() (is bool) { b.look(func() { is = b.reports > reports+3 }); return is })
	b.look(func() {
		if b.last.QuotaRevision != 0 || b.last.Allocatable.Slots == 0 {
			t.Errorf("it follows %+v", b.last)
		}
	})
	check(t, os.Remove(w.path("quota.json")))
	runtimetest.Eventually(t, "it follows", func() (is bool) { b.look(func() { is = b.last.QuotaRevision == 1 }); return is })
	w.stop()
	check(t, os.WriteFile(w.path("quota.json"), []byte("{"), 0o600))
	if _, err := cubelet.Open(t.Context(), deps(w.cfg)); fault.Of(err) != fault.DataDir {
		t.Errorf("a damaged quota: %v", err)
	}
	check(t, os.Remove(w.path("quota.json")))
	w.open()
}

func TestHostReportsMeasures(t *testing.T) {
	b := &books{tokens: map[string]bool{}}
	w := newWorld(t).reportingTo(b)
	w.cfg.Cubelet.Labels, w.cfg.Cubelet.Zone, w.cfg.Cubelet.ClusterLabel = []string{"gpu=a100", "rack=7"}, "z1", "c1"
	w.open().hold()
	stop := w.hang()
	runtimetest.Eventually(t, "a create under way", func() (is bool) { b.look(func() { is = b.last.Creating == 1 }); return is })
	b.look(func() {
		percent := func(v float64) bool { return v > 0 && v <= 100 }
		s := b.last
		if s.MemUsedMiB <= 0 || !percent(s.DataDisk) || !percent(s.StorageDisk) || !percent(s.SysDisk) || s.CreateLimit != 100 || s.MaxSandboxes != int64(w.cfg.Cubelet.MaxSandboxes) || s.Revision == 0 || s.CPULoad < 0 {
			t.Errorf("report: %+v", s)
		}
		first := b.registered[0]
		if first.Zone != "z1" || first.ClusterLabel != "c1" || len(first.Labels) != 2 || first.Labels["gpu"] != "a100" {
			t.Errorf("registration: %+v", first)
		}
		for i, n := range b.revisions {
			if i > 0 && n <= b.revisions[i-1] {
				t.Errorf("revisions of reports: %v", b.revisions)
				break
			}
		}
	})
	stop()
}
