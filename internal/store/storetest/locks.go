package storetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
)

// hold takes a lock and keeps it until the returned function is called, which
// reports what WithLock answered.
func hold(t *testing.T, s *store.Store, name string) (let func() error) {
	t.Helper()
	held, free, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ctx := limited(t)
	go func() {
		_, err := s.WithLock(ctx, name, 0, func(context.Context) error {
			close(held)
			<-free
			return nil
		})
		done <- err
	}()
	select {
	case <-held:
	case err := <-done:
		t.Fatalf("lock %s was not had: %v", name, err)
	case <-ctx.Done():
		t.Fatalf("lock %s: %v", name, ctx.Err())
	}
	return func() error {
		close(free)
		return await(t, "the end of the lock", done)
	}
}

// try takes a lock for a moment and reports whether it was free.
func try(t *testing.T, s *store.Store, name string, wait time.Duration) bool {
	t.Helper()
	ran := false
	locked, err := s.WithLock(limited(t), name, wait, func(context.Context) error {
		ran = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if ran != locked {
		t.Errorf("lock %s: locked is %v, but its function ran: %v", name, locked, ran)
	}
	return locked
}

func locksExclude(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s, other := open(t, dsn), open(t, dsn)
	let := hold(t, s, "l")
	if try(t, other, "l", 0) || try(t, s, "l", 0) {
		t.Error("two hold one lock")
	}
	if !try(t, other, "m", 0) {
		t.Error("another name is held too")
	}
	got := make(chan bool, 1)
	go func() { got <- try(t, other, "l", bound) }()
	stillWaiting(t, "the lock, although another holds it", got)
	if err := let(); err != nil {
		t.Fatal(err)
	}
	if !await(t, "the lock", got) {
		t.Error("who waited did not get the lock when it was free")
	}
	if !try(t, s, "l", 0) {
		t.Error("the lock was not let go")
	}
}

func locksEndWithTheirCall(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s, other := open(t, dsn), open(t, dsn)
	t.Run("failed", func(t *testing.T) {
		if locked, err := s.WithLock(limited(t), "l", 0, func(context.Context) error { return errPlanned }); !locked || !errors.Is(err, errPlanned) {
			t.Errorf("got %v, %v", locked, err)
		}
		if !try(t, other, "l", 0) {
			t.Error("the lock outlived a failed call")
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(limited(t))
		locked, err := s.WithLock(ctx, "l", 0, func(ctx context.Context) error {
			cancel()
			return ctx.Err()
		})
		if !locked || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, %v", locked, err)
		}
		// The server may need a moment to see that a connection is gone.
		if !try(t, other, "l", bound) {
			t.Error("the lock outlived a cancelled call")
		}
	})
	t.Run("cancelled while it waits", func(t *testing.T) {
		let := hold(t, s, "l")
		ctx, cancel := context.WithCancel(limited(t))
		done := make(chan error, 1)
		go func() {
			_, err := other.WithLock(ctx, "l", bound, func(context.Context) error { return errPlanned })
			done <- err
		}()
		stillWaiting(t, "the lock", done)
		cancel()
		if err := await(t, "the cancelled wait", done); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if err := let(); err != nil {
			t.Fatal(err)
		}
		if !try(t, s, "l", bound) {
			t.Error("a cancelled wait left the lock held")
		}
	})
	t.Run("panicked", func(t *testing.T) {
		func() {
			defer func() { _ = recover() }()
			_, _ = s.WithLock(limited(t), "l", 0, func(context.Context) error { panic("planned") })
		}()
		if !try(t, other, "l", bound) {
			t.Error("the lock outlived a panic")
		}
	})
}

func lockNamesAreKeptApart(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s, other := open(t, dsn), open(t, dsn)
	long := strings.Repeat("n", 100)
	for _, c := range []struct{ name, other string }{
		{long + "a", long + "b"},
		{"a/b", "a_b"},
		{"../../x", "x"},
		{"k:v", "k v"},
	} {
		let := hold(t, s, c.name)
		if try(t, other, c.name, 0) {
			t.Errorf("two hold %q", c.name)
		}
		if !try(t, other, c.other, 0) {
			t.Errorf("%q holds %q too", c.name, c.other)
		}
		if err := let(); err != nil {
			t.Fatal(err)
		}
	}
}
