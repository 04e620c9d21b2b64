package blobcache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pollFirst = time.Millisecond
	pollMost  = 50 * time.Millisecond
)

// lock takes the file's lock, waiting for it at most until ctx ends. A lock
// belongs to the open file: two of one process exclude each other too, and the
// system frees it when the process dies.
func lock(ctx context.Context, f *os.File, how int) error {
	for wait := pollFirst; ; wait = min(2*wait, pollMost) {
		got, err := tryLock(f, how)
		if got || err != nil {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func tryLock(f *os.File, how int) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

func pause(ctx context.Context, wait time.Duration) error {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// exclusive runs do while no other process makes room. It is held for the
// time of a few system calls.
func (c *Cache) exclusive(ctx context.Context, do func() error) error {
	f, err := os.OpenFile(filepath.Join(c.dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // frees the lock
	if err := lock(ctx, f, unix.LOCK_EX); err != nil {
		return err
	}
	return do()
}

// inPlace tells whether path still names the open file.
func inPlace(f *os.File, path string) (bool, error) {
	at, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	is, err := f.Stat()
	return err == nil && os.SameFile(at, is), err
}
