package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// growth is how much larger an image's files are taken to be than its layers
	// in the check before a build.
	growth   = 3
	headroom = 64 << 20
	scratch  = "build-"
)

// Result is what was made.
type Result struct {
	SHA256    string
	SizeBytes int64
	Entries   int64
}

// FileBytes is an estimate of the file that WriteTo will make.
func (im *Image) FileBytes() int64 { return im.CompressedBytes*growth + im.size + headroom }

// WriteTo makes the ext4 image at path, a name on the work directory's
// filesystem. The file appears whole or not at all, and nothing else remains.
// Refusals besides Resolve's: fault.DiskFull, before anything is fetched if the
// work directory cannot take the build; fault.ImageHostile for an entry that no
// honest image has; fault.BuildFailed; fault.ToolMissing.
func (im *Image) WriteTo(ctx context.Context, path string) (res Result, err error) {
	// The layers, the tree made of them, and the file made of the tree.
	if err := im.room(im.CompressedBytes + 2*im.FileBytes()); err != nil {
		return res, err
	}
	dir, err := os.MkdirTemp(im.req.WorkDir, scratch+"*")
	if err != nil {
		return res, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", im.req.WorkDir)
	}
	defer func() {
		if late := os.RemoveAll(dir); late != nil {
			err = errors.Join(err, fault.Wrap(fault.DataDir, late, "scratch %s", dir))
		}
	}()
	if err := im.pull(ctx, dir); err != nil {
		return res, err
	}
	file := filepath.Join(dir, "image.ext4")
	if res.Entries, err = im.build(ctx, dir, file); err != nil {
		return res, err
	}
	if res.SHA256, res.SizeBytes, err = settle(file); err != nil {
		return res, diskFault(err, dir)
	}
	if err := fail.Point("rootfs.before_rename"); err != nil {
		return res, err
	}
	if err := os.Rename(file, path); err != nil {
		return res, fault.Wrap(fault.BuildFailed, err, "image")
	}
	return res, syncDir(filepath.Dir(path))
}

// build lays the pulled layers out below dir and makes file of them.
func (im *Image) build(ctx context.Context, dir, file string) (entries int64, err error) {
	im.tell(template.PhaseUnpacking)
	root := filepath.Join(dir, "tree")
	if err := os.Mkdir(root, 0o755); err != nil {
		return 0, diskFault(err, dir)
	}
	t, err := newTree(root, im.req.Limits)
	if err != nil {
		return 0, fault.Wrap(fault.BuildFailed, err, "scratch %s", dir)
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := im.unpack(ctx, dir, t); err != nil {
		return 0, err
	}
	im.tell(template.PhaseBuildingExt4)
	if err := fail.Point("rootfs.before_mkfs"); err != nil {
		return 0, err
	}
	if err := im.room(t.bytes + headroom); err != nil {
		return 0, err
	}
	return t.count, makeFS(ctx, root, file, im.ContentKey(), t.bytes, t.count)
}

// unpack applies the layers in order, each gone when no later one repeats it,
// and then the guest.
func (im *Image) unpack(ctx context.Context, dir string, t *tree) error {
	last := map[string]int{}
	for i, l := range im.layers {
		last[l.digest.Hex] = i
	}
	for i, l := range im.layers {
		if err := t.apply(ctx, blob(dir, l), l); err != nil {
			return layerFault(err, im.Reference, i)
		}
		if last[l.digest.Hex] != i {
			continue
		}
		if err := os.Remove(blob(dir, l)); err != nil {
			return fault.Wrap(fault.BuildFailed, err, "scratch %s", dir)
		}
	}
	if err := im.inject(t); err != nil {
		return fmt.Errorf("image %s: guest: %w", im.Reference, diskFault(err, dir))
	}
	if err := t.finish(); err != nil {
		return fault.Wrap(fault.BuildFailed, err, "image %s", im.Reference)
	}
	return nil
}

// Target returns a path for WriteTo in the work directory, which Sweep removes
// if the process ends before the file was taken from there.
func Target(workDir, name string) string { return filepath.Join(workDir, scratch+name+".ext4") }

// Sweep removes what builds of an earlier process left in the work directory.
func Sweep(workDir string) error {
	left, err := filepath.Glob(filepath.Join(workDir, scratch+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range left {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

func (im *Image) tell(phase template.Phase) {
	if im.req.Progress != nil {
		im.req.Progress(Event{phase, im.CompressedBytes, im.CompressedBytes, im.Layers, im.Layers})
	}
}

// room refuses what the work directory cannot take.
func (im *Image) room(need int64) error {
	free := im.req.Free
	if free == nil {
		free = FreeBytes
	}
	have, err := free(im.req.WorkDir)
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", im.req.WorkDir)
	}
	return Room(im.Reference, im.req.WorkDir, need, have)
}

// Room returns fault.DiskFull when a directory has less free than an image
// needs there.
func Room(image, dir string, need, have int64) error {
	if have >= need {
		return nil
	}
	return &fault.Error{
		Code:    fault.DiskFull,
		Message: fmt.Sprintf("image %s: about %d bytes are needed in %s and %d are free", image, need, dir, have),
		Remedy:  fmt.Sprintf("free %d MiB on the filesystem of %s, or choose another directory", (need-have)>>20+1, dir),
	}
}

// FreeBytes returns what an unprivileged program may still write in dir.
func FreeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// diskFault gives an error of the filesystem a code. Those that have one, and
// the context's, stay.
func diskFault(err error, dir string) error {
	switch {
	case err == nil || fault.Of(err) != fault.Bug:
		return err
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return fault.Wrap(fault.DiskFull, err, "%s", dir)
	}
	return fault.Wrap(fault.BuildFailed, err, "%s", dir)
}

// settle brings a file to the disk and returns what is in it.
func settle(path string) (sum string, size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", 0, err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return "", 0, err
	}
	return sumFile(path)
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return diskFault(err, path)
	}
	return diskFault(errors.Join(f.Sync(), f.Close()), path)
}

// inject puts the guest in, over whatever the image has in its place, and the
// directories that the runtime mounts on.
func (im *Image) inject(t *tree) error {
	t.drop()
	if err := removeAll(t.root, filepath.Dir(GuestPath)); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		mode uint32
	}{{filepath.Dir(GuestPath), 0o755}, {"proc", 0o755}, {"sys", 0o755}, {"dev", 0o755}, {"etc", 0o755}, {"tmp", 0o1777}} {
		if kind, err := kindOf(t.root, d.name); err != nil || kind != 0 {
			if err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(unix.Mkdirat(t.root, d.name, 0o700), unix.Fchmodat(t.root, d.name, d.mode, 0)); err != nil {
			return err
		}
		t.times[d.name] = unix.Timespec{}
	}
	return im.copyGuest(t)
}

func (im *Image) copyGuest(t *tree) (err error) {
	in, err := os.Open(im.req.GuestPath)
	if err != nil {
		return fault.Wrap(fault.ToolMissing, err, "templatecenter.guest_binary")
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	fd, err := unix.Openat(t.root, GuestPath, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), GuestPath)
	n, err := io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return err
	}
	t.bytes, t.count = t.bytes+n, t.count+2
	return setTime(t.root, GuestPath, unix.Timespec{})
}
