package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

// maxLinks bounds how many steps may lead to one directory that is not there.
const maxLinks = 1000

// place is a directory of the tree, held open.
type place struct {
	fd   int
	path string // below the root, free of links; "." is the root
}

// openDir opens the directory at name with its links resolved as they would be
// inside: absolute ones begin at the tree's root, and none leads out of it.
func (t *tree) openDir(name string) (place, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := openat2(t.root, name, &how)
	if err != nil {
		return place{}, err
	}
	full, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return place{}, errors.Join(err, unix.Close(fd))
	}
	below, ok := strings.CutPrefix(full, t.at)
	if !ok || below != "" && below[0] != '/' {
		return place{}, errors.Join(fault.New(fault.ImageHostile, "directory %q leads out of the image", name), unix.Close(fd))
	}
	return place{fd, path.Clean("." + below)}, nil
}

// openat2 asks again while the kernel cannot say whether a ".." was raced.
func openat2(dir int, name string, how *unix.OpenHow) (int, error) {
	for range 100 {
		fd, err := unix.Openat2(dir, name, how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// within returns the directory at name, made with its parents if an archive
// left them out. The last one stays open, since entries of one directory
// follow each other; it is the tree's to close.
func (t *tree) within(name string) (place, error) {
	if t.open && t.openName == name {
		return t.last, nil
	}
	steps := maxLinks
	p, err := t.makeDir(name, &steps)
	if err != nil {
		return p, err
	}
	t.drop()
	t.last, t.openName, t.open = p, name, true
	return p, nil
}

// drop forgets the last directory: the way to it may have changed.
func (t *tree) drop() {
	if t.open {
		_ = unix.Close(t.last.fd) // opened for its path only: nothing is lost
	}
	t.open = false
}

func (t *tree) makeDir(name string, steps *int) (place, error) {
	p, err := t.openDir(name)
	if *steps--; err == nil || *steps < 0 || name == "." || !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return p, err
	}
	parent, err := t.makeDir(path.Dir(name), steps)
	if err != nil {
		return p, err
	}
	defer unix.Close(parent.fd)
	base := path.Base(name)
	target, err := readlinkat(parent.fd, base)
	switch {
	case err == nil: // a link to what is not there yet
		if !path.IsAbs(target) {
			target = path.Join("/", parent.path, target)
		}
		return t.makeDir(path.Clean("."+path.Clean(target)), steps)
	case errors.Is(err, unix.EINVAL): // something else than a directory is in the way
		if err := unix.Unlinkat(parent.fd, base, 0); err != nil {
			return p, err
		}
	case !errors.Is(err, unix.ENOENT):
		return p, err
	}
	if err := unix.Mkdirat(parent.fd, base, 0o755); err != nil {
		return p, err
	}
	own := path.Join(parent.path, base)
	t.times[own] = unix.Timespec{} // no header names one: it must not be now
	return t.openDir(own)
}

func readlinkat(dir int, name string) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// kindOf returns the type bits of an entry's mode, without following it; 0 when
// there is none.
func kindOf(dir int, base string) (uint32, error) {
	var s unix.Stat_t
	err := unix.Fstatat(dir, base, &s, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return s.Mode & unix.S_IFMT, err
}

// listed opens a directory of the tree without following it and reads its
// names. The caller closes it.
func listed(dir int, base string) (*os.File, []string, error) {
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), base)
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, names, nil
}

// removeAll removes what base is in dir, and everything below it. It follows
// no link, and keeps one directory open per level.
func removeAll(dir int, base string) error {
	err := unix.Unlinkat(dir, base, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return err
	}
	f, names, err := listed(dir, base)
	if err != nil {
		return err
	}
	for _, n := range names {
		err = errors.Join(err, removeAll(int(f.Fd()), n))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
}
