package guest

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/treetar"
)

const (
	archiveType  = "application/x-tar"
	mostArchived = 2_000_000 // entries of one archive; the disk bounds its bytes
	// trailerLeft tells how many files were left out, behind the archive.
	trailerLeft = "X-Paddock-Left-Out"
)

// virtual are the trees that the kernel makes up: no archive of / has them.
var virtual = map[string]bool{"/proc": true, "/sys": true, "/dev": true}

// pack answers GET /archive with the directory at ?path= as tar. A failure
// behind the first byte breaks the connection off: the caller must not take a
// part for the whole.
func (g *Guest) pack(w http.ResponseWriter, r *http.Request) {
	path, _, err := g.archiveTarget(r)
	if err != nil {
		httpError(w, err)
		return
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		httpError(w, ofDirectory(path, err))
		return
	}
	defer root.Close()
	h := w.Header()
	h.Set("Content-Type", archiveType)
	h.Set("Trailer", trailerLeft)
	left, err := treetar.Pack(r.Context(), w, root, treetar.PackOptions{
		Limits: treetar.Limits{Entries: mostArchived}, Owners: true,
		Leave: func(name string) bool { return virtual[filepath.Join(path, name)] },
	})
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	h.Set(trailerLeft, strconv.Itoa(left))
}

// unpack answers PUT /archive: the body, a tar archive, becomes the tree at
// ?path=, which is made if it is not there. Then it is there whole or not at
// all; what is put into a directory that was there stays when the archive
// breaks off. Owners are the archive's, or all is ?username='s.
func (g *Guest) unpack(w http.ResponseWriter, r *http.Request) {
	path, u, err := g.archiveTarget(r)
	if err == nil {
		own := func(uid, gid int) (int, int) { return uid, gid }
		if r.URL.Query().Get("username") != "" {
			own = func(int, int) (int, int) { return int(u.uid), int(u.gid) }
		}
		err = unpackAt(r.Context(), path, u, r, treetar.UnpackOptions{Limits: treetar.Limits{Entries: mostArchived}, Own: own})
	}
	if err != nil {
		refuseBody(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func unpackAt(ctx context.Context, path string, u account, r *http.Request, o treetar.UnpackOptions) error {
	body, err := decoded(r)
	if err != nil {
		return err
	}
	_, err = os.Stat(path)
	o.Top = errors.Is(err, fs.ErrNotExist)
	if err := makeDirs(path, u); err != nil {
		return err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return ofDirectory(path, err)
	}
	defer root.Close()
	err = treetar.Unpack(ctx, root, body, o)
	if err != nil && o.Top {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if errors.Is(err, fault.ArchiveRefused) {
		return refuse(connect.CodeInvalidArgument, fault.ArchiveRefused, "path '%s': %s", path, err.Error())
	}
	return ofFile(path, err)
}

// archiveTarget returns the directory that the request names.
func (g *Guest) archiveTarget(r *http.Request) (string, account, error) {
	q := r.URL.Query()
	u, err := g.owner(q.Get("username"))
	if err != nil {
		return "", u, err
	}
	if q.Get("path") == "" {
		return "", u, badInput("path is missing")
	}
	path, err := resolve(q.Get("path"), g.settings.current().workdir, u)
	return path, u, err
}

// ofDirectory is ofFile for what must be a directory.
func ofDirectory(path string, err error) error {
	if info, found := os.Stat(path); found == nil && !info.IsDir() {
		return badInput("path '%s' is not a directory", path)
	}
	return ofFile(path, err)
}
