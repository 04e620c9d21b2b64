package rootfs_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// archive is a layer's tar stream of the given entries. A file's content
// stands in Gname.
func archive(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := h.Gname
		h.Gname = ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, body string) tar.Header { return tar.Header{Name: name, Gname: body} }

func dir(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}

func symlink(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
}

func hardlink(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

func device(name string, major, minor int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeChar, Devmajor: major, Devminor: minor}
}

func fifo(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeFifo} }

func with(h tar.Header, change func(*tar.Header)) tar.Header {
	change(&h)
	return h
}

func mode(h tar.Header, m int64) tar.Header {
	return with(h, func(h *tar.Header) { h.Mode = m })
}

func xattr(h tar.Header, name, value string) tar.Header {
	return with(h, func(h *tar.Header) {
		records := map[string]string{"SCHILY.xattr." + name: value}
		for k, v := range h.PAXRecords {
			records[k] = v
		}
		h.Format, h.PAXRecords = tar.FormatPAX, records
	})
}

// sparse is a layer with one file, of which the given parts are stored. GNU tar
// makes it.
func sparse(t *testing.T, name string, parts map[int64]string) []byte {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for at, part := range parts {
		if _, err := f.WriteAt([]byte(part), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tar", "-C", dir, "-S", "--format=posix", "--mtime=@1", "--owner=0", "--group=0", "--mode=0644", "-cf", "-", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}
