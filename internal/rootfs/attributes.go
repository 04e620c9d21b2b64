package rootfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const xattrKey = "SCHILY.xattr."

// attributes gives an entry that is no link its owner, mode, extended
// attributes and time, in this order: a change of owner drops set-id bits and
// capabilities.
func attributes(dir int, base string, h *tar.Header) error {
	if err := owner(dir, base, h); err != nil {
		return err
	}
	if err := unix.Fchmodat(dir, base, uint32(h.Mode)&0o7777, 0); err != nil {
		return err
	}
	if err := xattrs(dir, base, h); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return nil
	}
	return setTime(dir, base, timeOf(h))
}

func owner(dir int, base string, h *tar.Header) error {
	return unix.Fchownat(dir, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
}

// xattrs sets what the header carries, but for labels of another machine's
// policy and the marks of a union filesystem.
func xattrs(dir int, base string, h *tar.Header) error {
	for _, key := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		attr, ok := strings.CutPrefix(key, xattrKey)
		if !ok || attr == "security.selinux" || strings.HasPrefix(attr, "trusted.overlay.") || strings.HasPrefix(attr, "user.overlay.") {
			continue
		}
		// The directory is open and base has no slash, so this cannot be led astray.
		err := unix.Lsetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", dir, base), attr, []byte(h.PAXRecords[key]), 0)
		if err != nil && (!errors.Is(err, unix.ENOTSUP) || attr == "security.capability") {
			return fmt.Errorf("attribute %s: %w", attr, err)
		}
	}
	return nil
}

func timeOf(h *tar.Header) unix.Timespec { return unix.NsecToTimespec(h.ModTime.UnixNano()) }

func setTime(dir int, base string, m unix.Timespec) error {
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{m, m}, unix.AT_SYMLINK_NOFOLLOW)
}
