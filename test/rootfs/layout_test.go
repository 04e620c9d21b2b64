package rootfs_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

// descriptor is how one blob of an image names another.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type configFile struct {
	Architecture string         `json:"architecture"`
	OS           string         `json:"os"`
	Config       map[string]any `json:"config"`
	RootFS       diffIDs        `json:"rootfs"`
}

type diffIDs struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

// layoutWriter writes an OCI layout directory.
type layoutWriter struct{ dir string }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (w layoutWriter) blob(mediaType string, data []byte) (descriptor, error) {
	d := digest(data)
	err := os.WriteFile(filepath.Join(w.dir, "blobs", "sha256", d), data, 0o644)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + d, Size: len(data)}, err
}

func (w layoutWriter) json(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return w.blob(mediaType, data)
}

const (
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	ociConfig   = "application/vnd.oci.image.config.v1+json"
	ociIndex    = "application/vnd.oci.image.index.v1+json"
	ociLayer    = "application/vnd.oci.image.layer.v1."
)

// unpacker is who reads a layout.
type unpacker int

const (
	byUs     unpacker = iota
	byUmoci           // which knows no zstd, and fewer forms of tar
	bySkopeo          // which knows fewer forms of tar
)

// writeLayout writes the stack as an image with the tag "latest".
func (s stack) writeLayout(dir string, who unpacker) error {
	w := layoutWriter{dir}
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return err
	}
	c := configFile{Architecture: runtime.GOARCH, OS: "linux", Config: map[string]any{"Cmd": []string{"/bin/sh"}}, RootFS: diffIDs{"layers", []string{}}}
	m := manifest{SchemaVersion: 2, MediaType: ociManifest, Layers: []descriptor{}}
	for _, l := range s {
		data := l.archive(who != byUs)
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, "sha256:"+digest(data))
		as := l.compression
		if who == byUmoci {
			as = gzipd
		}
		packed, err := compress(data, as)
		if err != nil {
			return err
		}
		d, err := w.blob(ociLayer+string(as), packed)
		if err != nil {
			return err
		}
		m.Layers = append(m.Layers, d)
	}
	config, err := w.json(ociConfig, c)
	if err != nil {
		return err
	}
	m.Config = &config
	top, err := w.json(ociManifest, m)
	if err != nil {
		return err
	}
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": "latest"}
	index, err := json.Marshal(manifest{SchemaVersion: 2, MediaType: ociIndex, Manifests: []descriptor{top}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644)
}

func compress(data []byte, as compression) ([]byte, error) {
	var b bytes.Buffer
	switch as {
	case plain:
		return data, nil
	case gzipd:
		w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
		err = w.Close()
		return b.Bytes(), err
	case zstdd:
		w, err := zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return w.EncodeAll(data, nil), w.Close()
	}
	return nil, fmt.Errorf("compression %q", as)
}
