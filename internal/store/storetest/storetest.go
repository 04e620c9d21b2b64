// Package storetest is what every database must do, as one suite that runs on
// each. It must never know which one it runs on.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// Run runs the suite. open returns a store on a fresh database, dsn what
// another process would open.
func Run(t *testing.T, open func(t *testing.T) (*store.Store, string)) {
	for name, test := range map[string]func(*testing.T, *store.Store, string){
		"JobsFollowTheMachine":      jobsFollow,
		"SandboxesFollowTheMachine": sandboxesFollow,
		"ArtifactsFollowTheMachine": artifactsFollow,
		"NamesAreBytes":             namesAreBytes,
		"StaleVersionIsRefused":     staleVersion,
		"ProgressOnlyGrows":         progressGrows,
		"LeaseEpochsOnlyGrow":       leaseEpochs,
		"RenewTwiceInOneTick":       renewTwice,
		"HandoverWaitsForWrite":     handoverWaits,
		"TwinsGetOneAnswer":         twins,
		"OutboxIsAtLeastOnce":       outbox,
		"OutboxKeepsOrderPerKey":    outboxOrder,
		"LockExcludesAndEnds":       lockExcludes,
		"SecondOpenChangesNothing":  secondOpen,
		"UnknownHostIsRefused":      unknownHost,
		"PinHoldsATemplate":         pin,
	} {
		t.Run(name, func(t *testing.T) {
			s, dsn := open(t)
			test(t, s, dsn)
		})
	}
}

func update(t *testing.T, s *store.Store, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return fn(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
}

var made int

func fresh(prefix string) string { made++; return fmt.Sprintf("%s%024x", prefix, made) }

// follow walks every pair of state and event through the real store: it moves
// where the table leads, and refuses where it refuses.
func follow[S, E ~string](t *testing.T, m *fsm.Machine[S, E, fsm.None], reach func(S) (move func(E) (S, error))) {
	t.Helper()
	for _, from := range m.States() {
		for _, on := range m.Events() {
			want, refused := m.Step(from, on, fsm.None{})
			got, err := reach(from)(on)
			if (err != nil) != (refused != nil) || err == nil && got != want {
				t.Errorf("%s in %s on %s: got %s, %v; the table says %s, %v", m.Name(), from, on, got, err, want, refused)
			}
			if err != nil && !errors.Is(err, fault.StateConflict) {
				t.Errorf("%s in %s on %s: %v is no state conflict", m.Name(), from, on, err)
			}
		}
	}
}

// path returns events that lead from the initial state to s.
func path[S, E ~string](m *fsm.Machine[S, E, fsm.None], s S) []E {
	type step struct {
		at  S
		way []E
	}
	seen := map[S]bool{}
	for queue := []step{{m.Initial(), nil}}; len(queue) > 0; queue = queue[1:] {
		q := queue[0]
		if q.at == s {
			return q.way
		}
		if seen[q.at] {
			continue
		}
		seen[q.at] = true
		for _, e := range m.Events() {
			if to, err := m.Step(q.at, e, fsm.None{}); err == nil {
				queue = append(queue, step{to, append(slices.Clone(q.way), e)})
			}
		}
	}
	return nil
}

func newJob() template.Job {
	return template.Job{ID: template.JobID(fresh("job-")), TemplateID: template.ID(fresh("tpl-")), RequestID: fresh("req-"), Operation: template.OpCreate, AttemptNo: 1, Phase: template.PhasePulling}
}

func jobsFollow(t *testing.T, s *store.Store, _ string) {
	follow(t, template.Jobs, func(from template.JobState) func(template.JobEvent) (template.JobState, error) {
		var j template.Job
		update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			if j, err = templatedb.AddJob(ctx, tx, newJob()); err != nil {
				return err
			}
			for _, e := range path(template.Jobs, from) {
				if j, err = templatedb.MoveJob(ctx, tx, j, e); err != nil {
					return err
				}
			}
			return nil
		})
		return func(on template.JobEvent) (template.JobState, error) {
			err := s.Update(t.Context(), func(tx *store.Tx) error { _, err := templatedb.MoveJob(t.Context(), tx, j, on); return err })
			var now template.Job
			update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
				now, err = templatedb.GetJob(ctx, tx, j.ID)
				return err
			})
			return now.State, err
		}
	})
}

func sandboxesFollow(t *testing.T, s *store.Store, _ string) {
	follow(t, sandbox.Machine, func(from sandbox.State) func(sandbox.Event) (sandbox.State, error) {
		b := sandbox.Sandbox{ID: sandbox.ID(fresh("i")), TemplateID: "tpl-1", Resources: host.Resources{MilliCPU: 1, MemBytes: 2, DiskBytes: 3, Slots: 1}}
		update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			if b, err = sandboxdb.AddSandbox(ctx, tx, b); err != nil {
				return err
			}
			b.HostID = "h"
			for _, e := range path(sandbox.Machine, from) {
				if b, err = sandboxdb.MoveSandbox(ctx, tx, b, e); err != nil {
					return err
				}
			}
			return nil
		})
		return func(on sandbox.Event) (sandbox.State, error) {
			err := s.Update(t.Context(), func(tx *store.Tx) error { _, err := sandboxdb.MoveSandbox(t.Context(), tx, b, on); return err })
			var now sandbox.Sandbox
			update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
				now, err = sandboxdb.GetSandbox(ctx, tx, b.ID)
				return err
			})
			return now.State, err
		}
	})
}

func artifactsFollow(t *testing.T, s *store.Store, _ string) {
	follow(t, template.Artifacts, func(from template.ArtifactState) func(template.ArtifactEvent) (template.ArtifactState, error) {
		a := template.Artifact{ID: template.ArtifactID(fresh("rfs-")), ContentKey: fresh("")}
		update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			if a, err = templatedb.AddArtifact(ctx, tx, a); err != nil {
				return err
			}
			for _, e := range path(template.Artifacts, from) {
				if a, err = templatedb.MoveArtifact(ctx, tx, a, e); err != nil {
					return err
				}
			}
			return nil
		})
		return func(on template.ArtifactEvent) (template.ArtifactState, error) {
			err := s.Update(t.Context(), func(tx *store.Tx) error { _, err := templatedb.MoveArtifact(t.Context(), tx, a, on); return err })
			var now template.Artifact
			update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
				now, err = templatedb.GetArtifact(ctx, tx, a.ID)
				return err
			})
			return now.State, err
		}
	})
}

func namesAreBytes(t *testing.T, s *store.Store, _ string) {
	for _, alias := range []string{"web", "Web", "web ", "wéb"} {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: template.ID(fresh("tpl-"))})
			if err == nil {
				_, err = templatedb.SetAlias(ctx, tx, d, alias)
			}
			return err
		})
	}
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		d, err := templatedb.AddDefinition(t.Context(), tx, template.Definition{ID: template.ID(fresh("tpl-"))})
		if err == nil {
			_, err = templatedb.SetAlias(t.Context(), tx, d, "web")
		}
		return err
	})
	if !errors.Is(err, fault.AliasTaken) {
		t.Errorf("a second web: %v", err)
	}
}

func staleVersion(t *testing.T, s *store.Store, _ string) {
	var old template.Job
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		if old, err = templatedb.AddJob(ctx, tx, newJob()); err == nil {
			_, err = templatedb.MoveJob(ctx, tx, old, template.OnJobStarted)
		}
		return err
	})
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		_, err := templatedb.MoveJob(t.Context(), tx, old, template.OnJobFailed)
		return err
	})
	if !errors.Is(err, fault.VersionConflict) {
		t.Errorf("a write over a newer row: %v", err)
	}
}

func progressGrows(t *testing.T, s *store.Store, _ string) {
	var j template.Job
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		if j, err = templatedb.AddJob(ctx, tx, newJob()); err != nil {
			return err
		}
		for _, p := range []int{40, 20} {
			if j.Progress = p; err == nil {
				j, err = templatedb.TouchJob(ctx, tx, j)
			}
		}
		if err == nil {
			j, err = templatedb.GetJob(ctx, tx, j.ID)
		}
		return err
	})
	if j.Progress != 40 {
		t.Errorf("progress went back to %d", j.Progress)
	}
}

func leaseEpochs(t *testing.T, s *store.Store, _ string) {
	var epochs []lease.Epoch
	for _, holder := range []string{"a", "b", "a"} {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			l, err := tx.Acquire(ctx, "x", holder, time.Minute)
			if err != nil {
				return err
			}
			epochs = append(epochs, l.Epoch)
			if _, err := tx.Acquire(ctx, "x", "other", time.Minute); !errors.Is(err, fault.LeaseHeld) {
				t.Errorf("a held lease was given away: %v", err)
			}
			return tx.Release(ctx, l.Fence())
		})
	}
	if !slices.Equal(epochs, []lease.Epoch{1, 2, 3}) {
		t.Errorf("epochs %v", epochs)
	}
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		return tx.Guard(t.Context(), lease.Fence{Subject: "x", Holder: "a", Epoch: 3})
	})
	if !errors.Is(err, fault.StaleController) {
		t.Errorf("a released lease still guards: %v", err)
	}
}

func renewTwice(t *testing.T, s *store.Store, _ string) {
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		l, err := tx.Acquire(ctx, "x", "a", time.Minute)
		for range 2 {
			if err == nil {
				_, err = tx.Renew(ctx, l.Fence(), time.Minute)
			}
		}
		return err
	})
}

// A guarded write is seen by the next holder, which waits for it.
func handoverWaits(t *testing.T, s *store.Store, _ string) {
	var l lease.Lease
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		l, err = tx.Acquire(ctx, "x", "a", time.Minute)
		return err
	})
	guarded, released := make(chan struct{}), make(chan error, 1)
	go func() {
		<-guarded
		released <- s.Update(context.Background(), func(tx *store.Tx) error {
			if err := tx.Release(context.Background(), l.Fence()); err != nil {
				return err
			}
			_, err := tx.Acquire(context.Background(), "x", "b", time.Minute)
			return err
		})
	}()
	var once sync.Once
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.Guard(ctx, l.Fence()); err != nil {
			return err
		}
		once.Do(func() { close(guarded) })
		// That something does not happen can only be watched for a while.
		select {
		case err := <-released:
			t.Errorf("the lease passed on under an open guarded write: %v", err)
		case <-time.After(150 * time.Millisecond):
		}
		return nil
	})
	if err := <-released; err != nil {
		t.Error(err)
	}
}

func twins(t *testing.T, s *store.Store, _ string) {
	var ran sync.Map
	var wg sync.WaitGroup
	answers := make([]string, 12)
	for i := range answers {
		wg.Go(func() {
			err := s.Update(context.Background(), func(tx *store.Tx) error {
				b, err := tx.Once(context.Background(), store.Submission{ID: "s", Holder: "h", Fingerprint: []byte("f")}, func() ([]byte, error) {
					ran.Store(i, true)
					return fmt.Appendf(nil, "answer of %d", i), nil
				})
				answers[i] = string(b)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a != answers[0] || a == "" {
			t.Errorf("twins got %q", answers)
			break
		}
	}
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Once(t.Context(), store.Submission{ID: "s", Holder: "h", Fingerprint: []byte("other")}, func() ([]byte, error) { return nil, nil })
		return err
	})
	if !errors.Is(err, fault.SubmissionReused) {
		t.Errorf("other content: %v", err)
	}
}

func outbox(t *testing.T, s *store.Store, _ string) {
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		return tx.Enqueue(ctx, store.Message{Topic: "t", Key: "k", Payload: []byte("p")}, 0)
	})
	boom := errors.New("boom")
	if n, err := s.Deliver(t.Context(), "t", 1, func(context.Context, store.Message) error { return boom }); n != 0 || err != nil {
		t.Fatalf("failed delivery counted: %d, %v", n, err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for got := 0; got == 0; {
		n, err := s.Deliver(t.Context(), "t", 1, func(_ context.Context, m store.Message) error {
			if m.Attempts < 2 || m.Error != "boom" || string(m.Payload) != "p" {
				t.Errorf("second delivery: %+v", m)
			}
			return nil
		})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("not delivered again: %v", err)
		}
		got = n
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		waiting, dead, err := tx.OutboxLen(ctx)
		if waiting != 0 || dead != 0 {
			t.Errorf("%d wait, %d dead", waiting, dead)
		}
		return err
	})
}

// Two deliverers never work on one key at once, and its messages come in order.
func outboxOrder(t *testing.T, s *store.Store, _ string) {
	for i := range 6 {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			return tx.Enqueue(ctx, store.Message{Topic: "t", Key: "k", Payload: []byte{byte(i)}}, 0)
		})
	}
	var mu sync.Mutex
	var got []byte
	busy := false
	deadline := time.Now().Add(20 * time.Second)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for time.Now().Before(deadline) {
				_, err := s.Deliver(context.Background(), "t", 2, func(_ context.Context, m store.Message) error {
					mu.Lock()
					if busy {
						t.Error("two messages of one key at once")
					}
					busy = true
					mu.Unlock()
					mu.Lock()
					busy, got = false, append(got, m.Payload...)
					mu.Unlock()
					return nil
				})
				mu.Lock()
				done := len(got) >= 6
				mu.Unlock()
				if err != nil || done {
					return
				}
			}
		})
	}
	wg.Wait()
	if !slices.Equal(got, []byte{0, 1, 2, 3, 4, 5}) {
		t.Errorf("delivered %v", got)
	}
}

func lockExcludes(t *testing.T, s *store.Store, _ string) {
	ctx, cancel := context.WithCancel(t.Context())
	locked, err := s.WithLock(ctx, "a lock with a name of over sixty-four characters, which MySQL would refuse as it is", 0, func(ctx context.Context) error {
		again, err := s.WithLock(ctx, "a lock with a name of over sixty-four characters, which MySQL would refuse as it is", 0, func(context.Context) error { return nil })
		if again || err != nil {
			t.Errorf("a held lock was given again: %v, %v", again, err)
		}
		cancel()
		return nil
	})
	if !locked || err != nil {
		t.Fatalf("%v, %v", locked, err)
	}
	// It ended although its context was cancelled while it was held.
	if locked, err := s.WithLock(t.Context(), "a lock with a name of over sixty-four characters, which MySQL would refuse as it is", 5*time.Second, func(context.Context) error { return nil }); !locked || err != nil {
		t.Errorf("the lock was not freed: %v, %v", locked, err)
	}
}

func secondOpen(t *testing.T, s *store.Store, dsn string) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			other, err := store.Open(context.Background(), store.Options{DSN: dsn, AutoMigrate: true})
			if err != nil {
				t.Error(err)
				return
			}
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func unknownHost(t *testing.T, s *store.Store, _ string) {
	err := s.Update(t.Context(), func(tx *store.Tx) error { return sandboxdb.HeardHost(t.Context(), tx, "nobody", host.Status{}) })
	if !errors.Is(err, fault.HostUnknown) {
		t.Errorf("got %v", err)
	}
}

func pin(t *testing.T, s *store.Store, _ string) {
	var d template.Definition
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		if d, err = templatedb.AddDefinition(ctx, tx, template.Definition{ID: template.ID(fresh("tpl-"))}); err == nil {
			d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnAllReady)
		}
		if err == nil {
			err = templatedb.Pin(ctx, tx, d)
		}
		if err == nil {
			d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnDeleteAsked)
		}
		return err
	})
	err := s.Update(t.Context(), func(tx *store.Tx) error { return templatedb.Pin(t.Context(), tx, d) })
	if !errors.Is(err, fault.TemplateNotReady) {
		t.Errorf("a template that is being deleted was pinned: %v", err)
	}
}
