package source

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// maxIndex bounds what an index lists, each of which is read.
const maxIndex = 4096

// document is a manifest or an index, as it was served.
type document struct {
	bytes     []byte
	mediaType string // as served or as its descriptor says; may be empty
	digest    string
}

// descriptor names one thing of an image.
type descriptor struct {
	mediaType string
	digest    string
	size      int64
	elsewhere bool // it names URLs
	platform  *platform
	// What tells things that are no images from images.
	artifactType string
	annotations  map[string]string
}

// manifest is an image's own.
type manifest struct {
	digest string
	config descriptor
	layers []descriptor
}

// index lists images, or other indexes.
type index struct{ entries []descriptor }

// readDocument tells a manifest from an index: one of the two is not nil.
func readDocument(d document, l Limits) (*manifest, *index, error) {
	const what = "manifest"
	m, err := object(what, d.bytes, "schemaVersion", "mediaType", "config", "layers", "manifests", "fsLayers", "signatures", "artifactType", "subject", "annotations")
	if err != nil {
		return nil, nil, err
	}
	has := func(name string) bool { _, ok := m[name]; return ok }
	version, err := value[int](what, m, "schemaVersion")
	if err != nil {
		return nil, nil, err
	}
	switch {
	case version == 1 || has("fsLayers") || has("signatures"):
		return nil, nil, fault.New(fault.ManifestAmbiguous, "its manifest is of schema 1, which names its layers by what docker made of them")
	case version != 2:
		return nil, nil, fault.New(fault.ImageInvalid, "its manifest is of schema %d, not 2", version)
	case has("manifests") && (has("layers") || has("config")):
		return nil, nil, fault.New(fault.ManifestAmbiguous, "its manifest has both manifests and layers or a config")
	}
	mediaType, err := agreedType(m, d.mediaType)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case isManifest(mediaType) && has("config"):
		got, err := readManifest(m, d.digest, l)
		return got, nil, err
	case isIndex(mediaType) && has("manifests"):
		got, err := readIndex(m)
		return nil, got, err
	case strings.HasPrefix(mediaType, schema1):
		return nil, nil, fault.New(fault.ManifestAmbiguous, "its manifest is a %.200q, but not of schema 1", mediaType)
	case isManifest(mediaType) || isIndex(mediaType):
		return nil, nil, fault.New(fault.ManifestAmbiguous, "its manifest is not what its media type %.200q says", mediaType)
	}
	return nil, nil, fault.New(fault.ImageInvalid, "its manifest is a %.200q, which is none of an image", mediaType)
}

// agreedType returns the media type that the document itself and who served it
// agree on.
func agreedType(m map[string]json.RawMessage, served string) (string, error) {
	own, err := value[string]("manifest", m, "mediaType")
	if err != nil {
		return "", err
	}
	switch {
	case own == "" && served == "":
		return "", fault.New(fault.ManifestAmbiguous, "neither its manifest nor who served it says its media type")
	case own == "":
		return served, nil
	case served != "" && own != served:
		return "", fault.New(fault.ManifestAmbiguous, "its manifest is a %.200q by itself, but was served as %.200q", own, served)
	}
	return own, nil
}

func readManifest(m map[string]json.RawMessage, digest string, l Limits) (*manifest, error) {
	config, err := readDescriptor("config", m["config"])
	if err != nil {
		return nil, err
	}
	if !isConfig(config.mediaType) {
		return nil, fault.New(fault.ImageInvalid, "its config is a %.200q, so it holds something else than files", config.mediaType)
	}
	list, err := value[[]json.RawMessage]("manifest", m, "layers")
	if err != nil {
		return nil, err
	}
	if len(list) > l.Layers {
		return nil, fault.New(fault.ImageInvalid, "it has %d layers, at most %d are taken", len(list), l.Layers)
	}
	got := &manifest{digest: digest, config: config}
	for i, raw := range list {
		d, err := readDescriptor(fmt.Sprintf("layer %d", i+1), raw)
		if err != nil {
			return nil, err
		}
		got.layers = append(got.layers, d)
	}
	return got, nil
}

func readIndex(m map[string]json.RawMessage) (*index, error) {
	list, err := value[[]json.RawMessage]("index", m, "manifests")
	if err != nil {
		return nil, err
	}
	if len(list) > maxIndex {
		return nil, fault.New(fault.ManifestTooLarge, "its index lists %d manifests, at most %d are read", len(list), maxIndex)
	}
	got := &index{}
	for i, raw := range list {
		d, err := readDescriptor(fmt.Sprintf("index entry %d", i+1), raw)
		if err != nil {
			return nil, err
		}
		got.entries = append(got.entries, d)
	}
	return got, nil
}

func readDescriptor(what string, raw []byte) (descriptor, error) {
	m, err := object(what, raw, "mediaType", "digest", "size", "urls", "data", "platform", "artifactType", "annotations")
	if err != nil {
		return descriptor{}, err
	}
	var d descriptor
	if d.mediaType, err = value[string](what, m, "mediaType"); err != nil {
		return d, err
	}
	if d.digest, err = value[string](what, m, "digest"); err != nil {
		return d, err
	}
	if d.size, err = value[int64](what, m, "size"); err != nil {
		return d, err
	}
	if !digestForm.MatchString(d.digest) || d.size < 0 {
		return d, fault.New(fault.ImageInvalid, "its %s has digest %.200q and size %d: no sha256, or no size", what, d.digest, d.size)
	}
	urls, err := value[[]string](what, m, "urls")
	if err != nil {
		return d, err
	}
	d.elsewhere = len(urls) > 0
	if d.artifactType, err = value[string](what, m, "artifactType"); err != nil {
		return d, err
	}
	if d.annotations, err = readAnnotations(what, m); err != nil {
		return d, err
	}
	d.platform, err = readPlatform(what, m)
	return d, err
}

func readAnnotations(what string, m map[string]json.RawMessage) (map[string]string, error) {
	list, err := nested("annotations of "+what, m, "annotations")
	if err != nil || len(list) == 0 {
		return nil, err
	}
	got := map[string]string{}
	for name := range list {
		if got[name], err = value[string]("annotations of "+what, list, name); err != nil {
			return nil, err
		}
	}
	return got, nil
}

func readPlatform(what string, m map[string]json.RawMessage) (*platform, error) {
	what = "platform of " + what
	p, err := nested(what, m, "platform", "os", "architecture", "variant")
	if err != nil || p == nil {
		return nil, err
	}
	return platformIn(what, p)
}

// platformIn reads the three members that an index and a config share.
func platformIn(what string, m map[string]json.RawMessage) (*platform, error) {
	var got platform
	for _, f := range []struct {
		name string
		to   *string
	}{{"os", &got.os}, {"architecture", &got.arch}, {"variant", &got.variant}} {
		v, err := value[string](what, m, f.name)
		if err != nil {
			return nil, err
		}
		*f.to = v
	}
	return &got, nil
}
