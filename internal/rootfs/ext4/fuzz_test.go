package ext4_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// What reading a small image may cost, whatever it holds. An honest one of the
// same size costs a tenth.
const (
	maxReads = 200_000
	maxAlloc = 96 << 20
	maxTime  = 20 * time.Second
)

// target is an image that is attacked, once with its checksums and once
// without, and which of its blocks are no contents of files.
type target struct {
	checked, unchecked []byte
	blocks             []int64
	spare              int64 // a block that nothing uses
}

var (
	attackOnce sync.Once
	attackedIs *target
)

// attacked makes the image for all fuzz targets of this process.
func attacked(tb testing.TB) *target {
	tb.Helper()
	attackOnce.Do(func() {
		var m memory
		l, end := writeTo(tb, &m, smallTree(), testOptions)
		t := &target{checked: m.data, unchecked: bytes.Clone(m.data), spare: l.Blocks - 1}
		ro := t.unchecked[1024+0x64:]
		binary.LittleEndian.PutUint32(ro, binary.LittleEndian.Uint32(ro)&^0x400) // metadata_csum
		for b := range l.Blocks {
			if (b < 128 || b >= end) && !bytes.Equal(m.data[b*4096:][:4096], make([]byte, 4096)) {
				t.blocks = append(t.blocks, b)
			}
		}
		attackedIs = t
	})
	return attackedIs
}

// smallTree leads to every structure of the format in as few blocks as can be.
func smallTree() []item {
	items := []item{
		file("file", 0o644, "text"), file("empty", 0o644, ""), dir("dir"), file("dir/below", 0o600, "b"), dir("dir/sub"), dir("dir/sub/sub"),
		{path: "dir/link", link: "file"},
		symlink("fast", "target"), symlink("slow", strings.Repeat("s", 200)), device("dev", 0o020000, 5, 300), node("fifo", 0o010644, nil),
		xattrs("inline", attr("user.a", "1"), attr("security.capability", fileCap)), xattrs("block", attr("user.v", strings.Repeat("v", 1000))),
		xattrs("shared", attr("user.v", strings.Repeat("v", 1000))), xattrs("large", attr("user.v", strings.Repeat("l", 9000))),
		node("acl", 0o040761, func(m *ext4.Meta) {
			m.Xattrs = []ext4.Xattr{{Name: "system.posix_acl_access", Value: fullACL}, {Name: "system.posix_acl_default", Value: fullACL}}
		}),
		dir("many"),
	}
	for i := range 40 {
		items = append(items, file(fmt.Sprintf("many/%s-%d", strings.Repeat("n", 150), i), 0o644, ""))
	}
	var segs []ext4.Segment
	for i := range int64(6) {
		segs = append(segs, ext4.Segment{Offset: i * 3 * 4096, Length: 100})
	}
	return append(items, sparseFile("sparse", 100_000, segs...))
}

// attack is an image with some bytes changed. It fails the test when it is
// read too often: the reader would hang on a larger one.
type attack struct {
	t     testing.TB
	image []byte
	over  map[int64][]byte // whole blocks
	reads int
}

func (a *attack) ReadAt(p []byte, off int64) (int, error) {
	if a.reads++; a.reads > maxReads {
		a.t.Fatalf("more than %d reads", maxReads)
	}
	n := 0
	for n < len(p) && off < int64(len(a.image)) {
		block := a.over[off/4096]
		if block == nil {
			block = a.image[off/4096*4096:][:4096]
		}
		k := copy(p[n:], block[off%4096:])
		n, off = n+k, off+int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// block returns a block that may be changed.
func (a *attack) block(b int64) []byte {
	if a.over[b] == nil {
		a.over[b] = bytes.Clone(a.image[b*4096:][:4096])
	}
	return a.over[b]
}

// patch changes bytes where record says: three bytes of place within the
// target's blocks, one of length, then what is written.
func (a *attack) patch(t *target, program []byte) {
	for len(program) > 4 {
		at := int(program[0])<<16 | int(program[1])<<8 | int(program[2])
		n := min(int(program[3])%16+1, len(program)-4)
		block := a.block(t.blocks[at/4096%len(t.blocks)])
		copy(block[at%4096:], program[4:4+n])
		program = program[4+n:]
	}
}

// explore reads what an image says, of all entries or of the given inodes only,
// and holds the cost against what is allowed.
func explore(t *testing.T, a *attack, only ...uint32) {
	before, began := allocated(), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), maxTime)
	defer cancel()
	im, err := ext4.Open(a, int64(len(a.image)))
	if err != nil {
		answered(t, err)
		return
	}
	_, err = ext4.VerifyUnchecked(ctx, im)
	answered(t, err)
	seen := 0
	answered(t, im.Walk(ctx, func(path string, s ext4.Stat) error {
		if seen++; seen > 500 {
			return errEnough
		}
		if only == nil {
			exploreOne(t, im, path, s)
		}
		return nil
	}))
	for _, ino := range only {
		s, err := im.Stat(ino)
		answered(t, err)
		if err == nil {
			exploreOne(t, im, "many", s)
		}
	}
	if n := allocated() - before; n > maxAlloc {
		t.Fatalf("reading took %d bytes of memory", n)
	}
	if d := time.Since(began); d > maxTime {
		t.Fatalf("reading took %s", d)
	}
}

var errEnough = errors.New("enough")

func exploreOne(t *testing.T, im *ext4.Image, path string, s ext4.Stat) {
	_, err := im.Xattrs(s)
	answered(t, err)
	_, err = im.Target(s)
	answered(t, err)
	_, err = im.Lookup(path)
	answered(t, err)
	n := 0
	each := func() error {
		if n++; n > 3000 {
			return errEnough
		}
		return nil
	}
	answered(t, im.ReadDir(s, func(ext4.Dirent) error { return each() }))
	answered(t, im.Extents(s, func(ext4.Segment) error { return each() }))
	c, err := im.Contents(s)
	answered(t, err)
	if err != nil {
		return
	}
	b := make([]byte, 5000)
	for _, at := range []int64{0, c.Size() / 2, c.Size() - 4000, c.Size()} {
		k, err := c.ReadAt(b, max(at, 0))
		if k < 0 || k > len(b) || k < len(b) && err == nil {
			t.Fatalf("read %d of %d bytes: %v", k, len(b), err)
		}
		answered(t, err)
	}
}

// answered accepts what a reader may say of a bad image: never that it has a
// bug.
func answered(t *testing.T, err error) {
	t.Helper()
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, errEnough) {
		return
	}
	switch fault.Of(err) {
	case fault.Ext4Damaged, fault.Ext4Unsupported, fault.FileNotFound, fault.InvalidInput:
	default:
		t.Fatal(err)
	}
}

func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// FuzzBlocks changes bytes anywhere in the metadata.
func FuzzBlocks(f *testing.F) {
	for b := range attacked(f).blocks {
		f.Add(append([]byte{byte(b >> 4), byte(b << 4), 0, 7}, bytes.Repeat([]byte{0xFF}, 8)...))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		for _, image := range [][]byte{attacked(t).checked, attacked(t).unchecked} {
			a := &attack{t: t, image: image, over: map[int64][]byte{}}
			a.patch(attacked(t), program)
			explore(t, a)
		}
	})
}

// FuzzOpen makes superblock and descriptors anew.
func FuzzOpen(f *testing.F) {
	for _, image := range [][]byte{attacked(f).checked, attacked(f).unchecked} {
		f.Add(bytes.Clone(image[1024:2048]), bytes.Clone(image[4096:4096+64]))
	}
	f.Fuzz(func(t *testing.T, super, descs []byte) {
		a := &attack{t: t, image: attacked(t).unchecked, over: map[int64][]byte{}}
		copy(a.block(0)[1024:2048], super)
		copy(a.block(1), descs)
		explore(t, a)
	})
}

// FuzzInode puts another inode in the place of the root's first, and into a
// block of its own what that leads to: names, extents or xattrs. Then it
// changes bytes of both.
func FuzzInode(f *testing.F) {
	target := attacked(f)
	im, err := ext4.Open(bytes.NewReader(target.checked), int64(len(target.checked)))
	must(f, err)
	var kinds [][]byte
	for i, path := range []string{"file", "dir", "many", "slow", "inline", "block", "large", "acl", "sparse"} {
		s, err := im.Lookup(path)
		must(f, err)
		record := bytes.Clone(target.checked[target.recordAt(s.Inode):][:256])
		kinds = append(kinds, append(record, target.led(record)...))
		f.Add(byte(i), []byte{0, 0, 0, 0x1F, 0xED, 1, 0, 4, 0, 0, 0, 0, 0})
	}
	s, err := im.Lookup("file")
	must(f, err)
	at := target.recordAt(s.Inode)
	f.Fuzz(func(t *testing.T, kind byte, program []byte) {
		a := &attack{t: t, image: target.unchecked, over: map[int64][]byte{}}
		both := make([]byte, 256+4096)
		copy(both, kinds[int(kind)%len(kinds)])
		for len(program) > 3 {
			from, n := (int(program[0])<<8|int(program[1]))%len(both), min(int(program[2])%16+1, len(program)-3)
			copy(both[from:], program[3:3+n])
			program = program[3+n:]
		}
		copy(a.block(at / 4096)[at%4096:][:256], both)
		copy(a.block(target.spare), both[256:])
		explore(t, a, s.Inode)
	})
}

// recordAt is where an inode lies. The image has one group.
func (t *target) recordAt(ino uint32) int64 {
	return int64(binary.LittleEndian.Uint32(t.checked[4096+8:]))*4096 + int64(ino-1)*256
}

// led returns the block that an inode leads to, and lets the inode lead to the
// spare one instead.
func (t *target) led(record []byte) []byte {
	le, at := binary.LittleEndian, 0x68 // the xattr block
	if le.Uint32(record[at:]) == 0 {
		at = 0x28 + 12 + 8 // of the first extent
		if le.Uint16(record[0x28+6:]) > 0 {
			at = 0x28 + 12 + 4 // of the first node
		}
	}
	b := int64(le.Uint32(record[at:]))
	le.PutUint32(record[at:], uint32(t.spare))
	if b > t.spare { // an inode that leads to no block
		return nil
	}
	return bytes.Clone(t.checked[b*4096:][:4096])
}
