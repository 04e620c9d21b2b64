package host

import (
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Bounds of labels: those of Kubernetes, and how many one host may have.
const (
	MaxLabels      = 64
	maxLabelPrefix = 253
	maxLabelName   = 63
)

// ownPrefixes begin the keys that the system gives a meaning of its own.
var ownPrefixes = []string{"kubernetes.io/", "topology.kubernetes.io/", "cube.cloud.tencentcloud.com/", "paddock.dev/"}

// ReservedLabel reports whether a key means something to the system itself, so
// that nobody may set it by hand.
func ReservedLabel(key string) bool {
	for _, p := range ownPrefixes {
		if strings.HasPrefix(key, p) {
			return true
		}
	}
	return false
}

// CheckLabels refuses labels that no selector could name.
func CheckLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return fault.New(fault.InvalidInput, "%d labels: a host has at most %d", len(labels), MaxLabels)
	}
	for key, value := range labels {
		if err := CheckLabel(key, value); err != nil {
			return err
		}
	}
	return nil
}

// CheckLabel refuses a key or a value that is no label of Kubernetes.
func CheckLabel(key, value string) error {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		prefix, name = "", key
	}
	switch {
	case found && (len(prefix) > maxLabelPrefix || !domainName(prefix)):
		return fault.New(fault.InvalidInput, "label %.80q: before its / stands a domain name in lower case, of at most %d characters", key, maxLabelPrefix)
	case name == "" || !word(name):
		return fault.New(fault.InvalidInput, "label %.80q: its name is 1 to %d of A-Z, a-z, 0-9, '-', '_' and '.', and begins and ends with a letter or digit", key, maxLabelName)
	}
	return CheckLabelValue(key, value)
}

// CheckLabelValue refuses what can be no value of the label named key.
func CheckLabelValue(key, value string) error {
	if value == "" || word(value) {
		return nil
	}
	return fault.New(fault.InvalidInput, "label %.80q: its value %.80q is not at most %d of A-Z, a-z, 0-9, '-', '_' and '.' with a letter or digit at both ends", key, value, maxLabelName)
}

// word reports whether s is the name or the value of a label.
func word(s string) bool {
	if len(s) > maxLabelName || !alnum(s[0]) || !alnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// domainName reports whether s is labels of a domain, in lower case.
func domainName(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || len(part) > maxLabelName || part != strings.ToLower(part) || strings.Contains(part, "_") || !word(part) {
			return false
		}
	}
	return true
}

func alnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
