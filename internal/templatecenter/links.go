package templatecenter

import (
	"context"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/template"
)

// linker is a store from which others can fetch by a link.
type linker interface {
	Stat(ctx context.Context, key string) (artifact.Info, error)
	Presign(ctx context.Context, key string, life time.Duration) (string, error)
}

// lead answers with a link to the bytes, made for this request: nothing keeps
// it. A HEAD is never answered so, since the signature is one of a GET.
func (c *Center) lead(w http.ResponseWriter, r *http.Request, s linker, a template.Artifact) error {
	info, err := s.Stat(r.Context(), objectKey(a.ID))
	if err != nil {
		return err
	}
	if err := sameSize(a, info); err != nil {
		return err
	}
	link, err := s.Presign(r.Context(), objectKey(a.ID), c.cfg.ArtifactStore.S3.PresignFor)
	if err != nil {
		return err
	}
	named(w.Header(), a)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Location", link)
	w.WriteHeader(http.StatusFound)
	return nil
}

// named says which artifact an answer is of.
func named(h http.Header, a template.Artifact) {
	h.Set("ETag", `"`+a.SHA256+`"`)
	h.Set(cubeapi.HeaderArtifactID, string(a.ID))
}

func sameSize(a template.Artifact, info artifact.Info) error {
	if info.Size != a.SizeBytes {
		return fault.New(fault.ArtifactCorrupt, "artifact %s has %d bytes, its row says %d", a.ID, info.Size, a.SizeBytes)
	}
	return nil
}

// manifestOf is the plan that a receipt has of an artifact's chunks.
func manifestOf(r *rootfs.Receipt) artifact.Manifest {
	return artifact.Manifest{Version: artifact.ManifestVersion, SHA256: r.SHA256, SizeBytes: r.SizeBytes, ChunkBytes: r.ChunkBytes, Chunks: r.Chunks}
}

// serveManifest hands out of which chunks an artifact is, to whoever may have
// its bytes. The receipt beside them has it.
func (c *Center) serveManifest(w http.ResponseWriter, r *http.Request) {
	if err := c.giveManifest(w, r); err != nil {
		serve.WriteError(w, r, err)
	}
}

func (c *Center) giveManifest(w http.ResponseWriter, r *http.Request) error {
	a, err := c.admitted(r)
	if err != nil {
		return err
	}
	if _, err := c.bytes(); err != nil {
		return err
	}
	data, _, err := c.openBytes(r.Context(), receiptKey(a.ID))
	if err != nil {
		return err
	}
	defer data.Close()
	receipt, err := rootfs.ReadReceipt(data)
	if err != nil {
		return err
	}
	if receipt.SHA256 != a.SHA256 || receipt.SizeBytes != a.SizeBytes {
		return fault.New(fault.ArtifactNotFound, "artifact %s: the receipt beside it is of other bytes", a.ID)
	}
	b, _, err := manifestOf(receipt).Encode()
	if err != nil {
		return err
	}
	named(w.Header(), a)
	w.Header().Set("Content-Type", artifact.ManifestType)
	_, err = (&counted{w, c}).Write(b)
	if err != nil {
		panic(http.ErrAbortHandler) // what came must not pass for the whole
	}
	return nil
}
