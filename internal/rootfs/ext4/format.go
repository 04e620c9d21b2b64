package ext4

import "encoding/binary"

// Sizes of the format as we write it.
const (
	blockSize     = 4096
	inodeSize     = 256
	descSize      = 64
	inodesPerBlk  = blockSize / inodeSize
	maxGroupBits  = blockSize * 8 // of a bitmap block: blocks or inodes of a group
	headBlocks    = 128           // superblock, descriptors and bitmaps come before the contents
	alignBlocks   = 128           // regions begin at multiples of 512 KiB
	sizeBlocks    = 512           // an image ends at a multiple of 2 MiB
	maxDescBlocks = headBlocks - 1
	maxBlocks     = int64(maxDescBlocks) * (blockSize / descSize) * maxGroupBits // about 1 TiB
	superOffset   = 1024
	superSize     = 1024
	superMagic    = 0xEF53
	extraIsize    = 32
	maxLinks      = 65000
	maxNameLen    = 255
	maxTargetLen  = blockSize - 1
	fastTargetLen = 59
	maxFileSize   = (int64(1)<<32 - 1) * blockSize
)

// Inode numbers that the format reserves.
const (
	inoRoot  = 2
	inoFirst = 11 // lost+found
)

// Features, by the class that says what a reader without them may do.
const (
	compatExtAttr     = 0x8
	compatJournal     = 0x4
	compatDirIndex    = 0x20
	compatSparse2     = 0x200
	incompatFiletype  = 0x2
	incompatRecover   = 0x4
	incompatExtents   = 0x40
	incompat64Bit     = 0x80
	incompatFlexBG    = 0x200
	incompatEAInode   = 0x400
	incompatCsumSeed  = 0x2000
	incompatLargeDir  = 0x4000
	roSparse          = 0x1
	roLargeFile       = 0x2
	roHugeFile        = 0x8
	roDirNlink        = 0x20
	roExtraIsize      = 0x40
	roMetadataCsum    = 0x400
	superUnsignedHash = 0x2
)

// Inode flags.
const (
	flagIndex   = 0x1000
	flagExtents = 0x80000
	flagEAInode = 0x200000
)

// Group descriptor flags.
const (
	groupInodeUninit = 0x1
	groupInodeZeroed = 0x4
)

// File types in i_mode, and the permission bits.
const (
	modeType    = 0o170000
	modeSocket  = 0o140000
	modeSymlink = 0o120000
	modeRegular = 0o100000
	modeBlock   = 0o060000
	modeDir     = 0o040000
	modeChar    = 0o020000
	modeFIFO    = 0o010000
	modePerm    = 0o007777
)

var le = binary.LittleEndian

// direntType is the file type that a directory entry repeats.
func direntType(mode uint16) byte {
	switch mode & modeType {
	case modeRegular:
		return 1
	case modeDir:
		return 2
	case modeChar:
		return 3
	case modeBlock:
		return 4
	case modeFIFO:
		return 5
	case modeSocket:
		return 6
	case modeSymlink:
		return 7
	}
	return 0
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

func blocksFor(size int64) int64 { return (size + blockSize - 1) / blockSize }
