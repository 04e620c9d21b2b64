// Package rootfs turns a container image into the ext4 image that sandboxes
// start from.
//
// The image is written straight from the streams of the layers: several are
// decoded at once, laid over each other in a tree in memory, and their contents
// go where they stay. Nothing is unpacked; no root, mount or program is needed.
// Equal input gives equal bytes, whatever the machine, the number of processors,
// the cache and the kind of source. It must never leave anything behind but the
// file it was asked for, read a path that a layer names, nor keep file contents
// in memory.
package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
	"github.com/paddock-dev/paddock/internal/template"
)

// Format names the layout of the bytes: another writer makes other bytes of
// equal input, and must have another name.
const Format = "ext4-stream-1"

// GuestPath is where the guest is put, below the root.
const GuestPath = ".paddock/guest"

// Auth is credentials of a registry. Empty: those of the docker configuration,
// else anonymous.
type Auth struct{ Username, Password string }

// Request is an image and what to make of it.
type Request struct {
	// Reference is of a registry; or oci:DIR[:TAG] or docker-archive:FILE[:TAG]
	// of this machine, see package source.
	Reference string
	// Local allows the latter two. Who takes references from others leaves it
	// false.
	Local bool
	Auth  Auth
	// InsecureRegistries are the registries that may be reached by plain HTTP,
	// as host:port, or host:* for every port of a host.
	InsecureRegistries []string
	Platform           string // linux/amd64; empty: that of this program
	GuestPath          string // file of the guest; empty: none is put in
	// EgressCA is a file of certificates, in PEM, that are put into the image's
	// trust stores. Empty: none are.
	EgressCA string
	WorkDir  string // scratch of one process: Sweep empties it
	// Cache keeps the layers of registries. One is enough for a process; nil:
	// layers are not kept.
	Cache  *blobcache.Cache
	Limits Limits
	Policy Policy
	// Progress is told of each phase when it begins, and often while layers
	// arrive. It is called by one goroutine at a time and must return soon. It
	// may be nil.
	Progress func(Event)
	// Free returns the bytes free in a directory; nil asks the system.
	Free func(dir string) (int64, error)
}

// Image is an image that was found. It is for one goroutine, and must be
// closed.
type Image struct {
	Reference       string // as asked
	Digest          string // of the platform's manifest
	Config          template.ImageConfig
	CompressedBytes int64 // of all layers as they travel
	Layers          int

	req       Request
	src       *source.Image
	told      *progress
	guestSum  string
	guestSize int64
	ca        []byte
}

// Resolve finds the image and reads what it says of itself. Refusals are those
// of source.Resolve; fault.ToolMissing when there is no guest;
// fault.InvalidInput for a policy or a certificate that is none.
func Resolve(ctx context.Context, r Request) (*Image, error) {
	im := &Image{Reference: r.Reference, req: r}
	if err := r.Policy.Check(); err != nil {
		return nil, err
	}
	var err error
	if r.GuestPath != "" {
		if im.guestSum, im.guestSize, err = sumFile(r.GuestPath); err != nil {
			return nil, fault.Wrap(fault.ToolMissing, err, "the guest of templatecenter.guest_binary")
		}
	}
	if r.EgressCA != "" {
		if im.ca, err = readCA(r.EgressCA); err != nil {
			return nil, err
		}
	}
	im.told = &progress{tell: r.Progress}
	im.src, err = source.Resolve(ctx, source.Request{
		Reference: r.Reference, Local: r.Local, Auth: source.Auth(r.Auth), InsecureRegistries: r.InsecureRegistries,
		Platform: r.Platform, Limits: r.Limits.Source, Cache: r.Cache, Progress: im.told.arrived,
	})
	if err != nil {
		return nil, err
	}
	im.Digest, im.CompressedBytes, im.Layers = im.src.Digest, im.src.CompressedBytes, len(im.src.Layers)
	c := im.src.Config
	im.Config = template.ImageConfig{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User}
	im.told.total(im.CompressedBytes, im.Layers)
	return im, nil
}

// Close lets go what the image holds: connections, and layers of the cache.
func (im *Image) Close() error { return im.src.Close() }

// ContentKey names the bytes that WriteTo will make.
func (im *Image) ContentKey() string {
	holds := sha256.Sum256([]byte(strings.Join(append([]string{im.src.ConfigDigest}, im.src.DiffIDs()...), "\n")))
	return template.ContentKey(template.ContentInputs{
		Format: Format, ImageDigest: hex.EncodeToString(holds[:]), GuestSHA256: im.guestSum, CASHA256: im.CASHA256(), Policy: im.req.Policy.String(),
	})
}

// CASHA256 returns the digest of the certificates that are put in; empty: none
// are.
func (im *Image) CASHA256() string {
	if len(im.ca) == 0 {
		return ""
	}
	sum := sha256.Sum256(im.ca)
	return hex.EncodeToString(sum[:])
}

// GuestSHA256 returns the digest of the guest that is put in.
func (im *Image) GuestSHA256() string { return im.guestSum }

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
