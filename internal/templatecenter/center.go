// Package templatecenter is the build service: it makes artifacts of images,
// keeps their bytes, hands them out, and lets them go.
//
// The rows of the jobs that wait are its queue, which several such services
// share. The master owns every row of jobs and templates; this service tells it
// what happens and writes a job row in three cases only: one that it takes in
// hand, which it touches, one that it gives back when it stops, and one that nobody
// has in hand any more, which it ends. It
// must never call a host.
package templatecenter

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/progress"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/template"
)

// keeper is where bytes are kept.
type keeper interface {
	Put(ctx context.Context, key, path string) error
	Open(ctx context.Context, key string) (io.ReadSeekCloser, artifact.Info, error)
	Stat(ctx context.Context, key string) (artifact.Info, error)
	Remove(ctx context.Context, key string) error
	accounted
}

// accounted is what is asked of a store beside its bytes.
type accounted interface {
	Backend() string
	Location(key string) string
	Free(ctx context.Context) (int64, error)
	List(ctx context.Context, each func(key string, i artifact.Info) error) error
	identified
}

// Board shows how far pulls are to whoever looks. Losing it breaks nothing.
type Board interface {
	Put(ctx context.Context, id template.JobID, p template.Pull) error
	Clear(ctx context.Context, id template.JobID) error
}

// Deps are what a template centre needs.
type Deps struct {
	Config  config.Config
	Store   *store.Store
	Log     *slog.Logger
	Metrics *prometheus.Registry
	// Board may be nil: then it is the Redis of the configuration, if any.
	Board Board
	// Free returns the bytes free in a directory; nil asks the system.
	Free func(dir string) (int64, error)
}

// Center is the service.
type Center struct {
	cfg     config.Config
	db      *store.Store
	log     *slog.Logger
	report  *cubeapi.ReportClient
	board   Board
	free    func(dir string) (int64, error)
	metrics metrics
	handler http.Handler
	queue   *queue
	ready   atomic.Bool
	health  health

	opened sync.Mutex
	keep   keeper
	legacy *artifact.Dir // that of before, when keep is another; may be nil
	cache  *blobcache.Cache
	work   *os.File // locked while the work directory is ours
	closes []io.Closer
}

// New returns a template centre. It does no I/O: Open or Run does.
func New(d Deps) (*Center, error) {
	c := &Center{
		cfg: d.Config, db: d.Store, log: d.Log, board: d.Board, free: d.Free,
		report:  cubeapi.NewReportClient(d.Config.Master.Addr, d.Config.Auth.CallbackToken.Reveal()),
		metrics: newMetrics(d.Metrics),
	}
	if c.board == nil && d.Config.Redis.Addr != "" {
		r := progress.NewRedis(d.Config.Redis)
		c.board, c.closes = r, append(c.closes, r)
	}
	if c.board == nil {
		c.board = &progress.Memory{}
	}
	c.queue = newQueue(c, d.Config.TemplateCenter.MaxConcurrentBuilds)
	var err error
	c.handler, err = c.routes(d.Metrics)
	return c, err
}

// Open is New, and prepares the directories at once, so that a bad one is told
// before anything is served: fault.DataDir, fault.DataDirLocked,
// fault.ToolMissing.
func Open(d Deps) (*Center, error) {
	c, err := New(d)
	if err != nil {
		return nil, err
	}
	return c, c.open()
}

// open makes the directories, takes the work directory for this process, and
// removes what an earlier one left half done there. It does so once.
func (c *Center) open() (err error) {
	c.opened.Lock()
	defer c.opened.Unlock()
	if c.keep != nil {
		return nil
	}
	work := c.cfg.TemplateCenter.WorkDir
	if err := os.MkdirAll(work, 0o700); err != nil {
		return fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", work)
	}
	if c.work, err = lockDir(work); err != nil {
		return err
	}
	if err := rootfs.Sweep(work); err != nil {
		return errors.Join(fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", work), c.work.Close())
	}
	if c.cache, err = openCache(c.cfg.TemplateCenter, c.log); err != nil {
		return errors.Join(err, c.work.Close())
	}
	keep, err := openStore(c.cfg.ArtifactStore)
	if err != nil {
		return errors.Join(err, c.cache.Close(), c.work.Close())
	}
	c.legacy = findLegacy(c.cfg.ArtifactStore)
	c.keep = keep // only what is open: a nil of some type would pass for it
	return nil
}

// lockDir keeps two processes from sweeping each other's builds. The lock ends
// with the process, however it ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fault.Wrap(fault.DataDir, err, "templatecenter.work_dir %s", dir)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fault.Wrap(fault.DataDirLocked, err, "templatecenter.work_dir %s", dir), f.Close())
	}
	return f, nil
}

func openCache(t config.TemplateCenter, log *slog.Logger) (*blobcache.Cache, error) {
	return blobcache.Open(blobcache.Options{Dir: t.CacheDir, Quota: int64(t.CacheQuotaMiB) << 20, Log: log})
}

func openStore(a config.ArtifactStore) (keeper, error) {
	if a.Backend == "s3" {
		return artifact.NewS3(a.S3)
	}
	return artifact.OpenDir(a.Dir)
}

// Handler serves the HTTP face. Requests before Open or Run are refused.
func (c *Center) Handler() http.Handler { return c.handler }

// bytes returns the store, or fault.PeerUnavailable while it is not open.
func (c *Center) bytes() (keeper, error) {
	c.opened.Lock()
	defer c.opened.Unlock()
	if c.keep == nil {
		return nil, fault.New(fault.PeerUnavailable, "template centre: it starts")
	}
	return c.keep, nil
}

// Run builds the jobs of the queue, and sweeps, until ctx ends. Then builds that
// run are cancelled, and it returns when each is given back to the queue, or could
// not within ten seconds; a private one, which nobody else can build, fails. The centre takes no work afterwards.
func (c *Center) Run(ctx context.Context) error {
	if err := c.open(); err != nil {
		return err
	}
	var loops sync.WaitGroup
	loops.Go(func() { c.queue.run(ctx) })
	c.sweepUntil(ctx)
	loops.Wait()
	c.queue.stop()
	var errs []error
	for _, one := range append(c.closes, c.cache, c.work) {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// sweepUntil sweeps each interval, and looks for the hosts each second until
// they were read once.
func (c *Center) sweepUntil(ctx context.Context) {
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
			return
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
	answer := cubeapi.TCAnswer{Status: "ok", Checks: map[string]string{"store": "ok", "nodemeta": "ok", "artifacts": "ok"}}
	status := http.StatusOK
	if err := c.db.Ping(r.Context()); err != nil {
		answer.Status, answer.Checks["store"], status = "not_ready", fault.Of(err).Name, http.StatusServiceUnavailable
	}
	if !c.ready.Load() {
		answer.Status, answer.Checks["nodemeta"], status = "not_ready", "the hosts were not read yet", http.StatusServiceUnavailable
	}
	if err := c.health.ask(r.Context(), c.bytes); err != nil {
		answer.Status, answer.Checks["artifacts"], status = "not_ready", fault.Of(err).Name, http.StatusServiceUnavailable
	}
	serve.WriteJSON(w, status, answer)
}

const (
	healthTime = 3 * time.Second // of one question to the artifact store
	healthKept = 5 * time.Second // its answer
)

// health remembers whether the artifact store answered: who asks for health often
// must not cost the store a call each time, nor hang with it.
type health struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

func (p *health) ask(ctx context.Context, store func() (keeper, error)) error {
	keep, err := store()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.asked) < healthKept {
		return p.err
	}
	// Others wait for the same answer: the caller's end is not that of the question.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTime)
	defer cancel()
	_, p.err = keep.Identity(ctx)
	p.asked = time.Now()
	return p.err
}

type metrics struct {
	phase   *prometheus.HistogramVec
	build   *prometheus.HistogramVec
	waiting prometheus.Gauge
	running prometheus.Gauge
	wait    prometheus.Histogram
	bytes   *prometheus.CounterVec
	stalled prometheus.Counter
}

func newMetrics(reg *prometheus.Registry) metrics {
	seconds := prometheus.ExponentialBuckets(0.05, 2, 15)
	m := metrics{
		phase:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "paddock_build_phase_seconds", Help: "Duration of each phase of a build.", Buckets: seconds}, []string{"phase"}),
		build:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "paddock_build_seconds", Help: "Duration of builds by outcome, from their turn to their end.", Buckets: seconds}, []string{"outcome"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_builds_waiting", Help: "Jobs that wait for a builder, in the whole system."}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_builds_running", Help: "Builds that run in this process."}),
		wait:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "paddock_build_wait_seconds", Help: "How long jobs waited for their builder.", Buckets: seconds}),
		bytes:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_artifact_bytes_total", Help: "Bytes of artifacts: stored, and served to hosts."}, []string{"direction"}),
		stalled: prometheus.NewCounter(prometheus.CounterOpts{Name: "paddock_jobs_stalled_total", Help: "Jobs that a sweep ended."}),
	}
	reg.MustRegister(m.phase, m.build, m.waiting, m.running, m.wait, m.bytes, m.stalled)
	return m
}
