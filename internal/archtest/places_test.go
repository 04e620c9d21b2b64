package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/platform/fail"
)

// placeForm is how a place where a test may break the program is called.
var placeForm = regexp.MustCompile(`^[a-z]+(\.[a-z][a-z0-9_]*)+$`)

// TestPlacesAreListed holds that a place in the code can be armed, and that one
// that can be armed is met: otherwise a crash test passes without its crash.
func TestPlacesAreListed(t *testing.T) {
	const root = "../.."
	met := map[string]bool{}
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && slices.Contains([]string{"Point", "point", "step"}, called(call)) {
					for _, name := range literals(call.Args) {
						met[name] = met[name] || placeForm.MatchString(name)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(met) == 0 {
		t.Fatal("no place was found: how are they called now?")
	}
	for name := range met {
		if !slices.Contains(fail.Places(), name) {
			t.Errorf("%q is a place in the code, and cannot be armed: add it to internal/platform/fail/places.go", name)
		}
	}
	for _, name := range fail.Places() {
		if !met[name] {
			t.Errorf("%q can be armed, and is no place in the code: take it out of internal/platform/fail/places.go", name)
		}
	}
}

// called is the last word of what is called.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func literals(args []ast.Expr) []string {
	var all []string
	for _, a := range args {
		if l, ok := a.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil {
				all = append(all, s)
			}
		}
	}
	return all
}
