package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// terminal is the one that this program was started on.
type terminal struct {
	fd      int
	before  *term.State
	resized chan os.Signal
}

// openTerminal hands what is typed on as it is: also Ctrl-C is the command's.
// close must follow.
func (a *app) openTerminal() (*terminal, error) {
	f, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, fault.New(fault.InvalidInput, "-t: standard input is no terminal; leave -t out to pass on what it holds")
	}
	t := &terminal{fd: int(f.Fd()), resized: make(chan os.Signal, 1)}
	before, err := term.MakeRaw(t.fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	t.before = before
	signal.Notify(t.resized, syscall.SIGWINCH)
	return t, nil
}

// close gives the terminal back as it was.
func (t *terminal) close() error {
	signal.Stop(t.resized)
	return term.Restore(t.fd, t.before)
}

// size is that of the window; one that cannot be read is the usual one.
func (t *terminal) size() cubeapi.TerminalSize {
	columns, rows, err := term.GetSize(t.fd)
	if err != nil || columns < 1 || rows < 1 {
		return cubeapi.TerminalSize{Columns: 80, Rows: 24}
	}
	return cubeapi.TerminalSize{Columns: uint32(columns), Rows: uint32(rows)} //nolint:gosec // they are over 0
}

// follow has the command's terminal follow the window until ctx ends. A size
// that cannot be passed on is left: the next may be.
func (t *terminal) follow(ctx context.Context, s *session) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.resized:
			if pid := s.pid.Load(); pid != 0 {
				bound, cancel := context.WithTimeout(ctx, signalTime)
				_ = s.api.Resize(bound, s.sandbox, pid, t.size()) // see above
				cancel()
			}
		}
	}
}
