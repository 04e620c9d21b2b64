package guest

import (
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
)

// written is how a stored file is confirmed; clients allow no other keys.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
}

// readFile answers GET /files?path=&username= with the bytes. Files of /proc
// say that they are empty, so those are sent without a length.
func (g *Guest) readFile(w http.ResponseWriter, r *http.Request) {
	path, _, ok := g.target(w, r, r.URL.Query().Get("path"))
	if !ok {
		return
	}
	f, err := os.Open(path)
	if err != nil {
		refuseFile(w, path, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		refuseFile(w, path, err)
	case info.IsDir():
		w.Header().Set(HeaderCode, "file_is_directory")
		refuse(w, http.StatusBadRequest, "path '"+path+"' is a directory")
	case info.Mode().IsRegular() && info.Size() > 0:
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", info.ModTime(), f)
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.Copy(w, f) // a broken connection is the client's loss
	}
}

// writeFiles answers POST /files: one file as octet-stream to ?path=, or each
// part of a form called file, to path or to the part's own name.
func (g *Guest) writeFiles(w http.ResponseWriter, r *http.Request) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		g.store(w, r, []source{{r.URL.Query().Get("path"), r.Body}})
		return
	}
	form, err := r.MultipartReader()
	if err != nil {
		refuse(w, http.StatusBadRequest, "form: "+err.Error())
		return
	}
	answers := []written{}
	for {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			writeJSON(w, http.StatusOK, answers)
			return
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, "form: "+err.Error())
			return
		}
		if part.FormName() != "file" {
			continue
		}
		path := r.URL.Query().Get("path")
		if path == "" {
			_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			if path = params["filename"]; err != nil || path == "" {
				refuse(w, http.StatusBadRequest, "form: a part names no file")
				return
			}
		}
		one, ok := g.storeOne(w, r, source{path, part})
		if !ok {
			return
		}
		answers = append(answers, one)
	}
}

type source struct {
	path string
	data io.Reader
}

func (g *Guest) store(w http.ResponseWriter, r *http.Request, list []source) {
	answers := []written{}
	for _, s := range list {
		one, ok := g.storeOne(w, r, s)
		if !ok {
			return
		}
		answers = append(answers, one)
	}
	writeJSON(w, http.StatusOK, answers)
}

func (g *Guest) storeOne(w http.ResponseWriter, r *http.Request, s source) (written, bool) {
	path, user, ok := g.target(w, r, s.path)
	if !ok {
		return written{}, false
	}
	if err := write(path, user, s.data); err != nil {
		refuseFile(w, path, err)
		return written{}, false
	}
	return written{Path: path, Name: filepath.Base(path), Type: "file"}, true
}

// write stores data at path; what it makes belongs to user.
func write(path string, user account, data io.Reader) error {
	if err := makeParents(filepath.Dir(path), user); err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return syscall.EISDIR
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if err := f.Chown(int(user.uid), int(user.gid)); err != nil {
		return errors.Join(err, f.Close())
	}
	_, err = io.Copy(f, data)
	return errors.Join(err, f.Close())
}

func makeParents(dir string, user account) error {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return syscall.ENOTDIR
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeParents(filepath.Dir(dir), user); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chown(dir, int(user.uid), int(user.gid))
}

// target resolves the path and the user that a request names.
func (g *Guest) target(w http.ResponseWriter, r *http.Request, path string) (string, account, bool) {
	name := r.URL.Query().Get("username")
	if name == "" {
		name = g.current().DefaultUser
	}
	user, err := g.users.find(name)
	if err != nil {
		refuse(w, http.StatusUnauthorized, err.Error())
		return "", user, false
	}
	if path == "" {
		refuse(w, http.StatusBadRequest, "path is missing")
		return "", user, false
	}
	return resolve(path, user), user, true
}

func refuseFile(w http.ResponseWriter, path string, err error) {
	status, code := http.StatusInternalServerError, ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		status, code = http.StatusInsufficientStorage, "sandbox_disk_full"
	case errors.Is(err, fs.ErrNotExist):
		status, code = http.StatusNotFound, "file_not_found"
	case errors.Is(err, syscall.EISDIR):
		status, code = http.StatusBadRequest, "file_is_directory"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL):
		status, code = http.StatusBadRequest, "invalid_input"
	case errors.Is(err, fs.ErrPermission):
		status = http.StatusForbidden
	}
	if code != "" {
		w.Header().Set(HeaderCode, code)
	}
	refuse(w, status, "'"+path+"': "+err.Error())
}
