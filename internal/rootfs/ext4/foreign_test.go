package ext4_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// mke2fs makes an image of 100 MiB of what lies below tree.
func mke2fs(t *testing.T, tree string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "foreign.ext4")
	args = append([]string{"-q", "-t", "ext4", "-b", "4096", "-d", tree}, args...)
	if out, err := run(t, "mke2fs", append(args, path, "100M")...); err != nil {
		t.Fatalf("mke2fs: %v\n%s", err, out)
	}
	return path
}

// The reader reads what mke2fs writes as the kernel reads it.
func TestForeignImages(t *testing.T) {
	t.Parallel()
	items := append(randomTree(rand.New(rand.NewPCG(7, 7)), 250), directoriesOf(0, 1, 130, 600)...)
	for i := range items { // mke2fs has no room for more
		items[i].meta.Xattrs = slices.DeleteFunc(items[i].meta.Xattrs, func(x ext4.Xattr) bool { return len(x.Value) > 300 || len(x.Name) > 60 })
	}
	ours, _ := write(t, items, testOptions)
	tree := mount(t, ours)
	for name, args := range map[string][]string{
		"defaults":        nil,
		"bare":            {"-O", "^has_journal,^resize_inode"},
		"small inodes":    {"-I", "128", "-O", "^has_journal,^resize_inode"},
		"large inodes":    {"-I", "1024", "-O", "^has_journal,^resize_inode"},
		"32 bits":         {"-O", "^has_journal,^resize_inode,^64bit"},
		"no checksums":    {"-O", "^metadata_csum"},
		"small groups":    {"-g", "2048", "-O", "^has_journal,^resize_inode"},
		"no flex groups":  {"-O", "^flex_bg,^has_journal,^resize_inode"},
		"checksum seed":   {"-O", "metadata_csum_seed,^has_journal,^resize_inode"},
		"two backups":     {"-O", "sparse_super2,^has_journal,^resize_inode"},
		"unsparse backup": {"-O", "^sparse_super,^has_journal,^resize_inode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := mke2fs(t, tree, args...)
			im := open(t, path)
			_, err := im.Verify(t.Context())
			if strings.Contains(strings.Join(args, ","), "^resize_inode") {
				must(t, err)
			} else if fault.Of(err) != fault.Ext4Unsupported { // its block map, or its missing checksums
				t.Errorf("Verify: %v", err)
			}
			differ(t, "reader", kernel(t, path), views(t, im))
		})
	}
}

func TestUnsupportedImages(t *testing.T) {
	t.Parallel()
	tree := t.TempDir()
	must(t, os.WriteFile(filepath.Join(tree, "a"), []byte("a"), 0o644))
	for name, args := range map[string][]string{
		"ext2": {"-O", "none"}, "inline": {"-O", "inline_data"}, "bigalloc": {"-O", "bigalloc"}, "meta_bg": {"-O", "meta_bg,^resize_inode"},
	} {
		path := mke2fs(t, tree, args...)
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		if _, err := ext4.Open(f, 100<<20); fault.Of(err) != fault.Ext4Unsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	small := filepath.Join(t.TempDir(), "small")
	if out, err := run(t, "mke2fs", "-q", "-t", "ext4", "-b", "1024", small, "10M"); err != nil {
		t.Fatalf("mke2fs: %v\n%s", err, out)
	}
	f, err := os.Open(small)
	must(t, err)
	defer f.Close()
	if _, err := ext4.Open(f, 10<<20); fault.Of(err) != fault.Ext4Unsupported {
		t.Errorf("1 KiB blocks: %v", err)
	}
}
