package ext4_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// dump is what dumpe2fs says about an image.
type dump struct {
	fields map[string]string
	groups []dumpedGroup
}

type dumpedGroup struct {
	first, last                          int64
	flags                                string
	blockMap, inodeMap, table, tableEnd  int64
	freeBlocks, freeInodes, dirs, unused int64
	listedFreeBlocks                     int64 // as its bitmap says
	hasSuper, blockMapSum, inodeMapSum   bool
}

var (
	groupLine = regexp.MustCompile(`^Group (\d+): \(Blocks (\d+)-(\d+)\) csum 0x[0-9a-f]+ \[(.*)\]$`)
	mapLine   = regexp.MustCompile(`^  (Block|Inode) bitmap at (\d+) .*csum 0x([0-9a-f]+)$`)
	tableLine = regexp.MustCompile(`^  Inode table at (\d+)-(\d+) `)
	countLine = regexp.MustCompile(`^  (\d+) free blocks, (\d+) free inodes, (\d+) directories(?:, (\d+) unused inodes)?$`)
)

func number(t testing.TB, s string) int64 {
	t.Helper()
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	must(t, err)
	return n
}

func dumpe2fs(t testing.TB, path string) dump {
	t.Helper()
	out, err := run(t, tool("dumpe2fs"), path)
	if err != nil {
		t.Fatalf("dumpe2fs: %v\n%s", err, out)
	}
	d := dump{fields: map[string]string{}}
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if m := groupLine.FindStringSubmatch(line); m != nil {
			d.groups = append(d.groups, dumpedGroup{first: number(t, m[2]), last: number(t, m[3]), flags: m[4]})
			continue
		}
		if len(d.groups) == 0 {
			if k, v, ok := strings.Cut(line, ":"); ok {
				d.fields[k] = strings.TrimSpace(v)
			}
			continue
		}
		d.groups[len(d.groups)-1].read(t, line)
	}
	return d
}

func (g *dumpedGroup) read(t testing.TB, line string) {
	t.Helper()
	if m := mapLine.FindStringSubmatch(line); m != nil {
		at, summed := number(t, m[2]), m[3] != "00000000"
		if m[1] == "Block" {
			g.blockMap, g.blockMapSum = at, summed
		} else {
			g.inodeMap, g.inodeMapSum = at, summed
		}
	}
	if m := tableLine.FindStringSubmatch(line); m != nil {
		g.table, g.tableEnd = number(t, m[1]), number(t, m[2])
	}
	if m := countLine.FindStringSubmatch(line); m != nil {
		g.freeBlocks, g.freeInodes, g.dirs, g.unused = number(t, m[1]), number(t, m[2]), number(t, m[3]), number(t, m[4])
	}
	if strings.Contains(line, "superblock at") {
		g.hasSuper = true
	}
	if list, ok := strings.CutPrefix(line, "  Free blocks: "); ok && list != "" {
		for part := range strings.SplitSeq(list, ", ") {
			from, to, isRange := strings.Cut(part, "-")
			if g.listedFreeBlocks++; isRange {
				g.listedFreeBlocks += number(t, to) - number(t, from)
			}
		}
	}
}

// same holds what dumpe2fs says against what our reader says, and against
// itself.
func (d dump) same(t testing.TB, i ext4.Info) {
	t.Helper()
	features := strings.Fields(d.fields["Filesystem features"])
	slices.Sort(features)
	for k, want := range map[string]any{
		"Block count": i.Blocks, "Free blocks": i.FreeBlocks, "Inode count": i.Inodes, "Free inodes": i.FreeInodes, "Blocks per group": i.GroupBlocks,
		"Inodes per group": i.Inodes / i.Groups, "Inode blocks per group": i.Inodes / i.Groups / 16, "Reserved block count": 0, "First block": 0, "Block size": 4096,
		"Inode size": 256, "First inode": 11, "Group descriptor size": 64, "Filesystem revision #": "1 (dynamic)", "Filesystem magic number": "0xEF53",
		"Filesystem state": "clean", "Errors behavior": "Continue", "Filesystem flags": "unsigned_directory_hash", "Default mount options": "user_xattr acl",
		"Required extra isize": 32, "Desired extra isize": 32, "Default directory hash": "half_md4", "Checksum type": "crc32c", "Mount count": 0,
		"Filesystem UUID": uuid(i.UUID), "Filesystem volume name": i.Label, "Filesystem created": i.Made.Format("Mon Jan _2 15:04:05 2006"), "Last mount time": "n/a",
	} {
		if got := d.fields[k]; got != fmt.Sprint(want) {
			t.Errorf("dumpe2fs: %s is %q, want %q", k, got, fmt.Sprint(want))
		}
	}
	if want := slices.Sorted(slices.Values(i.Features)); !slices.Equal(features, want) {
		t.Errorf("dumpe2fs: features %v, our reader says %v", features, want)
	}
	d.groupsFit(t, i)
}

func uuid(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// groupsFit checks that the groups lie side by side, count what they have, and
// have their tables where no other has its own.
func (d dump) groupsFit(t testing.TB, i ext4.Info) {
	t.Helper()
	if int64(len(d.groups)) != i.Groups {
		t.Fatalf("dumpe2fs shows %d groups, want %d", len(d.groups), i.Groups)
	}
	var next, freeBlocks, freeInodes int64
	taken := map[int64]bool{}
	for n, g := range d.groups {
		if g.first != next || g.last < g.first || g.last-g.first >= i.GroupBlocks {
			t.Errorf("group %d has the blocks %d to %d, but the last one ended before %d", n, g.first, g.last, next)
		}
		next = g.last + 1
		freeBlocks, freeInodes = freeBlocks+g.freeBlocks, freeInodes+g.freeInodes
		if g.listedFreeBlocks != g.freeBlocks || g.unused != g.freeInodes {
			t.Errorf("group %d counts %d free blocks and has %d, counts %d free inodes and %d unused", n, g.freeBlocks, g.listedFreeBlocks, g.freeInodes, g.unused)
		}
		if uninit := strings.Contains(g.flags, "INODE_UNINIT"); !strings.Contains(g.flags, "ITABLE_ZEROED") || strings.Contains(g.flags, "BLOCK_UNINIT") || uninit != (g.freeInodes == i.Inodes/i.Groups) {
			t.Errorf("group %d has the flags %s", n, g.flags)
		}
		if g.hasSuper != (n == 0) || !g.blockMapSum || !g.inodeMapSum {
			t.Errorf("group %d: a copy of the superblock, or a bitmap without a checksum: %+v", n, g)
		}
		for _, blk := range []int64{g.blockMap, g.inodeMap, g.table, g.tableEnd} {
			if taken[blk] && g.table != g.tableEnd || blk <= 0 || blk >= i.Blocks {
				t.Errorf("group %d has a table or bitmap at %d, as another has", n, blk)
			}
			taken[blk] = true
		}
	}
	if next != i.Blocks || freeBlocks != i.FreeBlocks || freeInodes != i.FreeInodes {
		t.Errorf("the groups end at %d and have %d free blocks and %d free inodes: %+v", next, freeBlocks, freeInodes, i)
	}
}

// Every feature that a tree can ask for, in the words of dumpe2fs.
func TestFeatures(t *testing.T) {
	t.Parallel()
	plain := strings.Fields("ext_attr dir_index sparse_super2 filetype extent 64bit flex_bg large_file huge_file dir_nlink extra_isize metadata_csum")
	seed := uint32(7)
	for name, c := range map[string]struct {
		items []item
		seed  *uint32
		more  []string
	}{
		"nothing":      {nil, nil, nil},
		"seed":         {nil, &seed, []string{"metadata_csum_seed"}},
		"large values": {someXattrs()[:20], nil, []string{"ea_inode"}},
		"several":      {append(hardLinks(), directoriesOf(1000)...), &seed, []string{"metadata_csum_seed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := testOptions
			o.ChecksumSeed = c.seed
			path, l := write(t, c.items, o)
			sound(t, path, l, nil)
			want := slices.Sorted(slices.Values(append(slices.Clone(plain), c.more...)))
			if got := slices.Sorted(slices.Values(open(t, path).Info().Features)); !slices.Equal(got, want) {
				t.Errorf("features %v, want %v", got, want)
			}
		})
	}
}
