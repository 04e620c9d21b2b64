package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

func uniqueRowsAreRefused(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	var one, two template.Definition
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		_, err1 := jobs.add(ctx, tx, 1)
		_, err2 := artifacts.add(ctx, tx, 1)
		_, err3 := replicas.add(ctx, tx, 1)
		_, err4 := sandboxes.add(ctx, tx, 1)
		one, err = definitions.add(ctx, tx, 1)
		two, _ = definitions.add(ctx, tx, 2)
		one, _, _ = templatedb.ClaimAlias(ctx, tx, one, "web", tx.Now)
		return errors.Join(err, err1, err2, err3, err4)
	})
	for name, c := range map[string]struct {
		do   func(ctx context.Context, tx *store.Tx) error
		want error
	}{
		"a job of the same request": {func(ctx context.Context, tx *store.Tx) error {
			j := job(2)
			j.RequestID = job(1).RequestID
			_, err := templatedb.AddJob(ctx, tx, j)
			return err
		}, fault.Exists},
		"a job of the same attempt": {func(ctx context.Context, tx *store.Tx) error {
			j := job(2)
			j.TemplateID = job(1).TemplateID
			_, err := templatedb.AddJob(ctx, tx, j)
			return err
		}, fault.Exists},
		"a job of the same spec": {func(ctx context.Context, tx *store.Tx) error {
			j := job(2)
			j.SpecKey = job(1).SpecKey
			_, err := templatedb.AddJob(ctx, tx, j)
			return err
		}, fault.Exists},
		"an artifact of the same bytes": {func(ctx context.Context, tx *store.Tx) error {
			a := artifact(2)
			a.ContentKey = artifact(1).ContentKey
			_, err := templatedb.AddArtifact(ctx, tx, a)
			return err
		}, fault.Exists},
		"a replica on the same host": {func(ctx context.Context, tx *store.Tx) error {
			_, err := replicas.add(ctx, tx, 1)
			return err
		}, fault.Exists},
		"a sandbox of the same id": {func(ctx context.Context, tx *store.Tx) error {
			_, err := sandboxes.add(ctx, tx, 1)
			return err
		}, fault.Exists},
		"an alias of another": {func(ctx context.Context, tx *store.Tx) error {
			_, _, err := templatedb.ClaimAlias(ctx, tx, two, "web", tx.Now.Add(-time.Minute)) // asked for before
			return err
		}, fault.AliasTaken},
		"an alias on an old reading": {func(ctx context.Context, tx *store.Tx) error {
			old := one
			old.Version--
			_, _, err := templatedb.ClaimAlias(ctx, tx, old, "other", tx.Now)
			return err
		}, fault.VersionConflict},
	} {
		if err := tryUpdate(t, s, c.do); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	// An alias that was let go is free, and any number have none.
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		if one, err = templatedb.ClearAlias(ctx, tx, one); err != nil {
			return err
		}
		two, _, err = templatedb.ClaimAlias(ctx, tx, two, "web", tx.Now.Add(-time.Hour))
		return err
	})
	// Of many that claim one alias at once, who asked last has it in the end.
	asked := time.Now()
	for i, err := range together(6, func(i int) (err error) {
		for range 100 { // as a master does that lost a race
			err = tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error {
				d, err := definitions.add(ctx, tx, 10+i)
				if err == nil {
					_, _, err = templatedb.ClaimAlias(ctx, tx, d, "wanted", asked.Add(time.Duration(i)*time.Millisecond))
				}
				return err
			})
			if !errors.Is(err, fault.VersionConflict) {
				break
			}
		}
		return err
	}) {
		if err != nil && !errors.Is(err, fault.AliasTaken) || i == 5 && err != nil {
			t.Errorf("claim %d: %v", i, err)
		}
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		d, found, err := templatedb.DefinitionByAlias(ctx, tx, "wanted")
		if !found || d.ID != definition(15).ID {
			t.Errorf("the alias is held by %q", d.ID)
		}
		return err
	})
}

// A spec is free again when the job that was at work on it ended, however it did.
func specsAreHeldByActiveJobs(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	for i, end := range []template.JobEvent{template.OnJobFailed, template.OnJobCancelled, template.OnJobStalled, template.OnJobDone} {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			j := job(i)
			j.SpecKey = []byte("one spec")
			j, err := templatedb.AddJob(ctx, tx, j)
			for _, on := range []template.JobEvent{template.OnJobStarted, template.OnJobBuilt, template.OnJobResumed, end} {
				got, held, err := templatedb.JobBySpec(ctx, tx, []byte("one spec"))
				if err != nil || !held || got.ID != j.ID {
					t.Errorf("%s: the spec is held by %q, %v", j.State, got.ID, err)
				}
				if j, err = templatedb.MoveJob(ctx, tx, j, on); err != nil {
					return err
				}
			}
			if _, held, err := templatedb.JobBySpec(ctx, tx, []byte("one spec")); held || err != nil {
				t.Errorf("%s: the spec is held, %v", end, err)
			}
			return err
		})
	}
}

func listsAreInOrder(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	var middle time.Time
	for i := range 6 {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			if i == 3 {
				middle = tx.Now
			}
			if _, err := jobs.add(ctx, tx, i); err != nil {
				return err
			}
			if _, err := artifacts.add(ctx, tx, i); err != nil {
				return err
			}
			_, err := sandboxes.add(ctx, tx, i)
			return err
		})
	}
	// The first of each changes last.
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		j, err1 := templatedb.GetJob(ctx, tx, job(0).ID)
		_, err2 := templatedb.MoveJob(ctx, tx, j, template.OnJobStarted)
		b, err3 := sandboxdb.GetSandbox(ctx, tx, box(0).ID)
		b.HostID = "h1"
		_, err4 := sandboxdb.MoveSandbox(ctx, tx, b, sandbox.OnCharged)
		return errors.Join(err1, err2, err3, err4)
	})
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		list := func(f templatedb.JobFilter) (got []template.JobID) {
			all, err := templatedb.ListJobs(ctx, tx, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range all {
				got = append(got, j.ID)
			}
			return got
		}
		wantIDs(t, "jobs, longest wait first", list(templatedb.JobFilter{}), job(1).ID, job(2).ID, job(3).ID, job(4).ID, job(5).ID, job(0).ID)
		wantIDs(t, "jobs in a state", list(templatedb.JobFilter{States: []template.JobState{template.JobQueued, template.JobReady}, Limit: 2}), job(1).ID, job(2).ID)
		wantIDs(t, "jobs changed before", list(templatedb.JobFilter{ChangedBefore: middle}), job(1).ID, job(2).ID)
		wantIDs(t, "jobs of a template", list(templatedb.JobFilter{TemplateID: job(4).TemplateID}), job(4).ID)
		return nil
	})
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		all, err := templatedb.ListArtifacts(ctx, tx, templatedb.ArtifactFilter{States: []template.ArtifactState{template.ArtifactBuilding}, ChangedBefore: middle, Limit: 2})
		var got []template.ArtifactID
		for _, a := range all {
			got = append(got, a.ID)
		}
		wantIDs(t, "artifacts", got, artifact(0).ID, artifact(1).ID)
		return err
	})
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		list := func(f sandboxdb.Filter) (got []sandbox.ID) {
			all, err := sandboxdb.ListSandboxes(ctx, tx, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range all {
				got = append(got, b.ID)
			}
			return got
		}
		wantIDs(t, "sandboxes, newest first", list(sandboxdb.Filter{Limit: 3}), box(5).ID, box(4).ID, box(3).ID)
		wantIDs(t, "sandboxes of a host", list(sandboxdb.Filter{HostID: "h1"}), box(0).ID)
		wantIDs(t, "sandboxes changed before, oldest first", list(sandboxdb.Filter{States: []sandbox.State{sandbox.Allocating}, TemplateID: box(0).TemplateID, ChangedBefore: middle, OldestFirst: true}), box(1).ID, box(2).ID)
		return nil
	})
}

func wantIDs[ID ~string](t *testing.T, what string, got []ID, want ...ID) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func referencesAreCounted(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	id := artifact(1).ID
	references := func() (n int64) {
		view(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			n, err = templatedb.ArtifactReferences(ctx, tx, id)
			return err
		})
		return n
	}
	var d template.Definition
	var j template.Job
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		want := definition(1)
		want.ArtifactID = id
		if d, err = templatedb.AddDefinition(ctx, tx, want); err != nil {
			return err
		}
		if j, err = jobs.add(ctx, tx, 1); err != nil {
			return err
		}
		j.ArtifactID = id
		j, err = templatedb.MoveJob(ctx, tx, j, template.OnJobBuilt)
		return err
	})
	if n := references(); n != 2 {
		t.Errorf("a template and an active job make %d references", n)
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		j, err = templatedb.MoveJob(ctx, tx, j, template.OnJobFailed)
		return err
	})
	if n := references(); n != 1 {
		t.Errorf("a template and a job that ended make %d references", n)
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnDeleteAsked)
		return err
	})
	if n := references(); n != 0 {
		t.Errorf("a template being deleted makes %d references", n)
	}
}

func removedRowsAreGone(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		d, err1 := definitions.add(ctx, tx, 1)
		a, err2 := artifacts.add(ctx, tx, 1)
		_, err3 := jobs.add(ctx, tx, 1)
		_, err4 := replicas.add(ctx, tx, 1)
		_, err5 := jobs.add(ctx, tx, 2)
		if err := templatedb.RemoveDefinition(ctx, tx, d); !errors.Is(err, fault.StateConflict) {
			t.Errorf("removal of a template in use: got %v", err)
		}
		if err := templatedb.RemoveArtifact(ctx, tx, a); !errors.Is(err, fault.StateConflict) {
			t.Errorf("removal of an artifact in use: got %v", err)
		}
		return errors.Join(err1, err2, err3, err4, err5)
	})
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		d, err1 := templatedb.GetDefinition(ctx, tx, definition(1).ID)
		d, err2 := templatedb.MoveDefinition(ctx, tx, d, template.OnDeleteAsked)
		a, err3 := templatedb.GetArtifact(ctx, tx, artifact(1).ID)
		a, err4 := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactUnused)
		a, err5 := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactHostsClean)
		return errors.Join(err1, err2, err3, err4, err5, templatedb.RemoveDefinition(ctx, tx, d), templatedb.RemoveArtifact(ctx, tx, a))
	})
	for table, want := range map[string]int64{"definition": 0, "artifact": 0, "replica": 0, "job": 1} {
		if n := count(t, s, `SELECT COUNT(*) FROM `+table); n != want {
			t.Errorf("%d rows of %s are left, want %d", n, table, want)
		}
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		err1 := templatedb.PutPlacement(ctx, tx, "rfs-1", "h1")
		err2 := templatedb.PutPlacement(ctx, tx, "rfs-1", "h1")
		err3 := templatedb.PutPlacement(ctx, tx, "rfs-1", "h2")
		err4 := templatedb.DeletePlacement(ctx, tx, "rfs-1", "h1")
		list, err := templatedb.ListPlacements(ctx, tx, "rfs-1")
		if len(list) != 1 || list[0].HostID != "h2" {
			t.Errorf("placements %v, want one on h2", list)
		}
		return errors.Join(err, err1, err2, err3, err4)
	})
}

func hostsAreHeard(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	r := host.Registration{ID: "h1", IP: "127.0.0.1", GRPCPort: 9999, InstanceType: "中文 '\\", Zone: "z", Labels: map[string]string{"a": "b"}, Capacity: host.Resources{MilliCPU: 1, MemBytes: 1 << 40, DiskBytes: 3, Slots: 4}, Allocatable: host.Resources{MilliCPU: 5}, Version: "v"}
	status := host.Status{Ready: true, Allocated: host.Resources{MilliCPU: 7}, Sandboxes: 2, Artifacts: []string{"rfs-1"}, CPUUtil: 12.5}
	var began time.Time
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		began = tx.Now
		if err := sandboxdb.HeardHost(ctx, tx, "h1", status); !errors.Is(err, fault.HostUnknown) {
			t.Errorf("a report of a host that never registered: got %v", err)
		}
		return sandboxdb.PutHost(ctx, tx, r)
	})
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		f, err := sandboxdb.GetHost(ctx, tx, "h1")
		if f.Ready {
			t.Error("a host is ready before it said so")
		}
		return err
	})
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(sandboxdb.PutWish(ctx, tx, host.Facts{Registration: r, Cordoned: true}), sandboxdb.HeardHost(ctx, tx, "h1", status), sandboxdb.PutHost(ctx, tx, host.Registration{ID: "h0"}), sandboxdb.PutHost(ctx, tx, r))
	})
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		all, err := sandboxdb.ListHosts(ctx, tx)
		if len(all) != 2 || all[0].ID != "h0" {
			t.Fatalf("hosts %v", all)
		}
		same(t, r, all[1].Registration)
		if !all[1].Cordoned || !all[1].HeardAt.After(began) {
			t.Errorf("cordoned %v, heard at %s after %s", all[1].Cordoned, all[1].HeardAt, began)
		}
		// What it said before is of a process that ended.
		if s := all[1].Status; s.Ready || s.Reason == "" || s.Allocated != (host.Resources{}) || s.Sandboxes != 0 || len(s.Artifacts) != 0 {
			t.Errorf("registered anew, not reported yet: %+v", s)
		}
		return err
	})
}

func transactionsAreWhole(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	if err := tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := sandboxes.add(ctx, tx, 1)
		return errors.Join(err, errPlanned)
	}); !errors.Is(err, errPlanned) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error {
			if _, err := sandboxes.add(ctx, tx, 2); err != nil {
				t.Error(err)
			}
			panic("planned")
		})
	}()
	ctx, cancel := context.WithCancel(limited(t))
	if err := s.Update(ctx, func(tx *store.Tx) error {
		_, err := sandboxes.add(ctx, tx, 3)
		cancel()
		return err
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled transaction: got %v", err)
	}
	if n := count(t, s, `SELECT COUNT(*) FROM sandbox`); n != 0 {
		t.Errorf("%d rows of transactions that failed", n)
	}
	// A statement that fails does not end the transaction.
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		if _, err := sandboxes.add(ctx, tx, 4); err != nil {
			return err
		}
		if _, err := sandboxes.add(ctx, tx, 4); !errors.Is(err, fault.Exists) {
			t.Errorf("got %v", err)
		}
		_, err := sandboxes.add(ctx, tx, 5)
		return err
	})
	if n := count(t, s, `SELECT COUNT(*) FROM sandbox`); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
	if err := s.View(limited(t), func(tx *store.Tx) error {
		_, err := tx.Exec(limited(t), `DELETE FROM sandbox`)
		return err
	}); err == nil {
		t.Error("a view wrote")
	}
}

func viewsDoNotWait(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s, other := open(t, dsn), open(t, dsn)
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := sandboxes.add(ctx, tx, 1)
		if err != nil {
			return err
		}
		for _, reader := range []*store.Store{s, other} {
			done := make(chan int64, 1)
			go func() {
				var n int64
				_ = reader.View(ctx, func(tx *store.Tx) error {
					_, err := tx.Row(ctx, `SELECT COUNT(*) FROM sandbox`, nil, &n)
					return err
				})
				done <- n
			}()
			select {
			case n := <-done:
				if n != 0 {
					t.Error("a view saw what was not committed")
				}
			case <-time.After(5 * time.Second):
				t.Error("a view waited for a writer")
			}
		}
		return nil
	})
	// A view sees one moment, whatever is committed meanwhile.
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		var before, after int64
		_, err1 := tx.Row(ctx, `SELECT COUNT(*) FROM sandbox`, nil, &before)
		update(t, other, func(ctx context.Context, tx *store.Tx) error {
			_, err := sandboxes.add(ctx, tx, 2)
			return err
		})
		_, err2 := tx.Row(ctx, `SELECT COUNT(*) FROM sandbox`, nil, &after)
		if before != 1 || after != 1 {
			t.Errorf("a view saw %d and then %d rows", before, after)
		}
		return errors.Join(err1, err2)
	})
}

func clockIsReadOnce(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	var last time.Time
	for range 3 {
		view(t, s, func(_ context.Context, tx *store.Tx) error {
			if tx.Now.Nanosecond()%1000 != 0 {
				t.Errorf("%s has parts of a microsecond, which no row keeps", tx.Now)
			}
			if d := time.Since(tx.Now).Abs(); d > time.Minute {
				t.Errorf("the database's clock is %s off; both run on this machine", d)
			}
			if !tx.Now.After(last) {
				t.Errorf("%s does not follow %s", tx.Now, last)
			}
			last = tx.Now
			return nil
		})
	}
}

// pinsHoldATemplate: what a transaction adds to a template under a pin is seen
// by whoever deletes it.
func pinsHoldATemplate(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s, other := open(t, dsn), open(t, dsn)
	var d template.Definition
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		if d, err = definitions.add(ctx, tx, 1); err != nil {
			return err
		}
		if err := templatedb.Pin(ctx, tx, d); !errors.Is(err, fault.TemplateNotReady) {
			t.Errorf("pin of a template that is being made: got %v", err)
		}
		d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnAllReady)
		return err
	})
	seen, done := 0, make(chan error, 1)
	first := true
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		if err := templatedb.Pin(ctx, tx, d); err != nil {
			return err
		}
		if first {
			first = false
			go func() {
				done <- tryUpdate(t, other, func(ctx context.Context, tx *store.Tx) (err error) {
					if d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnDeleteAsked); err != nil {
						return err
					}
					list, err := sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{TemplateID: d.ID})
					seen = len(list)
					return err
				})
			}()
			stillWaiting(t, "the deletion, although the template is pinned", done)
		}
		_, err := sandboxes.add(ctx, tx, 1)
		return err
	})
	if err := await(t, "the deletion", done); err != nil {
		t.Fatal(err)
	}
	if seen != 1 {
		t.Errorf("the deletion saw %d sandboxes, want the one that was added under the pin", seen)
	}
	if err := tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error { return templatedb.Pin(ctx, tx, d) }); !errors.Is(err, fault.TemplateNotReady) {
		t.Errorf("pin of a template that is being deleted: got %v", err)
	}
}
