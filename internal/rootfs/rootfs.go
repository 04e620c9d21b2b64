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
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/template"
)

// Format names the layout of the bytes: another writer makes other bytes of
// equal input, and must have another name.
const Format = "ext4-e2fsprogs-1"

// GuestPath is where the guest is put.
const GuestPath = ".paddock/guest"

// maxConfig bounds an image's configuration.
const maxConfig = 8 << 20

// Auth is credentials of a registry. Empty: those of the docker configuration,
// else anonymous.
type Auth struct{ Username, Password string }

// Event is how far a build is.
type Event struct {
	Phase template.Phase
	Pull  template.Pull
}

// Request is an image and what to make of it.
type Request struct {
	Reference          string
	Auth               Auth
	InsecureRegistries []string // host:port, or host:*, that may be reached by plain HTTP
	GuestPath          string   // file of the guest
	WorkDir            string   // scratch, on the filesystem where WriteTo's path is
	Progress           func(Event)
	// Free returns the bytes free in a directory; nil asks the system.
	Free func(dir string) (int64, error)
}

// Image is an image that was found.
type Image struct {
	Reference  string // as asked
	Digest     string // of the platform's manifest
	Config     template.ImageConfig
	Compressed int64 // bytes of all layers as they travel

	req    Request
	image  v1.Image
	layers []v1.Layer
	guest  string // sha256 of the guest
}

// Resolve finds the image and reads what it says of itself. Refusals are
// coded: ImageRef, ImageNotFound, ImageDenied, ImagePlatform, ImageInvalid,
// RegistryDown.
func Resolve(ctx context.Context, r Request) (*Image, error) {
	ref, err := parse(r)
	if err != nil {
		return nil, err
	}
	guest, err := sumFile(r.GuestPath)
	if err != nil {
		return nil, fault.Wrap(fault.ToolMissing, err, "templatecenter.guest_binary")
	}
	platform := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	image, err := remote.Image(ref, remote.WithContext(ctx), remote.WithPlatform(platform), auth(r.Auth), remote.WithTransport(dialer()), remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: 3}))
	if err != nil {
		return nil, registryFault(err, r.Reference, platform)
	}
	im := &Image{Reference: r.Reference, req: r, image: image, guest: guest}
	return im, im.read(platform)
}

func parse(r Request) (name.Reference, error) {
	text, plain := strings.TrimSpace(r.Reference), false
	for _, scheme := range []string{"docker://", "https://"} {
		text = strings.TrimPrefix(text, scheme)
	}
	if rest, ok := strings.CutPrefix(text, "http://"); ok {
		text, plain = rest, true
	}
	ref, err := name.ParseReference(text)
	if err != nil {
		return nil, fault.Wrap(fault.ImageRef, err, "image %q", r.Reference)
	}
	registry := ref.Context().RegistryStr()
	listed := insecure(registry, r.InsecureRegistries)
	if plain && !listed {
		return nil, fault.New(fault.ImageRef, "image %q: registry %s is not listed in templatecenter.insecure_registries", r.Reference, registry)
	}
	if listed {
		ref, err = name.ParseReference(text, name.Insecure)
	}
	return ref, err
}

func insecure(registry string, list []string) bool {
	host, _, err := net.SplitHostPort(registry)
	if err != nil {
		host = registry
	}
	for _, one := range list {
		if one == registry || one == host+":*" {
			return true
		}
	}
	return false
}

func auth(a Auth) remote.Option {
	if a.Username != "" || a.Password != "" {
		return remote.WithAuth(&authn.Basic{Username: a.Username, Password: a.Password})
	}
	return remote.WithAuthFromKeychain(authn.DefaultKeychain)
}

func dialer() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one in the standard library
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	t.ResponseHeaderTimeout = time.Minute
	return t
}

// registryFault tells what a registry refused from a registry that is away.
func registryFault(err error, reference string, p v1.Platform) error {
	var e *transport.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &e):
		switch e.StatusCode {
		case http.StatusNotFound:
			return fault.New(fault.ImageNotFound, "image %s", reference)
		case http.StatusUnauthorized, http.StatusForbidden:
			return fault.New(fault.ImageDenied, "image %s", reference)
		}
		return fault.Wrap(fault.RegistryDown, err, "image %s", reference)
	case strings.Contains(err.Error(), "no child with platform"):
		return fault.New(fault.ImagePlatform, "image %s has no variant for %s/%s", reference, p.OS, p.Architecture)
	}
	var network net.Error
	if errors.As(err, &network) {
		return fault.Wrap(fault.RegistryDown, err, "image %s", reference)
	}
	return fault.Wrap(fault.ImageInvalid, err, "image %s", reference)
}

func (im *Image) read(p v1.Platform) error {
	digest, err := im.image.Digest()
	if err != nil {
		return registryFault(err, im.Reference, p)
	}
	manifest, err := im.image.Manifest()
	if err != nil {
		return registryFault(err, im.Reference, p)
	}
	if manifest.Config.Size > maxConfig {
		return fault.New(fault.ImageInvalid, "image %s: its config is %d bytes, at most %d are read", im.Reference, manifest.Config.Size, maxConfig)
	}
	config, err := im.image.ConfigFile()
	if err != nil {
		return registryFault(err, im.Reference, p)
	}
	// A single manifest is served whatever its platform is.
	if config.Architecture != p.Architecture || config.OS != p.OS && config.OS != "" {
		return fault.New(fault.ImagePlatform, "image %s is for %s/%s, this system runs %s/%s", im.Reference, config.OS, config.Architecture, p.OS, p.Architecture)
	}
	if im.layers, err = im.image.Layers(); err != nil {
		return registryFault(err, im.Reference, p)
	}
	if len(im.layers) != len(config.RootFS.DiffIDs) {
		return fault.New(fault.ImageInvalid, "image %s has %d layers and %d diff ids", im.Reference, len(im.layers), len(config.RootFS.DiffIDs))
	}
	for _, l := range manifest.Layers {
		if !l.MediaType.IsDistributable() || len(l.URLs) > 0 {
			return fault.New(fault.ImageHostile, "image %s: layer %s must be fetched from elsewhere", im.Reference, l.Digest)
		}
		im.Compressed += l.Size
	}
	im.Digest = digest.String()
	c := config.Config
	im.Config = template.ImageConfig{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User}
	return nil
}

// ContentKey names the bytes that WriteTo will make.
func (im *Image) ContentKey() string {
	return template.ContentKey(template.ContentInputs{Format: Format, ImageDigest: im.Digest, GuestSHA256: im.guest})
}

// GuestSHA256 returns the digest of the guest that is put in.
func (im *Image) GuestSHA256() string { return im.guest }

func sumFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
