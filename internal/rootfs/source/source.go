// Package source finds an image and gives out its layers: from a registry, an
// OCI layout directory, or the archive that docker save writes.
//
// Everything that it reads was written by strangers. It refuses what can be
// read in two ways, what is larger than its limits, and bytes that are not
// those of their digest. It must never send credentials to another host than
// the registry's, reach an address that the reference does not name, nor use a
// path of an image as a path of this machine.
package source

import (
	"context"
	"io"
	"slices"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
)

// Auth is credentials of a registry. Empty: those of the docker configuration,
// else anonymous.
type Auth struct{ Username, Password string }

// Request is an image and how it may be reached.
type Request struct {
	// Reference is of a registry (alpine:3, reg.example:5000/app@sha256:...), or
	//
	//	oci:DIR[:TAG or @sha256:...]
	//	docker-archive:FILE[:REPOSITORY:TAG]
	//
	// of this machine. DIR and FILE hold no colon.
	Reference string
	// Local allows the latter two. Who takes references from others leaves it
	// false, as they would read this machine's files.
	Local bool
	Auth  Auth
	// InsecureRegistries are the registries that may be reached by plain HTTP,
	// as host:port, or host:* for every port of a host. Redirects and token
	// servers at private addresses must be listed too, unless they are on the
	// registry's own host.
	InsecureRegistries []string
	Platform           string // linux/arm/v7; empty: that of this program
	Limits             Limits
	// Cache keeps the layers of registries. Nil: they are streamed. Layers of
	// this machine are read where they lie.
	Cache *blobcache.Cache
	// Progress is told how many bytes and layers have arrived, often. Neither
	// shrinks. It is called by one goroutine at a time, must return soon, and
	// may be nil.
	Progress func(bytes int64, layers int)
}

// Limits bound what an image may ask for. A zero field takes its default.
type Limits struct {
	Layers      int   // 512
	Manifest    int64 // bytes of a manifest or an index; 4 MiB
	Config      int64 // bytes of the config; 8 MiB
	Compressed  int64 // bytes of all layers as they travel; 64 GiB
	ConfigItems int   // of each list in the config; 4096
	ConfigBytes int64 // of each list in the config; 1 MiB
	Window      int64 // bytes that a zstd layer may have kept; 128 MiB
	// Ratio is how many times its size a layer may grow, once it is more than
	// Growth bytes; 200 and 1 GiB. Images of programs grow 2 to 10 times. What
	// grows 1000 times is zeros, and honest images have them: the lastlog of one
	// user with the id 1,000,000 is 290 MB, so that a small growth is not asked.
	Ratio  int64
	Growth int64
}

// Filled returns l with its defaults.
func (l Limits) Filled() Limits {
	def(&l.Layers, 512)
	def(&l.Manifest, 4<<20)
	def(&l.Config, 8<<20)
	def(&l.Compressed, 64<<30)
	def(&l.ConfigItems, 4096)
	def(&l.ConfigBytes, 1<<20)
	def(&l.Window, 128<<20)
	def(&l.Ratio, 200)
	def(&l.Growth, 1<<30)
	return l
}

func def[T int | int64](field *T, to T) {
	if *field <= 0 {
		*field = to
	}
}

// Config is how an image wants to run. Labels are not kept: nothing here may
// act on them.
type Config struct {
	Entrypoint, Cmd, Env []string
	WorkingDir, User     string
	ExposedPorts         []string // 80/tcp, sorted
}

// Layer is one layer as manifest and config name it, base first.
type Layer struct {
	Digest string // of the bytes as they travel
	// DiffID is the digest of the archive within. Open does not look at it; who
	// decompresses verifies it. It equals Digest when nothing is compressed.
	DiffID      string
	Size        int64 // of the bytes as they travel
	Compression Compression
}

// Image is an image that was found. It is safe for concurrent use. It holds
// files, connections and cached layers until Close.
type Image struct {
	Reference string // as asked
	// Digest names the image: that of the platform's manifest. A docker archive
	// has no manifest; its digest is made of the config's and the layers', so it
	// is the same for every archive of that image, but not that of a registry.
	Digest string
	// ConfigDigest and the layers' DiffIDs name what an image holds, whatever its
	// source and compression are.
	ConfigDigest    string
	Platform        string // as the config says, linux/amd64
	Config          Config
	Layers          []Layer
	CompressedBytes int64 // of all layers

	from  origin
	cache *blobcache.Cache
	told  *progress
	held  held
}

// origin is where an image lies.
type origin interface {
	// manifest returns the manifest or index with that digest, verified.
	manifest(ctx context.Context, digest string) (document, error)
	// blob returns the bytes that should have that digest and size. Nobody
	// verified them.
	blob(ctx context.Context, digest string, size int64) (io.ReadCloser, error)
	close() error
}

// Resolve finds the image and reads what it says of itself. Refusals:
// fault.ImageRef, ImageNotFound, ImageDenied, ImagePlatform, ImageInvalid,
// ManifestAmbiguous, ManifestTooLarge, ImageConfigBad, LayerForeign,
// LayerMedia, LayerDigest, TooManyBytes, RegistryDown, RegistryRedirect.
func Resolve(ctx context.Context, r Request) (*Image, error) {
	want, err := platformOf(r.Platform)
	if err != nil {
		return nil, err
	}
	r.Limits = r.Limits.Filled()
	im, err := open(ctx, r, want)
	if err != nil {
		return nil, naming(r.Reference, err)
	}
	im.Reference, im.told = r.Reference, newProgress(r.Progress, len(im.Layers))
	return im, nil
}

// open finds the image by the kind of its reference.
func open(ctx context.Context, r Request, want platform) (*Image, error) {
	kind, rest, err := kindOf(r)
	if err != nil {
		return nil, err
	}
	switch kind {
	case ociLayout:
		return openLayout(ctx, rest, r, want)
	case dockerArchive:
		return openArchive(ctx, rest, r, want)
	}
	return openRegistry(ctx, r, want)
}

// take reads manifest and config of the platform and fills the image.
func take(ctx context.Context, from origin, l Limits, m manifest, want platform) (*Image, error) {
	raw, err := whole(ctx, from, m.config, l.Config)
	if err != nil {
		return nil, err
	}
	c, err := readConfig(raw, l)
	if err != nil {
		return nil, err
	}
	if err := c.fits(want); err != nil {
		return nil, err
	}
	im := &Image{Digest: m.digest, ConfigDigest: m.config.digest, Platform: c.platform.String(), Config: c.Config, from: from}
	return im, im.setLayers(m.layers, c.diffIDs, l)
}

// setLayers joins what the manifest says of the layers to what the config says.
func (im *Image) setLayers(list []descriptor, diffIDs []string, l Limits) error {
	if len(list) != len(diffIDs) {
		return fault.New(fault.LayerDigest, "its manifest has %d layers, its config %d", len(list), len(diffIDs))
	}
	for i, d := range list {
		compression, err := compressionOf(d)
		if err != nil {
			return layerNaming(i, d.digest, err)
		}
		im.Layers = append(im.Layers, Layer{Digest: d.digest, DiffID: diffIDs[i], Size: d.size, Compression: compression})
		if d.size > l.Compressed-im.CompressedBytes {
			return fault.New(fault.TooManyBytes, "its layers are more than %d bytes as they travel", l.Compressed)
		}
		im.CompressedBytes += d.size
		if compression == None && d.digest != diffIDs[i] {
			return layerNaming(i, d.digest, fault.New(fault.LayerDigest, "it is not compressed, but the config names it %s", diffIDs[i]))
		}
	}
	return nil
}

// DiffIDs returns the digests of the archives within the layers, base first.
func (im *Image) DiffIDs() []string {
	var all []string
	for _, l := range im.Layers {
		all = append(all, l.DiffID)
	}
	return slices.Clip(all)
}
