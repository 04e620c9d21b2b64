package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/host"
	paddock "github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/test/cubelets"
)

// What the processes of a run know of each other.
const (
	envDSN     = "PADDOCK_BENCH_DSN"
	envMasters = "PADDOCK_BENCH_MASTERS"

	hostToken = "host"
)

var apiKey = "e2b_" + strings.Repeat("0", 40)

// master serves on an address that it prints, until its standard input ends.
func master(ctx context.Context, profile string) (err error) {
	db, err := store.Open(ctx, store.Options{DSN: os.Getenv(envDSN)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	c := config.Default()
	c.Auth = config.Auth{APIKey: config.Secret(apiKey), CallbackToken: "callback", HostToken: hostToken}
	c.Master.Addr, c.Master.DownloadBaseURL = url, url
	m, err := paddock.New(paddock.Deps{Config: c, Store: db, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	if profile != "" {
		f, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	s := &http.Server{Handler: m.Handler(), ReadHeaderTimeout: 10 * time.Second}
	served, ran := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { served <- s.Serve(l) }()
	go func() { ran <- m.Run(ctx) }()
	fmt.Println(url)
	_, err = io.Copy(io.Discard, os.Stdin)
	err = errors.Join(err, s.Close())
	<-served
	cancel()
	return errors.Join(err, <-ran)
}

// hosts runs a fleet until its standard input ends.
func hosts(ctx context.Context, n int) error {
	f, err := cubelets.Start(ctx, cubelets.Options{
		Hosts: n, Room: host.Resources{MilliCPU: 1_000_000, MemBytes: 1 << 40, DiskBytes: 1 << 42, Slots: 1000},
		Artifacts: []string{string(cubelets.Artifact)}, Token: hostToken, Masters: strings.Fields(os.Getenv(envMasters)),
	})
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Println(n)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// child is another process of the run.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  string // its first line
}

// spawn starts this program in another role and waits for its first line.
func spawn(ctx context.Context, role string, env []string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, append([]string{"-role", role}, args...)...)} //nolint:noctx // it ends when its standard input does
	c.cmd.Env, c.cmd.Stderr = append(os.Environ(), env...), os.Stderr
	c.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // Ctrl-C is for this process, which ends the others in order
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	line := make(chan string, 1)
	go func() {
		said, _ := bufio.NewReader(out).ReadString('\n') // an empty line tells as much
		line <- strings.TrimSpace(said)
	}()
	select {
	case c.said = <-line:
	case <-ctx.Done():
	case <-time.After(time.Minute):
	}
	if c.said == "" {
		return nil, errors.Join(fmt.Errorf("the %s did not begin", role), c.end())
	}
	return c, nil
}

func (c *child) end() error {
	force := time.AfterFunc(time.Minute, func() { _ = c.cmd.Process.Kill() }) // Wait tells
	defer force.Stop()
	return errors.Join(c.stdin.Close(), c.cmd.Wait())
}

// worked is the time that all threads of the child have worked.
func (c *child) worked() (time.Duration, error) {
	var t unix.Timespec
	const ofProcess = 2
	if err := unix.ClockGettime(int32(^c.cmd.Process.Pid<<3|ofProcess), &t); err != nil { //nolint:gosec // as the kernel numbers the clocks of processes
		return 0, fmt.Errorf("clock of process %d: %w", c.cmd.Process.Pid, err)
	}
	return time.Duration(t.Nano()), nil
}

func profileName(prefix, db string) []string {
	if prefix == "" {
		return nil
	}
	return []string{"-cpuprofile", filepath.Clean(prefix + "." + db)}
}

func hostsFlag(n int) []string { return []string{"-hosts", strconv.Itoa(n)} }
