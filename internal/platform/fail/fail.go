// Package fail names places where a test may break the program: an error, a
// kill or a stop that lasts for ever. In production every place does nothing
// and costs one atomic load. It must never be armed by anything but the
// environment or a test.
package fail

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Variable is the environment variable that arms places:
// "place=error,place=crash@3,place=hang". With @n the first n-1 visits pass.
const Variable = "PADDOCK_FAILPOINTS"

// ErrInjected is what an armed place returns.
var ErrInjected = errors.New("injected by " + Variable)

// place is what happens at an armed place.
type place struct {
	what   string
	after  int64 // visits that pass first
	visits atomic.Int64
	freed  chan struct{} // closed when a hanging visit may go on
}

// plan is replaced whole, so that Point reads it without a lock.
type plan map[string]*place

var (
	armed   atomic.Pointer[plan]
	arming  sync.Mutex // held while a plan is replaced
	badList error
)

func init() {
	p, err := parse(os.Getenv(Variable))
	badList = errors.Join(err, p.known())
	armed.Store(&p)
}

// Check returns fault.BadConfig when the variable cannot be read or names a
// place that does not exist (see Places). A program asks once, at its start: a
// crash test whose place was misspelt must not pass.
func Check() error { return badList }

// known returns fault.BadConfig with every name of p that is no place.
func (p plan) known() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if !slices.Contains(places, name) {
			errs = append(errs, &fault.Error{
				Code: fault.BadConfig, Message: fmt.Sprintf("%s: there is no place %q", Variable, name),
				Remedy: "name one of " + strings.Join(places, ", "),
			})
		}
	}
	return errors.Join(errs...)
}

// Armed returns the armed places, for the start to tell of them loudly.
func Armed() []string { return slices.Sorted(maps.Keys(*armed.Load())) }

// Point is a place called name. Unarmed it returns nil; armed with error it
// returns ErrInjected; armed with crash or hang it does not return.
func Point(name string) error {
	p, ok := (*armed.Load())[name]
	if !ok || p.visits.Add(1) <= p.after {
		return nil
	}
	switch p.what {
	case "crash":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // nothing is left to handle a failure
		select {}
	case "hang":
		<-p.freed
		return nil
	}
	return fmt.Errorf("%s: %w", name, ErrInjected)
}

// Arm arms one place within a test and returns how to disarm it, which also
// frees those that hang there. what is as in the variable: error, crash, hang,
// each with an optional @n. It panics on anything else.
func Arm(name, what string) (disarm func()) {
	p, err := parse(name + "=" + what)
	if err != nil {
		panic(err)
	}
	change(func(all plan) { all[name] = p[name] })
	return sync.OnceFunc(func() {
		change(func(all plan) { delete(all, name) })
		close(p[name].freed)
	})
}

// Visits returns how often the armed place called name was come by, so that a
// test can tell that its fault was met.
func Visits(name string) int {
	if p, ok := (*armed.Load())[name]; ok {
		return int(p.visits.Load())
	}
	return 0
}

func change(by func(plan)) {
	arming.Lock()
	defer arming.Unlock()
	next := maps.Clone(*armed.Load())
	by(next)
	armed.Store(&next)
}

func parse(list string) (plan, error) {
	all := plan{}
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		name, what, _ := strings.Cut(one, "=")
		what, count, counted := strings.Cut(what, "@")
		n, err := int64(1), error(nil)
		if counted {
			n, err = strconv.ParseInt(count, 10, 64)
		}
		if name == "" || !slices.Contains([]string{"error", "crash", "hang"}, what) || err != nil || n < 1 {
			return plan{}, fault.New(fault.BadConfig, "%s: %q: must be place=error, place=crash or place=hang, with an optional @n", Variable, one)
		}
		all[name] = &place{what: what, after: n - 1, freed: make(chan struct{})}
	}
	return all, nil
}
