package source

import (
	"mime"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Compression is how a layer's archive travels.
type Compression uint8

// The compressions that are read.
const (
	None Compression = iota
	Gzip
	Zstd
)

func (c Compression) String() string {
	return [...]string{"none", "gzip", "zstd"}[min(c, Zstd)]
}

// The media types of the two families, docker's and the OCI's.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerForeign  = "application/vnd.docker.image.rootfs.foreign."

	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	ociIndex    = "application/vnd.oci.image.index.v1+json"
	ociConfig   = "application/vnd.oci.image.config.v1+json"
	ociForeign  = "application/vnd.oci.image.layer.nondistributable."

	schema1 = "application/vnd.docker.distribution.manifest.v1" // and its signed form
)

// layerTypes are the media types of layers.
var layerTypes = map[string]Compression{
	"application/vnd.docker.image.rootfs.diff.tar":      None,
	"application/vnd.docker.image.rootfs.diff.tar.gzip": Gzip,
	"application/vnd.docker.image.rootfs.diff.tar.zstd": Zstd,
	"application/vnd.oci.image.layer.v1.tar":            None,
	"application/vnd.oci.image.layer.v1.tar+gzip":       Gzip,
	"application/vnd.oci.image.layer.v1.tar+zstd":       Zstd,
}

func isManifest(mediaType string) bool {
	return mediaType == dockerManifest || mediaType == ociManifest
}

func isIndex(mediaType string) bool { return mediaType == dockerList || mediaType == ociIndex }

func isConfig(mediaType string) bool { return mediaType == dockerConfig || mediaType == ociConfig }

// compressionOf refuses layers that are elsewhere or cannot be read.
func compressionOf(d descriptor) (Compression, error) {
	switch {
	case d.elsewhere:
		return None, fault.New(fault.LayerForeign, "it names URLs to fetch it from")
	case strings.HasPrefix(d.mediaType, dockerForeign), strings.HasPrefix(d.mediaType, ociForeign):
		return None, fault.New(fault.LayerForeign, "its media type %.200q says that registries do not keep it", d.mediaType)
	case strings.HasSuffix(d.mediaType, "+encrypted"):
		return None, fault.New(fault.LayerMedia, "it is encrypted (%.200q)", d.mediaType)
	}
	c, ok := layerTypes[d.mediaType]
	if !ok {
		return None, fault.New(fault.LayerMedia, "its media type %.200q is none of a tar archive, plain or compressed by gzip or zstd", d.mediaType)
	}
	return c, nil
}

// servedType is the media type that a server says, or nothing when it says
// nothing of manifests, as plain file servers do.
func servedType(header string) string {
	t, _, err := mime.ParseMediaType(header)
	if err != nil {
		t = strings.ToLower(strings.TrimSpace(header))
	}
	switch t {
	case "application/json", "application/octet-stream", "binary/octet-stream", "text/plain":
		return ""
	}
	return t
}

// magicOf tells the compression by the first bytes of a layer: ok is false for
// one that is not read here.
func magicOf(b []byte) (c Compression, name string, ok bool) {
	for _, m := range []struct {
		magic, name string
		c           Compression
		ok          bool
	}{
		{"\x1f\x8b", "gzip", Gzip, true},
		{"\x28\xb5\x2f\xfd", "zstd", Zstd, true},
		{"\xfd7zXZ\x00", "xz", None, false},
		{"BZh", "bzip2", None, false},
	} {
		// A plain archive begins with a file's name, which BZh might be.
		if strings.HasPrefix(string(b), m.magic) && (m.name != "bzip2" || isBzip2(b)) {
			return m.c, m.name, m.ok
		}
	}
	if isSkippable(b) {
		return Zstd, "zstd", true
	}
	return None, "plain", true
}

// isBzip2: the first block's magic follows the level.
func isBzip2(b []byte) bool {
	return len(b) >= 10 && string(b[4:10]) == "1AY&SY"
}

// isSkippable: a zstd frame that holds no data may be the first one.
func isSkippable(b []byte) bool {
	return len(b) >= 4 && b[0]&0xf0 == 0x50 && string(b[1:4]) == "\x2a\x4d\x18"
}
