// Package fsm states, as data, what a stored thing may become.
//
// A machine is a table: in these states, this event leads there, if the guard
// of that name allows. Guards are pure functions of facts that the caller
// read; the table itself holds no code. Whatever must happen in the world
// because of a step is an effect, decided by the caller and stored in the same
// transaction. That is what lets one table serve five readers: the store's
// guard, the schema's CHECK, the diagram in docs/machines, the fault list of a
// call, and the tests.
package fsm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Rule is one row: in any of From, On leads to To if Guard allows.
type Rule[S, E ~string] struct {
	On    E
	From  []S
	To    S
	Guard string // name of a check in Spec.Guards; empty: always
	Why   string // one clause for the diagram
}

// Spec is the literal a package writes down. F is what guards look at.
type Spec[S, E ~string, F any] struct {
	Name    string
	Initial S
	States  []S // every state, in the order a reader should meet them
	Final   []S // states that accept nothing
	Rules   []Rule[S, E]
	Guards  map[string]func(F) error
}

// None is F for a machine without guards.
type None = struct{}

// Machine is a checked Spec. It is immutable and safe for concurrent use.
type Machine[S, E ~string, F any] struct {
	spec Spec[S, E, F]
	next map[S]map[E]Rule[S, E]
}

// Must returns the machine for spec and panics if the table is defective, so
// that a defect stops the program at init and not at the first odd event.
func Must[S, E ~string, F any](spec Spec[S, E, F]) *Machine[S, E, F] {
	m, defects := build(spec)
	if len(defects) > 0 {
		panic("fsm: " + spec.Name + ": " + strings.Join(defects, "; "))
	}
	return m
}

func build[S, E ~string, F any](spec Spec[S, E, F]) (*Machine[S, E, F], []string) {
	m := &Machine[S, E, F]{spec: spec, next: map[S]map[E]Rule[S, E]{}}
	var defects []string
	bad := func(format string, args ...any) { defects = append(defects, fmt.Sprintf(format, args...)) }

	known := func(s S) bool { return slices.Contains(spec.States, s) }
	if !known(spec.Initial) {
		bad("initial state %q is not listed", spec.Initial)
	}
	used := map[string]bool{}
	for _, r := range spec.Rules {
		if !known(r.To) {
			bad("%s leads to unlisted state %q", r.On, r.To)
		}
		if used[r.Guard] = true; r.Guard != "" && spec.Guards[r.Guard] == nil {
			bad("%s needs unknown guard %q", r.On, r.Guard)
		}
		for _, from := range r.From {
			switch {
			case !known(from):
				bad("%s leaves unlisted state %q", r.On, from)
			case slices.Contains(spec.Final, from):
				bad("%s leaves final state %q", r.On, from)
			}
			if m.next[from] == nil {
				m.next[from] = map[E]Rule[S, E]{}
			}
			if first, dup := m.next[from][r.On]; dup {
				bad("%s in %q leads to both %q and %q", r.On, from, first.To, r.To)
			}
			m.next[from][r.On] = r
		}
	}
	for name := range spec.Guards {
		if !used[name] {
			bad("guard %q guards nothing", name)
		}
	}
	slices.Sort(defects)

	seen := map[S]bool{}
	for queue := []S{spec.Initial}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if seen[s] {
			continue
		}
		seen[s] = true
		for _, r := range m.next[s] {
			queue = append(queue, r.To)
		}
	}
	for _, s := range spec.States {
		if !seen[s] {
			bad("state %q cannot be reached", s)
		}
		if len(m.next[s]) == 0 && !slices.Contains(spec.Final, s) {
			bad("state %q is a dead end but not final", s)
		}
	}
	return m, defects
}

// RefusedError reports an event that the current state does not accept.
type RefusedError struct{ Machine, State, Event string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s in state %s refuses %s", e.Machine, e.State, e.Event)
}

// Unwrap makes every refusal a fault.StateConflict.
func (e *RefusedError) Unwrap() error { return fault.StateConflict }

// Step returns the state that on leads to. A state that does not know the
// event answers with a *RefusedError; a guard answers with its own error.
func (m *Machine[S, E, F]) Step(from S, on E, facts F) (S, error) {
	r, ok := m.next[from][on]
	if !ok {
		return from, &RefusedError{m.spec.Name, string(from), string(on)}
	}
	if r.Guard != "" {
		if err := m.spec.Guards[r.Guard](facts); err != nil {
			return from, fmt.Errorf("%s: %s: %w", m.spec.Name, on, err)
		}
	}
	return r.To, nil
}

// Name returns what the machine is called in messages and documents.
func (m *Machine[S, E, F]) Name() string { return m.spec.Name }

// Initial returns the state a new thing is stored in.
func (m *Machine[S, E, F]) Initial() S { return m.spec.Initial }

// States returns every state, in table order.
func (m *Machine[S, E, F]) States() []S { return slices.Clone(m.spec.States) }

// Final reports whether s accepts nothing.
func (m *Machine[S, E, F]) Final(s S) bool { return slices.Contains(m.spec.Final, s) }

// Events returns each event once, in table order.
func (m *Machine[S, E, F]) Events() []E {
	var out []E
	for _, r := range m.spec.Rules {
		if !slices.Contains(out, r.On) {
			out = append(out, r.On)
		}
	}
	return out
}

// Mermaid renders the table as a state diagram.
func (m *Machine[S, E, F]) Mermaid() string {
	var b strings.Builder
	fmt.Fprintf(&b, "stateDiagram-v2\n    [*] --> %s\n", m.spec.Initial)
	for _, r := range m.spec.Rules {
		label := string(r.On)
		if r.Guard != "" {
			label += " [" + r.Guard + "]"
		}
		if r.Why != "" {
			label += " (" + r.Why + ")"
		}
		for _, from := range r.From {
			fmt.Fprintf(&b, "    %s --> %s : %s\n", from, r.To, label)
		}
	}
	for _, s := range m.spec.Final {
		fmt.Fprintf(&b, "    %s --> [*]\n", s)
	}
	return b.String()
}
