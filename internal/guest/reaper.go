package guest

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	sigTerm = syscall.SIGTERM
	sigKill = syscall.SIGKILL
)

// reaper collects the dead that nobody waits for: as the first process of a
// sandbox the guest inherits every orphan. It leaves the children that the API
// started to those who wait for them.
type reaper struct {
	log  *slog.Logger
	mu   sync.Mutex // held while a child is started, so that it is known before it can be met dead
	own  map[int]bool
	kick chan struct{}
}

func newReaper(log *slog.Logger) *reaper {
	return &reaper{log: log, own: map[int]bool{}, kick: make(chan struct{}, 1)}
}

// start starts c as a child that its caller waits for, with wait.
func (r *reaper) start(c *exec.Cmd) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := c.Start(); err != nil {
		return err
	}
	r.own[c.Process.Pid] = true
	return nil
}

// wait waits for a child that start started.
func (r *reaper) wait(c *exec.Cmd) error {
	err := c.Wait()
	r.mu.Lock()
	delete(r.own, c.Process.Pid)
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}: // it may have hidden orphans behind it
	default:
	}
	return err
}

func (r *reaper) run(ctx context.Context) error {
	if os.Getpid() != 1 {
		<-ctx.Done() // orphans go to another init
		return nil
	}
	died := make(chan os.Signal, 16)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	for {
		r.collect()
		select {
		case <-ctx.Done():
			return nil
		case <-died:
		case <-r.kick:
		}
	}
}

// collect reaps orphans until none is left or one of our own stands first in
// line: its waiter kicks again.
func (r *reaper) collect() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		pid := int(pidOf(&info))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		r.mu.Lock()
		own := r.own[pid]
		r.mu.Unlock()
		if own {
			return
		}
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.EINTR) {
			r.log.Warn("orphan not reaped", slog.Int("pid", pid), slog.String("error", err.Error()))
			return
		}
	}
}

func equalSecret(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
