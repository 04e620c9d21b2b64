package guest

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

// download answers GET /files with the bytes of one file.
func (g *Guest) download(w http.ResponseWriter, r *http.Request) {
	if err := g.send(w, r); err != nil {
		httpError(w, err)
	}
}

// send writes nothing when it returns an error.
func (g *Guest) send(w http.ResponseWriter, r *http.Request) error {
	path, _, err := g.fileTarget(r, opRead, r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	// A pipe would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ofFile(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return ofFile(path, err)
	case info.IsDir():
		return refuse(connect.CodeInvalidArgument, fault.FileIsDirectory, "path '%s' is a directory", path)
	case !info.Mode().IsRegular():
		return badInput("path '%s' is not a regular file", path)
	}
	plain, zipped := accepted(r.Header.Get("Accept-Encoding"))
	if r.Header.Get("Range") != "" && plain {
		zipped = false // a range is of the file's own bytes
	}
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": clean(filepath.Base(path))}))
	switch {
	case !plain && !zipped:
		w.Header().Del("Content-Disposition")
		writeFailure(w, http.StatusNotAcceptable, "the file is served as it is, or with gzip")
		return nil
	case zipped:
		sendZipped(w, r, f)
	case info.Size() == 0 || computed(f):
		return sendStream(w, r, f, path)
	default:
		http.ServeContent(w, r, filepath.Base(path), info.ModTime(), f)
	}
	return nil
}

// sendStream sends a file whose size is not known before it is read: those of
// /proc and /sys say 0 or a page.
func sendStream(w http.ResponseWriter, r *http.Request, f *os.File, path string) error {
	first := make([]byte, 32<<10)
	n, err := io.ReadFull(f, first)
	whole := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !whole {
		return ofFile(path, err)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if whole {
		w.Header().Set("Content-Length", strconv.Itoa(n))
	}
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := w.Write(first[:n]); err == nil && !whole {
		_, _ = io.Copy(w, f) // a broken connection is the caller's loss
	}
	return nil
}

func sendZipped(w http.ResponseWriter, r *http.Request, f *os.File) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	// The level is valid. A broken connection is the caller's loss; a file
	// that cannot be read to its end leaves the stream without its trailer.
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if _, err := io.Copy(z, f); err == nil {
		_ = z.Close()
	}
}

// computed tells whether the kernel makes the file's bytes when it is read.
func computed(f *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC:
		return true
	}
	return false
}

// accepted reads an Accept-Encoding header: whether the bytes may be sent as
// they are, and whether gzip is welcome.
func accepted(header string) (plain, zipped bool) {
	plain = true
	weights := map[string]float64{}
	for _, part := range strings.Split(header, ",") {
		name, params, _ := strings.Cut(part, ";")
		q := 1.0
		if text, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			if given, err := strconv.ParseFloat(text, 64); err == nil {
				q = given
			}
		}
		weights[strings.ToLower(strings.TrimSpace(name))] = q
	}
	any, hasAny := weights["*"]
	if q, ok := weights["identity"]; ok && q == 0 || !ok && hasAny && any == 0 {
		plain = false
	}
	q, ok := weights["gzip"]
	zipped = ok && q > 0 || !ok && hasAny && any > 0 && !plain
	return plain, zipped
}
