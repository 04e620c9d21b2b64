package master_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
)

// probed asks for a template whose program is asked over HTTP.
func probed(q *cubeapi.FromImageRequest) {
	q.Overrides = &cubeapi.ContainerOverride{
		Command: []string{"serve"}, Envs: []cubeapi.KeyValue{{Key: "A", Value: "template"}},
		Probe: &cubeapi.Probe{Handler: cubeapi.ProbeHandler{HTTPGet: &cubeapi.HTTPGetProbe{Port: 8080, Path: "/health", Headers: []cubeapi.NameValue{{Name: "X-Key", Value: "v"}}}}, TimeoutSeconds: 3},
	}
}

func unready(context.Context) error {
	return fault.New(fault.ProbeFailed, "sandbox x: probe http GET :8080/health: no success within 3s, 6 tries; last answer: connection refused")
}

// creates returns the trials and the other creates that a host was asked for.
func (h *fakeHost) creates() (trials, others []*hostpb.CreateSandboxRequest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.created {
		if sandbox.Trial(q.GetSandboxId()) {
			trials = append(trials, q)
		} else {
			others = append(others, q)
		}
	}
	return trials, others
}

func TestATemplateWithAProbeIsTriedOnEachHost(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		a, b := r.host(0, plenty), r.host(1, plenty)
		met, goOn := make(chan struct{}), make(chan struct{})
		var once sync.Once
		a.set(func(h *fakeHost) {
			h.create = func(context.Context) error {
				once.Do(func() { close(met) })
				<-goOn
				return nil
			}
		})
		j, err := r.api.FromImage(t.Context(), image(alias("app"), probed))
		must(t, err)
		wait(t, "the trial on the first host", met)
		eventually(t, "the second host is ready, the first is tried", func() bool {
			ready := 0
			r.view(func(ctx context.Context, tx *store.Tx) error {
				list, err := templatedb.ListReplicas(ctx, tx, tplID(j))
				for _, p := range list {
					if word := cubeapi.ReplicaPhaseOf(p); word == "READY" || p.HostID == a.id && word == "SNAPSHOTTING" {
						ready++
					}
				}
				return err
			})
			return ready == 2
		})
		now, err := r.api.Job(t.Context(), j.JobID)
		must(t, err)
		if now.Phase != "SNAPSHOTTING" || now.Status != "RUNNING" || now.Progress < 80 {
			t.Errorf("job in its trials: %+v", now)
		}
		if c := r.m.Charged(a.id); c.MilliCPU != 1000 || c.MemBytes != 512<<20 {
			t.Errorf("the trial is charged as %+v", c)
		}
		if list, err := r.api.Sandboxes(t.Context(), true); err != nil || len(list) != 0 || len(r.sandboxes()) != 0 {
			t.Errorf("the trial is listed as a user's: %v %v", list, err)
		}
		close(goOn)
		if now = r.ended(j.JobID); now.Status != "READY" || now.TemplateStatus != "READY" || now.ReadyNodeCount != 2 || now.PhaseStartedMS["SNAPSHOTTING"] == 0 {
			t.Errorf("job: %+v", now)
		}
		for _, h := range []*fakeHost{a, b} {
			trials, _ := h.creates()
			if len(trials) != 1 || len(h.live()) != 0 || r.m.Charged(h.id) != (host.Resources{}) {
				t.Fatalf("host %s: %d trials, it has %v, charged %+v", h.id, len(trials), h.live(), r.m.Charged(h.id))
			}
			q, p := trials[0], trials[0].GetProbe()
			if p.GetHttpGet().GetPort() != 8080 || p.GetHttpGet().GetPath() != "/health" || p.GetTimeoutMs() != 3000 || p.GetPeriodMs() != 500 || p.GetFailureThreshold() != 6 || p.GetSuccessThreshold() != 1 || len(p.GetHttpGet().GetHeaders()) != 1 {
				t.Errorf("probe: %v", p)
			}
			if q.GetTemplateId() != j.TemplateID || q.GetArtifactId() != now.ArtifactID || q.GetCommand()[0] != "serve" || q.GetEnvs()["A"] != "template" {
				t.Errorf("trial: %v", q)
			}
		}
		if said := strings.Join(r.log(j.JobID), "\n"); !strings.Contains(said, "is asked: http GET :8080/health") {
			t.Errorf("log:\n%s", said)
		}
		// A user's sandbox has the same probe.
		s, err := r.create("app")
		must(t, err)
		for _, h := range []*fakeHost{a, b} {
			if _, others := h.creates(); len(others) == 1 && others[0].GetProbe().GetHttpGet().GetPath() != "/health" {
				t.Errorf("sandbox %s: %v", s.SandboxID, others[0])
			}
		}
		// Without a probe nothing is tried.
		r.template(alias("plain"))
		if trials, _ := a.creates(); len(trials) != 1 {
			t.Errorf("%d trials", len(trials))
		}
	})
}

func TestTheMatrixOfTrials(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		a, b := r.host(0, plenty), r.host(1, plenty)
		b.set(func(h *fakeHost) { h.create = unready })
		j, err := r.api.FromImage(t.Context(), image(alias("some"), probed))
		must(t, err)
		if j = r.ended(j.JobID); j.Status != "READY" || j.TemplateStatus != "PARTIALLY_READY" || j.ReadyNodeCount != 1 || j.FailedNodeCount != 1 {
			t.Errorf("some hosts: %+v", j)
		}
		d := r.shown("some")
		if p := d.Replicas[1]; d.Replicas[0].Status != "READY" || p.Status != "FAILED" || p.LastErrorPhase != "SNAPSHOTTING" || !strings.Contains(p.ErrorMessage, "probe http GET :8080/health") || d.Replicas[0].LastErrorPhase != "" {
			t.Errorf("template: %+v", d)
		}
		a.set(func(h *fakeHost) { h.create = unready })
		j, err = r.api.FromImage(t.Context(), image(alias("none"), probed, func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/other:1" }))
		must(t, err)
		if j = r.ended(j.JobID); j.Status != "FAILED" || j.ErrorCode != "probe_failed" || j.FailedNodeCount != 2 || !strings.Contains(j.ErrorMessage, ":8080/health") || !strings.Contains(j.ErrorMessage, "connection refused") {
			t.Errorf("no host: %+v", j)
		}
		nothingLeft(t, r, j, "none")
		eventually(t, "the bytes that nobody needs go", func() bool {
			return slices.Contains(r.center.removed(), j.ArtifactID) && !a.holds(j.ArtifactID) && !b.holds(j.ArtifactID)
		})
		// A user's create is refused with the probe's words, and tried on one host.
		count := func() (n int) {
			for _, h := range []*fakeHost{a, b} {
				n += h.called("create")
			}
			return n
		}
		before := count()
		_, err = r.create("some")
		refused(t, err, fault.ProbeFailed)
		if n := count() - before; n != 1 || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%d hosts were asked: %v", n, err)
		}
	})
}

// A host that is full just now says nothing about the template.
func TestATrialWaitsForRoom(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, roomFor(1), patient, func(c *config.Config) { c.Master.DistributeTimeout = time.Minute })
	h := hosts[0]
	s, err := r.create("base")
	must(t, err)
	j, err := r.api.FromImage(t.Context(), image(alias("app"), probed, func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/other:1" }))
	must(t, err)
	eventually(t, "the trial is refused, again and again", func() bool { return h.called("create") >= 4 })
	if now, err := r.api.Job(t.Context(), j.JobID); err != nil || now.Status != "RUNNING" {
		t.Errorf("%+v %v", now, err)
	}
	must(t, r.api.DeleteSandbox(t.Context(), s.SandboxID))
	if now := r.ended(j.JobID); now.Status != "READY" {
		t.Errorf("%+v", now)
	}
}

func TestATrialThatFindsNoRoomFailsItsReplica(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, roomFor(1), patient, func(c *config.Config) { c.Master.DistributeTimeout = time.Second })
	_, err := r.create("base")
	must(t, err)
	j, err := r.api.FromImage(t.Context(), image(alias("app"), probed, func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/other:1" }))
	must(t, err)
	if j = r.ended(j.JobID); j.Status != "FAILED" || j.ErrorCode != "insufficient_capacity" || !strings.Contains(j.ErrorMessage, "found no room") {
		t.Errorf("%+v", j)
	}
}

// The master is killed in the midst of a trial: the next one finds what it left,
// and the job comes to its end.
func TestCrashInATrial(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		for _, step := range []string{"master.trial.begun", "master.trial.made"} {
			t.Run(step, func(t *testing.T) {
				fresh := dsn
				if strings.HasPrefix(dsn, "sqlite:") {
					fresh = sqlite(t)
				}
				r := newRig(t, fresh)
				crash, reached := crashAt(step)
				r.start(crash)
				h := r.host(0, plenty)
				name := strings.ReplaceAll(strings.TrimPrefix(step, "master.trial."), ".", "-")
				j, err := r.api.FromImage(t.Context(), image(alias(name), probed))
				must(t, err)
				wait(t, "the crash", reached)
				r.crash()
				if step == "master.trial.made" && len(h.live()) != 1 {
					t.Fatalf("the crash left %v", h.live())
				}
				r.start()
				if now := r.ended(j.JobID); now.Status != "READY" || now.Phase != "READY" {
					t.Errorf("%+v", now)
				}
				if live := h.live(); len(live) != 0 {
					t.Errorf("left: %v", live)
				}
			})
		}
	})
}

// A trial sandbox whose master and whose job are gone is removed by the sweep,
// later than other strangers: somebody may be at it.
func TestALeftTrialIsSwept(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	left := func(prefix string) string {
		box := &hostpb.Sandbox{SandboxId: id.New(prefix)[:25], State: hostpb.SandboxState_SANDBOX_STATE_RUNNING, Resources: &hostpb.Resources{}}
		h.set(func(h *fakeHost) { h.boxes[box.GetSandboxId()] = box })
		return box.GetSandboxId()
	}
	trial := left(sandbox.TrialPrefix)
	other := left("i1")
	eventually(t, "the other stranger goes", func() bool { return !slices.Contains(h.live(), other) })
	if !slices.Contains(h.live(), trial) {
		t.Error("the trial went as soon")
	}
	r.crash()
	r.start(func(p *running) { p.KeepTrials(100 * time.Millisecond) })
	eventually(t, "the trial goes", func() bool { return len(h.live()) == 0 })
}

func TestACancelledTrialLeavesNothing(t *testing.T) {
	r := newRig(t, sqlite(t), patient)
	r.start()
	h := r.host(0, plenty)
	met, goOn := make(chan struct{}, 1), make(chan struct{})
	defer close(goOn)
	h.set(func(h *fakeHost) {
		h.made = func() error { // it is made, and its probe is asked
			met <- struct{}{}
			<-goOn
			return nil
		}
	})
	j, err := r.api.FromImage(t.Context(), image(alias("app"), probed))
	must(t, err)
	wait(t, "the trial", met)
	_, err = r.api.CancelJob(t.Context(), j.JobID)
	must(t, err)
	if now := r.ended(j.JobID); now.Status != "FAILED" {
		t.Errorf("%+v", now)
	}
	eventually(t, "nothing is left on the host", func() bool {
		return len(h.live()) == 0 && !h.holds(j.ArtifactID)
	})
	nothingLeft(t, r, j, "app")
}

// A redo of a template whose hosts have its bytes only repeats the trial; one
// that fails there is not ready any more, and repair tries it again.
func TestRedoRepeatsTheTrial(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(repairing)
	h := r.host(0, plenty)
	made := r.template(alias("app"), probed)
	r.reported(made.ArtifactID, h)
	h.set(func(h *fakeHost) { h.create = unready })
	j := r.redo(cubeapi.RedoRequest{TemplateID: "app"})
	if j.Status != "FAILED" || j.ErrorCode != "probe_failed" || j.ResumePhase != "SNAPSHOTTING" {
		t.Errorf("redo: %+v", j)
	}
	if d := r.shown("app"); d.Status != "FAILED" || d.Replicas[0].Status != "FAILED" || !strings.Contains(d.LastError, ":8080/health") {
		t.Errorf("template: %+v", d)
	}
	h.set(func(h *fakeHost) { h.create = nil })
	r.becomes("app", "READY")
	if d := r.shown("app"); d.Replicas[0].LastErrorPhase != "" || len(h.live()) != 0 {
		t.Errorf("template: %+v, left %v", d, h.live())
	}
	if j = r.redo(cubeapi.RedoRequest{TemplateID: "app"}); j.Status != "READY" {
		t.Errorf("redo: %+v", j)
	}
}

func TestABadProbeIsRefused(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	for name, p := range map[string]cubeapi.Probe{
		"nothing asked": {},
		"two":           {Handler: cubeapi.ProbeHandler{TCPSocket: &cubeapi.TCPSocketProbe{Port: 80}, Exec: &cubeapi.ExecProbe{Command: []string{"a"}}}},
		"empty port":    {Handler: cubeapi.ProbeHandler{TCPSocket: &cubeapi.TCPSocketProbe{}, Exec: &cubeapi.ExecProbe{Command: []string{"a"}}}},
		"empty command": {Handler: cubeapi.ProbeHandler{TCPSocket: &cubeapi.TCPSocketProbe{Port: 80}, Exec: &cubeapi.ExecProbe{}}},
		"port":          {Handler: cubeapi.ProbeHandler{TCPSocket: &cubeapi.TCPSocketProbe{Port: 65536}}},
		"path":          {Handler: cubeapi.ProbeHandler{HTTPGet: &cubeapi.HTTPGetProbe{Port: 80, Path: "health"}}},
		"header":        {Handler: cubeapi.ProbeHandler{HTTPGet: &cubeapi.HTTPGetProbe{Port: 80, Headers: []cubeapi.NameValue{{Name: "Host", Value: "a"}}}}},
		"time":          {Handler: cubeapi.ProbeHandler{TCPSocket: &cubeapi.TCPSocketProbe{Port: 80}}, TimeoutSeconds: 1 << 62},
		"threshold":     {Handler: cubeapi.ProbeHandler{TCPSocket: &cubeapi.TCPSocketProbe{Port: 80}}, FailureThreshold: -1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.api.FromImage(t.Context(), image(func(q *cubeapi.FromImageRequest) { q.Overrides = &cubeapi.ContainerOverride{Probe: &p} }))
			refused(t, err, fault.InvalidInput)
			if !strings.Contains(err.Error(), "container_overrides.probe") {
				t.Errorf("it says %q", err)
			}
		})
	}
}
