package ext4

const (
	extentMagic  = 0xF30A
	extentLen    = 12    // of the header, of an extent and of an index entry
	extentMax    = 32768 // blocks of one extent
	rootExtents  = 4
	blockExtents = (blockSize - extentLen - 4) / extentLen
)

// splitExtents cuts extents that are longer than the format allows. out is
// room for them.
func splitExtents(out, exts []extent) []extent {
	out = out[:0]
	for _, e := range exts {
		for e.n > 0 {
			n := min(e.n, extentMax)
			out = append(out, extent{lblk: e.lblk, n: n, phys: e.phys})
			e = extent{lblk: e.lblk + n, n: e.n - n, phys: e.phys + n}
		}
	}
	return out
}

// extentNodes returns how many blocks the tree of n split extents needs beside
// the inode.
func extentNodes(n int) uint32 {
	total := 0
	for n > rootExtents {
		n = (n + blockExtents - 1) / blockExtents
		total += n
	}
	return uint32(total)
}

func countExtents(exts []extent) int {
	n := 0
	for _, e := range exts {
		n += int(e.n+extentMax-1) / extentMax
	}
	return n
}

// extentIndex is an entry above the leaves: the node at blk begins with lblk.
type extentIndex struct{ lblk, blk uint32 }

// putExtents writes the tree of exts, which are split: the root into the 60
// bytes of the inode, each node to the next of nodes in out.
func putExtents(root []byte, seed uint32, exts []extent, nodes []uint32, out *sink) error {
	depth := 0
	var above []extentIndex
	for count := len(exts); count > rootExtents; depth++ {
		var next []extentIndex
		for from := 0; from < count; from += blockExtents {
			to := min(from+blockExtents, count)
			var b [blockSize]byte
			putExtentHeader(b[:], to-from, blockExtents, depth)
			var first uint32
			if depth == 0 {
				first = exts[from].lblk
				putLeafExtents(b[extentLen:], exts[from:to])
			} else {
				first = above[from].lblk
				putIndexExtents(b[extentLen:], above[from:to])
			}
			sum, at := extentSum(seed, b[:], blockExtents)
			le.PutUint32(b[at:], sum)
			if err := out.putBlock(nodes[0], b[:]); err != nil {
				return err
			}
			next = append(next, extentIndex{first, nodes[0]})
			nodes = nodes[1:]
		}
		above, count = next, len(next)
	}
	clear(root[:60])
	if depth == 0 {
		putExtentHeader(root, len(exts), rootExtents, 0)
		putLeafExtents(root[extentLen:], exts)
		return nil
	}
	putExtentHeader(root, len(above), rootExtents, depth)
	putIndexExtents(root[extentLen:], above)
	return nil
}

func putExtentHeader(b []byte, entries, limit, depth int) {
	le.PutUint16(b[0:], extentMagic)
	le.PutUint16(b[2:], uint16(entries))
	le.PutUint16(b[4:], uint16(limit))
	le.PutUint16(b[6:], uint16(depth))
}

func putLeafExtents(b []byte, exts []extent) {
	for i, e := range exts {
		p := b[i*extentLen:]
		le.PutUint32(p[0:], e.lblk)
		le.PutUint16(p[4:], uint16(e.n))
		le.PutUint32(p[8:], e.phys)
	}
}

func putIndexExtents(b []byte, list []extentIndex) {
	for i, e := range list {
		p := b[i*extentLen:]
		le.PutUint32(p[0:], e.lblk)
		le.PutUint32(p[4:], e.blk)
	}
}
