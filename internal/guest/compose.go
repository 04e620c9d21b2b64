package guest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxCompose   = 1 << 20 // bytes of a body of /files/compose
	mostComposed = 10_000  // parts of one file
)

// composeRequest is the body of /files/compose; E2B's names.
type composeRequest struct {
	SourcePaths []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose answers POST /files/compose: the sources, one after the other, become
// one file, and are removed once it is there. It appears whole or not at all.
func (g *Guest) compose(w http.ResponseWriter, r *http.Request) {
	var m composeRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCompose)).Decode(&m); err != nil {
		httpError(w, badInput("compose: %s", err.Error()))
		return
	}
	to, err := g.composeTo(m)
	if err != nil {
		httpError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, written{Path: clean(to), Name: clean(filepath.Base(to)), Type: "file"})
}

func (g *Guest) composeTo(m composeRequest) (to string, err error) {
	if len(m.SourcePaths) == 0 || len(m.SourcePaths) > mostComposed || m.Destination == "" {
		return "", badInput("compose: give a destination and 1 to %d source_paths", mostComposed)
	}
	u, err := g.owner(m.Username)
	if err != nil {
		return "", err
	}
	workdir := g.settings.current().workdir
	if to, err = resolve(m.Destination, workdir, u); err != nil {
		return "", err
	}
	var from []string
	for _, source := range m.SourcePaths {
		path, err := resolve(source, workdir, u)
		if err != nil {
			return "", err
		}
		from = append(from, path)
	}
	if info, err := os.Stat(to); err == nil && !info.Mode().IsRegular() {
		return "", badInput("path '%s' is not a regular file", to)
	}
	if err := makeDirs(filepath.Dir(to), u); err != nil {
		return "", err
	}
	if err := concatenate(from, to, u); err != nil {
		return "", err
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(from))) {
		if path == to {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", ofFile(path, err)
		}
	}
	return to, nil
}

// concatenate writes beside to and renames.
func concatenate(from []string, to string, u account) (err error) {
	out, err := os.CreateTemp(filepath.Dir(to), ".compose-*")
	if err != nil {
		return ofFile(to, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(out.Name()) // the first failure is told
		}
	}()
	for _, path := range from {
		if err := appendFile(out, path); err != nil {
			return errors.Join(ofFile(path, err), out.Close())
		}
	}
	err = errors.Join(out.Chown(int(u.uid), int(u.gid)), out.Chmod(0o644), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), to)
	}
	return ofFile(to, err)
}

func appendFile(out *os.File, path string) error {
	in, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return refuse(connect.CodeInvalidArgument, fault.FileIsDirectory, "path '%s' is a directory", path)
	case !info.Mode().IsRegular():
		return badInput("path '%s' is not a regular file", path)
	}
	_, err = io.Copy(out, in) // the kernel copies, where it can
	return err
}
