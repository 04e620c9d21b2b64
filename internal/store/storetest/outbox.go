package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
)

const topic = "topic"

var errPlanned = errors.New("planned failure")

func enqueue(t *testing.T, s *store.Store, key string, payloads ...string) {
	t.Helper()
	for _, p := range payloads {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			return tx.Enqueue(ctx, store.Message{Topic: topic, Key: key, Payload: []byte(p), Trace: "trace-" + p}, 0)
		})
	}
}

// deliver hands messages to handle and returns the payloads that it met.
func deliver(t *testing.T, s *store.Store, batch int, handle func(store.Message) error) (met []string) {
	t.Helper()
	_, err := s.Deliver(limited(t), topic, batch, func(_ context.Context, m store.Message) error {
		met = append(met, string(m.Payload))
		return handle(m)
	})
	if err != nil {
		t.Fatal(err)
	}
	return met
}

func ok(store.Message) error   { return nil }
func fail(store.Message) error { return errPlanned }

// timePasses makes everything due and every claim expired.
func timePasses(t *testing.T, s *store.Store) {
	t.Helper()
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox SET due_us = 0, claimed_until_us = 0`)
		return err
	})
}

func wantMet(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: delivered %v, want %v", what, got, want)
	}
}

func wantLeft(t *testing.T, s *store.Store, waiting, dead int64) {
	t.Helper()
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		w, d, err := tx.OutboxLen(ctx)
		if err == nil && (w != waiting || d != dead) {
			t.Errorf("%d messages wait and %d are dead, want %d and %d", w, d, waiting, dead)
		}
		return err
	})
}

func outboxFollowsTheCommit(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	err := tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.Enqueue(ctx, store.Message{Topic: topic, Payload: []byte("undone")}, 0), errPlanned)
	})
	if !errors.Is(err, errPlanned) {
		t.Fatal(err)
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.Enqueue(ctx, store.Message{Topic: topic, Key: "late", Payload: []byte("late")}, time.Hour),
			tx.Enqueue(ctx, store.Message{Topic: "other", Key: "k", Payload: []byte("other")}, 0),
			tx.Enqueue(ctx, store.Message{Topic: topic, Key: "k", Payload: []byte{0, 0xff}, Trace: "abc"}, 0))
	})
	wantMet(t, "a commit", deliver(t, s, 10, func(m store.Message) error {
		if m.Key != "k" || m.Trace != "abc" || m.Topic != topic || m.ID == "" {
			t.Errorf("the message lost a part: %+v", m)
		}
		return nil
	}), "\x00\xff")
	wantLeft(t, s, 2, 0)
}

// outboxSurvivesItsDeliverer leaves a delivery in the middle, as a crash does.
func outboxSurvivesItsDeliverer(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s, other := open(t, dsn), open(t, dsn)
	enqueue(t, s, "k", "a")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the deliverer lives")
			}
		}()
		deliver(t, s, 1, func(store.Message) error { panic("crash between claim and done") })
	}()
	wantMet(t, "while the claim stands", deliver(t, other, 1, ok))
	timePasses(t, s)
	wantMet(t, "after the claim", deliver(t, other, 1, func(m store.Message) error {
		if m.Attempts < 1 {
			t.Errorf("the crash was not counted: %d attempts", m.Attempts)
		}
		return nil
	}), "a")
	wantMet(t, "after it is done", deliver(t, other, 1, ok))
	wantLeft(t, s, 0, 0)
}

func outboxTriesAgainLater(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	enqueue(t, s, "k", "a")
	pauses := []int64{}
	for i := range 4 {
		wantMet(t, fmt.Sprintf("try %d", i+1), deliver(t, s, 1, fail), "a")
		wantMet(t, "right after a failure", deliver(t, s, 1, ok))
		var pause int64
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			var due int64
			_, err := tx.Row(ctx, `SELECT due_us FROM outbox`, nil, &due)
			pause = due - tx.Now.UnixMicro()
			return err
		})
		pauses = append(pauses, pause)
		timePasses(t, s)
	}
	// Each was read a moment after it began; 10 % is more than that moment.
	if pauses[3] < 2*pauses[1] {
		t.Errorf("pauses of %v microseconds do not grow", pauses)
	}
	wantMet(t, "at last", deliver(t, s, 1, func(m store.Message) error {
		if m.Error != errPlanned.Error() {
			t.Errorf("the last error is %q", m.Error)
		}
		return nil
	}), "a")
}

func outboxKeepsOrderPerKey(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	enqueue(t, s, "k", "k1", "k2", "k3")
	enqueue(t, s, "l", "l1")
	// The first of k fails: what follows it waits, what has another key does not.
	met := deliver(t, s, 10, func(m store.Message) error {
		if string(m.Payload) == "k1" {
			return errPlanned
		}
		return nil
	})
	// On a loaded machine the pause of k1 may be over before the round is.
	wantMet(t, "a failing head", slices.Compact(slices.Sorted(slices.Values(met))), "k1", "l1")
	timePasses(t, s)
	wantMet(t, "when the head passes", deliver(t, s, 10, ok), "k1", "k2", "k3")
	// In one transaction the order is that of the calls.
	var want []string
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		for want = nil; len(want) < 8; {
			want = append(want, fmt.Sprint(len(want)))
			if err := tx.Enqueue(ctx, store.Message{Topic: topic, Key: "k", Payload: []byte(want[len(want)-1])}, 0); err != nil {
				return err
			}
		}
		return nil
	})
	wantMet(t, "of one transaction", deliver(t, s, 10, ok), want...)
}

func outboxKeepsTheDead(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	enqueue(t, s, "k", "poison", "next")
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox SET attempts = 199 WHERE payload = ?`, []byte("poison"))
		return err
	})
	wantMet(t, "the last try", deliver(t, s, 10, func(m store.Message) error {
		if string(m.Payload) == "poison" {
			return errPlanned
		}
		return nil
	}), "poison", "next")
	timePasses(t, s)
	wantMet(t, "after the last try", deliver(t, s, 10, ok))
	wantLeft(t, s, 0, 1)
	if n := count(t, s, `SELECT COUNT(*) FROM outbox WHERE dead = 1 AND last_error = ?`, []byte(errPlanned.Error())); n != 1 {
		t.Error("the dead message does not say why")
	}
}

func deliverersShareTheWork(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	stores := []*store.Store{open(t, dsn), open(t, dsn), open(t, dsn)}
	const keys, each = 5, 6
	for i := range each {
		for k := range keys {
			enqueue(t, stores[0], fmt.Sprint(k), fmt.Sprint(k, "/", i))
		}
	}
	var mu sync.Mutex
	working, done := map[string]bool{}, map[string]int{}
	handle := func(_ context.Context, m store.Message) error {
		mu.Lock()
		if working[m.Key] {
			t.Errorf("two deliver key %s at once", m.Key)
		}
		if want := fmt.Sprint(m.Key, "/", done[m.Key]); string(m.Payload) != want {
			t.Errorf("met %s, want %s", m.Payload, want)
		}
		working[m.Key] = true
		mu.Unlock()
		// Room for another to come in between, if the store let it.
		<-time.After(2 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		working[m.Key] = false
		done[m.Key]++
		return nil
	}
	left := func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, d := range done {
			n += d
		}
		return n < keys*each
	}
	ctx := limited(t)
	if err := errors.Join(together(len(stores), func(i int) error {
		for left() && ctx.Err() == nil {
			if _, err := stores[i].Deliver(ctx, topic, 4, handle); err != nil {
				return err
			}
		}
		return ctx.Err()
	})...); err != nil {
		t.Fatal(err)
	}
	wantLeft(t, stores[0], 0, 0)
}

// outboxTakesLongKeys: a key may name a sandbox and a host, whose id has up to
// 128 characters.
func outboxTakesLongKeys(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	key := "i01a22b311a7edc2ba933c44b@" + strings.Repeat("h", 128)
	trace := strings.Repeat("t", 4096)
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		return tx.Enqueue(ctx, store.Message{Topic: topic, Key: key, Payload: []byte("long"), Trace: trace}, 0)
	})
	wantMet(t, "a long key", deliver(t, s, 1, func(m store.Message) error {
		if m.Key != key || m.Trace != trace {
			t.Errorf("the message came back with a key of %d and a trace of %d bytes", len(m.Key), len(m.Trace))
		}
		return nil
	}), "long")
}
