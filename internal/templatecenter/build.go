package templatecenter

import (
	"bytes"
	"cmp"
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

// serveBuild takes the master's word of a job: that it waits, and what it may be
// pulled with. It waits its turn in the database behind those that came before.
func (c *Center) serveBuild(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TCBuildRequest
	err := serve.ReadJSON(r, maxBody+int64(c.cfg.TemplateCenter.MaxEnvdMiB)<<20*4/3, &req) // an envd is in base64
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
	var held bool
	err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		if j, err = templatedb.GetJob(ctx, tx, template.JobID(req.JobID)); err != nil {
			return err
		}
		hold, _, err := templatedb.HoldOf(ctx, tx, j)
		held = hold == template.Held
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
	if err := c.checkEnvd(req); err != nil {
		return err
	}
	if held {
		return fault.New(fault.BuildInProgress, "job %s", j.ID)
	}
	given := handOver{trace: req.Trace}
	if isPrivate(j) { // of others, nothing is kept that could be
		given.private, given.username, given.password, given.envd = true, req.Request.RegistryUsername, req.Request.RegistryPassword, req.EnvdData
	}
	return c.queue.hand(j.ID, given)
}

// stored is a request as the master stores it: without credentials, but with the
// mark that it had some.
type stored struct {
	cubeapi.FromImageRequest
	Private bool `json:"private"`
}

func storedRequest(j template.Job) (s stored, err error) {
	if err := json.Unmarshal(j.Request, &s); err != nil {
		return s, fault.Wrap(fault.Bug, err, "job %s: its stored request", j.ID)
	}
	return s, nil
}

// isPrivate reports whether only who has credentials can build j. One that
// cannot be read is for anybody, who will fail it.
func isPrivate(j template.Job) bool {
	s, err := storedRequest(j)
	return err == nil && s.Private
}

// sameRequest refuses a request that is not the one that the job stored:
// whoever calls must not choose what a known job builds.
func sameRequest(j template.Job, given cubeapi.FromImageRequest) error {
	kept, err := storedRequest(j)
	if err != nil {
		return err
	}
	var texts [2][]byte
	for i, r := range []cubeapi.FromImageRequest{kept.FromImageRequest, given} {
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
func (c *Center) build(ctx context.Context, j claim) {
	req, err := j.request()
	ctx = telemetry.Join(logs.WithRequestID(ctx, req.RequestID), j.hand.trace)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, span := tracer().Start(ctx, "template.image.build", trace.WithAttributes(attribute.String("job_id", string(j.job.ID)), attribute.String("template_id", string(j.job.TemplateID))))
	defer span.End()
	began := time.Now()
	stop := c.queue.keep(ctx, j, cancel)
	t := c.newTeller(ctx, j, cancel)
	if err == nil {
		err = c.run(ctx, j, req, t)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause // why it was cancelled says more
	}
	t.close()
	outcome, told := "built", true
	if err != nil && c.queue.giveBack(ctx, j) {
		outcome = "returned"
	} else if err != nil {
		outcome = fault.Of(err).Name
		span.RecordError(err)
		span.SetStatus(codes.Error, outcome)
		report := c.failure(ctx, j.job, err)
		if !errors.Is(err, fault.StaleController) { // else the job is another's to tell of
			told = t.failed(report)
		}
	}
	stop()
	if told || ctx.Err() != nil {
		c.queue.release(ctx, j.Fence)
	} // else whoever is next gives the master the time of a lease to come back
	c.metrics.build.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	if err := c.board.Clear(context.WithoutCancel(ctx), j.job.ID); err != nil {
		c.log.DebugContext(ctx, "progress board", slog.String("error", err.Error()))
	}
}

// failure is how the master is told. The words of an internal error stay in
// the log.
func (c *Center) failure(ctx context.Context, j template.Job, err error) cubeapi.JobReport {
	switch {
	case errors.Is(err, context.Canceled) && isPrivate(j):
		err = fault.New(fault.BuildCancelled, "the template centre stopped, and with it went the credentials of the image, which are kept in its memory only: ask for the template again")
	case errors.Is(err, context.Canceled):
		err = fault.New(fault.BuildCancelled, "the template centre stopped")
	case errors.Is(err, context.DeadlineExceeded): // of a part, which has a limit of its own
		err = fault.Wrap(fault.BuildFailed, err, "a part of the build did not end in its time")
	}
	d := fault.Describe(err)
	c.log.WarnContext(ctx, "build failed", slog.String("code", d.Code), slog.String("error", err.Error()))
	return cubeapi.JobReport{Status: cubeapi.StatusFailed, ErrorCode: d.Code, ErrorMessage: d.Message}
}

// run resolves the image, and finds or makes its artifact while no other build
// of equal bytes does, in the whole system. It returns when the master knows.
func (c *Center) run(ctx context.Context, j claim, req cubeapi.FromImageRequest, t *teller) (err error) {
	if err := ctx.Err(); err != nil {
		return err // it never had its turn
	}
	limit := c.cfg.TemplateCenter.BuildTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fault.New(fault.BuildTooLong, "build within templatecenter.build_timeout %s", limit))
	defer cancel()
	defer func() {
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, fault.BuildTooLong) {
			err = cause
		}
	}()
	t.say("template centre %s begins, attempt %d of at most %d", j.Holder, j.Epoch, template.MaxBuilders)
	t.phase(template.PhasePulling)
	ca, err := c.egressCA(req)
	if err != nil {
		return err
	}
	guest, done, err := c.guest(req, j.hand.envd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	local, remove, err := c.fromSnapshot(ctx, req.SourceImageRef)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	im, err := rootfs.Resolve(ctx, rootfs.Request{
		Reference: cmp.Or(local, req.SourceImageRef), Local: local != "", Auth: rootfs.Auth{Username: req.RegistryUsername, Password: req.RegistryPassword},
		InsecureRegistries: c.cfg.TemplateCenter.InsecureRegistries, GuestPath: guest, WorkDir: c.cfg.TemplateCenter.WorkDir,
		EgressCA: ca, Cache: c.cache, Limits: rootfs.LimitsOf(c.cfg.TemplateCenter.ImageLimits), Policy: rootfs.PolicyOf(c.cfg.TemplateCenter.ImagePolicy),
		Progress: t.event, Free: c.free,
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fault.Wrap(fault.RegistryDown, err, "image %.200q: its registry did not answer in time", req.SourceImageRef)
	}
	if err != nil {
		return err
	}
	t.say("image %s is %s", req.SourceImageRef, im.Digest)
	defer func() {
		if err := im.Close(); err != nil {
			c.log.WarnContext(ctx, "image not closed", slog.String("error", err.Error()))
		}
	}()
	spec, err := specOf(req, im)
	if err != nil {
		return err
	}
	t.identify(im.Digest, spec)
	id := template.ArtifactIDOf(im.ContentKey())
	for {
		locked, err := c.db.WithLock(ctx, lockOf(id), 0, func(ctx context.Context) error { return c.settle(ctx, j, im, spec, t) })
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
func (c *Center) settle(ctx context.Context, j claim, im *rootfs.Image, spec string, t *teller) error {
	for try := 1; ; try++ {
		done, err := c.make(ctx, j, im, t)
		if err != nil {
			return err
		}
		done.TemplateID, done.SpecFingerprint = string(j.job.TemplateID), spec
		t.close()
		if err := fail.Point("templatecenter.before_built"); err != nil {
			return err
		}
		if err = t.built(done); err == nil {
			// The row is there, and nobody can remove it while the lock is held.
			c.noteVersion(ctx, template.ArtifactID(done.ArtifactID), im.GuestSHA256())
			return fail.Point("templatecenter.built")
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
// be asked they stay: it may have the row and only the answer was lost. A builder
// that is superseded removes nothing either: its successor may have stored the
// same bytes by now, and will.
func (c *Center) disown(ctx context.Context, done cubeapi.JobReport, why error) {
	if !done.Reused && !fault.Of(why).Class.Retry && !errors.Is(why, fault.StaleController) && !errors.Is(why, context.Canceled) {
		c.unstore(ctx, template.ArtifactID(done.ArtifactID))
	}
}

// unstore removes what a build that came to nothing stored, unless it is in the
// books. The caller has the lock of these bytes.
func (c *Center) unstore(ctx context.Context, id template.ArtifactID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	if _, found, err := c.row(ctx, id); err != nil || found {
		return // the sweep looks again
	}
	forget := c.db.Update(ctx, func(tx *store.Tx) error { return templatedb.ForgetStore(ctx, tx, id) })
	if err := errors.Join(forget, c.abortUploadsOf(ctx, id), c.discard(ctx, id)); err != nil {
		c.log.WarnContext(ctx, "bytes that nobody wants not removed; the sweep will", slog.String("artifact_id", string(id)), slog.String("error", err.Error()))
	}
}

// stillLocked reports whether a build that failed may act on its bytes: it was
// not ended because its lease or the lock of the bytes was lost.
func stillLocked(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return cause == nil || !errors.Is(cause, fault.StaleController) && !errors.Is(cause, fault.StoreUnavailable)
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
func (c *Center) make(ctx context.Context, j claim, im *rootfs.Image, t *teller) (done cubeapi.JobReport, err error) {
	key := im.ContentKey()
	id := template.ArtifactIDOf(key)
	done = cubeapi.JobReport{
		Status: cubeapi.StatusBuilt, ArtifactID: string(id), ContentKey: key, SourceImageDigest: im.Digest,
		StorageBackend: c.keep.Backend(), ObjectKey: objectKey(id), Ext4Path: c.keep.Location(objectKey(id)),
		ImageConfig: &cubeapi.ImageConfig{Entrypoint: im.Config.Entrypoint, Cmd: im.Config.Cmd, Env: im.Config.Env, WorkingDir: im.Config.WorkingDir, User: im.Config.User},
	}
	have, err := c.reusable(ctx, id)
	if err != nil {
		return done, err
	}
	if have != nil {
		t.say("artifact %s of equal bytes is used again: %d bytes", id, have.SizeBytes)
		done.Ext4SHA256, done.Ext4SizeBytes, done.Reused = have.SHA256, have.SizeBytes, true
		done.StorageBackend, done.ObjectKey = have.Backend, have.Location // they may be in the directory of before
		return done, nil
	}
	if err := c.storeRoom(ctx, im); err != nil {
		return done, err
	}
	file := rootfs.Target(c.cfg.TemplateCenter.WorkDir, string(j.job.ID))
	defer func() { _ = os.Remove(file) }() // gone already when the store took it
	res, err := im.WriteTo(ctx, file)
	if err != nil {
		return done, err
	}
	for i, l := range res.Receipt.Layers {
		t.say("layer %d of %d, %s: %d bytes pulled, %d bytes and %d entries in its archive", i+1, len(res.Receipt.Layers), l.Digest, l.SizeBytes, l.ArchiveBytes, l.Entries)
	}
	t.say("ext4 image: %d entries, %d bytes, sha256 %s", res.Entries, res.SizeBytes, res.SHA256)
	t.phase(template.PhaseStoring)
	defer func() {
		if err != nil && stillLocked(ctx) {
			c.unstore(ctx, id)
		}
	}()
	if err := fail.Point("templatecenter.before_store"); err != nil {
		return done, err
	}
	if err := ctx.Err(); err != nil {
		return done, err // a store may not look
	}
	if j.Epoch > 1 { // an earlier builder may have begun to store these
		if err := c.abortUploadsOf(ctx, id); err != nil {
			return done, err
		}
	}
	if err := c.noteStore(ctx, id, c.keep); err != nil {
		return done, err
	}
	if err := c.storeReceipt(ctx, id, res.Receipt, file+".receipt"); err != nil {
		return done, err
	}
	if err := c.keep.Put(ctx, objectKey(id), file); err != nil {
		return done, err
	}
	t.say("stored in %s as %s", c.keep.Backend(), objectKey(id))
	c.metrics.bytes.WithLabelValues("stored").Add(float64(res.SizeBytes))
	done.Ext4SHA256, done.Ext4SizeBytes = res.SHA256, res.SizeBytes
	if _, done.ManifestSHA256, err = manifestOf(res.Receipt).Encode(); err != nil {
		return done, err
	}
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
	if err == nil {
		err = sameSize(a, info)
	}
	if errors.Is(err, fault.ArtifactNotFound) || errors.Is(err, fault.ArtifactCorrupt) {
		// Others may have it whole: then it is neither built again nor written here.
		if err = c.absence(ctx, a, fault.New(fault.ArtifactNotFound, "artifact %s", id)); errors.Is(err, fault.ArtifactNotFound) {
			return nil, nil
		}
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
	if r.Network != nil {
		network, err := json.Marshal(r.Network)
		if err != nil {
			return "", err
		}
		overrides = append(overrides, network...)
	}
	return template.SpecFingerprint(template.Spec{
		ImageDigest: im.Digest, GuestSHA256: im.GuestSHA256(), CASHA256: im.CASHA256(), WritableLayerSize: r.WritableLayerSize, ExposedPorts: strings.Join(words, ":"),
		InstanceType: r.InstanceType, NetworkType: r.NetworkType, Overrides: string(overrides),
	}), nil
}
