package templatecenter

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// serveDownload hands out an artifact's bytes, whole or in part. An error is
// never a 200: a client would store its words as an image.
func (c *Center) serveDownload(w http.ResponseWriter, r *http.Request) {
	a, err := c.admitted(r)
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	data, info, err := c.keep.Open(r.Context(), objectKey(a.ID))
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	defer data.Close()
	if info.Size != a.SizeBytes {
		serve.WriteError(w, r, fault.New(fault.ArtifactCorrupt, "artifact %s has %d bytes, its row says %d", a.ID, info.Size, a.SizeBytes))
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+a.SHA256+`"`)
	w.Header().Set(cubeapi.HeaderArtifactID, string(a.ID))
	http.ServeContent(&counted{w, c}, r, "", info.Modified, data)
}

type counted struct {
	http.ResponseWriter
	c *Center
}

func (w *counted) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.c.metrics.bytes.Add(float64(n))
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
	err = c.db.View(r.Context(), func(tx *store.Tx) (err error) {
		a, err = templatedb.GetArtifact(r.Context(), tx, template.ArtifactID(id))
		return err
	})
	switch {
	case err != nil:
		return a, err
	case a.State != template.ArtifactReady:
		return a, fault.New(fault.ArtifactNotFound, "artifact %s is %s", id, a.State)
	case a.Token == "" || !auth.EqualSecret(given, a.Token):
		return a, fault.New(fault.TokenRejected, "download of artifact %s", id)
	}
	return a, nil
}

// serveDelete lets an artifact's bytes go, then its row. It can be asked again.
func (c *Center) serveDelete(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TCDeleteRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = template.CheckID(req.ArtifactID)
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
func (c *Center) delete(ctx context.Context, id template.ArtifactID) error {
	var a template.Artifact
	err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		a, err = templatedb.GetArtifact(ctx, tx, id)
		return err
	})
	if errors.Is(err, fault.ArtifactNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if a.State != template.ArtifactDeleting {
		return fault.New(fault.StateConflict, "artifact %s is %s, not released", id, a.State)
	}
	if err := c.keep.Remove(ctx, objectKey(id)); err != nil {
		return err
	}
	return c.db.Update(ctx, func(tx *store.Tx) error { return templatedb.RemoveArtifact(ctx, tx, a) })
}

// sweep ends jobs that nobody reported on for too long: their builder has
// ended without a word. It is the one case where this service writes a job.
func (c *Center) sweep(ctx context.Context) {
	_, err := c.db.WithLock(ctx, "tc_reconcile_v1", 0, func(ctx context.Context) error {
		t := c.cfg.TemplateCenter
		return errors.Join(
			c.endStalled(ctx, template.JobQueued, t.PendingStaleAfter),
			c.endStalled(ctx, template.JobBuilding, t.RunningStaleAfter))
	})
	if err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "sweep of stalled jobs", slog.String("error", err.Error()))
	}
}
