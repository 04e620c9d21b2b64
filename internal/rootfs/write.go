package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// growth is how much larger an image's files may be than its layers, for the
	// check before a build.
	growth = 5
	// align is what the size is a multiple of: virtio-pmem takes no other.
	align    = 2 << 20
	block    = 4096
	headroom = 64 << 20
)

// Result is what was made.
type Result struct {
	SHA256    string
	SizeBytes int64
	Entries   int64
}

// Tools returns the programs that WriteTo needs.
func Tools() []string { return []string{"mke2fs", "resize2fs", "e2fsck"} }

// WriteTo makes the ext4 image at path. The file appears whole or not at all.
func (im *Image) WriteTo(ctx context.Context, path string) (res Result, err error) {
	if err := im.room(filepath.Dir(path)); err != nil {
		return res, err
	}
	scratch, err := os.MkdirTemp(im.req.WorkDir, "build-*")
	if err != nil {
		return res, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", im.req.WorkDir)
	}
	defer func() {
		if late := os.RemoveAll(scratch); late != nil {
			err = errors.Join(err, fault.Wrap(fault.DataDir, late, "scratch %s", scratch))
		}
	}()
	t, err := im.unpack(ctx, filepath.Join(scratch, "tree"))
	if err != nil {
		return res, err
	}
	im.tell(template.PhaseBuildingExt4, im.pulled())
	if err := fail.Point("rootfs.before_mkfs"); err != nil {
		return res, err
	}
	file := filepath.Join(scratch, "image.ext4")
	if err := im.makeFS(ctx, file, filepath.Join(scratch, "tree"), t); err != nil {
		return res, err
	}
	if res.SHA256, err = sumFile(file); err != nil {
		return res, fault.Wrap(fault.BuildFailed, err, "reading the image back")
	}
	info, err := os.Stat(file)
	if err == nil {
		err = os.Rename(file, path)
	}
	if err != nil {
		return res, fault.Wrap(fault.BuildFailed, err, "image")
	}
	res.SizeBytes, res.Entries = info.Size(), t.entries
	return res, nil
}

// Sweep removes what builds of an earlier process left in the work directory.
func Sweep(workDir string) error {
	left, err := filepath.Glob(filepath.Join(workDir, "build-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range left {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

func (im *Image) tell(phase template.Phase, p template.Pull) {
	if im.req.Progress != nil {
		im.req.Progress(Event{phase, p})
	}
}

func (im *Image) pulled() template.Pull {
	return template.Pull{TotalBytes: im.Compressed, DoneBytes: im.Compressed, TotalLayers: len(im.layers), DoneLayers: len(im.layers)}
}

// room refuses a build that the disk cannot take, before anything is fetched.
func (im *Image) room(target string) error {
	free := im.req.Free
	if free == nil {
		free = freeBytes
	}
	need := im.Compressed*growth + headroom
	for _, dir := range []string{im.req.WorkDir, target} {
		have, err := free(dir)
		if err != nil {
			return fault.Wrap(fault.DataDir, err, "directory %s", dir)
		}
		if have < need {
			return fault.New(fault.DiskFull, "image %s needs about %d MiB in %s, %d MiB are free", im.Reference, need>>20, dir, have>>20)
		}
	}
	return nil
}

func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return int64(s.Bavail) * s.Bsize, err
}

// unpack lays the layers and the guest out below dir.
func (im *Image) unpack(ctx context.Context, dir string) (_ *tree, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "scratch")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "scratch")
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	config, err := im.image.ConfigFile()
	if err != nil {
		return nil, fault.Wrap(fault.ImageInvalid, err, "image %s", im.Reference)
	}
	t := &tree{root: root}
	p := template.Pull{TotalBytes: im.Compressed, TotalLayers: len(im.layers)}
	began := time.Now()
	im.tell(template.PhasePulling, p)
	for i, l := range im.layers {
		err := t.apply(ctx, l, config.RootFS.DiffIDs[i], func(n int) {
			p.DoneBytes += int64(n)
			p.BytesPerSecond = int64(float64(p.DoneBytes) / max(0.001, time.Since(began).Seconds()))
			im.tell(template.PhasePulling, p)
		})
		if err != nil {
			return nil, im.layerFault(err, i)
		}
		p.DoneLayers++
	}
	if err := t.finish(); err != nil {
		return nil, fault.Wrap(fault.ImageInvalid, err, "image %s", im.Reference)
	}
	im.tell(template.PhaseUnpacking, im.pulled())
	return t, im.inject(root)
}

func (im *Image) layerFault(err error, at int) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if fault.Of(err) == fault.Bug {
		return registryFault(err, im.Reference, v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	}
	return fmt.Errorf("image %s, layer %d: %w", im.Reference, at+1, err)
}

// inject puts the guest in, over whatever the image has in its place.
func (im *Image) inject(root *os.Root) (err error) {
	dir := filepath.Dir(GuestPath)
	if err := root.RemoveAll(dir); err != nil {
		return fault.Wrap(fault.ImageInvalid, err, "image %s: %s", im.Reference, dir)
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		return fault.Wrap(fault.BuildFailed, err, "guest")
	}
	in, err := os.Open(im.req.GuestPath)
	if err != nil {
		return fault.Wrap(fault.ToolMissing, err, "templatecenter.guest_binary")
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := root.OpenFile(GuestPath, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fault.Wrap(fault.BuildFailed, err, "guest")
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return fault.Wrap(fault.BuildFailed, err, "guest")
	}
	// The runtime mounts on these, and the image may lack them.
	for _, d := range []string{"proc", "sys", "dev", "tmp", "etc"} {
		if _, err := root.Lstat(d); err != nil {
			if err := root.Mkdir(d, 0o755); err != nil {
				return fault.Wrap(fault.BuildFailed, err, "directory /%s", d)
			}
		}
	}
	return nil
}

// makeFS writes the tree into an ext4 file of its size.
func (im *Image) makeFS(ctx context.Context, file, dir string, t *tree) error {
	// Each entry takes at most an inode, a partly filled block and its name.
	size := (t.bytes+t.entries*(block+512))*11/10 + headroom
	if info, err := os.Stat(im.req.GuestPath); err == nil {
		size += info.Size()
	}
	size = (size + align - 1) / align * align
	key := im.ContentKey()
	uuid := fmt.Sprintf("%s-%s-%s-%s-%s", key[:8], key[8:12], key[12:16], key[16:20], key[20:32])
	steps := [][]string{
		{"mke2fs", "-q", "-F", "-t", "ext4", "-b", fmt.Sprint(block), "-O", "^has_journal", "-m", "0", "-N", fmt.Sprint(t.entries + 1024), "-U", uuid, "-E", "lazy_itable_init=0,hash_seed=" + uuid, "-d", dir, file, fmt.Sprintf("%dk", size>>10)},
		{"resize2fs", "-M", file},
	}
	for _, s := range steps {
		if err := tool(ctx, s...); err != nil {
			return err
		}
	}
	info, err := os.Stat(file)
	if err == nil {
		err = os.Truncate(file, (info.Size()+align-1)/align*align)
	}
	if err != nil {
		return fault.Wrap(fault.BuildFailed, err, "image")
	}
	if err := tool(ctx, "resize2fs", file); err != nil {
		return err
	}
	return tool(ctx, "e2fsck", "-fn", file)
}

func tool(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0")
	out, err := c.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, exec.ErrNotFound):
		return fault.Wrap(fault.ToolMissing, err, "%s", args[0])
	case bytes.Contains(out, []byte("No space left")):
		return fault.New(fault.DiskFull, "%s: %s", args[0], strings.TrimSpace(string(out)))
	}
	return fault.Wrap(fault.BuildFailed, fmt.Errorf("%w: %s", err, bytes.TrimSpace(out)), "%s", args[0])
}
