package guest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

const agentUID = 12345

// box is a guest behind a real server, with users of its own: root, and agent
// whose home is a directory of the test.
type box struct {
	t    *testing.T
	g    *Guest
	url  string
	home string // of agent
	proc envdpb.ProcessClient
	file envdpb.FilesystemClient
}

func newBox(t *testing.T) *box {
	t.Helper()
	root := t.TempDir()
	home := filepath.Join(root, "home")
	// The parents of a test's directory keep other users out.
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		check(t, os.Chmod(dir, 0o755))
	}
	check(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	check(t, os.Mkdir(home, 0o755))
	check(t, os.Chown(home, agentUID, agentUID))
	check(t, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\nagent:x:12345:12345::"+home+":/bin/sh\nbroken line\nnone:x:y:z::/:\n"), 0o644))
	check(t, os.WriteFile(filepath.Join(root, "etc/group"), []byte("root:x:0:\nagent:x:12345:\nextra:x:777:other,agent\n"), 0o644))
	g, err := New(Deps{Log: slog.New(slog.DiscardHandler), DefaultUser: "agent", Environ: []string{"FROM=image", "PATH=" + defaultPath}, Root: root})
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	s := httptest.NewServer(g.Handler())
	t.Cleanup(func() {
		stop()
		check(t, <-ended)
		s.Close()
	})
	return &box{t, g, s.URL, home, envdpb.NewProcessClient(s.Client(), s.URL, connect.WithProtoJSON()), envdpb.NewFilesystemClient(s.Client(), s.URL, connect.WithProtoJSON())}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-late:
			t.Fatalf("it never happened that %s", what)
		case <-tick.C:
		}
	}
}

// shell is a request to run script.
func shell(script string) *envdpb.StartRequest {
	return &envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}}
}

// start runs m and returns its stream behind the start event, and its pid.
func (b *box) start(ctx context.Context, m *envdpb.StartRequest) (*connect.ServerStreamForClient[envdpb.StartResponse], uint32) {
	b.t.Helper()
	s, err := b.proc.Start(ctx, connect.NewRequest(m))
	check(b.t, err)
	if !s.Receive() {
		b.t.Fatalf("no start event: %v", s.Err())
	}
	b.t.Cleanup(func() { _ = s.Close() })
	return s, s.Msg().GetEvent().GetStart().GetPid()
}

type result struct {
	stdout, stderr, pty string
	end                 *envdpb.ProcessEvent_EndEvent
	keepalives          int
}

func (r *result) take(e *envdpb.ProcessEvent) {
	r.stdout += string(e.GetData().GetStdout())
	r.stderr += string(e.GetData().GetStderr())
	r.pty += string(e.GetData().GetPty())
	if e.GetKeepalive() != nil {
		r.keepalives++
	}
	if end := e.GetEnd(); end != nil {
		r.end = end
	}
}

func drain(t *testing.T, s *connect.ServerStreamForClient[envdpb.StartResponse]) (r result) {
	t.Helper()
	for s.Receive() {
		r.take(s.Msg().GetEvent())
	}
	check(t, s.Err())
	if r.end == nil {
		t.Fatal("no end event")
	}
	return r
}

// run runs m to its end.
func (b *box) run(m *envdpb.StartRequest) result {
	b.t.Helper()
	s, _ := b.start(b.t.Context(), m)
	return drain(b.t, s)
}

// refused returns the refusal of a start.
func (b *box) refused(m *envdpb.StartRequest, user string) *connect.Error {
	b.t.Helper()
	r := connect.NewRequest(m)
	if user != "" {
		r.Header().Set("Authorization", basic(user))
	}
	s, err := b.proc.Start(b.t.Context(), r)
	check(b.t, err)
	defer s.Close()
	if s.Receive() {
		b.t.Fatalf("it was started: %v", s.Msg())
	}
	return connectError(b.t, s.Err())
}

func connectError(t *testing.T, err error) *connect.Error {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) {
		t.Fatalf("not a refusal: %v", err)
	}
	return e
}

func wantCode(t *testing.T, err error, code connect.Code, name string) {
	t.Helper()
	e := connectError(t, err)
	if e.Code() != code || e.Meta().Get(HeaderCode) != name {
		t.Errorf("got %v, %q (%v), want %v, %q", e.Code(), e.Meta().Get(HeaderCode), e.Message(), code, name)
	}
}

func byPid(pid uint32) *envdpb.ProcessSelector {
	return &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Pid{Pid: pid}}
}

func byTag(tag string) *envdpb.ProcessSelector {
	return &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Tag{Tag: tag}}
}

func alive(pid uint32) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/stat")
	return err == nil && len(b) > 0
}

// call sends a plain request and returns status, body and headers.
func (b *box) call(method, path string, body io.Reader, header map[string]string) (int, string, http.Header) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, body)
	check(b.t, err)
	for k, v := range header {
		r.Header.Set(k, v)
	}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	a, err := client.Do(r)
	check(b.t, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	check(b.t, err)
	return a.StatusCode, string(text), a.Header
}
