package cubelet_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// childDir, when it is set, makes this program a cubelet of that data
// directory, to be killed.
const childDir = "PADDOCK_TEST_CUBELET_DIR"

// childWarm, when it is set, has that cubelet keep one sandbox waiting, and tell
// so in a file.
const childWarm = "PADDOCK_TEST_CUBELET_WARM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(dir string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	cfg := settings(dir)
	warm := os.Getenv(childWarm) != ""
	if warm {
		cfg.Cubelet.Warm.MaxPerTemplate = 1
	}
	c, err := cubelet.Open(context.Background(), deps(cfg))
	if err != nil {
		return err
	}
	if warm {
		go tellWarm(c, filepath.Join(dir, "cubelet", "waits")) // until the kill
	}
	go func() { _ = c.Run(context.Background()) }() // until the kill
	s := grpc.NewServer()
	hostpb.RegisterHostServiceServer(s, cubelet.NewServer(c))
	fmt.Println("listening", l.Addr())
	return s.Serve(l)
}

// tellWarm makes a file once a sandbox waits.
func tellWarm(c *cubelet.Cubelet, path string) {
	for c.Warm() == 0 {
		<-time.After(10 * time.Millisecond)
	}
	_ = os.WriteFile(path, nil, 0o600) // the test misses it
}

func settings(dir string) config.Config {
	c := config.Default()
	c.DataDir = dir
	c.Master.Addr = "http://127.0.0.1:1" // nobody
	c.Cubelet.NodeID = "host-under-test"
	c.Cubelet.Runsc = os.Getenv("PADDOCK_RUNSC")
	c.Cubelet.Subnet = "10.230.0.0/22"
	c.Cubelet.CPUOvercommit = 16
	c.Cubelet.Warm.MaxPerTemplate = 0 // see warm_test.go
	return c
}

func deps(c config.Config) cubelet.Deps {
	return cubelet.Deps{Config: c, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), Metrics: prometheus.NewRegistry(), Version: "test", GRPCPort: 1}
}

// template is the image of all tests, made once.
var template struct {
	once  sync.Once
	bytes []byte
	sum   string
}

func makeTemplate(t *testing.T) {
	t.Helper()
	template.once.Do(func() {
		dir := t.TempDir()
		guest := runtimetest.Build(t, dir, "cmd/paddock-guest")
		b, err := os.ReadFile(runtimetest.Image(t, dir, map[string]string{"/.paddock/guest": guest}))
		check(t, err)
		template.bytes, template.sum = b, sumOf(b)
	})
	if len(template.bytes) == 0 {
		t.Fatal("the image was not made")
	}
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

const (
	artifactID    = "rfs-0123456789abcdef01234567"
	artifactToken = "the token of the artifact"
)

// world is one data directory and the cubelet on it.
type world struct {
	t      *testing.T
	cfg    config.Config
	host   hostpb.HostServiceClient
	cube   *cubelet.Cubelet
	source *httptest.Server
	stop   func()
}

// newWorld makes a data directory. With the test all of it must be gone: that
// is checked.
func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "paddock-test-")
	check(t, err)
	w := &world{t: t, cfg: settings(dir), stop: func() {}}
	w.cfg.Cubelet.Runsc = runtimetest.Runsc(t)
	w.cfg.Cubelet.OnStop = "kill"
	makeTemplate(t)
	w.source = httptest.NewServer(http.HandlerFunc(w.serveImage))
	t.Cleanup(func() {
		w.stop()
		w.source.Close()
		w.mustBeClean()
		check(t, os.RemoveAll(dir))
	})
	return w
}

func (w *world) serveImage(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get(cubeapi.HeaderArtifactToken) != artifactToken {
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	http.ServeContent(rw, r, "image", time.Time{}, bytes.NewReader(template.bytes))
}

// open starts the cubelet in this process.
func (w *world) open() *world {
	w.t.Helper()
	c, err := cubelet.Open(w.t.Context(), deps(w.cfg))
	check(w.t, err)
	w.cube = c
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(w.t, err)
	s := grpc.NewServer()
	hostpb.RegisterHostServiceServer(s, cubelet.NewServer(c))
	go func() { _ = s.Serve(l) }() // until Stop
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	conn := w.dial(l.Addr().String())
	w.stop = sync.OnceFunc(func() {
		check(w.t, conn.Close())
		s.Stop()
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("stop: %v", err)
		}
	})
	return w
}

func (w *world) dial(address string) *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(w.t, err)
	w.host = hostpb.NewHostServiceClient(conn)
	return conn
}

// openChild starts the cubelet in a process of its own, with places armed to
// break it, and returns what kills it as kill -9 does.
func (w *world) openChild(failpoints string, environ ...string) (kill func(), died <-chan error) {
	w.t.Helper()
	self, err := os.Executable()
	check(w.t, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), childDir+"="+w.cfg.DataDir, "PADDOCK_RUNSC="+w.cfg.Cubelet.Runsc, "PADDOCK_FAILPOINTS="+failpoints)
	c.Env = append(c.Env, environ...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	check(w.t, err)
	check(w.t, c.Start())
	lines := bufio.NewScanner(out)
	address := ""
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
			address = rest
			break
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, out)
		ended <- c.Wait()
	}()
	if address == "" {
		w.t.Fatalf("the child did not start: %v", <-ended)
	}
	conn := w.dial(address)
	kill = sync.OnceFunc(func() {
		_ = c.Process.Kill() // it may have died by itself
		_ = conn.Close()
	})
	w.t.Cleanup(kill)
	return kill, ended
}

func (w *world) mustBeClean() {
	w.t.Helper()
	var list []string
	late := time.Now().Add(10 * time.Second)
	for {
		ofSandboxes, ofHost, err := cubelet.Leftovers(w.cfg.DataDir)
		check(w.t, err)
		if list = append(ofSandboxes, ofHost...); len(list) == 0 {
			return
		}
		if time.Now().After(late) {
			w.t.Errorf("left behind:\n%s", strings.Join(list, "\n"))
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

// mustBeEmpty checks that a cubelet that runs has nothing of any sandbox.
func (w *world) mustBeEmpty() {
	w.t.Helper()
	var list []string
	late := time.Now().Add(10 * time.Second)
	for {
		var err error
		list, _, err = cubelet.Leftovers(w.cfg.DataDir)
		check(w.t, err)
		if len(list) == 0 {
			return
		}
		if time.Now().After(late) {
			w.t.Errorf("left behind:\n%s", strings.Join(list, "\n"))
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	w.t.Cleanup(cancel)
	return ctx
}

// hold makes the host hold the image.
func (w *world) hold() *world {
	w.t.Helper()
	_, err := w.host.EnsureArtifact(w.ctx(), w.wanted())
	check(w.t, err)
	return w
}

func (w *world) wanted() *hostpb.EnsureArtifactRequest {
	return &hostpb.EnsureArtifactRequest{ArtifactId: artifactID, Url: w.source.URL + "/image", Token: artifactToken, Sha256: template.sum, SizeBytes: int64(len(template.bytes))}
}

// request asks for a small sandbox with a new id.
func request() *hostpb.CreateSandboxRequest {
	return &hostpb.CreateSandboxRequest{
		SandboxId: id.New("i"), TemplateId: "tpl-0123456789abcdef01234567", ArtifactId: artifactID, WritableBytes: 32 << 20,
		Resources: &hostpb.Resources{MilliCpu: 1000, MemBytes: 256 << 20, DiskBytes: 32 << 20, Slots: 1},
		Envs:      map[string]string{"FROM": "create", "PATH": "/bin"},
	}
}

func (w *world) create(r *hostpb.CreateSandboxRequest) *hostpb.Sandbox {
	w.t.Helper()
	answer, err := w.host.CreateSandbox(w.ctx(), r)
	if err != nil {
		w.t.Fatal(serve.FromGRPC(err))
	}
	return answer.GetSandbox()
}

func (w *world) delete(id string) {
	w.t.Helper()
	_, err := w.host.DeleteSandbox(w.ctx(), &hostpb.DeleteSandboxRequest{SandboxId: id, Reason: "request"})
	check(w.t, err)
}

func (w *world) get(id string) (*hostpb.Sandbox, error) {
	answer, err := w.host.GetSandbox(w.ctx(), &hostpb.GetSandboxRequest{SandboxId: id})
	return answer.GetSandbox(), serve.FromGRPC(err)
}

// result is how a command in a sandbox went.
type result struct {
	code     int
	signal   string
	out, err string
}

func (w *world) exec(id string, args ...string) result {
	w.t.Helper()
	r, err := w.run(&hostpb.ExecStart{SandboxId: id, Command: args}, nil)
	check(w.t, err)
	return r
}

// run runs one command; input, when not nil, is its standard input.
func (w *world) run(start *hostpb.ExecStart, input []byte) (r result, err error) {
	start.Stdin = input != nil
	stream, err := w.host.Exec(w.ctx())
	if err != nil {
		return r, serve.FromGRPC(err)
	}
	messages := []*hostpb.ExecRequest{{Message: &hostpb.ExecRequest_Start{Start: start}}}
	if input != nil {
		messages = append(messages, &hostpb.ExecRequest{Message: &hostpb.ExecRequest_Stdin{Stdin: input}}, &hostpb.ExecRequest{Message: &hostpb.ExecRequest_CloseStdin{CloseStdin: true}})
	}
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			break // its cause comes with the answer
		}
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return r, serve.FromGRPC(err)
		}
		switch m := m.GetMessage().(type) {
		case *hostpb.ExecResponse_Stdout:
			r.out += string(m.Stdout)
		case *hostpb.ExecResponse_Stderr:
			r.err += string(m.Stderr)
		case *hostpb.ExecResponse_Exited:
			r.code, r.signal = int(m.Exited.GetExitCode()), m.Exited.GetSignal()
		}
	}
}

func (w *world) write(id, path string, data []byte) error {
	stream, err := w.host.WriteFile(w.ctx())
	if err != nil {
		return serve.FromGRPC(err)
	}
	_ = stream.Send(&hostpb.WriteFileRequest{Message: &hostpb.WriteFileRequest_Target{Target: &hostpb.WriteFileTarget{SandboxId: id, Path: path}}})
	for len(data) > 0 {
		n := min(len(data), 64<<10)
		if stream.Send(&hostpb.WriteFileRequest{Message: &hostpb.WriteFileRequest_Data{Data: data[:n]}}) != nil {
			break // its cause comes with the answer
		}
		data = data[n:]
	}
	_, err = stream.CloseAndRecv()
	return serve.FromGRPC(err)
}

func (w *world) read(id, path string) ([]byte, error) {
	stream, err := w.host.ReadFile(w.ctx(), &hostpb.ReadFileRequest{SandboxId: id, Path: path})
	if err != nil {
		return nil, serve.FromGRPC(err)
	}
	var b []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, serve.FromGRPC(err)
		}
		b = append(b, m.GetData()...)
	}
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.cfg.DataDir, "cubelet"}, parts...)...)
}

func fromGRPC(err error) error { return serve.FromGRPC(err) }
