package store_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/paddock-dev/paddock/internal/fsm/fsmtest"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/storetest"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/test/service"
)

func TestSQLite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (*store.Store, string) {
		return opened(t, "sqlite:"+filepath.Join(t.TempDir(), "p.db"))
	})
}

func TestMariaDB(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (*store.Store, string) { return opened(t, service.MariaDB(t)) })
}

func opened(t *testing.T, dsn string) (*store.Store, string) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DSN: dsn, AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, dsn
}

func TestSchemasListTheStates(t *testing.T) {
	for _, dialect := range []string{"sqlite", "mysql"} {
		schema := store.Schema(dialect)
		fsmtest.Check(t, template.Jobs, schema, "job")
		fsmtest.Check(t, template.Artifacts, schema, "artifact")
		fsmtest.Check(t, template.Definitions, schema, "definition")
		fsmtest.Check(t, template.Replicas, schema, "replica")
		fsmtest.Check(t, sandbox.Machine, schema, "sandbox")
	}
}

// Both databases have the same tables with the same columns.
func TestSchemasAgree(t *testing.T) {
	words := regexp.MustCompile(`(?m)^(CREATE TABLE IF NOT EXISTS \w+|\t[a-z]\w* )`)
	a, b := words.FindAllString(store.Schema("sqlite"), -1), words.FindAllString(store.Schema("mysql"), -1)
	if !slices.Equal(a, b) {
		t.Errorf("the schemas differ:\n%q\n%q", a, b)
	}
}
