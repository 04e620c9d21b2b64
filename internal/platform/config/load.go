package config

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Default returns the settings of a machine that nobody configured.
func Default() Config {
	return Config{
		DataDir:   "/var/lib/paddock",
		Log:       Log{Level: "info", Format: "text"},
		Telemetry: Telemetry{SampleRatio: 1},
		Database:  Database{AutoMigrate: true},
		ArtifactStore: ArtifactStore{
			Backend: "dir",
			S3:      S3{Region: "us-east-1", PathStyle: true, Presign: true, PresignFor: 15 * time.Minute},
		},
		Master: Master{
			Listen:            "127.0.0.1:8089",
			HostStaleAfter:    10 * time.Second,
			CreateTimeout:     time.Minute,
			LifeTimeout:       3 * time.Minute,
			DistributeTimeout: 10 * time.Minute,
			DistributeWorkers: 4,
			SweepInterval:     5 * time.Second,
			HealRebuild:       true,
			BuiltStaleAfter:   time.Minute,
			ArtifactGCAfter:   7 * 24 * time.Hour,
			AuditKept:         90 * 24 * time.Hour,
		},
		TemplateCenter: TemplateCenter{
			Listen:              "127.0.0.1:8090",
			MaxConcurrentBuilds: 2,
			InsecureRegistries:  []string{"127.0.0.1:*", "localhost:*"},
			CacheQuotaMiB:       20 << 10,
			ImageLimits: ImageLimits{
				Entries:       2_000_000,
				FileMiB:       64 << 10,
				CompressedMiB: 64 << 10,
				Ratio:         200,
				WindowMiB:     128,
				Layers:        512,
				ManifestKiB:   4 << 10,
				ConfigKiB:     8 << 10,
				Depth:         128,
				PathBytes:     4096,
				GrowthMiB:     1 << 10,
				ConfigItems:   4096,
				ConfigListKiB: 1 << 10,
				Xattrs:        64,
				XattrKiB:      64,
				HeaderKiB:     1 << 10,
				AbsoluteNames: true,
			},
			ImagePolicy:       ImagePolicy{Devices: "strip", FIFOs: "allow", Setuid: "allow", Capabilities: "allow"},
			MaxEnvdMiB:        64,
			BuildTimeout:      30 * time.Minute,
			PendingStaleAfter: 10 * time.Minute,
			PullingStaleAfter: 2 * time.Minute,
			RunningStaleAfter: 2 * time.Minute,
			ReconcileInterval: 30 * time.Second,
		},
		Proxy: Proxy{
			Listen:        "127.0.0.1:3002",
			Domain:        "localhost",
			WakeTimeout:   time.Minute,
			MaxRequests:   20_000,
			MaxPerSandbox: 1000,
		},
		Cubelet: Cubelet{
			Listen:            "127.0.0.1:9999",
			MetricsListen:     "127.0.0.1:9998",
			HostIP:            "127.0.0.1",
			InstanceType:      "cubebox",
			Subnet:            "10.231.0.0/16",
			CPUOvercommit:     2,
			MemOvercommit:     1.25,
			CreateConcurrency: 100,
			MaxSandboxes:      256,
			HeartbeatInterval: 2 * time.Second,
			StartTimeout:      30 * time.Second,
			Warm:              Warm{MaxPerTemplate: 4, MinPerTemplate: 1, MaxTotal: 16, MemoryMiB: 8192},
			OnStop:            "keep",
		},
	}
}

// LoadOptions say where settings come from.
type LoadOptions struct {
	File    string   // YAML; empty: the file that PADDOCK_CONFIG names, if any
	Environ []string // KEY=value, as os.Environ returns
	// Override changes what file and environment say, for flags.
	Override func(*Config)
}

// sources says of each changed key who gave its value.
type sources map[string]string

// Loaded is a configuration with its history.
type Loaded struct {
	Config
	// Notices tell of old spellings and of variables without effect, once each.
	Notices []string
	from    sources
}

// Load returns the defaults, changed by the file, by the environment, and by
// the override, in this order. Notices tell of old spellings. Every fault is
// reported, joined under fault.BadConfig; the Config then serves only to be
// shown.
func Load(o LoadOptions) (Config, []string, error) {
	l, err := Read(o)
	return l.Config, l.Notices, err
}

// Read is Load, and remembers where each value came from.
func Read(o LoadOptions) (*Loaded, error) {
	l := &Loaded{Config: Default(), from: sources{}}
	fields := fieldsOf(&l.Config)
	environ := readEnviron(o.Environ, fields)
	l.Notices = environ.notices
	if o.File == "" {
		o.File = environ.vars[FileVariable]
	}
	faults := readFile(o.File, fields, l.from)
	faults = append(faults, environ.apply(fields, l.from)...)
	if o.Override != nil {
		l.change("command line", fields, o.Override)
	}
	l.change("derived", fields, derive)
	return l, joined(append(faults, l.check()...))
}

// change applies a function and marks what it changed as coming from source.
func (l *Loaded) change(source string, fields []field, by func(*Config)) {
	before := make([]any, len(fields))
	for i, f := range fields {
		before[i] = f.raw()
	}
	by(&l.Config)
	for i, f := range fields {
		if f.raw() != before[i] {
			l.from[f.key] = source
		}
	}
}

func joined(faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	return fault.Wrap(fault.BadConfig, errors.Join(faults...), "configuration")
}

// derive fills what nobody set from what was set.
func derive(c *Config) {
	if c.ArtifactStore.Backend == "fs" {
		c.ArtifactStore.Backend = "dir" // the spec's word
	}
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&c.ArtifactStore.Dir, filepath.Join(c.DataDir, "artifacts"))
	set(&c.TemplateCenter.WorkDir, filepath.Join(c.DataDir, "work"))
	set(&c.TemplateCenter.CacheDir, filepath.Join(c.DataDir, "layers"))
	if c.Master.Addr == "" && c.Master.TemplateCenterAddr == "" && loopback(reachable(c.Master.Listen)) {
		// Hosts are on this machine: the bytes need not go through the master.
		set(&c.Master.DownloadBaseURL, "http://"+reachable(c.TemplateCenter.Listen))
	}
	set(&c.Master.Addr, "http://"+reachable(c.Master.Listen))
	set(&c.Master.TemplateCenterAddr, "http://"+reachable(c.TemplateCenter.Listen))
	set(&c.Master.DownloadBaseURL, c.Master.Addr)
	if c.Database.DSN == "" {
		c.Database.DSN = Secret("sqlite:" + filepath.Join(c.DataDir, "paddock.db"))
	}
	if name, err := os.Hostname(); err == nil {
		set(&c.Cubelet.NodeID, name)
	}
	if exe, err := os.Executable(); err == nil {
		set(&c.TemplateCenter.GuestBinary, filepath.Join(filepath.Dir(exe), "paddock-guest"))
		set(&c.Cubelet.Runsc, filepath.Join(filepath.Dir(exe), "runsc"))
	}
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// reachable returns where this machine reaches a server that listens on addr:
// one that listens everywhere is reached over loopback.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}
