package source

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxNested    = 2  // indexes within an index
	maxDocuments = 16 // that are fetched to find one platform
	maxNamed     = 20 // platforms or tags in a message
)

// chooser follows indexes to the manifest of a platform.
type chooser struct {
	from   origin
	limits Limits
	want   platform
	left   int
}

func choose(ctx context.Context, from origin, l Limits, want platform, d document) (manifest, error) {
	c := &chooser{from, l, want, maxDocuments}
	m, err := c.in(ctx, d, 0)
	if err != nil {
		return manifest{}, err
	}
	return *m, nil
}

func (c *chooser) in(ctx context.Context, d document, depth int) (*manifest, error) {
	m, ix, err := readDocument(d, c.limits)
	if err != nil || m != nil {
		return m, err
	}
	if depth > maxNested {
		return nil, fault.New(fault.ImageInvalid, "its indexes are nested deeper than %d", maxNested)
	}
	best, indexes, unnamed, others := ix.sort(c.want)
	if best != nil {
		return c.follow(ctx, *best, depth)
	}
	for _, d := range indexes {
		m, err := c.follow(ctx, d, depth)
		if !errors.Is(err, fault.ImagePlatform) {
			return m, err
		}
	}
	// A manifest without a platform may still be the right one; its config
	// tells. Of several, none can be preferred.
	if len(unnamed) == 1 {
		return c.follow(ctx, unnamed[0], depth)
	}
	if len(others) == 0 {
		return nil, fault.New(fault.ImagePlatform, "its index names no image for %s", c.want)
	}
	return nil, fault.New(fault.ImagePlatform, "it has no variant for %s; those it has are for %s", c.want, listed(others))
}

// follow reads what an index names.
func (c *chooser) follow(ctx context.Context, d descriptor, depth int) (*manifest, error) {
	if c.left--; c.left <= 0 {
		return nil, fault.New(fault.ImageInvalid, "its indexes lead through more than %d documents", maxDocuments)
	}
	if d.size > c.limits.Manifest {
		return nil, fault.New(fault.ManifestTooLarge, "manifest %s has %d bytes, at most %d are read", d.digest, d.size, c.limits.Manifest)
	}
	got, err := c.from.manifest(ctx, d.digest)
	if err != nil {
		return nil, err
	}
	if int64(len(got.bytes)) != d.size {
		return nil, fault.New(fault.ImageInvalid, "manifest %s has %d bytes, its index says %d", d.digest, len(got.bytes), d.size)
	}
	// The index has promised what it is, as much as a server does.
	switch {
	case got.mediaType == "":
		got.mediaType = d.mediaType
	case got.mediaType != d.mediaType:
		return nil, fault.New(fault.ManifestAmbiguous, "manifest %s was served as %.200q, its index says %.200q", d.digest, got.mediaType, d.mediaType)
	}
	return c.in(ctx, got, depth+1)
}

// sort tells which entry fits best, which are indexes that may hold one, which
// manifests say no platform, and which platforms there are else.
func (ix *index) sort(want platform) (best *descriptor, indexes, unnamed []descriptor, others []string) {
	top := 0
	for _, d := range ix.entries {
		switch {
		case d.isAttachment(), !isManifest(d.mediaType) && !isIndex(d.mediaType):
		case d.platform == nil && isIndex(d.mediaType):
			indexes = append(indexes, d)
		case d.platform == nil:
			unnamed = append(unnamed, d)
		default:
			n := fit(want, *d.platform)
			if n > top {
				best, top = &d, n
			}
			if n == 0 {
				others = append(others, d.platform.String())
			}
		}
	}
	return best, indexes, unnamed, others
}

// isAttachment: signatures and attestations lie beside images. An image's own
// artifact type, where a tool writes one, is that of its config.
func (d descriptor) isAttachment() bool {
	return d.artifactType != "" && !isConfig(d.artifactType) || d.annotations["vnd.docker.reference.type"] != "" ||
		d.platform != nil && (d.platform.os == "unknown" || d.platform.arch == "unknown")
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	more := ""
	if len(names) > maxNamed {
		names, more = names[:maxNamed], ", and more"
	}
	var short []string
	for _, n := range names {
		short = append(short, quoted(n))
	}
	return strings.Join(short, ", ") + more
}

// quoted keeps a name short and harmless in a message, and readable if it is
// both.
func quoted(s string) string {
	s = s[:min(len(s), 100)]
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return strings.ToValidUTF8(strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '?'
			}
			return r
		}, s), "?")
	}
	return s
}

// whole reads a small thing to its end and verifies it.
func whole(ctx context.Context, from origin, d descriptor, limit int64) ([]byte, error) {
	if d.size > limit {
		return nil, fault.New(fault.ManifestTooLarge, "its config is %d bytes, at most %d are read", d.size, limit)
	}
	r, err := from.blob(ctx, d.digest, d.size)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(verify(r, d.digest, d.size))
	return b, errors.Join(err, r.Close())
}
