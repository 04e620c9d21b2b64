package rootfs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// view is everything that one reader says of an entry, in words, so that a
// difference reads well.
type view map[string]string

// tree is the views of all entries by path; "" is the root.
type tree map[string]view

// hole is a range of a file that is not stored.
type hole struct{ off, end int64 }

// reader is what a tree is read with.
type inode struct {
	view  view
	group string // the same for names of one inode
	holes []hole // of a regular file
}

// grouped tells each name of a linked inode which name is the first.
func grouped(nodes map[string]inode) tree {
	first := map[string]string{}
	count := map[string]int{}
	for _, path := range slices.Sorted(maps.Keys(nodes)) {
		g := nodes[path].group
		if count[g]++; count[g] == 1 {
			first[g] = path
		}
	}
	out := tree{}
	for path, n := range nodes {
		if count[n.group] > 1 {
			n.view["linked"] = fmt.Sprintf("%d names, first %s", count[n.group], brief(first[n.group]))
		}
		out[path] = n.view
	}
	return out
}

func stamp(sec, nsec int64) string { return fmt.Sprintf("%d.%09d", sec, nsec) }

func modeWord(mode uint32) string { return fmt.Sprintf("%07o", mode) }

func valueWord(value []byte) string {
	if len(value) <= 40 {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%d bytes, sha256 %.8x", len(value), sha256.Sum256(value))
}

func sumOf(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.CopyBuffer(h, r, make([]byte, 4096))
	return sumWord(h), err
}

func sumWord(h hash.Hash) string { return fmt.Sprintf("%.10x", h.Sum(nil)) }

// kernel reads files through the kernel, with buffers that it keeps.
type kernel struct{ names, value, data []byte }

// kernelNodes reads the tree below at through the kernel.
func kernelNodes(at string) (map[string]inode, error) {
	out := map[string]inode{}
	k := kernel{make([]byte, 1<<16), make([]byte, 1<<16), make([]byte, 1<<16)}
	err := filepath.WalkDir(at, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		n, err := k.node(path)
		out[strings.TrimPrefix(strings.TrimPrefix(path, at), "/")] = n
		return err
	})
	return out, err
}

func (k kernel) node(path string) (inode, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return inode{}, fmt.Errorf("lstat %q: %w", path, err)
	}
	n := inode{group: fmt.Sprint(st.Ino), view: view{
		"mode": modeWord(st.Mode), "owner": fmt.Sprintf("%d:%d", st.Uid, st.Gid), "mtime": stamp(st.Mtim.Sec, st.Mtim.Nsec),
	}}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFREG:
		n.view["size"] = fmt.Sprint(st.Size)
		n.view["sum"], n.holes, err = k.file(path, st.Size)
	case unix.S_IFLNK:
		n.view["target"], err = os.Readlink(path)
	case unix.S_IFCHR, unix.S_IFBLK:
		n.view["device"] = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	if err != nil {
		return n, err
	}
	return n, k.xattrs(path, n.view)
}

func (k kernel) xattrs(path string, v view) error {
	n, err := unix.Llistxattr(path, k.names)
	if err != nil {
		return fmt.Errorf("listxattr %q: %w", path, err)
	}
	if n == 0 {
		return nil
	}
	for _, name := range bytes.Split(k.names[:n-1], []byte{0}) {
		n, err := unix.Lgetxattr(path, string(name), k.value)
		if err != nil {
			return fmt.Errorf("getxattr %q of %q: %w", name, path, err)
		}
		v["xattr "+string(name)] = valueWord(k.value[:n])
	}
	return nil
}

func (k kernel) file(path string, size int64) (sum string, holes []hole, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{f}, k.data); err != nil {
		return "", nil, err
	}
	sum = sumWord(h)
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO { //nolint:errorlint // an errno as it comes
			data = size
		} else if err != nil {
			return "", nil, fmt.Errorf("seek %q: %w", path, err)
		}
		if data > at {
			holes = append(holes, hole{at, data})
		}
		if data == size {
			break
		}
		if at, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE); err != nil {
			return "", nil, fmt.Errorf("seek %q: %w", path, err)
		}
	}
	return sum, holes, nil
}

// readerNodes reads an image with our own reader.
func readerNodes(ctx context.Context, im *ext4.Image) (map[string]inode, error) {
	out := map[string]inode{}
	err := im.Walk(ctx, func(path string, s ext4.Stat) error {
		n, err := readerNode(im, s)
		out[path] = n
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		return nil
	})
	return out, err
}

func readerNode(im *ext4.Image, s ext4.Stat) (inode, error) {
	n := inode{group: fmt.Sprint(s.Inode), view: view{
		"mode": modeWord(s.Mode), "owner": fmt.Sprintf("%d:%d", s.UID, s.GID), "mtime": stamp(s.Mtime.Unix(), int64(s.Mtime.Nanosecond())),
	}}
	var err error
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.view["size"] = fmt.Sprint(s.Size)
		n.view["sum"], n.holes, err = readerFile(im, s)
	case unix.S_IFLNK:
		n.view["target"], err = im.Target(s)
	case unix.S_IFCHR, unix.S_IFBLK:
		n.view["device"] = fmt.Sprintf("%d:%d", s.Major, s.Minor)
	}
	if err != nil {
		return n, err
	}
	list, err := im.Xattrs(s)
	for _, x := range list {
		n.view["xattr "+x.Name] = valueWord(x.Value)
	}
	return n, err
}

func readerFile(im *ext4.Image, s ext4.Stat) (sum string, holes []hole, err error) {
	c, err := im.Contents(s)
	if err != nil {
		return "", nil, err
	}
	if sum, err = sumOf(c.Reader()); err != nil || s.Size == 0 {
		return sum, nil, err
	}
	at := int64(0)
	err = im.Extents(s, func(g ext4.Segment) error {
		if g.Offset > at {
			holes = append(holes, hole{at, g.Offset})
		}
		at = max(at, g.Offset+g.Length)
		return nil
	})
	if at < s.Size {
		holes = append(holes, hole{at, s.Size})
	}
	return sum, holes, err
}

// typeBits are the bits of st_mode that say what an entry is.
var typeBits = map[kind]uint32{file: unix.S_IFREG, dir: unix.S_IFDIR, symlink: unix.S_IFLNK, fifo: unix.S_IFIFO, char: unix.S_IFCHR, block: unix.S_IFBLK}

// believer says what a reader is expected to see of a node: of its time, and of
// its extended attributes.
type believer struct {
	time  func(time.Time) time.Time
	keeps func(name string, k kind) bool
}

// nodes returns the model's tree as the believer should see it.
func (m *model) nodes(b believer) (map[string]inode, error) {
	out := map[string]inode{}
	seen := map[*node]view{}
	for path, n := range m.names {
		if seen[n] == nil {
			v, err := n.expected(b)
			if err != nil {
				return nil, err
			}
			seen[n] = v
		}
		out[path] = inode{group: fmt.Sprintf("%p", n), view: maps.Clone(seen[n])}
	}
	return out, nil
}

func (n *node) expected(b believer) (view, error) {
	mode := n.mode
	v := view{"owner": fmt.Sprintf("%d:%d", n.uid, n.gid)}
	at := b.time(n.mtime())
	v["mtime"] = stamp(at.Unix(), int64(at.Nanosecond()))
	for name, value := range n.xattrs {
		if !b.keeps(name, n.kind) {
			continue
		}
		more := true
		if name == aclAccess {
			mode, more = foldACL(mode, value)
		}
		if more {
			v["xattr "+name] = valueWord([]byte(value))
		}
	}
	var err error
	switch n.kind {
	case file:
		v["size"] = fmt.Sprint(n.body.length())
		v["sum"], err = sumOf(n.body.whole())
	case symlink:
		v["target"], mode = n.link, 0o777
	case char, block:
		v["device"] = fmt.Sprintf("%d:%d", n.major, n.minor)
	}
	v["mode"] = modeWord(mode | typeBits[n.kind])
	return v, err
}

// difference is one thing that one reader sees otherwise.
type difference struct{ who, path, word, text string }

func (d difference) String() string {
	return fmt.Sprintf("%s: %s: %s", d.who, brief(d.path), d.text)
}

// differences lists every word in which got is not want, but for those that
// excused takes.
func differences(who string, want, got tree, excused func(path, word string) bool) []difference {
	var out []difference
	say := func(path, word, format string, args ...any) {
		out = append(out, difference{who, path, word, fmt.Sprintf(format, args...)})
	}
	for _, path := range slices.Sorted(maps.Keys(got)) {
		if want[path] == nil {
			say(path, "extra", "it is there and should not be: %v", got[path])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		w, g := want[path], got[path]
		if g == nil {
			say(path, "missing", "it is missing: %v", w)
			continue
		}
		both := maps.Clone(w)
		maps.Copy(both, g)
		for _, word := range slices.Sorted(maps.Keys(both)) {
			if w[word] != g[word] && !excused(path, word) {
				say(path, word, "%s is %s, want %s", word, brief(g[word]), brief(w[word]))
			}
		}
	}
	return out
}
