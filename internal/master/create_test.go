package master_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

// ready is a rig with a template called base on n hosts of the given room.
func ready(t *testing.T, dsn string, n int, room host.Resources, change ...func(*config.Config)) (*rig, []*fakeHost) {
	t.Helper()
	r := newRig(t, dsn, change...)
	r.start()
	var hosts []*fakeHost
	for i := range n {
		hosts = append(hosts, r.host(i, room))
	}
	j := r.template(alias("base"), func(q *cubeapi.FromImageRequest) {
		q.Overrides = &cubeapi.ContainerOverride{Command: []string{"serve"}, Args: []string{"-p", "80"}, Envs: []cubeapi.KeyValue{{Key: "LANG", Value: "de"}, {Key: "A", Value: "template"}}}
		q.ExposedPorts = []int{8080}
	})
	if j.ReadyNodeCount != n {
		t.Fatalf("%d of %d hosts took the template: %+v", j.ReadyNodeCount, n, j)
	}
	return r, hosts
}

// roomFor is a host that takes n sandboxes of the defaults.
func roomFor(n int64) host.Resources {
	return host.Resources{MilliCPU: 1000 * n, MemBytes: n * 512 << 20, DiskBytes: 1 << 40, Slots: 100}
}

// patient gives creates the time that they need on a loaded machine.
func patient(c *config.Config) { c.Master.CreateTimeout = time.Minute }

// strict starts the master anew without the sweep that removes what no row
// knows: what a create leaves must be removed by itself.
func (r *rig) strict() {
	r.t.Helper()
	r.crash()
	r.start(func(p *running) { p.OrphanGrace(time.Hour) })
}

func total(hosts []*fakeHost) (n int) {
	for _, h := range hosts {
		n += len(h.live())
	}
	return n
}

func TestATemplateBecomesASandbox(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty)
		a, err := r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{
			Annotations: map[string]string{cubeapi.AnnotationTemplate: "base"}, Labels: map[string]string{"job": "7"},
			Envs: map[string]string{"A": "request"}, Containers: []cubeapi.Container{{Resources: &cubeapi.Quantity{CPU: "250m", Mem: "128Mi"}, Envs: []cubeapi.KeyValue{{Key: "B", Value: "container"}}}},
		})
		must(t, err)
		if a.SandboxID == "" || a.SandboxIP != "10.0.0.2" || a.HostID != "host-a" || a.HostIP != "127.0.0.1" || a.ExtInfo["cube-e2e"] == "" || a.ExtInfo["step-runtime"] != "1.5" {
			t.Errorf("answer: %+v", a)
		}
		if err := sandbox.CheckID(a.SandboxID); err != nil {
			t.Error(err)
		}
		q := hosts[0].created[0]
		want := map[string]string{"PATH": "/opt/bin:/bin", "LANG": "de", "A": "request", "B": "container"}
		for k, v := range want {
			if q.GetEnvs()[k] != v {
				t.Errorf("%s is %q, want %q", k, q.GetEnvs()[k], v)
			}
		}
		if strings.Join(q.GetCommand(), " ") != "serve -p 80" || q.GetWorkingDir() != "/srv" || q.GetUser() != "worker" || len(q.GetExposedPorts()) != 1 || q.GetWritableBytes() != 64<<20 || q.GetMetadata()["job"] != "7" {
			t.Errorf("host got %+v", q)
		}
		if got := resourcesOf(q.GetResources()); got != (host.Resources{MilliCPU: 250, MemBytes: 128 << 20, DiskBytes: 64 << 20, Slots: 1}) {
			t.Errorf("resources %+v", got)
		}
		s, err := r.api.Sandbox(t.Context(), a.SandboxID)
		must(t, err)
		if s.Status != "RUNNING" || s.SandboxIP != "10.0.0.2" || s.Labels["job"] != "7" || s.MilliCPU != 250 {
			t.Errorf("sandbox: %+v", s)
		}
		must(t, r.api.DeleteSandbox(t.Context(), a.SandboxID))
		if total(hosts) != 0 {
			t.Error("the host still has it")
		}
		eventually(t, "the charge ends", func() bool { return r.m.Charged("host-a") == (host.Resources{}) })
	})
}

func TestCreateRefuses(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	r.center.set(func(c *fakeCenter) { c.idle = true })
	pending, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	with := func(q cubeapi.Quantity) cubeapi.SandboxCreateRequest {
		return cubeapi.SandboxCreateRequest{TemplateID: "base", Containers: []cubeapi.Container{{Resources: &q}}}
	}
	for name, c := range map[string]struct {
		q    cubeapi.SandboxCreateRequest
		code *fault.Code
	}{
		"no template":        {cubeapi.SandboxCreateRequest{}, fault.InvalidInput},
		"unknown template":   {cubeapi.SandboxCreateRequest{TemplateID: "nobody"}, fault.TemplateNotFound},
		"not a template yet": {cubeapi.SandboxCreateRequest{TemplateID: pending.TemplateID}, fault.TemplateNotFound},
		"cpu of words":       {with(cubeapi.Quantity{CPU: "two"}), fault.InvalidInput},
		"memory of words":    {with(cubeapi.Quantity{Mem: "much"}), fault.InvalidInput},
		"too little":         {with(cubeapi.Quantity{CPU: "0"}), fault.InvalidInput},
		"beyond any host":    {with(cubeapi.Quantity{Mem: "8Ei"}), fault.InvalidInput},
		"more than is there": {with(cubeapi.Quantity{CPU: "65"}), fault.NoCapacity},
		"another host":       {cubeapi.SandboxCreateRequest{TemplateID: "base", Scope: []string{"host-z"}}, fault.NoHost},
		"variable":           {cubeapi.SandboxCreateRequest{TemplateID: "base", Envs: map[string]string{"A=B": "1"}}, fault.InvalidInput},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.api.CreateSandbox(t.Context(), c.q)
			refused(t, err, c.code)
		})
	}
	eventually(t, "every row has ended", func() bool {
		for _, s := range r.sandboxes() {
			if s.State != sandbox.Terminated {
				return false
			}
		}
		return true
	})
	if hosts[0].called("create") != 0 {
		t.Error("a refused request reached a host")
	}
}

func TestAFullHostSendsToAnother(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, plenty)
	// Whichever is asked first says that it is full.
	var first atomic.Bool
	full := func(context.Context) error {
		if first.CompareAndSwap(false, true) {
			return fault.New(fault.HostFull, "admission")
		}
		return nil
	}
	for _, h := range hosts {
		h.set(func(h *fakeHost) { h.create = full })
	}
	_, err := r.create("base")
	must(t, err)
	if n := hosts[0].called("create") + hosts[1].called("create"); n != 2 || hosts[0].called("create") != 1 {
		t.Errorf("%d creates, want one on each host", n)
	}
	eventually(t, "the first host is told to remove it", func() bool { return hosts[0].called("delete")+hosts[1].called("delete") == 1 })
	if total(hosts) != 1 {
		t.Errorf("%d sandboxes", total(hosts))
	}
}

func TestAFullFleetIsToldWithCounts(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, roomFor(1))
	for range 2 {
		_, err := r.create("base")
		must(t, err)
	}
	_, err := r.create("base")
	refused(t, err, fault.NoCapacity)
	if !strings.Contains(err.Error(), "2 hosts considered") || !strings.Contains(err.Error(), "cpu 2") {
		t.Errorf("the refusal does not count: %v", err)
	}
	if d := fault.DetailOf(err); !d.Retryable || d.Remedy == "" {
		t.Errorf("detail: %+v", d)
	}
	// The hosts know better than the master: also then it is room that lacks.
	for _, h := range hosts {
		h.set(func(h *fakeHost) {
			h.boxes = nil // so that the master takes it for empty
			h.create = func(context.Context) error { return fault.New(fault.HostFull, "admission") }
		})
	}
	eventually(t, "the hosts look empty", func() bool {
		_, err = r.create("base")
		return strings.Contains(err.Error(), "no room after all")
	})
	refused(t, err, fault.NoCapacity)
}

func TestAHostThatIsAwaySendsToAnother(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 2, plenty)
		hosts[0].away()
		for range 4 {
			a, err := r.create("base")
			must(t, err)
			if a.HostID != "host-b" {
				t.Errorf("placed on %s", a.HostID)
			}
		}
		hosts[1].away()
		_, err := r.create("base")
		if !errors.Is(err, fault.NoHost) || !strings.Contains(err.Error(), "host_unreachable") {
			t.Errorf("all away: %v", err)
		}
		hosts[0].back()
		hosts[1].back()
		eventually(t, "nothing but the four is left", func() bool {
			live := 0
			for _, s := range r.sandboxes() {
				if s.State != sandbox.Terminated {
					live++
				}
			}
			return live == 4 && total(hosts) == 4
		})
	})
}

// The host makes it and the reply is lost: a caller that tries again must not
// get a second one, nor leave the first behind.
func TestALostReplyLeavesOneSandboxOrNone(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(map[int]string{1: "one host", 2: "another host"}[n], func(t *testing.T) {
			r, hosts := ready(t, sqlite(t), n, plenty)
			r.strict()
			var lost atomic.Bool
			for _, h := range hosts {
				h.set(func(h *fakeHost) {
					h.made = func() error {
						if lost.CompareAndSwap(false, true) {
							return fault.New(fault.HostUnreachable, "reply") // as the transport words it
						}
						return nil
					}
				})
			}
			_, err := r.create("base")
			if (err == nil) != (n == 2) {
				t.Errorf("%d hosts: %v", n, err)
			}
			eventually(t, "hosts and rows agree", func() bool {
				live := 0
				for _, s := range r.sandboxes() {
					if s.State == sandbox.Running {
						live++
					} else if s.State != sandbox.Terminated {
						return false
					}
				}
				return live == n-1 && total(hosts) == n-1
			})
		})
	}
}

// The connection breaks while the host makes it.
func TestABrokenConnectionLeavesNothing(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	r.strict()
	h := hosts[0]
	h.set(func(h *fakeHost) {
		h.made = func() error { go h.server.Stop(); <-time.After(50 * time.Millisecond); return nil }
	})
	_, err := r.create("base")
	if !errors.Is(err, fault.NoHost) {
		t.Errorf("got %v", err)
	}
	h.set(func(h *fakeHost) { h.made = nil })
	h.server.Stop()
	h.back()
	eventually(t, "nothing is left", func() bool { return total(hosts) == 0 && r.sandboxes()[0].State == sandbox.Terminated })
}

func TestACallerThatGoesAwayLeavesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty)
		r.strict()
		asked := make(chan struct{})
		hosts[0].set(func(h *fakeHost) {
			// It makes it all the same: the news that nobody waits comes late.
			h.create = func(context.Context) error { close(asked); return nil }
			h.made = func() error { <-time.After(100 * time.Millisecond); return nil }
		})
		ctx, goAway := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := r.api.CreateSandbox(ctx, cubeapi.SandboxCreateRequest{TemplateID: "base"})
			ended <- err
		}()
		wait(t, "the host is asked", asked)
		goAway()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller got %v", err)
		}
		eventually(t, "nothing is left", func() bool {
			rows := r.sandboxes()
			return len(rows) == 1 && rows[0].State == sandbox.Terminated && total(hosts) == 0
		})
		if got := r.m.Charged("host-a"); got != (host.Resources{}) {
			t.Errorf("charged %+v", got)
		}
	})
}

func TestABrokenImageIsNotTriedOnEveryHost(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 4, plenty)
	for _, h := range hosts {
		h.set(func(h *fakeHost) {
			h.create = func(context.Context) error { return fault.New(fault.GuestUnreachable, "start") }
		})
	}
	_, err := r.create("base")
	refused(t, err, fault.GuestUnreachable)
	asked := 0
	for _, h := range hosts {
		asked += h.called("create")
	}
	if asked != 2 {
		t.Errorf("%d hosts were asked, want 2", asked)
	}
	// A refusal of the request is nobody else's to answer.
	for _, h := range hosts {
		h.set(func(h *fakeHost) {
			h.create = func(context.Context) error { return fault.New(fault.InvalidInput, "request") }
		})
	}
	_, err = r.create("base")
	refused(t, err, fault.InvalidInput)
}

func TestWhatSendsToAnotherHost(t *testing.T) {
	for code, want := range map[*fault.Code]int{
		fault.HostFull: 9, fault.DiskFull: 9, fault.HostUnreachable: 9, fault.ArtifactNotFound: 9, fault.TokenRejected: 9, fault.DataDir: 9,
		fault.RuntimeFailed: 1, fault.GuestUnreachable: 1,
		fault.InvalidInput: 0, fault.Exists: 0, fault.Bug: 0, fault.CallCancelled: 0, fault.Deadline: 0, fault.SandboxNotReady: 0,
	} {
		if got := master.ElsewhereUntil(code, 9); got != want {
			t.Errorf("%s sends to another host %d times, want %d", code.Name, got, want)
		}
	}
}

// A host that hangs does not use up the time in which another can make it.
func TestAHostThatHangsIsLeft(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, plenty)
	var first atomic.Bool
	for _, h := range hosts {
		h.set(func(h *fakeHost) {
			h.create = func(ctx context.Context) error {
				if first.CompareAndSwap(false, true) {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
		})
	}
	_, err := r.create("base")
	must(t, err)
	if total(hosts) != 1 {
		t.Errorf("%d sandboxes", total(hosts))
	}
}

// Creates at once, by one master and by two, never take more than there is.
func TestConcurrentCreatesNeverOversell(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 2, roomFor(5), patient)
		other := newFace(t)
		other.show(r.process().Handler())
		apis := []*cubeapi.Client{r.api, cubeapi.NewClient(other.URL, apiKey)}
		var made, full atomic.Int64
		var callers sync.WaitGroup
		for i := range 40 {
			callers.Go(func() {
				_, err := apis[i%2].CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base"})
				switch {
				case err == nil:
					made.Add(1)
				case errors.Is(err, fault.NoCapacity):
					full.Add(1)
				default:
					t.Errorf("refused with %v", err)
				}
			})
		}
		callers.Wait()
		if made.Load() != 10 || full.Load() != 30 {
			t.Errorf("%d made, %d refused; want 10 and 30", made.Load(), full.Load())
		}
		for _, h := range hosts {
			if n := len(h.live()); n != 5 {
				t.Errorf("host %s has %d", h.id, n)
			}
		}
		eventually(t, "the rows agree", func() bool {
			running := 0
			for _, s := range r.sandboxes() {
				if s.State == sandbox.Running {
					running++
				} else if s.State != sandbox.Terminated {
					return false
				}
			}
			return running == 10
		})
	})
}

// One master alone places without any refusal by a host: the ledger knows what
// no report shows yet.
func TestTheLedgerKnowsWhatNoReportShows(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, roomFor(5), patient)
	for _, h := range hosts {
		h.hush()
	}
	var refusedByHost atomic.Int64
	var callers sync.WaitGroup
	for range 10 {
		callers.Go(func() {
			if _, err := r.create("base"); err != nil {
				refusedByHost.Add(1)
			}
		})
	}
	callers.Wait()
	if n := refusedByHost.Load(); n != 0 {
		t.Errorf("%d of 10 were refused", n)
	}
	if a, b := hosts[0].called("create"), hosts[1].called("create"); a != 5 || b != 5 {
		t.Errorf("the hosts were asked %d and %d times, want 5 and 5", a, b)
	}
}

// One host that does not report: the master refuses by itself what it gave
// away already, by its ledger and what the host said meanwhile, and asks nobody.
func TestTheLedgerRefusesWithoutTheHost(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, roomFor(3), patient)
	hosts[0].hush()
	for i := range 6 {
		_, err := r.create("base")
		if i < 3 {
			must(t, err)
			continue
		}
		refused(t, err, fault.NoCapacity)
	}
	if n := hosts[0].called("create"); n != 3 {
		t.Errorf("the host was asked %d times, want 3", n)
	}
}

func TestADeleteWinsOverACreate(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty)
		r.strict()
		asked, goOn := make(chan struct{}), make(chan struct{})
		hosts[0].set(func(h *fakeHost) {
			h.create = func(context.Context) error { close(asked); <-goOn; return nil }
		})
		ended := make(chan error, 1)
		go func() {
			_, err := r.create("base")
			ended <- err
		}()
		wait(t, "the host is asked", asked)
		// The host has nothing yet, says so, and makes it afterwards.
		must(t, r.api.DeleteSandbox(t.Context(), string(r.sandboxes()[0].ID)))
		close(goOn)
		refused(t, <-ended, fault.SandboxNotReady)
		eventually(t, "nothing is left", func() bool { return total(hosts) == 0 && r.sandboxes()[0].State == sandbox.Terminated })
	})
}

// A create that takes long is no lost one: nobody ends it while it is made.
func TestASlowCreateIsLeftAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty, patient)
		r.process() // another master, which sweeps too
		goOn := make(chan struct{})
		hosts[0].set(func(h *fakeHost) { h.create = func(context.Context) error { <-goOn; return nil } })
		ended := make(chan error, 1)
		go func() {
			_, err := r.create("base")
			ended <- err
		}()
		eventually(t, "it takes longer than a lost one is waited for", func() (long bool) {
			r.view(func(ctx context.Context, tx *store.Tx) error {
				list, err := sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{})
				long = len(list) == 1 && tx.Now.Sub(list[0].CreatedAt) > r.m.CreateQuiet()+time.Second
				if len(list) == 1 && list[0].State == sandbox.Terminated {
					t.Fatalf("it was ended: %s", list[0].Reason)
				}
				return err
			})
			return long
		})
		close(goOn)
		must(t, <-ended)
	})
}

// A master that ends in the middle of a create leaves a row and perhaps a
// sandbox; the next one ends both, long before the create's time would be up.
func TestACreateSurvivesACrashAtEachStep(t *testing.T) {
	for _, step := range []string{"master.create.after_row", "master.create.after_charge", "master.create.after_host"} {
		t.Run(step, func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) {
				r, hosts := ready(t, dsn, 1, plenty, patient)
				r.crash()
				crash, reached := crashAt(step)
				r.start(crash)
				_, err := r.create("base")
				if err == nil {
					t.Fatal("the create did not end")
				}
				wait(t, step, reached)
				r.crash()
				if rows := r.sandboxes(); len(rows) != 1 || rows[0].State == sandbox.Terminated {
					t.Fatalf("rows: %+v", rows)
				}
				r.start()
				eventually(t, "nothing is left", func() bool { return total(hosts) == 0 && r.sandboxes()[0].State == sandbox.Terminated })
			})
		})
	}
}
