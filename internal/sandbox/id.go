package sandbox

import (
	"regexp"

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
