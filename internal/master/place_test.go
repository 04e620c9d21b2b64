package master_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
)

// masters returns clients of n masters on one store, the rig's own among them.
func (r *rig) masters(n int) []*cubeapi.Client {
	r.t.Helper()
	apis := []*cubeapi.Client{r.api}
	for len(apis) < n {
		f := newFace(r.t)
		f.show(r.process().Handler())
		apis = append(apis, cubeapi.NewClient(f.URL, apiKey))
	}
	return apis
}

// neverMore demands that no host ever held more than it has room for.
func neverMore(t *testing.T, hosts []*fakeHost) {
	t.Helper()
	for _, h := range hosts {
		h.mu.Lock()
		if !h.most.Fits(h.room) {
			t.Errorf("host %s held %+v of %+v", h.id, h.most, h.room)
		}
		h.mu.Unlock()
	}
}

// A thousand at once, and one host that has room for seven.
func TestAThousandCreatesForSevenPlaces(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, roomFor(7), patient)
	var made, full atomic.Int64
	var callers sync.WaitGroup
	for range 1000 {
		callers.Go(func() {
			_, err := r.create("base")
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
	if made.Load() != 7 || full.Load() != 993 || len(hosts[0].live()) != 7 {
		t.Errorf("%d made, %d refused, %d there", made.Load(), full.Load(), len(hosts[0].live()))
	}
	neverMore(t, hosts)
}

func TestFiveMastersNeverOversell(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 2, roomFor(5), patient)
		var made, full atomic.Int64
		var callers sync.WaitGroup
		for i, api := range r.masters(5) {
			for range 12 {
				callers.Go(func() {
					_, err := api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base"})
					switch {
					case err == nil:
						made.Add(1)
					case errors.Is(err, fault.NoCapacity):
						full.Add(1)
					default:
						t.Errorf("master %d refused with %v", i, err)
					}
				})
			}
		}
		callers.Wait()
		if made.Load() != 10 || full.Load() != 50 || total(hosts) != 10 {
			t.Errorf("%d made, %d refused, %d there", made.Load(), full.Load(), total(hosts))
		}
		neverMore(t, hosts)
	})
}

// What a full disk says of its host holds for the rest of the request.
func TestAHostThatFailedIsNotChosenAgain(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 3, plenty)
	for _, h := range hosts {
		h.set(func(h *fakeHost) {
			h.create = func(context.Context) error { return fault.New(fault.DiskFull, "layer") }
		})
	}
	_, err := r.create("base")
	refused(t, err, fault.NoHost)
	for _, h := range hosts {
		if n := h.called("create"); n != 1 {
			t.Errorf("host %s was asked %d times", h.id, n)
		}
	}
}

// A code of class reuse stays on its host, which knows the sandbox by its id.
func TestACodeOfClassReuseStaysOnItsHost(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, plenty)
	r.m.Retry(func(c *scheduler.RetryConfig) { c.Reuse = []int{fault.RuntimeFailed.RetCode()} })
	var asked atomic.Int64
	for _, h := range hosts {
		h.set(func(h *fakeHost) {
			h.create = func(context.Context) error {
				if asked.Add(1) <= 3 {
					return fault.New(fault.RuntimeFailed, "start")
				}
				return nil
			}
		})
	}
	_, err := r.create("base")
	must(t, err)
	if a, b := hosts[0].called("create"), hosts[1].called("create"); max(a, b) != 4 || min(a, b) != 0 || total(hosts) != 1 {
		t.Errorf("asked %d and %d times", a, b)
	}
	if hosts[0].called("delete")+hosts[1].called("delete") != 0 {
		t.Error("it was taken back from its host")
	}
}

// Every host is cordoned after the view was read: none is called.
func TestTheGateBeforeTheCall(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 3, plenty)
		r.crash()
		var once sync.Once
		r.start(func(p *running) {
			p.At(func(step string) error {
				if step == "master.create.after_row" {
					once.Do(func() {
						must(t, p.Look(t.Context())) // what was seen last is fresh
						r.update(func(ctx context.Context, tx *store.Tx) error {
							_, err := tx.Exec(ctx, `UPDATE host SET cordoned = 1`)
							return err
						})
					})
				}
				return nil
			})
		})
		_, err := r.create("base")
		if c := fault.Of(err); c != fault.NoHost && c != fault.NoCapacity {
			t.Errorf("got %v", err)
		}
		for _, h := range hosts {
			if h.called("create") != 0 {
				t.Errorf("host %s was called", h.id)
			}
		}
		eventually(t, "nothing is left", func() bool {
			return r.sandboxes()[0].State == sandbox.Terminated && r.m.Charged("host-a") == host.Resources{}
		})
	})
}

// Reports that say that nothing is used make nobody sell what is not there.
func TestReportsOfNothingOversellNothing(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, roomFor(3), patient)
	hosts[0].set(func(h *fakeHost) {
		h.report = func(q *cubeapi.HostStatusRequest) { q.Allocated, q.Sandboxes = host.Resources{}, 0 }
	})
	made := 0
	for range 12 {
		_, err := r.create("base")
		if err == nil {
			made++
			continue
		}
		refused(t, err, fault.NoCapacity)
	}
	if made != 3 {
		t.Errorf("%d made", made)
	}
	neverMore(t, hosts)
}

// A host that cannot be reached proves nothing about what it has.
func TestADeleteIsNoSuccessBeforeTheHostSaysSo(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	h.away()
	refused(t, r.api.DeleteSandbox(t.Context(), id), fault.HostUnreachable)
	if s := r.state(id); s != sandbox.Terminating {
		t.Errorf("it is %s", s)
	}
	h.back()
	eventually(t, "it is gone", func() bool { return r.state(id) == sandbox.Terminated && len(h.live()) == 0 })
}

func TestADirectHost(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, plenty)
	debug := map[string]string{cubeapi.AnnotationDebug: "TRUE"}
	force := map[string]string{cubeapi.AnnotationDebug: "true", cubeapi.AnnotationForce: "true"}
	ask := func(q cubeapi.SandboxCreateRequest) (cubeapi.SandboxAnswer, error) {
		q.TemplateID = "base"
		return r.api.CreateSandbox(t.Context(), q)
	}
	_, err := ask(cubeapi.SandboxCreateRequest{InsID: "host-b"})
	refused(t, err, fault.InvalidInput)
	_, err = ask(cubeapi.SandboxCreateRequest{InsID: "host-z", Annotations: debug})
	refused(t, err, fault.NoHost)
	_, err = ask(cubeapi.SandboxCreateRequest{InsIP: "10.9.9.9", Annotations: debug})
	refused(t, err, fault.NoHost)
	for range 3 {
		a, err := ask(cubeapi.SandboxCreateRequest{InsID: "host-b", Annotations: debug})
		must(t, err)
		if a.HostID != "host-b" {
			t.Errorf("it is on %s", a.HostID)
		}
	}
	a, err := ask(cubeapi.SandboxCreateRequest{InsIP: "127.0.0.1", InsID: "host-b", Annotations: debug})
	if err != nil || a.HostID != "host-b" {
		t.Errorf("by address: %+v, %v", a, err)
	}
	_, err = r.api.CordonHost(t.Context(), "host-b", true)
	must(t, err)
	_, err = ask(cubeapi.SandboxCreateRequest{InsID: "host-b", Annotations: debug})
	refused(t, err, fault.NoHost)
	_, err = ask(cubeapi.SandboxCreateRequest{InsID: "host-b", Annotations: force})
	must(t, err)
	// It never goes to another, and is not asked for ever.
	before := hosts[1].called("create")
	hosts[1].set(func(h *fakeHost) {
		h.create = func(context.Context) error { return fault.New(fault.HostFull, "admission") }
	})
	_, err = ask(cubeapi.SandboxCreateRequest{InsID: "host-b", Annotations: force})
	refused(t, err, fault.HostFull)
	if n := hosts[1].called("create") - before; n != 5 || hosts[0].called("create") != 0 {
		t.Errorf("asked %d times, and the other %d times", n, hosts[0].called("create"))
	}
}

// What kept hosts out stands in the refusal, and when to come again in its head.
func TestARefusalSaysWhatKeptHostsOut(t *testing.T) {
	r, _ := ready(t, sqlite(t), 2, roomFor(1))
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.URL+cubeapi.PathSandbox, strings.NewReader(`{"template_id":"base","containers":[{"resources":{"cpu":"3"}}]}`))
	must(t, err)
	q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	answer, err := http.DefaultClient.Do(q)
	must(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	for _, want := range []string{`"ret_code":130597`, `"considered":2`, `"dropped":{"cpu":2}`, `"nearest":"would fit if host-a had 2000m more CPU"`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
	if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
		t.Errorf("%d, %v", answer.StatusCode, answer.Header)
	}
}
