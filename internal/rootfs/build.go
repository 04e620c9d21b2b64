package rootfs

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
	"github.com/paddock-dev/paddock/internal/template"
)

// Result is what was made.
type Result struct {
	SHA256    string
	SizeBytes int64
	Entries   int64 // names in the image, below its root
	Receipt   *Receipt
}

// One seed for all images: directories and metadata that did not change have
// the same bytes in the next version.
var (
	hashSeed     = [16]byte{'p', 'a', 'd', 'd', 'o', 'c', 'k', ' ', 'r', 'o', 'o', 't', 'f', 's', ' ', '1'}
	checksumSeed = uint32(0x70616464)
)

// build is one making of one image.
type build struct {
	reference string
	digest    string
	key       string // content key
	layers    []plainLayer
	limits    Limits
	policy    Policy
	put       injection
	dir       string // scratch, its own
	tell      func(template.Phase)
	room      func(ctx context.Context, need int64) error

	place *placer
	files []*os.File
}

func (b *build) options() ext4.Options {
	o := ext4.Options{HashSeed: hashSeed, ChecksumSeed: &checksumSeed, Label: "paddock"}
	if key, err := hex.DecodeString(b.key); err == nil {
		copy(o.UUID[:], key)
	}
	// The bits that make it a UUID of a name.
	o.UUID[6] = o.UUID[6]&0x0F | 0x50
	o.UUID[8] = o.UUID[8]&0x3F | 0x80
	return o
}

// run makes the image in the scratch directory and returns its file's name.
// Only the receipt's fields that a build knows are filled.
func (b *build) run(ctx context.Context) (file string, r *Receipt, err error) {
	defer func() {
		for _, f := range b.files {
			if late := f.Close(); err == nil {
				err = diskFault(late, b.dir)
			}
		}
	}()
	f, err := b.create("image")
	if err != nil {
		return "", nil, err
	}
	if b.place, err = newPlacer(f, b.limits, b.policy, b.options()); err != nil {
		return "", nil, err
	}
	defer b.place.stop()
	r = &Receipt{Version: ReceiptVersion, Format: Format, Reference: b.reference, Digest: b.digest, ContentKey: b.key, Policy: b.policy.String(), ChunkBytes: ChunkSize}
	if r.Layers, err = b.lay(ctx); err != nil {
		return "", nil, err
	}
	put, err := b.place.inject(ctx, b.put)
	if err != nil {
		return "", nil, fmt.Errorf("image %s: what is put in: %w", b.reference, err)
	}
	r.Injected, r.NotWritten = put.done, put.left
	if r.Compacted, err = b.close(ctx); err != nil {
		return "", nil, err
	}
	b.tell(template.PhaseBuildingExt4)
	if err := b.finish(r); err != nil {
		return "", nil, err
	}
	f = b.place.file
	return f.Name(), r, b.sum(ctx, f, r)
}

func (b *build) create(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(b.dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, diskFault(err, b.dir)
	}
	b.files = append(b.files, f)
	return f, nil
}

// lay decodes the layers, several at once, and lays them over each other.
func (b *build) lay(ctx context.Context) (out []LayerReceipt, err error) {
	// What archives have beside files: headers, and the padding of each entry.
	most := b.limits.FileBytes + b.limits.Entries*2048 + 1<<20
	feeds := newFeeds(ctx, b.layers, b.dir, most)
	defer func() {
		if late := feeds.close(); err == nil {
			err = diskFault(late, b.dir)
		}
	}()
	out = []LayerReceipt{}
	for i, f := range feeds.list {
		n, err := b.place.lay(ctx, f)
		if err != nil {
			return nil, layerFault(f.cause(err), b.reference, i)
		}
		if err := fail.Point("rootfs.layer"); err != nil {
			return nil, err
		}
		out = append(out, LayerReceipt{Digest: f.layer.digest, DiffID: f.layer.diffID, SizeBytes: f.layer.size, ArchiveBytes: f.size, Entries: n})
	}
	return out, nil
}

// layerFault says which layer it was.
func layerFault(err error, reference string, at int) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("image %s: layer %d: %w", reference, at+1, err)
}

// close ends the contents, and copies them without what was given up when
// that is much.
func (b *build) close(ctx context.Context) (compacted bool, err error) {
	if err := b.place.settle(); err != nil {
		return false, err
	}
	dead, live := b.place.gaps()
	if !gappy(dead, live) {
		return false, b.place.drop()
	}
	if err := b.room(ctx, live+headroom); err != nil {
		return false, err
	}
	if err := fail.Point("rootfs.compact"); err != nil {
		return false, err
	}
	f, err := b.create("compact")
	if err != nil {
		return false, err
	}
	old := b.place.file
	if err := b.place.compact(ctx, f, b.options()); err != nil {
		return false, err
	}
	return true, diskFault(os.Remove(old.Name()), b.dir)
}

// finish writes the tree, after which the image is whole.
func (b *build) finish(r *Receipt) (err error) {
	if r.Counts, err = b.place.emit(); err != nil {
		return fmt.Errorf("image %s: %w", b.reference, err)
	}
	if err := fail.Point("rootfs.before_finish"); err != nil {
		return err
	}
	if err := b.place.out.Close(); err != nil {
		return err
	}
	l, err := b.place.w.Finish()
	if err != nil {
		return fmt.Errorf("image %s: %w", b.reference, err)
	}
	r.SizeBytes, r.FreeBytes, r.Inodes = l.Size, l.FreeBlocks*blockSize, l.Inodes
	r.UUID = uuid.UUID(b.options().UUID).String()
	return nil
}

// sum brings the image to the disk while it is read for its sums.
func (b *build) sum(ctx context.Context, f *os.File, r *Receipt) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return diskFault(f.Sync(), b.dir) })
	group.Go(func() error {
		s, err := SumImage(ctx, f, r.SizeBytes)
		r.SHA256, r.Chunks = s.SHA256, s.Chunks
		return diskFault(err, b.dir)
	})
	return group.Wait()
}
