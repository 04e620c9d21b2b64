// Package treetar turns a directory tree into a tar archive, and back.
//
// It is for trees that cross a boundary of trust: what an archive says is
// foreign. It must never write outside of the directory that it was given,
// whatever names and links the archive or the directory has, and it must never
// take more than its bounds.
package treetar

import (
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	longestName = 4096 // bytes of a path in an archive: what a kernel takes
	deepest     = 512  // directories above an entry
)

// Limits bound one archive. Zero means none.
type Limits struct {
	Entries int   // files, links and directories, those that are only implied too
	Bytes   int64 // of the files' contents, holes included
}

// spent is what of the limits was taken.
type spent struct {
	limits  Limits
	entries int
	bytes   int64
}

func (s *spent) take(size int64) error {
	s.entries++
	if s.limits.Entries > 0 && s.entries > s.limits.Entries {
		return fault.New(fault.ArchiveRefused, "the tree has more than %d entries", s.limits.Entries)
	}
	if s.limits.Bytes > 0 && size > s.limits.Bytes-s.bytes {
		return fault.New(fault.ArchiveRefused, "the tree has more than %d bytes", s.limits.Bytes)
	}
	s.bytes += size
	return nil
}

// cleanName returns the name of an entry as a path below the tree, "." for the
// tree itself.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", fault.New(fault.ArchiveRefused, "an entry has no name")
	case len(name) > longestName:
		return "", fault.New(fault.ArchiveRefused, "entry %q...: the name is longer than %d bytes", name[:64], longestName)
	case name[0] == '/':
		return "", fault.New(fault.ArchiveRefused, "entry %q: the name is absolute", name)
	case strings.ContainsRune(name, 0):
		return "", fault.New(fault.ArchiveRefused, "entry %q: the name holds a zero byte", name)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", fault.New(fault.ArchiveRefused, "entry %q: the name climbs out", name)
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) > deepest {
		return "", fault.New(fault.ArchiveRefused, "entry %q...: more than %d directories deep", name[:64], deepest)
	}
	if len(parts) == 0 {
		return ".", nil
	}
	return strings.Join(parts, "/"), nil
}
