package blobcache

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// Yield removes layers, the longest unused first, so that dir gains that many
// bytes. Nothing goes when dir is on another file system, or when all layers
// would not be enough; what is read stays, so that dir may gain less.
func (c *Cache) Yield(ctx context.Context, dir string, bytes int64) error {
	shared, err := sameDisk(c.dir, dir)
	if err != nil || !shared {
		return c.diskFault(err)
	}
	err = c.exclusive(ctx, func() error {
		list, total, err := c.list()
		if err != nil {
			return err
		}
		var most int64
		for _, s := range list {
			most += s.size
		}
		if most < bytes {
			return nil
		}
		_, _, err = c.evict(list, total, total-bytes)
		return err
	})
	return c.diskFault(err)
}

func sameDisk(a, b string) (bool, error) {
	var on [2]uint64
	for i, path := range []string{a, b} {
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err != nil {
			return false, &os.PathError{Op: "stat", Path: path, Err: err}
		}
		on[i] = s.Dev
	}
	return on[0] == on[1], nil
}
