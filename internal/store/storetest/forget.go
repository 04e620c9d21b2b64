package storetest

import (
	"context"
	"errors"
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

// claimsEndOnTime stalls the database under a delivery: its claim cannot be
// extended, so it ends before another may claim the message.
func claimsEndOnTime(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	enqueue(t, s, "k", "a")
	began := time.Now()
	handled, held, freed := make(chan time.Duration, 1), make(chan struct{}), make(chan error, 1)
	free := make(chan struct{})
	_, err := s.Deliver(limited(t), topic, 1, func(ctx context.Context, m store.Message) error {
		go func() {
			freed <- s.Update(context.Background(), func(tx *store.Tx) error {
				_, err := tx.Exec(context.Background(), `UPDATE outbox SET last_error = last_error WHERE id = ?`, m.ID)
				close(held)
				<-free
				return err
			})
		}()
		await(t, "the row is held", held)
		await(t, "the end of the claim", ctx.Done())
		handled <- time.Since(began)
		close(free)
		return errPlanned
	})
	if err != nil {
		t.Fatal(err)
	}
	if took := await(t, "the delivery", handled); took >= 15*time.Second {
		t.Errorf("a delivery without a claim went on for %s", took)
	}
	if err := await(t, "the end of the stall", freed); err != nil {
		t.Error(err)
	}
}

func oldRowsAreForgotten(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	enqueue(t, s, "k", "dead", "waits")
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox SET dead = 1 WHERE payload = ?`, []byte("dead"))
		for n := 1; n <= 3 && err == nil; n++ {
			var j template.Job
			if j, err = templatedb.AddJob(ctx, tx, job(n)); err == nil && n < 3 {
				_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobFailed)
			}
		}
		if err == nil {
			d := definition(1)
			d.ID = job(1).TemplateID // its template came to be
			_, err = templatedb.AddDefinition(ctx, tx, d)
		}
		return err
	})
	forget := func(when func(now time.Time) time.Time) (jobs int, messages int64) {
		update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			if jobs, err = templatedb.ForgetFailed(ctx, tx, when(tx.Now), 10); err == nil {
				messages, err = tx.ForgetDead(ctx, when(tx.Now), 10)
			}
			return err
		})
		return jobs, messages
	}
	if jobs, messages := forget(func(now time.Time) time.Time { return now.Add(-time.Hour) }); jobs != 0 || messages != 0 {
		t.Errorf("%d jobs and %d messages were forgotten too early", jobs, messages)
	}
	if jobs, messages := forget(func(now time.Time) time.Time { return now.Add(time.Hour) }); jobs != 1 || messages != 1 {
		t.Errorf("%d jobs and %d messages were forgotten, want 1 and 1", jobs, messages)
	}
	wantLeft(t, s, 1, 0)
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		left, err := templatedb.ListJobs(ctx, tx, templatedb.JobFilter{})
		ids := []template.JobID{}
		for _, j := range left {
			ids = append(ids, j.ID)
		}
		wantIDs(t, "jobs left", ids, job(1).ID, job(3).ID)
		return err
	})
}

func hostsAreForgotten(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		var errs []error
		for _, h := range []host.ID{"stays", "goes"} {
			_, err := templatedb.AddReplica(ctx, tx, template.Replica{TemplateID: definition(1).ID, HostID: h})
			errs = append(errs, err, sandboxdb.PutHost(ctx, tx, host.Registration{ID: h}), templatedb.PutPlacement(ctx, tx, artifact(1).ID, h))
		}
		return errors.Join(errs...)
	})
	remove := func(ctx context.Context, tx *store.Tx) error {
		if err := templatedb.ForgetHost(ctx, tx, "goes"); err != nil {
			return err
		}
		return sandboxdb.DeleteHost(ctx, tx, "goes")
	}
	update(t, s, remove)
	if err := tryUpdate(t, s, remove); !errors.Is(err, fault.HostUnknown) {
		t.Errorf("removed again: %v", err)
	}
	for _, query := range []string{`SELECT COUNT(*) FROM host`, `SELECT COUNT(*) FROM replica`, `SELECT COUNT(*) FROM placement`} {
		if n := count(t, s, query); n != 1 {
			t.Errorf("%s: %d, want 1", query, n)
		}
	}
}

func expiriesAreFound(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	var now time.Time
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		now = tx.Now
		var errs []error
		for n, at := range []time.Time{{}, now.Add(-time.Second), now.Add(time.Hour)} {
			row := box(n)
			row.ExpiresAt = at
			_, err := sandboxdb.AddSandbox(ctx, tx, row)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		list, err := sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{ExpiredBy: now})
		ids := []sandbox.ID{}
		for _, b := range list {
			ids = append(ids, b.ID)
			if !b.ExpiresAt.Equal(now.Add(-time.Second)) {
				t.Errorf("sandbox %s expires at %s", b.ID, b.ExpiresAt)
			}
		}
		wantIDs(t, "expired", ids, box(1).ID)
		return err
	})
}
