package scheduler_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/scheduler"
)

// The guide's examples are rules, and it names every plugin and every key.
func TestTheGuideIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../docs/guides/scheduling.md")
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	for _, m := range examples {
		said.WriteString(m[1])
		if _, warnings, err := scheduler.ParseRules([]byte(m[1])); err != nil || len(warnings) > 0 {
			t.Errorf("%v %v in\n%s", err, warnings, m[1])
		}
	}
	if len(examples) < 10 {
		t.Fatalf("only %d examples were found", len(examples))
	}
	for _, name := range scheduler.Names() {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("the guide does not name %s", name)
		}
	}
	whole, err := rules(t, whole).YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ *-? *([a-z][a-z_]+):`).FindAllStringSubmatch(string(whole), -1) {
		data := []string{"cubebox", "large", "gold", "tier"}
		if !slices.Contains(data, m[1]) && !regexp.MustCompile(`\b`+m[1]+`\b`).MatchString(string(text)) {
			t.Errorf("the guide has no word of key %s", m[1])
		}
	}
}
