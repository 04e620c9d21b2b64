package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
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
// whether it did: false when another held it for all of wait. The context of fn
// ends when the lock is found to be lost. A lock saves work and protects
// nothing: it ends with its connection or process, so what fn writes must still
// compare what it read.
func (s *Store) WithLock(ctx context.Context, name string, wait time.Duration, fn func(ctx context.Context) error) (locked bool, err error) {
	name = LockName(s.scope + name)
	if s.locks != nil {
		return s.serverLock(ctx, name, wait, fn)
	}
	return s.fileLock(ctx, name, wait, fn)
}

const (
	lockWait  = 10 * time.Second // of one question to the server, well below answerTime
	lockWatch = 5 * time.Second  // how often a holder asks whether it still holds
)

// Each lock that is held or waited for takes one connection of the server's:
// so many at once are enough, since a holder takes one more lock at most.
const (
	maxLocks  = 24
	idleLocks = 4
)

// lockConn returns a connection for one lock. All of them being taken for
// longer than wait is an outage like any other: it is told, not waited for
// without end.
func (s *Store) lockConn(ctx context.Context, wait time.Duration) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+dialTime)
	defer cancel()
	return s.locks.Conn(ctx)
}

// serverLock is GET_LOCK on one pinned connection.
func (s *Store) serverLock(ctx context.Context, name string, wait time.Duration, fn func(ctx context.Context) error) (_ bool, err error) {
	c, err := s.lockConn(ctx, wait)
	if err != nil {
		return false, lockFault(ctx, err, name)
	}
	// Whatever could not be put back in order was discarded, which is told here.
	defer func() { _ = c.Close() }()
	locked, err := getLock(ctx, c, name, wait)
	if err != nil {
		discard(c) // the lock may be ours although the answer was lost
		return false, lockFault(ctx, err, name)
	}
	if !locked {
		return false, nil
	}
	held, lose := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watchLock(held, lose, c, name)
	}()
	defer func() {
		lose(nil)
		<-watched
		releaseLock(ctx, c, name)
	}()
	err = fn(held)
	if lost := context.Cause(held); err != nil && ctx.Err() == nil && lost != nil && errors.Is(err, context.Canceled) {
		err = lost
	}
	return true, err
}

func lockFault(ctx context.Context, err error, name string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("lock %s: %w", name, ctx.Err())
	}
	return fault.Wrap(fault.StoreUnavailable, err, "lock %s", name)
}

// getLock asks until it has the lock or wait is over.
func getLock(ctx context.Context, c *sql.Conn, name string, wait time.Duration) (bool, error) {
	for deadline := time.Now().Add(wait); ; {
		left := max(0, time.Until(deadline))
		var got sql.NullInt64
		if err := c.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", name, min(left, lockWait).Seconds()).Scan(&got); err != nil {
			return false, err
		}
		if got.Int64 == 1 || left <= lockWait {
			return got.Int64 == 1, nil
		}
	}
}

// watchLock calls lose when the server says, or can no longer say, who has the
// lock.
func watchLock(held context.Context, lose context.CancelCauseFunc, c *sql.Conn, name string) {
	for {
		select {
		case <-held.Done():
			return
		case <-time.After(lockWatch):
		}
		// Not on held: its end must not break the connection under the question.
		ask, cancel := context.WithTimeout(context.WithoutCancel(held), dialTime)
		var ours sql.NullInt64
		err := c.QueryRowContext(ask, "SELECT IS_USED_LOCK(?) = CONNECTION_ID()", name).Scan(&ours)
		cancel()
		if err != nil || ours.Int64 != 1 {
			lose(fault.New(fault.StoreUnavailable, "lock %s was lost", name))
			return
		}
	}
}

// releaseLock lets the lock go on a context of its own: it must not outlive a
// cancelled call. In doubt the connection goes, and the lock with it.
func releaseLock(ctx context.Context, c *sql.Conn, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTime)
	defer cancel()
	var freed sql.NullInt64
	if c.QueryRowContext(ctx, "SELECT RELEASE_LOCK(?)", name).Scan(&freed) != nil || freed.Int64 != 1 {
		discard(c)
	}
}

// discard closes c for good, and with it whatever it holds: the pool drops a
// connection that answers so.
func discard(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
}

// fileLock locks a file beside the SQLite database: it ends with the process,
// as GET_LOCK ends with its connection.
func (s *Store) fileLock(ctx context.Context, name string, wait time.Duration, fn func(ctx context.Context) error) (_ bool, err error) {
	path, err := s.lockPath(name)
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

// databaseFile is where SQLite has the database.
func (s *Store) databaseFile(ctx context.Context) (file string, err error) {
	return file, s.db.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file)
}

func (s *Store) lockPath(name string) (string, error) {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
	if safe != name { // two names must not become one
		sum := sha256.Sum256([]byte(name))
		safe += "-" + hex.EncodeToString(sum[:])[:16]
	}
	dir := s.file + ".locks"
	return filepath.Join(dir, safe), os.MkdirAll(dir, 0o700)
}
