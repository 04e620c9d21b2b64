package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
)

// TestAFullDiskIsNoOutage: the database is up, but it has no room.
func TestAFullDiskIsNoOutage(t *testing.T) {
	s := open(t, sqlite(t))
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		// As small as it can be: what it is now.
		for _, q := range []string{"CREATE TABLE fill (b BLOB)", "PRAGMA max_page_count = 1", "INSERT INTO fill VALUES (zeroblob(4000000))"} {
			if _, err := tx.Exec(t.Context(), q); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, fault.DiskFull) || !strings.Contains(fault.DetailOf(err).Remedy, "database") {
		t.Errorf("%+v", fault.DetailOf(err))
	}
}
