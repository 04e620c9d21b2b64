package ext4

import "github.com/paddock-dev/paddock/internal/fault"

// Layout is what an image will be, or is.
type Layout struct {
	Size        int64 // bytes of the file
	Blocks      int64
	FreeBlocks  int64 // after Finish with ElideZeros there are more
	Groups      int64
	GroupBlocks int64
	Inodes      int64
	FreeInodes  int64
	Entries     int64 // inodes of the tree, without the root and without a lost+found that was not added
	Names       int64 // directory entries, hard links counted each
	Directories int64
}

// layout is where everything lies, in blocks.
type layout struct {
	blocks, groups, groupBlocks  int64
	groupInodes                  int64
	usedInodes                   int64
	descBlocks                   int64
	blockBitmaps, inodeBitmaps   int64
	slow, large, xattrs, extents int64 // first block of each region
	inodeTables                  int64
	metaEnd                      int64           // of the regions before the inode tables
	end                          int64           // of what is used
	nodeBlocks                   map[Node]uint32 // first extent node of files with more than four extents
	features                     features
	free                         []run
}

type features struct{ compat, incompat, ro uint32 }

// Layout fixes the tree and says how large the image will be. After it nothing
// can be added; contents may still be streamed. It answers fault.InvalidInput
// for a name that a directory holds twice and fault.ImageUnfit for more than
// ext4 can hold. Further calls answer the same.
func (w *Writer) Layout() (Layout, error) {
	if w.layout == nil && w.planErr == nil {
		w.layout, w.planErr = w.plan()
	}
	if w.planErr != nil {
		return Layout{}, w.planErr
	}
	return w.report(), nil
}

func (w *Writer) report() Layout {
	l := w.layout
	out := Layout{
		Size: l.blocks * blockSize, Blocks: l.blocks, Groups: l.groups, GroupBlocks: l.groupBlocks,
		Inodes: l.groups * l.groupInodes, FreeInodes: l.groups*l.groupInodes - l.usedInodes,
		Names: int64(w.tree.dirents.n), Entries: int64(w.tree.nodes.n) - 1 - int64(w.tree.xattrs.made),
	}
	if !w.tree.lostSet {
		out.Names--
		out.Entries--
	}
	for _, r := range l.free {
		out.FreeBlocks += int64(r.n)
	}
	for i := range w.tree.nodes.n {
		if w.tree.nodes.at(i).is(modeDir) {
			out.Directories++
		}
	}
	return out
}

func (w *Writer) plan() (*layout, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := &w.tree
	if err := w.data.allClaimed(); err != nil {
		return nil, err
	}
	if !t.lostSet {
		t.link(Root, lostName, lost)
	}
	slow := t.countUses()
	l := &layout{nodeBlocks: map[Node]uint32{}, features: features{
		compat:   compatExtAttr | compatDirIndex | compatSparse2,
		incompat: incompatFiletype | incompatExtents | incompat64Bit | incompatFlexBG,
		ro:       roLargeFile | roHugeFile | roDirNlink | roExtraIsize | roMetadataCsum,
	}}
	if w.opts.ChecksumSeed != nil {
		l.features.incompat |= incompatCsumSeed
	}
	w.data.align()
	end, err := w.planDirs(l, int64(w.data.next))
	if err != nil {
		return nil, err
	}
	l.slow = end
	end += slow
	l.large = end
	end = w.planLarge(l, end)
	l.xattrs = end
	for i := range t.xattrs.sets {
		s := &t.xattrs.sets[i]
		s.first = uint32(min(end, maxBlocks))
		end += int64(s.blocks())
	}
	l.extents = end
	end = w.planExtents(l, end)
	l.metaEnd = end
	if err := w.planGroups(l); err != nil {
		return nil, err
	}
	w.planFree(l)
	return l, nil
}

// planDirs sorts every directory and gives it its blocks.
func (w *Writer) planDirs(l *layout, at int64) (int64, error) {
	t := &w.tree
	var keys []sortKey
	var work []leaf
	for i := range t.nodes.n {
		dir := t.nodes.at(i)
		if !dir.is(modeDir) {
			continue
		}
		var err error
		if keys, err = t.sortDir(Node(i), &w.seed, keys); err != nil {
			return 0, err
		}
		s := t.shape(dir, &w.seed, &work)
		if s.levels > maxDirLevels {
			return 0, fault.New(fault.ImageUnfit, "%s has more names than an ext4 directory can hold", t.path(Node(i)))
		}
		if s.levels >= largeDirLevels {
			l.features.incompat |= incompatLargeDir
		}
		if at+int64(s.blocks) > maxBlocks {
			return 0, tooLarge()
		}
		dir.start, dir.blocks, dir.size = uint32(at), s.blocks, int64(s.blocks)*blockSize
		at += int64(s.blocks)
	}
	return at, nil
}

// planLarge gives xattr values that fit in no block their inodes and blocks.
func (w *Writer) planLarge(l *layout, at int64) int64 {
	x := &w.tree.xattrs
	for i := range x.sets {
		s := &x.sets[i]
		for _, a := range s.body {
			if a.inode != 0 {
				x.large[a.inode-1].refs += uint64(s.uses)
			}
		}
		for _, a := range s.block {
			if a.inode != 0 {
				x.large[a.inode-1].refs += uint64(s.blocks())
			}
		}
	}
	for i := range x.large {
		v := &x.large[i]
		if v.refs == 0 {
			continue
		}
		l.features.incompat |= incompatEAInode
		nd := node{mode: modeRegular | 0o600, ea: true, links: 1, size: int64(len(v.value)), aux: uint32(i)}
		nd.start, nd.blocks = uint32(min(at, maxBlocks)), uint32(blocksFor(nd.size))
		at += int64(nd.blocks)
		v.node = Node(w.tree.nodes.add(nd))
		x.made++
	}
	return at
}

// planExtents gives blocks to the extent trees that leave their inode.
func (w *Writer) planExtents(l *layout, at int64) int64 {
	room := make([]extent, 1)
	for i := range w.tree.nodes.n {
		nd := w.tree.nodes.at(i)
		if nd.blocks <= extentMax && nd.data == 0 || nd.is(modeSymlink) {
			continue
		}
		if n := extentNodes(countExtents(w.data.planned(nd, room))); n > 0 {
			l.nodeBlocks[Node(i)] = uint32(min(at, maxBlocks))
			at += int64(n)
		}
	}
	return at
}

// planGroups finds the number of groups. Each group adds inodes and with them
// blocks, so it tries one after another.
func (w *Writer) planGroups(l *layout) error {
	l.usedInodes = int64(inodeNumber(Node(w.tree.nodes.n - 1)))
	want := l.usedInodes + w.opts.SpareInodes
	least := (want + maxGroupBits - 1) / maxGroupBits
	for groups := least; ; {
		l.groups, l.groupBlocks = groups, maxGroupBits
		l.groupInodes = roundUp((want+groups-1)/groups, inodesPerBlk)
		l.descBlocks = (groups + blockSize/descSize - 1) / (blockSize / descSize)
		if l.descBlocks > maxDescBlocks {
			return tooLarge()
		}
		l.inodeTables = roundUp(l.metaEnd, alignBlocks)
		l.end = l.inodeTables + groups*l.groupInodes/inodesPerBlk
		l.blockBitmaps = 1 + l.descBlocks
		if l.blockBitmaps+2*groups > headBlocks {
			l.blockBitmaps = l.end
			l.end += 2 * groups
		}
		l.inodeBitmaps = l.blockBitmaps + groups
		l.blocks = roundUp(l.end+blocksFor(w.opts.SpareBytes), sizeBlocks)
		need := (l.blocks + maxGroupBits - 1) / maxGroupBits
		if need > groups {
			groups = need
			continue
		}
		if need < groups && groups == least {
			// Only the inodes ask for so many groups: make them smaller.
			l.groupBlocks = roundUp((l.blocks+groups-1)/groups, 8)
		}
		if floor := (groups - 1) * l.groupBlocks; l.blocks <= floor {
			l.blocks = roundUp(floor+1, sizeBlocks)
		}
		return nil
	}
}

// planFree lists the blocks that nothing uses.
func (w *Writer) planFree(l *layout) {
	l.free = append(l.free, w.data.free...)
	gap := func(from, to int64) {
		if to > from {
			l.free = append(l.free, run{uint32(from), uint32(to - from)})
		}
	}
	head := 1 + l.descBlocks
	if l.blockBitmaps == head {
		head += 2 * l.groups
	}
	gap(head, headBlocks)
	gap(l.metaEnd, l.inodeTables)
	gap(l.end, l.blocks)
}

func tooLarge() error {
	return fault.New(fault.ImageUnfit, "the image would have more than %d bytes", maxBlocks*blockSize)
}

// countUses numbers long symlinks and counts how many inodes have each xattr
// set. Refused entries and an earlier root may have made some that none has.
func (t *tree) countUses() (slow int64) {
	for i := range t.xattrs.sets {
		t.xattrs.sets[i].uses = 0
	}
	for i := range t.nodes.n {
		nd := t.nodes.at(i)
		if nd.xattr != 0 {
			t.xattrs.sets[nd.xattr-1].uses++
		}
		if nd.is(modeSymlink) && nd.size > fastTargetLen {
			nd.aux = uint32(slow)
			slow++
		}
	}
	return slow
}

// inodeNumber is the number of a node on disk.
func inodeNumber(n Node) uint32 {
	if n == Root {
		return inoRoot
	}
	return inoFirst - 1 + uint32(n)
}
