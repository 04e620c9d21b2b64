package templatecenter

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	maxBody      = 1 << 20
	reportEvery  = 800 * time.Millisecond // of pull progress
	heartbeat    = 10 * time.Second       // in every phase
	lockPoll     = 2 * time.Second
	callTime     = 10 * time.Second
	progressTry  = 2
	outcomeTries = 12
)

var tracer = otel.Tracer("paddock/templatecenter")

// progress is what each phase counts as; it only grows.
var progress = map[template.Phase]int{
	template.PhasePulling: 5, template.PhaseUnpacking: 20, template.PhaseBuildingExt4: 40, template.PhaseStoring: 60,
}

// serveBuild takes a job in. It waits its turn behind those that came before.
func (c *Center) serveBuild(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TCBuildRequest
	if err := serve.ReadJSON(r, maxBody, &req); err != nil {
		serve.WriteError(w, r, err)
		return
	}
	if err := c.accept(r.Context(), req); err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.TCAnswer{Status: "accepted", JobID: req.JobID})
}

func (c *Center) accept(ctx context.Context, req cubeapi.TCBuildRequest) error {
	if err := template.CheckID(req.JobID); err != nil {
		return err
	}
	err := c.db.View(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, template.JobID(req.JobID))
		if err == nil && j.State != template.JobQueued && j.State != template.JobBuilding {
			err = fault.New(fault.StateConflict, "job %s is %s", j.ID, j.State)
		}
		return err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.building[req.JobID] {
		return nil // the first answer was lost; the job is in hand
	}
	if c.running.Err() != nil {
		return fault.New(fault.PeerUnavailable, "template centre: it stops")
	}
	c.building[req.JobID] = true
	c.metrics.queued.Inc()
	c.builds.Go(func() {
		defer c.forget(req.JobID)
		c.build(telemetry.Join(logs.WithRequestID(c.running, req.Request.RequestID), req.Trace), req)
	})
	return nil
}

func (c *Center) forget(jobID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.building, jobID)
	c.metrics.queued.Dec()
}

// build does one job and tells how it ended, whatever happens.
func (c *Center) build(ctx context.Context, req cubeapi.TCBuildRequest) {
	ctx, span := tracer.Start(ctx, "template.image.build", trace.WithAttributes(attribute.String("job_id", req.JobID)))
	defer span.End()
	t := &teller{c: c, jobID: req.JobID}
	stopBeat := t.beat(ctx)
	done, err := c.turn(ctx, req, t)
	stopBeat()
	outcome := "built"
	if err != nil {
		outcome = fault.Of(err).Name
		span.RecordError(err)
		done = c.failure(err)
	}
	c.metrics.ended.WithLabelValues(outcome).Inc()
	t.end(ctx, done)
}

// failure is how the master is told. The words of an internal error stay in
// the log.
func (c *Center) failure(err error) cubeapi.JobReport {
	code := fault.Of(err)
	switch {
	case errors.Is(err, context.Canceled):
		code, err = fault.BuildFailed, fault.New(fault.BuildFailed, "the template centre stopped")
	case errors.Is(err, context.DeadlineExceeded):
		code, err = fault.Deadline, fault.New(fault.Deadline, "build within %s", c.cfg.TemplateCenter.BuildTimeout)
	}
	c.log.Warn("build failed", slog.String("code", code.Name), slog.String("error", err.Error()))
	return cubeapi.JobReport{Status: cubeapi.StatusFailed, ErrorCode: code.Name, ErrorMessage: err.Error()}
}

// turn waits for a builder and builds.
func (c *Center) turn(ctx context.Context, req cubeapi.TCBuildRequest, t *teller) (cubeapi.JobReport, error) {
	select {
	case c.queue <- struct{}{}:
		defer func() { <-c.queue }()
	case <-ctx.Done():
		return cubeapi.JobReport{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TemplateCenter.BuildTimeout)
	defer cancel()
	t.phase(template.PhasePulling, template.Pull{})
	im, err := rootfs.Resolve(ctx, rootfs.Request{
		Reference: req.Request.SourceImageRef, Auth: rootfs.Auth{Username: req.Request.RegistryUsername, Password: req.Request.RegistryPassword},
		InsecureRegistries: c.cfg.TemplateCenter.InsecureRegistries, GuestPath: c.cfg.TemplateCenter.GuestBinary, WorkDir: c.cfg.TemplateCenter.WorkDir,
		Progress: func(e rootfs.Event) { t.phase(e.Phase, e.Pull) },
	})
	if err != nil {
		return cubeapi.JobReport{}, err
	}
	spec, err := specOf(req.Request, im)
	if err != nil {
		return cubeapi.JobReport{}, err
	}
	t.identify(im.Digest, spec)
	var done cubeapi.JobReport
	for {
		// One build of equal bytes at a time, in the whole system: the others
		// find its artifact.
		locked, err := c.db.WithLock(ctx, "tc_build_"+im.ContentKey(), 0, func(ctx context.Context) (err error) {
			done, err = c.make(ctx, req, im, spec, t)
			if err == nil {
				// Still under the lock: the next in line must find the row.
				err = t.built(ctx, done)
			}
			return err
		})
		if err != nil || locked {
			return done, err
		}
		select {
		case <-ctx.Done():
			return done, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// make finds or makes the artifact of im.
func (c *Center) make(ctx context.Context, req cubeapi.TCBuildRequest, im *rootfs.Image, spec string, t *teller) (cubeapi.JobReport, error) {
	key := im.ContentKey()
	id := template.ArtifactIDOf(key)
	done := cubeapi.JobReport{
		Status: cubeapi.StatusBuilt, TemplateID: req.TemplateID, ArtifactID: string(id), ContentKey: key, SourceImageDigest: im.Digest, SpecFingerprint: spec,
		StorageBackend: c.keep.Backend(), ObjectKey: objectKey(id), Ext4Path: c.keep.Location(objectKey(id)),
		ImageConfig: &cubeapi.ImageConfig{Entrypoint: im.Config.Entrypoint, Cmd: im.Config.Cmd, Env: im.Config.Env, WorkingDir: im.Config.WorkingDir, User: im.Config.User},
	}
	have, err := c.reusable(ctx, key)
	if err != nil {
		return done, err
	}
	if have != nil {
		done.Ext4SHA256, done.Ext4SizeBytes, done.Reused = have.SHA256, have.SizeBytes, true
		return done, nil
	}
	file := c.target(req.JobID)
	defer func() { _ = os.Remove(file) }() // gone already when the store took it
	res, err := im.WriteTo(ctx, file)
	if err != nil {
		return done, err
	}
	t.phase(template.PhaseStoring, template.Pull{})
	if err := c.keep.Put(ctx, objectKey(id), file); err != nil {
		return done, err
	}
	done.Ext4SHA256, done.Ext4SizeBytes = res.SHA256, res.SizeBytes
	return done, nil
}

func objectKey(id template.ArtifactID) string { return string(id) + ".ext4" }

// reusable returns a ready artifact of these bytes whose bytes are there. When
// the store cannot tell, the build fails: nothing is rebuilt on a guess.
func (c *Center) reusable(ctx context.Context, key string) (*template.Artifact, error) {
	var a template.Artifact
	var found bool
	err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		a, found, err = templatedb.ArtifactByContentKey(ctx, tx, key)
		return err
	})
	if err != nil || !found || a.State != template.ArtifactReady {
		return nil, err
	}
	info, err := c.keep.Stat(ctx, objectKey(a.ID))
	if errors.Is(err, fault.ArtifactNotFound) || err == nil && info.Size != a.SizeBytes {
		return nil, nil
	}
	return &a, err
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
		ImageDigest: im.Digest, GuestSHA256: im.GuestSHA256(), WritableLayerSize: r.WritableLayerSize, ExposedPorts: strings.Join(words, ":"),
		InstanceType: r.InstanceType, NetworkType: r.NetworkType, Overrides: string(overrides),
	}), nil
}

// teller tells the master how a job goes: each phase when it begins, the pull
// now and then, and a sign of life in between.
type teller struct {
	c     *Center
	jobID string

	mu      sync.Mutex
	now     cubeapi.JobReport
	current template.Phase
	began   time.Time
	sent    time.Time
	told    bool
	wake    chan struct{}
}

// phase notes where the build stands.
func (t *teller) phase(p template.Phase, pull template.Pull) {
	t.mu.Lock()
	fresh := p != t.current
	if fresh {
		if t.current != "" {
			t.c.metrics.phase.WithLabelValues(string(t.current)).Observe(time.Since(t.began).Seconds())
		}
		t.current, t.began = p, time.Now()
		t.now.Status, t.now.Phase, t.now.Progress = cubeapi.StatusRunning, cubeapi.Word(p), progress[p]
	}
	if pull.TotalBytes > 0 {
		t.now.PullTotalBytes, t.now.PullDoneBytes, t.now.PullTotalLayers, t.now.PullDoneLayers, t.now.PullBytesPerSecond = pull.TotalBytes, pull.DoneBytes, pull.TotalLayers, pull.DoneLayers, pull.BytesPerSecond
	}
	due := fresh || time.Since(t.sent) > reportEvery
	wake := t.wake
	t.mu.Unlock()
	if due && wake != nil {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func (t *teller) identify(digest, spec string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now.SourceImageDigest, t.now.SpecFingerprint = digest, spec
}

// beat reports until the returned function is called, which waits for the
// last report to be out.
func (t *teller) beat(ctx context.Context) (stop func()) {
	t.wake = make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-t.wake:
			}
			t.mu.Lock()
			report := t.now
			t.sent = time.Now()
			t.mu.Unlock()
			if report.Status == "" {
				continue // still waiting for a builder: the row says so
			}
			// A lost report is made good by the next.
			if err := t.send(ctx, report, progressTry); err != nil && ctx.Err() == nil {
				t.c.log.WarnContext(ctx, "progress not told", slog.String("job_id", t.jobID), slog.String("error", err.Error()))
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// built tells of the artifact, and that it was told.
func (t *teller) built(ctx context.Context, r cubeapi.JobReport) error {
	err := t.send(ctx, r, outcomeTries)
	t.told = err == nil
	return err
}

// end tells the outcome, unless it was told. On a context of its own: a
// cancelled build must still be told of.
func (t *teller) end(ctx context.Context, r cubeapi.JobReport) {
	if t.told {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	if err := t.send(ctx, r, outcomeTries); err != nil {
		t.c.log.ErrorContext(ctx, "outcome of a build not told; the sweep will end its job", slog.String("job_id", t.jobID), slog.String("error", err.Error()))
	}
}

// send reports, and again while the master may only be away for a moment.
func (t *teller) send(ctx context.Context, r cubeapi.JobReport, tries int) error {
	pause := 200 * time.Millisecond
	for try := 1; ; try++ {
		bounded, cancel := context.WithTimeout(ctx, callTime)
		err := t.c.report.Job(bounded, t.jobID, r)
		cancel()
		if err == nil || try == tries || !fault.Of(err).Class.Retry && !errors.Is(err, fault.Bug) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		}
	}
}
