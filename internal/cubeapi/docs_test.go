package cubeapi_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/api.md names every path that there is, and none that there is not.
func TestTheReferenceNamesEveryPath(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code []byte
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		code = append(code, text...)
	}
	doc, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\tPath\w+\s+= "([^"]+)"`).FindAllStringSubmatch(string(code), -1) {
		paths[m[1]] = true
		if !regexp.MustCompile(`(GET|POST|PUT|DELETE) ` + regexp.QuoteMeta(m[1]) + "[`?]").Match(doc) {
			t.Errorf("docs/api.md has no call of %s", m[1])
		}
	}
	if len(paths) < 20 {
		t.Fatalf("only %d paths were found in the code", len(paths))
	}
	for _, m := range regexp.MustCompile("`(?:GET|POST|PUT|DELETE) (/[^`?]+)").FindAllStringSubmatch(string(doc), -1) {
		if p := strings.TrimSpace(m[1]); !paths[p] {
			t.Errorf("docs/api.md has %s, which is no path", p)
		}
	}
}
