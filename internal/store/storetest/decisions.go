package storetest

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

func decision(n, attempt int, at time.Time) sandboxdb.Decision {
	return sandboxdb.Decision{SandboxID: box(n).ID, Attempt: attempt, At: at, Kind: sandboxdb.DecisionPlaced, HostID: odd, Body: []byte(odd)}
}

// ran moves a sandbox until it runs.
func ran(ctx context.Context, tx *store.Tx, n int) (sandbox.Sandbox, error) {
	s, err := sandboxdb.AddSandbox(ctx, tx, box(n))
	s.HostID, s.IP = "h1", "10.0.0.1"
	for _, on := range []sandbox.Event{sandbox.OnCharged, sandbox.OnStarted} {
		if err == nil {
			s, err = sandboxdb.MoveSandbox(ctx, tx, s, on)
		}
	}
	return s, err
}

func decisionsGoWithTheirSandbox(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	at := time.UnixMicro(1_700_000_000_000_000)
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		var errs []error
		for n := 1; n <= 2; n++ {
			row, err := ran(ctx, tx, n)
			errs = append(errs, err, sandboxdb.AddDecision(ctx, tx, decision(n, 2, at.Add(time.Second))), sandboxdb.AddDecision(ctx, tx, decision(n, 1, at)))
			if n == 1 && err == nil {
				row, err1 := sandboxdb.MoveSandbox(ctx, tx, row, sandbox.OnEndAsked)
				_, err2 := sandboxdb.MoveSandbox(ctx, tx, row, sandbox.OnGone)
				errs = append(errs, err1, err2)
			}
		}
		again := decision(1, 1, at.Add(time.Hour)) // of a transaction that was not heard of
		again.HostID = "other"
		return errors.Join(append(errs, sandboxdb.AddDecision(ctx, tx, again))...)
	})
	list := func(n int) (list []sandboxdb.Decision) {
		view(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			list, err = sandboxdb.ListDecisions(ctx, tx, box(n).ID)
			return err
		})
		return list
	}
	if got, want := list(1), []sandboxdb.Decision{decision(1, 1, at), decision(1, 2, at.Add(time.Second))}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		n, err := sandboxdb.ForgetSandboxes(ctx, tx, tx.Now.Add(time.Hour), 10)
		if n != 1 {
			t.Errorf("%d rows were forgotten, want 1", n)
		}
		return err
	})
	if gone, kept := list(1), list(2); len(gone) != 0 || len(kept) != 2 {
		t.Errorf("%d decisions of the sandbox that went, %d of the one that lives: want 0 and 2", len(gone), len(kept))
	}
}

func createsAreListedInTheirOrder(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	at := time.UnixMicro(1_700_000_000_000_000)
	var ended time.Time
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		ended = tx.Now
		row1, err1 := ran(ctx, tx, 1)
		_, err2 := ran(ctx, tx, 2)
		_, err3 := sandboxdb.AddSandbox(ctx, tx, box(3))
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		_, err := sandboxdb.MoveSandbox(ctx, tx, row1, sandbox.OnEndAsked)
		refusal := decision(3, 1, at.Add(-time.Second))
		refusal.Kind, refusal.HostID = sandboxdb.DecisionRefused, ""
		return errors.Join(err, sandboxdb.AddDecision(ctx, tx, decision(2, 1, at)), sandboxdb.AddDecision(ctx, tx, decision(1, 1, at)),
			sandboxdb.AddDecision(ctx, tx, decision(1, 2, at.Add(-time.Hour))), sandboxdb.AddDecision(ctx, tx, refusal))
	})
	var all []sandboxdb.Asked
	for after := (sandboxdb.AskedAfter{}); ; {
		var page []sandboxdb.Asked
		view(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			page, err = sandboxdb.ListAsked(ctx, tx, after, 1)
			return err
		})
		if len(page) == 0 {
			break
		}
		all = append(all, page...)
		after = sandboxdb.AskedAfter{At: page[0].At, ID: page[0].SandboxID}
	}
	var got []sandbox.ID
	for _, a := range all {
		got = append(got, a.SandboxID)
	}
	wantIDs(t, "creates", got, box(3).ID, box(1).ID, box(2).ID)
	if len(all) == 3 && (all[0].Kind != sandboxdb.DecisionRefused || all[0].Ran || !all[1].Ran || !all[1].Ended.Equal(ended) || !all[2].Ended.IsZero()) {
		t.Errorf("got %+v", all)
	}
}
