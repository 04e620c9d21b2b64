package guest

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

func basic(user string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))
}

func TestStartTellsOutputAndEnd(t *testing.T) {
	b := newBox(t)
	r := b.run(shell("echo out; echo err >&2; exit 3"))
	if r.stdout != "out\n" || r.stderr != "err\n" {
		t.Errorf("output %q, %q", r.stdout, r.stderr)
	}
	if r.end.GetExitCode() != 3 || !r.end.GetExited() || r.end.GetStatus() != "exit status 3" || r.end.GetError() != "exit status 3" {
		t.Errorf("end %v", r.end)
	}
	if r := b.run(shell("true")); r.end.GetExitCode() != 0 || r.end.Error != nil {
		t.Errorf("end %v", r.end)
	}
}

func TestEnvironmentUserAndDirectory(t *testing.T) {
	b := newBox(t)
	check(t, b.g.apply(initRequest{EnvVars: map[string]string{"A": "init", "B": "init"}}, ""))
	m := shell(`echo "$FROM $A $B $HOME $USER $LOGNAME $E2B_SANDBOX"; id -u; id -G; pwd; umask >/dev/null`)
	m.Process.Envs = map[string]string{"B": "request"}
	want := "image init request " + b.home + " agent agent true\n12345\n12345 777\n" + b.home + "\n"
	if r := b.run(m); r.stdout != want {
		t.Errorf("got %q, want %q", r.stdout, want)
	}
	for user, want := range map[string]string{"root": "0 0\n", "4321": "4321 0\n", "4321:99": "4321 99\n", "agent:extra": "12345 777\n"} {
		r := connect.NewRequest(shell("echo $(id -u) $(id -g)"))
		r.Header().Set("Authorization", basic(user))
		s, err := b.proc.Start(t.Context(), r)
		check(t, err)
		if got := drain(t, s); got.stdout != want {
			t.Errorf("%s is %q, want %q", user, got.stdout, want)
		}
	}
}

func TestStartRefusals(t *testing.T) {
	b := newBox(t)
	check(t, os.WriteFile(filepath.Join(b.home, "plain"), []byte("x"), 0o644))
	check(t, os.WriteFile(filepath.Join(b.home, "script"), []byte("#!/no/such/interpreter\n"), 0o755))
	check(t, os.WriteFile(filepath.Join(b.home, "junk"), []byte("\x00\x01\x02\x03"), 0o755))
	for _, c := range []struct {
		name, cmd, cwd, user string
		code                 connect.Code
		fault, message       string
	}{
		{"missing", "no-such-program", "", "", connect.CodeNotFound, "command_not_found", "command not found: 'no-such-program'"},
		{"missing path", "/no/such", "", "", connect.CodeNotFound, "command_not_found", "/no/such"},
		{"no interpreter", "./script", "", "", connect.CodeNotFound, "command_not_found", "interpreter"},
		{"not executable", "./plain", "", "", connect.CodePermissionDenied, "invalid_input", "plain"},
		{"directory", "/etc", "", "", connect.CodePermissionDenied, "invalid_input", "/etc"},
		{"not a program", "./junk", "", "", connect.CodeInvalidArgument, "invalid_input", "junk"},
		{"empty", "", "", "", connect.CodeInvalidArgument, "invalid_input", "empty"},
		{"cwd", "true", "/no/dir", "", connect.CodeInvalidArgument, "invalid_input", "cwd '/no/dir' does not exist"},
		{"cwd is a file", "true", "plain", "", connect.CodeInvalidArgument, "invalid_input", "not a directory"},
		{"user", "true", "", "nobody-here", connect.CodeUnauthenticated, "invalid_input", "invalid username: 'nobody-here'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: c.cmd, Cwd: &c.cwd}}
			e := b.refused(m, c.user)
			wantCode(t, e, c.code, c.fault)
			if !strings.Contains(e.Message(), c.message) {
				t.Errorf("message %q lacks %q", e.Message(), c.message)
			}
		})
	}
}

func TestInputOfEveryKind(t *testing.T) {
	b := newBox(t)
	s, pid := b.start(t.Context(), shell("cat"))
	_, err := b.proc.SendInput(t.Context(), connect.NewRequest(&envdpb.SendInputRequest{Process: byPid(pid), Input: &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: []byte("one ")}}}))
	check(t, err)
	in := b.proc.StreamInput(t.Context())
	check(t, in.Send(&envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Start{Start: &envdpb.StreamInputRequest_StartEvent{Process: byPid(pid)}}}))
	check(t, in.Send(&envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Keepalive{}}))
	check(t, in.Send(&envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Data{Data: &envdpb.StreamInputRequest_DataEvent{Input: &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: []byte("two")}}}}}))
	_, err = in.CloseAndReceive()
	check(t, err)
	_, err = b.proc.CloseStdin(t.Context(), connect.NewRequest(&envdpb.CloseStdinRequest{Process: byPid(pid)}))
	check(t, err)
	if r := drain(t, s); r.stdout != "one two" {
		t.Errorf("got %q", r.stdout)
	}
	_, pid = b.start(t.Context(), shell("exec sleep 1000"))
	for range 2 {
		_, err = b.proc.CloseStdin(t.Context(), connect.NewRequest(&envdpb.CloseStdinRequest{Process: byPid(pid)}))
		check(t, err)
	}
	m := shell("cat; echo end")
	m.Stdin = proto.Bool(false)
	if r := b.run(m); r.stdout != "end\n" {
		t.Errorf("without input: %q", r.stdout)
	}
}

func TestInputThatNobodyReadsEndsWithItsCall(t *testing.T) {
	b := newBox(t)
	_, pid := b.start(t.Context(), shell("exec sleep 1000"))
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	_, err := b.proc.SendInput(ctx, connect.NewRequest(&envdpb.SendInputRequest{Process: byPid(pid), Input: &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: make([]byte, 1<<20)}}}))
	if e := connectError(t, err); e.Code() != connect.CodeDeadlineExceeded {
		t.Errorf("got %v", e)
	}
}

func TestInputRefusals(t *testing.T) {
	b := newBox(t)
	m := shell("sleep 1000")
	m.Stdin = proto.Bool(false)
	_, pid := b.start(t.Context(), m)
	send := func(s *envdpb.ProcessSelector, in *envdpb.ProcessInput) error {
		_, err := b.proc.SendInput(t.Context(), connect.NewRequest(&envdpb.SendInputRequest{Process: s, Input: in}))
		return err
	}
	stdin := &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: []byte("x")}}
	wantCode(t, send(byPid(pid), stdin), connect.CodeFailedPrecondition, "state_conflict")
	wantCode(t, send(byPid(4_000_000), stdin), connect.CodeNotFound, "not_found")
	wantCode(t, send(byTag("none"), stdin), connect.CodeNotFound, "not_found")
	wantCode(t, send(nil, stdin), connect.CodeInvalidArgument, "invalid_input")
	_, err := b.proc.Update(t.Context(), connect.NewRequest(&envdpb.UpdateRequest{Process: byPid(pid), Pty: &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: 1, Rows: 1}}}))
	wantCode(t, err, connect.CodeFailedPrecondition, "state_conflict")
	_, err = b.proc.SendSignal(t.Context(), connect.NewRequest(&envdpb.SendSignalRequest{Process: byPid(pid), Signal: 99}))
	wantCode(t, err, connect.CodeInvalidArgument, "invalid_input")
}

func TestListAndConnect(t *testing.T) {
	b := newBox(t)
	m := shell("read line; echo got $line; exit 4")
	m.Tag = proto.String("job")
	s, pid := b.start(t.Context(), m)
	list, err := b.proc.List(t.Context(), connect.NewRequest(&envdpb.ListRequest{}))
	check(t, err)
	if p := list.Msg.GetProcesses(); len(p) != 1 || p[0].GetPid() != pid || p[0].GetTag() != "job" || p[0].GetConfig().GetCmd() != "/bin/sh" {
		t.Fatalf("list %v", p)
	}
	check(t, s.Close()) // going away leaves it running
	c, err := b.proc.Connect(t.Context(), connect.NewRequest(&envdpb.ConnectRequest{Process: byTag("job")}))
	check(t, err)
	defer c.Close()
	if !c.Receive() || c.Msg().GetEvent().GetStart().GetPid() != pid {
		t.Fatalf("first event %v, %v", c.Msg(), c.Err())
	}
	_, err = b.proc.SendInput(t.Context(), connect.NewRequest(&envdpb.SendInputRequest{Process: byTag("job"), Input: &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: []byte("it\n")}}}))
	check(t, err)
	var r result
	for c.Receive() {
		r.take(c.Msg().GetEvent())
	}
	check(t, c.Err())
	if r.stdout != "got it\n" || r.end.GetExitCode() != 4 {
		t.Errorf("got %q, %v", r.stdout, r.end)
	}
	// It has ended: it is not listed, but its end can still be asked for.
	late, err := b.proc.Connect(t.Context(), connect.NewRequest(&envdpb.ConnectRequest{Process: byPid(pid)}))
	check(t, err)
	defer late.Close()
	r = result{}
	for late.Receive() {
		r.take(late.Msg().GetEvent())
	}
	if r.end.GetExitCode() != 4 {
		t.Errorf("late end %v, %v", r.end, late.Err())
	}
	list, err = b.proc.List(t.Context(), connect.NewRequest(&envdpb.ListRequest{}))
	check(t, err)
	if len(list.Msg.GetProcesses()) != 0 {
		t.Errorf("list %v", list.Msg)
	}
}

// readPid reads a line that holds a pid from the stream.
func readPid(t *testing.T, s *connect.ServerStreamForClient[envdpb.StartResponse]) uint32 {
	t.Helper()
	text := ""
	for !strings.Contains(text, "\n") && s.Receive() {
		text += string(s.Msg().GetEvent().GetData().GetStdout()) + string(s.Msg().GetEvent().GetData().GetPty())
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	check(t, err)
	return uint32(n)
}

func TestSignalReachesTheGroup(t *testing.T) {
	b := newBox(t)
	for _, sig := range []envdpb.Signal{envdpb.Signal_SIGNAL_SIGTERM, envdpb.Signal_SIGNAL_SIGKILL} {
		s, pid := b.start(t.Context(), shell("sleep 1000 & echo $!; wait"))
		inner := readPid(t, s)
		_, err := b.proc.SendSignal(t.Context(), connect.NewRequest(&envdpb.SendSignalRequest{Process: byPid(pid), Signal: sig}))
		check(t, err)
		if r := drain(t, s); r.end.GetExited() || r.end.GetExitCode() != -1 || !strings.HasPrefix(r.end.GetError(), "signal: ") {
			t.Errorf("%v: end %v", sig, r.end)
		}
		eventually(t, "the child of the shell ended", func() bool { return !running(inner) })
		_, err = b.proc.SendSignal(t.Context(), connect.NewRequest(&envdpb.SendSignalRequest{Process: byPid(pid), Signal: sig}))
		wantCode(t, err, connect.CodeNotFound, "not_found")
	}
}

// running tells whether pid is there and no zombie: in the tests orphans are
// another init's.
func running(pid uint32) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/stat")
	return err == nil && !strings.HasPrefix(string(b[strings.LastIndexByte(string(b), ')')+1:]), " Z")
}

func TestTimeoutEndsTheProcessAndDisconnectDoesNot(t *testing.T) {
	b := newBox(t)
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	s, pid := b.start(ctx, shell("sleep 1000 & sleep 1000"))
	for s.Receive() {
	}
	if e := connectError(t, s.Err()); e.Code() != connect.CodeDeadlineExceeded {
		t.Errorf("got %v", e)
	}
	eventually(t, "the process ended at its timeout", func() bool { return !alive(pid) })

	ctx, leave := context.WithCancel(t.Context())
	file := filepath.Join(b.home, "done")
	_, pid = b.start(ctx, shell("read x; echo much output; echo > "+file))
	leave()
	eventually(t, "the guest noticed", func() bool { return b.followers(pid) == 0 })
	_, err := b.proc.CloseStdin(t.Context(), connect.NewRequest(&envdpb.CloseStdinRequest{Process: byPid(pid)}))
	check(t, err)
	eventually(t, "it ran to its end", func() bool { _, err := os.Stat(file); return err == nil })
}

func (b *box) followers(pid uint32) int {
	p, err := b.g.table.find(byPid(pid), false)
	check(b.t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.followers)
}

func TestTimeoutHoldsAfterDisconnect(t *testing.T) {
	b := newBox(t)
	ctx, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
	_, pid := b.start(ctx, shell("sleep 1000"))
	stop() // this cancels: the deadline that the guest was told stays
	eventually(t, "the process ended at its timeout", func() bool { return !alive(pid) })
}

func TestBackgroundChildDoesNotHoldTheEnd(t *testing.T) {
	b := newBox(t)
	file := filepath.Join(b.home, "late")
	begin := time.Now()
	r := b.run(shell("(read x < /dev/null; sleep 1.5; echo late; echo late > " + file + ") & echo now"))
	if r.stdout != "now\n" || time.Since(begin) > 1400*time.Millisecond {
		t.Errorf("%q after %v", r.stdout, time.Since(begin))
	}
	// Its output is dropped; it is not ended by a broken pipe.
	eventually(t, "the background child went on", func() bool { _, err := os.Stat(file); return err == nil })
}

// What an ended process left in its pipe belongs to its followers, however slow
// they are.
func TestOutputBeforeTheEndIsWhole(t *testing.T) {
	b := newBox(t)
	u, err := b.g.owner("")
	check(t, err)
	f, leave := newFollower()
	defer leave()
	p, err := b.g.start(launch{config: shell("head -c 60000 /dev/zero").GetProcess(), user: u}, f)
	check(t, err)
	<-p.child.done
	<-time.After(2 * lastOutput)
	sum := 0
	for over := false; !over; {
		select {
		case e := <-f.events:
			sum += len(e.GetData().GetStdout())
		case <-p.ended:
			over = true
		}
	}
	if sum != 60000 {
		t.Errorf("%d bytes", sum)
	}
}

func TestKeepalive(t *testing.T) {
	b := newBox(t)
	r := connect.NewRequest(shell("sleep 1.4"))
	r.Header().Set("Keepalive-Ping-Interval", "1")
	s, err := b.proc.Start(t.Context(), r)
	check(t, err)
	if got := drain(t, s); got.keepalives != 1 {
		t.Errorf("%d keepalives", got.keepalives)
	}
}

func TestTerminal(t *testing.T) {
	b := newBox(t)
	m := shell("stty -echo; stty size; read x; stty size; exit 5")
	m.Pty = &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: 90, Rows: 30}}
	s, pid := b.start(t.Context(), m)
	var r result
	for !strings.Contains(r.pty, "30 90") && s.Receive() {
		r.take(s.Msg().GetEvent())
	}
	_, err := b.proc.Update(t.Context(), connect.NewRequest(&envdpb.UpdateRequest{Process: byPid(pid), Pty: &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: 111, Rows: 44}}}))
	check(t, err)
	_, err = b.proc.Update(t.Context(), connect.NewRequest(&envdpb.UpdateRequest{Process: byPid(pid), Pty: &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: 1 << 17, Rows: 44}}}))
	wantCode(t, err, connect.CodeInvalidArgument, "invalid_input")
	_, err = b.proc.CloseStdin(t.Context(), connect.NewRequest(&envdpb.CloseStdinRequest{Process: byPid(pid)}))
	wantCode(t, err, connect.CodeFailedPrecondition, "state_conflict")
	_, err = b.proc.SendInput(t.Context(), connect.NewRequest(&envdpb.SendInputRequest{Process: byPid(pid), Input: &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Pty{Pty: []byte("\n")}}}))
	check(t, err)
	if rest := drain(t, s); !strings.Contains(rest.pty, "44 111") || rest.end.GetExitCode() != 5 {
		t.Errorf("got %q, %v", rest.pty, rest.end)
	}
}

func TestKillEndsTheJobsOfATerminal(t *testing.T) {
	b := newBox(t)
	m := &envdpb.StartRequest{
		Process: &envdpb.ProcessConfig{Cmd: "bash", Args: []string{"-c", "set -m; trap '' HUP; sleep 1000 & echo $!; wait"}},
		Pty:     &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: 80, Rows: 24}},
	}
	s, pid := b.start(t.Context(), m)
	job := readPid(t, s)
	_, err := b.proc.SendSignal(t.Context(), connect.NewRequest(&envdpb.SendSignalRequest{Process: byPid(pid), Signal: envdpb.Signal_SIGNAL_SIGKILL}))
	check(t, err)
	drain(t, s)
	eventually(t, "the job in its own group ended", func() bool { return !running(job) })
}

// A reader that stops reading stops the process; memory stays as it is.
func TestMuchOutputNeedsLittleMemory(t *testing.T) {
	b := newBox(t)
	size := 1 << 28
	s, _ := b.start(t.Context(), shell("head -c "+strconv.Itoa(size)+" /dev/zero"))
	sum, most := 0, uint64(0)
	for n := 0; s.Receive(); n++ {
		e := s.Msg().GetEvent()
		sum += len(e.GetData().GetStdout())
		if n%512 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse)
		}
	}
	check(t, s.Err())
	t.Logf("%d MiB of output, at most %d MiB of heap, client included", sum>>20, most>>20)
	if sum != size || most > 64<<20 {
		t.Errorf("%d bytes, %d MiB of heap", sum, most>>20)
	}
}

func TestSlowReaderHoldsTheProcess(t *testing.T) {
	b := newBox(t)
	count := filepath.Join(b.home, "count")
	_, pid := b.start(t.Context(), shell("i=0; while :; do head -c 100000 /dev/zero; i=$((i+1)); echo $i > "+count+"; done"))
	read := func() string { text, _ := os.ReadFile(count); return string(text) } //nolint:errcheck // not there yet
	eventually(t, "the process stood still", func() bool {
		before := read()
		<-time.After(300 * time.Millisecond)
		return before != "" && before == read()
	})
	if n, err := strconv.Atoi(strings.TrimSpace(read())); err != nil || n > 1000 {
		t.Errorf("it wrote %d00 kB that nobody read, %v", n, err)
	}
	check(t, b.g.reaper.signal(mustFind(t, b, pid).child, 9))
}

func mustFind(t *testing.T, b *box, pid uint32) *process {
	t.Helper()
	p, err := b.g.table.find(byPid(pid), false)
	check(t, err)
	return p
}

func TestManyAtOnce(t *testing.T) {
	b := newBox(t)
	results := make(chan int32, 60)
	for n := range 60 {
		go func() {
			s, err := b.proc.Start(context.Background(), connect.NewRequest(shell("exit "+strconv.Itoa(n))))
			if err != nil {
				results <- -1
				return
			}
			defer s.Close()
			code := int32(-1)
			for s.Receive() {
				if end := s.Msg().GetEvent().GetEnd(); end != nil {
					code = end.GetExitCode() - int32(n)
				}
			}
			results <- code
		}()
	}
	for range 60 {
		if off := <-results; off != 0 {
			t.Errorf("an exit code was off by %d", off)
		}
	}
}

func TestStartCommandKeepsItsLastOutput(t *testing.T) {
	b := newBox(t)
	b.g.StartCommand([]string{"/bin/sh", "-c", "i=0; while [ $i -lt 60000 ]; do echo line $i; i=$((i+1)); done; exit 9"})
	tail := func() result {
		c, err := b.proc.Connect(t.Context(), connect.NewRequest(&envdpb.ConnectRequest{Process: byTag(StartTag)}))
		check(t, err)
		defer c.Close()
		var r result
		for c.Receive() {
			r.take(c.Msg().GetEvent())
		}
		return r
	}
	for range 2 { // while it runs, and after
		r := tail()
		if !strings.HasSuffix(r.stdout, "line 59999\n") || r.end.GetExitCode() != 9 {
			t.Errorf("ends with %q, %v", r.stdout[max(0, len(r.stdout)-30):], r.end)
		}
	}
	if r := tail(); len(r.stdout) > ringSize {
		t.Errorf("%d bytes are kept", len(r.stdout))
	}
	b.g.StartCommand([]string{"no-such-program"})
	if r := tail(); r.end.GetExitCode() != 127 || !strings.Contains(r.end.GetError(), "command not found") {
		t.Errorf("a start command that does not start: %v", r.end)
	}
}
