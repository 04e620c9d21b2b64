package master_test

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

func number(n int64) *int64 { return &n }

func (r *rig) hostNow(h *fakeHost) *cubeapi.Host {
	r.t.Helper()
	shown, err := r.api.Host(r.t.Context(), string(h.id))
	must(r.t, err)
	return shown
}

// Labels of operators stand over the host's own, and outlive what it says of
// itself.
func TestOperatorsLabelHosts(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		h := r.host(0, plenty)
		h.hush()
		own := cubeapi.HostRegisterRequest{NodeID: string(h.id), HostIP: "127.0.0.1", GRPCPort: h.port, InstanceType: "cubebox", Labels: map[string]string{"rack": "1", "gpu": "no"}, Allocatable: plenty}
		must(t, h.tell.Register(t.Context(), own))
		change := func(set map[string]string, remove ...string) (*cubeapi.Host, error) {
			return r.api.LabelHost(t.Context(), string(h.id), cubeapi.HostLabelsRequest{Set: set, Remove: remove})
		}
		shown, err := change(map[string]string{"gpu": "a100", "example.com/tier": "x"})
		must(t, err)
		if !maps.Equal(shown.Labels, map[string]string{"rack": "1", "gpu": "a100", "example.com/tier": "x"}) || !maps.Equal(shown.OwnLabels, map[string]string{"gpu": "a100", "example.com/tier": "x"}) {
			t.Errorf("labels %v, of operators %v", shown.Labels, shown.OwnLabels)
		}
		must(t, h.tell.Register(t.Context(), own))
		must(t, h.say(t.Context()))
		if shown = r.hostNow(h); shown.Labels["gpu"] != "a100" {
			t.Errorf("after another registration: %v", shown.Labels)
		}
		shown, err = change(map[string]string{"new": ""}, "gpu", "nosuch")
		must(t, err)
		if !maps.Equal(shown.Labels, map[string]string{"rack": "1", "gpu": "no", "example.com/tier": "x", "new": ""}) {
			t.Errorf("after a removal: %v", shown.Labels)
		}
		_, err = change(nil, "rack")
		refused(t, err, fault.StateConflict)
		for name, c := range map[string]func() error{
			"nothing":        func() error { _, err := change(nil); return err },
			"a bad key":      func() error { _, err := change(map[string]string{"a b": "x"}); return err },
			"a bad value":    func() error { _, err := change(map[string]string{"a": "x y"}); return err },
			"a reserved key": func() error { _, err := change(map[string]string{"topology.kubernetes.io/zone": "z"}); return err },
			"isolation": func() error {
				_, err := change(map[string]string{"cube.cloud.tencentcloud.com/scheduling-disabled": "true"})
				return err
			},
			"removed reserved": func() error { _, err := change(nil, "kubernetes.io/cpu-type"); return err },
			"both":             func() error { _, err := change(map[string]string{"a": "1"}, "a"); return err },
		} {
			if err := c(); fault.Of(err) != fault.InvalidInput {
				t.Errorf("%s: %v", name, err)
			}
		}
		_, err = r.api.LabelHost(t.Context(), "nobody", cubeapi.HostLabelsRequest{Set: map[string]string{"a": "1"}})
		refused(t, err, fault.HostUnknown)
		if list := r.audited(string(h.id)); actions(list) != "host.label host.label" || list[0].Detail["set"] != "example.com/tier=x gpu=a100" || list[1].Detail["removed"] != "gpu nosuch" {
			t.Errorf("audit: %+v", list)
		}
	})
}

// A quota is set by who has seen the one before, told to its host, and shown
// until the host follows.
func TestQuotasAreComparedAndSet(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		h := r.host(0, plenty)
		h.hush()
		set := func(q cubeapi.HostQuotaRequest) (*cubeapi.Host, error) {
			return r.api.SetQuota(t.Context(), string(h.id), q)
		}
		shown, err := set(cubeapi.HostQuotaRequest{MilliCPU: number(4000), Slots: number(0), CreateConcurrentNum: number(3)})
		must(t, err)
		if q := shown.Quota; q == nil || q.Desired.Revision != 1 || !q.Drift || *q.Desired.MilliCPU != 4000 || *q.Desired.Slots != 0 || q.Desired.MemBytes != nil {
			t.Fatalf("quota: %+v", q)
		}
		_, err = set(cubeapi.HostQuotaRequest{MilliCPU: number(5000)})
		refused(t, err, fault.VersionConflict)
		// Of many that have seen the same one, one is first.
		won := make(chan error, 6)
		for range cap(won) {
			go func() {
				_, err := set(cubeapi.HostQuotaRequest{ExpectedRevision: 1, MilliCPU: number(6000)})
				won <- err
			}()
		}
		first := 0
		for range cap(won) {
			switch err := <-won; {
			case err == nil:
				first++
			case fault.Of(err) != fault.VersionConflict:
				t.Error(err)
			}
		}
		if first != 1 {
			t.Errorf("%d of %d were first", first, cap(won))
		}
		h.hush() // it knows of no quotas
		report := cubeapi.HostStatusRequest{Ready: true, Allocatable: &host.Resources{MilliCPU: 4000}, QuotaRevision: 1, Revision: h.next()}
		answer, err := h.tell.Exchange(t.Context(), h.id, report)
		must(t, err)
		if answer.Quota == nil || answer.Quota.Revision != 2 || *answer.Quota.MilliCPU != 6000 || answer.Quota.Slots != nil {
			t.Errorf("the host is told %+v", answer.Quota)
		}
		if shown = r.hostNow(h); shown.Allocatable.MilliCPU != 4000 || !shown.Quota.Drift || shown.Quota.AppliedRevision != 1 {
			t.Errorf("behind: %+v of %+v", shown.Quota, shown.Allocatable)
		}
		report.Allocatable.MilliCPU, report.QuotaRevision, report.Revision = 6000, 2, h.next()
		must(t, h.tell.Report(t.Context(), h.id, report))
		if shown = r.hostNow(h); shown.Allocatable.MilliCPU != 6000 || shown.Quota.Drift {
			t.Errorf("followed: %+v of %+v", shown.Quota, shown.Allocatable)
		}
		for name, q := range map[string]cubeapi.HostQuotaRequest{
			"under 0":         {ExpectedRevision: 2, MemBytes: number(-1)},
			"too much cpu":    {ExpectedRevision: 2, MilliCPU: number(20*plenty.MilliCPU + 1)},
			"too much memory": {ExpectedRevision: 2, MemBytes: number(3*plenty.MemBytes + 1)},
			"too much disk":   {ExpectedRevision: 2, DiskBytes: number(plenty.DiskBytes + 1)},
			"too many":        {ExpectedRevision: 2, Slots: number(10_001)},
			"revision":        {ExpectedRevision: -1},
		} {
			if _, err := set(q); fault.Of(err) != fault.InvalidInput {
				t.Errorf("%s: %v", name, err)
			}
		}
		if list := r.audited(string(h.id)); actions(list) != "host.quota host.quota" || list[1].Detail["milli_cpu"] != "6000" || list[1].Detail["revision"] != "2" {
			t.Errorf("audit: %+v", list)
		}
	})
}

func TestAHostIsDrainedByForce(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, id := one(t, dsn)
		d, err := r.api.DrainHost(t.Context(), string(h.id), cubeapi.HostDrainRequest{DeadlineSeconds: 3600, Force: true})
		must(t, err)
		if d.State != string(host.Draining) || d.Left != 1 || len(d.Sandboxes) != 1 || d.Sandboxes[0] != id || d.DeadlineAt == "" || !d.Force {
			t.Errorf("drain: %+v", d)
		}
		shown := r.hostNow(h)
		if shown.Health != string(host.Cordoned) || shown.Drain == nil || shown.Reason == "" {
			t.Errorf("shown: %+v", shown)
		}
		_, err = r.create("base")
		refused(t, err, fault.NoHost)
		// Registrations, reports and another master change nothing of it.
		must(t, h.register(t.Context()))
		r.m.stop()
		r.start()
		swept := h.called("list")
		eventually(t, "some sweeps", func() bool { return h.called("list") > swept+2 })
		if r.state(id) != sandbox.Running {
			t.Errorf("before the deadline the sandbox is %s", r.state(id))
		}
		_, err = r.api.DrainHost(t.Context(), string(h.id), cubeapi.HostDrainRequest{Force: true})
		must(t, err)
		eventually(t, "it is empty", func() bool {
			d, err := r.api.Drain(t.Context(), string(h.id))
			return err == nil && d.State == string(host.Drained) && d.Left == 0 && len(h.live()) == 0
		})
		if s, err := r.api.Sandbox(t.Context(), id); err != nil || s.Status != "TERMINATED" || s.Reason != "drained" {
			t.Errorf("sandbox: %+v %v", s, err)
		}
		shown, err = r.api.CordonHost(t.Context(), string(h.id), false)
		if must(t, err); shown.Cordoned || shown.Drain != nil {
			t.Errorf("uncordoned: %+v", shown)
		}
		eventually(t, "it is healthy", func() bool { return r.hostNow(h).Health == string(host.Healthy) })
		_, err = r.create("base")
		must(t, err)
		if got := actions(r.audited(string(h.id))); got != "host.drain host.drain host.uncordon" {
			t.Errorf("audit: %s", got)
		}
	})
}

// Without force nothing is ended, whatever the deadline.
func TestADrainWithoutForceWaits(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	_, err := r.api.DrainHost(t.Context(), string(h.id), cubeapi.HostDrainRequest{DeadlineSeconds: 1})
	must(t, err)
	eventually(t, "the deadline is over", func() bool {
		d, err := r.api.Drain(t.Context(), string(h.id))
		return err == nil && d.State == string(host.Overdue)
	})
	swept := h.called("list")
	eventually(t, "some sweeps", func() bool { return h.called("list") > swept+2 })
	if r.state(id) != sandbox.Running {
		t.Errorf("the sandbox is %s", r.state(id))
	}
	must(t, r.api.DeleteSandbox(t.Context(), id))
	d, err := r.api.Drain(t.Context(), string(h.id))
	if must(t, err); d.State != string(host.Drained) {
		t.Errorf("drain: %+v", d)
	}
	for _, q := range []cubeapi.HostDrainRequest{{DeadlineSeconds: -1}, {DeadlineSeconds: 1 << 40}} {
		_, err := r.api.DrainHost(t.Context(), string(h.id), q)
		refused(t, err, fault.InvalidInput)
	}
	_, err = r.api.DrainHost(t.Context(), "nobody", cubeapi.HostDrainRequest{})
	refused(t, err, fault.HostUnknown)
	_, err = r.api.Drain(t.Context(), "nobody")
	refused(t, err, fault.HostUnknown)
}

// Without force only a host goes that is cordoned and empty.
func TestAnEmptyHostIsRemoved(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, id := one(t, dsn)
		name := string(h.id)
		err := r.api.RemoveHost(t.Context(), name, false)
		refused(t, err, fault.StateConflict)
		if !strings.Contains(err.Error(), "1 sandboxes") {
			t.Errorf("it does not say how many: %v", err)
		}
		refused(t, r.api.RemoveHost(t.Context(), name, true), fault.StateConflict) // it reports
		_, err = r.api.CordonHost(t.Context(), name, true)
		must(t, err)
		refused(t, r.api.RemoveHost(t.Context(), name, false), fault.StateConflict)
		must(t, r.api.DeleteSandbox(t.Context(), id))
		eventually(t, "the host says so", func() bool { return r.hostNow(h).Sandboxes == 0 })
		_, err = r.api.CordonHost(t.Context(), name, false)
		must(t, err)
		err = r.api.RemoveHost(t.Context(), name, false)
		refused(t, err, fault.StateConflict)
		if !strings.Contains(err.Error(), "cordon") {
			t.Errorf("it does not say what to do: %v", err)
		}
		_, err = r.api.CordonHost(t.Context(), name, true)
		must(t, err)
		h.hush()
		// What is in no book counts as long as the host tells of it.
		must(t, h.tell.Report(t.Context(), h.id, cubeapi.HostStatusRequest{Ready: true, Sandboxes: 2, Revision: h.next()}))
		refused(t, r.api.RemoveHost(t.Context(), name, false), fault.StateConflict)
		must(t, h.say(t.Context()))
		must(t, r.api.RemoveHost(t.Context(), name, false))
		_, err = r.api.Host(t.Context(), name)
		refused(t, err, fault.HostUnknown)
		refused(t, r.api.RemoveHost(t.Context(), name, false), fault.HostUnknown)
		h.speak()
		eventually(t, "it comes back as a new one", func() bool {
			shown, err := r.api.Host(t.Context(), name)
			return err == nil && shown.Health == string(host.Healthy) && !shown.Cordoned
		})
	})
}

// What one master is told of a host, the others see within an interval.
func TestEveryMasterSeesAHostAlike(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty)
		h := hosts[0]
		other := r.process()
		front := httptest.NewServer(other.Handler())
		t.Cleanup(front.Close)
		api := cubeapi.NewClient(front.URL, apiKey)
		sees := func(what string, ok func(f host.Facts) bool) {
			t.Helper()
			for _, m := range []*running{r.m, other} {
				eventually(t, what, func() bool {
					f, known, err := m.Seen(t.Context(), h.id)
					return err == nil && known && ok(f)
				})
			}
		}
		sees("the host", func(f host.Facts) bool { return f.Ready && !f.Cordoned })
		_, err := r.api.CordonHost(t.Context(), string(h.id), true)
		must(t, err)
		sees("the cordon", func(f host.Facts) bool { return f.Cordoned })
		_, err = api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base"})
		refused(t, err, fault.NoHost)
		_, err = api.CordonHost(t.Context(), string(h.id), false)
		must(t, err)
		sees("its end", func(f host.Facts) bool { return !f.Cordoned })
		_, err = api.LabelHost(t.Context(), string(h.id), cubeapi.HostLabelsRequest{Set: map[string]string{"gpu": "a100"}})
		must(t, err)
		sees("the label", func(f host.Facts) bool { return f.Labels["gpu"] == "a100" })
		h.hush()
		n := h.next()
		must(t, h.tell.Report(t.Context(), h.id, cubeapi.HostStatusRequest{Ready: true, Allocatable: &host.Resources{MilliCPU: 7}, Revision: n, HostUsage: cubeapi.HostUsage{Creating: 3, CPULoad: 1.5}}))
		sees("a report", func(f host.Facts) bool {
			return f.Allocatable.MilliCPU == 7 && f.Usage.Creating == 3 && f.Usage.CPULoad == 1.5 && f.Usage.Revision == n && !f.Usage.LocalMetricAt.IsZero() && !f.Usage.MetricAt.IsZero() && !f.Usage.MetadataAt.IsZero()
		})
		must(t, h.tell.Report(t.Context(), h.id, cubeapi.HostStatusRequest{Ready: false, Revision: n - 1})) // it was overtaken
		_, err = api.CordonHost(t.Context(), string(h.id), true)
		must(t, err)
		sees("no report that is older", func(f host.Facts) bool { return f.Cordoned && f.Ready && f.Usage.Revision == n })
		must(t, r.api.RemoveHost(t.Context(), string(h.id), false))
		for _, m := range []*running{r.m, other} {
			eventually(t, "it is gone", func() bool { _, known, err := m.Seen(t.Context(), h.id); return err == nil && !known })
		}
	})
}

func TestWhatHostsSayIsChecked(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	h.hush()
	for name, change := range map[string]func(*cubeapi.HostRegisterRequest){
		"a bad label":     func(q *cubeapi.HostRegisterRequest) { q.Labels = map[string]string{"a b": "c"} },
		"a bad zone":      func(q *cubeapi.HostRegisterRequest) { q.Zone = "a b" },
		"a bad cluster":   func(q *cubeapi.HostRegisterRequest) { q.ClusterLabel = strings.Repeat("x", 64) },
		"capacity":        func(q *cubeapi.HostRegisterRequest) { q.Capacity.Slots = -1 },
		"too much":        func(q *cubeapi.HostRegisterRequest) { q.Allocatable.DiskBytes = 1 << 60 },
		"a long version":  func(q *cubeapi.HostRegisterRequest) { q.Version = strings.Repeat("v", 129) },
		"revision":        func(q *cubeapi.HostRegisterRequest) { q.Revision = -1 },
		"a port too high": func(q *cubeapi.HostRegisterRequest) { q.GRPCPort = 65536 },
	} {
		q := cubeapi.HostRegisterRequest{NodeID: "x", HostIP: "127.0.0.1", GRPCPort: 1, InstanceType: "cubebox"}
		change(&q)
		if err := h.tell.Register(t.Context(), q); fault.Of(err) != fault.InvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*cubeapi.HostStatusRequest){
		"cpu":            func(q *cubeapi.HostStatusRequest) { q.CPUUtil = 101 },
		"disk":           func(q *cubeapi.HostStatusRequest) { q.SysDisk = -1 },
		"load":           func(q *cubeapi.HostStatusRequest) { q.CPULoad = -1 },
		"allocated":      func(q *cubeapi.HostStatusRequest) { q.Allocated.MilliCPU = -1 },
		"allocatable":    func(q *cubeapi.HostStatusRequest) { q.Allocatable = &host.Resources{Slots: -1} },
		"sandboxes":      func(q *cubeapi.HostStatusRequest) { q.Sandboxes = -1 },
		"revision":       func(q *cubeapi.HostStatusRequest) { q.Revision = -1 },
		"age":            func(q *cubeapi.HostStatusRequest) { q.MetricAgeMS = -1 },
		"creating":       func(q *cubeapi.HostStatusRequest) { q.Creating = -1 },
		"artifacts":      func(q *cubeapi.HostStatusRequest) { q.Artifacts = make([]string, 10_001) },
		"a long id":      func(q *cubeapi.HostStatusRequest) { q.Artifacts = []string{strings.Repeat("x", 129)} },
		"a long machine": func(q *cubeapi.HostStatusRequest) { q.CPUType = strings.Repeat("x", 129) },
	} {
		q := cubeapi.HostStatusRequest{Ready: true}
		change(&q)
		if err := h.tell.Report(t.Context(), h.id, q); fault.Of(err) != fault.InvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r.hostNow(h).Health != string(host.Healthy) {
		t.Error("something of it was stored")
	}
	// Other cubelets spell some of it otherwise.
	tellRaw(t, r, cubeapi.PathHostRegister, `{"node_id": "127.0.0.9", "grpc_port": 9, "instance_type": "cubebox", "capacity": {"milli_cpu": 4000, "memory_mb": 2}, "quota_cpu": 8000, "quota_mem_mb": 3, "max_mvm_num": 5}`)
	tellRaw(t, r, strings.Replace(cubeapi.PathHostStatus, "{node_id}", "127.0.0.9", 1), `{"ready": true, "mvm_num": 2, "quota_cpu_usage": 100, "quota_mem_mb_usage": 1, "data_disk_usage_per": 7.5, "mem_load_mb_usage": 9}`)
	shown, err := r.api.Host(t.Context(), "127.0.0.9")
	must(t, err)
	if shown.HostIP != "127.0.0.9" || shown.Capacity != (host.Resources{MilliCPU: 4000, MemBytes: 2 << 20}) || shown.Allocatable != (host.Resources{MilliCPU: 8000, MemBytes: 3 << 20, Slots: 5}) ||
		shown.Sandboxes != 2 || shown.Allocated.MemBytes != 1<<20 || shown.Usage.DataDisk != 7.5 || shown.Usage.MemUsedMiB != 9 {
		t.Errorf("shown: %+v", shown)
	}
}

func tellRaw(t *testing.T, r *rig, path, body string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.URL+path, strings.NewReader(body))
	must(t, err)
	q.Header.Set(cubeapi.HeaderHostToken, hostToken)
	answer, err := http.DefaultClient.Do(q)
	must(t, err)
	must(t, answer.Body.Close())
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%s: HTTP %d", path, answer.StatusCode)
	}
}

// A host is called where it says that it is.
func TestAHostIsCalledAtItsPort(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	h.server.Stop()
	h.hush()
	held, err := net.Listen("tcp", h.address()) // the old port is another's now
	must(t, err)
	t.Cleanup(func() { _ = held.Close() })
	h.listen("127.0.0.1:0")
	must(t, h.register(t.Context()))
	must(t, h.say(t.Context()))
	must(t, r.api.DeleteSandbox(t.Context(), id))
	if len(h.live()) != 0 {
		t.Error("another was called")
	}
	_, err = r.create("base")
	must(t, err)
}

// The clock of a host is compared with no other: it says how long ago it
// measured.
func TestMeasuresAreDatedByTheDatabase(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	h.hush()
	must(t, h.tell.Report(t.Context(), h.id, cubeapi.HostStatusRequest{Ready: true, MetricAgeMS: 60_000, Revision: h.next()}))
	r.view(func(ctx context.Context, tx *store.Tx) error {
		f, err := sandboxdb.GetHost(ctx, tx, h.id)
		if age := f.Usage.LocalMetricAt.Sub(f.Usage.MetricAt); age != time.Minute || !f.Usage.LocalMetricAt.Equal(f.HeardAt) {
			t.Errorf("measured %s before it arrived, at %s; heard at %s", age, f.Usage.LocalMetricAt, f.HeardAt)
		}
		return err
	})
}

// A host that makes as many at once as it may is no broken one: another is
// asked, and when all are so it is no room.
func TestABusyHostIsPassedBy(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, plenty)
	busy := func(h *fakeHost) {
		h.set(func(h *fakeHost) {
			h.create = func(context.Context) error { return fault.New(fault.HostBusy, "host %s", h.id) }
		})
	}
	busy(hosts[0])
	for range 4 {
		a, err := r.create("base")
		must(t, err)
		if a.HostID != string(hosts[1].id) {
			t.Errorf("it is on %s", a.HostID)
		}
	}
	busy(hosts[1])
	_, err := r.create("base")
	refused(t, err, fault.NoCapacity)
}
