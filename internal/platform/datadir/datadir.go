// Package datadir owns the directory that a machine keeps everything in: its
// lock, its secrets, and where each part's files are. It must never put a
// secret into a file that others can read.
package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

// secretsName is the directory of the secrets, and what tells that a
// directory is one of ours.
const secretsName = "secrets"

// Dir is a data directory that is known to be writable.
type Dir struct{ Path string }

// Open makes the directory, for its owner only, and proves that it can be
// written. Otherwise fault.DataDir; so too when the directory holds other
// things than ours and stands open to others, as /tmp does.
func Open(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err == nil {
		err = os.MkdirAll(abs, 0o700)
	}
	if err == nil {
		err = closeToOthers(abs)
	}
	if err == nil {
		err = probe(abs)
	}
	if err == nil {
		err = private(filepath.Join(abs, secretsName))
	}
	if err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "data directory %s", path)
	}
	return &Dir{abs}, nil
}

// closeToOthers takes the rights of group and others away from a directory
// that is ours or empty.
func closeToOthers(dir string) error {
	open, err := openToOthers(dir)
	if err != nil || !open {
		return err
	}
	return os.Chmod(dir, 0o700) //nolint:gosec // a directory needs its x bit
}

// openToOthers reports whether group or others have rights in dir. One where
// they have, and that holds other things than ours, is an error.
func openToOthers(dir string) (bool, error) {
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return false, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return true, err
	}
	if len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(dir, secretsName)); err != nil {
			return true, fmt.Errorf("it holds things that are not ours, and others may read it (mode %04o): choose a directory of its own", info.Mode().Perm())
		}
	}
	return true, nil
}

// private makes a directory for its owner only, and keeps it so.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700) //nolint:gosec // a directory needs its x bit
}

// probe writes and removes a file, and what an earlier program was killed over.
func probe(dir string) error {
	sweep(dir)
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// sweep removes temporary files of programs that were killed. They live for
// moments, so one that is older than this has no owner.
func sweep(dir string) {
	for _, pattern := range []string{".probe-*", ".new-*", secretsName + "/.new-*"} {
		left, _ := filepath.Glob(filepath.Join(dir, pattern)) // only a bad pattern fails
		for _, path := range left {
			if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > time.Minute {
				_ = os.Remove(path) // it may be gone already; otherwise the next start tries again
			}
		}
	}
}

// Lock keeps every other process that locks the same role out of this
// directory until release is called or the process ends. Otherwise
// fault.DataDirLocked, naming the process that has it. The file stays: to
// remove it would let two processes lock two files of one name.
func (d *Dir) Lock(role string) (release func() error, err error) {
	path := filepath.Join(d.Path, role+".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "lock of %s", role)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer func() { _ = f.Close() }() // nothing was written to it
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.Wrap(fault.DataDir, err, "lock of %s", role)
		}
		return nil, fault.New(fault.DataDirLocked, "%s in %s%s", role, d.Path, owner(path))
	}
	// The number helps a person to find the process; the lock is the flock.
	if err := errors.Join(f.Truncate(0), write(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(fault.Wrap(fault.DataDir, err, "lock of %s", role), f.Close())
	}
	return f.Close, nil
}

func write(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

func owner(path string) string {
	b, err := os.ReadFile(path)
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return ", held by process " + pid
	}
	return ""
}

// Secrets fills what a leaves unset from the directory, and makes what is not
// there yet. A secret that another process makes at the same time is taken as
// that process wrote it. Otherwise fault.DataDir.
func (d *Dir) Secrets(a config.Auth) (config.Auth, error) {
	for _, s := range []struct {
		file string
		into *config.Secret
		make func() string
	}{
		// E2B's clients want keys of this form.
		{"api-key", &a.APIKey, func() string { return id.Secret("e2b_", 20) }},
		{"callback-token", &a.CallbackToken, func() string { return id.Secret("", 32) }},
		{"host-token", &a.HostToken, func() string { return id.Secret("", 32) }},
	} {
		if *s.into != "" {
			continue
		}
		v, err := d.secret(s.file, s.make)
		if err != nil {
			return a, fault.Wrap(fault.DataDir, err, "secret %s", s.file)
		}
		*s.into = config.Secret(v)
	}
	return a, nil
}

func (d *Dir) secret(name string, make func() string) (string, error) {
	dir := filepath.Join(d.Path, secretsName)
	if err := private(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if err := create(path, []byte(make()+"\n")); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return "", err
	}
	v := strings.TrimSpace(string(b))
	if v == "" {
		return "", fmt.Errorf("%s is empty: delete it, and it is made anew", path)
	}
	return v, os.Chmod(path, 0o600)
}

// create writes a whole file that nobody else has made, or none: the content
// appears under its name at once. os.ErrExist tells that somebody was first.
func create(path string, content []byte) error {
	return place(path, content, os.Link)
}

// replace writes a whole file in the place of what is there.
func replace(path string, content []byte) error {
	return place(path, content, os.Rename)
}

// place writes content to a file of its own, readable by the owner only, and
// gives it its name by the given means, on the disk too.
func place(path string, content []byte, name func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // a renamed file is gone from here
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := name(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Client is what a command line needs to reach the master of this machine.
type Client struct {
	Address string `json:"address"`
	APIKey  string `json:"api_key"`
}

// WriteClient leaves c for the command line, readable by the owner only.
// Otherwise fault.DataDir.
func (d *Dir) WriteClient(c Client) error {
	b, err := json.Marshal(c)
	if err == nil {
		err = replace(d.clientPath(), append(b, '\n'))
	}
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "client settings %s", d.clientPath())
	}
	return nil
}

// ReadClient returns what WriteClient left in the directory at path. Nothing
// there is os.ErrNotExist.
func ReadClient(path string) (Client, error) {
	d := Dir{path}
	b, err := os.ReadFile(d.clientPath())
	if err != nil {
		return Client{}, err
	}
	var c Client
	if err := json.Unmarshal(b, &c); err != nil {
		return Client{}, fault.Wrap(fault.DataDir, err, "client settings %s", d.clientPath())
	}
	return c, nil
}

func (d *Dir) clientPath() string { return filepath.Join(d.Path, "cli.json") }
