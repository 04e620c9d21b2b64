// Package cubelet runs the sandboxes of one host.
//
// It holds artifacts, starts sandboxes from them, and tells the master what it
// has. What it owns is in a journal on disk before it is made, so that after a
// crash it adopts what still runs and removes the rest. It must never own
// anything that does not carry its tag or lie in its data directory, and never
// say that a sandbox is gone unless it has proof.
package cubelet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
	"github.com/paddock-dev/paddock/internal/cubelet/images"
	"github.com/paddock-dev/paddock/internal/cubelet/mount"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/cubelet/runsc"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// Deps are what a cubelet needs.
type Deps struct {
	Config  config.Config
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Version string
	// GRPCPort is where the host's face really listens.
	GRPCPort int
}

// endTime is how long the sandboxes of a host may take to end when it stops.
const endTime = time.Minute

// StopTime is how long Run may take to return when sandboxes end with it.
const StopTime = endTime + undoTime + 10*time.Second

// driver is what the cubelet asks of the runtime that it was started with.
type driver interface {
	runtime.Driver
	// Reclaim removes what an earlier process left, but for sandboxes to keep.
	Reclaim(ctx context.Context, keep func(id string) bool) error
	// Close gives back what the driver itself has.
	Close() error
}

// Cubelet is the agent of one host. Make one with Open. It is safe for
// concurrent use.
type Cubelet struct {
	cfg     config.Config
	log     *slog.Logger
	version string
	port    int
	dir     string // of everything that outlives the machine's next start
	run     string // of what does not; its path is short, for sockets

	driver  driver
	mounts  *mount.Table
	cgroups *cgroup.Parent
	nets    *network.Pool
	journal journal
	images  *images.Store
	metrics metrics

	base context.Context // ends with Run; bounds what no call waits for
	stop context.CancelFunc
	work sync.WaitGroup // every goroutine of ours
	news chan struct{}  // wakes the report

	mu   sync.Mutex
	live map[string]*instance
	warm warmth
	// passages are the sandboxes that go from one life to the next, and snaps
	// what was kept of sandboxes for others to begin with.
	passages map[string]*passage
	snaps    map[string]*snapshot
	own      host.Resources // what it lets sandboxes have by itself
	quota    host.Quota     // what an operator wants instead
	room     host.Resources // allocatable: what is to be
	count    counter
	// createLimit is how many creates may be under way; 0: any number.
	createLimit int64
	closing     bool
}

// Open takes the host over: it adopts the sandboxes that an earlier process
// left running and removes everything else of its own. Run must follow.
func Open(ctx context.Context, d Deps) (*Cubelet, error) {
	dir := filepath.Join(d.Config.DataDir, "cubelet")
	tag := Tag(d.Config.DataDir)
	c := &Cubelet{
		cfg: d.Config, log: d.Log, version: d.Version, port: d.GRPCPort, dir: dir, run: "/run/paddock-" + tag,
		mounts:  mount.New(filepath.Join(dir, "mounts")),
		journal: journal{filepath.Join(dir, "sandboxes")},
		metrics: newMetrics(d.Metrics),
		news:    make(chan struct{}, 1),
		live:    map[string]*instance{},
		warm:    newWarmth(), passages: map[string]*passage{}, snaps: map[string]*snapshot{},
	}
	c.images = images.New(images.Options{Dir: filepath.Join(dir, "images"), Log: d.Log, Token: d.Config.Auth.HostToken, RedirectTo: d.Config.Redirects()})
	c.base, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, sub := range []string{"mounts", "sandboxes", "images", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fault.Wrap(fault.DataDir, err, "cubelet")
		}
	}
	if err := claim(c.run, dir); err != nil {
		return nil, err
	}
	var err error
	if c.count, err = openCounter(filepath.Join(dir, "revision")); err != nil {
		return nil, err
	}
	if c.driver, err = runsc.Open(d.Config.Cubelet.Runsc, filepath.Join(c.run, "runsc")); err != nil {
		return nil, fault.Wrap(fault.ToolMissing, err, "cubelet.runsc")
	}
	if err := c.openParts(ctx, tag); err != nil {
		return nil, err
	}
	if err := c.recover(ctx); err != nil {
		c.stop()
		c.work.Wait()
		return nil, err
	}
	return c, nil
}

func (c *Cubelet) openParts(ctx context.Context, tag string) error {
	subnet, err := netip.ParsePrefix(c.cfg.Cubelet.Subnet)
	if err != nil {
		return fault.Wrap(fault.BadConfig, err, "cubelet.subnet")
	}
	ports, plane := c.control(ctx)
	c.nets = network.New(tag, subnet, ports...)
	if err := c.nets.Open(ctx, plane...); err != nil {
		return fault.Wrap(fault.ToolMissing, err, "rules of the sandboxes' networks")
	}
	if c.cgroups, err = cgroup.Open("paddock-" + tag); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "cgroups")
	}
	if _, c.own, err = capacity(c.dir, c.cfg.Cubelet); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "capacity of the host")
	}
	return c.openQuota()
}

// Tag names the things of one data directory on a machine with several.
func Tag(dataDir string) string {
	sum := sha256.Sum256([]byte(filepath.Join(dataDir, "cubelet")))
	return hex.EncodeToString(sum[:2])
}

// claim makes the run directory, or refuses when it is another data
// directory's: tags are short, and two that met would remove each other's
// sandboxes.
func claim(run, dir string) error {
	if err := os.MkdirAll(run, 0o700); err != nil {
		return fault.Wrap(fault.DataDir, err, "cubelet")
	}
	path := filepath.Join(run, "owner")
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := os.WriteFile(path, []byte(dir), 0o600); err != nil {
			return fault.Wrap(fault.DataDir, err, "cubelet")
		}
		return nil
	case err != nil:
		return fault.Wrap(fault.DataDir, err, "cubelet")
	case string(b) != dir && len(b) > 0:
		return fault.New(fault.DataDirLocked, "%s belongs to the data directory %s, whose short name is the same as that of %s: choose another name", run, b, dir)
	}
	return os.WriteFile(path, []byte(dir), 0o600)
}

// Run watches the sandboxes and reports to the master until ctx ends. Then it
// leaves the sandboxes running, or ends them with it, as configured. With no
// sandbox left it leaves nothing behind.
func (c *Cubelet) Run(ctx context.Context) error {
	c.work.Go(func() { c.tend(ctx) })
	c.work.Go(func() { c.keepWarm(ctx) })
	c.report(ctx)
	err := c.close()
	if err != nil {
		c.log.ErrorContext(ctx, "the host is not clean; the next start tries again", slog.String("error", err.Error()))
	}
	return err
}

// close stops all of the cubelet's work. Creates on their way are undone.
func (c *Cubelet) close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	late, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	c.dropWarm(late.Done(), "the host stops", func(entry) bool { return true })
	var err error
	if c.cfg.Cubelet.OnStop == "kill" {
		err = c.endAll()
	}
	c.stop()
	c.work.Wait()
	c.images.Wait()
	if c.holding() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	return errors.Join(err, c.mounts.Sweep(), c.nets.Close(ctx), c.cgroups.Remove(), c.driver.Close(), os.RemoveAll(c.run))
}

// endAll ends every sandbox but the paused ones, which have nothing to end, and
// waits until nothing is left of them.
func (c *Cubelet) endAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	var all []*instance
	for _, s := range c.all() {
		if !c.resting(s) {
			all = append(all, c.end(s, "the host stops", errDeleted))
		}
	}
	var errs []error
	for _, s := range all {
		select {
		case <-s.gone:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("sandbox %s: %w", s.id, ctx.Err()))
		}
	}
	return errors.Join(errs...)
}

// resting reports whether s is paused, and has nothing but its state on disk.
func (c *Cubelet) resting(s *instance) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.state == paused && !s.charged
}

// holding reports whether a sandbox has anything of the machine but disk.
func (c *Cubelet) holding() bool {
	return slices.ContainsFunc(c.all(), func(s *instance) bool { return !c.resting(s) })
}

func (c *Cubelet) all() []*instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*instance, 0, len(c.live))
	for _, s := range c.live {
		list = append(list, s)
	}
	return list
}

const (
	tendEvery  = time.Second
	exitedKept = 24 * time.Hour // how long an ended sandbox nobody deletes is told of
)

// tend keeps what sandboxes leave on the host small until ctx ends.
func (c *Cubelet) tend(ctx context.Context) {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			c.reserveRevisions()
			for _, s := range c.all() {
				c.trim(ctx, s)
				c.mu.Lock()
				old := s.state == exited && now.Sub(s.entry.EndedAt) > exitedKept
				c.mu.Unlock()
				if old {
					c.end(s, "nobody asked for it any more", errDeleted)
				}
			}
		}
	}
}

// trim cuts a log that has grown too long.
func (c *Cubelet) trim(ctx context.Context, s *instance) {
	c.mu.Lock()
	log := s.box.Log
	c.mu.Unlock()
	if err := trimLog(log); err != nil {
		c.log.ErrorContext(ctx, "a sandbox's log cannot be cut", slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
	}
}

// metrics of one cubelet.
type metrics struct {
	step    *prometheus.HistogramVec
	create  prometheus.Histogram
	refused *prometheus.CounterVec
	ended   *prometheus.CounterVec
	running prometheus.Gauge
	warm    prometheus.Gauge
	starts  *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 16)
	m := metrics{
		step:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "paddock_sandbox_step_seconds", Help: "Duration of each step of a sandbox's start.", Buckets: buckets}, []string{"step"}),
		create:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "paddock_host_create_seconds", Help: "Duration of a create until the sandbox is usable.", Buckets: buckets}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_sandbox_refusals_total", Help: "Creates that the host refused, by code."}, []string{"code"}),
		ended:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_host_deaths_total", Help: "Sandboxes that ended by themselves, by cause."}, []string{"cause"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_sandboxes", Help: "Sandboxes that the host holds."}),
	}
	m.warm = prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_warm_sandboxes", Help: "Sandboxes that wait for a create, start or end."})
	m.starts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_sandbox_starts_total", Help: "Starts of sandboxes, by how: warm, of one that waited; warm_failed, of one that was of no use; cold."}, []string{"how"})
	r.MustRegister(m.step, m.create, m.refused, m.ended, m.running, m.warm, m.starts)
	return m
}
