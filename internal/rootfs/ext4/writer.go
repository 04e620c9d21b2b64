package ext4

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

// File is where an image is written: an *os.File, empty, or anything that
// reads as zeros where nothing was written.
type File interface {
	io.WriterAt
	Truncate(size int64) error
}

// Options is what an image has beyond its tree.
type Options struct {
	UUID [16]byte
	// HashSeed orders large directories. With one seed for all images, a
	// directory that did not change has the same bytes in each.
	HashSeed [16]byte
	// ChecksumSeed, when not nil, seeds the metadata checksums instead of the
	// UUID (feature metadata_csum_seed, Linux 4.4). With one seed for all
	// images, metadata that did not change has the same bytes in each.
	ChecksumSeed *uint32
	Label        string // at most 16 bytes
	// Time is when the file system was made, and the time of lost+found and of
	// a root that nobody set. The zero time is the start of 1970.
	Time time.Time
	// ElideZeros makes holes of 8 and more blocks in a row that hold only
	// zeros. Their blocks become free space: the image gets no smaller.
	ElideZeros bool
	// SpareBytes and SpareInodes are room for a writable mount.
	SpareBytes  int64
	SpareInodes int64
}

// Writer makes one image. Allot, Align, Drop, Add, SetRoot, Link, Layout and
// Finish are for one goroutine; Streams and WriteAt may run beside them in
// others, except beside Finish.
type Writer struct {
	file    File
	opts    Options
	seed    [4]uint32
	fsSeed  uint32
	tree    tree
	layout  *layout
	planErr error
	mu      sync.Mutex // guards data
	data    contents
	streams atomic.Int64 // not closed
	failed  atomic.Bool  // a write was lost
	ended   bool
}

// New starts an image in file, which it empties.
func New(file File, o Options) (*Writer, error) {
	if len(o.Label) > 16 || o.SpareBytes < 0 || o.SpareBytes > maxBlocks*blockSize || o.SpareInodes < 0 || o.SpareInodes > maxNodes {
		return nil, fault.New(fault.InvalidInput, "options of an ext4 image: a label has at most 16 bytes, spare room is not negative and at most 1 TiB")
	}
	if o.Time.IsZero() {
		o.Time = time.Unix(0, 0)
	}
	w := &Writer{file: file, opts: o, fsSeed: crc(^uint32(0), o.UUID[:])}
	if o.ChecksumSeed != nil {
		w.fsSeed = *o.ChecksumSeed
	}
	for i := range w.seed {
		w.seed[i] = le.Uint32(o.HashSeed[i*4:])
	}
	w.tree.xattrs = newXattrSets()
	w.data = contents{next: headBlocks, sparse: map[uint32]*sparseMap{}, zeros: map[uint32][]run{}, parts: map[uint32]int64{}}
	w.tree.start(o.Time)
	if err := file.Truncate(0); err != nil {
		return nil, w.writeError(err)
	}
	return w, nil
}

// writeError gives the error of a write its code, and keeps Finish from ending
// an image that lacks those bytes.
func (w *Writer) writeError(err error) error {
	w.failed.Store(true)
	code := fault.BuildFailed
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		code = fault.DiskFull
	}
	return fault.Wrap(code, err, "write an ext4 image")
}

func (w *Writer) writeAt(p []byte, off int64) error {
	if _, err := w.file.WriteAt(p, off); err != nil {
		return w.writeError(err)
	}
	return nil
}

// zero makes n bytes at off read as zeros, by a hole where the file can. For a
// short one that is not worth it: some kernels write out what lies there first.
func (w *Writer) zero(off, n int64) error {
	if f, ok := w.file.(*os.File); ok && n >= skipZeros {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if err == nil {
			return nil
		}
	}
	empty := zeroBlock[:]
	if n > blockSize {
		empty = make([]byte, min(n, streamBuffer))
	}
	for n > 0 {
		part := empty[:min(n, int64(len(empty)))]
		if err := w.writeAt(part, off); err != nil {
			return err
		}
		off += int64(len(part))
		n -= int64(len(part))
	}
	return nil
}

// sink gathers neighbouring records into large writes. Their size divides
// sinkBuffer.
type sink struct {
	w   *Writer
	buf []byte
	at  int64
}

// sinkBuffer is how long a write is at most, and of what it ends at a multiple:
// longer ones, and such that divide pages, cost the kernel more.
const sinkBuffer = 256 << 10

func (k *sink) put(off int64, p []byte) error {
	if len(k.buf) > 0 && off != k.at+int64(len(k.buf)) {
		if err := k.flush(); err != nil {
			return err
		}
	}
	if len(k.buf) == 0 {
		k.at = off
	}
	k.buf = append(k.buf, p...)
	if (k.at+int64(len(k.buf)))%sinkBuffer == 0 {
		return k.flush()
	}
	return nil
}

func (k *sink) putBlock(blk uint32, p []byte) error { return k.put(int64(blk)*blockSize, p) }

func (k *sink) flush() error {
	if len(k.buf) == 0 {
		return nil
	}
	err := k.w.writeAt(k.buf, k.at)
	k.buf = k.buf[:0]
	return err
}
