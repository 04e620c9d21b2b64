package ext4

import (
	"io"
	"sort"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxExtentDepth = 5
	unwritten      = 32768 // a longer extent is allotted but reads as zeros
)

// Contents reads a file. Each read looks the place up again, so it keeps
// nothing of a file, however many extents that has. It is safe for concurrent
// use.
type Contents struct {
	im *Image
	s  Stat
}

// Contents returns the contents of a regular file.
func (im *Image) Contents(s Stat) (*Contents, error) {
	if s.flags&flagExtents == 0 && s.Size > 0 {
		return nil, unsupported("inode %d: contents without extents", s.Inode)
	}
	switch s.Mode & modeType {
	case modeRegular, modeSymlink, modeDir:
		return &Contents{im, s}, nil
	}
	return nil, fault.New(fault.InvalidInput, "inode %d has no contents", s.Inode)
}

// Size is the size of the file.
func (c *Contents) Size() int64 { return c.s.Size }

// Reader reads the file from its start, with its holes: a small image may hold
// a file of 16 TiB. Extents says what is stored.
func (c *Contents) Reader() io.Reader { return io.NewSectionReader(c, 0, c.s.Size) }

// ReadAt is io.ReaderAt. Holes read as zeros.
func (c *Contents) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fault.New(fault.InvalidInput, "a read before the start of a file")
	}
	done := 0
	for done < len(p) && off < c.s.Size {
		m, err := c.im.find(c.s, off/blockSize)
		if err != nil {
			return done, err
		}
		skip := off - m.lblk*blockSize
		n := min(int64(len(p)-done), m.n*blockSize-skip, c.s.Size-off)
		part := p[done : done+int(n)]
		if m.phys == 0 {
			clear(part)
		} else if err := readFull(c.im.r, part, m.phys*blockSize+skip); err != nil {
			return done, err
		}
		done += int(n)
		off += n
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

// mapping is n blocks of a file that lie together, or a hole when phys is 0.
type mapping struct{ lblk, n, phys int64 }

// find returns the mapping that holds block lblk.
func (im *Image) find(s Stat, lblk int64) (mapping, error) {
	node := s.body[:]
	var block [blockSize]byte
	depth, hole := -1, int64(1)<<32
	for range maxExtentDepth + 1 {
		h, err := parseExtentNode(s, node, depth)
		if err != nil {
			return mapping{}, err
		}
		depth = h.depth
		// i is the first entry behind lblk.
		i := sort.Search(h.entries, func(i int) bool { return int64(le.Uint32(node[extentLen*(i+1):])) > lblk })
		if i < h.entries {
			hole = min(hole, int64(le.Uint32(node[extentLen*(i+1):])))
		}
		if depth == 0 {
			return im.leafMapping(s, node, i, lblk, hole)
		}
		if i == 0 {
			return mapping{lblk: lblk, n: hole - lblk}, nil
		}
		_, blk := parseIndex(node[extentLen*i:])
		if err := im.readExtentBlock(s, blk, block[:]); err != nil {
			return mapping{}, err
		}
		node = block[:]
	}
	return mapping{}, damaged("inode %d: its extent tree is too deep", s.Inode)
}

func (im *Image) leafMapping(s Stat, node []byte, i int, lblk, hole int64) (mapping, error) {
	if i > 0 {
		m, zero, err := im.parseExtent(s, node[extentLen*i:])
		if err != nil {
			return mapping{}, err
		}
		if lblk < m.lblk+m.n {
			if zero {
				m.phys = 0
			}
			return m, nil
		}
	}
	return mapping{lblk: lblk, n: hole - lblk}, nil
}

type extentHeader struct{ entries, depth int }

// parseExtentNode checks the header of a node. want is the depth of the node
// above, -1 for the root.
func parseExtentNode(s Stat, b []byte, above int) (extentHeader, error) {
	h := extentHeader{int(le.Uint16(b[2:])), int(le.Uint16(b[6:]))}
	limit := int(le.Uint16(b[4:]))
	switch {
	case le.Uint16(b) != extentMagic:
		return h, damaged("inode %d: no extent header where one must be", s.Inode)
	case h.entries > limit || extentLen*(limit+1) > len(b):
		return h, damaged("inode %d: an extent node of %d entries", s.Inode, h.entries)
	case above < 0 && h.depth > maxExtentDepth || above >= 0 && (h.depth != above-1 || h.entries == 0):
		return h, damaged("inode %d: its extent tree has the wrong depth", s.Inode)
	}
	return h, nil
}

func parseIndex(b []byte) (lblk, blk int64) {
	return int64(le.Uint32(b)), int64(le.Uint32(b[4:])) | int64(le.Uint16(b[8:]))<<32
}

func (im *Image) parseExtent(s Stat, b []byte) (m mapping, zero bool, err error) {
	m = mapping{lblk: int64(le.Uint32(b)), n: int64(le.Uint16(b[4:])), phys: int64(le.Uint32(b[8:])) | int64(le.Uint16(b[6:]))<<32}
	if m.n > unwritten {
		m.n, zero = m.n-unwritten, true
	}
	if m.n == 0 || !im.inside(m.phys, m.n) {
		return m, zero, damaged("inode %d: an extent of %d blocks at %d", s.Inode, m.n, m.phys)
	}
	return m, zero, nil
}

func (im *Image) readExtentBlock(s Stat, blk int64, b []byte) error {
	if err := im.readBlock(blk, b); err != nil {
		return err
	}
	if !im.csum {
		return nil
	}
	limit := int(le.Uint16(b[4:]))
	if extentLen*(limit+1)+4 > blockSize {
		return damaged("inode %d: an extent node of %d entries", s.Inode, limit)
	}
	if sum, at := extentSum(inodeSeed(im.seed, s.Inode, s.gen), b, limit); sum != le.Uint32(b[at:]) {
		return damaged("inode %d: an extent node has a wrong checksum", s.Inode)
	}
	return nil
}

// Extents calls fn for each range of bytes of a file that is stored, in order.
func (im *Image) Extents(s Stat, fn func(Segment) error) error {
	return im.eachExtent(s, func(int64) error { return nil }, func(m mapping, zero bool) error {
		if zero {
			return nil
		}
		return fn(Segment{m.lblk * blockSize, m.n * blockSize})
	})
}

// eachExtent calls node for each block of the extent tree before it is read,
// and fn for each extent, in order. That order is checked: so a tree, however
// built, has no more extents than a file has blocks.
func (im *Image) eachExtent(s Stat, node func(blk int64) error, fn func(m mapping, zero bool) error) error {
	if s.flags&flagExtents == 0 {
		return nil
	}
	next := int64(0)
	budget := im.info.Blocks // nodes; a block has one owner
	var visit func(b []byte, above int) error
	visit = func(b []byte, above int) error {
		h, err := parseExtentNode(s, b, above)
		if err != nil {
			return err
		}
		for i := 1; i <= h.entries; i++ {
			e := b[extentLen*i:]
			if h.depth == 0 {
				m, zero, err := im.parseExtent(s, e)
				if err != nil {
					return err
				}
				if m.lblk < next {
					return damaged("inode %d: its extents overlap or go backwards", s.Inode)
				}
				next = m.lblk + m.n
				if err := fn(m, zero); err != nil {
					return err
				}
				continue
			}
			lblk, blk := parseIndex(e)
			if lblk < next || budget == 0 {
				return damaged("inode %d: its extents overlap or go backwards", s.Inode)
			}
			budget--
			if err := node(blk); err != nil {
				return err
			}
			child := make([]byte, blockSize)
			if err := im.readExtentBlock(s, blk, child); err != nil {
				return err
			}
			if int64(le.Uint32(child[extentLen:])) != lblk {
				return damaged("inode %d: an extent node does not begin where its index says", s.Inode)
			}
			if err := visit(child, h.depth); err != nil {
				return err
			}
		}
		return nil
	}
	return visit(s.body[:], -1)
}
