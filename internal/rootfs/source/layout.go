package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxLayoutFile = 4096 // bytes of oci-layout
	blobsDir      = "blobs/sha256"
)

// The annotations of an index entry that name it.
var tagNames = []string{"org.opencontainers.image.ref.name", "io.containerd.image.name"}

// layout is an OCI layout directory. Of what an image says only digests lead to
// files, and only regular files below the directory itself are read: links are
// not followed.
type layout struct {
	root   *os.Root
	limits Limits
}

func openLayout(ctx context.Context, p place, r Request, want platform) (*Image, error) {
	root, err := os.OpenRoot(p.path)
	if err != nil {
		return nil, fault.Wrap(missing(err), err, "layout")
	}
	l := &layout{root, r.Limits}
	im, err := l.image(ctx, p, want)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return im, nil
}

// missing is the code of a path of the user's that cannot be opened.
func missing(err error) *fault.Code {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.ImageNotFound
	case errors.Is(err, fs.ErrPermission):
		return fault.ImageDenied
	}
	return fault.ImageRef
}

func (l *layout) image(ctx context.Context, p place, want platform) (*Image, error) {
	if err := l.checkVersion(); err != nil {
		return nil, err
	}
	b, err := l.read("index.json", l.limits.Manifest)
	if err != nil {
		return nil, err
	}
	// Where nothing serves it, the file's name says that it is an index.
	_, ix, err := readDocument(document{bytes: b, mediaType: ociIndex}, l.limits)
	if err != nil {
		return nil, err
	}
	d, err := ix.pick(p, want)
	if err != nil {
		return nil, err
	}
	c := &chooser{l, l.limits, want, maxDocuments}
	m, err := c.follow(ctx, d, -1)
	if err != nil {
		return nil, err
	}
	return take(ctx, l, l.limits, *m, want)
}

func (l *layout) checkVersion() error {
	b, err := l.read("oci-layout", maxLayoutFile)
	if err != nil {
		return err
	}
	m, err := object("oci-layout", b, "imageLayoutVersion")
	if err != nil {
		return err
	}
	v, err := value[string]("oci-layout", m, "imageLayoutVersion")
	if err != nil {
		return err
	}
	if v != "1.0.0" {
		return fault.New(fault.ImageInvalid, "its oci-layout says version %.100q, not 1.0.0", v)
	}
	return nil
}

// pick tells which of the layout's images is meant.
func (ix *index) pick(p place, want platform) (descriptor, error) {
	var found []descriptor
	var tags []string
	for _, d := range ix.entries {
		if d.isAttachment() {
			continue
		}
		named := p.digest == "" || d.digest == p.digest
		if p.tag != "" {
			named = named && d.tagged(p.tag)
		}
		if named {
			found = append(found, d)
		}
		tags = append(tags, d.tag())
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0 && p.tag == "" && p.digest != "":
		return descriptor{}, fault.New(fault.ImageNotFound, "the layout's index does not name %s; it has %s", p.digest, listed(tags))
	case len(found) == 0:
		return descriptor{}, fault.New(fault.ImageNotFound, "the layout has no image %.200q; it has %s", p.tag, listed(tags))
	}
	return onlyFitting(found, want, tags)
}

// onlyFitting chooses among several by their platforms.
func onlyFitting(found []descriptor, want platform, tags []string) (descriptor, error) {
	var fitting []descriptor
	for _, d := range found {
		if d.platform != nil && fit(want, *d.platform) > 0 {
			fitting = append(fitting, d)
		}
	}
	if len(fitting) != 1 {
		return descriptor{}, fault.New(fault.ImageRef, "it holds %d images that may be meant: add one of :%s, or an @digest", len(found), listed(tags))
	}
	return fitting[0], nil
}

func (d descriptor) tagged(tag string) bool {
	for _, name := range tagNames {
		if d.annotations[name] == tag {
			return true
		}
	}
	return false
}

// tag is how an entry can be named.
func (d descriptor) tag() string {
	for _, name := range tagNames {
		if t := d.annotations[name]; t != "" {
			return t
		}
	}
	return "@" + d.digest
}

func (l *layout) manifest(_ context.Context, digest string) (document, error) {
	b, err := l.read(blobsDir+"/"+strings.TrimPrefix(digest, "sha256:"), l.limits.Manifest)
	if err != nil {
		return document{}, err
	}
	sum := sha256.Sum256(b)
	if got := "sha256:" + hex.EncodeToString(sum[:]); got != digest {
		return document{}, fault.New(fault.ImageInvalid, "manifest %s: its bytes have %s", digest, got)
	}
	return document{bytes: b, digest: digest}, nil
}

func (l *layout) blob(_ context.Context, digest string, size int64) (io.ReadCloser, error) {
	f, has, err := l.file(blobsDir + "/" + strings.TrimPrefix(digest, "sha256:"))
	if err != nil {
		return nil, err
	}
	if has != size {
		return nil, errors.Join(fault.New(fault.LayerDigest, "the layout has %d bytes of it, its manifest says %d", has, size), f.Close())
	}
	return f, nil
}

func (l *layout) close() error { return l.root.Close() }

// read reads a small file whole.
func (l *layout) read(name string, limit int64) ([]byte, error) {
	f, size, err := l.file(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fault.New(fault.ManifestTooLarge, "its %s has %d bytes, at most %d are read", path.Base(name), size, limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// file opens a regular file whose directories are directories. name is ours:
// of the image it holds a digest at most.
func (l *layout) file(name string) (*os.File, int64, error) {
	for at, rest := "", name; ; {
		dir, after, more := strings.Cut(rest, "/")
		if !more {
			break
		}
		at, rest = path.Join(at, dir), after
		info, err := l.root.Lstat(at)
		if err != nil {
			return nil, 0, lacks(name, err)
		}
		if !info.IsDir() {
			return nil, 0, fault.New(fault.ImageInvalid, "its %s is a %s, not a directory", at, info.Mode().Type())
		}
	}
	before, err := l.root.Lstat(name)
	if err != nil {
		return nil, 0, lacks(name, err)
	}
	if !before.Mode().IsRegular() {
		return nil, 0, fault.New(fault.ImageInvalid, "its %s is a %s, not a regular file", name, before.Mode().Type())
	}
	// A pipe that took the file's place would keep the opening waiting.
	f, err := l.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, lacks(name, err)
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(before, info) {
		err = fault.New(fault.ImageInvalid, "its %s was changed while it was opened", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func lacks(name string, err error) error {
	return fault.Wrap(fault.ImageInvalid, err, "the layout's %s", name)
}
