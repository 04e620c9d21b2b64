// Package e2b drives a sandbox with E2B's own client: a real sandbox of a real
// host, and in front of it no more of a control plane than the client asks for.
// It must never say of a guest what a guest did not say.
package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/guest"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

const (
	artifact = "rfs-0123456789abcdef01234567"
	patience = 5 * time.Minute
	writable = 40 << 20
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// image makes one with the guest, a shell as the client wants it, and the usual
// small programs.
func image(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"/.paddock/guest": runtimetest.Build(t, dir, "cmd/paddock-guest"), "/bin/bash": "/bin/bash", "/bin/busybox": "/usr/bin/busybox"}
	out, err := exec.Command("ldd", "/bin/bash").Output()
	check(t, err)
	for _, word := range strings.Fields(string(out)) {
		if filepath.IsAbs(word) {
			files[word] = word
		}
	}
	return runtimetest.Image(t, dir, files)
}

// box is a sandbox of a host that this process is.
type box struct {
	id, url, token string
}

func newBox(t *testing.T) box {
	t.Helper()
	path := image(t)
	bytes, err := os.ReadFile(path)
	check(t, err)
	sum := sha256.Sum256(bytes)
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }))
	t.Cleanup(source.Close)
	data, err := os.MkdirTemp("", "paddock-e2b-")
	check(t, err)
	c := config.Default()
	c.DataDir, c.Master.Addr = data, "http://127.0.0.1:1" // nobody
	c.Cubelet.NodeID, c.Cubelet.Subnet, c.Cubelet.Runsc = "host-of-clients", "10.233.0.0/24", runtimetest.Runsc(t)
	c.Cubelet.OnStop, c.Cubelet.StartTimeout = "kill", patience
	host, err := cubelet.Open(t.Context(), cubelet.Deps{Config: c, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), Metrics: prometheus.NewRegistry(), Version: "test", GRPCPort: 1})
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- host.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		check(t, <-done)
		check(t, os.RemoveAll(data))
	})
	bounded, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	api := cubelet.NewServer(host)
	_, err = api.EnsureArtifact(bounded, &hostpb.EnsureArtifactRequest{ArtifactId: artifact, Url: source.URL, Sha256: hex.EncodeToString(sum[:]), SizeBytes: int64(len(bytes))})
	check(t, err)
	b := box{id: id.New("i"), token: id.Secret("", 20)}
	answer, err := api.CreateSandbox(bounded, &hostpb.CreateSandboxRequest{
		SandboxId: b.id, TemplateId: "tpl-0123456789abcdef01234567", ArtifactId: artifact, WritableBytes: writable,
		Resources: &hostpb.Resources{MilliCpu: 2000, MemBytes: 512 << 20, DiskBytes: writable, Slots: 1},
		Envs:      map[string]string{"FROM": "create", "PATH": "/usr/local/bin:/usr/bin:/bin"}, AccessToken: b.token, User: "root",
		Command: []string{"/bin/busybox", "sh", "-c", "exec busybox sleep 100000"},
	})
	check(t, err)
	b.url = "http://" + net.JoinHostPort(answer.GetSandbox().GetIp(), strconv.Itoa(guest.Port))
	b.furnish(t)
	return b
}

// furnish gives the sandbox the programs of busybox and the user's home.
func (b box) furnish(t *testing.T) {
	t.Helper()
	b.mustCall(t, http.MethodPost, "/init", strings.NewReader(`{"defaultUser":"user"}`), http.StatusNoContent)
	b.run(t, "/bin/busybox", "--install", "-s", "/bin")
	b.run(t, "/bin/busybox", "mkdir", "-p", "/home/user")
	b.run(t, "/bin/busybox", "chown", "user:user", "/home/user")
}

// controlPlane is what the client asks of one to make and find a sandbox.
func (b box) controlPlane(t *testing.T) string {
	t.Helper()
	found := map[string]any{"templateID": "any", "sandboxID": b.id, "clientID": "paddock", "envdVersion": guest.Version, "envdAccessToken": b.token, "domain": nil}
	say := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(found) // the client tells what it lacks
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/sandboxes", say(http.StatusCreated))
	mux.HandleFunc("POST /v2/sandboxes/"+b.id+"/connect", say(http.StatusOK))
	mux.HandleFunc("DELETE /sandboxes/"+b.id, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestASandbox(t *testing.T) {
	b := newBox(t)
	t.Run("the client of E2B", b.drive)
	t.Run("directories", b.directories)
	t.Run("a flood", b.flood)
	t.Run("a new life", b.newLife)
}

// drive runs E2B's own client.
func (b box) drive(t *testing.T) {
	modules, err := filepath.Abs("../../.tools/e2b/node_modules")
	check(t, err)
	if _, err := os.Stat(modules); err != nil {
		t.Fatalf("%v: run `make setup`", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c := exec.CommandContext(ctx, "node", "--test", "--test-reporter=spec", "drive.mjs")
	c.Env = append(os.Environ(), "E2B_MODULES="+modules, "E2B_API_URL="+b.controlPlane(t), "E2B_SANDBOX_URL="+b.url,
		"E2B_API_KEY=e2b_"+strings.Repeat("0", 40), "E2B_TEST_TOKEN="+b.token)
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	check(t, err)
}
