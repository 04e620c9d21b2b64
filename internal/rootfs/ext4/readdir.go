package ext4

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// errStop ends a ReadDir early.
var errStop = errors.New("stop")

// Dirent is a name in a directory.
type Dirent struct {
	Name  string
	Inode uint32
	Type  byte // as in the entry: 1 regular, 2 directory, 3 char, 4 block, 5 fifo, 6 socket, 7 symlink
}

// ReadDir calls fn for each name of a directory but "." and "..", in the order
// of the image. An error of fn ends it and is returned.
func (im *Image) ReadDir(dir Stat, fn func(Dirent) error) error {
	return im.readDir(dir, blockSet{}, func(b []byte, first bool) error {
		return eachName(dir, b, first, fn)
	})
}

// readDir calls fn for each block of a directory that can hold names, after
// its checksum was compared. No block may be in seen: so what a directory says
// is bounded by what is stored, however large it claims to be.
func (im *Image) readDir(dir Stat, seen blockSet, fn func(b []byte, first bool) error) error {
	if !dir.IsDir() {
		return fault.New(fault.InvalidInput, "inode %d is no directory", dir.Inode)
	}
	if dir.flags&flagExtents == 0 {
		return unsupported("inode %d: a directory without extents", dir.Inode)
	}
	if dir.Size == 0 || dir.Size%blockSize != 0 || dir.Size/blockSize > im.info.Blocks {
		return damaged("inode %d: a directory of %d bytes", dir.Inode, dir.Size)
	}
	b := make([]byte, blockSize)
	var m mapping
	for lblk := int64(0); lblk < dir.Size/blockSize; lblk++ {
		if lblk >= m.lblk+m.n {
			var err error
			if m, err = im.find(dir, lblk); err != nil {
				return err
			}
		}
		if m.phys == 0 {
			return damaged("inode %d: a directory with a hole", dir.Inode)
		}
		blk := m.phys + lblk - m.lblk
		if seen.add(blk, 1) >= 0 {
			return damaged("inode %d: a block of names that belongs to another place too", dir.Inode)
		}
		if err := im.readBlock(blk, b); err != nil {
			return err
		}
		if err := im.checkDirBlock(dir, lblk, b); err != nil {
			return err
		}
		if err := fn(b, lblk == 0); err != nil {
			return err
		}
	}
	return nil
}

// indexAt returns where the index entries of an htree block begin, 0 for a
// block of names.
func indexAt(dir Stat, lblk int64, b []byte) int {
	switch {
	case dir.flags&flagIndex == 0:
		return 0
	case lblk == 0:
		return indexRootAt
	case le.Uint32(b) == 0 && le.Uint16(b[4:]) == blockSize:
		return indexNodeAt
	}
	return 0
}

func (im *Image) checkDirBlock(dir Stat, lblk int64, b []byte) error {
	if !im.csum {
		return nil
	}
	seed := inodeSeed(im.seed, dir.Inode, dir.gen)
	if at := indexAt(dir, lblk, b); at > 0 {
		limit, count := int(le.Uint16(b[at:])), int(le.Uint16(b[at+2:]))
		if count > limit || at+limit*8+8 > blockSize {
			return damaged("inode %d: an index of %d entries", dir.Inode, count)
		}
		if indexSum(seed, b, at) != le.Uint32(b[at+limit*8+4:]) {
			return damaged("inode %d: an index block has a wrong checksum", dir.Inode)
		}
		return nil
	}
	t := b[blockSize-dirTailLen:]
	if le.Uint32(t) != 0 || le.Uint16(t[4:]) != dirTailLen || t[6] != 0 || t[7] != 0xDE {
		return damaged("inode %d: a directory block without its tail", dir.Inode)
	}
	if crc(seed, b[:blockSize-dirTailLen]) != le.Uint32(t[8:]) {
		return damaged("inode %d: a directory block has a wrong checksum", dir.Inode)
	}
	return nil
}

// eachName calls fn for the names of a block.
func eachName(dir Stat, b []byte, first bool, fn func(Dirent) error) error {
	for at, i := 0, 0; at < blockSize; i++ {
		if blockSize-at < 8 {
			return damaged("inode %d: a directory entry leaves its block", dir.Inode)
		}
		ino, size, n := le.Uint32(b[at:]), int(le.Uint16(b[at+4:])), int(b[at+6])
		if size < 8 || size%4 != 0 || size > blockSize-at || 8+n > size {
			return damaged("inode %d: a directory entry of %d bytes", dir.Inode, size)
		}
		name, kind := string(b[at+8:at+8+n]), b[at+7]
		at += size
		if first && i < 2 {
			if name != ".."[:i+1] || i == 0 && ino != dir.Inode {
				return damaged("inode %d: a directory that does not begin with . and ..", dir.Inode)
			}
			continue
		}
		if ino == 0 {
			continue
		}
		if n == 0 || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return damaged("inode %d: a directory holds the name %.200q", dir.Inode, name)
		}
		if err := fn(Dirent{name, ino, kind}); err != nil {
			return err
		}
	}
	return nil
}

// maxPath is the longest path that Walk follows: each entry costs a copy of its
// own.
const maxPath = 8 << 10

// Walk calls fn for every entry below the root and for the root itself, which
// has the path "". A directory comes before what it holds; names of a
// directory are in order. An error of fn ends it and is returned.
func (im *Image) Walk(ctx context.Context, fn func(path string, s Stat) error) error {
	type level struct {
		path  string
		names []Dirent
	}
	root, err := im.Stat(RootInode)
	if err != nil {
		return err
	}
	if !root.IsDir() {
		return damaged("the root is no directory")
	}
	seen, blocks := blockSet{}, blockSet{} // seen are inodes of directories
	list := func(path string, dir Stat) (level, error) {
		if seen.add(int64(dir.Inode), 1) >= 0 {
			return level{}, damaged("%.200q: a directory with two names", path)
		}
		l := level{path: path}
		err := im.readDir(dir, blocks, func(b []byte, first bool) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return eachName(dir, b, first, func(e Dirent) error {
				l.names = append(l.names, e)
				return nil
			})
		})
		slices.SortFunc(l.names, func(a, b Dirent) int { return strings.Compare(a.Name, b.Name) })
		return l, err
	}
	if err := fn("", root); err != nil {
		return err
	}
	top, err := list("", root)
	if err != nil {
		return err
	}
	for stack := []level{top}; len(stack) > 0; {
		l := &stack[len(stack)-1]
		if len(l.names) == 0 {
			stack = stack[:len(stack)-1]
			continue
		}
		e := l.names[0]
		l.names = l.names[1:]
		path := strings.TrimPrefix(l.path+"/"+e.Name, "/")
		if len(path) > maxPath {
			return unsupported("%.200q: a path of more than %d bytes", path, maxPath)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		s, err := im.Stat(e.Inode)
		if err != nil {
			return err
		}
		if err := fn(path, s); err != nil {
			return err
		}
		if s.IsDir() {
			below, err := list(path, s)
			if err != nil {
				return err
			}
			stack = append(stack, below)
		}
	}
	return nil
}
