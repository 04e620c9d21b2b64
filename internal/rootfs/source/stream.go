package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	"github.com/paddock-dev/paddock/internal/fault"
)

// verify passes r on and holds it to its digest and size: instead of io.EOF
// its reader meets fault.LayerDigest, and never a byte more than there should be.
func verify(r io.Reader, digest string, size int64) io.Reader {
	return &verified{from: r, digest: digest, left: size, size: size, sum: sha256.New()}
}

type verified struct {
	from   io.Reader
	digest string
	left   int64
	size   int64
	sum    hash.Hash
	err    error
}

func (v *verified) Read(p []byte) (int, error) {
	if v.err != nil || len(p) == 0 {
		return 0, v.err
	}
	n, err := v.from.Read(p)
	if int64(n) > v.left {
		v.err = fault.New(fault.LayerDigest, "%s is larger than the %d bytes that it should have", v.digest, v.size)
		return 0, v.err
	}
	v.left -= int64(n)
	v.sum.Write(p[:n])
	if errors.Is(err, io.EOF) {
		err = v.verdict()
	}
	v.err = err
	return n, err
}

func (v *verified) verdict() error {
	switch sum := "sha256:" + hex.EncodeToString(v.sum.Sum(nil)); {
	case v.left > 0:
		return fault.New(fault.LayerDigest, "%s ends after %d of %d bytes", v.digest, v.size-v.left, v.size)
	case sum != v.digest:
		return fault.New(fault.LayerDigest, "%s: its bytes have %s", v.digest, sum)
	}
	return io.EOF
}

// Cause returns the error to blame when what was read from r turned out to be
// no good: r's own, which it meets when it is read to its end, else err. Bytes
// that were damaged on their way make no honest archive, but that is not the
// archive's fault.
func Cause(r io.Reader, err error) error {
	if _, own := io.Copy(io.Discard, r); own != nil {
		return own
	}
	return err
}

// delivery is a layer on its way to who decompresses it: it ends with the
// context, counts what passes, and says whose error an error is.
type delivery struct {
	io.Reader
	io.Closer
	ctx  context.Context
	name func(error) error
	tell func(bytes int64, whole bool)
	at   int64
}

func (d *delivery) Read(p []byte) (int, error) {
	if d.ctx.Err() != nil {
		return 0, context.Cause(d.ctx)
	}
	n, err := d.Reader.Read(p)
	d.at += int64(n)
	d.tell(d.at, errors.Is(err, io.EOF))
	if err != nil && !errors.Is(err, io.EOF) {
		err = d.name(err)
	}
	return n, err
}
