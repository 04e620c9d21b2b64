package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

const (
	mib         = 1 << 20
	layerType   = "application/vnd.oci.image.layer.v1.tar" // not compressed: how fast images are made is bench/rootfs's to say
	smallMean   = 12 << 10
	bigShare    = 60 // one file in so many is big
	namesPerDir = 64
)

// layerPlan is one layer: so many bytes of files that nothing can make smaller.
type layerPlan struct {
	name  string
	bytes int64
	seed  byte
}

// version returns the layers of one version of the image: 700 MB, of which the
// third layer has 1 MB and is another in each version. What lies over it is what
// moves when the layer below it grows.
func version(n byte) []layerPlan {
	return []layerPlan{
		{"base", 120 * mib, 1},
		{"tools", 280 * mib, 2},
		{"app", 1*mib + int64(n)*700*1024, 100 + n},
		{"data", 270 * mib, 4},
	}
}

// blob is what manifest and index say of a file of the layout.
type blob struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// layout makes an OCI layout with the two versions, tagged v1 and v2.
func layout(dir string) error {
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return err
	}
	made := map[byte]blob{}
	var index []blob
	for n := byte(1); n <= 2; n++ {
		var layers []blob
		var ids []string
		for _, l := range version(n) {
			b, ok := made[l.seed]
			if !ok {
				var err error
				if b, err = writeLayer(blobs, l); err != nil {
					return err
				}
				made[l.seed] = b
			}
			layers, ids = append(layers, b), append(ids, b.Digest)
		}
		config, err := writeJSON(blobs, "application/vnd.oci.image.config.v1+json", map[string]any{
			"architecture": "amd64", "os": "linux", "config": map[string]any{"Cmd": []string{"/bin/true"}}, "rootfs": map[string]any{"type": "layers", "diff_ids": ids},
		})
		if err != nil {
			return err
		}
		manifest, err := writeJSON(blobs, "application/vnd.oci.image.manifest.v1+json", map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": layers})
		if err != nil {
			return err
		}
		manifest.Annotations = map[string]string{"org.opencontainers.image.ref.name": fmt.Sprintf("v%d", n)}
		index = append(index, manifest)
	}
	b, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": index})
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "index.json"), b, 0o600), os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o600))
}

func writeJSON(blobs, kind string, v any) (blob, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return blob{}, err
	}
	sum := sha256.Sum256(b)
	name := hex.EncodeToString(sum[:])
	return blob{MediaType: kind, Digest: "sha256:" + name, Size: int64(len(b))}, os.WriteFile(filepath.Join(blobs, name), b, 0o600)
}

// writeLayer writes a layer as images have them: many small files, a few big
// ones.
func writeLayer(blobs string, l layerPlan) (_ blob, err error) {
	f, err := os.CreateTemp(blobs, "layer-")
	if err != nil {
		return blob{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	w := tar.NewWriter(io.MultiWriter(f, sum))
	bytes := rand.NewChaCha8([32]byte{l.seed})
	sizes := rand.New(bytes) //nolint:gosec // the same in every run
	when := time.Unix(1_700_000_000, 0)
	left := l.bytes
	for i := 0; left > 0; i++ {
		size := int64(sizes.ExpFloat64() * smallMean)
		if i%bigShare == bigShare-1 {
			size = int64(sizes.ExpFloat64() * 2 * mib)
		}
		size = min(size, left)
		left -= max(size, 1)
		if i%namesPerDir == 0 {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%s/%03d/", l.name, i/namesPerDir), Typeflag: tar.TypeDir, Mode: 0o755, ModTime: when}); err != nil {
				return blob{}, err
			}
		}
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%s/%03d/file-%06d", l.name, i/namesPerDir, i), Typeflag: tar.TypeReg, Mode: 0o644, Size: size, ModTime: when}); err != nil {
			return blob{}, err
		}
		if _, err := io.CopyN(w, bytes, size); err != nil {
			return blob{}, err
		}
	}
	if err := w.Close(); err != nil {
		return blob{}, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return blob{}, err
	}
	name := hex.EncodeToString(sum.Sum(nil))
	return blob{MediaType: layerType, Digest: "sha256:" + name, Size: size}, os.Rename(f.Name(), filepath.Join(blobs, name))
}
