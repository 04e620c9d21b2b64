// Package rootfs turns a container image into the ext4 image that sandboxes
// start from.
//
// Resolve reads manifest and configuration only; WriteTo makes the bytes. The
// guest is put in as a last layer. It must never leave anything behind but the
// file it was asked for, nor follow an image's entry out of the tree.
package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/template"
)

// Format names the layout of the bytes: another writer makes other bytes of
// equal input, and must have another name.
const Format = "ext4-e2fsprogs-2"

// GuestPath is where the guest is put, below the root.
const GuestPath = ".paddock/guest"

const (
	maxConfig = 8 << 20 // of an image's configuration, which is read whole
	maxLayers = 512
	maxNested = 2 // indexes within indexes
)

// Auth is credentials of a registry. Empty: those of the docker configuration,
// else anonymous.
type Auth struct{ Username, Password string }

// Event is how far a build is. The counts are of layers as they travel.
type Event struct {
	Phase                   template.Phase
	TotalBytes, DoneBytes   int64
	TotalLayers, DoneLayers int
}

// Limits bound what an image may hold. A zero field takes its default.
type Limits struct {
	Entries int64 // of all layers; 2 million
	Bytes   int64 // of all files of all layers; 128 GiB
}

// Request is an image and what to make of it.
type Request struct {
	Reference string
	Auth      Auth
	// InsecureRegistries are the registries that may be reached by plain HTTP,
	// as host:port, or host:* for every port of a host.
	InsecureRegistries []string
	Platform           string // linux/amd64; empty: that of this program
	GuestPath          string // file of the guest
	WorkDir            string // scratch of one process: Sweep empties it
	Limits             Limits
	// Progress is told of each phase when it begins, and often while pulling. It
	// is called by one goroutine at a time and must return soon. It may be nil.
	Progress func(Event)
	// Free returns the bytes free in a directory; nil asks the system.
	Free func(dir string) (int64, error)
}

// Image is an image that was found. Use it once, from one goroutine.
type Image struct {
	Reference       string // as asked
	Digest          string // of the platform's manifest
	Config          template.ImageConfig
	CompressedBytes int64 // of all layers as they travel
	Layers          int

	req    Request
	puller *remote.Puller
	repo   name.Repository
	layers []layer
	guest  string // sha256 of the guest
	size   int64  // of the guest
}

// layer is one layer as manifest and configuration name it.
type layer struct {
	digest v1.Hash // of the bytes that travel
	size   int64
	diffID v1.Hash // of the archive within
}

// Resolve finds the image and reads what it says of itself. Refusals:
// fault.ImageRef, ImageNotFound, ImageDenied, ImagePlatform, ImageInvalid,
// ImageHostile, RegistryDown; ToolMissing when there is no guest.
func Resolve(ctx context.Context, r Request) (*Image, error) {
	platform, err := platformOf(r.Platform)
	if err != nil {
		return nil, err
	}
	ref, err := parse(r)
	if err != nil {
		return nil, err
	}
	guest, size, err := sumFile(r.GuestPath)
	if err != nil {
		return nil, fault.Wrap(fault.ToolMissing, err, "the guest of templatecenter.guest_binary")
	}
	puller, err := newPuller(r)
	if err != nil {
		return nil, fault.Wrap(fault.ImageRef, err, "image %q", r.Reference)
	}
	im := &Image{Reference: r.Reference, req: r, puller: puller, repo: ref.Context(), guest: guest, size: size}
	d, err := im.find(ctx, ref, platform, maxNested)
	if err != nil {
		return nil, err
	}
	return im, im.read(d, platform)
}

func platformOf(s string) (v1.Platform, error) {
	if s == "" {
		return v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	p, err := v1.ParsePlatform(s)
	if err != nil || p.OS == "" || p.Architecture == "" {
		return v1.Platform{}, fault.New(fault.InvalidInput, "platform %q: write it as linux/amd64", s)
	}
	return *p, nil
}

// find follows indexes to the manifest of the platform.
func (im *Image) find(ctx context.Context, ref name.Reference, p v1.Platform, depth int) (*remote.Descriptor, error) {
	d, err := im.puller.Get(ctx, ref)
	if err != nil {
		return nil, registryFault(err, im.Reference)
	}
	switch {
	case d.MediaType.IsImage():
		return d, nil
	case !d.MediaType.IsIndex():
		return nil, fault.New(fault.ImageInvalid, "image %s: its manifest is a %q, which is none of an image", im.Reference, d.MediaType)
	case depth == 0:
		return nil, fault.New(fault.ImageInvalid, "image %s: its indexes are nested deeper than %d", im.Reference, maxNested)
	}
	index, err := d.ImageIndex()
	if err != nil {
		return nil, fault.Wrap(fault.ImageInvalid, err, "image %s", im.Reference)
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, fault.Wrap(fault.ImageInvalid, err, "image %s: its index", im.Reference)
	}
	var others []string
	for _, child := range m.Manifests {
		switch c := child.Platform; {
		case c == nil && child.MediaType.IsIndex():
			return im.find(ctx, im.repo.Digest(child.Digest.String()), p, depth-1)
		case c == nil || c.OS == "unknown": // attestations
		case c.Satisfies(p):
			return im.find(ctx, im.repo.Digest(child.Digest.String()), p, depth-1)
		default:
			others = append(others, c.String())
		}
	}
	return nil, fault.New(fault.ImagePlatform, "image %s has no variant for %s, only for %s", im.Reference, p.String(), strings.Join(others, ", "))
}

// read takes what manifest and configuration say.
func (im *Image) read(d *remote.Descriptor, p v1.Platform) error {
	invalid := func(format string, args ...any) error {
		return fault.New(fault.ImageInvalid, "image %s: %s", im.Reference, fmt.Sprintf(format, args...))
	}
	image, err := d.Image()
	if err != nil {
		return fault.Wrap(fault.ImageInvalid, err, "image %s", im.Reference)
	}
	manifest, err := image.Manifest()
	if err != nil {
		return fault.Wrap(fault.ImageInvalid, err, "image %s: its manifest", im.Reference)
	}
	switch c := manifest.Config; {
	case !c.MediaType.IsConfig():
		return invalid("its config is a %q, so it holds something else than files", c.MediaType)
	case c.Size > maxConfig:
		return invalid("its config is %d bytes, at most %d are read", c.Size, maxConfig)
	case len(manifest.Layers) > maxLayers:
		return invalid("it has %d layers, at most %d are taken", len(manifest.Layers), maxLayers)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return registryFault(err, im.Reference)
	}
	// A single manifest is served whatever its platform is. One that names none
	// was made by a tool that did not care.
	if config.OS != "" && config.OS != p.OS || config.Architecture != "" && config.Architecture != p.Architecture {
		return fault.New(fault.ImagePlatform, "image %s is for %s/%s, not for %s", im.Reference, config.OS, config.Architecture, p.String())
	}
	if len(manifest.Layers) != len(config.RootFS.DiffIDs) {
		return invalid("its manifest has %d layers, its config %d", len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	if err := im.readLayers(manifest, config); err != nil {
		return err
	}
	im.Digest, im.Layers = d.Digest.String(), len(im.layers)
	c := config.Config
	im.Config = template.ImageConfig{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User}
	return nil
}

func (im *Image) readLayers(manifest *v1.Manifest, config *v1.ConfigFile) error {
	for i, l := range manifest.Layers {
		diffID := config.RootFS.DiffIDs[i]
		switch {
		case len(l.URLs) > 0 || l.MediaType == types.DockerForeignLayer:
			return fault.New(fault.ImageHostile, "image %s: layer %s must be fetched from elsewhere", im.Reference, l.Digest)
		case l.Size < 0 || l.Digest.Algorithm != "sha256" || diffID.Algorithm != "sha256":
			return fault.New(fault.ImageInvalid, "image %s: layer %d has no sha256 or no size", im.Reference, i+1)
		}
		im.layers = append(im.layers, layer{l.Digest, l.Size, diffID})
		im.CompressedBytes += l.Size
	}
	return nil
}

// ContentKey names the bytes that WriteTo will make.
func (im *Image) ContentKey() string {
	return template.ContentKey(template.ContentInputs{Format: Format, ImageDigest: im.Digest, GuestSHA256: im.guest})
}

// GuestSHA256 returns the digest of the guest that is put in.
func (im *Image) GuestSHA256() string { return im.guest }

func sumFile(path string) (sum string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}
