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
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
	"github.com/paddock-dev/paddock/internal/cubelet/mount"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/cubelet/runsc"
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

// Cubelet is the agent of one host. Make one with Open.
type Cubelet struct {
	cfg     config.Config
	log     *slog.Logger
	version string
	port    int

	driver  runsc.Driver
	mounts  *mount.Table
	cgroups *cgroup.Parent
	nets    *network.Pool
	journal journal
	images  *images
	room    host.Resources // allocatable
	metrics metrics

	mu   sync.Mutex
	live map[string]*instance
}

// Open takes the host over: it adopts the sandboxes that an earlier process
// left running and removes everything else of its own.
func Open(ctx context.Context, d Deps) (*Cubelet, error) {
	dir := filepath.Join(d.Config.DataDir, "cubelet")
	c := &Cubelet{
		cfg: d.Config, log: d.Log, version: d.Version, port: d.GRPCPort,
		driver:  runsc.Driver{Binary: d.Config.Cubelet.Runsc},
		mounts:  mount.New(filepath.Join(dir, "mounts")),
		journal: journal{filepath.Join(dir, "sandboxes")},
		images:  newImages(filepath.Join(dir, "images")),
		metrics: newMetrics(d.Metrics),
		live:    map[string]*instance{},
	}
	for _, sub := range []string{"mounts", "sandboxes", "images"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fault.Wrap(fault.DataDir, err, "cubelet")
		}
	}
	if _, err := os.Stat(c.driver.Binary); err != nil {
		return nil, fault.Wrap(fault.ToolMissing, err, "cubelet.runsc")
	}
	subnet, err := netip.ParsePrefix(d.Config.Cubelet.Subnet)
	if err != nil {
		return nil, fault.Wrap(fault.BadConfig, err, "cubelet.subnet")
	}
	tag := tagOf(dir)
	c.nets = network.New(tag, subnet)
	if err := c.nets.Open(ctx); err != nil {
		return nil, fault.Wrap(fault.ToolMissing, err, "rules of the sandboxes' networks")
	}
	if c.cgroups, err = cgroup.Open("paddock-" + tag); err != nil {
		return nil, fault.Wrap(fault.RuntimeFailed, err, "cgroups")
	}
	if _, c.room, err = capacity(dir, d.Config.Cubelet); err != nil {
		return nil, fault.Wrap(fault.RuntimeFailed, err, "capacity of the host")
	}
	return c, c.recover(ctx)
}

// tagOf names the things of one data directory on a machine with several.
func tagOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:2])
}

// recover compares the journal with the machine.
func (c *Cubelet) recover(ctx context.Context) error {
	entries, torn, err := c.journal.list()
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "journal")
	}
	var kept []network.Network
	for _, e := range entries {
		s := c.newInstance(e)
		if c.adopt(ctx, s) {
			kept = append(kept, e.Network)
			continue
		}
		c.log.InfoContext(ctx, "leftover of an earlier process removed", slog.String("sandbox_id", e.ID))
		if err := c.clear(s); err != nil {
			return fault.Wrap(fault.RuntimeFailed, err, "leftovers of sandbox %s", e.ID)
		}
	}
	for _, id := range torn {
		if err := errors.Join(mount.DetachBelow(c.journal.path(id)), c.journal.remove(id)); err != nil {
			return fault.Wrap(fault.DataDir, err, "journal")
		}
	}
	return c.sweep(kept)
}

// sweep removes what has our tag and no journal entry.
func (c *Cubelet) sweep(kept []network.Network) error {
	groups, err := c.cgroups.List()
	if err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "cgroups")
	}
	var errs []error
	for _, id := range groups {
		if c.live[id] == nil {
			errs = append(errs, c.cgroups.Group(id).Destroy())
		}
	}
	errs = append(errs, c.nets.Sweep(kept), c.mounts.Sweep(), c.images.sweep())
	if err := errors.Join(errs...); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "leftovers")
	}
	return nil
}

// adopt takes over a sandbox that still runs and whose guest answers.
func (c *Cubelet) adopt(ctx context.Context, s *instance) bool {
	e := s.entry
	if e.PID == 0 || born(e.PID) != e.PIDBorn {
		return false
	}
	if _, err := c.mounts.Acquire(e.ArtifactID, c.images.path(e.ArtifactID)); err != nil {
		return false
	}
	c.nets.Adopt(e.Network)
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.guest.ready(bounded); err != nil {
		_ = c.mounts.Release(e.ArtifactID) // clear tells of what stays mounted
		return false
	}
	s.state, s.mounted = running, true
	close(s.ready)
	c.live[e.ID] = s
	c.log.InfoContext(ctx, "sandbox adopted", slog.String("sandbox_id", e.ID))
	return true
}

// Run watches the sandboxes and reports to the master until ctx ends. Then it
// leaves the sandboxes running, or ends them with it, as configured.
func (c *Cubelet) Run(ctx context.Context) error {
	c.report(ctx)
	if c.cfg.Cubelet.OnStop != "kill" {
		return nil
	}
	err := c.closeAll()
	if err != nil {
		c.log.ErrorContext(ctx, "the host is not clean; the next start tries again", slog.String("error", err.Error()))
	}
	return err
}

// closeAll ends every sandbox and removes what the cubelet made for all of
// them.
func (c *Cubelet) closeAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, s := range c.all() {
		if _, err := c.Delete(ctx, s.entry.ID, "the host stops"); err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", s.entry.ID, err))
		}
	}
	return errors.Join(append(errs, c.mounts.Sweep(), c.nets.Close(ctx), c.cgroups.Remove())...)
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

// metrics of one cubelet.
type metrics struct {
	step    *prometheus.HistogramVec
	refused *prometheus.CounterVec
	running prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		step:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "paddock_sandbox_step_seconds", Help: "Duration of each step of a sandbox's start.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"step"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_sandbox_refusals_total", Help: "Creates that the host refused, by code."}, []string{"code"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_sandboxes", Help: "Sandboxes that the host holds."}),
	}
	r.MustRegister(m.step, m.refused, m.running)
	return m
}
