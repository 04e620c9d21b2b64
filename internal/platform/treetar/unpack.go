package treetar

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// UnpackOptions say what an archive may do.
type UnpackOptions struct {
	Limits Limits
	// Own says whose an entry shall be, given its numeric owner in the archive;
	// nil: whoever runs this.
	Own func(uid, gid int) (int, int)
	// Top: the entry of the tree itself gives mode, owner and time to the
	// directory that is unpacked to.
	Top bool
	// Plain: setuid, setgid and sticky bits are dropped.
	Plain bool
}

type unpacker struct {
	root  *os.Root
	o     UnpackOptions
	spent spent
	dirs  map[string]*tar.Header // that are there; nil: only implied by what is below
	order []string               // those with a header, in the archive's order
}

// Unpack reads a tar archive and makes its tree below root. What is there stays,
// unless an entry has its name: then that replaces it, but not a directory that
// is not empty. Directories get their modes and times at the end, so that they
// can be filled. A bad archive is fault.ArchiveRefused, and names the entry; what
// came before it has been unpacked.
func Unpack(ctx context.Context, root *os.Root, r io.Reader, o UnpackOptions) error {
	u := &unpacker{root: root, o: o, spent: spent{limits: o.Limits}, dirs: map[string]*tar.Header{".": nil}}
	source := &reader{Reader: r}
	archive := tar.NewReader(source)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			if source.zeros < endMark {
				return source.blame(io.ErrUnexpectedEOF)
			}
			return u.finish()
		}
		if err != nil {
			return source.blame(err)
		}
		content := &reader{Reader: archive}
		if err := u.entry(h, content); err != nil {
			if content.failed != nil {
				err = content.blame(content.failed)
			}
			return err
		}
		source.zeros = 0 // what follows is padding, less than a block, and the next header
	}
}

// endMark is how many zero bytes end an archive. The library takes one that is
// cut off between two entries for a whole one.
const endMark = 2 * 512

// reader remembers that it was reading, not writing, that failed, and how many
// zero bytes it read last.
type reader struct {
	io.Reader
	failed error
	zeros  int
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed = err
	}
	if kept := len(bytes.TrimRight(p[:n], "\x00")); kept > 0 {
		r.zeros = n - kept
	} else {
		r.zeros += n
	}
	return n, err
}

func (r *reader) blame(err error) error {
	return fault.Wrap(fault.ArchiveRefused, err, "the archive cannot be read to its end")
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if err := u.spent.take(max(0, h.Size)); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.dir(name, h)
	}
	if name == "." {
		return fault.New(fault.ArchiveRefused, "entry %q: only a directory can be the tree itself", h.Name)
	}
	if err := u.parents(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		err = u.file(name, h, content)
	case tar.TypeSymlink:
		err = u.symlink(name, h)
	case tar.TypeLink:
		err = u.hardLink(name, h)
	default:
		return fault.New(fault.ArchiveRefused, "entry %q: a device, a pipe, or of an unknown kind", name)
	}
	return explain(name, err)
}

// explain words what a name can meet below the tree; other failures of the disk
// stay as they are.
func explain(name string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) && p.Err != nil && p.Err.Error() == "path escapes from parent" { // os has no name for it
		return fault.New(fault.ArchiveRefused, "entry %q: a symbolic link on its way leads out", name)
	}
	if err != nil {
		return fmt.Errorf("entry %q: %w", name, err)
	}
	return nil
}

// parents makes the directories above name.
func (u *unpacker) parents(name string) error {
	dir := path.Dir(name)
	if _, ok := u.dirs[dir]; ok {
		return nil
	}
	if err := u.parents(dir); err != nil {
		return err
	}
	made, err := u.mkdir(dir)
	if err != nil || !made {
		return explain(dir, err)
	}
	if err := u.spent.take(0); err != nil {
		return err
	}
	return explain(dir, errors.Join(u.root.Chmod(dir, 0o755), u.own(dir, 0, 0)))
}

// mkdir makes one directory, or finds that it is there.
func (u *unpacker) mkdir(dir string) (made bool, err error) {
	u.dirs[dir] = nil
	err = u.root.Mkdir(dir, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err == nil, err
	}
	info, err := u.root.Stat(dir)
	switch {
	case err != nil:
		return false, err
	case !info.IsDir():
		return false, fault.New(fault.ArchiveRefused, "entry %q: a file is where a directory must be", dir)
	}
	return false, nil
}

func (u *unpacker) dir(name string, h *tar.Header) error {
	if name == "." && !u.o.Top {
		return nil
	}
	if _, known := u.dirs[name]; !known {
		if err := u.parents(name); err != nil {
			return err
		}
		if _, err := u.mkdir(name); err != nil {
			return explain(name, err)
		}
	}
	if u.dirs[name] == nil {
		u.order = append(u.order, name)
	}
	u.dirs[name] = h
	return nil
}

// clear makes room for an entry that is no directory.
func (u *unpacker) clear(name string) error {
	info, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = u.root.Remove(name)
	}
	if err != nil && info != nil && info.IsDir() {
		return fault.New(fault.ArchiveRefused, "entry %q: a directory that is not empty is in its place", name)
	}
	delete(u.dirs, name)
	return err
}

func (u *unpacker) file(name string, h *tar.Header, content io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil && u.o.Own != nil {
		err = f.Chown(u.o.Own(h.Uid, h.Gid))
	}
	if err == nil {
		err = f.Chmod(u.mode(h)) // after the owner: a change of that drops setuid
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, u.root.Remove(name))
	}
	return u.touch(name, h)
}

func (u *unpacker) symlink(name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > longestName {
		return fault.New(fault.ArchiveRefused, "entry %q: the link leads nowhere, or its text is too long", name)
	}
	if err := u.clear(name); err != nil {
		return err
	}
	if err := u.root.Symlink(h.Linkname, name); err != nil {
		return err
	}
	return u.own(name, h.Uid, h.Gid)
}

func (u *unpacker) hardLink(name string, h *tar.Header) error {
	target, err := cleanName(h.Linkname)
	if err != nil {
		return err
	}
	switch info, err := u.root.Lstat(target); {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() || target == name:
		return fault.New(fault.ArchiveRefused, "entry %q: a hard link to %q, which is no file of the tree", name, target)
	case err != nil:
		return err
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return u.root.Link(target, name)
}

// finish gives directories their modes and times, those below first.
func (u *unpacker) finish() error {
	for _, name := range slices.Backward(u.order) {
		h := u.dirs[name]
		info, err := u.root.Stat(name)
		if h == nil || err != nil || !info.IsDir() {
			continue // something else took its place
		}
		err = u.own(name, h.Uid, h.Gid)
		if err = errors.Join(err, u.root.Chmod(name, u.mode(h)), u.touch(name, h)); err != nil {
			return explain(name, err)
		}
	}
	return nil
}

func (u *unpacker) own(name string, uid, gid int) error {
	if u.o.Own == nil {
		return nil
	}
	uid, gid = u.o.Own(uid, gid)
	return u.root.Lchown(name, uid, gid)
}

func (u *unpacker) touch(name string, h *tar.Header) error {
	if h.ModTime.Unix() == 0 {
		return nil // the archive says none
	}
	return u.root.Chtimes(name, time.Time{}, h.ModTime)
}

func (u *unpacker) mode(h *tar.Header) fs.FileMode {
	m := h.FileInfo().Mode()
	if u.o.Plain {
		return m.Perm()
	}
	return m & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}
