package ext4_test

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// debugfs prints the hash of each entry of an htree: a second opinion on ours,
// in the seed and sign of the image.
func TestHashAgainstDebugfs(t *testing.T) {
	t.Parallel()
	items := []item{dir("d")}
	for i := range 300 {
		name := strings.Repeat(string([]byte{'a' + byte(i%26)}), i%200) + fmt.Sprint(i)
		items = append(items, file("d/"+name, 0o644, ""))
	}
	path, _ := write(t, items, testOptions)
	out, err := run(t, tool("debugfs"), "-R", "htree_dump /d", path)
	must(t, err)
	found := 0
	for _, m := range regexp.MustCompile(`0x([0-9a-f]+)-[0-9a-f]+ \(\d+\) (\S+)`).FindAllStringSubmatch(out, -1) {
		found++
		if got := fmt.Sprintf("%08x", ext4.NameHash(testOptions.HashSeed, m[2])); got != m[1] {
			t.Errorf("%s: hash %s, debugfs says %s", m[2], got, m[1])
		}
	}
	if found != 300 {
		t.Errorf("debugfs shows %d names:\n%s", found, out)
	}
}

// Two names of one hash, with the border of a leaf between them: the index
// says that the hash goes on, and the kernel follows.
func TestHashAcrossLeaves(t *testing.T) {
	t.Parallel()
	name := func(i int) string { return fmt.Sprintf("%0245d", i) } // 15 to a leaf
	type hashed struct {
		hash uint32
		i    int
	}
	var all []hashed
	for i := range 150_000 {
		all = append(all, hashed{ext4.NameHash(testOptions.HashSeed, name(i)), i})
	}
	slices.SortFunc(all, func(a, b hashed) int { return cmp.Compare(a.hash, b.hash) })
	pairs := 0 // some five are to be expected
	for k := 14; k+20 < len(all) && pairs < 2; k++ {
		if all[k].hash != all[k+1].hash {
			continue
		}
		pairs++
		items := []item{dir("d")}
		for _, h := range all[k-14 : k+20] {
			items = append(items, file("d/"+name(h.i), 0o644, ""))
		}
		path, _ := write(t, items, testOptions)
		fsck(t, path)
		at := mount(t, path)
		for _, it := range items {
			if err := unix.Lstat(filepath.Join(at, it.path), &unix.Stat_t{}); err != nil {
				t.Errorf("%s: %v", it.path, err)
			}
		}
	}
	if pairs == 0 {
		t.Fatal("no two names have one hash")
	}
}
