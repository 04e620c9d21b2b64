package id_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/paddock-dev/paddock/internal/platform/id"
)

func TestIDsHaveOneLengthAndDiffer(t *testing.T) {
	form, seen := regexp.MustCompile(`^tpl-[0-9a-f]{24}$`), map[string]bool{}
	for range 10_000 {
		v := id.New("tpl-")
		if !form.MatchString(v) || seen[v] {
			t.Fatalf("id %q: bad form, or a repeat", v)
		}
		seen[v] = true
	}
}

func TestIDsOfDifferentMillisecondsSort(t *testing.T) {
	var got []string
	for range 2000 {
		got = append(got, id.New("")[:12])
	}
	if !slices.IsSorted(got) {
		t.Error("the time part went backwards")
	}
}

func TestSecretsHaveTheirLengthAndDiffer(t *testing.T) {
	a, b := id.Secret("e2b_", 20), id.Secret("e2b_", 20)
	if form := regexp.MustCompile(`^e2b_[0-9a-f]{40}$`); !form.MatchString(a) || !form.MatchString(b) || a == b {
		t.Error("bad form, or a repeat")
	}
}
