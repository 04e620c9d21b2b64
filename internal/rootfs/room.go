package rootfs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
)

const (
	// growth is how much larger a compressed layer is taken to be in the check
	// before a build. Most grow by less.
	growth   = 3
	headroom = 64 << 20
)

// Room returns fault.DiskFull when a directory has less free than an image
// needs there. Before it says so, the cache, which may be nil, gives up layers
// that are on the same disk.
func Room(ctx context.Context, cache *blobcache.Cache, image, dir string, need int64, free func() (int64, error)) error {
	have, err := free()
	if err == nil && have < need && cache != nil {
		if err = cache.Yield(ctx, dir, need-have); err == nil {
			have, err = free()
		}
	}
	if err != nil || have >= need {
		return err
	}
	return &fault.Error{
		Code:    fault.DiskFull,
		Message: fmt.Sprintf("image %s: about %d bytes are needed in %s and %d are free", image, need, dir, have),
		Remedy:  fmt.Sprintf("free %d MiB on the filesystem of %s, or choose another directory", (need-have)>>20+1, dir),
	}
}

// FreeBytes returns what an unprivileged program may still write in dir.
func FreeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// diskFault gives an error of the file system a code. Those that have one, and
// the context's, stay.
func diskFault(err error, dir string) error {
	switch {
	case err == nil || fault.Of(err) != fault.Bug || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return fault.Wrap(fault.DiskFull, err, "%s", dir)
	}
	return fault.Wrap(fault.BuildFailed, err, "%s", dir)
}
