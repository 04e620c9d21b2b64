package store_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

// What changed is told once it is true, and not before.
func TestMovesAreLoggedAfterTheCommit(t *testing.T) {
	var log bytes.Buffer
	s, err := store.Open(t.Context(), store.Options{DSN: sqlite(t), AutoMigrate: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	planned := errors.New("planned")
	move := func(ctx context.Context, id sandbox.ID, fail error) error {
		return s.Update(ctx, func(tx *store.Tx) error {
			row, err := sandboxdb.AddSandbox(ctx, tx, sandbox.Sandbox{ID: id})
			if err == nil {
				_, err = sandboxdb.MoveSandbox(ctx, tx, row, sandbox.OnEndAsked)
			}
			return errors.Join(err, fail)
		})
	}
	if err := move(t.Context(), "i1", planned); !errors.Is(err, planned) || strings.Contains(log.String(), "state changed") {
		t.Errorf("undone: %v, logged %s", err, &log)
	}
	if err := move(t.Context(), "i2", nil); err != nil {
		t.Fatal(err)
	}
	if want := `msg="state changed" kind=sandbox id=i2 event=end_asked from=allocating to=terminating`; strings.Count(log.String(), want) != 1 {
		t.Errorf("logged %s", &log)
	}
}
