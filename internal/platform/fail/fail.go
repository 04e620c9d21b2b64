// Package fail names places where a test may break the program: an error, a
// kill or a stop that lasts for ever. In production every place does nothing
// and costs one map look-up in an empty map.
package fail

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Variable is the environment variable that arms places:
// "place=error,place=crash,place=hang".
const Variable = "PADDOCK_FAILPOINTS"

var armed = parse(os.Getenv(Variable))

// ErrInjected is what an armed place returns.
var ErrInjected = errors.New("injected by " + Variable)

// Point is a place called name. Unarmed it returns nil.
func Point(name string) error {
	if len(armed) == 0 {
		return nil
	}
	switch armed[name] {
	case "error":
		return fmt.Errorf("%s: %w", name, ErrInjected)
	case "crash":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // nothing is left to handle a failure
		select {}
	case "hang":
		select {}
	}
	return nil
}

func parse(list string) map[string]string {
	places := map[string]string{}
	for _, one := range strings.Split(list, ",") {
		if name, what, ok := strings.Cut(one, "="); ok {
			places[name] = what
		}
	}
	return places
}
