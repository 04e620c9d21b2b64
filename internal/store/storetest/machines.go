package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/fsm/fsmtest"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// kind is one stored thing with a machine: how to add the n-th row, read it,
// move it, and see where it stands.
type kind[T any, S, E ~string] struct {
	machine *fsm.Machine[S, E, fsm.None]
	add     func(ctx context.Context, tx *store.Tx, n int) (T, error)
	read    func(ctx context.Context, tx *store.Tx, row T) (T, error)
	move    func(ctx context.Context, tx *store.Tx, row T, on E) (T, error)
	at      func(row T) (state S, version int64)
}

var jobs = kind[template.Job, template.JobState, template.JobEvent]{
	machine: template.Jobs,
	add: func(ctx context.Context, tx *store.Tx, n int) (template.Job, error) {
		return templatedb.AddJob(ctx, tx, job(n))
	},
	read: func(ctx context.Context, tx *store.Tx, j template.Job) (template.Job, error) {
		return templatedb.GetJob(ctx, tx, j.ID)
	},
	move: templatedb.MoveJob,
	at:   func(j template.Job) (template.JobState, int64) { return j.State, j.Version },
}

var definitions = kind[template.Definition, template.State, template.Event]{
	machine: template.Definitions,
	add: func(ctx context.Context, tx *store.Tx, n int) (template.Definition, error) {
		return templatedb.AddDefinition(ctx, tx, definition(n))
	},
	read: func(ctx context.Context, tx *store.Tx, d template.Definition) (template.Definition, error) {
		return templatedb.GetDefinition(ctx, tx, d.ID)
	},
	move: templatedb.MoveDefinition,
	at:   func(d template.Definition) (template.State, int64) { return d.State, d.Version },
}

var artifacts = kind[template.Artifact, template.ArtifactState, template.ArtifactEvent]{
	machine: template.Artifacts,
	add: func(ctx context.Context, tx *store.Tx, n int) (template.Artifact, error) {
		return templatedb.AddArtifact(ctx, tx, artifact(n))
	},
	read: func(ctx context.Context, tx *store.Tx, a template.Artifact) (template.Artifact, error) {
		return templatedb.GetArtifact(ctx, tx, a.ID)
	},
	move: templatedb.MoveArtifact,
	at:   func(a template.Artifact) (template.ArtifactState, int64) { return a.State, a.Version },
}

var replicas = kind[template.Replica, template.ReplicaState, template.ReplicaEvent]{
	machine: template.Replicas,
	add: func(ctx context.Context, tx *store.Tx, n int) (template.Replica, error) {
		return templatedb.AddReplica(ctx, tx, template.Replica{TemplateID: definition(n).ID, HostID: "h1"})
	},
	read: func(ctx context.Context, tx *store.Tx, r template.Replica) (template.Replica, error) {
		r, found, err := templatedb.GetReplica(ctx, tx, r.TemplateID, r.HostID)
		if err == nil && !found {
			err = fault.NoSuchThing
		}
		return r, err
	},
	move: templatedb.MoveReplica,
	at:   func(r template.Replica) (template.ReplicaState, int64) { return r.State, r.Version },
}

var sandboxes = kind[sandbox.Sandbox, sandbox.State, sandbox.Event]{
	machine: sandbox.Machine,
	add: func(ctx context.Context, tx *store.Tx, n int) (sandbox.Sandbox, error) {
		return sandboxdb.AddSandbox(ctx, tx, box(n))
	},
	read: func(ctx context.Context, tx *store.Tx, s sandbox.Sandbox) (sandbox.Sandbox, error) {
		return sandboxdb.GetSandbox(ctx, tx, s.ID)
	},
	move: func(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, on sandbox.Event) (sandbox.Sandbox, error) {
		s.HostID = "h1" // the schema refuses a running sandbox without one
		return sandboxdb.MoveSandbox(ctx, tx, s, on)
	},
	at: func(s sandbox.Sandbox) (sandbox.State, int64) { return s.State, s.Version },
}

// Things of which only the identity matters.

func job(n int) template.Job {
	return template.Job{ID: template.JobID(fmt.Sprintf("job-%024x", n)), TemplateID: definition(n).ID, RequestID: fmt.Sprintf("r-%d", n), Operation: template.OpCreate, AttemptNo: 1, SpecKey: fmt.Appendf(nil, "spec-%d", n)}
}

func definition(n int) template.Definition {
	return template.Definition{ID: template.ID(fmt.Sprintf("tpl-%024x", n))}
}

func artifact(n int) template.Artifact {
	key := fmt.Sprintf("%064x", n)
	return template.Artifact{ID: template.ArtifactID(fmt.Sprintf("rfs-%024x", n)), ContentKey: key}
}

func box(n int) sandbox.Sandbox {
	return sandbox.Sandbox{ID: sandbox.ID(fmt.Sprintf("i%024x", n)), TemplateID: definition(1).ID, Resources: host.Resources{MilliCPU: 1000, MemBytes: 1 << 30, DiskBytes: 1 << 31, Slots: 1}}
}

func moveFollowsTheMachine(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	t.Run("job", func(t *testing.T) { walk(t, s, jobs) })
	t.Run("template", func(t *testing.T) { walk(t, s, definitions) })
	t.Run("artifact", func(t *testing.T) { walk(t, s, artifacts) })
	t.Run("replica", func(t *testing.T) { walk(t, s, replicas) })
	t.Run("sandbox", func(t *testing.T) { walk(t, s, sandboxes) })
}

// walk tries every event in every state through the real store.
func walk[T any, S, E ~string](t *testing.T, s *store.Store, k kind[T, S, E]) {
	n := 0
	fsmtest.Walk(k.machine, fsm.None{}, func(from S, on E, to S, ok bool) {
		n++
		var row T
		update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			if row, err = k.add(ctx, tx, n); err != nil {
				return err
			}
			for _, step := range path(k.machine, from) {
				if row, err = k.move(ctx, tx, row, step); err != nil {
					return err
				}
			}
			return nil
		})
		state, version := k.at(row)
		if state != from {
			t.Fatalf("%s: the way to %s leads to %s", k.machine.Name(), from, state)
		}
		var moved T
		err := tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			moved, err = k.move(ctx, tx, row, on)
			return err
		})
		want, grown := to, version+1
		if !ok {
			want, grown = from, version
			if !errors.Is(err, fault.StateConflict) {
				t.Errorf("%s in %s: %s: got %v, want a refusal", k.machine.Name(), from, on, err)
			}
		} else if err != nil {
			t.Errorf("%s in %s: %s: %v", k.machine.Name(), from, on, err)
		} else if state, version := k.at(moved); state != want || version != grown {
			t.Errorf("%s in %s: %s returns %s at version %d, want %s at %d", k.machine.Name(), from, on, state, version, want, grown)
		}
		var stored T
		view(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			stored, err = k.read(ctx, tx, row)
			return err
		})
		if state, version := k.at(stored); state != want || version != grown {
			t.Errorf("%s in %s: %s stores %s at version %d, want %s at %d", k.machine.Name(), from, on, state, version, want, grown)
		}
	})
}

// path returns the shortest list of events from the initial state to the given
// one.
func path[S, E ~string](m *fsm.Machine[S, E, fsm.None], to S) []E {
	ways := map[S][]E{m.Initial(): {}}
	for queue := []S{m.Initial()}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, on := range m.Events() {
			next, err := m.Step(at, on, fsm.None{})
			if _, seen := ways[next]; err == nil && !seen {
				ways[next] = append(append([]E{}, ways[at]...), on)
				queue = append(queue, next)
			}
		}
	}
	return ways[to]
}

func moveComparesWhatWasRead(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	t.Run("job", func(t *testing.T) { twice(t, s, jobs, template.OnJobStarted) })
	t.Run("template", func(t *testing.T) { twice(t, s, definitions, template.OnAllReady) })
	t.Run("artifact", func(t *testing.T) { twice(t, s, artifacts, template.OnArtifactStored) })
	t.Run("replica", func(t *testing.T) { twice(t, s, replicas, template.OnReplicaHeld) })
	t.Run("sandbox", func(t *testing.T) { twice(t, s, sandboxes, sandbox.OnCharged) })
}

// twice moves one row as it was read two times: the second must not succeed.
func twice[T any, S, E ~string](t *testing.T, s *store.Store, k kind[T, S, E], on E) {
	var row T
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		row, err = k.add(ctx, tx, 1)
		return err
	})
	for i, want := range []error{nil, fault.VersionConflict} {
		err := tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error {
			_, err := k.move(ctx, tx, row, on)
			return err
		})
		if !errors.Is(err, want) {
			t.Errorf("move %d of the same reading: got %v, want %v", i+1, err, want)
		}
	}
}

func oneOfManyMovesWins(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	stores := []*store.Store{open(t, dsn), open(t, dsn)}
	var row sandbox.Sandbox
	update(t, stores[0], func(ctx context.Context, tx *store.Tx) (err error) {
		row, err = sandboxes.add(ctx, tx, 1)
		return err
	})
	won, lost := 0, 0
	for _, err := range together(12, func(i int) error {
		return tryUpdate(t, stores[i%2], func(ctx context.Context, tx *store.Tx) error {
			_, err := sandboxes.move(ctx, tx, row, sandbox.OnCharged)
			return err
		})
	}) {
		switch {
		case err == nil:
			won++
		case errors.Is(err, fault.VersionConflict):
			lost++
		default:
			t.Error(err)
		}
	}
	if won != 1 || lost != 11 {
		t.Errorf("%d won and %d met a conflict, want 1 and 11", won, lost)
	}
}
