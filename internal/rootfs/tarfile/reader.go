package tarfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	// skipBuffer is the size of the buffer for bytes that nobody asked for.
	skipBuffer = 32 << 10
	// maxPadding is how many zero bytes may follow the archive. Writers fill
	// their last record, which has 10 KiB, or some MiB with odd options.
	maxPadding = 16 << 20
	// maxEmptyReads is how often a source may return nothing and no error.
	maxEmptyReads = 100
	// maxSize is above every file and low enough to add some sizes up.
	maxSize = 1 << 60
)

var zeros [skipBuffer]byte

// Reader reads one archive. It is for one goroutine. After an error other than
// io.EOF every call returns that error.
type Reader struct {
	r       io.Reader
	limits  Limits
	stored  int64 // bytes of this entry in the archive
	left    int64 // of them, not yet read
	pad     int   // bytes that fill the last block
	pos     int64 // bytes taken from r
	at      int64 // where the entry begins
	subject []byte
	global  ownership
	rec     records
	ext     []byte // extended headers of this entry
	scratch []byte // a name
	skipped []byte
	err     error
	ended   bool
	buf     [2 * blockSize]byte
}

// NewReader returns a Reader of the archive r, which should be buffered:
// headers are read one at a time. Contents are read from r straight into the
// caller's buffer, and nothing behind the end marker is read before Finish.
func NewReader(r io.Reader, l Limits) *Reader {
	return &Reader{r: r, limits: l.withDefaults()}
}

// Next leaves what was not read of an entry and returns the one behind it,
// which is the caller's to keep, or io.EOF behind the last one. What it
// refuses has one of the codes fault.LayerArchive, LayerPath, LayerRoot,
// LayerLink, LayerType and LayerXattr; errors of the source that have a code
// keep it.
func (r *Reader) Next() (*Entry, error) {
	if r.err != nil {
		return nil, r.err
	}
	e, err := r.next()
	if err != nil {
		r.ended = atEnd(err)
		r.err = r.blame(err)
		return nil, r.err
	}
	return e, nil
}

// Read reads the stored bytes of the entry: of a sparse file one segment after
// another. It returns io.EOF at their end.
func (r *Reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > r.left {
		p = p[:r.left]
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.read(p)
	r.left -= int64(n)
	if err != nil && (n == 0 || !atEnd(err)) {
		r.err = r.blame(r.broken(err))
		return n, r.err
	}
	return n, nil
}

// Stored returns how many bytes of the entry are in the archive: its Size, or
// what its Segments add up to.
func (r *Reader) Stored() int64 { return r.stored }

// Finish reads to the end of the source, after Next returned io.EOF. Only zero
// bytes may follow the archive, at most 16 MiB of them (fault.LayerTrailing).
func (r *Reader) Finish() error {
	if r.err == nil {
		return fault.New(fault.Bug, "an archive is finished before its last entry")
	}
	if !r.ended {
		return r.err
	}
	b := r.skipBuffer()
	for from := r.pos; ; {
		n, err := r.read(b)
		if !bytes.Equal(b[:n], zeros[:n]) {
			at := r.pos - int64(len(bytes.TrimLeft(b[:n], "\x00")))
			return fault.New(fault.LayerTrailing, "the archive ends at byte %d and more than zeros follows at byte %d", from, at)
		}
		if r.pos-from > maxPadding {
			return fault.New(fault.LayerTrailing, "the archive ends at byte %d and more than %d zero bytes follow", from, maxPadding)
		}
		if atEnd(err) {
			return nil
		}
		if err != nil {
			r.ended = false
			r.err = r.blame(r.broken(err))
			return r.err
		}
	}
}

func (r *Reader) next() (*Entry, error) {
	r.subject = nil
	if err := r.skip(); err != nil {
		return nil, err
	}
	r.stored = 0
	r.begin()
	for {
		h, err := r.header()
		if atEnd(err) && r.rec.kinds != 0 {
			return nil, flawed(fault.LayerArchive, "the archive ends behind an extended header")
		}
		if err != nil {
			return nil, err
		}
		extended, err := r.extension(h)
		if err != nil {
			return nil, err
		}
		if !extended {
			return r.entry(h)
		}
	}
}

// begin makes ready for an entry, whose first header comes next.
func (r *Reader) begin() {
	r.at = r.pos + int64(r.pad)
	r.ext, r.rec = r.ext[:0], records{ownership: r.global}
}

// header reads the next header block, with the padding before it. It returns
// io.EOF for the end of the archive.
func (r *Reader) header() (*header, error) {
	pad := r.pad
	r.pad = 0
	h := (*header)(r.buf[pad : pad+blockSize])
	if n, err := r.fill(r.buf[:pad+blockSize]); err != nil {
		if !atEnd(err) || n > pad {
			err = r.broken(err)
		}
		return nil, err
	}
	sum := h.sum()
	if sum == 0 {
		return nil, r.endMarker(h)
	}
	if !h.valid(sum) {
		return nil, flawed(fault.LayerArchive, "the header at byte %d has a wrong checksum", r.pos-blockSize)
	}
	return h, nil
}

// endMarker reads what follows a zero block: another one, or nothing.
func (r *Reader) endMarker(h *header) error {
	n, err := r.fill(h[:])
	switch {
	case err != nil && (n > 0 || !atEnd(err)):
		return r.broken(err)
	case err != nil:
		return err
	case h.sum() != 0:
		return flawed(fault.LayerArchive, "one zero block at byte %d, where two end the archive, and more behind it", r.pos-2*blockSize)
	}
	return io.EOF
}

// skip leaves the contents that nobody read.
func (r *Reader) skip() error {
	if r.left == 0 {
		return nil
	}
	if d, ok := r.r.(interface{ Discard(int) (int, error) }); ok {
		for r.left > 0 {
			n, err := d.Discard(int(min(r.left, 1<<30)))
			r.pos += int64(n)
			r.left -= int64(n)
			if n == 0 && err == nil {
				err = io.ErrNoProgress
			}
			if err != nil {
				return r.broken(err)
			}
		}
		return nil
	}
	b := r.skipBuffer()
	for r.left > 0 {
		n, err := r.fill(b[:min(r.left, skipBuffer)])
		r.left -= int64(n)
		if err != nil {
			return r.broken(err)
		}
	}
	return nil
}

func (r *Reader) skipBuffer() []byte {
	if r.skipped == nil {
		r.skipped = make([]byte, skipBuffer)
	}
	return r.skipped
}

// read is one Read of the source that returns something.
func (r *Reader) read(b []byte) (int, error) {
	for range maxEmptyReads {
		n, err := r.r.Read(b)
		r.pos += int64(n)
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// fill reads all of b, or what there is and the error that ended it.
func (r *Reader) fill(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		m, err := r.read(b[n:])
		n += m
		if err != nil && (n < len(b) || !atEnd(err)) {
			return n, err
		}
	}
	return n, nil
}

// atEnd says whether a source ended. A failure that wraps io.EOF is no end.
func atEnd(err error) bool {
	return err == io.EOF //nolint:errorlint // see above
}

// broken is the error of a source that ended, or failed, within the archive.
func (r *Reader) broken(err error) error {
	if atEnd(err) || fault.Of(err) == fault.Bug && errors.Is(err, io.ErrUnexpectedEOF) {
		return flawed(fault.LayerArchive, "the archive is cut off at byte %d", r.pos)
	}
	return err
}

// flaw is what is wrong with an entry that is not named yet.
type flaw struct {
	code *fault.Code
	text string
}

func (f *flaw) Error() string { return f.text }

func flawed(c *fault.Code, format string, args ...any) error {
	return &flaw{c, fmt.Sprintf(format, args...)}
}

// blame names the entry that a flaw is of. What it returns is io.EOF only at
// the end of the archive, and then it is that very value.
func (r *Reader) blame(err error) error {
	var f *flaw
	switch {
	case r.ended:
		return io.EOF
	case errors.As(err, &f) && r.subject != nil:
		return fault.New(f.code, "entry %.200q at byte %d: %s", r.subject, r.at, f.text)
	case f != nil:
		return fault.New(f.code, "entry at byte %d: %s", r.at, f.text)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read an archive at byte %d: %w", r.pos, err)
	case fault.Of(err) != fault.Bug:
		return fault.New(fault.Of(err), "read an archive at byte %d: %v", r.pos, err)
	}
	return fault.New(fault.LayerArchive, "the archive is cut off at byte %d: %v", r.pos, err)
}
