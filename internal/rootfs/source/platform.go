package source

import (
	"runtime"
	"strconv"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// platform is what programs are made for, in the words of image indexes.
type platform struct{ os, arch, variant string }

func (p platform) String() string {
	return strings.TrimRight(p.os+"/"+p.arch+"/"+p.variant, "/")
}

func platformOf(s string) (platform, error) {
	if s == "" {
		return platform{os: "linux", arch: runtime.GOARCH}, nil
	}
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return platform{}, fault.New(fault.InvalidInput, "platform %.200q: write it as linux/amd64 or linux/arm/v7", s)
	}
	p := platform{os: parts[0], arch: parts[1]}
	if len(parts) == 3 {
		p.variant = parts[2]
	}
	return p, nil
}

// aliases are names that tools have written into indexes.
var aliases = map[string]platform{
	"x86_64":  {arch: "amd64"},
	"x86-64":  {arch: "amd64"},
	"aarch64": {arch: "arm64"},
	"armhf":   {arch: "arm", variant: "v7"},
	"armel":   {arch: "arm", variant: "v6"},
}

// usual is the variant that an architecture has when none is named.
var usual = map[string]string{"amd64": "v1", "arm64": "v8", "arm": "v7"}

func (p platform) normal() platform {
	p.os, p.arch, p.variant = strings.ToLower(p.os), strings.ToLower(p.arch), strings.ToLower(p.variant)
	if a, ok := aliases[p.arch]; ok {
		p.arch = a.arch
		if p.variant == "" {
			p.variant = a.variant
		}
	}
	if p.variant == "" {
		p.variant = usual[p.arch]
	}
	return p
}

// fit tells how well programs for have run on want: 0 not at all, and the
// higher the better. A processor runs what was made for older ones of its kind.
func fit(want, have platform) int {
	want, have = want.normal(), have.normal()
	if want.os != have.os || want.arch != have.arch {
		return 0
	}
	if want.variant == have.variant {
		return 1000
	}
	w, h := level(want.variant), level(have.variant)
	if usual[want.arch] == "" || w == 0 || h == 0 || h > w {
		return 0
	}
	return h
}

// level is the number of a variant like v7; 0 for others.
func level(variant string) int {
	digits, ok := strings.CutPrefix(variant, "v")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 0 || n >= 1000 {
		return 0
	}
	return n
}
