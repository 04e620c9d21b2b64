package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	scratchName = ".paddock-build-"
	// scratchAge is how old a directory must be to be taken for one that was
	// left behind: a younger one may not be locked yet.
	scratchAge = time.Minute
)

// makeScratch makes a directory of one build in dir. It is locked for as long
// as its build runs, however that ends. Those that builds left which were
// killed are removed.
func makeScratch(dir string) (path string, remove func() error, err error) {
	if err := sweepScratch(dir); err != nil {
		return "", nil, err
	}
	path, err = os.MkdirTemp(dir, scratchName)
	if err != nil {
		return "", nil, fault.Wrap(fault.InvalidInput, err, "directory of --out")
	}
	lock, err := lockScratch(path)
	if err != nil {
		return "", nil, errors.Join(fault.Wrap(fault.InvalidInput, err, "scratch %s", path), os.RemoveAll(path))
	}
	return path, func() error { return errors.Join(os.RemoveAll(path), lock.Close()) }, nil
}

func lockScratch(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func sweepScratch(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return fault.Wrap(fault.InvalidInput, err, "directory of --out")
	}
	var errs []error
	for _, e := range list {
		ours, err := filepath.Match(scratchName+"[0-9]*", e.Name())
		if err != nil {
			return fault.Wrap(fault.Bug, err, "pattern of scratch directories")
		}
		if !ours || !e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if i, err := e.Info(); err != nil || time.Since(i.ModTime()) < scratchAge {
			continue // it is gone already, or young
		}
		lock, err := lockScratch(path)
		if err != nil {
			continue // in use
		}
		errs = append(errs, os.RemoveAll(path), lock.Close())
	}
	return errors.Join(errs...)
}
