package ext4

import (
	"context"
)

// Report counts what Verify looked at.
type Report struct {
	Inodes      int64 // in use, without the reserved ones that are empty
	Directories int64
	Names       int64
	Extents     int64
	XattrBlocks int64
	UsedBlocks  int64
}

// verifier keeps who owns what. A block has one owner, so the work is bounded
// by the size of the image even when the image lies.
type verifier struct {
	im     *Image
	ctx    context.Context //nolint:containedctx // lives as long as one call of Verify
	report Report
	owned  blockSet
	inodes map[int64]*[inodePage]inodeState
	xattrs map[int64]*xattrBlock
	values map[uint32]uint64 // references to inodes that hold xattr values
	dirs   []uint32          // inodes of directories, whose names are not yet read
}

const inodePage = 1024

// inodeState is what is known of an inode from its own record and from names.
type inodeState struct {
	mode   uint16
	links  uint16
	names  uint32
	kind   byte
	used   bool
	holder bool
	refs   uint64
}

// xattrBlock is a shared block: how many inodes it counts, how many were met,
// and the blocks of the large values that it leads to.
type xattrBlock struct {
	refs, met uint32
	large     int64
}

// Verify compares every checksum, follows everything that is in use, and holds
// bitmaps, free counts and link counts against it. It does not look into
// contents. It is for images with metadata checksums; of others it answers
// fault.Ext4Unsupported.
func (im *Image) Verify(ctx context.Context) (Report, error) {
	if !im.csum {
		return Report{}, unsupported("an image without metadata checksums cannot be verified")
	}
	return im.verify(ctx)
}

func (im *Image) verify(ctx context.Context) (Report, error) {
	v := &verifier{im: im, ctx: ctx, owned: blockSet{}, inodes: map[int64]*[inodePage]inodeState{}, xattrs: map[int64]*xattrBlock{}, values: map[uint32]uint64{}}
	for _, step := range []func() error{v.tables, v.allInodes, v.directories, v.links, v.sharing, v.blockMaps} {
		if err := step(); err != nil {
			return Report{}, err
		}
	}
	return v.report, nil
}

// claim takes n blocks for one owner.
func (v *verifier) claim(blk, n int64) error {
	if !v.im.inside(blk, n) && blk != 0 {
		return damaged("blocks %d to %d lie outside of the image", blk, blk+n)
	}
	if taken := v.owned.add(blk, n); taken >= 0 {
		return damaged("block %d has two owners", taken)
	}
	v.report.UsedBlocks += n
	return nil
}

// known returns the state of an inode that is in use, nil for any other.
func (v *verifier) known(ino uint32) *inodeState {
	page := v.inodes[int64(ino)/inodePage]
	if page == nil || !page[int64(ino)%inodePage].used {
		return nil
	}
	return &page[int64(ino)%inodePage]
}

func (v *verifier) inode(ino uint32) *inodeState {
	i := int64(ino)
	page := v.inodes[i/inodePage]
	if page == nil {
		page = new([inodePage]inodeState)
		v.inodes[i/inodePage] = page
	}
	return &page[i%inodePage]
}

// hasSuper says whether group g begins with a copy of the superblock.
func (im *Image) hasSuper(g int64) bool {
	if g == 0 {
		return true
	}
	if le.Uint32(im.super[0x5C:])&compatSparse2 != 0 {
		return g == int64(le.Uint32(im.super[0x24C:])) || g == int64(le.Uint32(im.super[0x250:]))
	}
	if le.Uint32(im.super[0x64:])&roSparse == 0 || g == 1 {
		return true
	}
	for _, base := range []int64{3, 5, 7} {
		n := base
		for n < g {
			n *= base
		}
		if n == g {
			return true
		}
	}
	return false
}

// tables claims superblocks, descriptors, bitmaps and inode tables.
func (v *verifier) tables() error {
	im := v.im
	descs := (im.info.Groups*im.descSize()+blockSize-1)/blockSize + int64(le.Uint16(im.super[0xCE:]))
	table := (im.perG*im.iSize + blockSize - 1) / blockSize
	for i, g := range im.groups {
		if im.hasSuper(int64(i)) {
			if err := v.claim(int64(i)*im.info.GroupBlocks, 1+descs); err != nil {
				return err
			}
		}
		for _, r := range []struct{ at, n int64 }{{g.blockMap, 1}, {g.inodeMap, 1}, {g.table, table}} {
			if err := v.claim(r.at, r.n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *verifier) allInodes() error {
	im, free := v.im, int64(0)
	bitmap := make([]byte, blockSize)
	for g, grp := range im.groups {
		if grp.inodeUninit {
			free += im.perG
			if int64(grp.freeInodes) != im.perG || grp.dirs != 0 {
				return damaged("group %d: inodes are in use but their bitmap is not", g)
			}
			continue
		}
		if err := im.readBlock(grp.inodeMap, bitmap); err != nil {
			return err
		}
		if !im.bitmapSum(bitmap[:im.perG/8], grp.inodeMapSum) {
			return damaged("group %d: its inode bitmap has a wrong checksum", g)
		}
		empty, dirs := int64(0), v.report.Directories
		for i := range im.perG {
			if bitmap[i/8]>>(i%8)&1 == 0 {
				empty++
				continue
			}
			if err := v.oneInode(uint32(int64(g)*im.perG + i + 1)); err != nil {
				return err
			}
		}
		if empty != int64(grp.freeInodes) || v.report.Directories-dirs != int64(grp.dirs) {
			return damaged("group %d: it counts its free inodes or its directories wrong", g)
		}
		free += empty
	}
	if free != im.info.FreeInodes {
		return damaged("superblock: it counts %d free inodes, the groups %d", im.info.FreeInodes, free)
	}
	return nil
}

func (v *verifier) oneInode(ino uint32) error {
	if err := v.ctx.Err(); err != nil {
		return err
	}
	if ino < inoFirst && ino != inoRoot {
		if empty, err := v.im.zeroInode(ino); err != nil || empty {
			return err
		}
	}
	s, err := v.im.Stat(ino)
	if err != nil {
		return err
	}
	st := v.inode(ino)
	st.used, st.mode, st.links = true, uint16(s.Mode), uint16(s.Links)
	st.holder, st.refs = s.flags&flagEAInode != 0, s.refs
	v.report.Inodes++
	blocks, err := v.extents(s)
	if err != nil {
		return err
	}
	n, err := v.attributes(s)
	if err != nil {
		return err
	}
	if (blocks+n)*(blockSize/512) != s.Blocks {
		return damaged("inode %d: it counts %d sectors, but has %d", ino, s.Blocks, (blocks+n)*(blockSize/512))
	}
	switch s.Mode & modeType {
	case modeDir:
		v.report.Directories++
		v.dirs = append(v.dirs, ino)
	case modeSymlink:
		_, err = v.im.Target(s)
	case modeRegular, modeChar, modeBlock, modeFIFO, modeSocket:
	default:
		if ino >= inoFirst {
			return damaged("inode %d: mode %o names no file type", ino, s.Mode)
		}
	}
	return err
}

// zeroInode says whether a reserved inode was never written.
func (im *Image) zeroInode(ino uint32) (bool, error) {
	b := make([]byte, im.iSize)
	if err := readFull(im.r, b, im.groups[0].table*blockSize+int64(ino-1)*im.iSize); err != nil {
		return false, err
	}
	for _, c := range b {
		if c != 0 {
			return false, nil
		}
	}
	return true, nil
}

// extents claims the blocks of an inode and returns how many there are.
func (v *verifier) extents(s Stat) (int64, error) {
	var blocks int64
	if s.flags&flagExtents == 0 {
		switch kind := s.Mode & modeType; {
		case kind == modeSymlink && s.Size <= fastTargetLen, s.Size == 0 && s.Blocks == 0, kind != modeRegular && kind != modeDir && kind != modeSymlink && kind != 0:
			return 0, nil
		}
		return 0, unsupported("inode %d: contents without extents", s.Inode)
	}
	end := int64(0)
	err := v.im.eachExtent(s, func(blk int64) error {
		blocks++
		return v.claim(blk, 1)
	}, func(m mapping, _ bool) error {
		v.report.Extents++
		blocks += m.n
		end = m.lblk + m.n
		return v.claim(m.phys, m.n)
	})
	if err == nil && end > blocksFor(s.Size) && s.Mode&modeType != 0 {
		return 0, damaged("inode %d: it has blocks behind its end", s.Inode)
	}
	return blocks, err
}

// attributes follows the xattrs of an inode. A shared block is read once.
func (v *verifier) attributes(s Stat) (int64, error) {
	var n int64
	if s.acl != 0 {
		n = 1
		if b := v.xattrs[s.acl]; b != nil {
			b.met++
			n += b.large
			s.acl = 0
		}
	}
	if s.acl != 0 {
		b, err := v.im.readXattrBlock(s)
		if err != nil {
			return 0, err
		}
		if err := v.claim(s.acl, 1); err != nil {
			return 0, err
		}
		shared := &xattrBlock{refs: le.Uint32(b[4:]), met: 1}
		v.xattrs[s.acl] = shared
		v.report.XattrBlocks++
		if err := eachXattr(s, b[32:], b, v.value(s, &shared.large)); err != nil {
			return 0, err
		}
		n += shared.large
	}
	if len(s.extra) >= 4 && le.Uint32(s.extra) == xattrMagic {
		err := eachXattr(s, s.extra[4:], s.extra[4:], v.value(s, &n))
		return n, err
	}
	return n, nil
}

// value returns a visitor that counts references to large values, adds up their
// blocks and reads each of them once.
func (v *verifier) value(s Stat, blocks *int64) func(rawXattr) error {
	return func(x rawXattr) error {
		if x.inode == 0 {
			return nil
		}
		*blocks += blocksFor(int64(x.size))
		v.values[x.inode]++
		if v.values[x.inode] > 1 {
			return nil
		}
		_, err := v.im.largeXattr(s, x)
		return err
	}
}

// directories reads the names of all directories. Every inode is known by now,
// so a name that leads to none in use costs no memory.
func (v *verifier) directories() error {
	for _, ino := range v.dirs {
		s, err := v.im.Stat(ino)
		if err != nil {
			return err
		}
		if err := v.directory(s); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) directory(s Stat) error {
	return v.im.readDir(s, blockSet{}, func(b []byte, first bool) error {
		if err := v.ctx.Err(); err != nil {
			return err
		}
		if first {
			up := le.Uint32(b[12:])
			above := v.known(up)
			if above == nil {
				return damaged("inode %d: its .. leads to inode %d", s.Inode, up)
			}
			above.names++
			v.inode(s.Inode).names++
		}
		return eachName(s, b, first, func(e Dirent) error {
			st := v.known(e.Inode)
			if st == nil {
				return damaged("inode %d: the name %.200q leads to inode %d, which is free", s.Inode, e.Name, e.Inode)
			}
			if st.kind != 0 && st.kind != e.Type || e.Type == 2 && st.kind != 0 {
				return damaged("inode %d: its names do not agree, or it is a directory with two", e.Inode)
			}
			st.kind = e.Type
			st.names++
			v.report.Names++
			return nil
		})
	})
}

// links holds the counts of links against the names that were met.
func (v *verifier) links() error {
	for at, page := range v.inodes {
		for i := range page {
			st, ino := &page[i], at*inodePage+int64(i)
			if !st.used {
				continue
			}
			if err := st.checkLinks(ino, v.values[uint32(ino)]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (st *inodeState) checkLinks(ino int64, refs uint64) error {
	if ino < inoFirst && ino != inoRoot {
		return nil
	}
	if st.holder {
		if refs == 0 || refs != st.refs || st.names != 0 {
			return damaged("inode %d: the xattr value in it counts its references wrong", ino)
		}
		return nil
	}
	if ino != inoRoot && st.kind != direntType(st.mode) {
		return damaged("inode %d: it has no name, or one of another type", ino)
	}
	many := st.mode&modeType == modeDir && st.links == 1
	if !many && uint32(st.links) != st.names {
		return damaged("inode %d: it counts %d links, but has %d", ino, st.links, st.names)
	}
	return nil
}

func (v *verifier) sharing() error {
	for blk, b := range v.xattrs {
		if b.refs != b.met {
			return damaged("xattr block %d: it counts %d inodes, but %d have it", blk, b.refs, b.met)
		}
	}
	return nil
}

// blockMaps holds the block bitmaps against the blocks that were claimed.
func (v *verifier) blockMaps() error {
	im, free := v.im, int64(0)
	bitmap := make([]byte, blockSize)
	for g, grp := range im.groups {
		if err := v.ctx.Err(); err != nil {
			return err
		}
		if err := im.readBlock(grp.blockMap, bitmap); err != nil {
			return err
		}
		if !grp.blockUninit && !im.bitmapSum(bitmap[:im.info.GroupBlocks/8], grp.blockMapSum) {
			return damaged("group %d: its block bitmap has a wrong checksum", g)
		}
		from, n := int64(g)*im.info.GroupBlocks, int64(0)
		for i := range im.info.GroupBlocks {
			blk := from + i
			used := blk >= im.info.Blocks || v.owned.has(blk)
			if marked := bitmap[i/8]>>(i%8)&1 == 1; !grp.blockUninit && marked != used {
				return damaged("block %d: the bitmap says that it is in use: %t", blk, marked)
			}
			if !used {
				n++
			}
		}
		if n != int64(grp.freeBlocks) {
			return damaged("group %d: it counts %d free blocks, but has %d", g, grp.freeBlocks, n)
		}
		free += n
	}
	if free != im.info.FreeBlocks {
		return damaged("superblock: it counts %d free blocks, the groups %d", im.info.FreeBlocks, free)
	}
	return nil
}
