package ext4_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
	"github.com/paddock-dev/paddock/test/backports"
)

// The largest image is written and verified in processes of their own, so that
// their memory is not this one's. childEnv says what such a process does.
const childEnv = "EXT4_TEST_CHILD"

func TestMain(m *testing.M) {
	what := os.Getenv(childEnv)
	if what == "" {
		os.Exit(m.Run())
	}
	if err := child(what, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// spent is what a child had of memory at most, in bytes.
type spent struct{ Heap, Process int64 }

func child(what, path string) error {
	err := map[string]func(string) error{"write": writeMany, "verify": verifyMany}[what](path)
	if err != nil {
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(spent{int64(m.HeapSys), kib << 10})
}

func inChild(t *testing.T, what, path string) spent {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), self, path)
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(t, err)
	var s spent
	must(t, json.Unmarshal(out, &s))
	t.Logf("%s %d names: heap %.1f MiB, process %.1f MiB", what, manyNames, float64(s.Heap)/(1<<20), float64(s.Process)/(1<<20))
	return s
}

// many calls fn for every entry of the largest image: a directory with a crowd
// of files, and many with a thousand names of all kinds.
func many(fn func(dir, name string, i int) error) error {
	for i := range crowdNames - 1 {
		if err := fn("crowd", fmt.Sprintf("entry-%06x-é", i), i); err != nil {
			return err
		}
	}
	for i, dir := crowdNames, ""; i < manyNames; i++ {
		if i%1000 == 0 || dir == "" {
			dir = fmt.Sprintf("dir-%d", i/1000)
			continue // this one is the directory's own name
		}
		if err := fn(dir, fmt.Sprintf("some-file-name-%d", i), i); err != nil {
			return err
		}
	}
	return nil
}

// content is what a file holds: most are empty, or the image would have
// gigabytes.
func content(i int) string {
	if i%16 == 0 {
		return fmt.Sprintf("contents of %d", i)
	}
	return ""
}

func writeMany(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := ext4.New(f, testOptions)
	if err != nil {
		return err
	}
	s, dirs, last := w.Stream(), map[string]ext4.Node{}, ext4.Node(0)
	err = many(func(dir, name string, i int) error {
		if _, ok := dirs[dir]; !ok {
			n, err := w.Add(ext4.Root, dir, ext4.Meta{Mode: 0o040755, Mtime: noon})
			if err != nil {
				return err
			}
			dirs[dir] = n
		}
		m := ext4.Meta{Mode: 0o100644, Mtime: noon, UID: uint32(i)}
		switch i % 50 {
		case 1:
			return w.Link(dirs[dir], name, last)
		case 2:
			m.Mode, m.Target = 0o120777, "target of "+name
		case 3:
			m.Xattrs = []ext4.Xattr{attr("user.some", fmt.Sprint(i%7))}
		default:
			text := content(i)
			if m.Data, err = w.Allot(int64(len(text)), nil); err != nil {
				return err
			}
			if err := s.Copy(m.Data, strings.NewReader(text)); err != nil {
				return err
			}
		}
		last, err = w.Add(dirs[dir], name, m)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	l, err := w.Finish()
	if err == nil && l.Names != manyNames {
		err = fmt.Errorf("%d names, not %d", l.Names, manyNames)
	}
	return err
}

func verifyMany(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	im, err := ext4.Open(f, st.Size())
	if err != nil {
		return err
	}
	r, err := im.Verify(context.Background())
	if err == nil && r.Names != manyNames+1 { // and lost+found
		err = fmt.Errorf("%d names, not %d", r.Names, manyNames+1)
	}
	return err
}

func TestMillion(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "image")
	const limit = 64<<20 + 400*manyNames
	for _, what := range []string{"write", "verify"} {
		s := inChild(t, what, path)
		if s.Heap > limit || !raceBuild && s.Process > limit {
			t.Errorf("%s took %+v bytes of memory, more than %d", what, s, limit)
		}
	}
	fsck(t, path)
	fsckBy(t, filepath.Join(backports.E2fsprogs(t), "e2fsck"), path)
	// The kernel lists all, and finds by their hash those that are asked for.
	at := mount(t, path)
	list, err := os.ReadDir(filepath.Join(at, "crowd"))
	must(t, err)
	if len(list) != crowdNames-1 {
		t.Errorf("the kernel lists %d names", len(list))
	}
	must(t, many(func(dir, name string, i int) error {
		if i%(manyNames/20_000) != 0 {
			return nil
		}
		p := filepath.Join(at, dir, name)
		if st, err := os.Lstat(p); err != nil || st.Mode().Type()&^fs.ModeSymlink != 0 {
			return fmt.Errorf("%s: %v, %w", p, st, err)
		}
		if _, err := os.Lstat(p + "-"); !os.IsNotExist(err) {
			return fmt.Errorf("%s- was never added: %w", p, err)
		}
		if i%50 > 3 {
			got, err := os.ReadFile(p)
			if err == nil && !bytes.Equal(got, []byte(content(i))) {
				err = fmt.Errorf("%s holds %q", p, got)
			}
			return err
		}
		return nil
	}))
}
