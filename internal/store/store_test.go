package store_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fsm/fsmtest"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/storetest"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/test/service"
)

func sqlite(tb testing.TB) string {
	return "sqlite:" + filepath.Join(tb.TempDir(), "paddock.db")
}

var databases = []struct {
	name  string
	fresh storetest.Fresh
}{
	{"SQLite", sqlite},
	{"MariaDB", service.MariaDB},
}

func TestStore(t *testing.T) {
	for _, db := range databases {
		t.Run(db.name, func(t *testing.T) { storetest.Run(t, db.fresh) })
	}
}

func TestSchemaListsTheStates(t *testing.T) {
	for _, dialect := range []string{"sqlite", "mysql"} {
		schema := store.Schema(dialect)
		fsmtest.Check(t, template.Jobs, schema, "job")
		fsmtest.Check(t, template.Definitions, schema, "definition")
		fsmtest.Check(t, template.Artifacts, schema, "artifact")
		fsmtest.Check(t, template.Replicas, schema, "replica")
		fsmtest.Check(t, sandbox.Machine, schema, "sandbox")
	}
}

// columns is what each database says about its own schema: table, column, and
// whether it may be null.
var columns = map[string]string{
	"sqlite": `SELECT m.name, c.name, c."notnull" FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%'`,
	"mysql":  `SELECT table_name, column_name, is_nullable = 'NO' FROM information_schema.columns WHERE table_schema = DATABASE()`,
}

func TestSchemasAgree(t *testing.T) {
	var schemas [2][]string
	for i, db := range databases {
		s := open(t, db.fresh(t))
		err := s.View(t.Context(), func(tx *store.Tx) (err error) {
			schemas[i], err = store.Collect(t.Context(), tx, func(r store.Scanner) (string, error) {
				var table, column string
				var notNull bool
				err := r.Scan(&table, &column, &notNull)
				return table + "." + column + map[bool]string{true: " not null", false: ""}[notNull], err
			}, columns[s.Dialect()])
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		// goose keeps its own table, in two forms.
		schemas[i] = slices.DeleteFunc(schemas[i], func(c string) bool { return strings.HasPrefix(c, "goose_") })
		slices.Sort(schemas[i])
	}
	if len(schemas[0]) < 50 {
		t.Fatalf("SQLite names %d columns only", len(schemas[0]))
	}
	if !slices.Equal(schemas[0], schemas[1]) {
		t.Errorf("the schemas differ\nSQLite:  %v\nMariaDB: %v", schemas[0], schemas[1])
	}
}

func open(tb testing.TB, dsn string) *store.Store {
	tb.Helper()
	s, err := store.Open(context.Background(), store.Options{DSN: dsn, AutoMigrate: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}
