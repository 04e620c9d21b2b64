package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
)

// submit adds the n-th sandbox under a submission and returns the answer.
func submit(t *testing.T, s *store.Store, sub store.Submission, n int, answer []byte) (got []byte, err error) {
	t.Helper()
	err = tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		got, err = tx.Once(ctx, sub, func() ([]byte, error) {
			_, err := sandboxes.add(ctx, tx, n)
			return answer, err
		})
		return err
	})
	return got, err
}

func onceKeepsTheAnswer(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	bytes := []byte{0, 0xff, '\'', '\\', 0xe4, 0xb8}
	sub := store.Submission{ID: "n1", Holder: "a", Fingerprint: []byte{1, 0, 0xff}}
	for i := range 2 {
		got, err := submit(t, s, sub, 1, bytes)
		if err != nil || string(got) != string(bytes) {
			t.Fatalf("call %d: got %x, %v", i+1, got, err)
		}
	}
	if n := count(t, s, `SELECT COUNT(*) FROM sandbox`); n != 1 {
		t.Errorf("a replay wrote again: %d rows", n)
	}
	other := sub
	other.Fingerprint = []byte{2}
	if _, err := submit(t, s, other, 2, nil); !errors.Is(err, fault.SubmissionReused) {
		t.Errorf("other content under the same id: got %v", err)
	}
	foreign := sub
	foreign.Holder = "b"
	if _, err := submit(t, s, foreign, 2, nil); err != nil {
		t.Errorf("the same id of another holder: %v", err)
	}
	// What failed leaves nothing: the same submission may succeed later.
	failing := store.Submission{ID: "n2", Holder: "a"}
	if _, err := submit(t, s, failing, 1, nil); !errors.Is(err, fault.Exists) {
		t.Errorf("a failing call: got %v", err)
	}
	if _, err := submit(t, s, failing, 3, nil); err != nil {
		t.Errorf("the same submission after a failure: %v", err)
	}
}

// Whoever forgets a failed try must not forget what another began anew
// meanwhile.
func onlyTheAnswerThatWasSeenIsForgotten(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	sub := store.Submission{ID: "n1", Holder: "a"}
	forget := func(answer string) {
		update(t, s, func(ctx context.Context, tx *store.Tx) error { return tx.Forget(ctx, "a", "n1", []byte(answer)) })
	}
	for n, answer := range []string{"first", "second"} {
		if got, err := submit(t, s, sub, n, []byte(answer)); err != nil || string(got) != answer {
			t.Fatalf("got %q, %v; want %q", got, err, answer)
		}
		if n == 0 {
			forget("first")
		}
	}
	forget("first") // late
	if got, err := submit(t, s, sub, 2, []byte("third")); err != nil || string(got) != "second" {
		t.Errorf("got %q, %v: the second answer was forgotten by who saw the first", got, err)
	}
}

func twinsGetOneAnswer(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	stores := []*store.Store{open(t, dsn), open(t, dsn)}
	sub := store.Submission{ID: "twin", Holder: "a", Fingerprint: []byte("f")}
	var ran atomic.Int64
	answers := make([]string, 12)
	errs := together(len(answers), func(i int) error {
		return tryUpdate(t, stores[i%2], func(ctx context.Context, tx *store.Tx) error {
			answer, err := tx.Once(ctx, sub, func() ([]byte, error) {
				n := int(ran.Add(1))
				_, err := sandboxes.add(ctx, tx, n)
				return fmt.Appendf(nil, "sandbox %d", n), err
			})
			answers[i] = string(answer)
			return err
		})
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if a != answers[0] {
			t.Errorf("twins got %q and %q", answers[0], a)
		}
	}
	if n := count(t, stores[0], `SELECT COUNT(*) FROM sandbox`); n != 1 {
		t.Errorf("twelve twins wrote %d rows", n)
	}
}

func submissionsAreForgotten(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	for i := range 5 {
		if _, err := submit(t, s, store.Submission{ID: fmt.Sprintf("n%d", i), Holder: "a"}, i, nil); err != nil {
			t.Fatal(err)
		}
	}
	// Three of them as old as they may become, and a bit.
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		old := tx.Now.Add(-store.SubmissionKept - time.Second).UnixMicro()
		_, err := tx.Exec(ctx, `UPDATE submission SET created_us = ? WHERE id IN (?, ?, ?)`, old, []byte("n0"), []byte("n1"), []byte("n2"))
		return err
	})
	for _, want := range []int64{2, 1, 0} {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			n, err := tx.ForgetSubmissions(ctx, 2)
			if err == nil && n != want {
				t.Errorf("forgot %d, want %d", n, want)
			}
			return err
		})
	}
	if n := count(t, s, `SELECT COUNT(*) FROM submission`); n != 2 {
		t.Errorf("%d are left, want the 2 young ones", n)
	}
}
