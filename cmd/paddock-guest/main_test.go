package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

const inside = "PADDOCK_TEST_FIRST_PROCESS"

// TestMain is the guest itself when it is started as the first process of a
// namespace.
func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(m.Run())
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		panic(err)
	}
	main()
}

type sandbox struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan error
	url   string
	proc  envdpb.ProcessClient
}

// boot starts the guest as process 1 of a new namespace.
func boot(t *testing.T, args ...string) *sandbox {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], append([]string{"-port", strconv.Itoa(port)}, args...)...)
	c.Env = append(os.Environ(), inside+"=1")
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	url := "http://127.0.0.1:" + strconv.Itoa(port)
	s := &sandbox{t: t, cmd: c, ended: make(chan error, 1), url: url, proc: envdpb.NewProcessClient(http.DefaultClient, url)}
	go func() { s.ended <- c.Wait() }()
	t.Cleanup(func() { _ = c.Process.Kill() }) // it may have ended
	s.eventually("the guest answers", func() bool {
		a, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		defer a.Body.Close()
		return a.StatusCode == http.StatusNoContent
	})
	return s
}

func (s *sandbox) eventually(what string, holds func() bool) {
	s.t.Helper()
	late := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-late:
			s.t.Fatalf("it never happened that %s", what)
		case <-tick.C:
		}
	}
}

// run runs a script to its end.
func (s *sandbox) run(script string) (string, *envdpb.ProcessEvent_EndEvent, error) {
	m := &envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}}
	stream, err := s.proc.Start(context.Background(), connect.NewRequest(m))
	if err != nil {
		return "", nil, err
	}
	defer stream.Close()
	text, end := "", (*envdpb.ProcessEvent_EndEvent)(nil)
	for stream.Receive() {
		text += string(stream.Msg().GetEvent().GetData().GetStdout())
		if e := stream.Msg().GetEvent().GetEnd(); e != nil {
			end = e
		}
	}
	if err := stream.Err(); err != nil {
		return text, nil, err
	}
	if end == nil {
		return text, nil, errors.New("no end event")
	}
	return text, end, nil
}

func (s *sandbox) zombies() int {
	text, _, err := s.run("cat /proc/[0-9]*/stat 2>/dev/null")
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Count(text, ") Z ")
}

func TestFirstProcessReapsOrphansAndKeepsExitCodes(t *testing.T) {
	s := boot(t)
	if text, _, err := s.run("tr '\\0' ' ' < /proc/1/cmdline; cat /proc/1/comm"); err != nil || !strings.Contains(text, "-port") {
		t.Fatalf("process 1 is %q, %v", text, err)
	}
	var all sync.WaitGroup
	for n := range 120 {
		all.Go(func() {
			// Each leaves three orphans, that die at about the time it does.
			_, end, err := s.run("(sleep 0.05 &); (true &); (sleep 0 &); exit " + strconv.Itoa(n))
			if err != nil || end.GetExitCode() != int32(n) {
				t.Errorf("exit %d: %v, %v", n, end, err)
			}
		})
	}
	all.Wait()
	s.eventually("no zombie is left", func() bool { return s.zombies() == 0 })
}

func TestFirstProcessStopsWithinItsBound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "asked")
	s := boot(t, "--", "/bin/sh", "-c", "trap 'echo asked > "+file+"; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
	c, err := s.proc.Connect(context.Background(), connect.NewRequest(&envdpb.ConnectRequest{Process: &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Tag{Tag: "start"}}}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for c.Receive() && !strings.Contains(string(c.Msg().GetEvent().GetData().GetStdout()), "ready") {
	}
	// An orphan that ignores SIGTERM.
	if _, _, err := s.run("(trap '' TERM; setsid sh -c \"trap '' TERM; while :; do sleep 1; done\" >/dev/null 2>&1 &)"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(8 * time.Second):
		t.Fatal("it did not end")
	}
	t.Logf("it ended after %v", time.Since(begin))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the start command was not asked to stop: %v", err)
	}
}

func TestBadStartCommandLeavesTheAPI(t *testing.T) {
	s := boot(t, "-user", "1234", "-workdir", "/usr", "--", "no-such-program")
	text, end, err := s.run("id -u; pwd")
	if err != nil || text != "1234\n/usr\n" || end.GetExitCode() != 0 {
		t.Errorf("%q, %v, %v", text, end, err)
	}
}

func TestPortInUseAndFlags(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	for _, args := range [][]string{{"-port", port}, {"-no-such-flag"}} {
		c := exec.Command(os.Args[0], args...)
		c.Env = append(os.Environ(), inside+"=1")
		c.Stderr = io.Discard
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
		if err := c.Run(); c.ProcessState.ExitCode() != 1 {
			t.Errorf("%v: %v", args, err)
		}
	}
}
