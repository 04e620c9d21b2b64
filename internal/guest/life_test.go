package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

func (b *box) init(token, body string) int {
	b.t.Helper()
	status, _, _ := b.call("POST", "/init", strings.NewReader(body), map[string]string{"X-Access-Token": token})
	return status
}

func TestANewLifeForgetsTheOldOnesCallers(t *testing.T) {
	b := newBox(t)
	if got := b.init("", `{"accessToken":"old","newLife":"1","envVars":{"OLD":"x"},"defaultUser":"root","defaultWorkdir":"/"}`); got != 204 {
		t.Fatal(got)
	}
	with := func(token string) connect.ClientOption {
		return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
				r.Header().Set("X-Access-Token", token)
				return next(ctx, r)
			}
		}))
	}
	files := envdpb.NewFilesystemClient(http.DefaultClient, b.url, with("old"))
	kept, err := files.CreateWatcher(t.Context(), connect.NewRequest(&envdpb.CreateWatcherRequest{Path: b.home}))
	check(t, err)
	start := connect.NewRequest(shell("echo begun; cat; echo goes on"))
	start.Header().Set("X-Access-Token", "old")
	process, err := b.proc.Start(t.Context(), start)
	check(t, err)
	defer process.Close()
	pid := uint32(0)
	for process.Receive() && len(process.Msg().GetEvent().GetData().GetStdout()) == 0 {
		pid = max(pid, process.Msg().GetEvent().GetStart().GetPid())
	}
	watch := connect.NewRequest(&envdpb.WatchDirRequest{Path: b.home})
	watch.Header().Set("X-Access-Token", "old")
	events, err := b.file.WatchDir(t.Context(), watch)
	check(t, err)
	defer events.Close()
	if !events.Receive() {
		t.Fatal(events.Err())
	}
	// A caller that does not read what it asked for, and one that does not send
	// what it promised.
	big := filepath.Join(b.home, "big")
	check(t, os.WriteFile(big, nil, 0o644))
	check(t, os.Truncate(big, 1<<30))
	reader := b.raw("GET /files?path=" + big + " HTTP/1.1\r\nHost: x\r\nX-Access-Token: old\r\n\r\n")
	_, err = reader.ReadString('\n')
	check(t, err)
	half := filepath.Join(b.home, "half")
	sender := b.raw("POST /files?path=" + half + " HTTP/1.1\r\nHost: x\r\nX-Access-Token: old\r\nContent-Length: 100\r\n\r\nhalf")
	eventually(t, "the upload has begun", func() bool {
		_, err := os.Stat(half)
		return err == nil
	})

	for body, want := range map[string]int{`{"newLife":"2","accessToken":"new"}`: 401, `{"newLife":"` + strings.Repeat("x", 300) + `"}`: 400} {
		if got := b.init("", body); got != want {
			t.Errorf("%.60s by a stranger: %d", body, got)
		}
	}
	for range 2 { // the answer to the first may be lost
		if got := b.init("old", `{"newLife":"2","accessToken":"new","envVars":{"NEW":"x"}}`); got != 204 && b.init("new", `{"newLife":"2","accessToken":"new"}`) != 204 {
			t.Fatal(got)
		}
	}
	for process.Receive() {
		t.Errorf("the stream of before tells %v", process.Msg())
	}
	wantCode(t, process.Err(), connect.CodeAborted, "state_conflict")
	for events.Receive() { // what happened before may still come
	}
	wantCode(t, events.Err(), connect.CodeAborted, "state_conflict")
	_, err = io.Copy(io.Discard, reader)
	if n := errors.Is(err, io.ErrUnexpectedEOF); err != nil && !n && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the download of before: %v", err)
	}
	_, _ = io.Copy(io.Discard, sender) // it ends: that is the test
	eventually(t, "the half upload is gone", func() bool {
		_, err := os.Stat(half)
		return errors.Is(err, os.ErrNotExist)
	})
	if status, _, _ := b.call("GET", "/envs", nil, map[string]string{"X-Access-Token": "old"}); status != 401 {
		t.Errorf("the token of before: %d", status)
	}
	if _, text, _ := b.call("GET", "/envs", nil, map[string]string{"X-Access-Token": "new"}); strings.Contains(text, "OLD") || !strings.Contains(text, "NEW") {
		t.Errorf("variables: %s", text)
	}
	if v := b.g.settings.current(); v.user != "agent" || v.workdir != "" {
		t.Errorf("defaults: %q, %q", v.user, v.workdir)
	}
	files = envdpb.NewFilesystemClient(http.DefaultClient, b.url, with("new"))
	_, err = files.GetWatcherEvents(t.Context(), connect.NewRequest(&envdpb.GetWatcherEventsRequest{WatcherId: kept.Msg.GetWatcherId()}))
	wantCode(t, err, connect.CodeNotFound, "not_found")

	// A connection of before does not spoil the calls of after.
	for range 20 {
		_, err := files.Stat(t.Context(), connect.NewRequest(&envdpb.StatRequest{Path: b.home}))
		check(t, err)
	}

	// The process goes on, and who knows the new token finds it.
	proc := envdpb.NewProcessClient(http.DefaultClient, b.url, with("new"))
	again := connect.NewRequest(&envdpb.ConnectRequest{Process: byPid(pid)})
	again.Header().Set("X-Access-Token", "new")
	joined, err := proc.Connect(t.Context(), again)
	check(t, err)
	defer joined.Close()
	if !joined.Receive() {
		t.Fatal(joined.Err())
	}
	_, err = proc.CloseStdin(t.Context(), connect.NewRequest(&envdpb.CloseStdinRequest{Process: byPid(pid)}))
	check(t, err)
	text := ""
	for joined.Receive() {
		text += string(joined.Msg().GetEvent().GetData().GetStdout())
	}
	if joined.Err() != nil || text != "goes on\n" {
		t.Errorf("%q, %v", text, joined.Err())
	}
}

// raw sends text on a connection of its own.
func (b *box) raw(text string) *bufio.Reader {
	b.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	check(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() }) // the other end may have
	check(b.t, conn.SetReadDeadline(time.Now().Add(2*time.Minute)))
	_, err = io.WriteString(conn, text)
	check(b.t, err)
	return bufio.NewReader(conn)
}

func TestTheSameLifeIsNotANewOne(t *testing.T) {
	b := newBox(t)
	for i := range 2 {
		if got := b.init("", fmt.Sprintf(`{"newLife":"1","envVars":{"V%d":"x"}}`, i)); got != 204 {
			t.Fatal(got)
		}
	}
	if v := b.g.settings.current(); v.envs["V0"] == "" || v.envs["V1"] == "" {
		t.Errorf("variables: %v", v.envs)
	}
	// A clock that went back does not hold a new life up.
	for body, want := range map[string]string{
		`{"timestamp":"2030-01-01T00:00:00Z","newLife":"2","envVars":{"V":"2"}}`: "2",
		`{"timestamp":"2020-01-01T00:00:00Z","newLife":"3","envVars":{"V":"3"}}`: "3",
	} {
		if got := b.init("", body); got != 204 || b.g.settings.current().envs["V"] != want {
			t.Errorf("%s: %d, %v", body, got, b.g.settings.current().envs)
		}
	}
}

func TestHostname(t *testing.T) {
	b := newBox(t)
	etc := filepath.Join(b.g.root, "etc")
	check(t, os.WriteFile(filepath.Join(etc, "hostname"), []byte("before\n"), 0o644))
	check(t, os.WriteFile(filepath.Join(etc, "hosts"), []byte("127.0.0.1\tlocalhost\n10.0.0.9\tbefore # ours\n10.0.0.8 before.example before db"), 0o644))
	for range 2 {
		if got := b.init("", `{"hostname":"after"}`); got != 204 {
			t.Fatal(got)
		}
	}
	name, err := os.ReadFile(filepath.Join(etc, "hostname"))
	check(t, err)
	hosts, err := os.ReadFile(filepath.Join(etc, "hosts"))
	check(t, err)
	if want := "127.0.0.1\tlocalhost\n10.0.0.8\tbefore.example db\n" + address() + "\tafter\n"; string(name) != "after\n" || string(hosts) != want {
		t.Errorf("%q\n%s\nwant\n%s", name, hosts, want)
	}
	for _, bad := range []string{"", "-x", "x-", "a b", "a..b", "x\\ny", strings.Repeat("x", 65)} {
		if got := b.init("", `{"hostname":"`+bad+`"}`); got != 400 {
			t.Errorf("%q: %d", bad, got)
		}
	}
}

func TestHostsWith(t *testing.T) {
	for _, c := range []struct{ text, before, want string }{
		{"", "", "1.2.3.4\tn\n"},
		{"# comment\n\n::1 localhost\n", "localhost", "# comment\n\n::1 localhost\n1.2.3.4\tn\n"},
		{"9.9.9.9 n\n", "n", "1.2.3.4\tn\n"},
		{"9.9.9.9 other old\n9.9.9.9 old\nbroken", "old", "9.9.9.9\tother\nbroken\n1.2.3.4\tn\n"},
	} {
		if got := string(hostsWith(c.text, c.before, "n", "1.2.3.4")); got != c.want {
			t.Errorf("%q: got %q, want %q", c.text, got, c.want)
		}
	}
}

func TestOnlyAClockOfItsOwnIsSet(t *testing.T) {
	b := newBox(t)
	var set []time.Time
	for _, at := range []string{time.Now().Format(time.RFC3339Nano), "2040-01-01T00:00:00Z"} {
		b.g.setClock = nil
		if got := b.init("", `{"timestamp":"`+at+`"}`); got != 204 { // nothing is set
			t.Error(got)
		}
		b.g.setClock = func(now time.Time) error { set = append(set, now); return errors.New("refused") }
		if got := b.init("", `{"timestamp":"`+at+`"}`); got != 204 {
			t.Error(got)
		}
	}
	// The first is as good as right, unless this machine slept meanwhile.
	if len(set) == 0 || set[len(set)-1].Year() != 2040 {
		t.Errorf("set to %v", set)
	}
}
