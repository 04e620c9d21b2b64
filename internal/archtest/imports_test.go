// Package archtest holds the rules of the house that a program can check. Each
// failure says what to write instead.
package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/paddock-dev/paddock/"

// ranks is the drawing in ARCHITECTURE.md: a package may import packages of a
// lower rank only, so never one of its own line.
var ranks = [][]string{
	{"internal/fault", "internal/controlpb", "internal/hostpb", "internal/envdpb"},
	{"internal/fsm", "internal/lease", "internal/host"},
	{"internal/template"}, // layer 1's rules
	{"internal/sandbox"},  // layer 2's rules; merges with a template
	{"internal/scheduler", "internal/workspace"},
	{"internal/platform"},
	{"internal/store", "internal/artifact", "internal/rootfs", "internal/progress", "internal/cubeapi", "internal/extscore"},
	{"internal/templatecenter", "internal/master", "internal/cubelet", "internal/proxy", "internal/core", "internal/controller", "internal/guest"},
	{"internal/e2b", "internal/controlgrpc", "internal/workspacehttp"},
	{"cmd"},
	{"internal/scenario", "internal/archtest", "test"},
	{"bench"},
}

// rules are the packages that decide and do nothing else.
var rules = []string{"internal/fault", "internal/fsm", "internal/lease", "internal/host", "internal/template", "internal/sandbox", "internal/scheduler", "internal/workspace"}

// guarded says who may import what has consequences (who), or who may not
// (not), and why.
var guarded = []struct {
	path, why string
	who, not  []string
}{
	{path: "database/sql", why: "statements live in store and its *db packages", who: []string{"internal/store"}},
	{path: "github.com/go-sql-driver/mysql", why: "what differs between databases is a field of store's dialect", who: []string{"internal/store"}},
	{path: "modernc.org/sqlite", why: "what differs between databases is a field of store's dialect", who: []string{"internal/store"}},
	{path: "os/exec", why: "a child process is a runtime or a tool of one", who: []string{"internal/cubelet", "internal/archtest", "internal/guest", "cmd/paddock", "test", "bench"}},
	{path: "testing", why: "test support is imported by tests", who: []string{"internal/scenario", "internal/fsm/fsmtest", "internal/store/storetest", "internal/artifact/artifacttest", "internal/platform/openapi/openapitest", "internal/cubelet/runtime/runtimetest", "test"}},
	{path: "log/slog", why: "rules return what happened; the caller logs it", not: rules},
	{path: "net/http", why: "rules and transactions do not know their transport", not: append([]string{"internal/store", "internal/core"}, rules...)},
	{path: "google.golang.org/grpc", why: "rules and transactions do not know their transport", not: append([]string{"internal/store", "internal/core"}, rules...)},
}

func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		check(t, strings.TrimPrefix(p.ImportPath, module), p.Imports)
	}
}

func check(t *testing.T, from string, imports []string) {
	at := rankOf(from)
	if at < 0 {
		t.Errorf("%s has no rank: give it one here and in ARCHITECTURE.md", from)
		return
	}
	for _, imp := range imports {
		for _, g := range guarded {
			if under(imp, g.path) && (g.who != nil && !within(from, g.who) || within(from, g.not)) {
				t.Errorf("%s imports %s: %s", from, imp, g.why)
			}
		}
		to, ours := strings.CutPrefix(imp, module)
		if !ours || slices.ContainsFunc(ranks[at], func(r string) bool { return under(from, r) && under(to, r) }) {
			continue
		}
		switch rank := rankOf(to); {
		case rank > at:
			t.Errorf("%s imports %s, which is above it: declare what you need as an interface here", from, to)
		case rank == at:
			t.Errorf("%s imports %s, its equal: let the caller pass it, or move what both need down", from, to)
		}
	}
}

func rankOf(path string) int {
	return slices.IndexFunc(ranks, func(rank []string) bool { return within(path, rank) })
}

func within(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return under(path, r) })
}

func under(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }
