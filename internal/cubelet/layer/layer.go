// Package layer reads and tells what a sandbox changed over its template, as
// the image specification of OCI has it. It must never write into a directory:
// a layer is foreign, and only a sandbox unpacks it.
package layer

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

	"github.com/paddock-dev/paddock/internal/platform/treetar"
)

// How a layer says that names of what lies below are gone.
const (
	Whiteout = ".wh."
	Opaque   = ".wh..wh..opq"
)

// Clean is a name of an archive as a path below its root; the root is "".
func Clean(name string) string { return path.Clean("/" + name)[1:] }

// Layer is what a first look at a layer tells.
type Layer struct {
	Hidden map[string]bool // directories of which nothing below shows through
	Kinds  map[string]byte // of each name; Gone is a removed one
}

// Gone is the kind of a name that the layer removes: a device, as overlays
// have it.
const Gone = tar.TypeChar

// Look reads the names of the layer at path; of none when path is empty.
func Look(file string) (l Layer, err error) {
	l = Layer{map[string]bool{}, map[string]byte{}}
	if file == "" {
		return l, nil
	}
	err = Each(file, func(h *tar.Header, _ io.Reader) error {
		name := Clean(h.Name)
		switch base := path.Base(name); {
		case base == Opaque:
			l.Hidden[path.Dir(name)] = true
		case strings.HasPrefix(base, Whiteout):
			l.Kinds[path.Join(path.Dir(name), base[len(Whiteout):])] = Gone
		default:
			l.Kinds[name] = h.Typeflag
		}
		return nil
	})
	return l, err
}

// Each hands over every entry of a layer, in its order.
func Each(file string, do func(*tar.Header, io.Reader) error) error {
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

// covers reports whether the layer decides what is at a name of the tree below
// it: it has something else there, or hides it.
func (l Layer) covers(name string) bool {
	if kind, ok := l.Kinds[name]; ok && kind != tar.TypeDir {
		return true
	}
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if l.Hidden[above] {
			return true
		}
	}
	return false
}

// Flatten writes the tree of root with the layer at file over it as one
// archive, each name once. What leave names is left out, with all below it. An
// empty file is no layer.
func Flatten(ctx context.Context, w io.Writer, root *os.Root, file string, leave func(name string) bool) error {
	l, err := Look(file)
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	_, err = treetar.PackInto(ctx, out, root, treetar.PackOptions{
		Owners: true, Attributes: true,
		Leave: func(name string) bool { return leave(name) || l.covers(name) },
		Bare:  func(dir string) bool { return l.Kinds[dir] == tar.TypeDir },
	})
	if err != nil {
		return err
	}
	if file == "" {
		return out.Close()
	}
	err = Each(file, func(h *tar.Header, r io.Reader) error {
		name := Clean(h.Name)
		base := path.Base(name)
		if base == Opaque || strings.HasPrefix(base, Whiteout) || leave(name) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		h.Name = name
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		h.PAXRecords = maps.Clone(h.PAXRecords)
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(out, r)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}
