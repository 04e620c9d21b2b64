package rootfs

import (
	"archive/tar"
	"bufio"
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/paddock-dev/paddock/internal/fault"
)

// maxWindow bounds the memory that a layer's compression may ask for.
const maxWindow = 128 << 20

// apply lays the layer in file over what is there, and verifies that it is the
// archive its image names.
func (t *tree) apply(ctx context.Context, file string, l layer) (err error) {
	in, err := os.Open(file)
	if err != nil {
		return fault.Wrap(fault.BuildFailed, err, "scratch")
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	source := readFunc(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return in.Read(b)
	})
	plain, err := decompress(source)
	if err != nil {
		return badLayer(err)
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	sum := sha256.New()
	data := io.TeeReader(plain, sum)
	if err := t.entries(tar.NewReader(data)); err != nil {
		return err
	}
	// What follows the end of the archive still counts for the digest.
	if _, err := io.Copy(io.Discard, data); err != nil {
		return badLayer(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != l.diffID.Hex {
		return fault.New(fault.ImageInvalid, "its archive has sha256 %s, the config says %s", got, l.diffID.Hex)
	}
	return nil
}

func (t *tree) entries(tr *tar.Reader) error {
	t.begin()
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return badLayer(err)
		}
		if err := t.entry(h, tr); err != nil {
			return err
		}
	}
}

// badLayer names what cannot be read an image's fault, but for a cancel.
func badLayer(err error) error {
	if fault.Of(err) != fault.Bug {
		return err
	}
	return fault.Wrap(fault.ImageInvalid, err, "its archive")
}

// decompress tells the compression by the first bytes: media types lie.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	magic = append(magic[:len(magic):len(magic)], 0, 0, 0, 0)
	switch {
	case string(magic[:2]) == "\x1f\x8b":
		return gzip.NewReader(b)
	case string(magic[:4]) == "\x28\xb5\x2f\xfd":
		d, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case string(magic[:3]) == "BZh":
		return io.NopCloser(bzip2.NewReader(b)), nil
	}
	return io.NopCloser(b), nil
}
