package master_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/test/service"
)

// settled waits until rows and hosts agree on n sandboxes.
func (r *rig) settled(hosts []*fakeHost, n int) {
	r.t.Helper()
	eventually(r.t, "rows and hosts agree", func() bool {
		running := 0
		for _, s := range r.sandboxes() {
			if s.State == sandbox.Running {
				running++
			} else if s.State != sandbox.Terminated {
				return false
			}
		}
		return running == n && total(hosts) == n
	})
}

func many(n int, mode string) cubeapi.SandboxBatchRequest {
	return cubeapi.SandboxBatchRequest{SandboxCreateRequest: cubeapi.SandboxCreateRequest{TemplateID: "base"}, Count: n, Mode: mode}
}

func TestABatch(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 2, roomFor(5), patient)
		// More than there is: all or none.
		_, err := r.api.CreateSandboxes(t.Context(), many(11, ""))
		refused(t, err, fault.NoCapacity)
		if len(r.sandboxes()) != 0 || total(hosts) != 0 || r.m.Charged("host-a") != (host.Resources{}) {
			t.Error("a batch that found no room left something")
		}
		q := many(4, cubeapi.BatchAll)
		q.RequestID = "batch-one"
		first, err := r.api.CreateSandboxes(t.Context(), q)
		must(t, err)
		again, err := r.api.CreateSandboxes(t.Context(), q)
		must(t, err)
		if first.Created != 4 || len(first.Data) != 4 || total(hosts) != 4 || again.Created != 4 {
			t.Fatalf("%+v, then %+v", first, again)
		}
		for i, s := range first.Data {
			if s.SandboxID == "" || s.SandboxIP != "10.0.0.2" || s.HostIP != "127.0.0.1" || s.Index != i || again.Data[i].SandboxID != s.SandboxID {
				t.Errorf("%+v, then %+v", s, again.Data[i])
			}
		}
		other := q
		other.Count = 5
		_, err = r.api.CreateSandboxes(t.Context(), other)
		refused(t, err, fault.SubmissionReused)
		// As many as can.
		best, err := r.api.CreateSandboxes(t.Context(), many(9, cubeapi.BatchBestEffort))
		must(t, err)
		if best.Created != 6 || best.Failed != 3 || best.Data[8].Error == nil || best.Data[8].Error.Code != fault.NoCapacity.Name {
			t.Errorf("%+v", best)
		}
		r.settled(hosts, 10)
		neverMore(t, hosts)
	})
}

// One of a batch fails for good: the others go too, or stay.
func TestABatchOfWhichOneFails(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, plenty, patient)
	r.strict()
	q := func(mode string) cubeapi.SandboxBatchRequest {
		b := cubeapi.SandboxBatchRequest{Mode: mode}
		for _, cpu := range []string{"1", "1", "1.5"} {
			b.Requests = append(b.Requests, cubeapi.SandboxCreateRequest{TemplateID: "base", Containers: []cubeapi.Container{{Resources: &cubeapi.Quantity{CPU: cpu}}}})
		}
		return b
	}
	for _, h := range hosts {
		h.set(func(h *fakeHost) {
			h.refuse = func(id string, cpu int64) error {
				if cpu == 1500 {
					return fault.New(fault.CommandNotFound, "serve")
				}
				return nil
			}
		})
	}
	_, err := r.api.CreateSandboxes(t.Context(), q(cubeapi.BatchAll))
	refused(t, err, fault.CommandNotFound)
	r.settled(hosts, 0)
	for _, s := range r.sandboxes() {
		if !strings.HasPrefix(s.Reason, "failed: ") { // else a sweep had to find it
			t.Errorf("it ended for %q", s.Reason)
		}
	}
	a, err := r.api.CreateSandboxes(t.Context(), q(cubeapi.BatchBestEffort))
	must(t, err)
	if a.Created != 2 || a.Data[2].Error == nil || a.Data[2].Error.Code != fault.CommandNotFound.Name {
		t.Errorf("%+v", a)
	}
	r.settled(hosts, 2)
}

// What one host does not make, another does, also in a batch; and hosts that
// were shut since they were chosen are not called.
func TestABatchGoesToOtherHosts(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 3, plenty, patient)
		r.strict()
		hosts[0].set(func(h *fakeHost) {
			h.create = func(context.Context) error { return fault.New(fault.HostFull, "admission") }
		})
		must(t, r.m.Look(t.Context()))
		r.update(func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE host SET cordoned = 1 WHERE id = ?`, []byte("host-b"))
			return err
		})
		a, err := r.api.CreateSandboxes(t.Context(), many(12, cubeapi.BatchAll))
		must(t, err)
		if a.Created != 12 || hosts[1].called("create") != 0 || len(hosts[2].live()) != 12 {
			t.Errorf("%+v; %d on the last", a, len(hosts[2].live()))
		}
		r.settled(hosts, 12)
	})
}

// Three hosts are in one zone and one in the other: what is free alone would
// send most to the three.
func TestABatchKeepsApart(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 4, plenty, patient)
	r.inZones(hosts, func(h *fakeHost) string { return map[bool]string{true: "two", false: "one"}[h == hosts[3]] })
	q := many(8, cubeapi.BatchAll)
	q.Labels = map[string]string{"app": "web"}
	q.Affinity = &cubeapi.Affinity{Spread: []cubeapi.Spread{{Key: scheduler.LabelZone, MaxSkew: 1, Hard: true, Labels: q.Labels}}}
	_, err := r.api.CreateSandboxes(t.Context(), q)
	must(t, err)
	if n := len(hosts[3].live()); n != 4 || total(hosts) != 8 {
		t.Errorf("%d of %d are in the zone of one host", n, total(hosts))
	}
}

func TestABatchSurvivesACrash(t *testing.T) {
	for _, step := range []string{"master.batch.after_rows", "master.batch.after_hosts"} {
		t.Run(step, func(t *testing.T) {
			r, hosts := ready(t, sqlite(t), 2, plenty, patient)
			r.crash()
			crash, reached := crashAt(step)
			r.start(crash)
			q := many(5, cubeapi.BatchAll)
			q.RequestID = "batch-one"
			if _, err := r.api.CreateSandboxes(t.Context(), q); err == nil {
				t.Fatal("the batch did not end")
			}
			wait(t, step, reached)
			r.crash()
			r.start()
			r.settled(hosts, 0)
			// It left nothing, and counts for nothing.
			a, err := r.api.CreateSandboxes(t.Context(), q)
			must(t, err)
			if a.Created != 5 {
				t.Errorf("%+v", a)
			}
			r.settled(hosts, 5)
		})
	}
}

func TestBadBatchesAreRefused(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	named := many(0, "")
	named.Requests = []cubeapi.SandboxCreateRequest{{TemplateID: "base", RequestID: "x"}}
	both := named
	both.Count = 2
	large := many(1000, "")
	large.Envs = map[string]string{"A": strings.Repeat("x", 8<<10)}
	for name, q := range map[string]cubeapi.SandboxBatchRequest{"too large": large, "none": many(0, ""), "fewer than none": many(-1, ""), "too many": many(1001, ""), "a mode": many(2, "some"), "an id of one": named, "both": both} {
		_, err := r.api.CreateSandboxes(t.Context(), q)
		if !errors.Is(err, fault.InvalidInput) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is kept with a sandbox and shown has bounds.
func TestACreateKeepsWithinBounds(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	words := map[string]string{}
	for i := range 65 {
		words[strconv.Itoa(i)] = ""
	}
	for name, q := range map[string]cubeapi.SandboxCreateRequest{
		"labels": {Labels: words}, "no key": {Labels: map[string]string{"": "x"}}, "a control": {Labels: map[string]string{"a\nb": "x"}},
		"a long key": {Labels: map[string]string{strings.Repeat("k", 129): ""}}, "a long value": {Labels: map[string]string{"k": strings.Repeat("v", 257)}},
		"a control in a value": {Labels: map[string]string{"k": "\x00"}}, "annotations": {Annotations: words},
		"a scope": {Scope: make([]string, 1001)}, "a long scope": {Scope: []string{strings.Repeat("s", 129)}},
	} {
		q.TemplateID = "base"
		if _, err := r.api.CreateSandbox(t.Context(), q); !errors.Is(err, fault.InvalidInput) {
			t.Errorf("%s: %v", name, err)
		}
	}
	most := cubeapi.SandboxCreateRequest{TemplateID: "base", Labels: map[string]string{strings.Repeat("k", 128): strings.Repeat("v", 256)}}
	_, err := r.api.CreateSandbox(t.Context(), most)
	must(t, err)
}

// Where sandboxes are stands in Redis while they live, whenever that is there.
func TestRoutesFollowTheRows(t *testing.T) {
	addr := service.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	r, hosts := ready(t, sqlite(t), 1, plenty, func(c *config.Config) { c.Redis.Addr = addr })
	key := func(id string) string { return "bypass_host_proxy:" + id }
	route := func(id string) map[string]string {
		m, err := client.HGetAll(t.Context(), key(id)).Result()
		must(t, err)
		return m
	}
	a, err := r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base", Annotations: map[string]string{cubeapi.AnnotationPorts: "9000"}})
	must(t, err)
	eventually(t, "its route is there", func() bool {
		m := route(a.SandboxID)
		return m["HostIP"] == "127.0.0.1" && m["SandboxIP"] == "10.0.0.2" && len(m["CreatedAt"]) == 19 && m["8080"] == "8080" && m["9000"] == "9000" && len(m) == 5
	})
	// What Redis lost, or has for nobody, is put right by a sweep.
	must(t, client.Del(t.Context(), key(a.SandboxID)).Err())
	must(t, client.HSet(t.Context(), key("i0123456789abcdef01234567"), "HostIP", "10.1.1.1").Err())
	eventually(t, "the sweep has been there", func() bool {
		return len(route(a.SandboxID)) == 5 && len(route("i0123456789abcdef01234567")) == 0
	})
	must(t, r.api.DeleteSandbox(t.Context(), a.SandboxID))
	eventually(t, "its route is gone", func() bool { return len(route(a.SandboxID)) == 0 })
	if total(hosts) != 0 {
		t.Error("the host still has it")
	}
}

// A Redis that is away stops nobody.
func TestWithoutRedisNothingBreaks(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty, func(c *config.Config) { c.Redis.Addr = "127.0.0.1:1" })
	a, err := r.create("base")
	must(t, err)
	must(t, r.api.DeleteSandbox(t.Context(), a.SandboxID))
	if total(hosts) != 0 {
		t.Error("the host still has it")
	}
}

// A batch of which nothing came to be counts for nothing: the same request
// tries again once there is room, and all who send it get the same.
func TestABatchThatFoundNoHostMayBeSentAgain(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, roomFor(4), patient)
	fill, err := r.api.CreateSandboxes(t.Context(), many(4, cubeapi.BatchAll))
	must(t, err)
	q := many(2, cubeapi.BatchBestEffort)
	q.RequestID = "batch-late"
	_, err = r.api.CreateSandboxes(t.Context(), q)
	refused(t, err, fault.NoCapacity)
	for _, s := range fill.Data {
		must(t, r.api.DeleteSandbox(t.Context(), s.SandboxID))
	}
	r.settled(hosts, 0)
	made := make(chan []string, 8)
	var all sync.WaitGroup
	for range cap(made) {
		all.Go(func() {
			a, err := r.api.CreateSandboxes(context.Background(), q)
			if err != nil || a.Created != 2 {
				t.Errorf("%+v, %v", a, err)
				return
			}
			made <- []string{a.Data[0].SandboxID, a.Data[1].SandboxID}
		})
	}
	all.Wait()
	close(made)
	first := <-made
	for ids := range made {
		if !slices.Equal(ids, first) {
			t.Errorf("one request made %v and %v", first, ids)
		}
	}
	r.settled(hosts, 2)
}
