package sandbox

import (
	"regexp"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

var idForm = regexp.MustCompile(`^i[0-9a-f]{24}$`)

// CheckID refuses what can be no sandbox's id: ids become parts of paths and
// names, and the runtime matches them by prefix, so all have one length.
func CheckID(id string) error {
	if !idForm.MatchString(id) {
		return fault.New(fault.InvalidInput, "sandbox id %.128q", id)
	}
	return nil
}

// TrialPrefix begins the ids of sandboxes that only try a template out: they are
// in no book, and nobody's but the master's that made them.
const TrialPrefix = IDPrefix + "00000000"

// Trial reports whether id is of a sandbox that tries a template out.
func Trial(id string) bool { return strings.HasPrefix(id, TrialPrefix) }
