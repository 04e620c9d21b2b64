package ext4_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// What the fuzz targets attack is honest before it is attacked.
func TestAttackedImageIsSound(t *testing.T) {
	t.Parallel()
	for _, image := range [][]byte{attacked(t).checked, attacked(t).unchecked} {
		im, err := ext4.Open(bytes.NewReader(image), int64(len(image)))
		must(t, err)
		_, err = ext4.VerifyUnchecked(t.Context(), im)
		must(t, err)
		differ(t, "reader", expected(t, smallTree()), views(t, im))
		a := &attack{t: t, image: image}
		explore(t, a)
		if a.reads > maxReads/10 {
			t.Errorf("%d reads", a.reads)
		}
	}
}

// views returns what our reader says about every entry.
func views(t testing.TB, im *ext4.Image) map[string]view {
	t.Helper()
	out := map[string]view{}
	must(t, im.Walk(t.Context(), func(path string, s ext4.Stat) error {
		out[path] = readerView(t, im, s)
		return nil
	}))
	return out
}

// A bit that is turned over in the metadata is found, or changes nothing that
// is read. Targets of long symlinks have no checksum, nor have contents.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	target, r := attacked(t), rand.New(rand.NewPCG(1, 9))
	honest, err := ext4.Open(bytes.NewReader(target.checked), int64(len(target.checked)))
	must(t, err)
	want, found := views(t, honest), 0
	slow, err := honest.Lookup("slow")
	must(t, err)
	c, err := honest.Contents(slow)
	must(t, err)
	without := blockOf(t, target.checked, c)
	const rounds = 1500
	for range rounds {
		a := &attack{t: t, image: target.checked, over: map[int64][]byte{}}
		block := target.blocks[r.IntN(len(target.blocks))]
		if block == without {
			continue
		}
		at, bit := r.IntN(4096), byte(1)<<r.IntN(8)
		a.block(block)[at] ^= bit
		im, err := ext4.Open(a, int64(len(a.image)))
		if err == nil {
			_, err = im.Verify(t.Context())
		}
		if err != nil {
			answered(t, err)
			found++
			continue
		}
		for path, v := range views(t, im) {
			if !maps.Equal(v, want[path]) {
				t.Errorf("block %d, byte %d, bit %d: nothing is found, but %q is read as %v, not %v", block, at, bit, path, v, want[path])
			}
		}
	}
	if found < rounds/2 {
		t.Errorf("only %d of %d were found", found, rounds)
	}
}

// blockOf finds the block of the image that begins as c does.
func blockOf(t testing.TB, image []byte, c *ext4.Contents) int64 {
	t.Helper()
	head := make([]byte, c.Size())
	must(t, second(c.ReadAt(head, 0)))
	for b := range int64(len(image) / 4096) {
		if bytes.HasPrefix(image[b*4096:], head) {
			return b
		}
	}
	t.Fatal("the block is not there")
	return 0
}

// A directory that repeats one block again and again, so that it claims more
// names than are stored.
func TestRepeatedDirectoryBlock(t *testing.T) {
	t.Parallel()
	target := attacked(t)
	im, err := ext4.Open(bytes.NewReader(target.unchecked), int64(len(target.unchecked)))
	must(t, err)
	s, err := im.Lookup("dir")
	must(t, err)
	a := &attack{t: t, image: target.unchecked, over: map[int64][]byte{}}
	at, le := target.recordAt(s.Inode), binary.LittleEndian
	record := a.block(at / 4096)[at%4096:][:256]
	le.PutUint32(record[4:], 3*4096)
	le.PutUint16(record[0x28+2:], 3)
	first := bytes.Clone(record[0x28+12:][:12])
	for i := range 3 {
		e := record[0x28+12+12*i:][:12]
		copy(e, first)
		le.PutUint32(e, uint32(i))
	}
	im, err = ext4.Open(a, int64(len(a.image)))
	must(t, err)
	s, err = im.Stat(s.Inode)
	must(t, err)
	none := func(ext4.Dirent) error { return nil }
	refused(t, im.ReadDir(s, none), fault.Ext4Damaged, "another place")
	refused(t, im.Walk(t.Context(), func(string, ext4.Stat) error { return nil }), fault.Ext4Damaged, "another place")
	_, err = ext4.VerifyUnchecked(t.Context(), im)
	refused(t, err, fault.Ext4Damaged, "two owners")
}
