package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/goccy/go-yaml"

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
			S3:      S3{Region: "us-east-1", PathStyle: true},
		},
		Master: Master{
			Listen:             "127.0.0.1:8089",
			TemplateCenterAddr: "http://127.0.0.1:8090",
			HostStaleAfter:     10 * time.Second,
			CreateTimeout:      time.Minute,
			DistributeTimeout:  10 * time.Minute,
			DistributeWorkers:  4,
			SweepInterval:      5 * time.Second,
			BuiltStaleAfter:    time.Minute,
		},
		TemplateCenter: TemplateCenter{
			Listen:              "127.0.0.1:8090",
			MaxConcurrentBuilds: 2,
			InsecureRegistries:  []string{"127.0.0.1:*", "localhost:*"},
			BuildTimeout:        30 * time.Minute,
			PendingStaleAfter:   10 * time.Minute,
			RunningStaleAfter:   2 * time.Minute,
			ReconcileInterval:   30 * time.Second,
		},
		Cubelet: Cubelet{
			Listen:            "127.0.0.1:9999",
			HostIP:            "127.0.0.1",
			InstanceType:      "cubebox",
			Subnet:            "10.231.0.0/16",
			CPUOvercommit:     2,
			MemOvercommit:     1.25,
			MaxSandboxes:      256,
			HeartbeatInterval: 2 * time.Second,
			StartTimeout:      30 * time.Second,
			OnStop:            "keep",
		},
	}
}

// LoadOptions say where settings come from.
type LoadOptions struct {
	File    string   // YAML; empty: none
	Environ []string // KEY=value, as os.Environ returns
	// Override changes what file and environment say, for flags.
	Override func(*Config)
}

// legacy are older spellings: they work, are reported, and lose to the new
// name (spec/template-center 5.3).
var legacy = []struct{ old, new string }{
	{"CUBE_TC_CALLBACK_TOKEN", "CUBE_TEMPLATE_CALLBACK_TOKEN"},
	{"CUBE_TC_MAX_CONCURRENT_BUILDS", "CUBE_TEMPLATE_CENTER_MAX_CONCURRENT_BUILDS"},
	{"CUBE_TEMPLATE_CENTER_MASTER_ENDPOINT", "CUBE_MASTER_ADDR"},
	{"CUBE_MASTER_ENDPOINT", "CUBE_MASTER_ADDR"},
	{"CUBEMASTER_ROOTFS_ARTIFACT_STORE_DIR", "CUBE_TEMPLATE_CENTER_ARTIFACT_STORE_DIR"},
	{"CUBEMASTER_ROOTFS_ARTIFACT_DIR", "CUBE_TEMPLATE_CENTER_ARTIFACT_WORK_DIR"},
}

// Load returns the defaults, changed by the file, by the environment, and by
// the override, in this order. Notices tell of old spellings. Every fault is
// reported, joined under fault.BadConfig.
func Load(o LoadOptions) (Config, []string, error) {
	c := Default()
	var faults []error
	if err := readFile(o.File, &c); err != nil {
		faults = append(faults, err)
	}
	vars, notices := environment(o.Environ)
	if err := env.ParseWithOptions(&c, env.Options{Environment: vars}); err != nil {
		faults = append(faults, envFaults(err)...)
	}
	if o.Override != nil {
		o.Override(&c)
	}
	derive(&c)
	faults = append(faults, c.check()...)
	return c, notices, joined(faults)
}

func joined(faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	return fault.Wrap(fault.BadConfig, errors.Join(faults...), "configuration")
}

func readFile(path string, c *Config) error {
	if path == "" {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("file: %w", err)
	}
	err = yaml.NewDecoder(bytes.NewReader(b), yaml.DisallowUnknownField()).Decode(c)
	if err != nil && !errors.Is(err, io.EOF) {
		// Source excerpts may show a secret; the message and the place do not.
		return fmt.Errorf("file %s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	return nil
}

// environment returns the variables that are set, new names only. An empty
// value counts as unset.
func environment(environ []string) (vars map[string]string, notices []string) {
	vars = map[string]string{}
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && v != "" {
			vars[k] = v
		}
	}
	for _, l := range legacy {
		old, ok := vars[l.old]
		if !ok {
			continue
		}
		switch now, both := vars[l.new]; {
		case !both:
			vars[l.new] = old
			notices = append(notices, fmt.Sprintf("%s is the old name of %s: rename it", l.old, l.new))
		case now != old:
			notices = append(notices, fmt.Sprintf("%s is ignored: %s says otherwise and wins", l.old, l.new))
		}
	}
	return vars, notices
}

// envFaults takes apart what the parser joined. Its messages may quote a
// value, and secrets parse always, so none is shown.
func envFaults(err error) []error {
	var all env.AggregateError
	if errors.As(err, &all) {
		return all.Errors
	}
	return []error{err}
}

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
	set(&c.Master.Addr, "http://"+c.Master.Listen)
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
