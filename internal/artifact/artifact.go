// Package artifact keeps the bytes of artifacts, by key, in a directory or in
// an object store.
//
// A key's bytes appear whole or not at all. "Not there" is
// fault.ArtifactNotFound; "cannot tell" is another code, so that nobody takes
// an outage for a loss. This package must never know what the bytes mean.
package artifact

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Info is what is known of a key without reading it.
type Info struct {
	Size     int64
	Modified time.Time
}

var keyForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// checkKey refuses what could be a path or another's temporary file.
func checkKey(key string) error {
	if !keyForm.MatchString(key) {
		return fault.New(fault.InvalidInput, "artifact key %q", key)
	}
	return nil
}

// partial begins the names of files that are on their way; no key does.
const partial = ".put-"

// Dir keeps each key as a file of one directory. Several processes may share
// it. It is safe for concurrent use.
type Dir struct{ path string }

// OpenDir returns the store in the directory at path, which it makes, and
// removes what a Put of a process that has ended left half done.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "artifact_store.dir %s", path)
	}
	if err := removePartial(path); err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "artifact_store.dir %s", path)
	}
	d := &Dir{path}
	if err := d.name(); err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) { // a full one still serves
		return nil, fault.Wrap(fault.DataDir, err, "artifact_store.dir %s", path)
	}
	return d, nil
}

// FindDir returns the store in the directory at path, or nil if there is no
// such directory: it makes and removes nothing.
func FindDir(path string) *Dir {
	d := &Dir{path}
	if path == "" || !d.there() {
		return nil
	}
	return d
}

// removePartial removes files on their way that nobody holds locked: whoever
// writes one does, and its lock ends with it.
func removePartial(path string) error {
	found, err := filepath.Glob(filepath.Join(path, partial+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range found {
		f, err := os.Open(name)
		if err != nil {
			continue // it was renamed or removed meanwhile
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			errs = append(errs, os.Remove(name))
		}
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Backend returns the word that artifact rows keep.
func (d *Dir) Backend() string { return "dir" }

// Location returns where a key's bytes are, for the row.
func (d *Dir) Location(key string) string { return filepath.Join(d.path, key) }

// Put stores the file at path as key. The file is moved when it is on the same
// filesystem, and gone afterwards in either case. An older one is replaced.
// fault.DiskFull, fault.StoreUnavailable.
func (d *Dir) Put(ctx context.Context, key, path string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := d.put(ctx, key, path); err != nil {
		return d.refused(err, key)
	}
	return nil
}

func (d *Dir) put(ctx context.Context, key, path string) error {
	if err := syncPath(path); err != nil {
		return err
	}
	err := os.Rename(path, d.Location(key))
	if errors.Is(err, unix.EXDEV) {
		err = d.copy(ctx, key, path)
	}
	if err != nil {
		return err
	}
	return syncPath(d.path)
}

// copy brings a file over from another filesystem.
func (d *Dir) copy(ctx context.Context, key, path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.CreateTemp(d.path, partial+"*")
	if err != nil {
		return err
	}
	defer func() {
		_ = out.Close()
		_ = os.Remove(out.Name()) // renamed already when all went well
	}()
	if err := unix.Flock(int(out.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	if _, err := io.Copy(out, readerWith{ctx, in}); err != nil {
		return err
	}
	if err := errors.Join(out.Chmod(0o600), out.Sync()); err != nil {
		return err
	}
	if err := os.Rename(out.Name(), d.Location(key)); err != nil {
		return err
	}
	return os.Remove(path)
}

// readerWith ends a copy with its context.
type readerWith struct {
	ctx context.Context
	r   io.Reader
}

func (r readerWith) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Open returns a key's bytes, to be closed by the caller.
func (d *Dir) Open(_ context.Context, key string) (io.ReadSeekCloser, Info, error) {
	if err := checkKey(key); err != nil {
		return nil, Info{}, err
	}
	f, err := os.Open(d.Location(key))
	if err != nil {
		return nil, Info{}, d.refused(err, key)
	}
	s, err := f.Stat()
	if err != nil {
		return nil, Info{}, errors.Join(d.refused(err, key), f.Close())
	}
	return f, Info{Size: s.Size(), Modified: s.ModTime()}, nil
}

// Stat returns what is known of a key.
func (d *Dir) Stat(_ context.Context, key string) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, err
	}
	s, err := os.Stat(d.Location(key))
	if err != nil {
		return Info{}, d.refused(err, key)
	}
	return Info{Size: s.Size(), Modified: s.ModTime()}, nil
}

// refused gives an error of the filesystem its code. A directory that is not
// there says nothing of what was in it.
func (d *Dir) refused(err error, key string) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fault.Wrap(fault.DiskFull, err, "artifact %s in %s", key, d.path)
	case errors.Is(err, fs.ErrNotExist) && d.there():
		return fault.New(fault.ArtifactNotFound, "artifact %s in %s", key, d.path)
	}
	return fault.Wrap(fault.StoreUnavailable, err, "artifact %s in %s", key, d.path)
}

func (d *Dir) there() bool {
	s, err := os.Stat(d.path)
	return err == nil && s.IsDir()
}

// Remove removes a key. Absent is success.
func (d *Dir) Remove(_ context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	err := os.Remove(d.Location(key))
	if err == nil {
		err = syncPath(d.path)
	}
	if err == nil {
		return nil
	}
	if err = d.refused(err, key); errors.Is(err, fault.ArtifactNotFound) {
		return nil
	}
	return err
}

// Free returns the bytes that may still be stored.
func (d *Dir) Free(context.Context) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(d.path, &s); err != nil {
		return 0, fault.Wrap(fault.StoreUnavailable, err, "artifact_store.dir %s", d.path)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// List calls each for every key, in no order, and stops at its first error.
func (d *Dir) List(ctx context.Context, each func(key string, i Info) error) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fault.Wrap(fault.StoreUnavailable, err, "artifact_store.dir %s", d.path)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") || checkKey(e.Name()) != nil {
			continue // removed meanwhile, or none of ours
		}
		if err := each(e.Name(), Info{Size: info.Size(), Modified: info.ModTime()}); err != nil {
			return err
		}
	}
	return nil
}
