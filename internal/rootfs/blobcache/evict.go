package blobcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/platform/fail"
)

// trimTime bounds how long who lets a layer go waits for other processes.
const trimTime = 5 * time.Second

// stored is a layer as eviction sees it.
type stored struct {
	hex  string
	size int64
	used time.Time
}

// reserve makes room for size bytes in the quota and on the disk, and gives
// the room to part, so that other processes count it.
func (c *Cache) reserve(ctx context.Context, part *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := c.exclusive(ctx, func() error {
		list, total, err := c.list()
		if err != nil {
			return err
		}
		list, total, err = c.evict(list, total, c.quota-size)
		if err != nil {
			return err
		}
		c.exceeded(total > c.quota-size)
		for {
			err := allocate(part, size)
			if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || len(list) == 0 {
				return err
			}
			// The disk has less than the quota: the oldest make room.
			if list, total, err = c.evict(list, total, max(0, total-size)); err != nil {
				return err
			}
		}
	})
	if err == nil {
		err = fail.Point("blobcache.reserved")
	}
	return c.diskFault(err)
}

// allocate gives f its size. Where the file system cannot reserve, the size
// still tells the other processes.
func allocate(f *os.File, size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return f.Truncate(size)
		}
		return err
	}
}

// exceeded notes whether the layers have to shrink when a pin ends.
func (c *Cache) exceeded(over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = over
}

// trimBriefly evicts what is over the quota.
func (c *Cache) trimBriefly() error {
	ctx, cancel := context.WithTimeout(context.Background(), trimTime)
	defer cancel()
	err := c.exclusive(ctx, func() error {
		list, total, err := c.list()
		if err != nil {
			return err
		}
		_, total, err = c.evict(list, total, c.quota)
		c.exceeded(total > c.quota)
		return err
	})
	return c.diskFault(err)
}

// list returns the layers, the longest unused first, and the bytes of all,
// with those that are being written.
func (c *Cache) list() ([]stored, int64, error) {
	if err := c.flush(); err != nil {
		return nil, 0, err
	}
	blobs, err := scan(filepath.Join(c.dir, blobDir))
	if err != nil {
		return nil, 0, err
	}
	partial, err := scan(filepath.Join(c.dir, partialDir))
	if err != nil {
		return nil, 0, err
	}
	var total int64
	for _, s := range slices.Concat(blobs, partial) {
		total += s.size
	}
	slices.SortFunc(blobs, func(a, b stored) int { return a.used.Compare(b.used) })
	return blobs, total, nil
}

func scan(dir string) ([]stored, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []stored
	for _, e := range entries {
		if !isHex(e.Name()) {
			continue // it is not ours
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, stored{e.Name(), info.Size(), info.ModTime()})
	}
	return list, nil
}

// evict removes layers in the order of list until total is at most want, and
// returns what it did not look at. Who is pinned stays.
func (c *Cache) evict(list []stored, total, want int64) ([]stored, int64, error) {
	for len(list) > 0 && total > want {
		s := list[0]
		list = list[1:]
		gone, err := c.evictOne(s)
		if err != nil {
			return list, total, err
		}
		if gone {
			total -= s.size
		}
	}
	return list, total, nil
}

func (c *Cache) evictOne(s stored) (bool, error) {
	f, err := os.OpenFile(c.blob(s.hex), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // frees the lock
	if free, err := tryLock(f, unix.LOCK_EX); err != nil || !free {
		return false, err
	}
	if err := fail.Point("blobcache.evict"); err != nil {
		return false, err
	}
	if err := removeIfIn(f, c.blob(s.hex)); err != nil {
		return false, err
	}
	c.log.Debug("evicted a layer", "digest", "sha256:"+s.hex, "bytes", s.size, "last_used", s.used)
	return true, fail.Point("blobcache.evicted")
}

// sweep removes what was being written by processes that died.
func (c *Cache) sweep() error {
	list, err := scan(filepath.Join(c.dir, partialDir))
	if err != nil {
		return err
	}
	for _, s := range list {
		if err := c.sweepOne(c.partial(s.hex)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cache) sweepOne(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // frees the lock
	if free, err := tryLock(f, unix.LOCK_EX); err != nil || !free {
		return err
	}
	c.log.Info("removed a layer that was half written", "bytes_of", filepath.Base(path))
	return removeIfIn(f, path)
}
