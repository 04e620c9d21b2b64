package ext4

import (
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Stat is what an inode says about itself.
type Stat struct {
	Inode               uint32
	Mode                uint32 // as st_mode
	UID, GID            uint32
	Links               uint32 // 1 for a directory with too many to count
	Size                int64
	Blocks              int64 // of 512 bytes
	Atime, Mtime, Ctime time.Time
	Major, Minor        uint32 // of a device

	flags uint32
	gen   uint32
	acl   int64
	body  [60]byte
	extra []byte // the inode beyond its fixed fields: xattrs
	refs  uint64 // of an inode that holds an xattr value
	hash  uint32
}

// RootInode is the inode of the root directory.
const RootInode = inoRoot

// IsDir says whether it is a directory.
func (s Stat) IsDir() bool { return s.Mode&modeType == modeDir }

// IsRegular says whether it is a regular file.
func (s Stat) IsRegular() bool { return s.Mode&modeType == modeRegular }

// Stat reads an inode.
func (im *Image) Stat(ino uint32) (Stat, error) {
	if ino < 1 || int64(ino) > im.info.Inodes {
		return Stat{}, damaged("inode %d: the image has %d", ino, im.info.Inodes)
	}
	g, i := int64(ino-1)/im.perG, int64(ino-1)%im.perG
	b := make([]byte, im.iSize)
	if err := readFull(im.r, b, im.groups[g].table*blockSize+i*im.iSize); err != nil {
		return Stat{}, err
	}
	return im.parseInode(ino, b)
}

func (im *Image) parseInode(ino uint32, b []byte) (Stat, error) {
	s := Stat{
		Inode: ino, Mode: uint32(le.Uint16(b[0x00:])), Links: uint32(le.Uint16(b[0x1A:])),
		UID:  uint32(le.Uint16(b[0x02:])) | uint32(le.Uint16(b[0x78:]))<<16,
		GID:  uint32(le.Uint16(b[0x18:])) | uint32(le.Uint16(b[0x7A:]))<<16,
		Size: int64(le.Uint32(b[0x04:])) | int64(le.Uint32(b[0x6C:]))<<32, flags: le.Uint32(b[0x20:]),
		Blocks: int64(le.Uint32(b[0x1C:])) | int64(le.Uint16(b[0x74:]))<<32,
		gen:    le.Uint32(b[0x64:]),
		acl:    int64(le.Uint32(b[0x68:])) | int64(le.Uint16(b[0x76:]))<<32,
		refs:   uint64(le.Uint32(b[0x0C:]))<<32 | uint64(le.Uint32(b[0x24:])), hash: le.Uint32(b[0x08:]),
	}
	copy(s.body[:], b[0x28:])
	extra := 0
	if len(b) > 128 {
		extra = int(le.Uint16(b[0x80:]))
	}
	if extra > len(b)-128 || extra%4 != 0 {
		return Stat{}, damaged("inode %d: it says that %d bytes of extra fields follow", ino, extra)
	}
	if im.csum {
		want := uint32(le.Uint16(b[0x7C:]))
		got := inodeSum(inodeSeed(im.seed, ino, s.gen), b)
		if extra >= 4 {
			want |= uint32(le.Uint16(b[0x82:])) << 16
		} else {
			got &= 0xFFFF
		}
		if want != got {
			return Stat{}, damaged("inode %d: wrong checksum", ino)
		}
	}
	at := func(low, high int) time.Time {
		if high+4 <= 128+extra {
			return stampFrom(le.Uint32(b[low:]), le.Uint32(b[high:])).time()
		}
		return stampFrom(le.Uint32(b[low:]), 0).time()
	}
	s.Atime, s.Ctime, s.Mtime = at(0x08, 0x8C), at(0x0C, 0x84), at(0x10, 0x88)
	if extra > 0 {
		s.extra = b[128+extra:]
	}
	if kind := s.Mode & modeType; kind == modeChar || kind == modeBlock {
		s.Major, s.Minor = device(s.body[:])
	}
	if s.Size < 0 || s.Size > maxFileSize {
		return Stat{}, damaged("inode %d: a file of %d bytes", ino, s.Size)
	}
	return s, nil
}

func device(b []byte) (major, minor uint32) {
	if old := le.Uint32(b); old != 0 {
		return old >> 8 & 0xFF, old & 0xFF
	}
	v := le.Uint32(b[4:])
	return v >> 8 & 0xFFF, v&0xFF | v>>12&^0xFF
}

// Target returns the target of a symlink.
func (im *Image) Target(s Stat) (string, error) {
	if s.Mode&modeType != modeSymlink {
		return "", fault.New(fault.InvalidInput, "inode %d is no symlink", s.Inode)
	}
	if s.Size < 1 || s.Size > maxTargetLen {
		return "", damaged("inode %d: a symlink of %d bytes", s.Inode, s.Size)
	}
	b := make([]byte, s.Size)
	if s.Size <= fastTargetLen && s.flags&flagExtents == 0 {
		copy(b, s.body[:])
	} else {
		c, err := im.Contents(s)
		if err != nil {
			return "", err
		}
		if err := readFull(c, b, 0); err != nil {
			return "", err
		}
	}
	if strings.IndexByte(string(b), 0) >= 0 {
		return "", damaged("inode %d: the target of a symlink holds a zero byte", s.Inode)
	}
	return string(b), nil
}

// Lookup finds a path from the root. It follows no symlink. It answers
// fault.FileNotFound when there is none.
func (im *Image) Lookup(path string) (Stat, error) {
	s, err := im.Stat(RootInode)
	if err != nil {
		return Stat{}, err
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." {
			continue
		}
		if !s.IsDir() {
			return Stat{}, fault.New(fault.FileNotFound, "%.200q in an ext4 image", path)
		}
		if s, err = im.child(s, name); err != nil {
			return Stat{}, err
		}
	}
	return s, nil
}

func (im *Image) child(dir Stat, name string) (Stat, error) {
	found := uint32(0)
	err := im.ReadDir(dir, func(e Dirent) error {
		if e.Name == name {
			found = e.Inode
			return errStop
		}
		return nil
	})
	if err != nil && err != errStop { //nolint:errorlint // our own, never wrapped
		return Stat{}, err
	}
	if found == 0 {
		return Stat{}, fault.New(fault.FileNotFound, "%.200q in an ext4 image", name)
	}
	return im.Stat(found)
}
