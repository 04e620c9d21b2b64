package templatecenter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// moveWait is how long a move waits for a build of the same bytes.
	moveWait   = 30 * time.Second
	maxReceipt = 64 << 20
	maxField   = 256
)

// copier is a store that can take a file and leave it where it is.
type copier interface {
	Copy(ctx context.Context, key, path string) error
}

// findLegacy returns the directory that held the bytes before the store of the
// configuration became another: they are served from it until they are moved.
func findLegacy(a config.ArtifactStore) *artifact.Dir {
	if a.Backend == "dir" {
		return nil
	}
	return artifact.FindDir(a.Dir)
}

// openBytes opens a key in the store, or in the directory of before.
func (c *Center) openBytes(ctx context.Context, key string) (io.ReadSeekCloser, artifact.Info, error) {
	data, info, err := c.keep.Open(ctx, key)
	if errors.Is(err, fault.ArtifactNotFound) && c.legacy != nil {
		return c.legacy.Open(ctx, key)
	}
	return data, info, err
}

// statBytes looks for a key in the store, and in the directory of before.
func (c *Center) statBytes(ctx context.Context, key string) (info artifact.Info, legacy bool, err error) {
	info, err = c.keep.Stat(ctx, key)
	if errors.Is(err, fault.ArtifactNotFound) && c.legacy != nil {
		info, err = c.legacy.Stat(ctx, key)
		return info, true, err
	}
	return info, false, err
}

// removeLegacy removes a key from the directory of before.
func (c *Center) removeLegacy(ctx context.Context, key string) error {
	if c.legacy == nil {
		return nil
	}
	return c.legacy.Remove(ctx, key)
}

// rowOf returns the row of an artifact that a request names.
func (c *Center) rowOf(ctx context.Context, id string) (a template.Artifact, err error) {
	if err := template.CheckID(id); err != nil {
		return a, err
	}
	if _, err := c.bytes(); err != nil {
		return a, err
	}
	a, found, err := c.row(ctx, template.ArtifactID(id))
	if err == nil && !found {
		err = fault.New(fault.ArtifactNotFound, "artifact %q", id)
	}
	return a, err
}

// serveStat says where an artifact's bytes are and how many.
func (c *Center) serveStat(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	answer, err := c.stat(r.Context(), q.Get("artifact_id"), q.Get("verify") == "true")
	c.answer(w, r, answer, err)
}

func (c *Center) answer(w http.ResponseWriter, r *http.Request, answer cubeapi.TCArtifactAnswer, err error) {
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (c *Center) shown(id template.ArtifactID, status string) cubeapi.TCArtifactAnswer {
	key := objectKey(id)
	return cubeapi.TCArtifactAnswer{Status: status, ArtifactID: string(id), Backend: c.keep.Backend(), ObjectKey: key, Path: c.keep.Location(key)}
}

func (c *Center) stat(ctx context.Context, id string, verify bool) (s cubeapi.TCArtifactAnswer, err error) {
	a, err := c.rowOf(ctx, id)
	if err != nil {
		return s, err
	}
	s = c.shown(a.ID, cubeapi.BytesThere)
	info, legacy, err := c.statBytes(ctx, objectKey(a.ID))
	if err != nil {
		return s, c.absence(ctx, a, err)
	}
	s.SizeBytes, s.Legacy = info.Size, legacy
	if verify {
		data, _, err := c.openBytes(ctx, objectKey(a.ID))
		if err != nil {
			return s, err
		}
		defer data.Close()
		if s.SHA256, _, err = sumOf(ctx, data); err != nil {
			return s, err
		}
	}
	return s, nil
}

// sumOf reads data to its end.
func sumOf(ctx context.Context, data io.Reader) (sum string, size int64, err error) {
	h := sha256.New()
	size, err = io.Copy(h, untilDone{ctx, data})
	return hex.EncodeToString(h.Sum(nil)), size, err
}

// untilDone ends a copy with its context.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (r untilDone) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// serveMove makes the store have an artifact's bytes that are in the directory
// of before.
func (c *Center) serveMove(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TCArtifactRequest
	err := serve.ReadJSON(r, maxBody, &req)
	var answer cubeapi.TCArtifactAnswer
	if err == nil {
		answer, err = c.move(r.Context(), req.ArtifactID)
	}
	c.answer(w, r, answer, err)
}

// move copies the bytes to the store. Those of before go once the row says that
// they are in the store: until then both are there. It may be asked again.
func (c *Center) move(ctx context.Context, id string) (s cubeapi.TCArtifactAnswer, err error) {
	a, err := c.rowOf(ctx, id)
	if err != nil {
		return s, err
	}
	locked, err := c.db.WithLock(ctx, lockOf(a.ID), moveWait, func(ctx context.Context) error {
		if a, err = c.rowOf(ctx, id); err != nil {
			return err
		}
		if a.State != template.ArtifactReady {
			return fault.New(fault.StateConflict, "artifact %s is %s", a.ID, a.State)
		}
		s, err = c.moveLocked(ctx, a)
		return err
	})
	if err == nil && !locked {
		err = fault.New(fault.PeerUnavailable, "artifact %s: somebody builds or removes it now", id)
	}
	return s, err
}

func (c *Center) moveLocked(ctx context.Context, a template.Artifact) (s cubeapi.TCArtifactAnswer, err error) {
	s = c.shown(a.ID, cubeapi.BytesReused)
	info, legacy, err := c.statBytes(ctx, objectKey(a.ID))
	if err != nil {
		return s, c.absence(ctx, a, err)
	}
	s.SizeBytes = info.Size
	switch {
	case info.Size != a.SizeBytes:
		return s, fault.New(fault.BytesLost, "artifact %s has %d bytes, its row says %d", a.ID, info.Size, a.SizeBytes)
	case legacy:
		s.Status, s.SHA256 = cubeapi.BytesUploaded, a.SHA256
		return s, c.copyLegacy(ctx, a)
	}
	if err := c.noteStore(ctx, a.ID, c.keep); err != nil { // whoever copied them may have ended before
		return s, err
	}
	if a.Backend == c.keep.Backend() {
		// The row says so too: nobody needs those of before.
		return s, errors.Join(c.removeLegacy(ctx, objectKey(a.ID)), c.removeLegacy(ctx, receiptKey(a.ID)))
	}
	return s, nil
}

// copyLegacy copies an artifact and its receipt from the directory of before,
// and looks at what it copies.
func (c *Center) copyLegacy(ctx context.Context, a template.Artifact) error {
	store, ok := c.keep.(copier)
	if !ok {
		return fault.New(fault.Bug, "store %s takes no copies", c.keep.Backend())
	}
	data, _, err := c.legacy.Open(ctx, objectKey(a.ID))
	if err != nil {
		return err
	}
	sum, _, err := sumOf(ctx, data)
	if err = errors.Join(err, data.Close()); err != nil {
		return fault.Wrap(fault.StoreUnavailable, err, "artifact %s", a.ID)
	}
	if sum != a.SHA256 {
		return fault.New(fault.BytesLost, "artifact %s in %s has not the sha256 of its row", a.ID, c.legacy.Location(""))
	}
	if _, err := c.legacy.Stat(ctx, receiptKey(a.ID)); err == nil {
		if err := store.Copy(ctx, receiptKey(a.ID), c.legacy.Location(receiptKey(a.ID))); err != nil {
			return err
		}
	} else if !errors.Is(err, fault.ArtifactNotFound) {
		return err
	}
	if err := fail.Point("templatecenter.before_move"); err != nil {
		return err
	}
	if err := store.Copy(ctx, objectKey(a.ID), c.legacy.Location(objectKey(a.ID))); err != nil {
		return err
	}
	// Not before: until the bytes are there, the note of before is the truth.
	if err := c.noteStore(ctx, a.ID, c.keep); err != nil {
		return err
	}
	c.metrics.bytes.WithLabelValues("stored").Add(float64(a.SizeBytes))
	c.log.InfoContext(ctx, "bytes moved", slog.String("artifact_id", string(a.ID)), slog.String("store", c.keep.Backend()))
	return fail.Point("templatecenter.after_move")
}

// serveUpload takes an artifact's bytes from a master that has them on its own
// disk.
func (c *Center) serveUpload(w http.ResponseWriter, r *http.Request) {
	answer, err := c.upload(r)
	c.answer(w, r, answer, err)
}

// upload reads a form of artifact_id, an optional receipt, and file, in this
// order.
func (c *Center) upload(r *http.Request) (s cubeapi.TCArtifactAnswer, err error) {
	form, err := r.MultipartReader()
	if err != nil {
		return s, fault.Wrap(fault.InvalidInput, err, "an upload is a multipart form of artifact_id and file")
	}
	part, err := nextPart(form, "artifact_id")
	if err != nil {
		return s, err
	}
	id, err := io.ReadAll(io.LimitReader(part, maxField))
	if err != nil {
		return s, fault.Wrap(fault.InvalidInput, err, "field artifact_id")
	}
	a, err := c.rowOf(r.Context(), string(id))
	if err != nil {
		return s, err
	}
	locked, err := c.db.WithLock(r.Context(), lockOf(a.ID), moveWait, func(ctx context.Context) error {
		if a, err = c.rowOf(ctx, string(id)); err != nil {
			return err
		}
		if a.State != template.ArtifactReady {
			return fault.New(fault.StateConflict, "artifact %s is %s", a.ID, a.State)
		}
		s, err = c.uploadLocked(ctx, form, a)
		return err
	})
	if err == nil && !locked {
		err = fault.New(fault.PeerUnavailable, "artifact %s: somebody builds or removes it now", a.ID)
	}
	return s, err
}

// nextPart returns the next part of a form, which must have one of the names.
func nextPart(form *multipart.Reader, names ...string) (*multipart.Part, error) {
	part, err := form.NextPart()
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "the form lacks %s", names[0])
	}
	for _, name := range names {
		if part.FormName() == name {
			return part, nil
		}
	}
	return nil, fault.New(fault.InvalidInput, "field %.80q of the form comes where %s is expected", part.FormName(), names[0])
}

func (c *Center) uploadLocked(ctx context.Context, form *multipart.Reader, a template.Artifact) (s cubeapi.TCArtifactAnswer, err error) {
	s = c.shown(a.ID, cubeapi.BytesReused)
	s.SizeBytes, s.SHA256 = a.SizeBytes, a.SHA256
	if c.has(ctx, a) {
		return s, c.noteStore(ctx, a.ID, c.keep) // whoever stored them may have ended before
	}
	file := rootfs.Target(c.cfg.TemplateCenter.WorkDir, "upload-"+string(a.ID))
	receipt := file + ".receipt"
	defer func() { // gone already when the store took them
		_ = os.Remove(file)
		_ = os.Remove(receipt)
	}()
	part, err := nextPart(form, "file", "receipt")
	if err != nil {
		return s, err
	}
	noted := part.FormName() == "receipt"
	if noted {
		if _, _, err := save(ctx, receipt, part, maxReceipt); err != nil {
			return s, err
		}
		if part, err = nextPart(form, "file"); err != nil {
			return s, err
		}
	}
	sum, size, err := save(ctx, file, part, a.SizeBytes)
	switch {
	case err != nil:
		return s, err
	case size == 0:
		return s, fault.New(fault.InvalidInput, "the file is empty")
	case size != a.SizeBytes || sum != a.SHA256:
		return s, fault.New(fault.InvalidInput, "artifact %s: the file has %d bytes and sha256 %s, its row says %d and %s", a.ID, size, sum, a.SizeBytes, a.SHA256)
	}
	if noted {
		if err := c.keep.Put(ctx, receiptKey(a.ID), receipt); err != nil {
			return s, err
		}
	}
	if err := c.keep.Put(ctx, objectKey(a.ID), file); err != nil {
		return s, err
	}
	if err := c.noteStore(ctx, a.ID, c.keep); err != nil { // as in copyLegacy
		return s, err
	}
	s.Status = cubeapi.BytesUploaded
	c.metrics.bytes.WithLabelValues("stored").Add(float64(a.SizeBytes))
	return s, fail.Point("templatecenter.after_upload")
}

// has reports whether the store has an artifact's very bytes.
func (c *Center) has(ctx context.Context, a template.Artifact) bool {
	data, info, err := c.keep.Open(ctx, objectKey(a.ID))
	if err != nil {
		return false
	}
	defer data.Close()
	if info.Size != a.SizeBytes {
		return false
	}
	sum, _, err := sumOf(ctx, data)
	return err == nil && sum == a.SHA256
}

// save writes what r yields to a new file, at most limit bytes of it.
func save(ctx context.Context, path string, r io.Reader, limit int64) (sum string, size int64, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", 0, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir")
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	read := &failing{r: r}
	sum, size, err = sumOf(ctx, io.TeeReader(io.LimitReader(read, limit+1), f))
	switch {
	case read.err != nil: // the sender's fault, not that of the disk
		return "", 0, fault.Wrap(fault.InvalidInput, read.err, "the upload broke off after %d bytes", size)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "", 0, fault.Wrap(fault.DiskFull, err, "templatecenter.work_dir")
	case err != nil:
		return "", 0, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir")
	case size > limit:
		return "", 0, fault.New(fault.InvalidInput, "the upload has more than the %d bytes that it should", limit)
	}
	return sum, size, nil
}

// failing remembers how reading failed.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}
