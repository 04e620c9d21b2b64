package guest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

const (
	attrPrefix = "user.e2b." // of the extended attributes that hold metadata
	maxAttrs   = 64 << 10    // bytes of names and of one value: the kernel's own bounds
)

// entryAt describes the file at path. A symlink is described by what it leads
// to; one that leads nowhere is a symlink.
func entryAt(path string, n names) (*envdpb.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, ofFile(path, err)
	}
	var target *string
	if info.Mode()&fs.ModeSymlink != 0 {
		info, target = follow(path, info)
	}
	e := &envdpb.EntryInfo{
		Name: clean(filepath.Base(path)), Path: clean(path), Type: typeOf(info.Mode()), Size: info.Size(),
		Mode: uint32(info.Mode().Perm()), Permissions: info.Mode().String(), ModifiedTime: timestamppb.New(info.ModTime()),
		SymlinkTarget: target, Metadata: metadataOf(path),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner, e.Group = clean(nameIn(n.users, st.Uid)), clean(nameIn(n.groups, st.Gid))
	}
	return e, nil
}

// follow returns what the symlink at path leads to, and where that is.
func follow(path string, link fs.FileInfo) (fs.FileInfo, *string) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		if info, err := os.Lstat(real); err == nil {
			return info, proto.String(clean(real))
		}
	}
	text, err := os.Readlink(path)
	if err != nil {
		return link, nil
	}
	return link, proto.String(clean(text))
}

func typeOf(m fs.FileMode) envdpb.FileType {
	switch {
	case m.IsRegular():
		return envdpb.FileType_FILE_TYPE_FILE
	case m.IsDir():
		return envdpb.FileType_FILE_TYPE_DIRECTORY
	case m&fs.ModeSymlink != 0:
		return envdpb.FileType_FILE_TYPE_SYMLINK
	}
	return envdpb.FileType_FILE_TYPE_UNSPECIFIED
}

// metadataOf reads what an upload attached. File systems without extended
// attributes have none.
func metadataOf(path string) map[string]string {
	found := map[string]string{}
	for _, name := range attrs(path) {
		buffer := make([]byte, maxAttrs)
		if n, err := unix.Getxattr(path, name, buffer); err == nil {
			found[clean(strings.TrimPrefix(name, attrPrefix))] = clean(string(buffer[:n]))
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// attrs lists the attributes of path that are ours.
func attrs(path string) []string {
	size, err := unix.Listxattr(path, nil)
	if err != nil || size == 0 {
		return nil
	}
	buffer := make([]byte, min(size*2, maxAttrs)) // more may be added meanwhile
	n, err := unix.Listxattr(path, buffer)
	if err != nil {
		return nil
	}
	var list []string
	for _, name := range strings.Split(string(buffer[:n]), "\x00") {
		if strings.HasPrefix(name, attrPrefix) {
			list = append(list, name)
		}
	}
	return list
}

// setMetadata replaces the metadata of path by m.
func setMetadata(path string, m map[string]string) error {
	for _, name := range attrs(path) {
		if _, kept := m[strings.TrimPrefix(name, attrPrefix)]; kept {
			continue
		}
		if err := unix.Removexattr(path, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return err
		}
	}
	for key, value := range m {
		err := unix.Setxattr(path, attrPrefix+key, []byte(value), 0)
		if errors.Is(err, unix.ENOTSUP) {
			return badInput("path '%s': its file system keeps no metadata", path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
