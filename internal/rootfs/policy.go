package rootfs

import (
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// Rule says what becomes of entries of one kind.
type Rule string

// The rules. An empty one is the default of its kind.
const (
	Allow  Rule = "allow"  // they are kept
	Strip  Rule = "strip"  // the image is made without them, and they are counted
	Refuse Rule = "refuse" // the build ends with a fault that names the entry
)

// Policy says what becomes of entries that an honest image may have and a
// sandbox may not need.
type Policy struct {
	Devices      Rule // character and block devices; Strip
	FIFOs        Rule // named pipes; Allow
	Setuid       Rule // set-user-id and set-group-id bits of what is no directory; Allow
	Capabilities Rule // file capabilities; Allow
}

// PolicyOf returns the policy that a configuration names.
func PolicyOf(c config.ImagePolicy) Policy {
	return Policy{Devices: Rule(c.Devices), FIFOs: Rule(c.FIFOs), Setuid: Rule(c.Setuid), Capabilities: Rule(c.Capabilities)}
}

func (p Policy) filled() Policy {
	for _, r := range []struct {
		rule *Rule
		def  Rule
	}{{&p.Devices, Strip}, {&p.FIFOs, Allow}, {&p.Setuid, Allow}, {&p.Capabilities, Allow}} {
		if *r.rule == "" {
			*r.rule = r.def
		}
	}
	return p
}

// Check answers fault.InvalidInput for a rule that does not exist.
func (p Policy) Check() error {
	p = p.filled()
	for _, r := range []Rule{p.Devices, p.FIFOs, p.Setuid, p.Capabilities} {
		if r != Allow && r != Strip && r != Refuse {
			return fault.New(fault.InvalidInput, "image policy %q: write allow, strip or refuse", string(r))
		}
	}
	return nil
}

// String names every rule. It is part of what names an image's bytes.
func (p Policy) String() string {
	p = p.filled()
	return strings.Join([]string{"devices=" + string(p.Devices), "fifos=" + string(p.FIFOs), "setuid=" + string(p.Setuid), "capabilities=" + string(p.Capabilities)}, " ")
}

// judge answers the fault of an entry that the policy refuses.
func (p Policy) judge(e *tarfile.Entry) error {
	switch {
	case isDevice(e.Type) && p.Devices == Refuse:
		return fault.New(fault.LayerDevice, "device %d:%d", e.Major, e.Minor)
	case e.Type == tarfile.FIFO && p.FIFOs == Refuse:
		return fault.New(fault.LayerDevice, "named pipe")
	case setID(e) && p.Setuid == Refuse:
		return fault.New(fault.LayerSetuid, "mode %04o", e.Mode)
	case p.Capabilities == Refuse && slices.ContainsFunc(e.Xattrs, func(a tarfile.Xattr) bool { return a.Name == capability }):
		return fault.New(fault.LayerCapability, "attribute %s", capability)
	}
	return nil
}

func isDevice(t tarfile.Type) bool { return t == tarfile.CharDevice || t == tarfile.BlockDevice }

// setID says whether an entry would run as another. On directories the bit
// only decides the group of new files.
func setID(e *tarfile.Entry) bool {
	return e.Mode&modeSetID != 0 && e.Type != tarfile.Directory && e.Type != tarfile.Symlink && e.Type != tarfile.Link
}

// stripped says whether a node of the tree stays out of the image. An overlay
// mount over the image would take a device 0:0 for a whiteout, so it is one
// here too, whatever the policy allows.
func (p Policy) stripped(n *node) bool {
	switch n.mode & modeType {
	case modeChar, modeBlock:
		return p.Devices == Strip || overlayWhiteout(n)
	case modeFIFO:
		return p.FIFOs == Strip
	}
	return false
}

func overlayWhiteout(n *node) bool { return n.is(modeChar) && n.words[0] == 0 && n.words[1] == 0 }
