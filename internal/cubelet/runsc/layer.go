package runsc

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"strings"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
)

// How a layer says that names of what lies below are gone: as the image
// specification of OCI has it.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// opaqueRecord is how the runtime says that nothing of a directory below shows
// through; a removed name is a device without a number.
const opaqueRecord = "SCHILY.xattr.trusted.overlay.opaque"

// clean is a name of an archive as a path below its root; the root is ".".
func clean(name string) string { return path.Clean("/" + name)[1:] }

// toLayer turns the runtime's archive of what was written into a layer.
func toLayer(ctx context.Context, in io.Reader, out io.Writer) error {
	r, w := tar.NewReader(in), tar.NewWriter(out)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("archive of the runtime: %w", err)
		}
		name := clean(h.Name)
		if name == "" || runtime.Laid(name) {
			continue
		}
		_, hidden := h.PAXRecords[opaqueRecord]
		if hidden {
			h.PAXRecords = maps.Clone(h.PAXRecords)
			delete(h.PAXRecords, opaqueRecord)
		}
		h.Name, h.Format = name, tar.FormatPAX
		switch {
		case h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0:
			h = marker(path.Join(path.Dir(name), whiteout+path.Base(name)))
		case h.Typeflag == tar.TypeDir:
			h.Name += "/"
		case h.Typeflag == tar.TypeLink:
			h.Linkname = clean(h.Linkname)
		}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("entry %s: %w", name, err)
		}
		if hidden {
			if err := w.WriteHeader(marker(path.Join(name, opaque))); err != nil {
				return fmt.Errorf("entry %s: %w", name, err)
			}
		}
		if _, err := io.Copy(w, r); err != nil {
			return fmt.Errorf("entry %s: %w", name, err)
		}
	}
}

func marker(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Format: tar.FormatPAX}
}

// layer is what a first look at a layer tells.
type layer struct {
	hidden map[string]bool // directories of which nothing below shows through
	kinds  map[string]byte // of each name; a removed one is a device
}

func look(file string) (l layer, err error) {
	l = layer{map[string]bool{}, map[string]byte{}}
	if file == "" {
		return l, nil
	}
	err = eachOf(file, func(h *tar.Header, _ io.Reader) error {
		name := clean(h.Name)
		switch base := path.Base(name); {
		case base == opaque:
			l.hidden[path.Dir(name)] = true
		case strings.HasPrefix(base, whiteout):
			l.kinds[path.Join(path.Dir(name), base[len(whiteout):])] = tar.TypeChar
		default:
			l.kinds[name] = h.Typeflag
		}
		return nil
	})
	return l, err
}

func eachOf(file string, do func(*tar.Header, io.Reader) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = do(h, r)
		}
		if err != nil {
			return fmt.Errorf("layer: %w", err)
		}
	}
}

// pack writes the archive that is unpacked over the root: the layer of an
// earlier life, and the files of this one. The runtime wants an entry for the
// root itself, every name below it, and no name twice.
func pack(out io.Writer, s runtime.Sandbox) error {
	l, err := look(s.Layer)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}); err != nil {
		return err
	}
	mine := map[string]bool{}
	for _, f := range s.Files {
		mine[f.Path] = true
	}
	if s.Layer != "" {
		err := eachOf(s.Layer, func(h *tar.Header, r io.Reader) error { return l.add(w, h, r, mine) })
		if err != nil {
			return err
		}
	}
	for _, f := range s.Files {
		if err := l.put(w, f); err != nil {
			return err
		}
	}
	return w.Close()
}

// add writes one entry of the layer in the runtime's form. What s has itself is
// left to put, but for directories.
func (l layer) add(w *tar.Writer, h *tar.Header, r io.Reader, mine map[string]bool) error {
	name := clean(h.Name)
	base := path.Base(name)
	switch {
	case name == "" || base == opaque:
		return nil
	case strings.HasPrefix(base, whiteout):
		name = path.Join(path.Dir(name), base[len(whiteout):])
		h = &tar.Header{Typeflag: tar.TypeChar, Format: tar.FormatPAX}
	}
	if mine[name] && h.Typeflag != tar.TypeDir {
		return nil
	}
	h.Name = "./" + name
	switch h.Typeflag {
	case tar.TypeDir:
		h.Name += "/"
		if l.hidden[name] {
			l.hide(h)
		}
	case tar.TypeLink:
		h.Linkname = "./" + clean(h.Linkname)
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, r)
	return err
}

func (l layer) hide(h *tar.Header) {
	records := maps.Clone(h.PAXRecords)
	if records == nil {
		records = map[string]string{}
	}
	records[opaqueRecord] = "y"
	h.PAXRecords, h.Format = records, tar.FormatPAX
}

// put writes one file of this life. A directory that the layer has stays as it
// is there; one that it removed comes back empty; below what has become no
// directory nothing is put.
func (l layer) put(w *tar.Writer, f runtime.File) error {
	for above := path.Dir(f.Path); above != "."; above = path.Dir(above) {
		if kind, ok := l.kinds[above]; ok && kind != tar.TypeDir && kind != tar.TypeChar {
			return nil
		}
	}
	h := &tar.Header{Name: "./" + f.Path, Mode: f.Mode, Size: int64(len(f.Data)), Typeflag: tar.TypeReg}
	if f.Dir {
		kind, ok := l.kinds[f.Path]
		if ok && kind != tar.TypeChar {
			return nil
		}
		h.Name, h.Typeflag = h.Name+"/", tar.TypeDir
		if ok {
			l.hide(h)
		}
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(f.Data)
	return err
}
