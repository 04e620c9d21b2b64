package templatecenter

import (
	"context"
	"errors"
	"net/http"
	"os"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/template"
)

func receiptKey(id template.ArtifactID) string { return string(id) + receiptEnd }

// storeReceipt keeps what an artifact was made of beside its bytes. It is
// called before these are stored, so that bytes that are there have a receipt.
// The file at path is ours to make; it is gone afterwards.
func (c *Center) storeReceipt(ctx context.Context, id template.ArtifactID, r *rootfs.Receipt, path string) error {
	defer func() { _ = os.Remove(path) }() // gone already when the store took it
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = r.WriteTo(f)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "receipt of artifact %s", id)
	}
	return c.keep.Put(ctx, receiptKey(id), path)
}

// discard removes an artifact's bytes, and then its receipt: bytes that cannot
// be removed keep it. It may be asked again.
func (c *Center) discard(ctx context.Context, id template.ArtifactID) error {
	for _, key := range []string{objectKey(id), receiptKey(id)} {
		if err := errors.Join(c.keep.Remove(ctx, key), c.removeLegacy(ctx, key)); err != nil {
			return err
		}
	}
	return nil
}

// serveReceipt hands out what an artifact was made of.
func (c *Center) serveReceipt(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("artifact_id")
	if err := c.giveReceipt(w, r, id); err != nil {
		serve.WriteError(w, r, err)
	}
}

func (c *Center) giveReceipt(w http.ResponseWriter, r *http.Request, id string) error {
	if err := template.CheckID(id); err != nil {
		return err
	}
	if _, err := c.bytes(); err != nil {
		return err
	}
	a, found, err := c.row(r.Context(), template.ArtifactID(id))
	if err != nil {
		return err
	}
	if !found {
		return fault.New(fault.ArtifactNotFound, "artifact %q", id)
	}
	data, info, err := c.openBytes(r.Context(), receiptKey(a.ID))
	if err != nil {
		return err
	}
	defer data.Close()
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, "", info.Modified, data)
	return nil
}
