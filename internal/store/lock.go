package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

// LockName returns name in at most 64 characters, MySQL's limit: longer ones
// become their first 47, an underscore, and 16 hex digits of their sha256
// (spec/template-center 9.2).
func LockName(name string) string {
	if len(name) <= 64 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:47] + "_" + hex.EncodeToString(sum[:])[:16]
}

// WithLock runs fn while this process holds the lock called name, and reports
// whether it did: false when another held it for all of wait. A lock saves work
// and protects nothing: it ends silently with its connection, so what fn writes
// must still compare what it read.
func (s *Store) WithLock(ctx context.Context, name string, wait time.Duration, fn func(ctx context.Context) error) (locked bool, err error) {
	name = LockName(name)
	if s.d.name == "mysql" {
		return s.serverLock(ctx, name, wait, fn)
	}
	return s.fileLock(ctx, name, wait, fn)
}

// serverLock is GET_LOCK on one pinned connection.
func (s *Store) serverLock(ctx context.Context, name string, wait time.Duration, fn func(ctx context.Context) error) (_ bool, err error) {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return false, fault.Wrap(fault.StoreUnavailable, err, "lock %s", name)
	}
	defer func() {
		if late := c.Close(); late != nil && !errors.Is(late, sql.ErrConnDone) {
			err = errors.Join(err, late)
		}
	}()
	var got sql.NullInt64
	if err := c.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", name, wait.Seconds()).Scan(&got); err != nil {
		discard(c) // the lock may be ours although the answer was lost
		return false, fault.Wrap(fault.StoreUnavailable, err, "lock %s", name)
	}
	if got.Int64 != 1 {
		return false, nil
	}
	defer func() {
		// On a context of its own: a lock must not outlive a cancelled call.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTime)
		defer cancel()
		var freed sql.NullInt64
		if c.QueryRowContext(release, "SELECT RELEASE_LOCK(?)", name).Scan(&freed) != nil || freed.Int64 != 1 {
			discard(c)
		}
	}()
	return true, fn(ctx)
}

// discard closes c for good, and with it whatever it holds: the pool drops a
// connection that answers so.
func discard(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
}

// fileLock locks a file beside the SQLite database: it ends with the process,
// as GET_LOCK ends with its connection.
func (s *Store) fileLock(ctx context.Context, name string, wait time.Duration, fn func(ctx context.Context) error) (_ bool, err error) {
	path, err := s.lockPath(ctx, name)
	if err != nil {
		return false, fault.Wrap(fault.StoreUnavailable, err, "lock %s", name)
	}
	for deadline := time.Now().Add(wait); ; {
		f, err := tryLock(path)
		if err != nil {
			return false, fault.Wrap(fault.StoreUnavailable, err, "lock %s", name)
		}
		if f != nil {
			// Removed while it is held: nobody can hold a file that has no name.
			defer func() { err = errors.Join(err, os.Remove(path), f.Close()) }()
			return true, fn(ctx)
		}
		if !time.Now().Before(deadline) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// tryLock returns the locked file at path, or nil when another holds it.
func tryLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, f.Close()
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// Its holder may have removed it between our open and our lock.
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

func (s *Store) lockPath(ctx context.Context, name string) (string, error) {
	var file string
	if err := s.db.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file); err != nil {
		return "", err
	}
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
	dir := file + ".locks"
	return filepath.Join(dir, safe), os.MkdirAll(dir, 0o700)
}
