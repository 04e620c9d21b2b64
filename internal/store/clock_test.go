package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/test/service"
)

// The clock counts on through the hour that a server in Berlin has twice each
// autumn.
func TestClockKnowsNoSummerTime(t *testing.T) {
	t.Setenv("TZ", "Europe/Berlin")
	server := service.OwnMariaDB(t)
	end := time.Date(2025, 10, 26, 1, 0, 0, 0, time.UTC) // of summer time
	for _, at := range []time.Time{end.Add(-90 * time.Minute), end.Add(-30 * time.Minute), end.Add(30 * time.Minute), end.Add(90 * time.Minute)} {
		s := open(t, fmt.Sprintf("%s?timestamp=%d", server.DSN, at.Unix()))
		var now time.Time
		if err := s.View(t.Context(), func(tx *store.Tx) error {
			now = tx.Now
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !now.Equal(at) {
			t.Errorf("at %s the clock says %s", at, now.UTC())
		}
	}
}
