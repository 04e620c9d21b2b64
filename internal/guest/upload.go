package guest

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	metaHeader   = "X-Metadata-"
	maxMetadata  = 16 << 10 // bytes of keys and values of one upload
	mostUploaded = 10_000   // files of one form
	drainBytes   = 1 << 30  // of a refused body that are read nevertheless
	drainTime    = 10 * time.Second
)

// written is how a stored file is confirmed; clients allow no other keys.
type written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload answers POST /files: one file as octet-stream to ?path=, or each part
// of a form called file, to path or to the part's own name.
func (g *Guest) upload(w http.ResponseWriter, r *http.Request) {
	answer, err := g.receive(r)
	if err != nil {
		refuseBody(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// refuseBody answers with err a request whose body was not read to its end.
// Most clients read no answer before their body is sent: they would see a
// broken connection and not the reason. The deadline is of the connection,
// which ends with such an answer.
func refuseBody(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Connection", "close")
	if r.Context().Err() == nil && http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime)) == nil {
		_, _ = io.CopyN(io.Discard, r.Body, drainBytes) // what stays unread is the caller's loss
	}
	httpError(w, err)
}

func (g *Guest) receive(r *http.Request) ([]written, error) {
	asked := r.URL.Query().Get("path")
	if _, _, err := g.fileTarget(r, opWrite, asked); err != nil {
		return nil, err
	}
	metadata, err := metadataFrom(r.Header)
	if err != nil {
		return nil, err
	}
	body, err := decoded(r)
	if err != nil {
		return nil, err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "multipart/form-data":
		return g.receiveForm(r, multipart.NewReader(body, params["boundary"]), asked, metadata)
	case err == nil && kind == "application/octet-stream", r.Header.Get("Content-Type") == "":
		if asked == "" {
			return nil, badInput("path is missing")
		}
		one, err := g.store(r, asked, body, metadata)
		return []written{one}, err
	}
	return nil, refuse(connect.CodeUnimplemented, fault.InvalidInput, "content type '%s': send multipart/form-data or application/octet-stream", r.Header.Get("Content-Type"))
}

func (g *Guest) receiveForm(r *http.Request, form *multipart.Reader, asked string, metadata map[string]string) ([]written, error) {
	answer, seen := []written{}, map[string]bool{}
	for {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			if len(answer) == 0 {
				return nil, badInput("the form has no part called file")
			}
			return answer, nil
		}
		if err != nil {
			return nil, badInput("form: %s", err.Error())
		}
		if part.FormName() != "file" {
			continue
		}
		path, err := partPath(part, asked)
		if err != nil {
			return nil, err
		}
		if seen[path] || len(seen) == mostUploaded {
			return nil, badInput("form: path '%s' comes twice, or there are more than %d files", path, mostUploaded)
		}
		seen[path] = true
		one, err := g.store(r, path, part, metadata)
		if err != nil {
			return nil, err
		}
		answer = append(answer, one)
	}
}

// partPath is where a part goes. The library's FileName would cut the path
// down to its last word.
func partPath(part *multipart.Part, asked string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil || params["filename"] == "" {
		return "", badInput("form: a part called file has no filename, and the request no path")
	}
	return params["filename"], nil
}

// decoded is the body without its encoding.
func decoded(r *http.Request) (io.Reader, error) {
	switch strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))) {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, badInput("the body is not gzip: %s", err.Error())
		}
		return z, nil
	}
	return nil, refuse(connect.CodeUnimplemented, fault.InvalidInput, "content encoding '%s': send gzip or none", r.Header.Get("Content-Encoding"))
}

func metadataFrom(h http.Header) (map[string]string, error) {
	found, sum := map[string]string{}, 0
	for name, values := range h {
		if len(name) <= len(metaHeader) || !strings.EqualFold(name[:len(metaHeader)], metaHeader) {
			continue
		}
		key, value := strings.ToLower(name[len(metaHeader):]), strings.Join(values, ", ")
		if len(attrPrefix)+len(key) > 255 {
			return nil, badInput("metadata '%s': the key is too long", key)
		}
		sum += len(key) + len(value)
		found[key] = value
	}
	if sum > maxMetadata {
		return nil, badInput("metadata of %d bytes: at most %d", sum, maxMetadata)
	}
	return found, nil
}

func (g *Guest) store(r *http.Request, asked string, data io.Reader, metadata map[string]string) (written, error) {
	u, err := g.owner(r.URL.Query().Get("username"))
	if err != nil {
		return written{}, err
	}
	path, err := resolve(asked, g.settings.current().workdir, u)
	if err != nil {
		return written{}, err
	}
	if err := writeFile(path, u, data, metadata); err != nil {
		return written{}, ofFile(path, err)
	}
	return written{Path: clean(path), Name: clean(filepath.Base(path)), Type: "file", Metadata: metadata}, nil
}

// brokenBody is a body that ended early: the caller's fault, not the disk's.
type brokenBody struct {
	io.Reader
	err error
}

func (b *brokenBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// writeFile stores data at path, in place, so that links and permissions stay.
// It then belongs to u. A new file that could not be written whole is removed.
func writeFile(path string, u account, data io.Reader, metadata map[string]string) error {
	if err := makeDirs(filepath.Dir(path), u); err != nil {
		return err
	}
	info, err := os.Stat(path)
	isNew := errors.Is(err, os.ErrNotExist)
	switch {
	case err != nil && !isNew:
		return err
	case err == nil && info.IsDir():
		return refuse(connect.CodeInvalidArgument, fault.FileIsDirectory, "path '%s' is a directory", path)
	case err == nil && !info.Mode().IsRegular():
		return badInput("path '%s' is not a regular file", path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, 0o644) //nolint:gosec // files of a sandbox are for all its users
	if err != nil {
		return err
	}
	if int(u.uid) != os.Getuid() || int(u.gid) != os.Getgid() || !isNew {
		err = f.Chown(int(u.uid), int(u.gid))
	}
	body := &brokenBody{Reader: data}
	if err == nil {
		_, err = io.Copy(f, body)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = setMetadata(path, metadata)
	}
	if err != nil && isNew {
		err = errors.Join(err, os.Remove(path))
	}
	if body.err != nil {
		return badInput("the body ended early: %s", body.err.Error())
	}
	return err
}
