package source

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// kind is what a reference names.
type kind uint8

const (
	registryImage kind = iota
	ociLayout
	dockerArchive
)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// place is what a reference of this machine names: a path, and which image of
// those that lie there.
type place struct{ path, tag, digest string }

// kindOf tells what the reference names. For a registry the place is empty.
func kindOf(r Request) (kind, place, error) {
	text := strings.TrimSpace(r.Reference)
	k := registryImage
	if rest, ok := strings.CutPrefix(text, "oci:"); ok {
		k, text = ociLayout, rest
	} else if rest, ok := strings.CutPrefix(text, "docker-archive:"); ok {
		k, text = dockerArchive, rest
	}
	if k == registryImage {
		return k, place{}, nil
	}
	if !r.Local {
		return k, place{}, &fault.Error{
			Code: fault.ImageRef, Message: "images of this machine's files are not taken here",
			Remedy: "push the image to a registry, or build it with `paddock image build`; an image that is called oci is docker.io/library/oci",
		}
	}
	p, err := placeOf(text)
	return k, p, err
}

func placeOf(text string) (place, error) {
	var p place
	if at := strings.LastIndex(text, "@sha256:"); at >= 0 {
		text, p.digest = text[:at], text[at+1:]
		if !digestForm.MatchString(p.digest) {
			return place{}, fault.New(fault.ImageRef, "%.200q is no sha256 digest", p.digest)
		}
	}
	p.path, p.tag, _ = strings.Cut(text, ":")
	if p.path == "" {
		return place{}, fault.New(fault.ImageRef, "it names no file or directory")
	}
	return p, nil
}

// parse reads a reference of a registry. An http:// before it demands what the
// list allows; docker:// and https:// say nothing new.
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
		return nil, fault.Wrap(fault.ImageRef, err, "it cannot be read")
	}
	if d, ok := ref.(name.Digest); ok && !digestForm.MatchString(d.DigestStr()) {
		return nil, fault.New(fault.ImageRef, "%.200q is no sha256 digest", d.DigestStr())
	}
	registry := ref.Context().RegistryStr()
	listed := config.InsecureRegistry(r.InsecureRegistries, registry)
	switch {
	case plain && !listed:
		return nil, notListed(fault.ImageRef, registry)
	case listed:
		return name.ParseReference(text, name.Insecure)
	}
	return ref, nil
}

// notListed has two codes: who wrote http:// asked for what is not allowed; who
// did not met a registry that offers nothing else.
func notListed(code *fault.Code, registry string) error {
	return &fault.Error{
		Code: code, Message: "registry " + registry + " speaks plain HTTP and is not listed",
		Remedy: "add " + registry + " to templatecenter.insecure_registries, give `paddock image build` --insecure-registry " + registry + ", or serve it over HTTPS",
	}
}

// naming says which image an error is of. A cancel is of none.
func naming(reference string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("image %.300q: %w", reference, err)
}

// layerNaming says which layer an error is of.
func layerNaming(i int, digest string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("layer %d (%.80q): %w", i+1, digest, err)
}
