package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
)

var (
	nodeIDForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	apiKeyForm = regexp.MustCompile(`^e2b_[0-9a-f]{16,}$`)
	bucketForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	mysqlForm  = regexp.MustCompile(`^mysql://([^@]+@)?(tcp\([^()]+\)|unix\([^()]+\)|[^()/@]+)/[^/?]+(\?.*)?$`)
)

// maxMiB is what ext4 can hold in one image, and more than any disk here has.
const maxMiB = 16 << 20

// minToken is the least length of a shared token, in characters.
const minToken = 16

// Validate returns every fault of c, joined under fault.BadConfig, or nil.
func (c *Config) Validate() error { return joined(c.check()) }

// check returns every fault of c. Each names the key, its value unless secret,
// and what to write instead.
func (c *Config) check() []error {
	k := &checker{}
	k.path("data_dir", c.DataDir)
	k.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("log.format", c.Log.Format, "text", "json")
	if c.Telemetry.OTLPEndpoint != "" {
		k.url("telemetry.otlp_endpoint", c.Telemetry.OTLPEndpoint)
	}
	k.within("telemetry.sample_ratio", c.Telemetry.SampleRatio, 0, 1)
	dsn := c.Database.DSN.Reveal()
	k.require(strings.HasPrefix(dsn, "sqlite:") && dsn != "sqlite:" || mysqlForm.MatchString(dsn),
		"database.dsn", c.Database.DSN, "must be sqlite:/path/file.db or mysql://user:password@tcp(host:3306)/name")
	if c.Redis.Addr != "" {
		k.address("redis.addr", c.Redis.Addr)
	}
	c.checkAuth(k)
	c.checkStore(k)
	c.checkMaster(k)
	c.checkCenter(k)
	c.checkCubelet(k)
	c.checkProxy(k)
	return k.faults
}

func (c *Config) checkAuth(k *checker) {
	key := c.Auth.APIKey
	k.require(key == "" || apiKeyForm.MatchString(key.Reveal()), "auth.api_key", key, "must be e2b_ and at least 16 lower-case hex digits: the SDKs refuse other forms")
	k.token("auth.callback_token", c.Auth.CallbackToken)
	k.token("auth.host_token", c.Auth.HostToken)
}

func (c *Config) checkStore(k *checker) {
	k.oneOf("artifact_store.backend", c.ArtifactStore.Backend, "dir", "s3")
	if c.ArtifactStore.Backend != "s3" {
		k.path("artifact_store.dir", c.ArtifactStore.Dir)
		return
	}
	s := c.ArtifactStore.S3
	for _, f := range []struct{ key, value string }{
		{"endpoint", s.Endpoint}, {"bucket", s.Bucket}, {"access_key", s.AccessKey.Reveal()}, {"secret_key", s.SecretKey.Reveal()},
	} {
		k.require(f.value != "", "artifact_store.s3."+f.key, "unset", "must be set when artifact_store.backend is s3")
	}
	k.require(s.PresignFor >= time.Second && s.PresignFor <= 7*24*time.Hour, "artifact_store.s3.presign_for", short(s.PresignFor), "must be 1s to 168h")
	k.require(s.Bucket == "" || bucketForm.MatchString(s.Bucket), "artifact_store.s3.bucket", s.Bucket, "must be a bucket name: 3-63 of a-z, 0-9, '.' and '-'")
}

func (c *Config) checkMaster(k *checker) {
	m := c.Master
	k.address("master.listen", m.Listen)
	k.url("master.addr", m.Addr)
	k.url("master.template_center_addr", m.TemplateCenterAddr)
	k.url("master.download_base_url", m.DownloadBaseURL)
	k.positive("master.host_stale_after", m.HostStaleAfter)
	k.positive("master.create_timeout", m.CreateTimeout)
	k.positive("master.life_timeout", m.LifeTimeout)
	k.positive("master.distribute_timeout", m.DistributeTimeout)
	k.positive("master.sweep_interval", m.SweepInterval)
	k.positive("master.built_stale_after", m.BuiltStaleAfter)
	k.positive("master.artifact_gc_after", m.ArtifactGCAfter)
	k.positive("master.audit_kept", m.AuditKept)
	if m.SchedulerConfig != "" {
		k.path("master.scheduler_config", m.SchedulerConfig)
	}
	k.between("master.distribute_workers", m.DistributeWorkers, 1, 256)
}

func (c *Config) checkCenter(k *checker) {
	t := c.TemplateCenter
	k.address("templatecenter.listen", t.Listen)
	k.path("templatecenter.work_dir", t.WorkDir)
	k.path("templatecenter.guest_binary", t.GuestBinary)
	k.path("templatecenter.cache_dir", t.CacheDir)
	k.between("templatecenter.cache_quota_mib", t.CacheQuotaMiB, 1, maxMiB)
	if t.EgressCA != "" {
		k.path("templatecenter.egress_ca", t.EgressCA)
	}
	t.checkImages(k)
	k.between("templatecenter.max_concurrent_builds", t.MaxConcurrentBuilds, 1, 64)
	for _, r := range t.InsecureRegistries {
		k.require(registryForm.MatchString(r), "templatecenter.insecure_registries", r, "must be host, host:port or host:*, without a scheme")
	}
	k.between("templatecenter.max_envd_mib", t.MaxEnvdMiB, 1, 1024)
	k.positive("templatecenter.build_timeout", t.BuildTimeout)
	k.positive("templatecenter.pending_stale_after", t.PendingStaleAfter)
	k.positive("templatecenter.pulling_stale_after", t.PullingStaleAfter)
	k.positive("templatecenter.running_stale_after", t.RunningStaleAfter)
	k.positive("templatecenter.reconcile_interval", t.ReconcileInterval)
}

func (t *TemplateCenter) checkImages(k *checker) {
	const limits, policy = "templatecenter.image_limits.", "templatecenter.image_policy."
	l := t.ImageLimits
	for _, f := range []struct {
		key    string
		value  int
		lowest int
		most   int
	}{
		{"entries", l.Entries, 1, 100_000_000},
		{"file_mib", l.FileMiB, 1, maxMiB},
		{"compressed_mib", l.CompressedMiB, 1, maxMiB},
		{"ratio", l.Ratio, 1, 1_000_000},
		{"window_mib", l.WindowMiB, 8, 2048},
		{"layers", l.Layers, 1, 4096},
		{"manifest_kib", l.ManifestKiB, 1, 1 << 20},
		{"config_kib", l.ConfigKiB, 1, 1 << 20},
		{"depth", l.Depth, 1, 1024},
		{"path_bytes", l.PathBytes, 1, 4096},
		{"growth_mib", l.GrowthMiB, 1, maxMiB},
		{"config_items", l.ConfigItems, 1, 1 << 20},
		{"config_list_kib", l.ConfigListKiB, 1, 1 << 20},
		{"xattrs", l.Xattrs, 1, 4096},
		{"xattr_kib", l.XattrKiB, 1, 1 << 10},
		{"header_kib", l.HeaderKiB, 1, 64 << 10},
	} {
		k.between(limits+f.key, f.value, f.lowest, f.most)
	}
	p := t.ImagePolicy
	for _, f := range []struct{ key, value string }{{"devices", p.Devices}, {"fifos", p.FIFOs}, {"setuid", p.Setuid}, {"capabilities", p.Capabilities}} {
		k.oneOf(policy+f.key, f.value, "allow", "strip", "refuse")
	}
}

// domainForm is a domain of lower-case labels.
var domainForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

func (c *Config) checkProxy(k *checker) {
	p := c.Proxy
	k.address("proxy.listen", p.Listen)
	k.require(domainForm.MatchString(p.Domain) && len(p.Domain) <= 190, "proxy.domain", p.Domain, "must be a domain in lower case, such as sandbox.example.com")
	k.positive("proxy.wake_timeout", p.WakeTimeout)
	k.between("proxy.max_requests", p.MaxRequests, 1, 1_000_000)
	k.between("proxy.max_per_sandbox", p.MaxPerSandbox, 1, 1_000_000)
}

func (c *Config) checkCubelet(k *checker) {
	l := c.Cubelet
	k.address("cubelet.listen", l.Listen)
	k.address("cubelet.metrics_listen", l.MetricsListen)
	k.require(nodeIDForm.MatchString(l.NodeID), "cubelet.node_id", l.NodeID, "must be 1-128 letters, digits, '.', '_' or '-'")
	ip, err := netip.ParseAddr(l.HostIP)
	k.require(err == nil && !ip.IsUnspecified(), "cubelet.host_ip", l.HostIP, "must be an IP address of this host")
	p, err := netip.ParsePrefix(l.Subnet)
	k.require(err == nil && p.Addr().Is4() && p.Bits() >= 16 && p.Bits() <= 24 && p == p.Masked(), "cubelet.subnet", l.Subnet, "must be an IPv4 network of /16 to /24, such as 10.231.0.0/16")
	k.require(l.InstanceType != "", "cubelet.instance_type", "unset", "must be a word, such as cubebox")
	k.path("cubelet.runsc", l.Runsc)
	for _, at := range l.RedirectTo {
		_, port, err := net.SplitHostPort(at)
		k.require(err == nil && port != "", "cubelet.redirect_to", at, "must be host:port")
	}
	k.within("cubelet.cpu_overcommit", l.CPUOvercommit, 1, 20)
	k.within("cubelet.mem_overcommit", l.MemOvercommit, 1, 3)
	k.between("cubelet.create_concurrency", l.CreateConcurrency, 0, 10_000)
	l.checkLabels(k)
	k.between("cubelet.max_sandboxes", l.MaxSandboxes, 1, 10_000)
	k.between("cubelet.warm.max_per_template", l.Warm.MaxPerTemplate, 0, 1000)
	k.between("cubelet.warm.min_per_template", l.Warm.MinPerTemplate, 0, max(1, l.Warm.MaxPerTemplate))
	k.between("cubelet.warm.max_total", l.Warm.MaxTotal, 0, 10_000)
	k.between("cubelet.warm.memory_mib", l.Warm.MemoryMiB, 0, 1<<30)
	k.positive("cubelet.start_timeout", l.StartTimeout)
	k.oneOf("cubelet.on_stop", l.OnStop, "keep", "kill")
	if k.positive("cubelet.heartbeat_interval", l.HeartbeatInterval) && c.Master.HostStaleAfter > 0 {
		k.require(l.HeartbeatInterval*2 < c.Master.HostStaleAfter, "cubelet.heartbeat_interval", short(l.HeartbeatInterval), "must be under half of master.host_stale_after, which is "+short(c.Master.HostStaleAfter))
	}
}

func (l *Cubelet) checkLabels(k *checker) {
	seen := map[string]bool{}
	for _, text := range l.Labels {
		key, value, found := strings.Cut(text, "=")
		err := host.CheckLabel(key, value)
		k.require(found && err == nil && !seen[key] && !host.ReservedLabel(key), "cubelet.labels", text, "must be key=value as Kubernetes has labels, each key once, and none of kubernetes.io/ or paddock.dev/")
		seen[key] = true
	}
	k.require(len(l.Labels) <= host.MaxLabels, "cubelet.labels", len(l.Labels), fmt.Sprintf("must be at most %d", host.MaxLabels))
	k.require(host.CheckLabelValue("zone", l.Zone) == nil, "cubelet.zone", l.Zone, "must be a label's value: at most 63 letters, digits, '-', '_' and '.'")
	k.require(host.CheckLabelValue("cluster_label", l.ClusterLabel) == nil, "cubelet.cluster_label", l.ClusterLabel, "must be a label's value: at most 63 letters, digits, '-', '_' and '.'")
}

// HostLabels returns the labels that the host gives itself.
func (l *Cubelet) HostLabels() map[string]string {
	if len(l.Labels) == 0 {
		return nil
	}
	m := make(map[string]string, len(l.Labels))
	for _, text := range l.Labels {
		key, value, _ := strings.Cut(text, "=")
		m[key] = value
	}
	return m
}

// checker collects faults.
type checker struct{ faults []error }

// require reports a fault unless ok, and returns ok. The value of a Secret
// hides itself.
func (k *checker) require(ok bool, key string, value any, rule string) bool {
	if !ok {
		k.faults = append(k.faults, fmt.Errorf("%s: %v: %s", key, quoted(value), rule))
	}
	return ok
}

// quoted makes the edges of a text visible.
func quoted(value any) any {
	if s, ok := value.(string); ok && s != "unset" {
		return strconv.Quote(s)
	}
	return value
}

func (k *checker) oneOf(key, value string, words ...string) {
	k.require(slices.Contains(words, value), key, value, "must be one of "+strings.Join(words, ", "))
}

func (k *checker) positive(key string, d time.Duration) bool {
	return k.require(d > 0, key, short(d), "must be a duration over 0, such as 10s")
}

func (k *checker) between(key string, v, low, high int) {
	k.require(v >= low && v <= high, key, v, fmt.Sprintf("must be %d to %d", low, high))
}

// within is between for fractions; what is no number is in no range.
func (k *checker) within(key string, v, low, high float64) {
	k.require(v >= low && v <= high, key, v, fmt.Sprintf("must be %v to %v", low, high))
}

func (k *checker) path(key, v string) {
	k.require(filepath.IsAbs(v), key, v, "must be an absolute path")
}

func (k *checker) token(key string, t Secret) {
	k.require(t == "" || len(t) >= minToken && !strings.ContainsAny(t.Reveal(), " \t\r\n"), key, t, fmt.Sprintf("must be at least %d characters without blanks", minToken))
}

func (k *checker) address(key, v string) {
	_, port, err := net.SplitHostPort(v)
	n, bad := strconv.Atoi(port)
	k.require(err == nil && bad == nil && n >= 0 && n <= 65535, key, v, "must be host:port, such as 127.0.0.1:8089")
}

func (k *checker) url(key, v string) {
	u, err := url.Parse(v)
	ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
	switch { // a password in a URL is a secret too
	case err != nil:
		v = "unreadable"
	case u.User != nil:
		v, ok = u.Redacted(), false
	}
	k.require(ok, key, v, "must be an http:// or https:// URL without user and password")
}
