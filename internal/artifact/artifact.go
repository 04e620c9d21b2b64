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

func checkKey(key string) error {
	if !keyForm.MatchString(key) {
		return fault.New(fault.InvalidInput, "artifact key %q", key)
	}
	return nil
}

// Dir keeps each key as a file of one directory.
type Dir struct{ path string }

// OpenDir returns the store in the directory at path, which it makes.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "artifact store %s", path)
	}
	return &Dir{path}, nil
}

// Backend returns the word that artifact rows keep.
func (d *Dir) Backend() string { return "dir" }

// Location returns where a key's bytes are, for the row.
func (d *Dir) Location(key string) string { return filepath.Join(d.path, key) }

// Put stores the file at path as key. The file is moved when it is on the same
// filesystem, and gone afterwards in either case. An older one is replaced.
func (d *Dir) Put(ctx context.Context, key, path string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	err := os.Rename(path, d.Location(key))
	if errors.Is(err, unix.EXDEV) {
		err = d.copy(ctx, key, path)
	}
	if err == nil {
		err = syncDir(d.path)
	}
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fault.Wrap(fault.DiskFull, err, "artifact store %s", d.path)
	case err != nil:
		return fault.Wrap(fault.StoreUnavailable, err, "artifact store %s", d.path)
	}
	return nil
}

func (d *Dir) copy(ctx context.Context, key, path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close(), os.Remove(path)) }()
	out, err := os.CreateTemp(d.path, ".put-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(out.Name()) }() // renamed already when all went well
	_, err = io.Copy(out, readerWith{ctx, in})
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	return os.Rename(out.Name(), d.Location(key))
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

func syncDir(path string) error {
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
		return nil, Info{}, d.missing(key, err)
	}
	s, err := f.Stat()
	if err != nil {
		return nil, Info{}, errors.Join(d.missing(key, err), f.Close())
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
		return Info{}, d.missing(key, err)
	}
	return Info{Size: s.Size(), Modified: s.ModTime()}, nil
}

func (d *Dir) missing(key string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.ArtifactNotFound, "artifact %s in %s", key, d.path)
	}
	return fault.Wrap(fault.StoreUnavailable, err, "artifact %s in %s", key, d.path)
}

// Remove removes a key. Absent is success.
func (d *Dir) Remove(_ context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := os.Remove(d.Location(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.StoreUnavailable, err, "artifact %s in %s", key, d.path)
	}
	return nil
}
