package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// epoch is the time of what no archive gives a time.
var epoch = time.Unix(0, 0).UTC()

const blockSize = 4096

// placer lays layers over each other and puts their contents where they will
// stay: in the order of the layers, and of the entries within each.
type placer struct {
	tree    *tree
	data    slab[ext4.Data]
	starts  []uint32    // number of the first contents of each layer
	orphans []ext4.Data // contents that an injection replaced
	stored  int64       // bytes of files

	file *os.File
	w    *ext4.Writer
	out  *ext4.Stream

	flush *flusher
}

// newPlacer starts an image in an empty file. It must be stopped before the
// file is closed.
func newPlacer(f *os.File, l Limits, p Policy, o ext4.Options) (*placer, error) {
	w, err := ext4.New(f, o)
	if err != nil {
		return nil, err
	}
	return &placer{tree: newTree(l, p), file: f, w: w, out: w.Stream(), flush: newFlusher()}, nil
}

// stop ends what runs beside.
func (p *placer) stop() { p.flush.stop() }

// begin starts a layer.
func (p *placer) begin() {
	p.tree.begin()
	p.w.Align()
	p.starts = append(p.starts, max(1, p.data.end()))
}

// lay lays a layer's archive over what is there. It reads r to its end, and
// returns how many entries there were. Faults are those of tree.apply, of
// tarfile.Reader and of r; fault.TooManyBytes; fault.DiskFull.
func (p *placer) lay(ctx context.Context, r io.Reader) (entries int64, err error) {
	p.begin()
	archive := tarfile.NewReader(r, p.tree.limits.archive())
	for ; ; entries++ {
		e, err := archive.Next()
		if err == io.EOF { //nolint:errorlint // a failure that wraps io.EOF is no end
			return entries, archive.Finish()
		}
		if err == nil {
			err = p.entry(ctx, e, archive.Stored(), archive)
		}
		if err != nil {
			return entries, err
		}
	}
}

// entry lays one entry, whose stored bytes come from r.
func (p *placer) entry(ctx context.Context, e *tarfile.Entry, stored int64, r io.Reader) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	n, err := p.tree.apply(e)
	if err != nil || n == 0 {
		return err
	}
	if err := p.contents(n, e, stored, r); err != nil {
		if fault.Of(err) == fault.Bug && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			err = diskFault(err, p.file.Name())
		}
		return fmt.Errorf("entry %.200q: %w", e.Name, err)
	}
	return nil
}

// contents streams what a file holds to its place.
func (p *placer) contents(n nodeID, e *tarfile.Entry, stored int64, r io.Reader) error {
	p.stored += stored
	if p.stored > p.tree.limits.FileBytes {
		return fault.New(fault.TooManyBytes, "the image's files have over %d bytes; the limit is image_limits.file_mib", p.tree.limits.FileBytes)
	}
	d, err := p.w.Allot(e.Size, segments(e.Segments))
	if err != nil {
		return err
	}
	if err := p.out.Copy(d, r); err != nil {
		return err
	}
	if d != (ext4.Data{}) {
		p.tree.node(n).words[0] = p.data.add(d)
	}
	p.flush.wrote(p.file, stored)
	return nil
}

func segments(list []tarfile.Segment) []ext4.Segment {
	if list == nil {
		return nil
	}
	out := make([]ext4.Segment, len(list))
	for i, s := range list {
		out[i] = ext4.Segment(s)
	}
	return out
}

// settle ends the stream, so that contents can be read back. More may follow.
func (p *placer) settle() error {
	err := p.out.Close()
	p.out = p.w.Stream()
	return err
}

// dead says whether the contents of a node are no part of the image.
func (n *node) dead() bool { return n.names == 0 }
