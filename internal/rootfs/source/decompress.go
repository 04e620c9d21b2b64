package source

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/inflate"
)

// readAhead is how much of a compressed layer is read at once.
const readAhead = 256 << 10

// Decompress returns the archive within a layer. Reads fill their buffer but
// for the end; give them large ones. It starts no goroutine. The error of r
// comes before what its bytes would be refused for.
//
// Refusals: fault.LayerMedia when the bytes are not of that compression,
// LayerArchive when they are damaged or end too soon, LayerTrailing when others
// follow, LayerWindow, TooCompressed.
func Decompress(r io.Reader, c Compression, l Limits) (io.ReadCloser, error) {
	d := &decompressed{limits: l.Filled()}
	d.in = &counted{from: r}
	d.ahead = bufio.NewReaderSize(d.in, readAhead)
	if err := d.start(c); err != nil {
		return nil, d.blame(err)
	}
	return d, nil
}

// counted counts what passes, and keeps the error that ended it.
type counted struct {
	from  io.Reader
	bytes int64
	err   error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.bytes += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// decompressed is the archive that comes out.
type decompressed struct {
	limits Limits
	in     *counted
	ahead  *bufio.Reader
	plain  io.Reader
	close  func()
	out    int64
	err    error
}

func (d *decompressed) start(c Compression) error {
	magic, err := d.ahead.Peek(10)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	is, name, known := magicOf(magic)
	if !known || is != c {
		return fault.New(fault.LayerMedia, "it should be compressed by %s, but its bytes are %s", c, name)
	}
	switch c {
	case Gzip:
		m := &members{from: d.ahead}
		d.plain = m
		return m.next()
	case Zstd:
		z, err := zstd.NewReader(&frames{from: d.ahead, window: d.limits.Window},
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxWindow(uint64(d.limits.Window)),
			// Of a frame in one segment the decoder asks only this.
			zstd.WithDecoderMaxMemory(uint64(d.limits.Window)))
		if err != nil {
			return err
		}
		d.plain, d.close = z, z.Close
	default:
		d.plain = d.ahead
	}
	return nil
}

// Read fills p, but at the end.
func (d *decompressed) Read(p []byte) (n int, err error) {
	for n < len(p) && d.err == nil {
		k, err := d.plain.Read(p[n:])
		n += k
		d.out += int64(k)
		switch {
		case errors.Is(err, io.EOF):
			d.err = io.EOF
		case err != nil:
			d.err = d.blame(err)
		case d.tooMuch():
			d.err = fault.New(fault.TooCompressed, "%d of its bytes have become %d: more than %d times as many, which is the ratio limit", d.used(), d.out, d.limits.Ratio)
		}
	}
	if n > 0 && errors.Is(d.err, io.EOF) {
		return n, nil
	}
	return n, d.err
}

// used is how many compressed bytes were needed until here, about.
func (d *decompressed) used() int64 { return d.in.bytes - int64(d.ahead.Buffered()) }

func (d *decompressed) tooMuch() bool {
	return d.out > d.limits.Growth && d.out/d.limits.Ratio > d.used()
}

// blame says what an error of the decoder is in our words, after those of who
// gave the bytes.
func (d *decompressed) blame(err error) error {
	if d.in.err != nil {
		return d.in.err
	}
	switch {
	case errors.Is(err, fault.LayerMedia), errors.Is(err, fault.LayerTrailing), errors.Is(err, fault.LayerWindow), errors.Is(err, fault.LayerArchive):
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		err = fault.Wrap(fault.LayerWindow, err, "the limit is %d bytes", d.limits.Window)
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = errCutShort
	default:
		err = fault.Wrap(fault.LayerArchive, err, "its compressed bytes are damaged")
	}
	return Cause(d.in, err)
}

// Close lets the decoder go. It does not close what it reads.
func (d *decompressed) Close() error {
	if d.close != nil {
		d.close()
		d.close = nil
	}
	if d.err == nil || errors.Is(d.err, io.EOF) {
		d.err = errors.New("read after close")
	}
	return nil
}

// members reads gzip members one after another, to the very end.
type members struct {
	from *bufio.Reader
	gz   *inflate.Reader
}

// next begins a member, or returns io.EOF when there is none.
func (m *members) next() (err error) {
	if _, err := m.from.Peek(1); err != nil {
		return err
	}
	first := m.gz == nil
	if first {
		m.gz, err = inflate.NewReader(m.from)
	} else {
		err = m.gz.Reset(m.from)
	}
	if err != nil && !first {
		return fault.New(fault.LayerTrailing, "bytes follow its gzip stream")
	}
	return err
}

func (m *members) Read(p []byte) (int, error) {
	for {
		n, err := m.gz.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		if err := m.next(); n > 0 || err != nil {
			return n, err
		}
	}
}

// isFrame tells zstd's magic.
func isFrame(b []byte) bool { return bytes.Equal(b, []byte("\x28\xb5\x2f\xfd")) }
