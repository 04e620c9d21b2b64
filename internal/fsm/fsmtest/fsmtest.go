// Package fsmtest checks what is derived from a machine's table: the diagram
// in docs/machines and the CHECK lists of the schema.
package fsmtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fsm"
)

// Diagram fails t if the Markdown file at path does not show m as it stands.
// With UPDATE=1 in the environment it writes the file instead.
func Diagram[S, E ~string, F any](t *testing.T, m *fsm.Machine[S, E, F], path string) {
	t.Helper()
	want := "# The life of a " + strings.ReplaceAll(m.Name(), "_", " ") + "\n\nPrinted from the table in the code; do not edit. `UPDATE=1 go test ./...` writes it anew.\n\n```mermaid\n" + m.Mermaid() + "```\n"
	if os.Getenv("UPDATE") == "1" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%s: %v: run UPDATE=1 go test", path, err)
	}
	if string(got) != want {
		t.Errorf("%s does not show the %s machine as it stands: run UPDATE=1 go test", path, m.Name())
	}
}

// Check fails t if the CHECK list of table in schema (all migrations of one
// dialect, joined) does not name exactly m's states, in its column `state`.
func Check[S, E ~string, F any](t *testing.T, m *fsm.Machine[S, E, F], schema, table string) {
	t.Helper()
	// A later migration may have replaced the constraint: the last one counts.
	lists := regexp.MustCompile(`(?i)CONSTRAINT `+table+`_state_valid CHECK \(state IN \(([^)]*)\)\)`).FindAllStringSubmatch(schema, -1)
	if lists == nil {
		t.Fatalf("no CONSTRAINT %s_state_valid CHECK (state IN (...)) in the schema", table)
	}
	list := lists[len(lists)-1]
	var got []string
	for _, word := range strings.Split(list[1], ",") {
		got = append(got, strings.Trim(strings.TrimSpace(word), "'"))
	}
	var want []string
	for _, s := range m.States() {
		want = append(want, string(s))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("table %s allows %v, the machine has %v", table, got, want)
	}
}

// Walk calls try for every pair of state and event with the state that the
// table leads to, or ok=false where the table refuses.
func Walk[S, E ~string, F any](m *fsm.Machine[S, E, F], facts F, try func(from S, on E, to S, ok bool)) {
	for _, s := range m.States() {
		for _, e := range m.Events() {
			to, err := m.Step(s, e, facts)
			try(s, e, to, err == nil)
		}
	}
}
