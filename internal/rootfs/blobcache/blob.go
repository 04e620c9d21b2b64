package blobcache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"sync"

	"github.com/paddock-dev/paddock/internal/fault"
)

// pin is a layer's open file, with its lock. References and the place in the
// cache's map are guarded by the cache's mutex.
type pin struct {
	key
	file       *os.File
	references int
}

// Blob is a pinned layer: it is not evicted until Close. It is safe for
// concurrent use.
type Blob struct {
	cache *Cache
	pin   *pin
	once  sync.Once
}

// Size returns how many bytes it has.
func (b *Blob) Size() int64 { return b.pin.size }

// Open returns the bytes. Who reads them to their end knows them verified: when
// they are not those of the digest, the last read fails with
// fault.LayerDamaged, the file is thrown out, and Get will fetch it anew.
// Readers are independent, and hold the layer until they are closed.
func (b *Blob) Open() (io.ReadCloser, error) {
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	if b.pin.references == 0 {
		return nil, os.ErrClosed
	}
	b.pin.references++
	held := &Blob{cache: b.cache, pin: b.pin}
	return &reader{Blob: held, bytes: io.NewSectionReader(b.pin.file, 0, b.pin.size), sum: sha256.New()}, nil
}

// Close lets the layer go. It may be called again.
func (b *Blob) Close() error {
	var err error
	b.once.Do(func() { err = b.cache.release(b.pin) })
	return err
}

func (c *Cache) release(p *pin) error {
	c.mu.Lock()
	p.references--
	last := p.references == 0
	if last && c.pins[p.hex] == p {
		delete(c.pins, p.hex)
	}
	over := last && c.over
	c.mu.Unlock()
	if !last {
		return nil
	}
	err := p.file.Close() // frees the lock
	if over {
		err = errors.Join(err, c.trimBriefly())
	}
	return err
}

// reader verifies what passes.
type reader struct {
	*Blob
	bytes *io.SectionReader
	sum   hash.Hash
	done  error // io.EOF or the fault, once the end was met
}

func (r *reader) Read(p []byte) (int, error) {
	if r.done != nil {
		return 0, r.done
	}
	n, err := r.bytes.Read(p)
	r.sum.Write(p[:n])
	if err != nil {
		r.done = r.verdict(err)
		return n, r.done
	}
	return n, nil
}

// verdict turns the end of the file into what it means.
func (r *reader) verdict(err error) error {
	k := r.pin.key
	if errors.Is(err, io.EOF) && hex.EncodeToString(r.sum.Sum(nil)) == k.hex {
		return io.EOF
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("its bytes are of another digest, or cut short")
	}
	err = fault.Wrap(fault.LayerDamaged, err, "layer %s in the cache", k.digest())
	return errors.Join(err, r.cache.throwOut(r.pin))
}

// throwOut removes a damaged layer, unless it was replaced meanwhile.
func (c *Cache) throwOut(p *pin) error {
	c.mu.Lock()
	if c.pins[p.hex] == p {
		delete(c.pins, p.hex)
	}
	c.mu.Unlock()
	c.log.Warn("threw out a damaged layer", "digest", p.digest())
	return removeIfIn(p.file, c.blob(p.hex))
}

func removeIfIn(f *os.File, path string) error {
	in, err := inPlace(f, path)
	if err != nil || !in {
		return err
	}
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
