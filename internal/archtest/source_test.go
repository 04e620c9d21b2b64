package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	maxLines   = 600 // of a file: then it holds two subjects
	maxMethods = 5   // of an interface: then it describes an implementation
)

// vague names say nothing about what a package knows.
var vague = []string{"util", "utils", "common", "helper", "helpers", "types", "manager", "base", "misc", "models"}

func TestSource(t *testing.T) {
	const root = "../.."
	documented, all := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "node_modules" || path != root && strings.HasPrefix(name, ".") && name != ".." {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(f) {
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		if n := strings.Count(string(text), "\n"); n > maxLines {
			t.Errorf("%s has %d lines: split it by subject, at most %d", name, n, maxLines)
		}
		if slices.Contains(vague, f.Name.Name) {
			t.Errorf("%s: package %s says nothing: name it for what it knows", name, f.Name.Name)
		}
		if !strings.HasSuffix(f.Name.Name, "_test") {
			all[dir] = true
			documented[dir] = documented[dir] || f.Doc != nil
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.InterfaceType:
				if n.Methods.NumFields() > maxMethods {
					t.Errorf("%s: an interface of %d methods: split it by who calls, at most %d", fset.Position(n.Pos()), n.Methods.NumFields(), maxMethods)
				}
			case *ast.SelectorExpr:
				pkg, ok := n.X.(*ast.Ident)
				clock := ok && pkg.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker"}, n.Sel.Name)
				if clock && within(dir, rules) && !strings.HasSuffix(path, "_test.go") {
					t.Errorf("%s: time.%s in a package of rules: take the time as an argument", fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range all {
		if !documented[dir] {
			t.Errorf("%s has no package comment: say what it knows and what it promises", dir)
		}
	}
}
