package rootfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	meta     = ".wh..wh." // what old union filesystems kept for themselves

	defaultEntries = 2_000_000
	defaultBytes   = 128 << 30
	maxDepth       = 256
)

// tree is an image's files while they are laid out below one directory. Each
// access names a directory that openDir found and one name within it, so no
// symbolic link of the image is ever followed out.
type tree struct {
	root   int
	at     string // the root's own path
	limits Limits

	count int64 // of entries
	bytes int64 // of their files
	made  map[string]bool
	times map[string]unix.Timespec // of directories: they change when entries are made, so theirs come last

	last     place
	openName string
	open     bool
	buf      []byte
}

func newTree(dir string, l Limits) (*tree, error) {
	if l.Entries == 0 {
		l.Entries = defaultEntries
	}
	if l.Bytes == 0 {
		l.Bytes = defaultBytes
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(real, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &tree{root: fd, at: real, limits: l, times: map[string]unix.Timespec{}, buf: make([]byte, 256<<10)}, nil
}

func (t *tree) close() error {
	t.drop()
	return unix.Close(t.root)
}

// begin starts a layer: what it makes, it does not hide.
func (t *tree) begin() { t.made = map[string]bool{} }

// clean returns the entry's path below the root, "." for the root itself, or
// refuses one that an honest archive does not have.
func clean(name string) (string, error) {
	if strings.ContainsRune(name, 0) || slices.Contains(strings.Split(name, "/"), "..") {
		return "", fault.New(fault.ImageHostile, "path %q leads out of the image", name)
	}
	if len(name) >= unix.PathMax {
		return "", fault.New(fault.ImageHostile, "path %.100q... has %d bytes", name, len(name))
	}
	return path.Clean("." + path.Clean("/"+name)), nil
}

// entry lays out one entry of a layer. Its faults name it.
func (t *tree) entry(h *tar.Header, data io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	err := t.lay(h, data)
	switch {
	case err == nil:
		return nil
	case fault.Of(err) != fault.Bug:
		return fmt.Errorf("entry %.200q: %w", h.Name, err)
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return fault.Wrap(fault.DiskFull, err, "entry %.200q in %s", h.Name, t.at)
	case ours(err):
		return fault.Wrap(fault.BuildFailed, err, "entry %.200q in %s", h.Name, t.at)
	}
	return fault.Wrap(fault.ImageHostile, err, "entry %.200q", h.Name)
}

// ours reports whether the machine is to blame for err, and not the entry.
func ours(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.EIO, unix.EROFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN}, func(e unix.Errno) bool { return errors.Is(err, e) })
}

func (t *tree) lay(h *tar.Header, data io.Reader) error {
	if t.count++; t.count > t.limits.Entries {
		return fault.New(fault.ImageHostile, "the image has over %d entries", t.limits.Entries)
	}
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		return t.layRoot(h)
	}
	dir, base := path.Dir(name), path.Base(name)
	switch {
	case base == opaque:
		return t.hideWithin(dir)
	case strings.HasPrefix(name, meta) || strings.Contains(name, "/"+meta):
		return nil
	case strings.HasPrefix(base, whiteout):
		return t.hide(dir, strings.TrimPrefix(base, whiteout))
	}
	in, err := t.within(dir)
	if err != nil {
		return err
	}
	if strings.Count(in.path, "/") >= maxDepth {
		return fault.New(fault.ImageHostile, "it is below over %d directories", maxDepth)
	}
	own := path.Join(in.path, base)
	if err := t.put(in, base, h, data); err != nil {
		return err
	}
	for p := own; p != "." && !t.made[p]; p = path.Dir(p) {
		t.made[p] = true
	}
	return nil
}

// layRoot takes the root's own header.
func (t *tree) layRoot(h *tar.Header) error {
	if h.Typeflag != tar.TypeDir {
		return fault.New(fault.ImageHostile, "the root of the image is not a directory")
	}
	t.times["."] = timeOf(h)
	return attributes(t.root, ".", h)
}

// hide removes what lower layers have at base in dir.
func (t *tree) hide(dir, base string) error {
	if base == "" || base == "." || base == ".." {
		return fault.New(fault.ImageHostile, "it hides nothing that can be hidden")
	}
	p, err := t.openDir(dir)
	if err != nil {
		return absent(err)
	}
	defer unix.Close(p.fd)
	return t.prune(p.fd, p.path, base)
}

// hideWithin removes what lower layers have in dir.
func (t *tree) hideWithin(dir string) error {
	p, err := t.openDir(dir)
	if err != nil {
		return absent(err)
	}
	defer unix.Close(p.fd)
	return t.pruneAll(p.fd, p.path, ".")
}

// absent makes hiding what is not there a success.
func absent(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// prune removes base from dir but for what this layer made.
func (t *tree) prune(dir int, dirPath, base string) error {
	own := path.Join(dirPath, base)
	if !t.made[own] {
		t.drop()
		return removeAll(dir, base)
	}
	kind, err := kindOf(dir, base)
	if err != nil || kind != unix.S_IFDIR {
		return err
	}
	return t.pruneAll(dir, own, base)
}

func (t *tree) pruneAll(dir int, own, base string) error {
	f, names, err := listed(dir, base)
	if err != nil {
		return err
	}
	for _, n := range names {
		err = errors.Join(err, t.prune(int(f.Fd()), own, n))
	}
	return errors.Join(err, f.Close())
}

// put makes one entry, in place of what was there.
func (t *tree) put(in place, base string, h *tar.Header, data io.Reader) error {
	if h.Typeflag == tar.TypeLink {
		return t.link(in, base, h.Linkname)
	}
	if err := t.clear(in, base, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := unix.Mkdirat(in.fd, base, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		t.times[path.Join(in.path, base)] = timeOf(h)
		return attributes(in.fd, base, h)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return t.regular(in, base, h, data)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, in.fd, base); err != nil {
			return err
		}
		return errors.Join(owner(in.fd, base, h), setTime(in.fd, base, timeOf(h)))
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		kind := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
		if err := unix.Mknodat(in.fd, base, kind|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))); err != nil {
			return err
		}
		return attributes(in.fd, base, h)
	}
	return fault.New(fault.ImageHostile, "type %q", string(h.Typeflag))
}

// clear removes what an entry replaces. A directory over a directory stays.
func (t *tree) clear(in place, base string, dir bool) error {
	kind, err := kindOf(in.fd, base)
	if err != nil || kind == 0 || dir && kind == unix.S_IFDIR {
		return err
	}
	return removeAll(in.fd, base)
}

// link makes a hard link. What it names must be there, and not be the place
// that the link will take.
func (t *tree) link(in place, base, linkname string) error {
	target, err := clean(linkname)
	if err != nil {
		return err
	}
	from, err := t.openDir(path.Dir(target))
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", linkname, err)
	}
	defer unix.Close(from.fd)
	name := path.Base(target)
	kind, err := kindOf(from.fd, name)
	switch {
	case err != nil:
		return err
	case kind == 0 || kind == unix.S_IFDIR:
		return fault.New(fault.ImageHostile, "hard link to %.200q, which is not there or a directory", linkname)
	case path.Join(from.path, name) == path.Join(in.path, base):
		return fault.New(fault.ImageHostile, "hard link to itself")
	}
	if err := t.clear(in, base, false); err != nil {
		return err
	}
	return unix.Linkat(from.fd, name, in.fd, base, 0)
}

func (t *tree) regular(in place, base string, h *tar.Header, data io.Reader) error {
	if t.bytes += h.Size; h.Size < 0 || t.bytes > t.limits.Bytes {
		return fault.New(fault.ImageHostile, "the image's files have over %d bytes", t.limits.Bytes)
	}
	fd, err := unix.Openat(in.fd, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	err = t.copy(f, data, h.Size)
	if late := f.Close(); err == nil {
		err = late
	}
	if err != nil {
		return err
	}
	return attributes(in.fd, base, h)
}

// copy writes size bytes and leaves holes where they are zeros.
func (t *tree) copy(f *os.File, data io.Reader, size int64) error {
	for at := int64(0); at < size; {
		b := t.buf[:min(int64(len(t.buf)), size-at)]
		if _, err := io.ReadFull(data, b); err != nil {
			return badLayer(err)
		}
		if !zero(b) {
			if _, err := f.WriteAt(b, at); err != nil {
				return err
			}
		}
		at += int64(len(b))
	}
	return f.Truncate(size)
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// finish sets the times of the directories that are left.
func (t *tree) finish() error {
	t.drop()
	for name, m := range t.times {
		p, err := t.openDir(path.Dir(name))
		if err != nil {
			continue // a later layer hid it
		}
		kind, err := kindOf(p.fd, path.Base(name))
		if err == nil && kind == unix.S_IFDIR {
			err = setTime(p.fd, path.Base(name), m)
		}
		if err = errors.Join(err, unix.Close(p.fd)); err != nil {
			return fmt.Errorf("time of %q: %w", name, err)
		}
	}
	return nil
}
