package guest

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper collects the dead. As the first process of a sandbox the guest
// inherits every orphan, and must not take the exit status of its own children
// from those who wait for them: so all waiting is done here.
type reaper struct {
	all bool // reap orphans too; only for the first process

	// mu is held while a dead child is collected, so that no signal can reach
	// whoever gets its pid next.
	mu       sync.Mutex
	children map[int]*child
	spawned  uint64         // how many starts began
	starting int            // how many of them have not ended
	early    map[int]corpse // the dead that may belong to a start that has not ended
}

type corpse struct {
	status syscall.WaitStatus
	after  uint64 // starts that had begun when it was found
}

// child is a process that this guest started.
type child struct {
	pid    int
	done   chan struct{} // closed when it ended
	status syscall.WaitStatus
}

func newReaper(all bool) *reaper {
	return &reaper{all: all, children: map[int]*child{}, early: map[int]corpse{}}
}

// spawn calls fork, which starts a process, and returns that process. It may
// be dead already.
func (r *reaper) spawn(fork func() (int, error)) (*child, error) {
	r.mu.Lock()
	r.spawned++
	r.starting++
	mine := r.spawned
	r.mu.Unlock()

	pid, err := fork()

	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if r.starting--; r.starting == 0 {
			clear(r.early)
		}
	}()
	if err != nil {
		return nil, err
	}
	c := &child{pid: pid, done: make(chan struct{})}
	if dead, ok := r.early[pid]; ok && dead.after >= mine {
		delete(r.early, pid)
		c.status = dead.status
		close(c.done)
		return c, nil
	}
	r.children[pid] = c
	if !r.all {
		go r.await(pid) // ends with the child
	}
	return c, nil
}

// await collects one child, for a guest that is not the first process: what
// else ends is not ours.
func (r *reaper) await(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	r.collect(pid)
}

// run reaps until ctx ends.
func (r *reaper) run(ctx context.Context) {
	if !r.all {
		return
	}
	died := make(chan os.Signal, 1) // one is enough: collect takes all that are dead
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	for {
		r.collect(-1)
		select {
		case <-ctx.Done():
			return
		case <-died:
		}
	}
}

// collect takes every dead child that which, as in wait4, names.
func (r *reaper) collect(which int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(which, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil || pid <= 0:
			return
		}
		if c, ok := r.children[pid]; ok {
			delete(r.children, pid)
			c.status = status
			close(c.done)
		} else if r.starting > 0 {
			r.early[pid] = corpse{status, r.spawned}
		}
	}
}

// signal sends s to the group of c, and to c's whole session if s is SIGKILL:
// a shell with job control gives each job a group of its own. A process that
// ended is syscall.ESRCH.
func (r *reaper) signal(c *child, s syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-c.done:
		return syscall.ESRCH
	default:
	}
	if s == syscall.SIGKILL {
		for _, pid := range session(c.pid) {
			_ = syscall.Kill(pid, s) // one that ended meanwhile needs none
		}
	}
	return syscall.Kill(-c.pid, s)
}

// living lists the children that have not ended.
func (r *reaper) living() []*child {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*child, 0, len(r.children))
	for _, c := range r.children {
		list = append(list, c)
	}
	return list
}
