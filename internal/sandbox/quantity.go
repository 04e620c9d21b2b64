package sandbox

import (
	"math/big"
	"regexp"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

var quantityForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(m|[KMGTPE]i?|k)?B?$`)

var factors = map[string]int64{
	"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}

// Bytes reads a size such as 512Mi, 2Gi or 1.5G (Kubernetes quantities). unit
// is what a bare number counts in, for example "Gi". What does not parse, or
// does not fit 63 bits, is refused: it never counts as nothing.
func Bytes(s, unit string) (int64, error) {
	m := quantityForm.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil || m[2] == "m" {
		return 0, fault.New(fault.InvalidInput, "size %q: write a number with Ki, Mi, Gi or Ti, such as 512Mi", s)
	}
	if m[2] == "" && !strings.HasSuffix(s, "B") {
		m[2] = unit
	}
	return exact(s, m[1], factors[m[2]])
}

// MilliCPU reads an amount of CPU such as 2, 0.5 or 500m, in thousandths of a
// core.
func MilliCPU(s string) (int64, error) {
	m := quantityForm.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil || (m[2] != "" && m[2] != "m") {
		return 0, fault.New(fault.InvalidInput, "cpu %q: write cores or thousandths, such as 2 or 500m", s)
	}
	if m[2] == "m" {
		return exact(s, m[1], 1)
	}
	return exact(s, m[1], 1000)
}

func exact(s, digits string, factor int64) (int64, error) {
	n, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, fault.New(fault.InvalidInput, "quantity %q is not a number", s)
	}
	n.Mul(n, new(big.Rat).SetInt64(factor))
	v := new(big.Int).Quo(n.Num(), n.Denom())
	if !v.IsInt64() {
		return 0, fault.New(fault.InvalidInput, "quantity %q is too large", s)
	}
	return v.Int64(), nil
}
