package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	// A command that reads what somebody types may take its time.
	execTimeout, inputTimeout = time.Minute, 24 * time.Hour
	signalTime                = 5 * time.Second
	// brokenPipeGrace is how long a command whose output nobody reads may go
	// on after it was told.
	brokenPipeGrace = time.Second
)

// bySignal is the exit status of what a signal ended, as shells have it.
func bySignal(n int) exitStatus { return exitStatus(128 + n) }

func (a *app) execCommand() *cobra.Command {
	var r cubeapi.ExecRequest
	var timeout time.Duration
	var interactive, onTerminal, detach bool
	c := &cobra.Command{
		Use: "exec SANDBOX -- COMMAND [ARG...]", Short: "Run a command in a sandbox and exit as it does", Args: args(2, -1),
		Long: "Run a command in a sandbox and exit as it does: with its status, or with 128 and the number of the signal that ended it.\n" +
			"Signals that this program gets, Ctrl-C too, are passed on to the command. A reader of the output that goes away ends it.\n" +
			"With -it the command has a terminal of the size of this one, which is what a shell wants. With -d it goes on by itself, and its process is printed.",
		RunE: func(c *cobra.Command, given []string) error {
			r.SandboxID, r.Command = given[0], given[1:]
			var stdin io.Reader
			if interactive {
				stdin = a.stdin
				if !c.Flags().Changed("timeout") {
					timeout = inputTimeout
				}
			}
			r.TimeoutMS = timeout.Milliseconds()
			switch {
			case onTerminal && !interactive:
				return fault.New(fault.InvalidInput, "-t goes with -i: a terminal without input is none")
			case detach && interactive:
				return fault.New(fault.InvalidInput, "-d has no input: leave -i out")
			case detach:
				return a.with(func(api *cubeapi.Client) error { return a.detached(c.Context(), api, r) })
			}
			return a.with(func(api *cubeapi.Client) error { return a.exec(c.Context(), api, r, stdin, onTerminal) })
		},
	}
	f := c.Flags()
	f.StringToStringVar(&r.Envs, "env", nil, "environment variable NAME=VALUE")
	f.StringVar(&r.Cwd, "cwd", "", "working directory")
	f.StringVar(&r.User, "user", "", "user of the image (default root)")
	f.DurationVar(&timeout, "timeout", execTimeout, "end the command after this long; with -i the default is 24h")
	f.BoolVarP(&interactive, "stdin", "i", false, "pass standard input to the command while it runs")
	f.BoolVarP(&onTerminal, "tty", "t", false, "with -i: the command runs on a terminal")
	f.BoolVarP(&detach, "detach", "d", false, "print the command's process once it runs, and leave it running")
	return c
}

// detached starts a command and prints its process.
func (a *app) detached(ctx context.Context, api *cubeapi.Client, r cubeapi.ExecRequest) error {
	r.Detach, r.TimeoutMS = true, 0
	_, err := api.ExecWith(ctx, r, cubeapi.ExecStreams{Stdout: io.Discard, Stderr: io.Discard, Started: func(pid uint32) { fmt.Fprintln(a.stdout, pid) }})
	return err
}

// exec runs one command from this terminal. stdin may be nil.
func (a *app) exec(outer context.Context, api *cubeapi.Client, r cubeapi.ExecRequest, stdin io.Reader, onTerminal bool) (err error) {
	if outer.Err() != nil {
		return bySignal(int(syscall.SIGINT)) // it came while the command line was read
	}
	var t *terminal
	if onTerminal {
		if t, err = a.openTerminal(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.close()) }()
		size := t.size()
		r.Terminal = &size
	}
	// From here on a signal is the command's and must not end this program.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(outer))
	defer cancel(nil)
	s := &session{api: api, sandbox: r.SandboxID, talk: a.stderr, cancel: cancel, signals: make(chan os.Signal, 16), unread: make(chan struct{})}
	// With a handler for SIGPIPE a write to a closed pipe fails; without, it
	// would end this program and leave the command running.
	signal.Notify(s.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	defer signal.Stop(s.signals)
	var passing sync.WaitGroup
	passing.Go(func() { s.pass(ctx) })
	if t != nil {
		passing.Go(func() { t.follow(ctx, s) })
	}
	exit, err := api.ExecWith(ctx, r, cubeapi.ExecStreams{
		Stdin: stdin, Stdout: &outlet{s: s, w: a.stdout}, Stderr: &outlet{s: s, w: a.stderr}, Started: s.pid.Store,
	})
	cancel(err)
	passing.Wait()
	return s.outcome(context.Cause(ctx), exit, err)
}

// session is one command from its start to its end.
type session struct {
	api     *cubeapi.Client
	sandbox string
	talk    io.Writer
	cancel  context.CancelCauseFunc
	signals chan os.Signal
	pid     atomic.Uint32 // 0 until the command runs

	once   sync.Once
	unread chan struct{} // closed when the output has no reader
	failed error         // why; read after unread
}

// outlet is one stream of the command's output. Once nobody reads, the rest is
// dropped: the command's end is waited for.
type outlet struct {
	s *session
	w io.Writer
}

func (o *outlet) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	select {
	case <-o.s.unread:
	default:
		if _, err := o.w.Write(b); err != nil {
			o.s.once.Do(func() { o.s.failed = err; close(o.s.unread) })
		}
	}
	return len(b), nil
}

// pass passes signals on until ctx ends. What cannot be passed on ends the
// session: nobody shall be kept waiting for what does not answer.
func (s *session) pass(ctx context.Context) {
	unread, force := s.unread, (<-chan time.Time)(nil)
	for {
		n := syscall.SIGKILL
		select {
		case <-ctx.Done():
			return
		case <-force:
		case <-unread:
			unread, force, n = nil, time.After(brokenPipeGrace), syscall.SIGPIPE
		case got := <-s.signals:
			var ok bool
			if n, ok = got.(syscall.Signal); !ok || n == syscall.SIGPIPE {
				continue // the write that it came of has failed too
			}
		}
		if err := s.signal(ctx, n); err != nil {
			s.cancel(errors.Join(bySignal(int(n)), err))
			return
		}
	}
}

// signal passes one signal on. One that has no process any more is success, and
// so is one in whose midst the command ended.
func (s *session) signal(ctx context.Context, n syscall.Signal) error {
	pid := s.pid.Load()
	if pid == 0 {
		return errors.New("the command did not run yet")
	}
	bound, cancel := context.WithTimeout(ctx, signalTime)
	defer cancel()
	err := s.api.Signal(bound, s.sandbox, pid, int(n))
	if err == nil || errors.Is(err, fault.NoSuchThing) || ctx.Err() != nil {
		return nil
	}
	fmt.Fprintf(s.talk, "The signal could not be passed on, and the command may still run: %v\n", err)
	return err
}

// outcome is how this program ends: as the command did.
func (s *session) outcome(cause error, exit cubeapi.ExecExit, err error) error {
	var own exitStatus
	select {
	case <-s.unread:
		if !errors.Is(s.failed, syscall.EPIPE) && !errors.Is(s.failed, io.ErrClosedPipe) {
			return fmt.Errorf("the command's output cannot be written: %w", s.failed)
		}
		return bySignal(int(syscall.SIGPIPE))
	default:
	}
	switch {
	case err != nil && errors.As(cause, &own):
		return own
	case err != nil:
		return err
	case exit.Signal != "":
		fmt.Fprintln(s.talk, "ended by signal:", exit.Signal)
		return bySignal(exit.SignalNumber)
	case exit.Code != 0:
		return exitStatus(exit.Code)
	}
	return nil
}
