package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/test/service"
)

// Locks take a bounded part of the server's connections; who comes later
// waits for one.
func TestLocksTakeFewConnections(t *testing.T) {
	s := open(t, service.OwnMariaDB(t).DSN)
	const callers, most = 60, 40 // connections: of all locks, and those of transactions
	release, inside, ended := make(chan struct{}), make(chan struct{}, callers), make(chan error, callers)
	for i := range callers {
		go func() {
			locked, err := s.WithLock(t.Context(), fmt.Sprintf("lock-%d", i), time.Minute, func(context.Context) error {
				inside <- struct{}{}
				<-release
				return nil
			})
			if err == nil && !locked {
				err = fmt.Errorf("lock-%d was not taken", i)
			}
			ended <- err
		}()
	}
	for range 20 {
		<-inside
	}
	var n int64
	eventually(t, "the callers that can have taken their locks", func() bool {
		before := n
		if err := s.View(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Row(t.Context(), `SELECT COUNT(*) FROM information_schema.processlist`, nil, &n)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n == before || n > most
	})
	close(release)
	for range callers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n > most {
		t.Errorf("%d connections for %d locks, want %d at most", n, callers, most)
	}
}
