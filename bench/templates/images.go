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
// third layer has about 1 MB and is another in each version. It grows by more
// than a chunk, so that all that lies over it moves: the worst that a layer of
// this size can do.
func version(n byte) []layerPlan {
	return []layerPlan{
		{"base", 120 * mib, 1},
		{"tools", 280 * mib, 2},
		{"app", 700 * 1024 * int64(n), 100 + n},
		{"data", 270 * mib, 4},
	}
}

// blob is what a manifest says of a file of the registry.
type blob struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// makeImages writes the blobs of both versions as a registry keeps them, and
// returns their manifests.
func makeImages(dir string) (manifests [][]byte, err error) {
	blobs := filepath.Join(dir, "sha256")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return nil, err
	}
	made := map[byte]blob{}
	for n := byte(1); n <= 2; n++ {
		var layers []blob
		var ids []string
		for _, l := range version(n) {
			b, ok := made[l.seed]
			if !ok {
				if b, err = writeLayer(blobs, l); err != nil {
					return nil, err
				}
				made[l.seed] = b
			}
			layers, ids = append(layers, b), append(ids, b.Digest)
		}
		config, err := json.Marshal(map[string]any{
			"architecture": "amd64", "os": "linux", "config": map[string]any{"Cmd": []string{"/bin/true"}}, "rootfs": map[string]any{"type": "layers", "diff_ids": ids},
		})
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(config)
		name := hex.EncodeToString(sum[:])
		if err := os.WriteFile(filepath.Join(blobs, name), config, 0o600); err != nil {
			return nil, err
		}
		manifest, err := json.Marshal(map[string]any{
			"schemaVersion": 2, "mediaType": manifestType, "layers": layers,
			"config": blob{MediaType: "application/vnd.oci.image.config.v1+json", Digest: "sha256:" + name, Size: int64(len(config))},
		})
		if err != nil {
			return nil, err
		}
		manifests = append(manifests, manifest)
	}
	return manifests, nil
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
