package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/datadir"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/test/service"
)

// up is `paddock up` in this process.
type up struct {
	dir, config             string
	master, centre, cubelet string // host:port
	apiKey                  string
	log                     *output
	api                     *cubeapi.Client
}

// output is what several goroutines write and a test reads.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	return l.Addr().String()
}

// startUp starts it and waits for its host. With the test it must stop cleanly.
func startUp(t *testing.T) *up {
	t.Helper()
	// Short: a path of a socket or mount has its limits.
	dir, err := os.MkdirTemp("/tmp", "paddock-cmd-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	u := &up{dir: filepath.Join(dir, "data"), config: filepath.Join(dir, "paddock.yaml"), master: freePort(t), centre: freePort(t), cubelet: freePort(t), log: &output{}}
	check(t, os.WriteFile(u.config, fmt.Appendf(nil, `data_dir: %s
log: {level: debug, format: json}
master: {listen: %s, sweep_interval: 500ms, host_stale_after: 5s}
templatecenter: {listen: %s, guest_binary: %s}
cubelet: {listen: %s, runsc: %s, heartbeat_interval: 300ms, max_sandboxes: 16}
`, u.dir, u.master, u.centre, runtimetest.Build(t, dir, "cmd/paddock-guest"), u.cubelet, runtimetest.Runsc(t)), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"up", "--config", u.config}, strings.NewReader(""), io.Discard, u.log)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != 0 || t.Failed() {
			t.Errorf("up ended with %d\n%s", code, tail(u.log.String()))
		}
	})
	runtimetest.Eventually(t, "a healthy host", func() bool {
		left, err := datadir.ReadClient(u.dir)
		if err != nil {
			return false
		}
		u.apiKey, u.api = left.APIKey, cubeapi.NewClient(left.Address, left.APIKey)
		list, err := u.api.Hosts(ctx)
		return err == nil && len(list) == 1 && list[0].Health == "healthy"
	})
	return u
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

// template makes the template called box, which has a shell.
func (u *up) template(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v: run `make test`, which installs busybox-static", err)
	}
	files := []service.File{{Name: "bin/busybox", Body: string(b), Mode: 0o755}, {Name: "etc/passwd", Body: "root:x:0:0:root:/root:/bin/sh\n"}}
	for _, tool := range []string{"sh", "cat", "echo", "sleep", "head", "yes", "wc", "stty"} {
		files = append(files, service.File{Name: "bin/" + tool, Link: "busybox"})
	}
	image := service.Image(t, service.Registry(t), "box:1", files...)
	code, _, errs := u.run("", "tpl", "create-from-image", "--image", image, "--alias", "box", "--writable-layer-size", "32Mi")
	if code != 0 {
		t.Fatalf("template: %d\n%s\n%s", code, errs, tail(u.log.String()))
	}
}

// run is one command line in this process.
func (u *up) run(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs output
	code = run(context.Background(), append([]string{"--address", "http://" + u.master, "--api-key", u.apiKey}, args...), strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// TestUp runs everything that needs a running system on one.
func TestUp(t *testing.T) {
	u := startUp(t)
	u.template(t)
	t.Run("the cubelet's face is watched", u.testFaceIsWatched)
	t.Run("what the tracer loses is logged", u.testTracerIsLogged)
	t.Run("exec", u.testExec)
	t.Run("scripts", func(t *testing.T) {
		for _, name := range []string{"silent", "quiet"} { // scripts run side by side, and one removes its host
			u.silentHost(t, name)
		}
		scripts(t, "testdata/up", map[string]string{"PADDOCK_DATA_DIR": u.dir, "PADDOCK_CONFIG": u.config, "MASTER": "http://" + u.master, "KEY": u.apiKey})
	})
}

// silentHost registers a host that is never heard of again.
func (u *up) silentHost(t *testing.T, name string) {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(u.dir, "secrets", "host-token"))
	check(t, err)
	check(t, cubeapi.NewHostClient("http://"+u.master, strings.TrimSpace(string(token))).Register(t.Context(), cubeapi.HostRegisterRequest{
		NodeID: name, HostIP: "127.0.0.1", GRPCPort: 1, InstanceType: "elsewhere",
	}))
}

func TestSandboxesEndWithUpUnlessSaidOtherwise(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keep.yaml")
	check(t, os.WriteFile(file, []byte("cubelet: {on_stop: keep}"), 0o600))
	for _, c := range []struct{ name, file, env, want string }{
		{"up", "", "", "kill"},
		{"up", file, "", "keep"},
		{"up", "", "PADDOCK_ON_STOP=keep", "keep"},
		{"cubelet", "", "", "keep"},
		{"cubelet", file, "PADDOCK_ON_STOP=kill", "kill"},
	} {
		l, err := config.Read(config.LoadOptions{File: c.file, Environ: []string{c.env}})
		check(t, err)
		if got := configOf(l, c.name).Cubelet.OnStop; got != c.want {
			t.Errorf("%s, file %q, %q: %s, want %s", c.name, c.file, c.env, got, c.want)
		}
	}
}

// Every call of a host is in the log, the metrics and the trace, a refused one
// too, and a failure keeps its code.
func (u *up) testFaceIsWatched(t *testing.T) {
	conn, err := grpc.NewClient(u.cubelet, append(serve.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	check(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := hostpb.NewHostServiceClient(conn).ListSandboxes(ctx, &hostpb.ListSandboxesRequest{}); fault.Of(err) != fault.TokenRejected {
		t.Errorf("a call without a token: %v", err)
	}
	answer, err := http.Get("http://" + u.master + cubeapi.PathMetrics)
	check(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	check(t, err)
	for _, want := range []string{
		`paddock_grpc_request_seconds_count{code="token_rejected",face="cubelet",method="/paddock.host.v1.HostService/ListSandboxes"} 1`,
		`paddock_grpc_request_seconds_count{code="ok",face="cubelet",method="/paddock.host.v1.HostService/EnsureArtifact"} 1`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("not in the metrics: %s", want)
		}
	}
	found := false
	for line := range strings.Lines(u.log.String()) {
		found = found || strings.Contains(line, `"msg":"call"`) && strings.Contains(line, "EnsureArtifact") && strings.Contains(line, `"role":"cubelet"`) && strings.Contains(line, `"request_id":"`)
	}
	if !found {
		t.Error("no line of the log tells of the call that brought the artifact")
	}
}

func (u *up) testTracerIsLogged(t *testing.T) {
	otel.Handle(fmt.Errorf("the collector is away"))
	if !strings.Contains(u.log.String(), "the collector is away") {
		t.Error("it is not in the log")
	}
}

// silent takes connections and never answers.
type silent struct {
	net.Listener
	met chan struct{} // closed with the first connection
}

func newSilent(addr string) (*silent, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &silent{l, make(chan struct{})}
	go func() {
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if first {
				close(s.met)
			}
		}
	}()
	return s, nil
}
