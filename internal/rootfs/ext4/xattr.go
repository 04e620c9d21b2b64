package ext4

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"hash"
	"io"
	"math/bits"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Xattr is an extended attribute, with name and value as getxattr(2) has them.
type Xattr struct {
	Name  string
	Value []byte
}

const (
	xattrMagic    = 0xEA020000
	xattrShare    = 1024    // inodes that may share a block
	maxXattrValue = 1 << 16 // what Linux lets anyone set or read
	maxXattrTotal = 1 << 20 // of an inode: its values may share inodes, so a block could stand for 16 MiB
	bodyXattrs    = inodeSize - 128 - extraIsize - 4
	blockXattrs   = blockSize - 32
)

const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// prefixes of names, and the number that stands for each on disk.
var prefixes = []struct {
	name  string
	index byte
}{
	{aclAccess, 2},
	{aclDefault, 3},
	{"user.", 1},
	{"trusted.", 4},
	{"security.", 6},
	{"system.", 7},
}

// attr is an Xattr as it is stored. inode is the index of a large value + 1
// when the value is too large for a block.
type attr struct {
	index byte
	name  string
	value []byte
	inode uint32
}

func (a *attr) entryLen() int { return 16 + (len(a.name)+3)&^3 }

func (a *attr) size() int {
	if a.inode != 0 {
		return a.entryLen()
	}
	return a.entryLen() + (len(a.value)+3)&^3
}

func compareAttr(a, b attr) int {
	return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(len(a.name), len(b.name)), strings.Compare(a.name, b.name))
}

// xattrSet is the attributes of an inode, where they go, and how many inodes
// have the same.
type xattrSet struct {
	body, block []attr
	uses        uint32
	first       uint32 // its first block
	met         uint32 // uses written so far
}

// blocks returns how many xattr blocks the inodes of the set need.
func (s *xattrSet) blocks() uint32 {
	if len(s.block) == 0 {
		return 0
	}
	return (s.uses + xattrShare - 1) / xattrShare
}

// largeBlocks returns how many blocks the large values of the set have. Each
// inode of the set counts them as its own, though they are shared.
func (s *xattrSet) largeBlocks() int64 {
	var n int64
	for _, list := range [][]attr{s.body, s.block} {
		for _, a := range list {
			if a.inode != 0 {
				n += blocksFor(int64(len(a.value)))
			}
		}
	}
	return n
}

// largeValue is a value that has an inode of its own.
type largeValue struct {
	value []byte
	refs  uint64
	node  Node
}

// digest stands for a set, or for a value, without a second copy of it.
type digest [sha256.Size]byte

type xattrSets struct {
	sets    []xattrSet
	byKey   map[digest]uint32
	large   []largeValue
	made    int // large values with an inode
	byValue map[digest]uint32
	kept    int64 // bytes of memory, about
	list    []attr
	sum     hash.Hash
}

// setCost and attrCost are the memory of a set and of an attribute beside the
// bytes of its name and value.
const (
	setCost  = 160
	attrCost = 64
)

// intern returns the number of the set + 1, 0 for none, and the mode that an
// access ACL leaves. Only a set that is new is copied.
func (x *xattrSets) intern(name string, mode uint16, list []Xattr) (uint32, uint16, error) {
	attrs, total := x.list[:0], 0
	for _, a := range list {
		if total += len(a.Value); total > maxXattrTotal {
			return 0, 0, fault.New(fault.ImageUnfit, "%.200q: xattrs of more than %d bytes", name, maxXattrTotal)
		}
		at, ok, err := storedAttr(name, &mode, a)
		if err != nil {
			return 0, 0, err
		}
		if ok {
			attrs = append(attrs, at)
		}
	}
	if len(attrs) == 0 {
		return 0, mode, nil
	}
	x.list = attrs
	slices.SortFunc(attrs, compareAttr)
	for i := range attrs[1:] {
		if compareAttr(attrs[i], attrs[i+1]) == 0 {
			return 0, 0, fault.New(fault.InvalidInput, "%.200q: xattr %.200q is there twice", name, attrs[i].name)
		}
	}
	key := x.setKey(attrs)
	if n, ok := x.byKey[key]; ok {
		return n, mode, nil
	}
	attrs = slices.Clone(attrs)
	x.kept += setCost
	for i := range attrs {
		a := &attrs[i]
		a.name, a.value = strings.Clone(a.name), bytes.Clone(a.value)
		x.kept += attrCost + int64(len(a.name)+len(a.value))
	}
	set, err := x.place(name, attrs)
	if err != nil {
		return 0, 0, err
	}
	x.sets = append(x.sets, set)
	n := uint32(len(x.sets))
	x.byKey[key] = n
	return n, mode, nil
}

// storedAttr returns a as it is stored, false when it leaves nothing to store.
// The attr shares the bytes of a.
func storedAttr(name string, mode *uint16, a Xattr) (attr, bool, error) {
	if len(a.Value) > maxXattrValue {
		return attr{}, false, fault.New(fault.ImageUnfit, "%.200q: xattr %.200q has %d bytes, more than the %d that Linux allows", name, a.Name, len(a.Value), maxXattrValue)
	}
	for _, p := range prefixes {
		rest, ok := strings.CutPrefix(a.Name, p.name)
		acl := p.index == 2 || p.index == 3
		if !ok || acl != (rest == "") || len(rest) > maxNameLen || strings.IndexByte(rest, 0) >= 0 || a.Name == "system.data" {
			continue
		}
		if !acl {
			return attr{index: p.index, name: rest, value: a.Value}, true, nil
		}
		kind := *mode & modeType
		if kind == modeSymlink || p.index == 3 && kind != modeDir {
			return attr{}, false, fault.New(fault.ImageUnfit, "%.200q: an entry of its type has no %.200q", name, a.Name)
		}
		stored, perm, err := storeACL(a.Value, *mode, p.index == 2)
		if err != nil {
			return attr{}, false, fault.Wrap(fault.ImageUnfit, err, "%.200q: xattr %.200q", name, a.Name)
		}
		*mode = perm
		return attr{index: p.index, value: stored}, stored != nil, nil
	}
	return attr{}, false, fault.New(fault.ImageUnfit, "%.200q: ext4 cannot hold an xattr of the name %.200q", name, a.Name)
}

func newXattrSets() xattrSets {
	return xattrSets{byKey: map[digest]uint32{}, byValue: map[digest]uint32{}, sum: sha256.New()}
}

func (x *xattrSets) setKey(attrs []attr) (key digest) {
	x.sum.Reset()
	for i := range attrs {
		a := &attrs[i]
		var head [6]byte
		head[0], head[1] = a.index, byte(len(a.name))
		le.PutUint32(head[2:], uint32(len(a.value)))
		// A hash never fails to take bytes.
		_, _ = x.sum.Write(head[:])
		_, _ = io.WriteString(x.sum, a.name)
		_, _ = x.sum.Write(a.value)
	}
	x.sum.Sum(key[:0])
	return key
}

// place decides where attributes go: all in the inode's body; else all in a
// block; else what fits in the body there and the rest in a block; else the
// largest value moves to an inode of its own, and so on.
func (x *xattrSets) place(name string, attrs []attr) (xattrSet, error) {
	for large := range len(attrs) + 1 {
		// A value's own inode is only led to from a block: e2fsck takes a short
		// symlink for a long one when it counts blocks but has no xattr block.
		if large == 0 && fits(attrs, bodyXattrs) {
			return xattrSet{body: attrs}, nil
		}
		if fits(attrs, blockXattrs) {
			return xattrSet{block: attrs}, nil
		}
		if body, block := divide(attrs); fits(block, blockXattrs) {
			return xattrSet{body: body, block: block}, nil
		}
		largest := -1
		for i := range attrs {
			if attrs[i].inode == 0 && len(attrs[i].value) > 0 && (largest < 0 || len(attrs[i].value) > len(attrs[largest].value)) {
				largest = i
			}
		}
		if largest < 0 {
			break
		}
		attrs[largest].inode = x.largeIndex(attrs[largest].value) + 1
	}
	return xattrSet{}, fault.New(fault.ImageUnfit, "%.200q: its %d xattrs have longer names than an inode and a block can hold", name, len(attrs))
}

func (x *xattrSets) largeIndex(value []byte) uint32 {
	key := digest(sha256.Sum256(value))
	if i, ok := x.byValue[key]; ok {
		return i
	}
	x.large = append(x.large, largeValue{value: value})
	i := uint32(len(x.large) - 1)
	x.byValue[key] = i
	return i
}

func fits(attrs []attr, room int) bool {
	room -= 4 // the zero word that ends the entries
	for i := range attrs {
		room -= attrs[i].size()
	}
	return room >= 0
}

// divide fills the body with what fits, in order, but for large values.
func divide(attrs []attr) (body, block []attr) {
	for _, a := range attrs {
		if more := append(slices.Clip(body), a); a.inode == 0 && fits(more, bodyXattrs) {
			body = more
		} else {
			block = append(block, a)
		}
	}
	return body, block
}

// putAttrs writes entries from the start of b and values from its end. from is
// where b begins in what value offsets are counted from. hashed is for blocks.
func (x *xattrSets) putAttrs(b []byte, from int, attrs []attr, sums []uint32, hashed bool) {
	at, end := 0, len(b)
	for i := range attrs {
		a := &attrs[i]
		e := b[at:]
		e[0], e[1] = byte(len(a.name)), a.index
		le.PutUint32(e[8:], uint32(len(a.value)))
		copy(e[16:], a.name)
		switch {
		case a.inode != 0:
			le.PutUint32(e[4:], inodeNumber(x.large[a.inode-1].node))
			var sum [4]byte
			le.PutUint32(sum[:], sums[a.inode-1])
			le.PutUint32(e[12:], attrHash(a.name, sum[:]))
		default:
			if len(a.value) > 0 {
				end -= (len(a.value) + 3) &^ 3
				copy(b[end:], a.value)
				le.PutUint16(e[2:], uint16(from+end))
			}
			if hashed {
				le.PutUint32(e[12:], attrHash(a.name, a.value))
			}
		}
		at += a.entryLen()
	}
}

// putBody writes the xattrs of an inode's body.
func (x *xattrSets) putBody(b []byte, s *xattrSet, sums []uint32) {
	if len(s.body) == 0 {
		return
	}
	le.PutUint32(b, xattrMagic)
	x.putAttrs(b[4:], 0, s.body, sums, false)
}

// putBlock writes the xattr block with number blk, which refs inodes share.
func (x *xattrSets) putBlock(b []byte, fs uint32, blk uint64, s *xattrSet, refs uint32, sums []uint32) {
	clear(b)
	le.PutUint32(b[0:], xattrMagic)
	le.PutUint32(b[4:], refs)
	le.PutUint32(b[8:], 1)
	x.putAttrs(b[32:], 32, s.block, sums, true)
	var hash uint32
	for at := 32; b[at] != 0 || b[at+1] != 0; at += 16 + (int(b[at])+3)&^3 {
		h := le.Uint32(b[at+12:])
		if h == 0 { // such a block is never looked up by its hash
			hash = 0
			break
		}
		hash = bits.RotateLeft32(hash, 16) ^ h
	}
	le.PutUint32(b[12:], hash)
	le.PutUint32(b[16:], xattrSum(fs, blk, b))
}

// attrHash is the hash of an entry of a block.
func attrHash(name string, value []byte) uint32 {
	var h uint32
	for i := range len(name) {
		h = bits.RotateLeft32(h, 5) ^ uint32(name[i])
	}
	for len(value) > 0 {
		var word [4]byte
		n := copy(word[:], value)
		h = bits.RotateLeft32(h, 16) ^ le.Uint32(word[:])
		value = value[n:]
	}
	return h
}
