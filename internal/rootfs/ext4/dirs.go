package ext4

// Sizes of the htree: entries of its root and of its other index blocks, and
// the bytes of names that a leaf holds.
const (
	leafRoom    = blockSize - dirTailLen
	indexRootAt = 0x20
	indexNodeAt = 8
	indexRoot   = (blockSize - indexRootAt - 8) / 8
	indexNode   = (blockSize - indexNodeAt - 8) / 8
	dotsLen     = 24
	halfMD4Hash = 1
)

var dots = []byte("..")

func direntLen(name int) int { return (8 + name + 3) &^ 3 }

// linearSize is the size of a directory without an htree, with its tail.
func (t *tree) linearSize(dir *node) int {
	size := dotsLen + dirTailLen
	for i := dir.head; i != 0 && size <= blockSize; {
		d := t.dirents.at(int(i - 1))
		size += direntLen(int(t.text.get(d.name, 1)[0]))
		i = d.next
	}
	return size
}

// leaf is a block of names of an htree: where it begins, and with what hash.
// The hash is odd when the leaf before it holds names of the same hash.
type leaf struct {
	head uint32 // dirent + 1
	hash uint32
}

// leaves cuts the sorted names of a directory into blocks.
func (t *tree) leaves(dir *node, seed *[4]uint32, out []leaf) []leaf {
	out = out[:0]
	room, last := 0, uint32(0)
	for i := dir.head; i != 0; {
		d := t.dirents.at(int(i - 1))
		name := t.nameOf(d)
		hash, _ := nameHash(seed, name)
		if n := direntLen(len(name)); n > room {
			l := leaf{head: i, hash: hash}
			if len(out) > 0 && hash == last {
				l.hash |= 1
			}
			out = append(out, l)
			room = leafRoom - n
		} else {
			room -= n
		}
		last = hash
		i = d.next
	}
	return out
}

// indexLevels returns how many index blocks each level of an htree has above n
// leaves, the lowest first, without the root.
func indexLevels(n int) []int {
	var levels []int
	for n > indexRoot {
		n = (n + indexNode - 1) / indexNode
		levels = append(levels, n)
	}
	return levels
}

// largeDirLevels is from which depth on an htree needs the feature large_dir,
// and maxDirLevels is the deepest one with it.
const (
	largeDirLevels = 2
	maxDirLevels   = 2
)

// dirShape is how many blocks a directory has and how deep its htree is.
type dirShape struct {
	blocks uint32
	levels int
}

// shape returns the shape of a sorted directory.
func (t *tree) shape(dir *node, seed *[4]uint32, work *[]leaf) dirShape {
	if t.linearSize(dir) <= blockSize {
		return dirShape{blocks: 1}
	}
	*work = t.leaves(dir, seed, *work)
	s := dirShape{blocks: 1 + uint32(len(*work))}
	for _, n := range indexLevels(len(*work)) {
		s.blocks += uint32(n)
		s.levels++
	}
	return s
}

// putDir writes the blocks of directory n.
func (t *tree) putDir(n Node, w *Writer, work *[]leaf, out *sink) error {
	dir := t.node(n)
	seed := inodeSeed(w.fsSeed, inodeNumber(n), 0)
	var b [blockSize]byte
	if dir.blocks == 1 {
		putDirent(b[:], inodeNumber(n), 12, dots[:1], 2)
		putDirent(b[12:], inodeNumber(dir.parent), blockSize-dirTailLen-12, dots, 2)
		if dir.head != 0 {
			le.PutUint16(b[12+4:], 12)
			t.putLeaf(b[:], dotsLen, dir.head, 0)
		}
		putDirTail(seed, b[:])
		return out.putBlock(dir.start, b[:])
	}
	*work = t.leaves(dir, &w.seed, *work)
	if err := t.putIndex(n, seed, *work, out); err != nil {
		return err
	}
	first := dir.start + dir.blocks - uint32(len(*work))
	for i, l := range *work {
		end := uint32(0)
		if i+1 < len(*work) {
			end = (*work)[i+1].head
		}
		clear(b[:])
		t.putLeaf(b[:], 0, l.head, end)
		putDirTail(seed, b[:])
		if err := out.putBlock(first+uint32(i), b[:]); err != nil {
			return err
		}
	}
	return nil
}

// putLeaf writes names from at on, from the dirent head up to end. The last one
// reaches to the tail.
func (t *tree) putLeaf(b []byte, at int, head, end uint32) {
	for i := head; i != end; {
		d := t.dirents.at(int(i - 1))
		name := t.nameOf(d)
		size := direntLen(len(name))
		if d.next == end {
			size = blockSize - dirTailLen - at
		}
		putDirent(b[at:], inodeNumber(d.node), size, name, direntType(t.node(d.node).mode))
		at += size
		i = d.next
	}
}

func putDirent(b []byte, ino uint32, size int, name []byte, kind byte) {
	le.PutUint32(b[0:], ino)
	le.PutUint16(b[4:], uint16(size))
	b[6], b[7] = byte(len(name)), kind
	copy(b[8:], name)
}

// putIndex writes the root of the htree and its index blocks. In the directory
// the root comes first, then the levels from the top down, then the leaves.
func (t *tree) putIndex(n Node, seed uint32, leaves []leaf, out *sink) error {
	dir := t.node(n)
	levels := indexLevels(len(leaves))
	type entry struct{ hash, blk uint32 }
	// below holds the entries of the level that was written last.
	below := make([]entry, len(leaves))
	next := dir.blocks - uint32(len(leaves)) // first block of that level
	for i, l := range leaves {
		below[i] = entry{l.hash, next + uint32(i)}
	}
	fill := func(b []byte, at, limit int, list []entry) {
		for i, e := range list {
			le.PutUint32(b[at+i*8:], e.hash)
			le.PutUint32(b[at+i*8+4:], e.blk)
		}
		// The first entry has no hash: its place holds the counts.
		le.PutUint16(b[at:], uint16(limit))
		le.PutUint16(b[at+2:], uint16(len(list)))
		le.PutUint32(b[at+limit*8+4:], indexSum(seed, b, at))
	}
	var b [blockSize]byte
	for _, count := range levels {
		next -= uint32(count)
		above := make([]entry, 0, count)
		for i := range count {
			part := below[i*indexNode : min((i+1)*indexNode, len(below))]
			above = append(above, entry{part[0].hash, next + uint32(i)})
			clear(b[:])
			le.PutUint16(b[4:], 0)
			putDirent(b[:], 0, blockSize, nil, 0)
			fill(b[:], indexNodeAt, indexNode, part)
			if err := out.putBlock(dir.start+next+uint32(i), b[:]); err != nil {
				return err
			}
		}
		below = above
	}
	clear(b[:])
	putDirent(b[:], inodeNumber(n), 12, dots[:1], 2)
	putDirent(b[12:], inodeNumber(dir.parent), blockSize-12, dots, 2)
	b[0x1C], b[0x1D], b[0x1E] = halfMD4Hash, 8, byte(len(levels))
	fill(b[:], indexRootAt, indexRoot, below)
	return out.putBlock(dir.start, b[:])
}
