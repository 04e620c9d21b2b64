package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
)

const ttl = time.Hour // nothing here waits for a lease to run out

func acquire(t *testing.T, s *store.Store, subject, holder string, ttl time.Duration) (l lease.Lease) {
	t.Helper()
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		l, err = tx.Acquire(ctx, subject, holder, ttl)
		return err
	})
	return l
}

func release(t *testing.T, s *store.Store, f lease.Fence) {
	t.Helper()
	update(t, s, func(ctx context.Context, tx *store.Tx) error { return tx.Release(ctx, f) })
}

func guard(t *testing.T, s *store.Store, f lease.Fence) error {
	t.Helper()
	return tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error { return tx.Guard(ctx, f) })
}

func epochsOnlyGrow(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	one := acquire(t, s, "x", "a", ttl)
	if again := acquire(t, s, "x", "a", ttl); again.Epoch != one.Epoch {
		t.Errorf("a holder that acquires again gets epoch %d after %d", again.Epoch, one.Epoch)
	}
	err := tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Acquire(ctx, "x", "b", ttl)
		return err
	})
	if !errors.Is(err, fault.LeaseHeld) {
		t.Errorf("acquire of a held lease: got %v", err)
	}
	release(t, s, one.Fence())
	two := acquire(t, s, "x", "a", -time.Second) // over as soon as it is there
	three := acquire(t, s, "x", "b", ttl)
	if one.Epoch != 1 || two.Epoch != 2 || three.Epoch != 3 {
		t.Errorf("epochs %d, %d, %d: want 1, 2, 3", one.Epoch, two.Epoch, three.Epoch)
	}
	if other := acquire(t, s, "X", "b", ttl); other.Epoch != 1 {
		t.Errorf("another subject begins at epoch %d", other.Epoch)
	}
}

func renewTwiceInOneTick(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	f := acquire(t, s, "x", "a", ttl).Fence()
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		first, err := tx.Renew(ctx, f, ttl)
		if err != nil {
			return err
		}
		second, err := tx.Renew(ctx, f, ttl)
		if err == nil && !second.Until.Equal(first.Until) {
			t.Errorf("renewed until %s and %s in one tick", first.Until, second.Until)
		}
		return err
	})
}

func staleFencesAreRefused(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	old := acquire(t, s, "x", "a", ttl).Fence()
	if err := guard(t, s, old); err != nil {
		t.Errorf("guard of what holds: %v", err)
	}
	release(t, s, old)
	held := acquire(t, s, "x", "b", ttl).Fence()
	over := acquire(t, s, "y", "a", -time.Second).Fence()
	for name, f := range map[string]lease.Fence{
		"an old epoch":     old,
		"a borrowed epoch": {Subject: "x", Holder: "a", Epoch: held.Epoch},
		"a later epoch":    {Subject: "x", Holder: "b", Epoch: held.Epoch + 1},
		"no such subject":  {Subject: "z", Holder: "b", Epoch: 1},
		"an expired lease": over,
	} {
		for call, do := range map[string]func(ctx context.Context, tx *store.Tx) error{
			"guard":   func(ctx context.Context, tx *store.Tx) error { return tx.Guard(ctx, f) },
			"release": func(ctx context.Context, tx *store.Tx) error { return tx.Release(ctx, f) },
			"renew": func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.Renew(ctx, f, ttl)
				return err
			},
		} {
			if err := tryUpdate(t, s, do); !errors.Is(err, fault.StaleController) {
				t.Errorf("%s with %s: got %v", call, name, err)
			}
		}
	}
	if err := guard(t, s, held); err != nil {
		t.Errorf("the refused calls hurt the holder: %v", err)
	}
}

func handoverWaitsForGuardedWrite(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s, other := open(t, dsn), open(t, dsn)
	f := acquire(t, s, "x", "a", ttl).Fence()

	guarded, finish := make(chan struct{}), make(chan struct{})
	written, handed := make(chan error, 1), make(chan error, 1)
	go func() {
		first := true
		written <- tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error {
			if err := tx.Guard(ctx, f); err != nil {
				return err
			}
			if first {
				first = false
				close(guarded)
			}
			<-finish
			_, err := sandboxes.add(ctx, tx, 1)
			return err
		})
	}()
	await(t, "the guard", guarded)
	seen := false
	go func() {
		handed <- tryUpdate(t, other, func(ctx context.Context, tx *store.Tx) error {
			if err := tx.Release(ctx, f); err != nil {
				return err
			}
			if _, err := tx.Acquire(ctx, "x", "b", ttl); err != nil {
				return err
			}
			// Whoever takes over sees all that was written before.
			_, err := sandboxes.read(ctx, tx, box(1))
			seen = err == nil
			return nil
		})
	}()
	stillWaiting(t, "the handover, although a guarded write is open", handed)
	close(finish)
	if err := errors.Join(await(t, "the write", written), await(t, "the handover", handed)); err != nil {
		t.Fatal(err)
	}
	if !seen {
		t.Error("the new holder does not see what the old one wrote")
	}
	if err := guard(t, s, f); !errors.Is(err, fault.StaleController) {
		t.Errorf("the old holder may still write: %v", err)
	}
}

func readsAfterGuardAreCurrent(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s, other := open(t, dsn), open(t, dsn)
	f := acquire(t, s, "x", "a", ttl).Fence()
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := sandboxes.add(ctx, tx, 1)
		return err
	})

	moved, finish := make(chan struct{}), make(chan struct{})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		once := true
		first <- tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error {
			if _, err := tx.Renew(ctx, f, ttl); err != nil {
				return err
			}
			row, err := sandboxes.read(ctx, tx, box(1))
			if err == nil {
				_, err = sandboxes.move(ctx, tx, row, sandbox.OnCharged)
			}
			if once {
				once = false
				close(moved)
			}
			<-finish
			return err
		})
	}()
	await(t, "the renewal", moved)
	var state sandbox.State
	go func() {
		second <- tryUpdate(t, other, func(ctx context.Context, tx *store.Tx) error {
			// An early read must not fix what later ones see.
			if _, err := sandboxes.read(ctx, tx, box(1)); err != nil {
				return err
			}
			if err := tx.Guard(ctx, f); err != nil {
				return err
			}
			row, err := sandboxes.read(ctx, tx, box(1))
			state = row.State
			return err
		})
	}()
	stillWaiting(t, "the guard, although the lease row is being changed", second)
	close(finish)
	if err := errors.Join(await(t, "the first", first), await(t, "the second", second)); err != nil {
		t.Fatal(err)
	}
	if state != sandbox.Starting {
		t.Errorf("read %q behind the guard, want what was committed before it: %q", state, sandbox.Starting)
	}
}

func oneAcquirerWins(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	stores := []*store.Store{open(t, dsn), open(t, dsn)}
	for _, subject := range []string{"new", "expired"} {
		acquire(t, stores[0], "expired", "z", -time.Second)
		won := 0
		for _, err := range together(8, func(i int) error {
			return tryUpdate(t, stores[i%2], func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.Acquire(ctx, subject, string(rune('a'+i)), ttl)
				return err
			})
		}) {
			switch {
			case err == nil:
				won++
			case !errors.Is(err, fault.LeaseHeld):
				t.Errorf("%s: %v", subject, err)
			}
		}
		if won != 1 {
			t.Errorf("%s: %d acquirers got the lease", subject, won)
		}
	}
}
