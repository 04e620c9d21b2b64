package guest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// resolve returns the absolute path that a caller means: ~ and relative paths
// start at the home of u, an empty path is the default directory.
func resolve(path, workdir string, u account) (string, error) {
	switch {
	case strings.ContainsRune(path, 0):
		return "", badInput("a path holds a zero byte")
	case path == "" && workdir != "":
		return resolve(workdir, "", u)
	case path == "" || path == "~":
		return u.home, nil
	case strings.HasPrefix(path, "~/"):
		return filepath.Join(u.home, path[2:]), nil
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	}
	return filepath.Join(u.home, path), nil
}

// clean makes text fit for JSON and protobuf; names of files are any bytes.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// makeDirs makes dir and its parents; what it makes belongs to u.
func makeDirs(dir string, u account) error {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return badInput("path '%s' is not a directory", dir)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		if errors.Is(err, syscall.ENOTDIR) {
			return badInput("path '%s': a part of it is not a directory", dir)
		}
		return ofFile(dir, err)
	}
	if err := makeDirs(filepath.Dir(dir), u); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // directories of a sandbox are for all its users
		if errors.Is(err, fs.ErrExist) {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				return nil // somebody else made it meanwhile
			}
		}
		return ofFile(dir, err)
	}
	return ofFile(dir, own(dir, u))
}

// own gives path to u. A guest that is u already needs no right to do so.
func own(path string, u account) error {
	if int(u.uid) == os.Getuid() && int(u.gid) == os.Getgid() {
		return nil
	}
	return os.Lchown(path, int(u.uid), int(u.gid))
}
