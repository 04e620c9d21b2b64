package store_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
)

// Writers that wait for each other must not take the connections from those
// that read, and must leave with their context.
func TestReadersPassByWaitingWriters(t *testing.T) {
	s := open(t, sqlite(t))
	writes, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.Update(t.Context(), func(*store.Tx) error {
			close(writes)
			<-release
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	<-writes
	begun := make(chan struct{}, 40)
	for range cap(begun) {
		all.Go(func() {
			begun <- struct{}{}
			if err := s.Update(t.Context(), func(*store.Tx) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	for range 20 { // by then at least the connections' worth of them wait
		bounded, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := s.View(bounded, func(*store.Tx) error { return nil }); err != nil {
			t.Error("a reader waited for writers:", err)
		}
		cancel()
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Update(gone, func(*store.Tx) error { return nil }); err == nil {
		t.Error("a writer whose caller has gone waited and wrote")
	}
	close(release)
	all.Wait()
}
