package config

import (
	"regexp"
	"slices"
	"strings"
)

// registryForm is host:port, host:* or a plain host.
var registryForm = regexp.MustCompile(`^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:([0-9]{1,5}|\*))?$`)

// InsecureRegistry tells whether registry (host or host:port, as it stands in
// an image reference) is on the list of those that plain HTTP may reach. A
// pattern that ends in ":*" stands for every port of its host, and for none.
func InsecureRegistry(list []string, registry string) bool {
	return slices.ContainsFunc(list, func(pattern string) bool {
		host, anyPort := strings.CutSuffix(pattern, ":*")
		if !anyPort {
			return strings.EqualFold(pattern, registry)
		}
		rest, ok := cutPrefixFold(registry, host)
		return ok && (rest == "" || isPort(rest))
	})
}

func cutPrefixFold(s, prefix string) (rest string, ok bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// isPort: a colon and digits. Anything else after a host belongs to its name.
func isPort(s string) bool {
	digits, ok := strings.CutPrefix(s, ":")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}
