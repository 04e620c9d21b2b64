package mount_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubelet/mount"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// image makes an ext4 image with one file; journal says whether it has one.
func image(t *testing.T, journal string) string {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	check(t, os.Mkdir(tree, 0o755))
	check(t, os.WriteFile(filepath.Join(tree, "file"), []byte("content"), 0o644))
	path := filepath.Join(dir, "image.ext4")
	f, err := os.Create(path)
	check(t, err)
	check(t, f.Truncate(16<<20))
	check(t, f.Close())
	c := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-O", journal+"has_journal", "-d", tree, path)
	c.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// mounts counts the machine's mounts below dir, and loop devices of image.
func mounts(t *testing.T, dir, image string) (mounted, loops int) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	mounted = strings.Count(string(b), " "+dir+"/")
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	check(t, err)
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == image {
			loops++
		}
	}
	return mounted, loops
}

func TestOneMountForAllUsers(t *testing.T) {
	for name, journal := range map[string]string{"with a journal": "", "without": "^"} {
		t.Run(name, func(t *testing.T) {
			path, dir := image(t, journal), t.TempDir()
			table := mount.New(dir)
			at := make([]string, 5)
			var group sync.WaitGroup
			for i := range at {
				group.Go(func() {
					var err error
					if at[i], err = table.Acquire("a", path); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if b, err := os.ReadFile(filepath.Join(at[0], "file")); err != nil || string(b) != "content" {
				t.Errorf("%q, %v", b, err)
			}
			if err := os.WriteFile(filepath.Join(at[0], "file"), nil, 0o644); err == nil {
				t.Error("it can be written")
			}
			if m, l := mounts(t, dir, path); m != 1 || l != 1 {
				t.Errorf("%d mounts, %d loop devices", m, l)
			}
			for i := range at {
				if !table.InUse("a") {
					t.Errorf("unused after %d of %d releases", i, len(at))
				}
				check(t, table.Release("a"))
			}
			if m, l := mounts(t, dir, path); m != 0 || l != 0 || table.InUse("a") {
				t.Errorf("%d mounts, %d loop devices after the last release", m, l)
			}
		})
	}
}

// An unmount that fails gives up nothing: the count stays true.
func TestReleaseThatFailsIsNone(t *testing.T) {
	path, dir := image(t, "^"), t.TempDir()
	table := mount.New(dir)
	at, err := table.Acquire("a", path)
	check(t, err)
	f, err := os.Open(filepath.Join(at, "file"))
	check(t, err)
	if err := table.Release("a"); err == nil || !table.InUse("a") {
		t.Fatalf("a busy mount was released: %v", err)
	}
	_, err = table.Acquire("a", path) // a second user
	check(t, err)
	check(t, f.Close())
	check(t, table.Release("a"))
	if m, _ := mounts(t, dir, path); m != 1 || !table.InUse("a") {
		t.Errorf("the second user lost it: %d mounts", m)
	}
	check(t, table.Release("a"))
	if m, l := mounts(t, dir, path); m != 0 || l != 0 || table.InUse("a") {
		t.Errorf("%d mounts, %d loop devices", m, l)
	}
}

func TestSweepRemovesWhatNobodyHolds(t *testing.T) {
	path, dir := image(t, "^"), t.TempDir()
	before := mount.New(dir)
	for _, name := range []string{"kept", "left"} {
		_, err := before.Acquire(name, path)
		check(t, err)
	}
	// A new process knows of none, and takes one over.
	table := mount.New(dir)
	at, err := table.Acquire("kept", path)
	check(t, err)
	check(t, table.Sweep())
	if m, _ := mounts(t, dir, path); m != 1 {
		t.Errorf("%d mounts, want the one in use", m)
	}
	if _, err := os.Stat(filepath.Join(at, "file")); err != nil {
		t.Error(err)
	}
	check(t, table.Release("kept"))
	if m, l := mounts(t, dir, path); m != 0 || l != 0 {
		t.Errorf("%d mounts, %d loop devices", m, l)
	}
}

func TestNoImage(t *testing.T) {
	dir := t.TempDir()
	table := mount.New(dir)
	broken := filepath.Join(t.TempDir(), "broken")
	check(t, os.WriteFile(broken, make([]byte, 1<<20), 0o600))
	for _, path := range []string{broken, filepath.Join(dir, "absent")} {
		if _, err := table.Acquire("a", path); err == nil {
			t.Errorf("%s was mounted", path)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 || table.InUse("a") {
		t.Errorf("left: %v, %v", names, err)
	}
	if _, loops := mounts(t, dir, broken); loops != 0 {
		t.Errorf("%d loop devices are left", loops)
	}
}
