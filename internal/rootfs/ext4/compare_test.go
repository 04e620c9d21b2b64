package ext4_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// view is everything that one reader of an image says about an entry, in
// words, so that a difference reads well.
type view map[string]string

// expected returns the views that items ask for.
func expected(t testing.TB, items []item) map[string]view {
	t.Helper()
	links := map[string]int{}
	target := map[string]string{}
	for _, it := range items {
		name := it.path
		if it.link != "" {
			name = target[it.link]
		}
		target[it.path] = name
		links[name]++
	}
	subdirs := map[string]int{"": 1} // lost+found
	for _, it := range items {
		if it.path == "lost+found" {
			subdirs[""] = 0
		}
	}
	for _, it := range items {
		if it.meta.Mode&0o170000 == 0o040000 && it.path != "" && it.link == "" {
			subdirs[parentOf(it.path)]++
		}
	}
	out := map[string]view{}
	for _, it := range items {
		if it.link == "" {
			out[it.path] = expectOne(t, it, links[it.path], subdirs[it.path])
		}
	}
	for _, it := range items {
		if it.link != "" {
			out[it.path] = out[target[it.path]]
		}
	}
	return out
}

func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i]
	}
	return ""
}

func expectOne(t testing.TB, it item, links, subdirs int) view {
	t.Helper()
	m := it.meta
	if m.Atime.IsZero() {
		m.Atime = m.Mtime
	}
	if m.Ctime.IsZero() {
		m.Ctime = m.Mtime
	}
	for _, at := range []*time.Time{&m.Mtime, &m.Atime, &m.Ctime} {
		*at = held(*at)
	}
	v := view{
		"mode": fmt.Sprintf("%o", m.Mode), "owner": fmt.Sprintf("%d:%d", m.UID, m.GID), "links": fmt.Sprint(links),
		"mtime": stamp(m.Mtime.Unix(), int64(m.Mtime.Nanosecond())),
		"atime": stamp(m.Atime.Unix(), int64(m.Atime.Nanosecond())),
		"ctime": stamp(m.Ctime.Unix(), int64(m.Ctime.Nanosecond())),
	}
	switch m.Mode & 0o170000 {
	case 0o040000:
		if v["links"] = fmt.Sprint(subdirs + 2); subdirs+2 > 65000 {
			v["links"] = "1"
		}
	case 0o100000:
		v["size"], v["sum"] = fmt.Sprint(it.size), sum(t, io.LimitReader(strings.NewReader(""), 0))
		if it.body != nil {
			v["sum"] = sum(t, it.body())
		}
	case 0o120000:
		v["target"] = m.Target
	case 0o020000, 0o060000:
		v["device"] = fmt.Sprintf("%d:%d", m.Major, m.Minor)
	}
	for _, x := range m.Xattrs {
		v["xattr "+x.Name] = fmt.Sprintf("%d:%x", len(x.Value), sha256.Sum256(x.Value))
	}
	return v
}

// held is the time that an image holds for t.
func held(t time.Time) time.Time {
	switch from := time.Date(2310, 4, 4, 16, 10, 40, 0, time.UTC); {
	case t.Before(time.Date(1901, 12, 13, 20, 45, 52, 0, time.UTC)):
		return time.Date(1901, 12, 13, 20, 45, 52, 0, time.UTC)
	case t.After(time.Date(2446, 5, 10, 22, 38, 55, 999999999, time.UTC)):
		return time.Date(2446, 5, 10, 22, 38, 55, 999999999, time.UTC)
	case !t.Before(from) && t.Before(time.Date(2378, 4, 22, 19, 24, 48, 0, time.UTC)):
		return from.Add(-1)
	}
	return t
}

func stamp(sec, nsec int64) string { return fmt.Sprintf("%d.%09d", sec, nsec) }

func sum(t testing.TB, r io.Reader) string {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, r)
	must(t, err)
	return fmt.Sprintf("%x", h.Sum(nil)[:12])
}

// kernel returns what the kernel says about every entry of an image.
func kernel(t testing.TB, path string) map[string]view {
	t.Helper()
	at, end := mountAs(t, path, "ro,loop")
	defer end()
	return mounted(t, at)
}

// mounted returns what the kernel says about every entry below at.
func mounted(t testing.TB, at string) map[string]view {
	t.Helper()
	out, buf := map[string]view{}, make([]byte, 1<<16)
	must(t, filepath.WalkDir(at, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, at), "/")
		out[name] = kernelView(t, path, buf)
		return nil
	}))
	return out
}

func kernelView(t testing.TB, path string, buf []byte) view {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	v := view{
		"mode": fmt.Sprintf("%o", st.Mode), "owner": fmt.Sprintf("%d:%d", st.Uid, st.Gid), "links": fmt.Sprint(st.Nlink),
		"mtime": stamp(st.Mtim.Sec, st.Mtim.Nsec), "atime": stamp(st.Atim.Sec, st.Atim.Nsec), "ctime": stamp(st.Ctim.Sec, st.Ctim.Nsec),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		v["size"], v["sum"] = fmt.Sprint(st.Size), sum(t, f)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		must(t, err)
		v["target"] = target
	case unix.S_IFCHR, unix.S_IFBLK:
		v["device"] = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	for _, name := range listXattrs(t, path, buf) {
		n, err := unix.Lgetxattr(path, name, buf)
		must(t, err)
		v["xattr "+name] = fmt.Sprintf("%d:%x", n, sha256.Sum256(buf[:n]))
	}
	return v
}

func listXattrs(t testing.TB, path string, buf []byte) []string {
	t.Helper()
	n, err := unix.Llistxattr(path, buf)
	must(t, err)
	var names []string
	for _, name := range bytes.Split(buf[:n], []byte{0}) {
		if len(name) > 0 {
			names = append(names, string(name))
		}
	}
	return names
}

// differ reports every entry and every word in which got is not want.
// lost+found is the image's own unless the tree has it.
func differ(t testing.TB, who string, want, got map[string]view) {
	t.Helper()
	_, own := want["lost+found"]
	_, rooted := want[""]
	bad := 0
	for _, path := range slices.Sorted(maps.Keys(got)) {
		if path == "lost+found" && !own || path == "" && !rooted {
			continue
		}
		if want[path] == nil {
			t.Errorf("%s: %q is there but was never added", who, path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		w, g := want[path], got[path]
		if maps.Equal(w, g) {
			continue
		}
		if bad++; bad > 20 {
			t.Fatalf("%s: and more", who)
		}
		if g == nil {
			t.Errorf("%s: %.80q is missing", who, path)
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(both(w, g))) {
			if w[k] != g[k] {
				t.Errorf("%s: %.80q: %s is %q, want %q", who, path, k, g[k], w[k])
			}
		}
	}
}

func both(a, b view) view {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// check holds an image against the tree: e2fsck, the kernel and our reader.
func check(t testing.TB, path string, items []item) {
	t.Helper()
	fsck(t, path)
	want := expected(t, items)
	differ(t, "kernel", want, kernel(t, path))
	differ(t, "reader", want, read(t, path))
}
