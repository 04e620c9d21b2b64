package ext4

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc continues a CRC-32C in the form that ext4 stores: without the inversion
// at both ends that the usual form has.
func crc(seed uint32, p []byte) uint32 { return ^crc32.Update(^seed, castagnoli, p) }

func crc32Of(seed, v uint32) uint32 {
	var b [4]byte
	le.PutUint32(b[:], v)
	return crc(seed, b[:])
}

// inodeSeed is where the checksums of an inode and of its blocks begin. Our
// inodes have generation 0.
func inodeSeed(fs, ino, generation uint32) uint32 {
	return crc32Of(crc32Of(fs, ino), generation)
}

// inodeSum returns the checksum of an inode's bytes. It reads past the fields
// that hold it.
func inodeSum(seed uint32, b []byte) uint32 {
	var zero [2]byte
	c := crc(seed, b[:0x7C])
	c = crc(c, zero[:])
	if len(b) < 0x84 || le.Uint16(b[0x80:]) < 4 { // no room for the upper half
		return crc(c, b[0x7E:])
	}
	c = crc(c, b[0x7E:0x82])
	c = crc(c, zero[:])
	return crc(c, b[0x84:])
}

func putInodeSum(seed uint32, b []byte) {
	c := inodeSum(seed, b)
	le.PutUint16(b[0x7C:], uint16(c))
	le.PutUint16(b[0x82:], uint16(c>>16))
}

// descSum returns the checksum of group g's descriptor.
func descSum(fs, g uint32, b []byte) uint16 {
	var zero [2]byte
	c := crc(crc32Of(fs, g), b[:0x1E])
	c = crc(c, zero[:])
	return uint16(crc(c, b[0x20:]))
}

// dirTailLen is the size of the fake entry that ends a directory leaf and holds
// the checksum of what comes before it.
const dirTailLen = 12

func putDirTail(seed uint32, b []byte) {
	t := b[blockSize-dirTailLen:]
	clear(t)
	le.PutUint16(t[4:], dirTailLen)
	t[7] = 0xDE
	le.PutUint32(t[8:], crc(seed, b[:blockSize-dirTailLen]))
}

// indexSum returns the checksum of an htree block whose entries begin at from.
func indexSum(seed uint32, b []byte, from int) uint32 {
	limit, count := int(le.Uint16(b[from:])), int(le.Uint16(b[from+2:]))
	var zero [4]byte
	c := crc(seed, b[:from+count*8])
	c = crc(c, b[from+limit*8:from+limit*8+4])
	return crc(c, zero[:])
}

// extentSum returns the checksum of an extent block with room for limit
// entries, and where it is stored.
func extentSum(seed uint32, b []byte, limit int) (sum uint32, at int) {
	at = extentLen + limit*extentLen
	return crc(seed, b[:at]), at
}

// xattrSum returns the checksum of the xattr block with number blk.
func xattrSum(fs uint32, blk uint64, b []byte) uint32 {
	var nr, zero [8]byte
	le.PutUint64(nr[:], blk)
	c := crc(crc(fs, nr[:]), b[:16])
	c = crc(c, zero[:4])
	return crc(c, b[20:])
}
