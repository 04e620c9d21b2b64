package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Look returns why Open would refuse the directory at path, or nil. It makes no
// directory and changes none: fault.DataDir.
func Look(path string) error {
	abs, err := filepath.Abs(path)
	if err == nil {
		err = look(abs)
	}
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "data directory %s", path)
	}
	return nil
}

func look(abs string) error {
	there := Existing(abs)
	info, err := os.Stat(there)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", there)
	}
	if there == abs {
		if _, err := openToOthers(abs); err != nil {
			return err
		}
	}
	return writable(there)
}

// writable makes and removes a directory in dir: /proc, for one, says that it
// can be written and lets nobody do it.
func writable(dir string) error {
	made, err := os.MkdirTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	return os.Remove(made)
}

// Existing returns the part of path that is there.
func Existing(path string) string {
	for path != filepath.Dir(path) {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
		path = filepath.Dir(path)
	}
	return path
}

// Holder returns the process that has a role of the directory at path locked,
// or 0.
func Holder(path, role string) (pid int) {
	file := filepath.Join(path, role+".lock")
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return 0
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}
