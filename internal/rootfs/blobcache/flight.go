package blobcache

import (
	"context"
	"os"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// flight is one layer being looked for or fetched, for all who wait for it.
// Its fields are guarded by the cache's mutex until done is closed.
type flight struct {
	key     key
	cancel  context.CancelFunc
	done    chan struct{}
	waiters int

	ended bool
	pin   *pin // with one reference for each waiter
	err   error
}

// round is one try of Get; led tells that an error is of the caller's own fetch.
func (c *Cache) round(ctx context.Context, k key, fetch Fetch) (b *Blob, led bool, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, true, fault.New(fault.CallCancelled, "layer %s: the layer cache is closed", k.digest())
	}
	if p, ok := c.pins[k.hex]; ok && p.size == k.size {
		p.references++
		c.used[k.hex] = time.Now()
		c.mu.Unlock()
		return &Blob{cache: c, pin: p}, false, nil
	}
	f, running := c.flights[k]
	if !running {
		f = c.start(ctx, k, fetch)
	}
	f.waiters++
	c.mu.Unlock()

	select {
	case <-f.done:
	case <-ctx.Done():
		c.leave(f)
		return nil, !running, context.Cause(ctx)
	}
	if f.err != nil {
		return nil, !running, f.err
	}
	return &Blob{cache: c, pin: f.pin}, !running, nil
}

// start begins a flight. The caller holds the mutex.
func (c *Cache) start(ctx context.Context, k key, fetch Fetch) *flight {
	// The flight may outlive who began it, but keeps its values (its trace).
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{key: k, cancel: cancel, done: make(chan struct{})}
	c.flights[k] = f
	c.running.Go(func() {
		defer cancel()
		file, err := c.bring(ctx, k, fetch)
		c.end(f, file, err)
	})
	return f
}

// end hands the flight's outcome to its waiters.
func (c *Cache) end(f *flight, file *os.File, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flights[f.key] == f {
		delete(c.flights, f.key)
	}
	f.ended, f.err = true, err
	if err == nil {
		f.pin = &pin{key: f.key, file: file, references: f.waiters}
		c.used[f.key.hex] = time.Now()
		if f.waiters > 0 {
			c.pins[f.key.hex] = f.pin
		} else {
			_ = file.Close() // it was only read, or synced before
		}
	}
	close(f.done)
}

// leave is a waiter that goes. The last one stops the flight, and the next
// caller begins another.
func (c *Cache) leave(f *flight) {
	c.mu.Lock()
	if f.ended {
		p := f.pin
		c.mu.Unlock()
		if p != nil {
			_ = c.release(p) // as in end
		}
		return
	}
	defer c.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	f.cancel()
	if c.flights[f.key] == f {
		delete(c.flights, f.key)
	}
}
