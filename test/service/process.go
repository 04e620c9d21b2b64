package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// keeper runs a server until its own standard input ends, which happens when
// the test closes it and also when the test process is killed. Then it ends
// the server, politely first, and removes its directory, unless it was told a
// word before. $1 is the directory, the rest is the command.
const keeper = `
dir=$1 told=
shift
{
	"$@" >>"$dir/log" 2>&1 &
	echo $! >"$dir/pid"
	wait $!
	echo $? >"$dir/exited"
} </dev/null &
while read -r word; do told=$word; done
pid=$(cat "$dir/pid")
kill -TERM "$pid" 2>/dev/null
tries=0
while [ ! -e "$dir/exited" ] && [ $tries -lt 100 ]; do
	tries=$((tries + 1))
	sleep 0.1
done
[ -e "$dir/exited" ] || kill -KILL "$pid" 2>/dev/null
wait
[ -n "$told" ] || rm -rf "$dir"
`

// process is one running server.
type process struct {
	dir   string
	stdin io.WriteCloser
	ended chan error // the keeper's end, once
}

// start runs args in the care of a keeper. dir belongs to the server and is
// removed with it.
func start(dir string, env []string, args ...string) (*process, error) {
	for _, name := range []string{"exited", "pid"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", keeper, "keeper", dir}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = "/"
	// A group of its own: what ends the test at the terminal must not end the
	// keeper before it has cleaned up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{dir: dir, stdin: stdin, ended: make(chan error, 1)}
	go func() { p.ended <- cmd.Wait() }()
	return p, nil
}

// pause ends the server as stop does, but keeps its files.
func (p *process) pause() error {
	if _, err := io.WriteString(p.stdin, "keep\n"); err != nil {
		return err
	}
	return p.stop()
}

// stop ends the server, removes its files, and waits until it and its keeper
// are gone.
func (p *process) stop() error {
	if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	select {
	case err := <-p.ended:
		return err
	case <-time.After(30 * time.Second):
		return fmt.Errorf("the server in %s did not end within 30 s", p.dir)
	}
}

// wait returns when ready does not fail any more, or with what is wrong.
func (p *process) wait(ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, 2*time.Second)
		err := ready(try)
		done()
		if err == nil {
			return nil
		}
		if status, gone := p.exited(); gone {
			return fmt.Errorf("the server ended with status %s: %s", status, p.lastWords())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server was not ready within %s: %w: %s", readyWithin, err, p.lastWords())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *process) exited() (status string, gone bool) {
	text, err := os.ReadFile(filepath.Join(p.dir, "exited"))
	return strings.TrimSpace(string(text)), err == nil
}

// lastWords returns the end of the server's log.
func (p *process) lastWords() string {
	text, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// launch makes a directory and starts a server in it, on another port if the
// first is taken by then.
func launch(name string, command func(dir string, port int) (env, args []string, err error), ready func(ctx context.Context, dir string, port int) error) (p *process, port int, err error) {
	for range startTries {
		if p, port, err = launchOnce(name, command, ready); err == nil {
			return p, port, nil
		}
	}
	return nil, 0, fmt.Errorf("%s: %w", name, err)
}

func launchOnce(name string, command func(dir string, port int) (env, args []string, err error), ready func(ctx context.Context, dir string, port int) error) (*process, int, error) {
	port, err := freePort()
	if err != nil {
		return nil, 0, err
	}
	dir, err := os.MkdirTemp("", "paddock-"+name+"-")
	if err != nil {
		return nil, 0, err
	}
	env, args, err := command(dir, port)
	if err != nil {
		return nil, 0, errors.Join(err, os.RemoveAll(dir))
	}
	p, err := start(dir, env, args...)
	if err != nil {
		return nil, 0, errors.Join(err, os.RemoveAll(dir))
	}
	if err := p.wait(func(ctx context.Context) error { return ready(ctx, dir, port) }); err != nil {
		return nil, 0, errors.Join(err, p.stop())
	}
	return p, port, nil
}
