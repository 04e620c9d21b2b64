package config_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// file writes text as a configuration file.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "paddock.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNobodyNeedsToConfigure(t *testing.T) {
	c, notices, err := config.Load(config.LoadOptions{})
	if err != nil || len(notices) > 0 {
		t.Fatalf("defaults: %v, notices %v", err, notices)
	}
	if got := c.Database.DSN.Reveal(); got != "sqlite:/var/lib/paddock/paddock.db" {
		t.Errorf("database.dsn is %q", got)
	}
	if c.Master.Addr != "http://127.0.0.1:8089" || c.Master.DownloadBaseURL != c.Master.TemplateCenterAddr {
		t.Errorf("master.addr %q, download_base_url %q", c.Master.Addr, c.Master.DownloadBaseURL)
	}
}

func TestPrecedence(t *testing.T) {
	path := file(t, "data_dir: /srv/file\nlog: {level: debug}\nmaster:\n  create_timeout: 5s\n")
	c, _, err := config.Load(config.LoadOptions{
		File:     path,
		Environ:  []string{"PADDOCK_DATA_DIR=/srv/env", "PADDOCK_CREATE_TIMEOUT=6s"},
		Override: func(c *config.Config) { c.Master.CreateTimeout = 7 * time.Second },
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.DataDir != "/srv/env" || c.Log.Level != "debug" || c.Master.CreateTimeout != 7*time.Second {
		t.Errorf("got %q, %q, %v", c.DataDir, c.Log.Level, c.Master.CreateTimeout)
	}
	if c.ArtifactStore.Dir != "/srv/env/artifacts" || c.TemplateCenter.WorkDir != "/srv/env/work" {
		t.Errorf("derived: %q, %q", c.ArtifactStore.Dir, c.TemplateCenter.WorkDir)
	}
}

func TestAddressesFollowTheListeners(t *testing.T) {
	for listen, want := range map[string]string{"127.0.0.1:7": "127.0.0.1:7", ":7": "127.0.0.1:7", "0.0.0.0:7": "127.0.0.1:7", "[::]:7": "127.0.0.1:7", "10.0.0.1:7": "10.0.0.1:7"} {
		c, _, err := config.Load(config.LoadOptions{Environ: []string{"PADDOCK_MASTER_LISTEN=" + listen, "CUBE_TEMPLATE_CENTER_LISTEN=" + listen}})
		if err != nil || c.Master.Addr != "http://"+want || c.Master.TemplateCenterAddr != "http://"+want || c.Master.DownloadBaseURL != "http://"+want {
			t.Errorf("%s: %v: %q, %q, %q", listen, err, c.Master.Addr, c.Master.TemplateCenterAddr, c.Master.DownloadBaseURL)
		}
	}
}

// Where all is on one machine, hosts download from the template centre; others
// may not reach it.
func TestWhereHostsDownload(t *testing.T) {
	const centre, master = "http://127.0.0.1:8090", "http://10.0.0.1:8089"
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"nothing said":              {nil, centre},
		"the master is elsewhere":   {[]string{"CUBE_MASTER_ADDR=" + master}, master},
		"the master listens abroad": {[]string{"PADDOCK_MASTER_LISTEN=10.0.0.1:8089"}, master},
		"the centre is elsewhere":   {[]string{"CUBE_TEMPLATE_CENTER_ADDR=http://10.0.0.2:8090"}, "http://127.0.0.1:8089"},
		"said":                      {[]string{"PADDOCK_DOWNLOAD_BASE_URL=http://10.0.0.3"}, "http://10.0.0.3"},
	} {
		got, _, err := config.Load(config.LoadOptions{Environ: c.env})
		if err != nil || got.Master.DownloadBaseURL != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got.Master.DownloadBaseURL, err, c.want)
		}
	}
}

func TestEachKindOfValue(t *testing.T) {
	for _, from := range []string{"file", "environment"} {
		t.Run(from, func(t *testing.T) {
			o := config.LoadOptions{Environ: []string{
				"PADDOCK_REDIS_PASSWORD=p w", "CUBE_AUTO_MIGRATION=false", "PADDOCK_MAX_SANDBOXES=7", "PADDOCK_CPU_OVERCOMMIT=1.5",
				"PADDOCK_BUILD_TIMEOUT=90s", "PADDOCK_INSECURE_REGISTRIES=a:5000, b",
			}}
			if from == "file" {
				o = config.LoadOptions{File: file(t, `
redis: {password: "p w"}
database: {auto_migrate: false}
cubelet: {max_sandboxes: 7, cpu_overcommit: 1.5}
templatecenter:
  build_timeout: 90s
  insecure_registries:
    - a:5000
    - b
`)}
			}
			c, _, err := config.Load(o)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(c.Redis.Password.Reveal(), c.Database.AutoMigrate, c.Cubelet.MaxSandboxes, c.Cubelet.CPUOvercommit, c.TemplateCenter.BuildTimeout, c.TemplateCenter.InsecureRegistries)
			if want := "p wfalse 7 1.5 1m30s [a:5000 b]"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func TestAnEmptyValueCountsAsUnset(t *testing.T) {
	c, _, err := config.Load(config.LoadOptions{
		File:    file(t, "log:\n  level:\nmaster:\n  listen: \"\"\ncubelet:\n"),
		Environ: []string{"PADDOCK_CREATE_TIMEOUT="},
	})
	if err != nil || c.Log.Level != "info" || c.Master.Listen != "127.0.0.1:8089" || c.Master.CreateTimeout != time.Minute {
		t.Errorf("%v: %q %q %v", err, c.Log.Level, c.Master.Listen, c.Master.CreateTimeout)
	}
}

// Bad configuration tells everything at once, where it stands, and no secret.
func TestEveryFaultIsReported(t *testing.T) {
	path := file(t, `lgo: {level: debug}
master:
  listne: 127.0.0.1:1
  create_timeout: 60
cubelet:
  max_sandboxes: [1]
  subnet: 10.0.0.0/8
auth:
  callback_token: hunter2-secret with blanks
templatecenter:
  insecure_registries: ["http://x"]
log: {level: loud}
`)
	_, _, err := config.Load(config.LoadOptions{File: path, Environ: []string{
		"PADDOCK_HEARTBEAT_INTERVAL=soon", "PADDOCK_HOST_TOKEN=hunter2", "PADDOCK_DATABASE_DSN=postgres://u:hunter2@h/d",
		"PADDOCK_DATA_DIR=relative", "PADDOCK_CPU_OVERCOMMIT=nan", "CUBE_MASTER_ADDR=http://u:hunter2@h", "PADDOCK_API_KEY=hunter2",
	}})
	if !errors.Is(err, fault.BadConfig) {
		t.Fatalf("got %v, want bad_config", err)
	}
	for _, want := range []string{
		path + ":1: lgo: no such setting; the nearest is log",
		path + ":3: master.listne: no such setting; the nearest is master.listen",
		path + `:4: master.create_timeout: "60": must be a duration with its unit, such as 30s or 10m`,
		path + ":6: cubelet.max_sandboxes: must be one plain value",
		`cubelet.heartbeat_interval, from PADDOCK_HEARTBEAT_INTERVAL: "soon": must be a duration`,
		`data_dir: "relative": must be an absolute path`,
		`log.level: "loud": must be one of debug, info, warn, error`,
		"database.dsn: (hidden): must be sqlite:/path/file.db or mysql://",
		"auth.api_key: (hidden): must be e2b_",
		"auth.callback_token: (hidden): must be at least 16 characters",
		"auth.host_token: (hidden): must be at least 16 characters",
		`master.addr: "http://u:xxxxx@h": must be an http:// or https:// URL without user and password`,
		`templatecenter.insecure_registries: "http://x": must be host`,
		`cubelet.subnet: "10.0.0.0/8": must be an IPv4 network`,
		"cubelet.cpu_overcommit: NaN: must be 1 to 20",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not reported: %s", want)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Error("a secret is shown")
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestFilesThatAreNoConfiguration(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"not YAML":     {"a: [", "paddock.yaml"},
		"a list":       {"- a\n", ":1: the file: must be a list of key: value lines"},
		"two parts":    {"log: {level: info}\n---\nlog: {level: debug}\n", "second document"},
		"repeated key": {"log: {level: info}\nlog: {level: debug}\n", "already defined"},
		"an alias":     {"data_dir: &a /x\nredis: {addr: *a}\n", "must be one plain value"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := config.Load(config.LoadOptions{File: file(t, c.text)})
			if !errors.Is(err, fault.BadConfig) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want bad_config with %q", err, c.want)
			}
		})
	}
	if _, _, err := config.Load(config.LoadOptions{File: "/nonexistent.yaml"}); !errors.Is(err, fault.BadConfig) {
		t.Errorf("missing file: %v", err)
	}
	if _, _, err := config.Load(config.LoadOptions{File: file(t, "# nothing\n")}); err != nil {
		t.Errorf("a file of comments: %v", err)
	}
}

func TestOldNames(t *testing.T) {
	named := file(t, "log: {level: debug}\n")
	for _, c := range []struct {
		name    string
		environ []string
		value   func(config.Config) string
		want    string
		notices []string
	}{
		{
			"old alone",
			[]string{"CUBE_MASTER_ENDPOINT=http://a:1"},
			func(c config.Config) string { return c.Master.Addr }, "http://a:1",
			[]string{"CUBE_MASTER_ENDPOINT is the old name of CUBE_MASTER_ADDR: rename it"},
		},
		{
			"new wins",
			[]string{"CUBE_MASTER_ENDPOINT=http://a:1", "CUBE_MASTER_ADDR=http://b:1"},
			func(c config.Config) string { return c.Master.Addr }, "http://b:1",
			[]string{"CUBE_MASTER_ENDPOINT is ignored: CUBE_MASTER_ADDR says otherwise and wins"},
		},
		{
			"both agree",
			[]string{"CUBE_MASTER_ENDPOINT=http://a:1", "CUBE_MASTER_ADDR=http://a:1"},
			func(c config.Config) string { return c.Master.Addr }, "http://a:1",
			[]string{"CUBE_MASTER_ENDPOINT is the old name of CUBE_MASTER_ADDR and says the same: remove it"},
		},
		{
			"two old names",
			[]string{"CUBE_MASTER_ENDPOINT=http://a:1", "CUBE_TEMPLATE_CENTER_MASTER_ENDPOINT=http://b:1"},
			func(c config.Config) string { return c.Master.Addr }, "http://b:1",
			[]string{"CUBE_TEMPLATE_CENTER_MASTER_ENDPOINT is the old name of CUBE_MASTER_ADDR: rename it", "CUBE_MASTER_ENDPOINT is ignored: CUBE_TEMPLATE_CENTER_MASTER_ENDPOINT says otherwise and wins"},
		},
		{
			"empty new is unset",
			[]string{"CUBE_MASTER_ENDPOINT=http://a:1", "CUBE_MASTER_ADDR="},
			func(c config.Config) string { return c.Master.Addr }, "http://a:1",
			[]string{"CUBE_MASTER_ENDPOINT is the old name of CUBE_MASTER_ADDR: rename it"},
		},
		{
			"CUBE_TC_*",
			[]string{"CUBE_TC_LISTEN=127.0.0.1:1"},
			func(c config.Config) string { return c.TemplateCenter.Listen }, "127.0.0.1:1",
			[]string{"CUBE_TC_LISTEN is the old name of CUBE_TEMPLATE_CENTER_LISTEN: rename it"},
		},
		{
			"the token",
			[]string{"CUBE_TC_CALLBACK_TOKEN=0123456789abcdef"},
			func(c config.Config) string { return c.Auth.CallbackToken.Reveal() }, "0123456789abcdef",
			[]string{"CUBE_TC_CALLBACK_TOKEN is the old name of CUBE_TEMPLATE_CALLBACK_TOKEN: rename it"},
		},
		{
			"store directory",
			[]string{"CUBEMASTER_ROOTFS_ARTIFACT_STORE_DIR=/a"},
			func(c config.Config) string { return c.ArtifactStore.Dir }, "/a",
			[]string{"CUBEMASTER_ROOTFS_ARTIFACT_STORE_DIR is the old name of CUBE_TEMPLATE_CENTER_ARTIFACT_STORE_DIR: rename it"},
		},
		{
			"work directory",
			[]string{"CUBEMASTER_ROOTFS_ARTIFACT_DIR=/w"},
			func(c config.Config) string { return c.TemplateCenter.WorkDir }, "/w",
			[]string{"CUBEMASTER_ROOTFS_ARTIFACT_DIR is the old name of CUBE_TEMPLATE_CENTER_ARTIFACT_WORK_DIR: rename it"},
		},
		{
			"file",
			[]string{"CUBE_MASTER_CONFIG_PATH=" + named},
			func(c config.Config) string { return c.Log.Level }, "debug",
			[]string{"CUBE_MASTER_CONFIG_PATH is the old name of PADDOCK_CONFIG: rename it"},
		},
		{"fs means dir", []string{"CUBE_ARTIFACT_STORE_BACKEND=fs"}, func(c config.Config) string { return c.ArtifactStore.Backend }, "dir", nil},
		{
			"misspelt",
			[]string{"PADDOCK_DATADIR=/a"},
			func(c config.Config) string { return c.DataDir }, "/var/lib/paddock",
			[]string{"PADDOCK_DATADIR is no setting and has no effect; the nearest is PADDOCK_DATA_DIR"},
		},
		{
			"without effect",
			[]string{"CUBEMASTER_EXT4_OVERHEAD_PERCENT=3"},
			func(c config.Config) string { return c.DataDir }, "/var/lib/paddock",
			[]string{"CUBEMASTER_EXT4_OVERHEAD_PERCENT has no effect: images are sized from their entries"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, notices, err := config.Load(config.LoadOptions{Environ: c.environ})
			if err != nil {
				t.Fatal(err)
			}
			if v := c.value(got); v != c.want {
				t.Errorf("value %q, want %q", v, c.want)
			}
			if !slices.Equal(notices, c.notices) {
				t.Errorf("notices %q, want %q", notices, c.notices)
			}
		})
	}
}

func TestShowSaysWhoSaidSoAndReadsBack(t *testing.T) {
	path := file(t, "log:\n  level: debug\n")
	l, err := config.Read(config.LoadOptions{
		File:     path,
		Environ:  []string{"PADDOCK_API_KEY=e2b_0123456789abcdef0123", "CUBE_TC_LISTEN=127.0.0.1:7"},
		Override: func(c *config.Config) { c.DataDir = "/srv/x: y" },
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`data_dir: "/srv/x: y" # command line`,
		`  level: "debug" # file ` + path + ":2",
		`  # api_key: "(hidden)" # environment PADDOCK_API_KEY`,
		`  listen: "127.0.0.1:7" # environment CUBE_TC_LISTEN`,
		`  dir: "/srv/x: y/artifacts" # derived`,
		`  create_timeout: "1m" # default`,
	} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("not shown: %s\n%s", want, text)
		}
	}
	again, _, err := config.Load(config.LoadOptions{File: file(t, string(text))})
	if err != nil {
		t.Fatal(err)
	}
	same := l.Config
	same.Auth.APIKey = "" // hidden, so not read back
	if got, want := fmt.Sprintf("%+v", again), fmt.Sprintf("%+v", same); got != want {
		t.Errorf("read back\n%s\nwant\n%s", got, want)
	}
}

func TestSettingsAreTypedAndHideSecrets(t *testing.T) {
	l, err := config.Read(config.LoadOptions{Environ: []string{"PADDOCK_HOST_TOKEN=hunter2hunter2hunter2", "PADDOCK_INSECURE_REGISTRIES=a:1,b:2"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]config.Setting{}
	for _, s := range l.Settings() {
		got[s.Key] = s
	}
	for key, want := range map[string]config.Setting{
		"auth.host_token":                    {Value: "(hidden)", Source: "environment PADDOCK_HOST_TOKEN", Env: "PADDOCK_HOST_TOKEN"},
		"auth.api_key":                       {Value: "", Source: "default", Env: "PADDOCK_API_KEY"},
		"database.dsn":                       {Value: "(hidden)", Source: "derived", Env: "PADDOCK_DATABASE_DSN"},
		"master.sweep_interval":              {Value: "5s", Source: "default", Env: "PADDOCK_SWEEP_INTERVAL"},
		"cubelet.max_sandboxes":              {Value: 256, Source: "default", Env: "PADDOCK_MAX_SANDBOXES"},
		"cubelet.mem_overcommit":             {Value: 1.25, Source: "default", Env: "PADDOCK_MEM_OVERCOMMIT"},
		"database.auto_migrate":              {Value: true, Source: "default", Env: "CUBE_AUTO_MIGRATION"},
		"templatecenter.insecure_registries": {Value: []string{"a:1", "b:2"}, Source: "environment PADDOCK_INSECURE_REGISTRIES", Env: "PADDOCK_INSECURE_REGISTRIES"},
	} {
		want.Key = key
		if !reflect.DeepEqual(got[key], want) {
			t.Errorf("got %+v, want %+v", got[key], want)
		}
	}
}

func TestSecretsHide(t *testing.T) {
	s := config.Secret("hunter2")
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", slog.Any("s", s))
	text, _ := s.MarshalText()
	for _, shown := range []string{fmt.Sprintf("%v %s %q %#v %x %d %+v", s, s, s, s, s, s, struct{ S config.Secret }{s}), log.String(), string(text)} {
		if strings.Contains(shown, "hunter2") || strings.Contains(shown, fmt.Sprintf("%x", "hunter2")) {
			t.Errorf("shown in %q", shown)
		}
	}
	if s.Reveal() != "hunter2" {
		t.Error("Reveal does not")
	}
}

func TestInsecureRegistry(t *testing.T) {
	list := []string{"127.0.0.1:*", "localhost:*", "reg.example:5000", "[::1]:*"}
	for registry, want := range map[string]bool{
		"127.0.0.1:5000": true, "127.0.0.1": true, "LOCALHOST:1": true, "reg.example:5000": true, "[::1]:80": true,
		"reg.example": false, "reg.example:5001": false, "127.0.0.10:5000": false, "localhost.evil:80": false,
		"localhost:x": false, "localhost:": false, "": false,
	} {
		if got := config.InsecureRegistry(list, registry); got != want {
			t.Errorf("%q: %v, want %v", registry, got, want)
		}
	}
}

func TestDocument(t *testing.T) {
	const path = "../../../docs/config.md"
	want := config.Document()
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run UPDATE=1 go test", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s does not show the settings as they stand: run UPDATE=1 go test", path)
	}
}

// Each setting can be reached from file and environment, and is explained.
func TestEverySettingIsNamed(t *testing.T) {
	for _, line := range strings.Split(string(config.Document()), "\n") {
		if strings.HasPrefix(line, "| `") && (strings.Contains(line, "| `` ") || strings.HasSuffix(line, "|  |")) {
			t.Errorf("lacks a variable or a meaning: %s", line)
		}
	}
}
