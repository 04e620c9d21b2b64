package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// checked is what a verification found in order.
type checked struct {
	File   string       `json:"file"`
	Format formatReport `json:"format"`
	SHA256 string       `json:"sha256,omitempty"`
	Chunks int64        `json:"chunks,omitempty"`
}

// formatReport counts what a check of the format looked at.
type formatReport struct {
	Inodes      int64 `json:"inodes"`
	Directories int64 `json:"directories"`
	Names       int64 `json:"names"`
	Extents     int64 `json:"extents"`
	XattrBlocks int64 `json:"xattr_blocks"`
	UsedBlocks  int64 `json:"used_blocks"`
}

// checkImage checks the format of an image.
func (a *app) checkImage(ctx context.Context, im *ext4.Image, file string) error {
	r, err := im.Verify(ctx)
	if err != nil {
		return err
	}
	return a.showChecked(checked{File: file, Format: formatReport(r)})
}

// verifyImage checks the format of an image, and its bytes against a receipt.
// All that is wrong is told, the bytes first: they say where.
func (a *app) verifyImage(ctx context.Context, in inspection, f io.ReaderAt, size int64) error {
	r, err := readReceipt(in.receipt)
	if err != nil {
		return err
	}
	show := checked{File: in.file, SHA256: r.SHA256}
	done := make(chan error)
	go func() {
		format, err := verifyFormat(ctx, f, size)
		show.Format = formatReport(format)
		done <- err
	}()
	sums, err := rootfs.SumImage(ctx, f, size)
	if err == nil {
		show.Chunks, err = compareSums(sums, r)
	}
	// What is no image at all is told by its bytes.
	if err = errors.Join(err, <-done); err != nil {
		return fmt.Errorf("%s: %w", in.file, err)
	}
	return a.showChecked(show)
}

func readReceipt(path string) (_ *rootfs.Receipt, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "receipt")
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r, err := rootfs.ReadReceipt(f)
	if err == nil && r.ChunkBytes != rootfs.ChunkSize {
		err = fault.New(fault.InvalidInput, "receipt: its chunks have %d bytes, this program's %d", r.ChunkBytes, rootfs.ChunkSize)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func verifyFormat(ctx context.Context, f io.ReaderAt, size int64) (ext4.Report, error) {
	im, err := ext4.Open(f, size)
	if err != nil {
		return ext4.Report{}, err
	}
	return im.Verify(ctx)
}

// compareSums returns how many chunks there are, all as the receipt says.
func compareSums(have rootfs.Sums, want *rootfs.Receipt) (chunks int64, err error) {
	got, err := chunkRuns(have.Chunks)
	if err != nil {
		return 0, err
	}
	meant, err := chunkRuns(want.Chunks)
	if err != nil {
		return 0, err
	}
	total, differ, first := differences(got, meant)
	damaged := func(format string, args ...any) error {
		return &fault.Error{Code: fault.ArtifactCorrupt, Message: fmt.Sprintf(format, args...), Remedy: "build the image again, or copy it again from where it was whole"}
	}
	switch {
	case have.Size != want.SizeBytes && differ > 0:
		return 0, damaged("the file has %d bytes, the receipt says %d; the first chunk that differs begins at byte %d", have.Size, want.SizeBytes, first*rootfs.ChunkSize)
	case have.Size != want.SizeBytes:
		return 0, damaged("the file has %d bytes, the receipt says %d", have.Size, want.SizeBytes)
	case differ > 0:
		return 0, damaged("%d of %d chunks are damaged; the first begins at byte %d", differ, total, first*rootfs.ChunkSize)
	case have.SHA256 != want.SHA256:
		return 0, damaged("the chunks are as the receipt says, but its sha256 is of another file")
	}
	return total, nil
}

// chunkRun is equal chunks in a row; an empty sum is that of zeros.
type chunkRun struct {
	sum string
	n   int64
}

func chunkRuns(list []string) ([]chunkRun, error) {
	runs := make([]chunkRun, 0, len(list))
	for _, s := range list {
		count, zeros := strings.CutPrefix(s, "zeros*")
		if !zeros {
			runs = append(runs, chunkRun{s, 1})
			continue
		}
		n, err := strconv.ParseInt(count, 10, 40)
		if err != nil || n < 1 {
			return nil, fault.New(fault.InvalidInput, "receipt: chunk %.80q is none", s)
		}
		runs = append(runs, chunkRun{"", n})
	}
	return runs, nil
}

// differences returns how many chunks the longer list has, how many differ,
// and the first that does.
func differences(a, b []chunkRun) (total, differ, first int64) {
	for len(a) > 0 || len(b) > 0 {
		var n int64
		var same bool
		switch {
		case len(a) == 0:
			n = b[0].n
		case len(b) == 0:
			n = a[0].n
		default:
			n, same = min(a[0].n, b[0].n), a[0].sum == b[0].sum
		}
		if !same {
			if differ == 0 {
				first = total
			}
			differ += n
		}
		total += n
		a, b = advance(a, n), advance(b, n)
	}
	return total, differ, first
}

func advance(list []chunkRun, n int64) []chunkRun {
	if len(list) == 0 {
		return nil
	}
	if list[0].n > n {
		list[0].n -= n
		return list
	}
	return list[1:]
}

func (a *app) showChecked(c checked) error {
	return a.show(c, func(w io.Writer) {
		fmt.Fprintf(w, "file:\t%s\n", shown(c.File))
		f := c.Format
		fmt.Fprintf(w, "format:\tok: %d inodes, %d directories, %d names, %d extents, %d blocks in use\n", f.Inodes, f.Directories, f.Names, f.Extents, f.UsedBlocks)
		if c.SHA256 != "" {
			fmt.Fprintf(w, "sha256:\tok: %s\nchunks:\tok: %d\n", c.SHA256, c.Chunks)
		}
	})
}
