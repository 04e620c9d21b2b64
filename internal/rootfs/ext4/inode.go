package ext4

// inodeWriter writes inode tables and what hangs on inodes: extent nodes.
type inodeWriter struct {
	w      *Writer
	table  *sink
	nodes  *sink
	sums   []uint32 // of the large xattr values
	dirs   []uint32 // directories in each group
	freed  []run    // by ElideZeros
	record [inodeSize]byte

	room, split []extent // to work in
}

// writeAll writes every inode. Those of a tree without elided zeros only read
// what Layout fixed.
func (iw *inodeWriter) writeAll() error {
	l := iw.w.layout
	for i := range iw.w.tree.nodes.n {
		n := Node(i)
		if err := iw.encode(n); err != nil {
			return err
		}
		ino := int64(inodeNumber(n))
		if iw.w.tree.node(n).is(modeDir) {
			iw.dirs[(ino-1)/l.groupInodes]++
		}
		// Tables of all groups lie together, so an inode's number is its place.
		if err := iw.table.put(l.inodeTables*blockSize+(ino-1)*inodeSize, iw.record[:]); err != nil {
			return err
		}
	}
	return nil
}

func (iw *inodeWriter) encode(n Node) error {
	t := &iw.w.tree
	nd, b := t.node(n), iw.record[:]
	clear(b)
	le.PutUint16(b[0x00:], nd.mode)
	le.PutUint16(b[0x02:], uint16(nd.uid))
	le.PutUint32(b[0x04:], uint32(nd.size))
	le.PutUint32(b[0x08:], nd.atime.low())
	le.PutUint32(b[0x0C:], nd.ctime.low())
	le.PutUint32(b[0x10:], nd.mtime.low())
	le.PutUint16(b[0x18:], uint16(nd.gid))
	le.PutUint16(b[0x1A:], nd.linkCount())
	le.PutUint32(b[0x6C:], uint32(nd.size>>32))
	le.PutUint16(b[0x78:], uint16(nd.uid>>16))
	le.PutUint16(b[0x7A:], uint16(nd.gid>>16))
	le.PutUint16(b[0x80:], extraIsize)
	le.PutUint32(b[0x84:], nd.ctime.extra())
	le.PutUint32(b[0x88:], nd.mtime.extra())
	le.PutUint32(b[0x8C:], nd.atime.extra())
	// There is no time of making: the one that changes least stands for it.
	le.PutUint32(b[0x90:], nd.mtime.low())
	le.PutUint32(b[0x94:], nd.mtime.extra())
	if nd.ea {
		iw.encodeLarge(nd, b)
	}
	blocks, err := iw.encodeBlocks(n, nd, b)
	if err != nil {
		return err
	}
	if nd.xattr != 0 {
		s := &t.xattrs.sets[nd.xattr-1]
		blocks += s.largeBlocks()
		t.xattrs.putBody(b[128+extraIsize:], s, iw.sums)
		if len(s.block) > 0 {
			le.PutUint32(b[0x68:], s.first+s.met/xattrShare)
			s.met++
			blocks++
		}
	}
	sectors := blocks * (blockSize / 512)
	le.PutUint32(b[0x1C:], uint32(sectors))
	le.PutUint16(b[0x74:], uint16(sectors>>32))
	putInodeSum(inodeSeed(iw.w.fsSeed, inodeNumber(n), 0), b)
	return nil
}

// linkCount is i_links_count. A directory with too many to count has 1.
func (nd *node) linkCount() uint16 {
	if !nd.is(modeDir) {
		return uint16(nd.links)
	}
	if nd.links+2 > maxLinks {
		return 1
	}
	return uint16(nd.links + 2)
}

// encodeLarge stores what the kernel wants to find in an inode that holds an
// xattr value: the value's hash as atime, its references as ctime and version.
func (iw *inodeWriter) encodeLarge(nd *node, b []byte) {
	refs := iw.w.tree.xattrs.large[nd.aux].refs
	le.PutUint32(b[0x08:], iw.sums[nd.aux])
	le.PutUint32(b[0x0C:], uint32(refs>>32))
	le.PutUint32(b[0x24:], uint32(refs))
	le.PutUint32(b[0x20:], flagEAInode)
}

// encodeBlocks writes i_block and the flags that explain it, and returns how
// many blocks hang on the inode.
func (iw *inodeWriter) encodeBlocks(n Node, nd *node, b []byte) (int64, error) {
	t, l := &iw.w.tree, iw.w.layout
	flags := le.Uint32(b[0x20:])
	var exts []extent
	var nodes []uint32
	switch nd.mode & modeType {
	case modeChar, modeBlock:
		if major, minor := nd.aux>>8&0xFFF, nd.aux&0xFF|nd.aux>>12&^0xFF; major < 256 && minor < 256 {
			le.PutUint32(b[0x28:], major<<8|minor)
		} else {
			le.PutUint32(b[0x2C:], nd.aux)
		}
		return 0, nil
	case modeFIFO, modeSocket:
		return 0, nil
	case modeSymlink:
		if nd.size <= fastTargetLen {
			copy(b[0x28:0x28+60], t.target(nd))
			return 0, nil
		}
		exts = append(iw.split[:0], extent{n: 1, phys: uint32(l.slow) + nd.aux})
	case modeDir:
		if nd.blocks > 1 {
			flags |= flagIndex
		}
		exts, nodes = iw.layoutExtents(n, nd)
	default:
		exts, nodes = iw.layoutExtents(n, nd)
	}
	le.PutUint32(b[0x20:], flags|flagExtents)
	blocks := int64(len(nodes))
	for _, e := range exts {
		blocks += int64(e.n)
	}
	seed := inodeSeed(iw.w.fsSeed, inodeNumber(n), 0)
	return blocks, putExtents(b[0x28:], seed, exts, nodes, iw.nodes)
}

// layoutExtents returns the extents of a node, split, and the blocks of their
// tree. When elided zeros made more extents than were planned, the tree grows
// into the blocks that they set free.
func (iw *inodeWriter) layoutExtents(n Node, nd *node) (exts []extent, nodes []uint32) {
	planned := iw.w.data.planned(nd, iw.room)
	have := extentNodes(countExtents(planned))
	for i := range have {
		nodes = append(nodes, iw.w.layout.nodeBlocks[n]+i)
	}
	var zeros []run
	if nd.data != 0 && len(iw.w.data.zeros) > 0 {
		zeros = iw.w.data.zeros[nd.data]
	}
	if len(zeros) == 0 {
		iw.split = splitExtents(iw.split, planned)
		return iw.split, nodes
	}
	if m := iw.w.data.sparse[nd.data]; m != nil {
		zeros = without(zeros, m.edges(nd.size))
	}
	left, free := elide(planned, zeros)
	exts = splitExtents(nil, left)
	need := extentNodes(len(exts))
	for i := need; i < have; i++ {
		iw.freed = append(iw.freed, run{nodes[i], 1})
	}
	nodes = nodes[:min(need, have)]
	for len(nodes) < int(need) {
		nodes = append(nodes, free[0].at)
		free[0].at++
		if free[0].n--; free[0].n == 0 {
			free = free[1:]
		}
	}
	iw.freed = append(iw.freed, free...)
	return exts, nodes
}
