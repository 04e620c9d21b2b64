package treetar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

// PackOptions say what goes into an archive.
type PackOptions struct {
	Limits Limits
	// Owners: entries name the numeric owners of the files; else root.
	Owners bool
	// Attributes: files have their extended attributes, and devices and pipes are
	// entries, too.
	Attributes bool
	// Leave names what is left out, with all that is below it; nil: nothing.
	Leave func(name string) bool
	// Bare names directories that have no entry of their own; what is below them
	// has. Nil: none.
	Bare func(name string) bool
}

type inode struct{ dev, ino uint64 }

type packer struct {
	ctx   context.Context //nolint:containedctx // it lives as long as one call
	root  *os.Root
	out   *tar.Writer
	o     PackOptions
	spent spent
	links map[inode]string // files with several names, by the first of them
	left  int
}

// Pack writes the tree of root to w: directories, files, symbolic and hard
// links, with modes and times of modification in whole seconds. The first
// entry is the tree itself. Other kinds of files are left out: it returns how
// many. A file that shrinks while it is read is an error, since its size was
// told before; what went away meanwhile is not.
func Pack(ctx context.Context, w io.Writer, root *os.Root, o PackOptions) (left int, err error) {
	out := tar.NewWriter(w)
	if left, err = PackInto(ctx, out, root, o); err != nil {
		return left, err
	}
	return left, out.Close()
}

// PackInto is Pack into an archive that goes on.
func PackInto(ctx context.Context, out *tar.Writer, root *os.Root, o PackOptions) (left int, err error) {
	p := &packer{ctx: ctx, root: root, out: out, o: o, spent: spent{limits: o.Limits}, links: map[inode]string{}}
	info, err := root.Stat(".")
	if err == nil {
		err = p.add(".", info)
	}
	return p.left, err
}

func (p *packer) add(name string, info fs.FileInfo) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fault.New(fault.Bug, "%s has no inode", name)
	}
	h := &tar.Header{Name: name, Mode: int64(st.Mode & 0o7777), ModTime: info.ModTime().Truncate(time.Second)}
	if p.o.Owners {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	switch {
	case info.IsDir():
		return p.addDir(h)
	case info.Mode()&fs.ModeSymlink != 0:
		return p.addLink(h)
	case info.Mode().IsRegular():
		return p.addFile(h, info, inode{st.Dev, st.Ino}, st.Nlink > 1)
	}
	kind, ok := special[st.Mode&syscall.S_IFMT]
	if !p.o.Attributes || !ok {
		p.left++
		return nil
	}
	h.Typeflag, h.Devmajor, h.Devminor = kind, int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	return p.header(h)
}

// special are the kinds of files without contents. A socket is none: its
// program is elsewhere.
var special = map[uint32]byte{syscall.S_IFCHR: tar.TypeChar, syscall.S_IFBLK: tar.TypeBlock, syscall.S_IFIFO: tar.TypeFifo}

// attributes are the extended ones of an open file, as records of its header.
func attributes(f *os.File) (map[string]string, error) {
	list := make([]byte, longestList)
	n, err := unix.Flistxattr(int(f.Fd()), list)
	if err != nil || n == 0 {
		if errors.Is(err, unix.ENOTSUP) {
			err = nil
		}
		return nil, err
	}
	records := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		value := make([]byte, longestList)
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		records["SCHILY.xattr."+name] = string(value[:n])
	}
	return records, nil
}

// longestList bounds the names of a file's attributes, and each value, as the
// kernel does.
const longestList = 64 << 10

func (p *packer) header(h *tar.Header) error {
	if err := p.spent.take(h.Size); err != nil {
		return err
	}
	if err := p.out.WriteHeader(h); err != nil {
		return fmt.Errorf("entry %q: %w", h.Name, err)
	}
	return nil
}

func (p *packer) addDir(h *tar.Header) error {
	name := h.Name
	d, err := p.root.Open(name)
	if err != nil {
		return gone(err)
	}
	list, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil && len(list) == 0 {
		return gone(err)
	}
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	if p.o.Bare == nil || !p.o.Bare(name) {
		if err := p.header(h); err != nil {
			return err
		}
	}
	for _, one := range list {
		child := path.Join(name, one.Name())
		if p.o.Leave != nil && p.o.Leave(child) {
			continue
		}
		info, err := p.root.Lstat(child)
		if err == nil {
			err = p.add(child, info)
		}
		if gone(err) != nil {
			return err
		}
	}
	return nil
}

func (p *packer) addLink(h *tar.Header) (err error) {
	h.Typeflag = tar.TypeSymlink
	if h.Linkname, err = p.root.Readlink(h.Name); err != nil {
		return gone(err)
	}
	return p.header(h)
}

func (p *packer) addFile(h *tar.Header, info fs.FileInfo, at inode, several bool) error {
	if first, ok := p.links[at]; ok && several {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return p.header(h)
	}
	f, err := p.root.OpenFile(h.Name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may have taken its place
	if err != nil {
		return gone(err)
	}
	defer f.Close()
	opened, err := f.Stat()
	if err != nil || !os.SameFile(info, opened) {
		return err // another has its name by now
	}
	h.Typeflag, h.Size = tar.TypeReg, opened.Size()
	if p.o.Attributes {
		if h.PAXRecords, err = attributes(f); err != nil {
			return fmt.Errorf("file %q: %w", h.Name, err)
		}
	}
	if err := p.header(h); err != nil {
		return err
	}
	if several {
		p.links[at] = h.Name
	}
	if _, err := io.CopyN(p.out, f, h.Size); errors.Is(err, io.EOF) {
		return fault.New(fault.StateConflict, "file %q became shorter while it was read", h.Name)
	} else if err != nil {
		return fmt.Errorf("file %q: %w", h.Name, err)
	}
	return nil
}

// gone: what went away meanwhile is no failure.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
