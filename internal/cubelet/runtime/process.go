package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one process of this machine. Its number alone would not do: the
// kernel gives numbers out again.
type Process struct {
	PID int `json:"pid,omitempty"`
	// Born is when it began, as the kernel counts since its start, and of which
	// start of the machine.
	Born string `json:"born,omitempty"`
}

// Find returns the process that has number pid now; ok is false when there is
// none, or only its remains.
func Find(pid int) (p Process, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, false
	}
	// The command's name, in brackets, may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return Process{}, false
	}
	return Process{pid, fields[19] + "@" + boot()}, true
}

// boot names this start of the machine: a number and a time of birth may meet
// again after the next.
func boot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Alive reports whether p still runs.
func (p Process) Alive() bool {
	now, ok := Find(p.PID)
	return ok && p.PID > 0 && now == p
}

// Wait returns nil when p has ended, or ctx's error. It costs no thread.
func (p Process) Wait(ctx context.Context) error {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watching process %d: %w", p.PID, err)
	}
	// In non-blocking mode the Go runtime polls it: it becomes readable at the
	// process's end.
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if !p.Alive() {
		return nil // it ended before we held it, and the number may be another's
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) }) // wakes the wait below
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("watching process %d: %w", p.PID, err)
	}
	err = raw.Read(func(uintptr) bool { return ended(fd) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func ended(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return n > 0 && err == nil
}

// Kill ends p by force; one that has ended is success.
func (p Process) Kill() error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", p.PID, err)
	}
	return nil
}
