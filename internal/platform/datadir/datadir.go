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
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

// Dir is a data directory that is known to be writable.
type Dir struct{ Path string }

// Open makes the directory, for its owner only, and proves that it can be
// written. Otherwise fault.DataDir.
func Open(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err == nil {
		err = os.MkdirAll(abs, 0o700)
	}
	if err == nil {
		err = probe(abs)
	}
	if err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "data directory %s", path)
	}
	return &Dir{abs}, nil
}

func probe(dir string) error {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Lock keeps every other process that locks the same role out of this
// directory until release is called or the process ends. Otherwise
// fault.DataDirLocked.
func (d *Dir) Lock(role string) (release func() error, err error) {
	path := filepath.Join(d.Path, role+".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "lock of %s", role)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fault.New(fault.DataDirLocked, "%s in %s", role, d.Path), f.Close())
	}
	return f.Close, nil
}

// Secrets fills what a leaves unset from the directory, and makes what is not
// there yet. A secret that another process makes at the same time is taken as
// that process wrote it.
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
	dir := filepath.Join(d.Path, "secrets")
	if err := os.MkdirAll(dir, 0o700); err != nil {
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
	return v, nil
}

// create writes a whole file that nobody else has made, or none: the content
// appears under its name at once.
func create(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

// Client is what a command line needs to reach the master of this machine.
type Client struct {
	Address string `json:"address"`
	APIKey  string `json:"api_key"`
}

// WriteClient leaves c for the command line, readable by the owner only.
func (d *Dir) WriteClient(c Client) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	path := d.clientPath()
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fault.Wrap(fault.DataDir, err, "client settings")
	}
	return os.Rename(path+".new", path)
}

// ReadClient returns what WriteClient left in the directory at path.
func ReadClient(path string) (Client, error) {
	d := Dir{path}
	b, err := os.ReadFile(d.clientPath())
	if err != nil {
		return Client{}, err
	}
	var c Client
	return c, json.Unmarshal(b, &c)
}

func (d *Dir) clientPath() string { return filepath.Join(d.Path, "cli.json") }
