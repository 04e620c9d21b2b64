// Package blobcache keeps the layers of images on disk, by digest.
//
// A layer is verified while it is written and again while it is read; last
// uses decide what goes when the quota is full. Several processes may share a
// directory: what one writes or reads is locked, and the locks end with it. The
// package must never hand out bytes of another digest without saying so, never
// remember a failure, and never remove what somebody reads.
package blobcache

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// DefaultQuota is the quota of a cache whose options name none.
const DefaultQuota = 20 << 30

// The directory holds complete layers, those that are being written, and a
// file whose lock is held while room is made.
const (
	blobDir    = "blobs"
	partialDir = "partial"
	lockFile   = "lock"
)

const (
	rounds     = 3 // of one Get: how many fetches of others may fail, with one's own
	flushEvery = time.Minute
)

// Options are how a cache is opened.
type Options struct {
	Dir   string // made when it is not there
	Quota int64  // bytes; 0: DefaultQuota
	Log   *slog.Logger
}

// Cache is one process's view of the directory. It is safe for concurrent use.
type Cache struct {
	dir   string
	quota int64
	log   *slog.Logger

	running sync.WaitGroup // flights

	mu      sync.Mutex
	closed  bool
	flights map[key]*flight
	pins    map[string]*pin
	used    map[string]time.Time // last uses that the disk does not know yet
	flushed time.Time
	over    bool // the quota was exceeded for what is pinned
}

// Fetch writes the bytes of one layer. Its context ends when nobody waits for
// them any more. A failure of w is to be returned.
type Fetch func(ctx context.Context, w io.Writer) error

// key is what a caller asks for.
type key struct {
	hex  string
	size int64
}

func (k key) digest() string { return "sha256:" + k.hex }

// Open makes the directory ready: what dead processes left half written is
// removed, and so are layers over the quota. Refusals: fault.DataDir.
func Open(o Options) (*Cache, error) {
	if o.Dir == "" {
		return nil, fault.New(fault.DataDir, "layer cache: no directory is named")
	}
	c := &Cache{
		dir: o.Dir, quota: o.Quota, log: o.Log,
		flights: map[key]*flight{}, pins: map[string]*pin{}, used: map[string]time.Time{}, flushed: time.Now(),
	}
	if c.quota <= 0 {
		c.quota = DefaultQuota
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []string{blobDir, partialDir} {
		if err := os.MkdirAll(filepath.Join(c.dir, d), 0o700); err != nil {
			return nil, fault.Wrap(fault.DataDir, err, "layer cache %s", c.dir)
		}
	}
	if err := c.sweep(); err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "layer cache %s", c.dir)
	}
	if err := c.trimBriefly(); err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "layer cache %s", c.dir)
	}
	return c, nil
}

// Get returns the layer with that digest ("sha256:" and 64 hex digits) and
// size, pinned. When the cache lacks it, fetch brings it: once for all who ask
// at the same time, here and in other processes. A caller whose context ends
// leaves; the fetch goes on while anybody waits. When the fetch of another
// fails, a caller tries its own, as it may have other rights.
//
// Refusals: fault.LayerDigest when the bytes are not of that digest or size,
// fault.DiskFull, fault.DataDir, and what fetch returns.
func (c *Cache) Get(ctx context.Context, digest string, size int64, fetch Fetch) (*Blob, error) {
	k, err := keyOf(digest, size)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		b, led, err := c.round(ctx, k, fetch)
		if err == nil {
			c.flushSometimes()
			return b, nil
		}
		if led || try == rounds || ctx.Err() != nil {
			return nil, err
		}
	}
}

func keyOf(digest string, size int64) (key, error) {
	sum, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || !isHex(sum) || size < 0 {
		return key{}, fault.New(fault.ImageInvalid, "layer %.200q of %d bytes: no sha256 digest, or no size", digest, size)
	}
	return key{sum, size}, nil
}

// isHex tells names of layers from all others.
func isHex(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == 32 && strings.ToLower(name) == name
}

// Close stops what is being fetched, waits for it, and writes last uses.
// Blobs that are still pinned stay readable. Get must not be called any more.
func (c *Cache) Close() error {
	c.mu.Lock()
	c.closed = true
	for _, f := range c.flights {
		f.cancel()
	}
	c.mu.Unlock()
	c.running.Wait()
	return c.flush()
}

// flushSometimes bounds how many uses a crash can lose.
func (c *Cache) flushSometimes() {
	c.mu.Lock()
	due := time.Since(c.flushed) > flushEvery
	c.mu.Unlock()
	if !due {
		return
	}
	if err := c.flush(); err != nil {
		c.log.Warn("last uses of layers were not recorded", "error", err)
	}
}

// flush writes last uses as the files' times of modification, where every
// process finds them.
func (c *Cache) flush() error {
	c.mu.Lock()
	used := c.used
	c.used, c.flushed = map[string]time.Time{}, time.Now()
	c.mu.Unlock()
	var all error
	for sum, at := range used {
		if err := os.Chtimes(c.blob(sum), at, at); err != nil && !errors.Is(err, os.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}

func (c *Cache) blob(sum string) string    { return filepath.Join(c.dir, blobDir, sum) }
func (c *Cache) partial(sum string) string { return filepath.Join(c.dir, partialDir, sum) }
