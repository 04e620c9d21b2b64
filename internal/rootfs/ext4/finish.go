package ext4

import (
	"cmp"
	"errors"
	"slices"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Finish writes all metadata and the last byte of the image. Every Stream must
// be closed and every file complete: else it answers fault.InvalidInput, and
// fault.Bug for misuse. It does not sync the file.
func (w *Writer) Finish() (Layout, error) {
	if w.ended {
		return Layout{}, fault.New(fault.Bug, "an image is finished twice")
	}
	w.ended = true
	if _, err := w.Layout(); err != nil {
		return Layout{}, err
	}
	if err := w.complete(); err != nil {
		return Layout{}, err
	}
	if err := w.file.Truncate(w.layout.blocks * blockSize); err != nil {
		return Layout{}, w.writeError(err)
	}
	sums := w.largeSums()
	if err := w.writeRegions(sums); err != nil {
		return Layout{}, err
	}
	dirs, err := w.writeInodes(sums)
	if err != nil {
		return Layout{}, err
	}
	if err := w.writeGroups(dirs); err != nil {
		return Layout{}, err
	}
	return w.report(), nil
}

// complete makes sure that all contents are there.
func (w *Writer) complete() error {
	if w.streams.Load() != 0 {
		return fault.New(fault.Bug, "an image is finished before its streams are closed")
	}
	if w.failed.Load() {
		return fault.New(fault.Bug, "an image is finished after a write to it failed")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.tree.nodes.n {
		if d := w.tree.nodes.at(i).data; d != 0 && !w.data.done.has(d) {
			return fault.New(fault.InvalidInput, "%.200q: its contents were not written in full", w.tree.anyName(Node(i)))
		}
	}
	return nil
}

// anyName returns a name of n, for messages.
func (t *tree) anyName(n Node) []byte {
	for i := range t.dirents.n {
		if d := t.dirents.at(i); d.node == n {
			return t.nameOf(d)
		}
	}
	return nil
}

func (w *Writer) largeSums() []uint32 {
	sums := make([]uint32, len(w.tree.xattrs.large))
	for i, v := range w.tree.xattrs.large {
		sums[i] = crc(w.fsSeed, v.value)
	}
	return sums
}

// writeRegions writes what lies between the contents and the inode tables,
// without extent nodes.
func (w *Writer) writeRegions(sums []uint32) error {
	t, l, out := &w.tree, w.layout, &sink{w: w}
	var work []leaf
	for i := range t.nodes.n {
		if t.nodes.at(i).is(modeDir) {
			if err := t.putDir(Node(i), w, &work, out); err != nil {
				return err
			}
		}
	}
	var b [blockSize]byte
	for i := range t.nodes.n {
		if nd := t.nodes.at(i); nd.is(modeSymlink) && nd.size > fastTargetLen {
			clear(b[copy(b[:], t.target(nd)):])
			if err := out.putBlock(uint32(l.slow)+nd.aux, b[:]); err != nil {
				return err
			}
		}
	}
	for _, v := range t.xattrs.large {
		if v.refs == 0 {
			continue
		}
		for at, nd := 0, t.node(v.node); at < len(v.value); at += blockSize {
			clear(b[copy(b[:], v.value[at:]):])
			if err := out.putBlock(nd.start+uint32(at/blockSize), b[:]); err != nil {
				return err
			}
		}
	}
	for i := range t.xattrs.sets {
		s := &t.xattrs.sets[i]
		for k := range s.blocks() {
			refs := min(xattrShare, s.uses-k*xattrShare)
			t.xattrs.putBlock(b[:], w.fsSeed, uint64(s.first+k), s, refs, sums)
			if err := out.putBlock(s.first+k, b[:]); err != nil {
				return err
			}
		}
	}
	return out.flush()
}

func (w *Writer) writeInodes(sums []uint32) ([]uint32, error) {
	iw := &inodeWriter{w: w, table: &sink{w: w}, nodes: &sink{w: w}, sums: sums, dirs: make([]uint32, w.layout.groups), room: make([]extent, 1)}
	if err := iw.writeAll(); err != nil {
		return nil, err
	}
	if err := iw.nodes.flush(); err != nil {
		return nil, err
	}
	w.layout.free = append(w.layout.free, iw.freed...)
	return iw.dirs, iw.table.flush()
}

// writeGroups writes bitmaps, descriptors and the superblock.
func (w *Writer) writeGroups(dirs []uint32) error {
	l := w.layout
	blockMaps, inodeMaps := &sink{w: w}, &sink{w: w}
	slices.SortFunc(l.free, func(a, b run) int { return cmp.Compare(a.at, b.at) })
	free := l.free
	descs := make([]byte, l.descBlocks*blockSize)
	var freeBlocks int64
	for g := range l.groups {
		d := descs[g*descSize:][:descSize]
		var blockMap, inodeMap [blockSize]byte
		var n uint32
		n, free = l.markBlocks(blockMap[:], g, free)
		freeBlocks += int64(n)
		used := min(max(l.usedInodes-g*l.groupInodes, 0), l.groupInodes)
		markInodes(inodeMap[:], used, l.groupInodes)
		w.putDesc(d, g, n, uint32(l.groupInodes-used), dirs[g], blockMap[:], inodeMap[:])
		if err := errors.Join(blockMaps.put((l.blockBitmaps+g)*blockSize, blockMap[:]), inodeMaps.put((l.inodeBitmaps+g)*blockSize, inodeMap[:])); err != nil {
			return err
		}
	}
	if err := errors.Join(blockMaps.flush(), inodeMaps.flush()); err != nil {
		return err
	}
	var head [superOffset + superSize]byte
	w.putSuper(head[superOffset:], freeBlocks)
	if err := w.writeAt(head[:], 0); err != nil {
		return err
	}
	return w.writeAt(descs, blockSize)
}

// markBlocks fills a group's block bitmap: ones, but zeros for what is free.
// It returns how many are, and the runs that reach beyond the group.
func (l *layout) markBlocks(b []byte, g int64, free []run) (uint32, []run) {
	for i := range b {
		b[i] = 0xFF
	}
	from, n := g*l.groupBlocks, uint32(0)
	end := min(from+l.groupBlocks, l.blocks)
	for len(free) > 0 && int64(free[0].at) < end {
		r := free[0]
		stop := min(int64(r.at)+int64(r.n), end)
		for at := max(int64(r.at), from); at < stop; at++ {
			b[(at-from)/8] &^= 1 << ((at - from) % 8)
			n++
		}
		if stop < int64(r.at)+int64(r.n) {
			break
		}
		free = free[1:]
	}
	return n, free
}

func markInodes(b []byte, used, total int64) {
	for i := range int64(len(b) * 8) {
		if i < used || i >= total {
			b[i/8] |= 1 << (i % 8)
		}
	}
}

func (w *Writer) putDesc(d []byte, g int64, freeBlocks, freeInodes, dirs uint32, blockMap, inodeMap []byte) {
	l := w.layout
	put := func(lo, hi int, v int64) {
		le.PutUint32(d[lo:], uint32(v))
		le.PutUint32(d[hi:], uint32(v>>32))
	}
	half := func(lo, hi int, v uint32) {
		le.PutUint16(d[lo:], uint16(v))
		le.PutUint16(d[hi:], uint16(v>>16))
	}
	put(0x00, 0x20, l.blockBitmaps+g)
	put(0x04, 0x24, l.inodeBitmaps+g)
	put(0x08, 0x28, l.inodeTables+g*l.groupInodes/inodesPerBlk)
	half(0x0C, 0x2C, freeBlocks)
	half(0x0E, 0x2E, freeInodes)
	half(0x10, 0x30, dirs)
	half(0x1C, 0x32, freeInodes) // all at the end of the table, never used
	half(0x18, 0x38, crc(w.fsSeed, blockMap[:l.groupBlocks/8]))
	half(0x1A, 0x3A, crc(w.fsSeed, inodeMap[:l.groupInodes/8]))
	flags := uint16(groupInodeZeroed)
	if int64(freeInodes) == l.groupInodes {
		flags |= groupInodeUninit
	}
	le.PutUint16(d[0x12:], flags)
	le.PutUint16(d[0x1E:], descSum(w.fsSeed, uint32(g), d))
}

func (w *Writer) putSuper(b []byte, freeBlocks int64) {
	l := w.layout
	made := uint64(w.opts.Time.Unix())
	le.PutUint32(b[0x00:], uint32(l.groups*l.groupInodes))
	le.PutUint32(b[0x04:], uint32(l.blocks))
	le.PutUint32(b[0x0C:], uint32(freeBlocks))
	le.PutUint32(b[0x10:], uint32(l.groups*l.groupInodes-l.usedInodes))
	le.PutUint32(b[0x18:], 2) // 1024 << 2
	le.PutUint32(b[0x1C:], 2)
	le.PutUint32(b[0x20:], uint32(l.groupBlocks))
	le.PutUint32(b[0x24:], uint32(l.groupBlocks))
	le.PutUint32(b[0x28:], uint32(l.groupInodes))
	le.PutUint32(b[0x30:], uint32(made))
	le.PutUint16(b[0x36:], 0xFFFF)
	le.PutUint16(b[0x38:], superMagic)
	le.PutUint16(b[0x3A:], 1) // clean
	le.PutUint16(b[0x3C:], 1) // go on after errors
	le.PutUint32(b[0x40:], uint32(made))
	le.PutUint32(b[0x4C:], 1)
	le.PutUint32(b[0x54:], inoFirst)
	le.PutUint16(b[0x58:], inodeSize)
	le.PutUint32(b[0x5C:], l.features.compat)
	le.PutUint32(b[0x60:], l.features.incompat)
	le.PutUint32(b[0x64:], l.features.ro)
	copy(b[0x68:0x78], w.opts.UUID[:])
	copy(b[0x78:0x88], w.opts.Label)
	copy(b[0xEC:0xFC], w.opts.HashSeed[:])
	b[0xFC] = halfMD4Hash
	le.PutUint16(b[0xFE:], descSize)
	le.PutUint32(b[0x100:], 0xC) // mount with user xattrs and ACLs
	le.PutUint32(b[0x108:], uint32(made))
	le.PutUint16(b[0x15C:], extraIsize)
	le.PutUint16(b[0x15E:], extraIsize)
	le.PutUint32(b[0x160:], superUnsignedHash)
	b[0x174] = 4 // log of the groups in a flexible group
	b[0x175] = 1 // CRC-32C
	if w.opts.ChecksumSeed != nil {
		le.PutUint32(b[0x270:], w.fsSeed)
	}
	b[0x274], b[0x276], b[0x277] = byte(made>>32), byte(made>>32), byte(made>>32)
	le.PutUint32(b[0x3FC:], crc(^uint32(0), b[:0x3FC]))
}
