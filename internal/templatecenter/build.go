package templatecenter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	maxBody  = 1 << 20
	lockPoll = time.Second // between two looks whether an equal build has ended
	// makeTries bounds how often a build begins anew because its artifact was
	// being deleted under it.
	makeTries = 3
)

func tracer() trace.Tracer { return otel.Tracer("paddock/templatecenter") }

// serveBuild takes a job in. It waits its turn behind those that came before.
func (c *Center) serveBuild(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TCBuildRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = c.accept(r.Context(), req)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.TCAnswer{Status: "accepted", JobID: req.JobID})
}

// accept refuses what is not a job of the master's: fault.InvalidInput for a
// request that differs from the stored one, fault.JobNotFound for a job that is
// not there or not active, fault.BuildInProgress for one that is in hand.
func (c *Center) accept(ctx context.Context, req cubeapi.TCBuildRequest) error {
	if _, err := c.bytes(); err != nil {
		return err
	}
	if err := template.CheckID(req.JobID); err != nil {
		return err
	}
	var j template.Job
	err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		j, err = templatedb.GetJob(ctx, tx, template.JobID(req.JobID))
		return err
	})
	switch {
	case err != nil:
		return err
	case j.State != template.JobQueued && j.State != template.JobBuilding:
		return fault.New(fault.JobNotFound, "job %s is %s, not to be built", j.ID, j.State)
	case string(j.TemplateID) != req.TemplateID:
		return fault.New(fault.InvalidInput, "job %s is of template %s, not %q", j.ID, j.TemplateID, req.TemplateID)
	}
	if err := sameRequest(j, req.Request); err != nil {
		return err
	}
	return c.queue.add(req)
}

// sameRequest refuses a request that is not the one that the job stored:
// whoever calls must not choose what a known job builds.
func sameRequest(j template.Job, given cubeapi.FromImageRequest) error {
	var stored cubeapi.FromImageRequest
	if err := json.Unmarshal(j.Request, &stored); err != nil {
		return fault.Wrap(fault.Bug, err, "job %s: its stored request", j.ID)
	}
	var texts [2][]byte
	for i, r := range []cubeapi.FromImageRequest{stored, given} {
		r.RegistryUsername, r.RegistryPassword = "", ""
		b, err := json.Marshal(r)
		if err != nil {
			return fault.Wrap(fault.InvalidInput, err, "request of job %s", j.ID)
		}
		texts[i] = b
	}
	if !bytes.Equal(texts[0], texts[1]) {
		return fault.New(fault.InvalidInput, "the request is not the one that job %s stored", j.ID)
	}
	return nil
}

// build does one job and tells how it ended, whatever happens.
func (c *Center) build(ctx context.Context, req cubeapi.TCBuildRequest) {
	ctx = telemetry.Join(logs.WithRequestID(ctx, req.Request.RequestID), req.Trace)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, span := tracer().Start(ctx, "template.image.build", trace.WithAttributes(attribute.String("job_id", req.JobID), attribute.String("template_id", req.TemplateID)))
	defer span.End()
	began := time.Now()
	t := c.newTeller(ctx, req.JobID, cancel)
	err := c.run(ctx, req, t)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause // why it was cancelled says more
	}
	t.close()
	outcome := "built"
	if err != nil {
		outcome = fault.Of(err).Name
		span.RecordError(err)
		span.SetStatus(codes.Error, outcome)
		t.failed(c.failure(ctx, err))
	}
	c.metrics.build.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	if err := c.board.Clear(context.WithoutCancel(ctx), template.JobID(req.JobID)); err != nil {
		c.log.DebugContext(ctx, "progress board", slog.String("error", err.Error()))
	}
}

// failure is how the master is told. The words of an internal error stay in
// the log.
func (c *Center) failure(ctx context.Context, err error) cubeapi.JobReport {
	switch {
	case errors.Is(err, context.Canceled):
		err = fault.New(fault.BuildCancelled, "the template centre stopped")
	case errors.Is(err, context.DeadlineExceeded):
		err = fault.New(fault.BuildTooLong, "build within templatecenter.build_timeout %s", c.cfg.TemplateCenter.BuildTimeout)
	}
	d := fault.Describe(err)
	c.log.WarnContext(ctx, "build failed", slog.String("code", d.Code), slog.String("error", err.Error()))
	return cubeapi.JobReport{Status: cubeapi.StatusFailed, ErrorCode: d.Code, ErrorMessage: d.Message}
}

// run resolves the image, and finds or makes its artifact while no other build
// of equal bytes does, in the whole system. It returns when the master knows.
func (c *Center) run(ctx context.Context, req cubeapi.TCBuildRequest, t *teller) error {
	if err := ctx.Err(); err != nil {
		return err // it never had its turn
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TemplateCenter.BuildTimeout)
	defer cancel()
	t.phase(template.PhasePulling)
	ca, err := c.egressCA(req.Request)
	if err != nil {
		return err
	}
	im, err := rootfs.Resolve(ctx, rootfs.Request{
		Reference: req.Request.SourceImageRef, Auth: rootfs.Auth{Username: req.Request.RegistryUsername, Password: req.Request.RegistryPassword},
		InsecureRegistries: c.cfg.TemplateCenter.InsecureRegistries, GuestPath: c.cfg.TemplateCenter.GuestBinary, WorkDir: c.cfg.TemplateCenter.WorkDir,
		EgressCA: ca, Cache: c.cache, Limits: rootfs.LimitsOf(c.cfg.TemplateCenter.ImageLimits), Policy: rootfs.PolicyOf(c.cfg.TemplateCenter.ImagePolicy),
		Progress: t.event, Free: c.free,
	})
	if err != nil {
		return err
	}
	defer func() {
		if err := im.Close(); err != nil {
			c.log.WarnContext(ctx, "image not closed", slog.String("error", err.Error()))
		}
	}()
	spec, err := specOf(req.Request, im)
	if err != nil {
		return err
	}
	t.identify(im.Digest, spec)
	id := template.ArtifactIDOf(im.ContentKey())
	for {
		locked, err := c.db.WithLock(ctx, lockOf(id), 0, func(ctx context.Context) error { return c.settle(ctx, req, im, spec, t) })
		if err != nil || locked {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// lockOf names the lock of an artifact's bytes: who makes or removes them has it.
func lockOf(id template.ArtifactID) string { return id.BuildLock() }

// settle makes the artifact and tells of it. It runs under the lock until the
// master has the row: the next in line must find it.
func (c *Center) settle(ctx context.Context, req cubeapi.TCBuildRequest, im *rootfs.Image, spec string, t *teller) error {
	for try := 1; ; try++ {
		done, err := c.make(ctx, req, im, t)
		if err != nil {
			return err
		}
		done.TemplateID, done.SpecFingerprint = req.TemplateID, spec
		t.close()
		if err = t.built(done); err == nil {
			return nil
		}
		// An artifact that is being deleted cannot be used: the next round removes
		// it and makes it anew.
		if again := errors.Is(err, fault.StateConflict) && c.deleting(ctx, template.ArtifactID(done.ArtifactID)); again && try < makeTries {
			continue
		}
		c.disown(ctx, done, err)
		return err
	}
}

func (c *Center) deleting(ctx context.Context, id template.ArtifactID) bool {
	a, found, err := c.row(ctx, id)
	return err == nil && found && a.State == template.ArtifactDeleting
}

// disown removes bytes that the master refused to register. When it could not
// be asked they stay: it may have the row and only the answer was lost.
func (c *Center) disown(ctx context.Context, done cubeapi.JobReport, why error) {
	if done.Reused || fault.Of(why).Class.Retry {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	if _, found, err := c.row(ctx, template.ArtifactID(done.ArtifactID)); err != nil || found {
		return // the sweep looks again
	}
	if err := c.discard(ctx, template.ArtifactID(done.ArtifactID)); err != nil {
		c.log.WarnContext(ctx, "bytes that nobody wants not removed; the sweep will", slog.String("artifact_id", done.ArtifactID), slog.String("error", err.Error()))
	}
}

func (c *Center) row(ctx context.Context, id template.ArtifactID) (a template.Artifact, found bool, err error) {
	err = c.db.View(ctx, func(tx *store.Tx) (err error) {
		a, err = templatedb.GetArtifact(ctx, tx, id)
		return err
	})
	if errors.Is(err, fault.ArtifactNotFound) {
		return a, false, nil
	}
	return a, err == nil, err
}

// make finds or makes the artifact of im.
func (c *Center) make(ctx context.Context, req cubeapi.TCBuildRequest, im *rootfs.Image, t *teller) (cubeapi.JobReport, error) {
	key := im.ContentKey()
	id := template.ArtifactIDOf(key)
	done := cubeapi.JobReport{
		Status: cubeapi.StatusBuilt, ArtifactID: string(id), ContentKey: key, SourceImageDigest: im.Digest,
		StorageBackend: c.keep.Backend(), ObjectKey: objectKey(id), Ext4Path: c.keep.Location(objectKey(id)),
		ImageConfig: &cubeapi.ImageConfig{Entrypoint: im.Config.Entrypoint, Cmd: im.Config.Cmd, Env: im.Config.Env, WorkingDir: im.Config.WorkingDir, User: im.Config.User},
	}
	have, err := c.reusable(ctx, id)
	if err != nil {
		return done, err
	}
	if have != nil {
		done.Ext4SHA256, done.Ext4SizeBytes, done.Reused = have.SHA256, have.SizeBytes, true
		done.StorageBackend, done.ObjectKey = have.Backend, have.Location // they may be in the directory of before
		return done, nil
	}
	if err := c.storeRoom(ctx, im); err != nil {
		return done, err
	}
	file := rootfs.Target(c.cfg.TemplateCenter.WorkDir, req.JobID)
	defer func() { _ = os.Remove(file) }() // gone already when the store took it
	res, err := im.WriteTo(ctx, file)
	if err != nil {
		return done, err
	}
	t.phase(template.PhaseStoring)
	if err := fail.Point("templatecenter.before_store"); err != nil {
		return done, err
	}
	if err := c.storeReceipt(ctx, id, res.Receipt, file+".receipt"); err != nil {
		return done, err
	}
	if err := c.keep.Put(ctx, objectKey(id), file); err != nil {
		return done, err
	}
	c.metrics.bytes.WithLabelValues("stored").Add(float64(res.SizeBytes))
	done.Ext4SHA256, done.Ext4SizeBytes = res.SHA256, res.SizeBytes
	return done, fail.Point("templatecenter.after_store")
}

// storeRoom refuses a build whose outcome the store cannot take, before it
// begins.
func (c *Center) storeRoom(ctx context.Context, im *rootfs.Image) error {
	where := c.keep.Location("")
	return rootfs.Room(ctx, c.cache, im.Reference, where, im.FileBytes(), func() (int64, error) {
		free, err := c.keep.Free(ctx)
		if c.free != nil && c.keep.Backend() == "dir" {
			free, err = c.free(where)
		}
		if err != nil {
			return 0, fault.Wrap(fault.StoreUnavailable, err, "artifact store %s", where)
		}
		return free, nil
	})
}

// What the store has of an artifact.
const (
	objectEnd  = ".ext4"
	receiptEnd = ".receipt.json"
)

func objectKey(id template.ArtifactID) string { return string(id) + objectEnd }

// reusable returns a ready artifact whose bytes are there. When the store
// cannot tell, the build fails: nothing is rebuilt on a guess. An artifact that
// is on its way out goes now.
func (c *Center) reusable(ctx context.Context, id template.ArtifactID) (*template.Artifact, error) {
	a, found, err := c.row(ctx, id)
	switch {
	case err != nil || !found:
		return nil, err
	case a.State == template.ArtifactDeleting:
		return nil, c.remove(ctx, a)
	case a.State != template.ArtifactReady:
		return nil, nil
	}
	info, _, err := c.statBytes(ctx, objectKey(id))
	if errors.Is(err, fault.ArtifactNotFound) || err == nil && info.Size != a.SizeBytes {
		return nil, nil
	}
	return &a, err
}

// egressCA is the file of certificates that a request wants in its image. Who
// says nothing gets what there is; who asks for them is not left without.
func (c *Center) egressCA(r cubeapi.FromImageRequest) (string, error) {
	file := c.cfg.TemplateCenter.EgressCA
	switch {
	case r.WithCubeCA != nil && !*r.WithCubeCA:
		return "", nil
	case r.WithCubeCA != nil && file == "":
		return "", fault.New(fault.InvalidInput, "with_cube_ca: templatecenter.egress_ca names no file of certificates")
	}
	return file, nil
}

// specOf names what the request promises to its sandboxes.
func specOf(r cubeapi.FromImageRequest, im *rootfs.Image) (string, error) {
	ports := slices.Clone(r.ExposedPorts)
	slices.Sort(ports)
	words := make([]string, len(ports))
	for i, p := range ports {
		words[i] = strconv.Itoa(p)
	}
	overrides, err := json.Marshal(r.Overrides)
	if err != nil {
		return "", err
	}
	return template.SpecFingerprint(template.Spec{
		ImageDigest: im.Digest, GuestSHA256: im.GuestSHA256(), CASHA256: im.CASHA256(), WritableLayerSize: r.WritableLayerSize, ExposedPorts: strings.Join(words, ":"),
		InstanceType: r.InstanceType, NetworkType: r.NetworkType, Overrides: string(overrides),
	}), nil
}
