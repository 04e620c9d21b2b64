package rootfs

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

const (
	capability = "security.capability"
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"

	// maxAttrs bounds what differing sets of extended attributes take, and
	// attrsCost is what a set takes beside its names and values.
	maxAttrs  = 16 << 20
	attrsCost = 256
)

// attrSet is the extended attributes of an entry.
type attrSet struct {
	list     []ext4.Xattr
	stripped []string // what the others are counted as
}

// xattrTable keeps equal sets once. Set 0 is the empty one.
type xattrTable struct {
	sets  []attrSet
	byKey map[[sha256.Size]byte]uint32
	bytes int64
}

// strippedAs returns "" for an attribute that is kept, and else what it is
// counted as. Labels of another machine's policy and the marks of union
// filesystems mean nothing in a sandbox; trusted ones could not be read there.
func strippedAs(name string, t tarfile.Type) string {
	space, _, _ := strings.Cut(name, ".")
	switch {
	case name == capability || name == aclAccess || name == aclDefault:
		return ""
	case name == "security.selinux":
		return name
	case strings.HasPrefix(name, "user.overlay."):
		return "user.overlay"
	case space == "user" && (t == tarfile.Regular || t == tarfile.Directory):
		return ""
	case space == "user" || space == "trusted" || space == "security" || space == "system":
		return space
	}
	return "other"
}

// intern returns the number of an entry's set. It answers
// fault.TooMuchMetadata when the image's sets take too much.
func (x *xattrTable) intern(e *tarfile.Entry) (uint32, error) {
	var s attrSet
	for _, a := range e.Xattrs {
		if as := strippedAs(a.Name, e.Type); as != "" {
			s.stripped = append(s.stripped, as)
		} else {
			s.list = append(s.list, ext4.Xattr{Name: a.Name, Value: a.Value})
		}
	}
	if len(e.Xattrs) == 0 {
		return 0, nil
	}
	slices.Sort(s.stripped)
	key, size := s.digest()
	if n, ok := x.byKey[key]; ok {
		return n, nil
	}
	if x.bytes += size + attrsCost; x.bytes > maxAttrs {
		return 0, fault.New(fault.TooMuchMetadata, "the image's extended attributes take over %d bytes", maxAttrs)
	}
	if x.byKey == nil {
		x.byKey, x.sets = map[[sha256.Size]byte]uint32{}, make([]attrSet, 1)
	}
	x.sets = append(x.sets, s)
	n := uint32(len(x.sets) - 1)
	x.byKey[key] = n
	return n, nil
}

func (s *attrSet) digest() (key [sha256.Size]byte, size int64) {
	h := sha256.New()
	part := func(b []byte) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
		size += int64(len(b))
	}
	for _, a := range s.list {
		part([]byte(a.Name))
		part(a.Value)
	}
	part(nil)
	for _, w := range s.stripped {
		part([]byte(w))
	}
	h.Sum(key[:0])
	return key, size
}

// get returns set n.
func (x *xattrTable) get(n uint32) attrSet {
	if n == 0 {
		return attrSet{}
	}
	return x.sets[n]
}

// withoutCaps returns attributes but for file capabilities, and whether there
// were any.
func withoutCaps(list []ext4.Xattr) ([]ext4.Xattr, bool) {
	i := slices.IndexFunc(list, func(a ext4.Xattr) bool { return a.Name == capability })
	if i < 0 {
		return list, false
	}
	return slices.Delete(slices.Clone(list), i, i+1), true
}
