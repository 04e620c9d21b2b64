// Package template holds the rules of layer 1: what a template, its artifact,
// its replicas and its jobs are, and what each may become.
//
// An image is turned into an artifact (the bytes), which hosts hold as
// placements; a replica is a template made ready on one host. This package
// must never do I/O, read a clock, or know a wire word.
package template

import (
	"regexp"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Each id is its own type, so that one cannot stand for another.
type (
	// ID names a template: tpl- and 24 hex digits.
	ID string
	// ArtifactID names an artifact: rfs- and the first 24 hex digits of its
	// content key.
	ArtifactID string
	// JobID names a job: job- and 24 hex digits.
	JobID string
)

// The prefixes of the ids that are made, not derived.
const (
	IDPrefix       = "tpl-"
	ArtifactPrefix = "rfs-"
	JobPrefix      = "job-"
)

var (
	aliasForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	idForm    = regexp.MustCompile(`^[a-z]{2,8}-[a-z0-9-]{1,64}$`)
)

// CheckAlias refuses what cannot be an alias (spec/template-center 3.1): reserved
// prefixes would let an alias pose as an id.
func CheckAlias(alias string) error {
	if !aliasForm.MatchString(alias) || strings.HasPrefix(alias, IDPrefix) || strings.HasPrefix(alias, "snap-") {
		return fault.New(fault.AliasInvalid, "alias %.128q", alias)
	}
	return nil
}

// CheckID refuses what can be no id of ours; ids from requests become parts
// of paths and must pass here first.
func CheckID(id string) error {
	if !idForm.MatchString(id) {
		return fault.New(fault.InvalidInput, "id %.128q", id)
	}
	return nil
}
