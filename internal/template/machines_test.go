package template_test

import (
	"testing"

	"github.com/paddock-dev/paddock/internal/fsm/fsmtest"
	"github.com/paddock-dev/paddock/internal/template"
)

const machines = "../../docs/machines/"

func TestDiagrams(t *testing.T) {
	fsmtest.Diagram(t, template.Jobs, machines+"job.md")
	fsmtest.Diagram(t, template.Artifacts, machines+"artifact.md")
	fsmtest.Diagram(t, template.Definitions, machines+"template.md")
	fsmtest.Diagram(t, template.Replicas, machines+"replica.md")
}

// From every state a sweep can end a job: none is stuck for ever.
func TestEveryJobCanBeEndedByASweep(t *testing.T) {
	for _, s := range template.Jobs.States() {
		if template.Jobs.Final(s) {
			continue
		}
		if to, err := template.Jobs.Step(s, template.OnJobStalled, struct{}{}); err != nil || to != template.JobFailed {
			t.Errorf("a stalled job in %s goes to %s, %v", s, to, err)
		}
	}
}

func TestAliases(t *testing.T) {
	for alias, ok := range map[string]bool{"web": true, "a": true, "0-9": true, "": false, "-a": false, "Web": false, "a_b": false, "tpl-x": false, "snap-x": false, "a b": false, "é": false} {
		if err := template.CheckAlias(alias); (err == nil) != ok {
			t.Errorf("alias %q: %v", alias, err)
		}
	}
}

// Parts that join to the same text must not make the same key.
func TestKeysKeepPartsApart(t *testing.T) {
	a := template.ContentKey(template.ContentInputs{Format: "a", ImageDigest: "bc"})
	b := template.ContentKey(template.ContentInputs{Format: "ab", ImageDigest: "c"})
	c := template.ContentKey(template.ContentInputs{Format: "a\x00\x00bc"})
	if a == b || a == c || b == c || len(a) != 64 {
		t.Errorf("keys %s %s %s", a, b, c)
	}
}
