// Package templatecenter is the build service: it makes artifacts of images,
// keeps their bytes, hands them out, and lets them go.
//
// The master owns every row of jobs and templates; this service tells it what
// happens and writes a job row in one case only: a job that nobody reported on
// for too long. It must never call a host.
package templatecenter

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

// keeper is where bytes are kept.
type keeper interface {
	Put(ctx context.Context, key, path string) error
	Open(ctx context.Context, key string) (io.ReadSeekCloser, artifact.Info, error)
	Stat(ctx context.Context, key string) (artifact.Info, error)
	Remove(ctx context.Context, key string) error
	named
}

// named is what artifact rows keep of a store.
type named interface {
	Backend() string
	Location(key string) string
}

// Deps are what a template centre needs.
type Deps struct {
	Config  config.Config
	Store   *store.Store
	Log     *slog.Logger
	Metrics *prometheus.Registry
}

// Center is the service. Make one with Open.
type Center struct {
	cfg     config.Config
	db      *store.Store
	log     *slog.Logger
	keep    keeper
	report  *cubeapi.ReportClient
	queue   chan struct{} // as many as may build at once
	metrics metrics
	handler http.Handler
	ready   atomic.Bool

	mu       sync.Mutex
	building map[string]bool // by job
	builds   sync.WaitGroup
	running  context.Context
	stop     context.CancelFunc
}

type metrics struct {
	phase  *prometheus.HistogramVec
	ended  *prometheus.CounterVec
	queued prometheus.Gauge
	bytes  prometheus.Counter
}

// Open prepares the directories, removes what an earlier process left half
// done, and returns the service.
func Open(d Deps) (*Center, error) {
	c := &Center{
		cfg: d.Config, db: d.Store, log: d.Log,
		report:   cubeapi.NewReportClient(d.Config.Master.Addr, d.Config.Auth.CallbackToken.Reveal()),
		queue:    make(chan struct{}, d.Config.TemplateCenter.MaxConcurrentBuilds),
		building: map[string]bool{},
		metrics: metrics{
			phase:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "paddock_build_phase_seconds", Help: "Duration of each phase of a build.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 14)}, []string{"phase"}),
			ended:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_builds_total", Help: "Builds by outcome."}, []string{"outcome"}),
			queued: prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_builds_open", Help: "Builds that wait or run."}),
			bytes:  prometheus.NewCounter(prometheus.CounterOpts{Name: "paddock_artifact_bytes_total", Help: "Bytes of artifacts handed out."}),
		},
	}
	c.running, c.stop = context.WithCancel(context.Background())
	d.Metrics.MustRegister(c.metrics.phase, c.metrics.ended, c.metrics.queued, c.metrics.bytes)
	work := d.Config.TemplateCenter.WorkDir
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", work)
	}
	if err := rootfs.Sweep(work); err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", work)
	}
	var err error
	if c.keep, err = openStore(d.Config.ArtifactStore); err != nil {
		return nil, err
	}
	c.handler = c.routes(d.Metrics)
	return c, nil
}

func openStore(a config.ArtifactStore) (keeper, error) {
	if a.Backend == "s3" {
		return artifact.NewS3(a.S3)
	}
	return artifact.OpenDir(a.Dir)
}

// Handler serves the HTTP face.
func (c *Center) Handler() http.Handler { return c.handler }

func (c *Center) routes(reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	token := auth.RequireToken(cubeapi.HeaderCallbackToken, c.cfg.Auth.CallbackToken, c.cfg.Auth.InsecureOpen)
	mux.Handle("POST "+cubeapi.PathTCBuild, token(http.HandlerFunc(c.serveBuild)))
	mux.Handle("POST "+cubeapi.PathTCArtifactDelete, token(http.HandlerFunc(c.serveDelete)))
	mux.HandleFunc("GET "+cubeapi.PathArtifactDownload, c.serveDownload) // HEAD too
	mux.HandleFunc("GET "+cubeapi.PathTCHealth, c.serveHealth)
	mux.Handle("GET "+cubeapi.PathMetrics, telemetry.Handler(reg))
	return serve.NewMiddleware("templatecenter", c.log, reg).Wrap(mux)
}

// Run sweeps stalled jobs until ctx ends. Then running builds are cancelled,
// and it returns when each has told the master.
func (c *Center) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for next := time.Now(); ; {
		if !c.ready.Load() {
			c.ready.Store(c.readHosts(ctx) == nil)
		}
		if !time.Now().Before(next) {
			c.sweep(ctx)
			next = time.Now().Add(c.cfg.TemplateCenter.ReconcileInterval)
		}
		select {
		case <-ctx.Done():
			c.stop()
			c.builds.Wait()
			return nil
		case <-tick.C:
		}
	}
}

// readHosts proves that the store is attached and the hosts can be read: the
// readiness rule of spec/template-center 8.
func (c *Center) readHosts(ctx context.Context) error {
	return c.db.View(ctx, func(tx *store.Tx) error {
		_, err := sandboxdb.ListHosts(ctx, tx)
		return err
	})
}

func (c *Center) serveHealth(w http.ResponseWriter, r *http.Request) {
	answer := cubeapi.TCAnswer{Status: "ok", Checks: map[string]string{"store": "ok", "nodemeta": "ok"}}
	status := http.StatusOK
	if err := c.db.Ping(r.Context()); err != nil {
		answer.Status, answer.Checks["store"], status = "not_ready", fault.Of(err).Name, http.StatusServiceUnavailable
	}
	if !c.ready.Load() {
		answer.Status, answer.Checks["nodemeta"], status = "not_ready", "the hosts were not read yet", http.StatusServiceUnavailable
	}
	serve.WriteJSON(w, status, answer)
}

// target is where a build writes before the store takes it.
func (c *Center) target(jobID string) string {
	return filepath.Join(c.cfg.TemplateCenter.WorkDir, jobID+".ext4")
}
