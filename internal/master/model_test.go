package master_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// world is what callers of several masters know.
type world struct {
	mu    sync.Mutex
	alive map[string]bool // told to be made, and nobody asked for their end
}

func (w *world) made(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive[id] = true
}

// take returns a sandbox that is about to be deleted.
func (w *world) take(rng *rand.Rand) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.alive))
	for id := range w.alive {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	id := ids[rng.IntN(len(ids))]
	delete(w.alive, id)
	return id
}

// Three masters, of which some end in the middle, hosts that lose answers and
// break, cordons and deletes, all at once: no host ever holds more than it has
// room for, a request makes one sandbox or none, what callers were told lives,
// and at the end rows and hosts agree.
func TestSeveralMastersAgainstTheModel(t *testing.T) {
	const seed, masters, workers, steps = 20261130, 3, 6, 14
	r, hosts := ready(t, sqlite(t), 3, roomFor(4), patient)
	var faces [masters]*face
	var procs [masters]*running
	var apis [masters]*cubeapi.Client
	faces[0], procs[0], apis[0] = r.front, r.m, r.api
	for i := 1; i < masters; i++ {
		faces[i], procs[i] = newFace(t), r.process()
		faces[i].show(procs[i].Handler())
		apis[i] = cubeapi.NewClient(faces[i].URL, apiKey)
	}
	for i, h := range hosts {
		rng, mu := rand.New(rand.NewPCG(seed, uint64(100+i))), &sync.Mutex{}
		chance := func(p float64) bool {
			mu.Lock()
			defer mu.Unlock()
			return rng.Float64() < p
		}
		h.set(func(h *fakeHost) {
			h.create = func(context.Context) error {
				if chance(0.1) {
					return fault.New(fault.RuntimeFailed, "start")
				}
				return nil
			}
			h.made = func() error {
				if chance(0.15) {
					return fault.New(fault.HostUnreachable, "reply") // it is lost; the host has it
				}
				return nil
			}
		})
	}
	w := &world{alive: map[string]bool{}}
	var group sync.WaitGroup
	for n := range workers {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		group.Go(func() {
			for step := range steps {
				at := rng.IntN(masters)
				switch dice := rng.IntN(20); {
				case n == 0 && (step == 4 || step == 9): // one master ends, and another takes its place
					at = 1 + at%2
					faces[at].hide()
					procs[at].stop()
					procs[at] = r.process()
					faces[at].show(procs[at].Handler())
				case dice < 12:
					q := cubeapi.SandboxCreateRequest{TemplateID: "base"}
					if dice%2 == 0 {
						q.RequestID = fmt.Sprintf("req-%d-%d", n, step)
					}
					a, err := apis[at].CreateSandbox(t.Context(), q)
					if err != nil && q.RequestID != "" { // another master is asked the same
						a, err = apis[(at+1)%masters].CreateSandbox(t.Context(), q)
					}
					if err == nil {
						w.made(a.SandboxID)
					} else if errors.Is(err, fault.Bug) {
						t.Errorf("create: %v", err)
					}
				case dice < 17:
					if id := w.take(rng); id != "" {
						_ = apis[at].DeleteSandbox(t.Context(), id) // its end was asked, whatever the answer
					}
				default:
					_, _ = apis[at].CordonHost(t.Context(), string(hosts[rng.IntN(len(hosts))].id), dice == 17) // a master may just be away
				}
			}
		})
	}
	group.Wait()
	neverMore(t, hosts)
	eventually(t, "rows and hosts agree", func() bool {
		running := 0
		for _, s := range r.sandboxes() {
			if s.State == sandbox.Running {
				running++
			} else if s.State != sandbox.Terminated && s.State != sandbox.Terminating {
				return false
			}
		}
		return running == total(hosts)
	})
	there := map[string]bool{}
	for _, h := range hosts {
		for _, id := range h.live() {
			if there[id] {
				t.Errorf("sandbox %s is on two hosts", id)
			}
			there[id] = true
		}
	}
	requests := map[string]string{}
	for _, s := range r.sandboxes() {
		if s.State != sandbox.Running {
			continue
		}
		var q cubeapi.SandboxCreateRequest
		must(t, json.Unmarshal(s.Request, &q))
		if q.RequestID != "" && requests[q.RequestID] != "" {
			t.Errorf("request %s made %s and %s", q.RequestID, requests[q.RequestID], s.ID)
		}
		requests[q.RequestID] = string(s.ID)
		if !there[string(s.ID)] {
			t.Errorf("%s runs on no host", s.ID)
		}
	}
	for id := range w.alive {
		if !there[id] {
			t.Errorf("%s was told to be made, and is gone: %s", id, r.state(id))
		}
	}
	for i, p := range procs {
		eventually(t, fmt.Sprintf("the charges of master %d end", i), func() bool { return p.Open() == 0 })
	}
}
