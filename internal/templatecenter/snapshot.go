package templatecenter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// fromSnapshot brings what a reference to a snapshot means into the work
// directory: an image of one layer, which is the snapshot's root, and with the
// program of the image that its sandbox began with. done removes it. Of other
// references it says nothing.
func (c *Center) fromSnapshot(ctx context.Context, ref string) (local string, done func() error, err error) {
	done = func() error { return nil }
	rest, ok := strings.CutPrefix(ref, cubeapi.SnapshotRef)
	if !ok {
		return "", done, nil
	}
	given, _, _ := strings.Cut(rest, "@") // of a redo: the digest is that of an image that nobody keeps
	dir, err := os.MkdirTemp(c.cfg.TemplateCenter.WorkDir, "commit-")
	if err != nil {
		return "", done, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir")
	}
	done = func() error { return os.RemoveAll(dir) }
	if err := c.snapshotImage(ctx, sandbox.SnapshotID(given), dir); err != nil {
		return "", done, err
	}
	return "oci:" + dir, done, nil
}

// snapshotImage writes an OCI layout.
func (c *Center) snapshotImage(ctx context.Context, id sandbox.SnapshotID, dir string) error {
	var a template.Artifact
	err := c.db.View(ctx, func(tx *store.Tx) error {
		n, err := sandboxdb.GetSnapshot(ctx, tx, id)
		if err == nil {
			a, err = templatedb.GetArtifact(ctx, tx, n.ArtifactID)
		}
		return err
	})
	if err != nil {
		return err
	}
	l := blobs(filepath.Join(dir, "blobs", "sha256"))
	if err := os.MkdirAll(string(l), 0o700); err != nil {
		return fault.Wrap(fault.DataDir, err, "templatecenter.work_dir")
	}
	root, err := c.report.Root(ctx, string(id))
	if err != nil {
		return err
	}
	defer root.Close()
	layer, err := l.add(root, types.OCIUncompressedLayer)
	if err != nil {
		return err
	}
	config, err := l.addJSON(v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer.Digest}},
		Config: v1.Config{Entrypoint: a.Entrypoint, Cmd: a.Cmd, Env: a.Env, WorkingDir: a.WorkingDir, User: a.User},
	}, types.OCIConfigJSON)
	if err != nil {
		return err
	}
	manifest, err := l.addJSON(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config, Layers: []v1.Descriptor{layer}}, types.OCIManifestSchema1)
	if err != nil {
		return err
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{manifest}})
	if err != nil {
		return err
	}
	err = errors.Join(os.WriteFile(filepath.Join(dir, "index.json"), index, 0o600), os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o600))
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "templatecenter.work_dir")
	}
	return nil
}

// blobs is the directory of an OCI layout that has the bytes, by their digest.
type blobs string

func (b blobs) addJSON(v any, kind types.MediaType) (v1.Descriptor, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return b.add(bytes.NewReader(text), kind)
}

func (b blobs) add(r io.Reader, kind types.MediaType) (d v1.Descriptor, err error) {
	f, err := os.CreateTemp(string(b), "new-")
	if err != nil {
		return d, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir")
	}
	sum := sha256.New()
	d.Size, err = io.Copy(io.MultiWriter(f, sum), r)
	if err = errors.Join(err, f.Close()); err != nil {
		var at *os.PathError
		if errors.As(err, &at) { // else the stream broke off
			return d, fault.Wrap(fault.DiskFull, err, "root of a snapshot")
		}
		return d, fault.Wrap(fault.PeerUnavailable, err, "root of a snapshot")
	}
	d.MediaType, d.Digest = kind, v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	if err := os.Rename(f.Name(), filepath.Join(string(b), d.Digest.Hex)); err != nil {
		return d, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir")
	}
	return d, nil
}
