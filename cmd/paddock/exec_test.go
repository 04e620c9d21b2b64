package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
)

// live is `paddock sandbox exec` as a process of its own.
type live struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	pipe  *os.File // its standard output's near end
	errs  output
	ended chan struct{} // closed when it ended
}

func (u *up) exec(t *testing.T, args ...string) *live {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	p := &live{t: t, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, "paddock", append([]string{"sandbox", "exec"}, args...)...)
	p.cmd.Env = append(os.Environ(), "PADDOCK_ADDRESS=http://"+u.master, "PADDOCK_API_KEY="+u.apiKey)
	in, err := p.cmd.StdinPipe()
	check(t, err)
	near, far, err := os.Pipe()
	check(t, err)
	p.in, p.pipe, p.out, p.cmd.Stdout, p.cmd.Stderr = in, near, bufio.NewReader(near), far, &p.errs
	check(t, p.cmd.Start())
	check(t, far.Close())
	go func() {
		defer cancel()
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is in its state
	}()
	t.Cleanup(func() { cancel(); <-p.ended; _ = near.Close() })
	return p
}

func (p *live) say(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, text); err != nil {
		p.t.Fatalf("%v: %s", err, p.errs.String())
	}
}

func (p *live) hear(want string) {
	p.t.Helper()
	if line, err := p.out.ReadString('\n'); line != want+"\n" {
		p.t.Fatalf("heard %q, %v, want %q; it complains %s", line, err, want, p.errs.String())
	}
}

// exit waits for its end and wants that status, not its own death by a signal.
func (p *live) exit(want int) {
	p.t.Helper()
	<-p.ended
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		p.t.Errorf("%v, want exit status %d; it complains %s", p.cmd.ProcessState, want, p.errs.String())
	}
}

func (u *up) testExec(t *testing.T) {
	code, id, errs := u.run("", "sandbox", "create", "box")
	if code != 0 {
		t.Fatalf("create: %s", errs)
	}
	id = strings.TrimSpace(id)
	// gone waits until no process of the sandbox has word in its command line.
	gone := func(t *testing.T, word string) {
		t.Helper()
		runtimetest.Eventually(t, "the end of "+word+" in the sandbox", func() bool {
			code, out, _ := u.run("", "sandbox", "exec", id, "--", "sh", "-c", "for f in /proc/[0-9]*/cmdline; do cat $f 2>/dev/null; echo; done")
			return code == 0 && !strings.Contains(strings.ReplaceAll(out, "\x00", " "), "sh -c : "+word)
		})
	}
	t.Run("input is streamed", func(t *testing.T) {
		p := u.exec(t, "-i", id, "--", "cat")
		for _, word := range []string{"one", "two"} {
			p.say(word + "\n")
			p.hear(word)
		}
		check(t, p.in.Close())
		p.exit(0)
	})
	t.Run("much input arrives whole", func(t *testing.T) {
		const n = 8 << 20
		p := u.exec(t, "-i", id, "--", "wc", "-c")
		_, err := io.Copy(p.in, bytes.NewReader(make([]byte, n)))
		check(t, errors.Join(err, p.in.Close()))
		p.hear("8388608")
		p.exit(0)
	})
	t.Run("a command that ends waits for no input", func(t *testing.T) {
		u.exec(t, "-i", id, "--", "sh", "-c", "exit 3").exit(3)
	})
	t.Run("without -i it reads nothing", func(t *testing.T) {
		p := u.exec(t, id, "--", "cat")
		p.exit(0)
	})
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		args   []string
		want   int
	}{
		{"ctrl-C", syscall.SIGINT, nil, 130},
		{"ctrl-C with input", syscall.SIGINT, []string{"-i"}, 130},
		{"a polite end", syscall.SIGTERM, nil, 143},
		{"a hangup", syscall.SIGHUP, nil, 129},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := u.exec(t, append(c.args, id, "--", "sh", "-c", ": "+c.signal.String()+"; echo on; while :; do sleep 0.1; done")...)
			p.hear("on")
			check(t, p.cmd.Process.Signal(c.signal))
			p.exit(c.want)
			gone(t, c.signal.String())
		})
	}
	t.Run("a command may handle a signal", func(t *testing.T) {
		p := u.exec(t, id, "--", "sh", "-c", `trap 'echo caught; n=$((n+1)); [ $n -lt 2 ] || exit 5' INT; n=0; echo on; while :; do sleep 0.1; done`)
		p.hear("on")
		for range 2 {
			check(t, p.cmd.Process.Signal(syscall.SIGINT))
			p.hear("caught")
		}
		p.exit(5)
	})
	t.Run("a signal passes by input that nobody reads", func(t *testing.T) {
		p := u.exec(t, "-i", id, "--", "sh", "-c", "echo on; exec sleep 600")
		p.hear("on")
		go func() { _, _ = io.Copy(p.in, endless{}) }() // until it ends
		<-time.After(300 * time.Millisecond)            // until no more is taken
		check(t, p.cmd.Process.Signal(syscall.SIGINT))
		p.exit(130)
	})
	t.Run("the end of a command by a signal of its own", func(t *testing.T) {
		p := u.exec(t, id, "--", "sh", "-c", "kill -9 $$")
		p.exit(137)
		if !strings.Contains(p.errs.String(), "killed") {
			t.Errorf("it says %q", p.errs.String())
		}
	})
	t.Run("a closed pipe ends it", func(t *testing.T) {
		for name, script := range map[string]string{"politely": ": closed; while :; do echo yes; done", "by force": "trap '' PIPE; : closed; while :; do echo yes; sleep 0.01; done"} {
			t.Run(name, func(t *testing.T) {
				p := u.exec(t, id, "--", "sh", "-c", script)
				p.hear("yes")
				check(t, p.pipe.Close())
				p.exit(141)
				if p.errs.String() != "" {
					t.Errorf("it complains %s", p.errs.String())
				}
				gone(t, "closed")
			})
		}
	})
	code, _, errs = u.run("", "sandbox", "delete", id)
	if code != 0 {
		t.Errorf("delete: %s", errs)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// What cannot reach a command ends at once.
func TestASignalBeforeTheCommandRunsEndsExec(t *testing.T) {
	silent := freePort(t)
	l, err := newSilent(silent)
	check(t, err)
	defer l.Close()
	u := &up{master: silent, apiKey: "e2b_0123456789012345678901234567890123456789"}
	p := u.exec(t, "i0123456789abcdef01234567", "--", "true")
	<-l.met
	check(t, p.cmd.Process.Signal(os.Interrupt))
	p.exit(130)
}
