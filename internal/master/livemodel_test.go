package master_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// lifeSeeds are those of the model of lives: one, or as many as MODEL_SEEDS says.
func lifeSeeds(t *testing.T) (seeds []uint64) {
	n := 1
	if given := os.Getenv("MODEL_SEEDS"); given != "" {
		var err error
		n, err = strconv.Atoi(given)
		must(t, err)
	}
	for i := range n {
		seeds = append(seeds, 20261201+uint64(i))
	}
	return seeds
}

// Two masters, of which one ends in the middle, and hosts that lose answers and
// never hear of calls, while callers pause, resume, keep, roll back and delete the
// same sandboxes: at the end none is on its way, rows and hosts agree, none is gone
// that nobody deleted, none is left that somebody did, and each remembers what
// was its own.
func TestLivesAgainstTheModel(t *testing.T) {
	for _, seed := range lifeSeeds(t) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) { livesModel(t, dsn, seed) })
		})
	}
}

func livesModel(t *testing.T, dsn string, seed uint64) {
	const workers, steps, boxes = 5, 12, 6
	r := newRig(t, dsn, patient)
	r.start()
	hosts := []*fakeHost{r.host(0, plenty), r.host(1, plenty)}
	r.template(alias("box"))
	second, other := r.process(), newFace(t)
	other.show(second.Handler())
	apis := []*cubeapi.Client{r.api, cubeapi.NewClient(other.URL, apiKey)}

	var ids []string
	for range boxes {
		ids = append(ids, r.live())
	}
	at := map[string]*fakeHost{}
	for _, h := range hosts {
		for _, id := range h.live() {
			at[id] = h
			h.note(id, "of "+id)
		}
		rng, mu := rand.New(rand.NewPCG(seed, uint64(len(at)))), &sync.Mutex{}
		chance := func(p float64, err error) error {
			mu.Lock()
			defer mu.Unlock()
			if rng.Float64() < p {
				return err
			}
			return nil
		}
		h.set(func(h *fakeHost) {
			h.life.before = func(call, _ string) error {
				return chance(0.1, fault.New(fault.HostUnreachable, "%s never came", call))
			}
			h.life.after = func(string, string) error { return chance(0.2, errLostAnswer) }
		})
	}

	deleted, mu := map[string]bool{}, &sync.Mutex{}
	var group sync.WaitGroup
	for n := range workers {
		rng := rand.New(rand.NewPCG(seed, uint64(1000+n)))
		group.Go(func() {
			kept := map[string]string{}
			for step := range steps {
				if n == 0 && step == steps/2 { // a master ends, and another takes its place
					other.hide()
					second.stop()
					second = r.process()
					other.show(second.Handler())
				}
				id, api := ids[rng.IntN(len(ids))], apis[rng.IntN(len(apis))]
				var err error
				switch dice := rng.IntN(20); {
				case dice < 7:
					_, err = api.Pause(t.Context(), cubeapi.PauseRequest{SandboxID: id})
				case dice < 14:
					_, err = api.Resume(t.Context(), cubeapi.ResumeRequest{SandboxID: id})
				case dice < 16:
					var k *cubeapi.Snapshot
					if k, err = api.Snapshot(t.Context(), cubeapi.SnapshotRequest{SandboxID: id}); err == nil {
						kept[id] = k.SnapshotID
					}
				case dice < 18:
					if kept[id] != "" {
						_, err = api.Rollback(t.Context(), cubeapi.RollbackRequest{SandboxID: id, SnapshotID: kept[id]})
					}
				case dice < 19:
					_, err = api.SetTimeout(t.Context(), cubeapi.TimeoutRequest{SandboxID: id, Timeout: 3600, OnTimeout: cubeapi.OnTimeoutPause})
				case id != ids[0]:
					mu.Lock()
					deleted[id] = true
					mu.Unlock()
					_ = api.DeleteSandbox(t.Context(), id) // its end was asked, whatever the answer
				}
				if err != nil && fault.Of(err) == fault.Bug {
					t.Errorf("worker %d, step %d: %v", n, step, err)
				}
			}
		})
	}
	group.Wait()
	for _, h := range hosts {
		h.set(func(h *fakeHost) { h.life.before, h.life.after = nil, nil })
	}
	for _, id := range ids { // a delete that was lost on its way to a master is asked again
		if deleted[id] {
			eventually(t, id+" is deleted", func() bool {
				_ = r.api.DeleteSandbox(t.Context(), id)
				return r.info(id).Status == "TERMINATED"
			})
		}
	}
	agree := func() (word string) {
		for _, s := range r.sandboxes() {
			h := at[string(s.ID)]
			if h == nil {
				continue // a trial of the template
			}
			want, stands := map[sandbox.State]hostpb.SandboxState{sandbox.Running: boxRunning, sandbox.Paused: boxPaused, sandbox.Terminated: hostpb.SandboxState_SANDBOX_STATE_UNSPECIFIED}[s.State]
			if got := h.stateOf(string(s.ID)); !stands || got != want {
				word += fmt.Sprintf("%s is %s, and %s on its host; ", s.ID, s.State, got)
			}
			if (s.State == sandbox.Terminated) != deleted[string(s.ID)] {
				word += fmt.Sprintf("%s is %s: %s; ", s.ID, s.State, s.Reason)
			}
		}
		return word
	}
	var last string
	defer func() {
		if last != "" {
			t.Logf("seed %d: %s", seed, last)
		}
	}()
	eventually(t, "rows and hosts agree", func() bool { last = agree(); return last == "" })
	for id, h := range at {
		if got := h.remembers(id); !deleted[id] && got != "of "+id {
			t.Errorf("%s remembers %q", id, got)
		}
	}
	for _, id := range ids { // and each can still be woken
		if !deleted[id] {
			must(t, r.resume(id))
			if h := at[id]; h.stateOf(id) != boxRunning || r.info(id).Status != "RUNNING" {
				t.Errorf("%s does not run", id)
			}
		}
	}
	for i, p := range []*running{r.m, second} {
		eventually(t, fmt.Sprintf("the charges of master %d end", i), func() bool { return p.Open() == 0 })
	}
}
