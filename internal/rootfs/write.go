package rootfs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	scratch = "build-"
	// tries bounds how often a build begins anew because a layer of the cache
	// turned out to be damaged.
	tries = 3
)

// FileBytes is an estimate of the file that WriteTo will make.
func (im *Image) FileBytes() int64 { return im.plainBytes(0) + im.guestSize + headroom }

// plainBytes estimates the archives of the layers from the first one on.
func (im *Image) plainBytes(first int) (n int64) {
	for i, l := range im.src.Layers {
		switch {
		case i < first:
		case l.Compression == source.None:
			n += l.Size
		default:
			n += l.Size * growth
		}
	}
	return n
}

// WriteTo makes the ext4 image at path, a name on the work directory's file
// system. The file appears whole or not at all, and nothing else remains.
//
// Refusals: fault.DiskFull, before anything is fetched if the work directory
// cannot take the build; those of source.Image.Open, source.Decompress and
// tarfile.Reader; fault.LayerDigest, LayerRoot, LayerPath, LayerLink,
// LayerWhiteout, LayerDuplicate, LayerDevice, LayerSetuid, LayerCapability,
// LayerXattr, TooManyEntries, TooManyBytes, ImageUnfit; fault.BuildFailed.
func (im *Image) WriteTo(ctx context.Context, path string) (Result, error) {
	// The image, and what is decoded ahead of its turn; the cache keeps the
	// layers as they travel.
	need := im.FileBytes() + im.plainBytes(1)
	if im.req.Cache != nil {
		need += im.CompressedBytes
	}
	if err := im.room(ctx, need); err != nil {
		return Result{}, err
	}
	im.told.enter(template.PhasePulling)
	for try := 1; ; try++ {
		res, err := im.try(ctx, path)
		if err == nil || try == tries || !errors.Is(err, fault.LayerDamaged) {
			return res, err
		}
	}
}

// try makes the image once, while the layers are fetched.
func (im *Image) try(ctx context.Context, path string) (Result, error) {
	if err := fail.Point("rootfs.pull"); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	fetched := make(chan struct{})
	go func() {
		defer close(fetched)
		if err := im.src.Fetch(ctx); err != nil {
			cancel(err)
		}
	}()
	res, err := im.build().write(ctx, im.req.WorkDir, path)
	if why := context.Cause(ctx); err != nil && why != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		err = why
	}
	cancel(context.Canceled)
	<-fetched
	return res, err
}

// build is what WriteTo does, once.
func (im *Image) build() *build {
	b := &build{
		reference: im.Reference, digest: im.Digest, key: im.ContentKey(),
		limits: im.req.Limits.filled(), policy: im.req.Policy.filled(),
		put:  injection{guestPath: im.req.GuestPath, guestSum: im.guestSum, guestSize: im.guestSize, ca: im.ca},
		tell: im.told.enter, room: im.room,
	}
	for i, l := range im.src.Layers {
		open := func(ctx context.Context) (plainReader, error) { return im.open(ctx, i) }
		b.layers = append(b.layers, plainLayer{digest: l.Digest, size: l.Size, diffID: l.DiffID, open: open})
	}
	return b
}

// layerReader is the archive of a layer of the source.
type layerReader struct {
	io.ReadCloser
	raw io.ReadCloser
}

func (im *Image) open(ctx context.Context, i int) (plainReader, error) {
	raw, err := im.src.Open(ctx, i)
	if err != nil {
		return nil, err
	}
	plain, err := source.Decompress(raw, im.src.Layers[i].Compression, im.req.Limits.Source)
	if err != nil {
		return nil, errors.Join(source.Cause(raw, err), raw.Close())
	}
	return &layerReader{plain, raw}, nil
}

// Cause is of plainReader.
func (l *layerReader) Cause(err error) error { return source.Cause(l.raw, err) }

// Close ends the decoder before what it reads from.
func (l *layerReader) Close() error { return errors.Join(l.ReadCloser.Close(), l.raw.Close()) }

// room refuses what the work directory cannot take.
func (im *Image) room(ctx context.Context, need int64) error {
	free := im.req.Free
	if free == nil {
		free = FreeBytes
	}
	return Room(ctx, im.req.Cache, im.Reference, im.req.WorkDir, need, func() (int64, error) {
		have, err := free(im.req.WorkDir)
		if err != nil {
			return 0, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", im.req.WorkDir)
		}
		return have, nil
	})
}

// write runs b in a scratch directory of its own below workDir, and gives the
// image its name when it is whole and on the disk. Nothing else remains.
func (b *build) write(ctx context.Context, workDir, path string) (res Result, err error) {
	if b.dir, err = os.MkdirTemp(workDir, scratch+"*"); err != nil {
		return res, diskFault(fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", workDir), workDir)
	}
	defer func() {
		if late := os.RemoveAll(b.dir); late != nil {
			err = errors.Join(err, fault.Wrap(fault.DataDir, late, "scratch %s", b.dir))
		}
	}()
	file, r, err := b.run(ctx)
	if err != nil {
		return res, err
	}
	if err := fail.Point("rootfs.before_rename"); err != nil {
		return res, err
	}
	if err := os.Rename(file, path); err != nil {
		return res, fault.Wrap(fault.BuildFailed, err, "image")
	}
	return Result{SHA256: r.SHA256, SizeBytes: r.SizeBytes, Entries: r.Counts.Names, Receipt: r}, syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return diskFault(err, path)
	}
	return diskFault(errors.Join(f.Sync(), f.Close()), path)
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
