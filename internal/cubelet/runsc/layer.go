package runsc

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"

	"github.com/paddock-dev/paddock/internal/cubelet/layer"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
)

// opaqueRecord is how the runtime says that nothing of a directory below shows
// through; a removed name is a device without a number.
const opaqueRecord = "SCHILY.xattr.trusted.overlay.opaque"

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
		name := layer.Clean(h.Name)
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
			h = marker(path.Join(path.Dir(name), layer.Whiteout+path.Base(name)))
		case h.Typeflag == tar.TypeDir:
			h.Name += "/"
		case h.Typeflag == tar.TypeLink:
			h.Linkname = layer.Clean(h.Linkname)
		}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("entry %s: %w", name, err)
		}
		if hidden {
			if err := w.WriteHeader(marker(path.Join(name, layer.Opaque))); err != nil {
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

// over is a layer that is laid over a root.
type over struct{ layer.Layer }

// pack writes the archive that is unpacked over the root: the layer of an
// earlier life, and the files of this one. The runtime wants an entry for the
// root itself, every name below it, and no name twice.
func pack(out io.Writer, s runtime.Sandbox) error {
	found, err := layer.Look(s.Layer)
	if err != nil {
		return err
	}
	l, w := over{found}, tar.NewWriter(out)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}); err != nil {
		return err
	}
	mine := map[string]bool{}
	for _, f := range s.Files {
		mine[f.Path] = true
	}
	if s.Layer != "" {
		err := layer.Each(s.Layer, func(h *tar.Header, r io.Reader) error { return l.add(w, h, r, mine) })
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
func (l over) add(w *tar.Writer, h *tar.Header, r io.Reader, mine map[string]bool) error {
	name := layer.Clean(h.Name)
	base := path.Base(name)
	switch {
	case name == "" || base == layer.Opaque:
		return nil
	case strings.HasPrefix(base, layer.Whiteout):
		name = path.Join(path.Dir(name), base[len(layer.Whiteout):])
		h = &tar.Header{Typeflag: tar.TypeChar, Format: tar.FormatPAX}
	}
	if mine[name] && h.Typeflag != tar.TypeDir {
		return nil
	}
	h.Name = "./" + name
	switch h.Typeflag {
	case tar.TypeDir:
		h.Name += "/"
		if l.Hidden[name] {
			l.hide(h)
		}
	case tar.TypeLink:
		h.Linkname = "./" + layer.Clean(h.Linkname)
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, r)
	return err
}

func (l over) hide(h *tar.Header) {
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
func (l over) put(w *tar.Writer, f runtime.File) error {
	for above := path.Dir(f.Path); above != "."; above = path.Dir(above) {
		if kind, ok := l.Kinds[above]; ok && kind != tar.TypeDir && kind != layer.Gone {
			return nil
		}
	}
	h := &tar.Header{Name: "./" + f.Path, Mode: f.Mode, Size: int64(len(f.Data)), Typeflag: tar.TypeReg}
	if f.Dir {
		kind, ok := l.Kinds[f.Path]
		if ok && kind != layer.Gone {
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
