package rootfs

import (
	"archive/tar"
	"bufio"
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	xattrKey = "SCHILY.xattr."
)

// tree is an image's files while they are laid out below one directory. Every
// access goes through root, which no symbolic link leads out of.
type tree struct {
	root    *os.Root
	entries int64
	bytes   int64
	made    map[string]bool // paths of the layer that is applied now
	times   []dirTime       // directories change when entries are made, so their times come last
}

type dirTime struct {
	name string
	h    *tar.Header
}

// apply lays one layer over what is there, and verifies its digests.
func (t *tree) apply(ctx context.Context, l v1.Layer, diffID v1.Hash, counted func(int)) error {
	compressed, err := l.Compressed() // it verifies the digest at its end
	if err != nil {
		return err
	}
	defer compressed.Close()
	source := &counter{ctx: ctx, r: compressed, add: counted}
	plain, err := decompress(source)
	if err != nil {
		return err
	}
	defer plain.Close()
	sum := sha256.New()
	data := io.TeeReader(plain, sum)
	t.made = map[string]bool{}
	tr := tar.NewReader(data)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return badLayer(err)
		}
		if err := t.entry(h, tr); err != nil {
			return err
		}
	}
	// What follows the end of the archive still counts for the digests.
	if _, err := io.Copy(io.Discard, data); err != nil {
		return badLayer(err)
	}
	if _, err := io.Copy(io.Discard, source); err != nil {
		return badLayer(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != diffID.Hex {
		return fault.New(fault.ImageInvalid, "layer content has sha256 %s, its image says %s", got, diffID.Hex)
	}
	return nil
}

func badLayer(err error) error {
	if fault.Of(err) != fault.Bug || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.Wrap(fault.ImageInvalid, err, "layer")
}

// counter counts what was read and ends with its context.
type counter struct {
	ctx context.Context
	r   io.Reader
	add func(int)
}

func (c *counter) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(b)
	c.add(n)
	return n, err
}

// decompress tells the compression by the first bytes: media types lie.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		return gzip.NewReader(b)
	case string(magic) == "\x28\xb5\x2f\xfd":
		d, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case strings.HasPrefix(string(magic), "BZh"):
		return io.NopCloser(bzip2.NewReader(b)), nil
	}
	return io.NopCloser(b), nil
}

// clean returns the entry's path below the root, "." for the root itself, or
// refuses one that leads out.
func clean(name string) (string, error) {
	p := path.Clean(strings.TrimLeft(name, "/"))
	if strings.ContainsRune(name, 0) || p == ".." || strings.HasPrefix(p, "../") {
		return "", fault.New(fault.ImageHostile, "entry %q leads out of the image", name)
	}
	return p, nil
}

func (t *tree) entry(h *tar.Header, data io.Reader) error {
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	if base == opaque {
		return t.empty(dir)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		if hidden == "" || hidden == "." || hidden == ".." {
			return fault.New(fault.ImageHostile, "entry %q hides nothing that can be hidden", h.Name)
		}
		return t.hide(path.Join(dir, hidden))
	}
	if name == "." && h.Typeflag != tar.TypeDir {
		return fault.New(fault.ImageHostile, "entry %q: the root of the image is not a directory", h.Name)
	}
	if err := t.parents(dir); err != nil {
		return t.entryFault(h, err)
	}
	if err := t.place(name, h, data); err != nil {
		return t.entryFault(h, err)
	}
	t.entries++
	for p := name; p != "." && !t.made[p]; p = path.Dir(p) {
		t.made[p] = true
	}
	return nil
}

// entryFault says which entry could not be laid out. What the system refuses
// for the disk's sake is no fault of the image.
func (t *tree) entryFault(h *tar.Header, err error) error {
	switch {
	case fault.Of(err) != fault.Bug:
		return err
	case errors.Is(err, unix.ENOSPC):
		return fault.Wrap(fault.DiskFull, err, "entry %q", h.Name)
	}
	return fault.Wrap(fault.ImageHostile, err, "entry %q", h.Name)
}

// empty removes what lower layers put into dir, not what this one did.
func (t *tree) empty(dir string) error {
	d, err := t.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil // nothing there to hide
	}
	if err != nil {
		return fault.Wrap(fault.ImageInvalid, err, "opaque directory %q", dir)
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return fault.Wrap(fault.ImageInvalid, err, "opaque directory %q", dir)
	}
	for _, n := range names {
		if p := path.Join(dir, n); !t.made[p] {
			if err := t.root.RemoveAll(p); err != nil {
				return fault.Wrap(fault.ImageInvalid, err, "hidden entry %q", p)
			}
		}
	}
	return nil
}

func (t *tree) hide(name string) error {
	if t.made[name] {
		return nil
	}
	if err := t.root.RemoveAll(name); err != nil {
		return fault.Wrap(fault.ImageInvalid, err, "hidden entry %q", name)
	}
	return nil
}

// parents makes the directories that an archive may leave out.
func (t *tree) parents(dir string) error {
	if dir == "." {
		return nil
	}
	if info, err := t.root.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := t.parents(path.Dir(dir)); err != nil {
		return err
	}
	if info, err := t.root.Lstat(dir); err == nil && !info.IsDir() {
		if err := t.root.Remove(dir); err != nil {
			return err
		}
	}
	if err := t.root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// place makes one entry, in place of what was there.
func (t *tree) place(name string, h *tar.Header, data io.Reader) error {
	if old, err := t.root.Lstat(name); err == nil && name != "." && !(old.IsDir() && h.Typeflag == tar.TypeDir) {
		if err := t.root.RemoveAll(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := t.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		t.times = append(t.times, dirTime{name, h})
	case tar.TypeReg:
		return t.regular(name, h, data)
	case tar.TypeSymlink:
		if err := t.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		if err := t.root.Lchown(name, h.Uid, h.Gid); err != nil {
			return err
		}
		return t.at(name, func(dir int, base string) error { return setTimes(dir, base, h) })
	case tar.TypeLink:
		target, err := clean(h.Linkname)
		if err != nil {
			return err
		}
		return t.root.Link(target, name)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		if err := t.node(name, h); err != nil {
			return err
		}
	default:
		return fault.New(fault.ImageHostile, "entry %q has type %q", h.Name, string(h.Typeflag))
	}
	return t.attributes(name, h)
}

func (t *tree) regular(name string, h *tar.Header, data io.Reader) error {
	f, err := t.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, data)
	t.bytes += n
	if err = errors.Join(err, f.Close()); err != nil {
		return badLayer(err)
	}
	return t.attributes(name, h)
}

func (t *tree) node(name string, h *tar.Header) error {
	kind := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
	return t.at(name, func(dir int, base string) error {
		return unix.Mknodat(dir, base, kind|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	})
}

// at calls do with the open directory that holds name.
func (t *tree) at(name string, do func(dir int, base string) error) error {
	d, err := t.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(do(int(d.Fd()), path.Base(name)), d.Close())
}

// attributes gives name its owner, mode, extended attributes and time, in this
// order: a change of owner drops set-id bits and capabilities.
func (t *tree) attributes(name string, h *tar.Header) error {
	if err := t.root.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	mode := h.FileInfo().Mode()
	if err := t.root.Chmod(name, mode.Perm()|mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)); err != nil {
		return err
	}
	if err := t.xattrs(name, h); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return nil
	}
	return t.at(name, func(dir int, base string) error { return setTimes(dir, base, h) })
}

func (t *tree) xattrs(name string, h *tar.Header) error {
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, xattrKey)
		if !ok || attr == "security.selinux" { // labels of another machine's policy
			continue
		}
		err := t.at(name, func(dir int, base string) error {
			// The directory is open and base has no slash, so this cannot be led astray.
			return unix.Lsetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", dir, base), attr, []byte(value), 0)
		})
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("attribute %s: %w", attr, err)
		}
	}
	return nil
}

func setTimes(dir int, base string, h *tar.Header) error {
	m := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{m, m}, unix.AT_SYMLINK_NOFOLLOW)
}

// finish sets the times of directories, last to first, so that none changes
// another's.
func (t *tree) finish() error {
	for i := len(t.times) - 1; i >= 0; i-- {
		d := t.times[i]
		if info, err := t.root.Lstat(d.name); err != nil || !info.IsDir() {
			continue // a later layer hid it
		}
		if d.name == "." {
			continue
		}
		if err := t.at(d.name, func(dir int, base string) error { return setTimes(dir, base, d.h) }); err != nil {
			return err
		}
	}
	return nil
}
