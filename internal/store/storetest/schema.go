package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
)

func reopen(t *testing.T, dsn string, migrate bool) error {
	t.Helper()
	s, err := store.Open(limited(t), store.Options{DSN: dsn, AutoMigrate: migrate})
	if err != nil {
		return err
	}
	return s.Close()
}

func migrationsTakeTurns(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	if err := errors.Join(together(6, func(int) error { return reopen(t, dsn, true) })...); err != nil {
		t.Fatal(err)
	}
	if err := reopen(t, dsn, false); err != nil {
		t.Errorf("after the migrations: %v", err)
	}
}

// migrationsCanRunTwice forgets that they ran, as a crash between a step and
// its record does: the databases commit a schema change at once.
func migrationsCanRunTwice(t *testing.T, fresh Fresh) {
	dsn := fresh(t)
	s := open(t, dsn)
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		if _, err := sandboxes.add(ctx, tx, 1); err != nil {
			return err
		}
		_, err1 := tx.Exec(ctx, `DELETE FROM schema_step`)
		_, err2 := tx.Exec(ctx, `DELETE FROM goose_db_version WHERE version_id > 0`)
		return errors.Join(err1, err2)
	})
	if err := reopen(t, dsn, true); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s, `SELECT COUNT(*) FROM sandbox`); n != 1 {
		t.Errorf("the second run lost rows: %d are left", n)
	}
}

func unknownSchemaIsRefused(t *testing.T, fresh Fresh) {
	if err := reopen(t, fresh(t), false); !errors.Is(err, fault.SchemaUnknown) {
		t.Errorf("an empty database without migration: got %v", err)
	}
	for name, change := range map[string]string{
		"an unknown step": `INSERT INTO schema_step (name, sum) VALUES ('9999_later.sql', 'x')`,
		"a changed step":  `UPDATE schema_step SET sum = 'x'`,
	} {
		dsn := fresh(t)
		s := open(t, dsn)
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Exec(ctx, change)
			return err
		})
		for _, migrate := range []bool{true, false} {
			if err := reopen(t, dsn, migrate); !errors.Is(err, fault.SchemaUnknown) {
				t.Errorf("%s, migrate %v: got %v", name, migrate, err)
			}
		}
	}
}
