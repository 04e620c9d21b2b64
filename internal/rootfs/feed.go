package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	feedBuffer = 128 << 10
	feedRing   = 8 // buffers of one layer
	// feedMost is how many layers are decoded at once at most. Each takes a ring
	// and its decoder's buffers, so that more would not be bounded memory.
	feedMost = 16
)

// ring is the buffers that one layer at a time goes through.
type ring chan []byte

// feeds decodes layers, several at a time, for one consumer that takes them in
// their order. A layer that is ahead of the consumer goes to a spool, so that
// it never waits; one that the consumer is at goes straight to it. Memory is
// the buffers' of the layers that are being decoded, whatever their sizes.
type feeds struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wait   sync.WaitGroup
	rings  chan ring // a layer holds one while it is decoded
	dir    string    // of spools
	most   int64     // decoded bytes of all layers
	total  atomic.Int64
	list   []*feed
}

// feed is the archive of one layer, on its way.
type feed struct {
	all    *feeds
	layer  plainLayer
	ring   ring
	filled chan []byte   // by the decoder
	ready  chan []byte   // for the consumer, once it is here
	here   chan struct{} // closed when the consumer has caught up
	begun  chan struct{} // closed when the decoder has begun
	direct chan struct{} // closed when nothing more goes to the spool
	handed bool          // the ring is the consumer's to give back; before direct is closed
	spool  spool
	sum    string // sha256 of the archive, once all of it came
	size   int64
	err    error // why it ended, before ready is closed

	// Of the consumer.
	off             int64  // in the spool
	now             []byte // being read
	whole           []byte // what now is part of
	asked, returned bool
	doubted         atomic.Bool
}

// plainLayer is a layer that can be decoded.
type plainLayer struct {
	digest string // sha256:hex, of the bytes as they travel
	size   int64
	diffID string // of the archive within
	open   func(ctx context.Context) (plainReader, error)
}

// plainReader is the archive of a layer, decompressed.
type plainReader interface {
	io.ReadCloser
	// Cause returns the error to blame when what was read is no good: that of
	// the bytes it was decompressed from, if they are not those of the image,
	// else err.
	Cause(err error) error
}

// errDoubted ends a layer that the consumer finds no good.
var errDoubted = errors.New("the layer is given up")

// newFeeds begins to decode. It must be closed.
func newFeeds(ctx context.Context, layers []plainLayer, dir string, most int64) *feeds {
	f := &feeds{dir: dir, most: most}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	n := decoders(len(layers))
	f.rings = make(chan ring, n)
	for range n {
		f.rings <- newRing()
	}
	for _, l := range layers {
		f.list = append(f.list, &feed{
			all: f, layer: l, filled: make(chan []byte, feedRing), ready: make(chan []byte, feedRing),
			here: make(chan struct{}), begun: make(chan struct{}), direct: make(chan struct{}),
		})
	}
	f.wait.Add(1)
	go f.start()
	return f
}

// decoders is how many of the layers are decoded at once.
func decoders(layers int) int { return min(runtime.GOMAXPROCS(0), layers, feedMost) }

func newRing() ring {
	r := make(ring, feedRing)
	for range feedRing {
		r <- make([]byte, feedBuffer)
	}
	return r
}

// start begins one layer after another, as rings come free.
func (f *feeds) start() {
	defer f.wait.Done()
	for _, one := range f.list {
		select {
		case <-f.ctx.Done():
			return
		case one.ring = <-f.rings:
		}
		f.wait.Add(2)
		close(one.begun)
		go one.decode()
		go one.drain()
	}
}

// close ends what still runs, waits for it, and removes what was spooled.
func (f *feeds) close() error {
	f.cancel(context.Canceled)
	f.wait.Wait()
	var errs []error
	for _, one := range f.list {
		errs = append(errs, one.spool.close())
	}
	return errors.Join(errs...)
}

// decode fills buffers with the layer's archive.
func (f *feed) decode() {
	defer f.all.wait.Done()
	defer close(f.filled)
	r, err := f.layer.open(f.all.ctx)
	if err != nil {
		f.err = err
		return
	}
	if f.err = f.fill(r); f.err != nil && f.all.ctx.Err() == nil {
		f.err = r.Cause(f.err)
	}
	if late := r.Close(); f.err == nil {
		f.err = late
	}
}

func (f *feed) fill(r io.Reader) error {
	for {
		var b []byte
		select {
		case <-f.all.ctx.Done():
			return context.Cause(f.all.ctx)
		case b = <-f.ring:
		}
		if f.doubted.Load() {
			f.ring <- b
			return errDoubted
		}
		n, err := readSome(r, b[:feedBuffer])
		if f.all.total.Add(int64(n)) > f.all.most {
			return fault.New(fault.TooManyBytes, "the image's layers have over %d bytes when they are decompressed; the limit is image_limits.file_mib", f.all.most)
		}
		if n == 0 {
			f.ring <- b
		} else {
			f.filled <- b[:n]
		}
		if err == io.EOF { //nolint:errorlint // a failure that wraps io.EOF is no end
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readSome fills b, or returns what came before an error.
func readSome(r io.Reader, b []byte) (n int, err error) {
	for empty := 0; n < len(b) && err == nil; {
		var m int
		if m, err = r.Read(b[n:]); m > 0 {
			n, empty = n+m, 0
		} else if empty++; empty > 100 && err == nil {
			err = io.ErrNoProgress
		}
	}
	return n, err
}

// drain hashes what was decoded and hands it on. It sets why the layer ended
// before it closes ready.
func (f *feed) drain() {
	defer f.all.wait.Done()
	h := sha256.New()
	if err := f.hand(h); err != nil {
		f.all.cancel(err)
		for b := range f.filled { // the decoder must not wait for a buffer
			f.ring <- b
		}
		f.err = err
	} else if f.err == nil {
		f.err = f.verify(hex.EncodeToString(h.Sum(nil)))
	}
	close(f.ready)
	if !f.handed {
		close(f.direct)
		f.all.rings <- f.ring
	}
}

// hand passes every buffer on, until the decoder ends.
func (f *feed) hand(h io.Writer) error {
	here := f.here
	for {
		select {
		case <-here:
			here, f.handed = nil, true
			close(f.direct)
		case b, ok := <-f.filled:
			if !ok {
				return nil
			}
			_, _ = h.Write(b) // a hash takes everything
			f.size += int64(len(b))
			if err := f.pass(b); err != nil {
				return err
			}
		}
	}
}

// pass gives a buffer to the consumer, or to the spool.
func (f *feed) pass(b []byte) error {
	if f.handed {
		select {
		case f.ready <- b:
			return nil
		case <-f.all.ctx.Done():
			f.ring <- b
			return context.Cause(f.all.ctx)
		}
	}
	err := f.spool.write(f.all.dir, b)
	f.ring <- b
	return err
}

func (f *feed) verify(sum string) error {
	f.sum = sum
	if "sha256:"+sum != f.layer.diffID {
		return fault.New(fault.LayerDigest, "its archive has sha256 %s, the config says %s", sum, f.layer.diffID)
	}
	return nil
}

// Read is for the consumer, which reads one layer after another. It returns
// io.EOF when the whole layer came and is what the image's config names.
func (f *feed) Read(p []byte) (int, error) {
	for len(f.now) == 0 {
		n, err := f.next(p)
		if n > 0 || err != nil {
			return n, err
		}
	}
	n := copy(p, f.now)
	f.now = f.now[n:]
	return n, nil
}

// next reads from the spool into p, or takes the next buffer.
func (f *feed) next(p []byte) (int, error) {
	if f.whole != nil {
		f.ring <- f.whole
		f.whole = nil
	}
	if err := f.begin(); err != nil {
		return 0, err
	}
	if n, err := f.spool.read(p, f.off); n > 0 || err != nil {
		f.off += int64(n)
		return n, err
	}
	if !f.asked {
		f.asked = true
		close(f.here)
		<-f.direct // soon: the other end waits for nobody but the disk
		return 0, nil
	}
	select {
	case b, ok := <-f.ready:
		if !ok {
			return 0, f.ended()
		}
		f.now, f.whole = b, b
		return 0, nil
	case <-f.all.ctx.Done():
		return 0, context.Cause(f.all.ctx)
	}
}

// begin waits until the layer is being decoded.
func (f *feed) begin() error {
	select {
	case <-f.begun:
		return nil
	case <-f.all.ctx.Done():
		return context.Cause(f.all.ctx)
	}
}

// ended is what the consumer meets behind the last byte.
func (f *feed) ended() error {
	if f.handed && !f.returned {
		f.returned = true
		f.all.rings <- f.ring
	}
	if f.err != nil {
		return f.err
	}
	return io.EOF
}

// cause returns the error to blame when the consumer met err in the layer: why
// all was stopped; or that its bytes are not those of the image, before what
// they would be refused for.
func (f *feed) cause(err error) error {
	switch stopped := context.Cause(f.all.ctx); {
	case stopped != nil && fault.Of(err).Class == fault.Cancelled:
		return stopped
	case stopped != nil || fault.Of(err).Class != fault.Invalid:
		return err
	}
	f.doubted.Store(true)
	f.off = f.spool.written.Load()
	_, own := io.Copy(io.Discard, onlyRead{f})
	if own == nil || errors.Is(own, errDoubted) || fault.Of(own) == fault.Bug || f.all.ctx.Err() != nil {
		return err
	}
	return own
}

// onlyRead hides everything but Read.
type onlyRead struct{ io.Reader }
