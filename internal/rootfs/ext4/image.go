package ext4

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Image reads an ext4 image: ours, and others with 4 KiB blocks and extents
// that no journal has to repair. It trusts nothing in it: what it reads is
// checked, what it keeps is bounded by what is stored in the image, and each
// answer costs a bounded number of reads. Its methods are safe for concurrent
// use.
//
// They answer fault.Ext4Damaged for what breaks the format or a checksum, and
// fault.Ext4Unsupported for features that it does not read.
type Image struct {
	r      io.ReaderAt
	info   Info
	super  [superSize]byte
	seed   uint32
	csum   bool
	wide   bool // descriptors with upper halves
	iSize  int64
	groups []group
	perG   int64 // inodes of a group
}

// Info is what the superblock says.
type Info struct {
	UUID        [16]byte
	Label       string
	Made        time.Time
	Size        int64
	Blocks      int64
	FreeBlocks  int64
	Inodes      int64
	FreeInodes  int64
	Groups      int64
	GroupBlocks int64
	Features    []string
}

// group is a descriptor, as far as it is read.
type group struct {
	blockMap, inodeMap, table    int64
	freeBlocks, freeInodes, dirs uint32
	unusedInodes                 uint32
	blockMapSum, inodeMapSum     uint32
	blockUninit, inodeUninit     bool
}

// names of features, in the words of e2fsprogs.
var featureNames = [3]map[uint32]string{
	{0x1: "dir_prealloc", 0x4: "has_journal", 0x8: "ext_attr", 0x10: "resize_inode", 0x20: "dir_index", 0x200: "sparse_super2", 0x400: "fast_commit", 0x800: "stable_inodes", 0x1000: "orphan_file"},
	{0x1: "compression", 0x2: "filetype", 0x4: "needs_recovery", 0x8: "journal_dev", 0x10: "meta_bg", 0x40: "extent", 0x80: "64bit", 0x100: "mmp", 0x200: "flex_bg", 0x400: "ea_inode", 0x2000: "metadata_csum_seed", 0x4000: "large_dir", 0x8000: "inline_data", 0x10000: "encrypt", 0x20000: "casefold"},
	{0x1: "sparse_super", 0x2: "large_file", 0x8: "huge_file", 0x10: "uninit_bg", 0x20: "dir_nlink", 0x40: "extra_isize", 0x100: "quota", 0x200: "bigalloc", 0x400: "metadata_csum", 0x800: "replica", 0x1000: "read-only", 0x2000: "project", 0x4000: "shared_blocks", 0x8000: "verity", 0x10000: "orphan_present"},
}

// readable are the incompatible features that Image understands.
const readable = incompatFiletype | incompatExtents | incompat64Bit | incompatFlexBG | incompatEAInode | incompatCsumSeed | incompatLargeDir

func damaged(format string, args ...any) error { return fault.New(fault.Ext4Damaged, format, args...) }

func unsupported(format string, args ...any) error {
	return fault.New(fault.Ext4Unsupported, format, args...)
}

// Open reads superblock and group descriptors of an image of size bytes.
func Open(r io.ReaderAt, size int64) (*Image, error) {
	var b [superSize]byte
	if err := readFull(r, b[:], superOffset); err != nil {
		return nil, err
	}
	if le.Uint16(b[0x38:]) != superMagic {
		return nil, damaged("no ext4 superblock")
	}
	im := &Image{r: r, info: Info{Size: size}, super: b}
	ro, incompat := le.Uint32(b[0x64:]), le.Uint32(b[0x60:])
	im.info.Features = featureList(le.Uint32(b[0x5C:]), incompat, ro)
	if incompat&^readable != 0 || ro&0x200 != 0 || incompat&incompatExtents == 0 {
		return nil, unsupported("an image with the features %s", strings.Join(im.info.Features, " "))
	}
	if im.csum = ro&roMetadataCsum != 0; im.csum && le.Uint32(b[0x3FC:]) != crc(^uint32(0), b[:0x3FC]) {
		return nil, damaged("superblock: wrong checksum")
	}
	im.seed = crc(^uint32(0), b[0x68:0x78])
	if incompat&incompatCsumSeed != 0 {
		im.seed = le.Uint32(b[0x270:])
	}
	im.wide = incompat&incompat64Bit != 0
	if err := im.readSuper(b[:]); err != nil {
		return nil, err
	}
	if err := im.readGroups(); err != nil {
		return nil, err
	}
	return im, nil
}

func featureList(words ...uint32) []string {
	var out []string
	for i, word := range words {
		for bit := uint32(1); bit != 0; bit <<= 1 {
			if word&bit == 0 {
				continue
			}
			name, ok := featureNames[i][bit]
			if !ok {
				name = fmt.Sprintf("unknown_%d_%#x", i, bit)
			}
			out = append(out, name)
		}
	}
	return out
}

func (im *Image) readSuper(b []byte) error {
	n := &im.info
	blocks, free := uint64(le.Uint32(b[0x04:])), uint64(le.Uint32(b[0x0C:]))
	if im.wide {
		blocks |= uint64(le.Uint32(b[0x150:])) << 32
		free |= uint64(le.Uint32(b[0x158:])) << 32
	}
	n.Inodes, n.FreeInodes = int64(le.Uint32(b[0x00:])), int64(le.Uint32(b[0x10:]))
	n.GroupBlocks, im.perG = int64(le.Uint32(b[0x20:])), int64(le.Uint32(b[0x28:]))
	im.iSize = int64(le.Uint16(b[0x58:]))
	copy(n.UUID[:], b[0x68:])
	n.Label = strings.TrimRight(string(b[0x78:0x88]), "\x00")
	n.Made = time.Unix(int64(le.Uint32(b[0x108:]))|int64(b[0x276])<<32, 0).UTC()
	if le.Uint32(b[0x18:]) != 2 {
		return unsupported("an image with blocks of another size than 4096 bytes")
	}
	switch {
	case blocks == 0 || blocks > uint64(n.Size/blockSize):
		return damaged("superblock: %d blocks in a file of %d bytes", blocks, n.Size)
	case free > blocks || n.FreeInodes > n.Inodes:
		return damaged("superblock: more is free than there is")
	case n.GroupBlocks < 8 || n.GroupBlocks > maxGroupBits || n.GroupBlocks%8 != 0 || le.Uint32(b[0x14:]) != 0:
		return damaged("superblock: groups of %d blocks", n.GroupBlocks)
	case im.iSize != 128 && (im.iSize < inodeSize || im.iSize > blockSize || im.iSize&(im.iSize-1) != 0):
		return damaged("superblock: inodes of %d bytes", im.iSize)
	case im.perG < 1 || im.perG > maxGroupBits || im.perG%8 != 0:
		return damaged("superblock: groups of %d inodes", im.perG)
	}
	n.Blocks, n.FreeBlocks = int64(blocks), int64(free)
	n.Groups = (n.Blocks + n.GroupBlocks - 1) / n.GroupBlocks
	if n.Groups*im.perG != n.Inodes {
		return damaged("superblock: %d inodes in %d groups of %d", n.Inodes, n.Groups, im.perG)
	}
	return nil
}

func (im *Image) readGroups() error {
	size := im.descSize()
	if size < 32 || size > superSize || size&(size-1) != 0 || im.wide && size < descSize {
		return damaged("superblock: descriptors of %d bytes", size)
	}
	if (im.info.Groups*size+blockSize-1)/blockSize >= im.info.Blocks {
		return damaged("superblock: more groups than the image has room for")
	}
	im.groups = make([]group, 0, min(im.info.Groups, 4096))
	b := make([]byte, blockSize)
	for g := int64(0); g < im.info.Groups; g++ {
		at := g * size % blockSize
		if at == 0 {
			if err := readFull(im.r, b, blockSize+g*size); err != nil {
				return err
			}
		}
		d := b[at : at+size]
		grp := parseGroup(d, im.wide)
		if im.csum {
			if sum := descSum(im.seed, uint32(g), d); sum != le.Uint16(d[0x1E:]) {
				return damaged("group %d: its descriptor has a wrong checksum", g)
			}
		}
		table := (im.perG*im.iSize + blockSize - 1) / blockSize
		if !im.inside(grp.blockMap, 1) || !im.inside(grp.inodeMap, 1) || !im.inside(grp.table, table) {
			return damaged("group %d: its tables lie outside of the image", g)
		}
		im.groups = append(im.groups, grp)
	}
	return nil
}

func (im *Image) descSize() int64 {
	if !im.wide {
		return 32
	}
	return int64(le.Uint16(im.super[0xFE:]))
}

// bitmapSum says whether a bitmap has the checksum that its descriptor holds.
func (im *Image) bitmapSum(b []byte, want uint32) bool {
	got := crc(im.seed, b)
	if !im.wide {
		got &= 0xFFFF
	}
	return !im.csum || got == want
}

func parseGroup(d []byte, wide bool) group {
	half := func(lo, hi int) uint32 {
		if wide {
			return uint32(le.Uint16(d[lo:])) | uint32(le.Uint16(d[hi:]))<<16
		}
		return uint32(le.Uint16(d[lo:]))
	}
	full := func(lo, hi int) int64 {
		if wide {
			return int64(le.Uint32(d[lo:])) | int64(le.Uint32(d[hi:]))<<32
		}
		return int64(le.Uint32(d[lo:]))
	}
	flags := le.Uint16(d[0x12:])
	return group{
		blockMap: full(0x00, 0x20), inodeMap: full(0x04, 0x24), table: full(0x08, 0x28),
		freeBlocks: half(0x0C, 0x2C), freeInodes: half(0x0E, 0x2E), dirs: half(0x10, 0x30), unusedInodes: half(0x1C, 0x32),
		blockMapSum: half(0x18, 0x38), inodeMapSum: half(0x1A, 0x3A), inodeUninit: flags&groupInodeUninit != 0, blockUninit: flags&2 != 0,
	}
}

// Info returns what the superblock says.
func (im *Image) Info() Info { return im.info }

// inside says whether n blocks from blk on are blocks of the image.
func (im *Image) inside(blk, n int64) bool {
	return blk > 0 && n >= 0 && blk <= im.info.Blocks && n <= im.info.Blocks-blk
}

func (im *Image) readBlock(blk int64, b []byte) error {
	if !im.inside(blk, 1) {
		return damaged("block %d lies outside of the image", blk)
	}
	return readFull(im.r, b[:blockSize], blk*blockSize)
}

func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fault.Wrap(fault.Ext4Damaged, io.ErrUnexpectedEOF, "read %d bytes at %d of an ext4 image", len(b), off)
	}
	return err
}
