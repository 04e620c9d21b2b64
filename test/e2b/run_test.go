package e2b

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/platform/treetar"
)

// start starts a program as root.
func (b box) start(ctx context.Context, command ...string) (*connect.ServerStreamForClient[envdpb.StartResponse], error) {
	r := connect.NewRequest(&envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: command[0], Args: command[1:]}})
	r.Header().Set("X-Access-Token", b.token)
	r.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("root:")))
	return envdpb.NewProcessClient(http.DefaultClient, b.url).Start(ctx, r)
}

// run runs a program as root, which must end well, and returns what it said.
func (b box) run(t *testing.T, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := b.start(ctx, command...)
	check(t, err)
	defer events.Close()
	said, ended := "", false
	for events.Receive() {
		e := events.Msg().GetEvent()
		said += string(e.GetData().GetStdout()) + string(e.GetData().GetStderr())
		if end := e.GetEnd(); end != nil {
			ended = end.GetExited() && end.GetExitCode() == 0
		}
	}
	if events.Err() != nil || !ended {
		t.Fatalf("%v: %v, %q", command, events.Err(), said)
	}
	return said
}

// mustCall calls a plain route, and returns the body of the answer.
func (b box) mustCall(t *testing.T, method, path string, body io.Reader, want int) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, b.url+path, body)
	check(t, err)
	r.Header.Set("X-Access-Token", b.token)
	answer, err := http.DefaultClient.Do(r)
	check(t, err)
	text, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode != want {
		t.Fatalf("%s %s: %s, %v, %.500s", method, path, answer.Status, err, text)
	}
	return text
}

// directories sends a tree into the sandbox and back.
func (b box) directories(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	check(t, os.MkdirAll(filepath.Join(from, "sub/empty"), 0o750))
	check(t, os.WriteFile(filepath.Join(from, "sub/f"), []byte("text"), 0o640))
	check(t, os.Chown(filepath.Join(from, "sub/f"), 1234, 4321))
	check(t, os.Link(filepath.Join(from, "sub/f"), filepath.Join(from, "same")))
	check(t, os.Symlink("../out", filepath.Join(from, "link")))
	tree, err := os.OpenRoot(from)
	check(t, err)
	defer tree.Close()
	var in bytes.Buffer
	_, err = treetar.Pack(t.Context(), &in, tree, treetar.PackOptions{Owners: true})
	check(t, err)
	packed := bytes.Clone(in.Bytes())
	b.mustCall(t, http.MethodPut, "/archive?path=/home/user/tree", &in, http.StatusNoContent)
	if got := b.run(t, "/bin/stat", "-c", "%n %u:%g %a", "/home/user/tree/sub/f", "/home/user/tree/sub"); got != "/home/user/tree/sub/f 1234:4321 640\n/home/user/tree/sub 0:0 750\n" {
		t.Errorf("inside: %s", got)
	}
	for range 2 { // over what is there, too
		b.mustCall(t, http.MethodPut, "/archive?path=/home/user/tree", bytes.NewReader(packed), http.StatusNoContent)
	}
	out := b.mustCall(t, http.MethodGet, "/archive?path=/home/user/tree", nil, http.StatusOK)
	there, err := os.OpenRoot(to)
	check(t, err)
	defer there.Close()
	check(t, treetar.Unpack(t.Context(), there, bytes.NewReader(out), treetar.UnpackOptions{Own: func(uid, gid int) (int, int) { return uid, gid }, Top: true}))
	if text, err := exec.Command("diff", "-r", "--no-dereference", from, to).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
	// All of the sandbox, but for what its kernel makes up.
	all := b.mustCall(t, http.MethodGet, "/archive?path=/", nil, http.StatusOK)
	if bytes.Contains(all, []byte("proc/1/")) || !bytes.Contains(all, []byte("home/user/tree/sub/f")) {
		t.Errorf("an archive of / of %d bytes", len(all))
	}
}

// flood has processes write what nobody reads: the guest goes on.
func (b box) flood(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 8 {
		events, err := b.start(ctx, "/bin/yes")
		check(t, err)
		defer events.Close()
		if !events.Receive() {
			t.Fatal(events.Err())
		}
	}
	if got := b.run(t, "/bin/echo", "still", "here"); got != "still here\n" {
		t.Error(got)
	}
	b.run(t, "/bin/killall", "-9", "yes")
}

// newLife gives the sandbox one, as a restore or a clone does.
func (b box) newLife(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	old, err := b.start(ctx, "/bin/cat")
	check(t, err)
	defer old.Close()
	if !old.Receive() {
		t.Fatal(old.Err())
	}
	b.mustCall(t, http.MethodPost, "/init", strings.NewReader(`{"newLife":"2","accessToken":"another","hostname":"clone-2","envVars":{"PATH":"/bin"}}`), http.StatusNoContent)
	for old.Receive() {
		t.Errorf("it is told %v", old.Msg())
	}
	if connect.CodeOf(old.Err()) != connect.CodeAborted {
		t.Errorf("a stream of before ends with %v", old.Err())
	}
	b.mustCall(t, http.MethodGet, "/envs", nil, http.StatusUnauthorized)
	b.token = "another"
	if got := b.run(t, "/bin/cat", "/etc/hostname", "/etc/hosts"); !strings.HasPrefix(got, "clone-2\n") || strings.Count(got, "clone-2") != 2 || strings.Contains(got, b.id) || !strings.Contains(got, "localhost") {
		t.Errorf("its name: %s", got)
	}
	b.run(t, "/bin/wget", "-q", "-O", "/dev/null", "http://clone-2:49983/health") // its name leads to itself
	b.run(t, "/bin/pidof", "cat")                                                 // it went on
	t.Logf("the kernel's name of it: %s", b.run(t, "/bin/hostname"))
}
