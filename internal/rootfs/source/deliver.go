package source

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
)

// fetchers is how many layers Fetch brings at once.
const fetchers = 4

// held are the layers that an image keeps in the cache, so that what Fetch
// brought is there for Open.
type held struct {
	mu     sync.Mutex
	closed bool
	blobs  map[string]*blobcache.Blob
}

// Open returns the bytes of layer i as they travel: from the cache, which
// fetches them when it lacks them, or from where they lie. Who reads them to
// their end knows that digest and size are right. When what they hold is no
// good, ask Cause for the error before believing it. The layer may be opened
// again, also at the same time.
//
// Refusals, also of reads: fault.LayerDigest, LayerDamaged (of the cache; opened
// anew, it is fetched anew), ImageInvalid, RegistryDown, RegistryRedirect,
// DiskFull.
func (im *Image) Open(ctx context.Context, i int) (io.ReadCloser, error) {
	r, err := im.open(ctx, i)
	if err != nil {
		return nil, im.naming(i, err)
	}
	l := im.Layers[i]
	d := &delivery{Reader: r, Closer: r, ctx: ctx, tell: func(bytes int64, whole bool) { im.told.arrived(i, bytes, whole) }}
	if im.cache == nil {
		d.Reader = verify(r, l.Digest, l.Size)
	}
	d.name = func(err error) error {
		if errors.Is(err, fault.LayerDamaged) {
			err = errors.Join(err, im.held.drop(l.Digest))
		}
		return im.naming(i, err)
	}
	return d, nil
}

func (im *Image) open(ctx context.Context, i int) (io.ReadCloser, error) {
	if im.cache == nil {
		return im.from.blob(ctx, im.Layers[i].Digest, im.Layers[i].Size)
	}
	b, err := im.bring(ctx, i)
	if err != nil {
		return nil, err
	}
	return b.Open()
}

// naming says which layer of which image an error is of.
func (im *Image) naming(i int, err error) error {
	return naming(im.Reference, layerNaming(i, im.Layers[i].Digest, err))
}

// Fetch brings all layers into the cache, the lowest first and several at a
// time. Without a cache there is nothing to do. Open works without it, and
// meanwhile.
func (im *Image) Fetch(ctx context.Context) error {
	if im.cache == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(fetchers)
	for i := range im.Layers {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			_, err := im.bring(ctx, i)
			return im.naming(i, err)
		})
	}
	return group.Wait()
}

// bring returns the layer in the cache, which the image keeps until Close.
func (im *Image) bring(ctx context.Context, i int) (*blobcache.Blob, error) {
	l := im.Layers[i]
	b, err := im.held.get(l.Digest)
	if b == nil && err == nil {
		if b, err = im.cache.Get(ctx, l.Digest, l.Size, im.fetcher(i)); err == nil {
			b, err = im.held.put(l.Digest, b)
		}
	}
	if err != nil {
		return nil, err
	}
	im.told.arrived(i, l.Size, true)
	return b, nil
}

// fetcher writes layer i as it arrives. The cache verifies it.
func (im *Image) fetcher(i int) blobcache.Fetch {
	return func(ctx context.Context, w io.Writer) error {
		r, err := im.from.blob(ctx, im.Layers[i].Digest, im.Layers[i].Size)
		if err != nil {
			return err
		}
		counted := &delivery{Reader: r, ctx: ctx, name: func(err error) error { return err }}
		counted.tell = func(bytes int64, _ bool) { im.told.arrived(i, bytes, false) }
		_, err = io.CopyBuffer(onlyWriter{w}, onlyReader{counted}, make([]byte, readAhead))
		return errors.Join(err, r.Close())
	}
}

// onlyReader and onlyWriter keep io.CopyBuffer to its buffer.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// Close lets go what the image holds. What was opened stays readable if it
// comes from the cache. It may be called again.
func (im *Image) Close() error {
	blobs, first := im.held.close()
	if !first {
		return nil
	}
	err := im.from.close()
	for _, b := range blobs {
		err = errors.Join(err, b.Close())
	}
	return err
}

// get returns the layer if it is held, or os.ErrClosed.
func (h *held) get(digest string) (*blobcache.Blob, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, os.ErrClosed
	}
	return h.blobs[digest], nil
}

// put keeps b, or returns the one that another kept first.
func (h *held) put(digest string, b *blobcache.Blob) (*blobcache.Blob, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch first, ok := h.blobs[digest]; {
	case h.closed:
		return nil, errors.Join(os.ErrClosed, b.Close())
	case ok:
		return first, b.Close()
	}
	if h.blobs == nil {
		h.blobs = map[string]*blobcache.Blob{}
	}
	h.blobs[digest] = b
	return b, nil
}

// drop lets a damaged layer go, so that it is fetched anew.
func (h *held) drop(digest string) error {
	h.mu.Lock()
	b := h.blobs[digest]
	delete(h.blobs, digest)
	h.mu.Unlock()
	if b == nil {
		return nil
	}
	return b.Close()
}

func (h *held) close() (blobs map[string]*blobcache.Blob, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, h.closed = !h.closed, true
	blobs, h.blobs = h.blobs, nil
	return blobs, first
}

// progress adds up what arrived of each layer.
type progress struct {
	mu     sync.Mutex
	tell   func(bytes int64, layers int)
	each   []int64
	whole  []bool
	bytes  int64
	layers int
}

func newProgress(tell func(int64, int), layers int) *progress {
	return &progress{tell: tell, each: make([]int64, layers), whole: make([]bool, layers)}
}

// arrived notes that of layer i so many bytes are here. A layer that is read
// again, or fetched again, adds nothing.
func (p *progress) arrived(i int, bytes int64, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	more, now := bytes > p.each[i], whole && !p.whole[i]
	if more {
		p.bytes += bytes - p.each[i]
		p.each[i] = bytes
	}
	if now {
		p.whole[i] = true
		p.layers++
	}
	if p.tell != nil && (more || now) {
		p.tell(p.bytes, p.layers)
	}
}
