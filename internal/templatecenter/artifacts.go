package templatecenter

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// removeWait is how long a delete waits for a build of the same bytes.
const removeWait = 5 * time.Second

// serveDownload hands out an artifact's bytes, whole or in part. An error is
// never a 200: a client would store its words as an image.
func (c *Center) serveDownload(w http.ResponseWriter, r *http.Request) {
	a, err := c.admitted(r)
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	keep, err := c.bytes()
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	if s, ok := keep.(linker); ok && c.cfg.ArtifactStore.S3.Presign && r.Method == http.MethodGet && r.URL.Query().Get(cubeapi.QueryRedirect) != "false" {
		// Bytes that were not moved there yet are in the directory of before.
		if err := c.lead(w, r, s, a); err == nil || c.legacy == nil || !errors.Is(err, fault.ArtifactNotFound) {
			if err != nil {
				serve.WriteError(w, r, c.absence(r.Context(), a, err))
			}
			return
		}
	}
	data, info, err := c.openBytes(r.Context(), objectKey(a.ID))
	if err != nil {
		serve.WriteError(w, r, c.absence(r.Context(), a, err))
		return
	}
	defer data.Close()
	if err := sameSize(a, info); err != nil {
		serve.WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	named(w.Header(), a)
	http.ServeContent(&counted{w, c}, r, "", info.Modified, data)
}

// counted counts the bytes of an answer.
type counted struct {
	http.ResponseWriter
	c *Center
}

// ReadFrom keeps the way from file to socket inside the kernel.
func (w *counted) ReadFrom(src io.Reader) (int64, error) {
	n, err := io.Copy(w.ResponseWriter, src)
	w.c.metrics.bytes.WithLabelValues("served").Add(float64(n))
	return n, err
}

func (w *counted) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.c.metrics.bytes.WithLabelValues("served").Add(float64(n))
	return n, err
}

// admitted returns the artifact that the request may have. A wrong token and
// an unknown id are told apart only for those who have a token.
func (c *Center) admitted(r *http.Request) (a template.Artifact, err error) {
	id := r.URL.Query().Get("artifact_id")
	if err := template.CheckID(id); err != nil {
		return a, err
	}
	given := r.Header.Get(cubeapi.HeaderArtifactToken)
	if given == "" {
		given = r.URL.Query().Get("token")
	}
	if given == "" {
		return a, fault.New(fault.TokenRejected, "download of artifact %s", id)
	}
	var now time.Time // the clock by which masters make the tickets
	err = c.db.View(r.Context(), func(tx *store.Tx) (err error) {
		now = tx.Now
		a, err = templatedb.GetArtifact(r.Context(), tx, template.ArtifactID(id))
		return err
	})
	if err == nil {
		err = c.checkTicket(a, given, now)
	}
	switch {
	case err != nil:
		return a, err
	case a.State != template.ArtifactReady:
		return a, fault.New(fault.ArtifactNotFound, "artifact %s is %s", id, a.State)
	}
	return a, nil
}

// checkTicket admits who shows a ticket for these very bytes that is not over.
func (c *Center) checkTicket(a template.Artifact, given string, now time.Time) error {
	key, err := auth.NewTicketKey(c.cfg.Auth.CallbackToken, a.Token, auth.ForDownload, string(a.ID), a.SHA256)
	switch {
	case err != nil:
		return err
	case a.Token == "": // then there would be no secret in the key but that of the roles
		return fault.New(fault.TokenRejected, "download of artifact %s", a.ID)
	}
	return key.Check(given, now, "download of artifact "+string(a.ID))
}

// serveDelete lets an artifact's bytes go, then its row. It can be asked again.
func (c *Center) serveDelete(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TCDeleteRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = template.CheckID(req.ArtifactID)
	}
	if err == nil {
		_, err = c.bytes()
	}
	if err == nil {
		err = c.delete(r.Context(), template.ArtifactID(req.ArtifactID))
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.TCAnswer{Status: "deleted", ArtifactID: req.ArtifactID})
}

// delete removes an artifact that the master has released: its hosts are clean.
// One that it did not release is fault.StateConflict; while a build of the same
// bytes runs it is fault.BuildInProgress.
func (c *Center) delete(ctx context.Context, id template.ArtifactID) error {
	locked, err := c.db.WithLock(ctx, lockOf(id), removeWait, func(ctx context.Context) error {
		a, found, err := c.row(ctx, id)
		switch {
		case err != nil || !found:
			return err
		case a.State != template.ArtifactDeleting:
			return fault.New(fault.StateConflict, "artifact %s is %s, not released", id, a.State)
		}
		return c.remove(ctx, a)
	})
	if err == nil && !locked {
		err = fault.New(fault.BuildInProgress, "artifact %s is being built", id)
	}
	return err
}

// remove removes the bytes of an artifact in deleting, its receipt, and then
// its row. When these cannot be removed the row says why and waits to be
// released again. The caller holds the artifact's lock.
func (c *Center) remove(ctx context.Context, a template.Artifact) error {
	if failed := c.discard(ctx, a.ID); failed != nil {
		a.Error = failed.Error()
		err := c.db.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			_, err := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactKept)
			return err
		})
		return errors.Join(failed, err)
	}
	if err := fail.Point("templatecenter.delete.after_bytes"); err != nil {
		return err
	}
	return c.db.Update(ctx, func(tx *store.Tx) error { return templatedb.RemoveArtifact(ctx, tx, a) })
}
