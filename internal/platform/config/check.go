package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

var nodeIDForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Validate returns every fault of c, joined under fault.BadConfig, or nil.
func (c *Config) Validate() error { return joined(c.check()) }

// check returns every fault of c. Each names the key, its value unless secret,
// and what to write instead.
func (c *Config) check() []error {
	k := &checker{}
	k.require(filepath.IsAbs(c.DataDir), "data_dir", c.DataDir, "must be an absolute path")
	k.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("log.format", c.Log.Format, "text", "json")
	if c.Telemetry.OTLPEndpoint != "" {
		k.url("telemetry.otlp_endpoint", c.Telemetry.OTLPEndpoint)
	}
	k.require(c.Telemetry.SampleRatio >= 0 && c.Telemetry.SampleRatio <= 1, "telemetry.sample_ratio", c.Telemetry.SampleRatio, "must be 0 to 1")
	dsn := c.Database.DSN.Reveal()
	k.require(strings.HasPrefix(dsn, "sqlite:") || strings.HasPrefix(dsn, "mysql://"), "database.dsn", c.Database.DSN, "must begin with sqlite: or mysql://")
	if c.Redis.Addr != "" {
		k.address("redis.addr", c.Redis.Addr)
	}
	c.checkStore(k)
	c.checkMaster(k)
	c.checkCenter(k)
	c.checkCubelet(k)
	return k.faults
}

func (c *Config) checkStore(k *checker) {
	k.oneOf("artifact_store.backend", c.ArtifactStore.Backend, "dir", "s3")
	if c.ArtifactStore.Backend != "s3" {
		return
	}
	s := c.ArtifactStore.S3
	for _, f := range []struct{ key, value string }{
		{"endpoint", s.Endpoint}, {"bucket", s.Bucket}, {"access_key", s.AccessKey.Reveal()}, {"secret_key", s.SecretKey.Reveal()},
	} {
		k.require(f.value != "", "artifact_store.s3."+f.key, "", "must be set when artifact_store.backend is s3")
	}
}

func (c *Config) checkMaster(k *checker) {
	m := c.Master
	k.address("master.listen", m.Listen)
	k.url("master.addr", m.Addr)
	k.url("master.template_center_addr", m.TemplateCenterAddr)
	k.url("master.download_base_url", m.DownloadBaseURL)
	k.positive("master.host_stale_after", m.HostStaleAfter)
	k.positive("master.create_timeout", m.CreateTimeout)
	k.positive("master.distribute_timeout", m.DistributeTimeout)
	k.positive("master.sweep_interval", m.SweepInterval)
	k.positive("master.built_stale_after", m.BuiltStaleAfter)
	k.between("master.distribute_workers", m.DistributeWorkers, 1, 256)
}

func (c *Config) checkCenter(k *checker) {
	t := c.TemplateCenter
	k.address("templatecenter.listen", t.Listen)
	k.between("templatecenter.max_concurrent_builds", t.MaxConcurrentBuilds, 1, 64)
	k.positive("templatecenter.build_timeout", t.BuildTimeout)
	k.positive("templatecenter.pending_stale_after", t.PendingStaleAfter)
	k.positive("templatecenter.running_stale_after", t.RunningStaleAfter)
	k.positive("templatecenter.reconcile_interval", t.ReconcileInterval)
}

func (c *Config) checkCubelet(k *checker) {
	l := c.Cubelet
	k.address("cubelet.listen", l.Listen)
	k.require(nodeIDForm.MatchString(l.NodeID), "cubelet.node_id", l.NodeID, "must be 1-128 letters, digits, '.', '_' or '-'")
	_, err := netip.ParseAddr(l.HostIP)
	k.require(err == nil, "cubelet.host_ip", l.HostIP, "must be an IP address")
	p, err := netip.ParsePrefix(l.Subnet)
	k.require(err == nil && p.Addr().Is4() && p.Bits() >= 16 && p.Bits() <= 24, "cubelet.subnet", l.Subnet, "must be an IPv4 network of /16 to /24, such as 10.231.0.0/16")
	k.require(l.CPUOvercommit >= 1 && l.CPUOvercommit <= 20, "cubelet.cpu_overcommit", l.CPUOvercommit, "must be 1 to 20")
	k.require(l.MemOvercommit >= 1 && l.MemOvercommit <= 3, "cubelet.mem_overcommit", l.MemOvercommit, "must be 1 to 3")
	k.between("cubelet.max_sandboxes", l.MaxSandboxes, 1, 10_000)
	k.positive("cubelet.heartbeat_interval", l.HeartbeatInterval)
	k.positive("cubelet.start_timeout", l.StartTimeout)
	k.oneOf("cubelet.on_stop", l.OnStop, "keep", "kill")
	k.require(l.HeartbeatInterval*2 < c.Master.HostStaleAfter, "cubelet.heartbeat_interval", l.HeartbeatInterval, "must be under half of master.host_stale_after")
}

// checker collects faults.
type checker struct{ faults []error }

func (k *checker) require(ok bool, key string, value any, rule string) {
	if !ok {
		k.faults = append(k.faults, fmt.Errorf("%s: %v: %s", key, value, rule))
	}
}

func (k *checker) oneOf(key, value string, words ...string) {
	k.require(slices.Contains(words, value), key, value, "must be one of "+strings.Join(words, ", "))
}

func (k *checker) positive(key string, d time.Duration) {
	k.require(d > 0, key, d, "must be a duration over 0, such as 10s")
}

func (k *checker) between(key string, v, low, high int) {
	k.require(v >= low && v <= high, key, v, fmt.Sprintf("must be %d to %d", low, high))
}

func (k *checker) address(key, v string) {
	_, _, err := net.SplitHostPort(v)
	k.require(err == nil, key, v, "must be host:port")
}

func (k *checker) url(key, v string) {
	u, err := url.Parse(v)
	k.require(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", key, v, "must be an http:// or https:// URL")
}
