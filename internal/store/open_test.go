package store_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/store"
)

// Roles that start together open a database that none of them has made yet.
func TestManyOpenANewDatabaseAtOnce(t *testing.T) {
	for i := range 10 {
		dsn := "sqlite:" + filepath.Join(t.TempDir(), fmt.Sprintf("new%d.db", i))
		var all sync.WaitGroup
		errs := make([]error, 6)
		for j := range errs {
			all.Go(func() {
				s, err := store.Open(t.Context(), store.Options{DSN: dsn, AutoMigrate: true})
				if err == nil {
					err = s.Close()
				}
				errs[j] = err
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
}
