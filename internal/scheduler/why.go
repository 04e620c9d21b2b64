package scheduler

import (
	"fmt"
	"strings"

	"github.com/paddock-dev/paddock/internal/host"
)

// whyUnselected names the first requirement of each term that the host does not
// meet, and what it has instead.
func whyUnselected(c *cycle, i int) string {
	labels := map[string]string{}
	for _, t := range tagsOf(c.p.facts[i]) {
		if t.kind == tagLabel {
			labels[t.key] = t.value
		}
	}
	var lacks []string
	for _, term := range c.req.Affinity.Terms {
		for k := range term {
			if r := &term[k]; !r.heldBy(c.p.facts[i], labels) {
				lacks = append(lacks, r.text()+", and it "+has(labels, r.Key))
				break
			}
		}
	}
	return "needs " + strings.Join(lacks, "; or ")
}

func has(labels map[string]string, key string) string {
	if value, ok := labels[key]; ok {
		return fmt.Sprintf("has %.80s", value)
	}
	return "has none"
}

func (r *Requirement) text() string {
	return strings.TrimSpace(fmt.Sprintf("%.80s %s %.120s", r.Key, r.Operator, strings.Join(r.Values, "|")))
}

// heldBy is cycle.holds for one host.
func (r *Requirement) heldBy(h *host.Facts, labels map[string]string) bool {
	value, ok := labels[r.Key]
	listed := false
	for _, v := range r.Values {
		listed = listed || ok && v == value
	}
	switch r.Operator {
	case In:
		return listed
	case NotIn:
		return !listed
	case Exists:
		return ok
	case DoesNotExist:
		return !ok
	case Gt, Lt:
		n := h.Allocatable.MemBytes
		if r.Key == LabelCores {
			n = h.Allocatable.MilliCPU
		}
		return r.Operator == Gt && n >= r.amount || r.Operator == Lt && n <= r.amount
	}
	return false
}
