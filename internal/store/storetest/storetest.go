// Package storetest is what a database must do to carry this system: one suite
// that runs on each of them.
//
// It knows no database and opens none by itself: the caller hands it empty
// ones. It must never test what only one of them can do.
package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
)

// Fresh returns the DSN of an empty database, which goes with the test.
type Fresh func(tb testing.TB) (dsn string)

// Run runs the whole suite on databases made by fresh.
func Run(t *testing.T, fresh Fresh) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Fresh)
	}{
		{"MoveFollowsTheMachine", moveFollowsTheMachine},
		{"MoveComparesWhatWasRead", moveComparesWhatWasRead},
		{"OneOfManyMovesWins", oneOfManyMovesWins},
		{"NamesAreBytes", namesAreBytes},
		{"IDsAreExact", idsAreExact},
		{"RowsComeBackWhole", rowsComeBackWhole},
		{"TouchesKeepASandboxAlive", touchesKeepASandboxAlive},
		{"ProgressOnlyGrows", progressOnlyGrows},
		{"UniqueRowsAreRefused", uniqueRowsAreRefused},
		{"SpecsAreHeldByActiveJobs", specsAreHeldByActiveJobs},
		{"ListsAreInOrder", listsAreInOrder},
		{"ReferencesAreCounted", referencesAreCounted},
		{"RemovedRowsAreGone", removedRowsAreGone},
		{"PinsHoldATemplate", pinsHoldATemplate},
		{"HostsAreHeard", hostsAreHeard},
		{"ReportsGoForward", reportsGoForward},
		{"WishesAreKept", wishesAreKept},
		{"SandboxesOfAHostAreCounted", sandboxesOfAHostAreCounted},
		{"TransactionsAreWhole", transactionsAreWhole},
		{"ViewsDoNotWait", viewsDoNotWait},
		{"ClockIsReadOnce", clockIsReadOnce},
		{"EpochsOnlyGrow", epochsOnlyGrow},
		{"RenewTwiceInOneTick", renewTwiceInOneTick},
		{"StaleFencesAreRefused", staleFencesAreRefused},
		{"HandoverWaitsForGuardedWrite", handoverWaitsForGuardedWrite},
		{"ReadsAfterGuardAreCurrent", readsAfterGuardAreCurrent},
		{"OneAcquirerWins", oneAcquirerWins},
		{"OnceKeepsTheAnswer", onceKeepsTheAnswer},
		{"TwinsGetOneAnswer", twinsGetOneAnswer},
		{"OnlyTheAnswerThatWasSeenIsForgotten", onlyTheAnswerThatWasSeenIsForgotten},
		{"SubmissionsAreForgotten", submissionsAreForgotten},
		{"OutboxFollowsTheCommit", outboxFollowsTheCommit},
		{"OutboxSurvivesItsDeliverer", outboxSurvivesItsDeliverer},
		{"OutboxTriesAgainLater", outboxTriesAgainLater},
		{"OutboxKeepsOrderPerKey", outboxKeepsOrderPerKey},
		{"OutboxKeepsTheDead", outboxKeepsTheDead},
		{"OutboxTakesLongKeys", outboxTakesLongKeys},
		{"ClaimsEndOnTime", claimsEndOnTime},
		{"TheQueueReadsNoMore", theQueueReadsNoMore},
		{"OldRowsAreForgotten", oldRowsAreForgotten},
		{"HostsAreForgotten", hostsAreForgotten},
		{"DecisionsGoWithTheirSandbox", decisionsGoWithTheirSandbox},
		{"CreatesAreListedInTheirOrder", createsAreListedInTheirOrder},
		{"ExpiriesAreFound", expiriesAreFound},
		{"DeliverersShareTheWork", deliverersShareTheWork},
		{"LocksExclude", locksExclude},
		{"LocksEndWithTheirCall", locksEndWithTheirCall},
		{"LockNamesAreKeptApart", lockNamesAreKeptApart},
		{"MigrationsTakeTurns", migrationsTakeTurns},
		{"MigrationsCanRunTwice", migrationsCanRunTwice},
		{"UnknownSchemaIsRefused", unknownSchemaIsRefused},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, fresh) })
	}
}

// bound is how long anything may take, on a loaded machine.
const bound = 60 * time.Second

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, dsn string) *store.Store {
	t.Helper()
	s, err := store.Open(limited(t), store.Options{DSN: dsn, AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// update fails t if fn or its commit does.
func update(t *testing.T, s *store.Store, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := tryUpdate(t, s, fn); err != nil {
		t.Fatal(err)
	}
}

func tryUpdate(t *testing.T, s *store.Store, fn func(ctx context.Context, tx *store.Tx) error) error {
	t.Helper()
	ctx := limited(t)
	return s.Update(ctx, func(tx *store.Tx) error { return fn(ctx, tx) })
}

func view(t *testing.T, s *store.Store, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	ctx := limited(t)
	if err := s.View(ctx, func(tx *store.Tx) error { return fn(ctx, tx) }); err != nil {
		t.Fatal(err)
	}
}

// count returns the one number of a query.
func count(t *testing.T, s *store.Store, query string, args ...any) (n int64) {
	t.Helper()
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Row(ctx, query, args, &n)
		return err
	})
	return n
}

// await fails t unless ch is closed or sends within the bound.
func await[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(bound):
		t.Fatalf("not within %s: %s", bound, what)
	}
	return v
}

// stillWaiting fails t if ch sends within a moment. It can pass falsely on a
// slow machine, never fail falsely.
func stillWaiting[T any](t *testing.T, what string, ch <-chan T) {
	t.Helper()
	select {
	case <-ch:
		t.Fatalf("did not wait: %s", what)
	case <-time.After(150 * time.Millisecond):
	}
}

// together runs fn n times at once and returns their errors.
func together(n int, fn func(i int) error) []error {
	errs := make([]error, n)
	begin := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-begin
			errs[i] = fn(i)
		})
	}
	close(begin)
	all.Wait()
	return errs
}
