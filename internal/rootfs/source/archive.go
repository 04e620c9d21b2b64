package source

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxMembers = 20_000 // of an archive
	maxKey     = 512    // bytes of a member's name
	maxLinks   = 8      // from one member to another
	maxImages  = 1024   // in an archive
	manifests  = "manifest.json"
)

// archive is a file that docker save wrote. Its members are read where they
// lie in the file. Names are looked up among the members and nowhere else.
type archive struct {
	file    *os.File
	limits  Limits
	members map[string]member
	blobs   map[string]member // of the image that was chosen, by digest
}

// member is where a file lies in the archive.
type member struct {
	offset, size int64
	link         string // of a link: the member that it names
	twice        bool
	kind         string // of what is no file and no link
}

func openArchive(ctx context.Context, p place, r Request, want platform) (*Image, error) {
	f, err := os.OpenFile(p.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fault.Wrap(missing(err), err, "archive")
	}
	a := &archive{file: f, limits: r.Limits, members: map[string]member{}, blobs: map[string]member{}}
	im, err := a.image(ctx, p, want)
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	return im, nil
}

func (a *archive) image(ctx context.Context, p place, want platform) (*Image, error) {
	if p.digest != "" {
		return nil, fault.New(fault.ImageRef, "images of a docker archive have tags, no digests")
	}
	if err := a.scan(ctx); err != nil {
		return nil, err
	}
	list, err := a.list()
	if err != nil {
		return nil, err
	}
	s, err := pickSaved(list, p.tag)
	if err != nil {
		return nil, err
	}
	return a.take(ctx, s, want)
}

// scan notes where the members lie. It reads headers only.
func (a *archive) scan(ctx context.Context) error {
	info, err := a.file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fault.New(fault.ImageRef, "the archive is a %s, not a regular file", info.Mode().Type())
	}
	all := io.NewSectionReader(a.file, 0, info.Size())
	if err := refuseCompressed(all); err != nil {
		return err
	}
	tr := tar.NewReader(all)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fault.Wrap(fault.ImageInvalid, err, "the file is no tar archive, or a damaged one")
		}
		if n >= maxMembers {
			return fault.New(fault.ImageInvalid, "the archive has more than %d members", maxMembers)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at, err := all.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		a.note(h, at)
	}
}

// refuseCompressed: what is compressed can only be read from its beginning.
func refuseCompressed(r io.ReaderAt) error {
	b := make([]byte, 10)
	if _, err := r.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, name, _ := magicOf(b); name != "plain" {
		return &fault.Error{
			Code: fault.ImageInvalid, Message: "the archive is compressed by " + name,
			Remedy: "decompress the file first; its layers may stay compressed",
		}
	}
	return nil
}

func (a *archive) note(h *tar.Header, at int64) {
	key := clean(h.Name)
	if len(key) > maxKey || key == "" {
		return // nothing that is looked for has such a name
	}
	m := member{offset: at, size: h.Size}
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink:
		m.link = clean(path.Join(path.Dir(key), h.Linkname))
	case tar.TypeLink:
		m.link = clean(h.Linkname)
	default:
		m.kind = fmt.Sprintf("entry of type %q", h.Typeflag)
	}
	if len(m.link) > maxKey {
		m.link, m.kind = "", "over-long link" // the members are kept in memory
	}
	for r := range h.PAXRecords {
		if strings.HasPrefix(r, "GNU.sparse.") {
			m.kind = "sparse file"
		}
	}
	_, m.twice = a.members[key]
	if h.Typeflag == tar.TypeDir && m.twice {
		return
	}
	a.members[key] = m
}

// clean makes equal what names the same member. A name that climbs out is one
// that no member has.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// find returns the file that is called name, through links within the archive.
func (a *archive) find(name string) (member, error) {
	key := clean(name)
	for range maxLinks {
		m, ok := a.members[key]
		switch {
		case !ok:
			return member{}, fault.New(fault.ImageInvalid, "the archive lacks %.200q", name)
		case m.twice:
			return member{}, fault.New(fault.ManifestAmbiguous, "the archive has %.200q twice", key)
		case m.kind != "":
			return member{}, fault.New(fault.ImageInvalid, "the archive's %.200q is an %s", key, m.kind)
		case m.link == "":
			return m, nil
		}
		key = m.link
	}
	return member{}, fault.New(fault.ImageInvalid, "the archive's %.200q leads through more than %d links", name, maxLinks)
}

func (a *archive) read(name string, limit int64) ([]byte, error) {
	m, err := a.find(name)
	if err != nil {
		return nil, err
	}
	if m.size > limit {
		return nil, fault.New(fault.ManifestTooLarge, "the archive's %.200q has %d bytes, at most %d are read", name, m.size, limit)
	}
	b := make([]byte, m.size)
	if _, err := a.file.ReadAt(b, m.offset); err != nil {
		return nil, fault.Wrap(fault.ImageInvalid, err, "the archive's %.200q", name)
	}
	return b, nil
}

// saved is one image of the archive, as its manifest says.
type saved struct {
	config string
	tags   []string
	layers []string
}

func (a *archive) list() ([]saved, error) {
	if _, ok := a.members[manifests]; !ok {
		remedy := "make it with docker save of docker 1.10 or later"
		if _, ok := a.members["oci-layout"]; ok {
			remedy = "it is an OCI layout: unpack it, and name its directory as oci:DIR"
		}
		return nil, &fault.Error{Code: fault.ImageInvalid, Message: "the archive has no " + manifests, Remedy: remedy}
	}
	b, err := a.read(manifests, a.limits.Manifest)
	if err != nil {
		return nil, err
	}
	return readSaved(b, a.limits)
}

func readSaved(b []byte, l Limits) ([]saved, error) {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, fault.Wrap(fault.ImageInvalid, err, "the archive's %s is no JSON list", manifests)
	}
	if len(raw) > maxImages {
		return nil, fault.New(fault.ManifestTooLarge, "the archive's %s lists %d images, at most %d are read", manifests, len(raw), maxImages)
	}
	var list []saved
	for _, r := range raw {
		m, err := object(manifests, r, "Config", "RepoTags", "Layers")
		if err != nil {
			return nil, err
		}
		var s saved
		if s.config, err = value[string](manifests, m, "Config"); err != nil {
			return nil, err
		}
		if s.tags, err = value[[]string](manifests, m, "RepoTags"); err != nil {
			return nil, err
		}
		if s.layers, err = value[[]string](manifests, m, "Layers"); err != nil {
			return nil, err
		}
		if len(s.layers) > l.Layers {
			return nil, fault.New(fault.ImageInvalid, "it has %d layers, at most %d are taken", len(s.layers), l.Layers)
		}
		list = append(list, s)
	}
	return list, nil
}

// pickSaved tells which image is meant. Without a tag there must be one only.
func pickSaved(list []saved, tag string) (saved, error) {
	var found []saved
	var tags []string
	for _, s := range list {
		if tag == "" || s.tagged(tag) {
			found = append(found, s)
		}
		tags = append(tags, s.tags...)
	}
	switch {
	case len(list) == 0:
		return saved{}, fault.New(fault.ImageInvalid, "the archive holds no image")
	case len(found) == 0:
		return saved{}, fault.New(fault.ImageNotFound, "the archive has no image %.200q; it has %s", tag, listed(tags))
	case len(found) > 1 && tag == "":
		return saved{}, fault.New(fault.ImageRef, "it holds %d images: add one of :%s", len(found), listed(tags))
	case len(found) > 1:
		return saved{}, fault.New(fault.ManifestAmbiguous, "the archive has %d images that are called %.200q", len(found), tag)
	}
	return found[0], nil
}

// tagged compares as references, so that alpine:3 is docker.io/library/alpine:3.
func (s saved) tagged(tag string) bool {
	want, err := name.NewTag(tag)
	for _, t := range s.tags {
		if t == tag {
			return true
		}
		if have, bad := name.NewTag(t); err == nil && bad == nil && have.Name() == want.Name() {
			return true
		}
	}
	return false
}

var namedByDigest = regexp.MustCompile(`^(?:blobs/sha256/|sha256:)?([0-9a-f]{64})(?:\.json)?$`)

func (a *archive) take(ctx context.Context, s saved, want platform) (*Image, error) {
	raw, err := a.read(s.config, a.limits.Config)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	digest := hex.EncodeToString(sum[:])
	if n := namedByDigest.FindStringSubmatch(clean(s.config)); n != nil && n[1] != digest {
		return nil, fault.New(fault.ImageInvalid, "the archive's config %.200q has sha256:%s", s.config, digest)
	}
	c, err := readConfig(raw, a.limits)
	if err != nil {
		return nil, err
	}
	if err := c.fits(want); err != nil {
		return nil, err
	}
	if len(s.layers) != len(c.diffIDs) {
		return nil, fault.New(fault.LayerDigest, "its manifest has %d layers, its config %d", len(s.layers), len(c.diffIDs))
	}
	var list []descriptor
	for i, name := range s.layers {
		d, err := a.layer(ctx, name, c.diffIDs[i])
		if err != nil {
			return nil, layerNaming(i, name, err)
		}
		list = append(list, d)
	}
	im := &Image{ConfigDigest: "sha256:" + digest, Platform: c.platform.String(), Config: c.Config, from: a}
	im.Digest = archiveDigest(im.ConfigDigest, c.diffIDs)
	return im, im.setLayers(list, c.diffIDs, a.limits)
}

// archiveDigest names an image that has no manifest.
func archiveDigest(config string, diffIDs []string) string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{"docker-archive", config}, diffIDs...), "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// layer describes a layer as a manifest would. The archive does not say how it
// is compressed, so its bytes do.
func (a *archive) layer(ctx context.Context, name, diffID string) (descriptor, error) {
	m, err := a.find(name)
	if err != nil {
		return descriptor{}, err
	}
	at := io.NewSectionReader(a.file, m.offset, m.size)
	magic := make([]byte, 10)
	if n, err := at.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		return descriptor{}, err
	} else {
		magic = magic[:n]
	}
	c, compressed, known := magicOf(magic)
	if !known {
		return descriptor{}, fault.New(fault.LayerMedia, "it is compressed by %s", compressed)
	}
	d := descriptor{size: m.size, digest: diffID, mediaType: "application/vnd.oci.image.layer.v1.tar"}
	if c != None {
		d.mediaType += "+" + c.String()
		if d.digest, err = digestOf(ctx, clean(name), at); err != nil {
			return d, err
		}
	}
	a.blobs[d.digest] = m
	return d, nil
}

// digestOf returns what a compressed member is called by, if it is called by
// its digest, which whoever reads it verifies. Else it is read here.
func digestOf(ctx context.Context, name string, r io.Reader) (string, error) {
	if sum, ok := strings.CutPrefix(name, blobsDir+"/"); ok && digestForm.MatchString("sha256:"+sum) {
		return "sha256:" + sum, nil
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(h, onlyReader{&delivery{Reader: r, ctx: ctx, tell: func(int64, bool) {}, name: func(err error) error { return err }}}, make([]byte, readAhead)); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func (a *archive) manifest(context.Context, string) (document, error) {
	return document{}, fs.ErrNotExist // it has none
}

func (a *archive) blob(_ context.Context, digest string, size int64) (io.ReadCloser, error) {
	m, ok := a.blobs[digest]
	if !ok || m.size != size {
		return nil, fault.New(fault.LayerDigest, "the archive has %d bytes of it, its manifest says %d", m.size, size)
	}
	return io.NopCloser(io.NewSectionReader(a.file, m.offset, m.size)), nil
}

func (a *archive) close() error { return a.file.Close() }
