// Package durable writes files of a host so that they are there, whole, after
// a crash of the machine. It must never know what is in them.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// Replace makes b the contents of the file at path: a crash leaves the old ones
// or the new.
func Replace(path string, b []byte) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes what was renamed in a directory, or removed from it, last.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
