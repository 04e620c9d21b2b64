package ext4

// blockSet is a set of blocks, or of inodes, of an image. It takes memory for
// what is in it, not for the size that an image claims.
type blockSet map[int64]*[blockSize]byte

// add puts n blocks from blk on into the set. It returns the first that was in
// it before, -1 when none was.
func (s blockSet) add(blk, n int64) int64 {
	for ; n > 0; n-- {
		page := s[blk/maxGroupBits]
		if page == nil {
			page = new([blockSize]byte)
			s[blk/maxGroupBits] = page
		}
		bit := blk % maxGroupBits
		if page[bit/8]>>(bit%8)&1 == 1 {
			return blk
		}
		page[bit/8] |= 1 << (bit % 8)
		blk++
	}
	return -1
}

func (s blockSet) has(blk int64) bool {
	page := s[blk/maxGroupBits]
	return page != nil && page[blk%maxGroupBits/8]>>(blk%8)&1 == 1
}
