package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

// upload sends a file, or standard input, into a sandbox.
func (a *app) upload(ctx context.Context, api *cubeapi.Client, source, box, target string) error {
	in := io.NopCloser(a.stdin)
	if source != "-" {
		f, err := os.Open(source)
		if err != nil {
			return fault.Wrap(fault.InvalidInput, err, "source")
		}
		in = f
	}
	defer in.Close()
	near := &localReader{from: in}
	_, err := api.WriteFile(ctx, box, target, near)
	if own := near.failure(); own != nil {
		return fault.Wrap(fault.InvalidInput, own, "source")
	}
	return err
}

// download makes a file whole or not at all, beside its name until it is whole.
// A link goes on leading where it leads, a file keeps its mode, and what is no
// file, such as a pipe or a device, is written to as it is.
func download(path string, fill func(io.Writer) error) error {
	mode := fs.FileMode(0)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return fault.New(fault.InvalidInput, "target %q is a directory: name a file in it", path)
	case err == nil && !info.Mode().IsRegular():
		return fillFile(path, os.O_WRONLY, fill)
	case err == nil:
		mode = info.Mode().Perm()
	}
	part := filepath.Join(filepath.Dir(path), id.New(".paddock-cp-"))
	err := fillFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fill)
	if err == nil && mode != 0 {
		err = targetFault(os.Chmod(part, mode))
	}
	if err == nil {
		err = targetFault(os.Rename(part, path))
	}
	if err != nil {
		return errors.Join(err, removeIfThere(part))
	}
	return nil
}

func fillFile(path string, how int, fill func(io.Writer) error) error {
	f, err := os.OpenFile(path, how, 0o666) // less what the umask takes
	if err != nil {
		return targetFault(err)
	}
	near := &localWriter{to: f}
	err = fill(near)
	if late := f.Close(); near.err == nil {
		near.err = late
	}
	if near.err != nil {
		return targetFault(near.err)
	}
	return err
}

// targetFault gives what this machine said of the target a code.
func targetFault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return fault.Wrap(fault.DiskFull, err, "target")
	}
	return fault.Wrap(fault.InvalidInput, err, "target")
}

// localReader and localWriter keep the failure of this machine's side, which
// the client would tell as one of the connection.
type localReader struct {
	from io.Reader
	mu   sync.Mutex // an early answer leaves the sender at work
	err  error
}

func (l *localReader) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *localReader) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, fs.ErrClosed) {
		l.mu.Lock()
		l.err = err
		l.mu.Unlock()
	}
	return n, err
}

type localWriter struct {
	to  io.Writer
	err error
}

func (l *localWriter) Write(p []byte) (int, error) {
	n, err := l.to.Write(p)
	l.err = err
	return n, err
}
