// Package cgroup bounds what a sandbox takes of its host, on cgroup v2 and on
// the v1 hierarchies of older hosts. Groups are made by us, not by the runtime,
// so that every process of a sandbox is inside and one list names them all. It
// must never signal a process outside its own groups.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const root = "/sys/fs/cgroup"

// controllers are those that bound a sandbox. On v1 each is a hierarchy of its
// own, and a Group's folders are in this order.
var controllers = []string{"memory", "cpu", "pids"}

// period is over which CPU time is counted, in microseconds.
const period = 100_000

// Limits of one sandbox, but CPU: see LimitCPU. Zero means unlimited.
type Limits struct {
	MemBytes int64
	PIDs     int64
}

// Parent holds the groups of one cubelet.
type Parent struct {
	name    string
	v2      bool
	folders []string // one on v2, one per controller on v1
}

// Open makes the parent group called name.
func Open(name string) (*Parent, error) {
	p := &Parent{name: name, v2: unified()}
	if p.v2 {
		p.folders = []string{filepath.Join(root, name)}
		if err := enable(root); err != nil {
			return nil, err
		}
	} else {
		for _, c := range controllers {
			p.folders = append(p.folders, filepath.Join(root, c, name))
		}
	}
	for _, f := range p.folders {
		if err := os.MkdirAll(f, 0o755); err != nil {
			return nil, fmt.Errorf("cgroup %s: %w", name, err)
		}
	}
	if p.v2 {
		return p, enable(p.folders[0])
	}
	return p, nil
}

// Check tells which kind of cgroups this machine has, and what of them is
// missing. Nothing is made.
func Check() (kind string, err error) {
	if !unified() {
		return "v1", checkV1()
	}
	b, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return "v2", err
	}
	var errs []error
	for _, c := range controllers {
		if !slices.Contains(strings.Fields(string(b)), c) {
			errs = append(errs, fmt.Errorf("the kernel offers no controller %s", c))
		}
	}
	return "v2", errors.Join(append(errs, writable(root))...)
}

func checkV1() error {
	var errs []error
	for _, c := range controllers {
		folder := filepath.Join(root, c)
		if _, err := os.Stat(filepath.Join(folder, "cgroup.procs")); err != nil {
			errs = append(errs, fmt.Errorf("controller %s is not mounted at %s", c, folder))
			continue
		}
		errs = append(errs, writable(folder))
	}
	return errors.Join(errs...)
}

func writable(folder string) error {
	if err := unix.Access(folder, unix.W_OK); err != nil {
		return fmt.Errorf("%s cannot be written: %w", folder, err)
	}
	return nil
}

func unified() bool {
	var s unix.Statfs_t
	return unix.Statfs(root, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

func enable(folder string) error {
	return write(folder, "cgroup.subtree_control", "+cpu +memory +pids")
}

func write(folder, file, value string) error {
	// Not os.WriteFile: the kernel makes these files, and it answers another
	// error than "not there" to who would.
	f, err := os.OpenFile(filepath.Join(folder, file), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", file, err)
	}
	return nil
}

// Group is the processes of one sandbox.
type Group struct {
	v2      bool
	folders []string
}

// Group returns the group called id, which may not exist yet.
func (p *Parent) Group(id string) *Group {
	g := &Group{v2: p.v2}
	for _, f := range p.folders {
		g.folders = append(g.folders, filepath.Join(f, id))
	}
	return g
}

// List returns the ids of all groups.
func (p *Parent) List() ([]string, error) {
	seen := map[string]bool{}
	var ids []string
	for _, f := range p.folders {
		entries, err := os.ReadDir(f)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && !seen[e.Name()] {
				seen[e.Name()] = true
				ids = append(ids, e.Name())
			}
		}
	}
	return ids, nil
}

// Remove removes the parent; it fails while groups are left.
func (p *Parent) Remove() error {
	var errs []error
	for _, f := range p.folders {
		errs = append(errs, rmdir(f))
	}
	return errors.Join(errs...)
}

// Create makes the group with the limits of memory and processes. The CPU limit
// is set by LimitCPU once the sandbox has started, so that its start is not
// slowed.
func (g *Group) Create(l Limits) error {
	for _, f := range g.folders {
		if err := os.MkdirAll(f, 0o755); err != nil {
			return err
		}
	}
	var errs []error
	if l.MemBytes > 0 {
		errs = append(errs, g.LimitMemory(l.MemBytes))
	}
	if l.PIDs > 0 {
		errs = append(errs, write(g.folder("pids"), "pids.max", strconv.FormatInt(l.PIDs, 10)))
	}
	return errors.Join(errs...)
}

// LimitMemory bounds the group's memory. A bound below what the group has
// already is refused where the kernel cannot take it back.
func (g *Group) LimitMemory(bytes int64) error {
	folder, value := g.folder("memory"), strconv.FormatInt(bytes, 10)
	if g.v2 {
		return errors.Join(write(folder, "memory.max", value), optional(write(folder, "memory.swap.max", "0")))
	}
	// Memory, and memory with swap: the second must never be the lower one, so
	// which comes first depends on the way.
	memory := func() error { return write(folder, "memory.limit_in_bytes", value) }
	both := func() error { return optional(write(folder, "memory.memsw.limit_in_bytes", value)) }
	if both() == nil {
		return memory()
	}
	return errors.Join(memory(), both())
}

// optional passes over a file that is absent where the kernel does not count
// swap.
func optional(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Weigh says how much CPU time the group gets beside others when there is not
// enough: percent of what others get.
func (g *Group) Weigh(percent int) error {
	if g.v2 {
		return write(g.folder("cpu"), "cpu.weight", strconv.Itoa(percent))
	}
	return write(g.folder("cpu"), "cpu.shares", strconv.Itoa(max(2, 1024*percent/100)))
}

// LimitCPU bounds the group's CPU time.
func (g *Group) LimitCPU(milli int64) error {
	quota := max(1000, milli*period/1000)
	folder := g.folder("cpu")
	if g.v2 {
		return write(folder, "cpu.max", fmt.Sprintf("%d %d", quota, period))
	}
	return errors.Join(
		write(folder, "cpu.cfs_period_us", strconv.Itoa(period)),
		write(folder, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)))
}

// Command returns a command that runs name inside the group from its first
// instruction.
func (g *Group) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	// A shell joins the group and becomes the program: on v1 there is no call
	// that starts a process inside a group.
	const join = `n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ >"$1/cgroup.procs" || exit 125; shift; n=$((n-1)); done; exec "$@"`
	list := append([]string{"-c", join, "sh", strconv.Itoa(len(g.folders))}, g.folders...)
	return exec.CommandContext(ctx, "/bin/sh", append(append(list, name), args...)...)
}

// Processes returns the ids of the group's processes.
func (g *Group) Processes() ([]int, error) {
	seen := map[int]bool{}
	var pids []int
	for _, f := range g.folders {
		b, err := os.ReadFile(filepath.Join(f, "cgroup.procs"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, word := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// OOMKills returns how often the kernel killed in the group for want of memory.
func (g *Group) OOMKills() int {
	if g.v2 {
		return g.counter("memory", "memory.events", "oom_kill ")
	}
	return g.counter("memory", "memory.oom_control", "oom_kill ")
}

// PIDRefusals returns how often the group was refused another process.
func (g *Group) PIDRefusals() int { return g.counter("pids", "pids.events", "max ") }

// counter reads one number of a file of the kernel's; 0 when there is none.
func (g *Group) counter(controller, file, key string) int {
	b, err := os.ReadFile(filepath.Join(g.folder(controller), file))
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(v)) // what the kernel writes there is a number
			return n
		}
	}
	return 0
}

// folder returns where the controller's files are.
func (g *Group) folder(controller string) string {
	if g.v2 {
		return g.folders[0]
	}
	return g.folders[slices.Index(controllers, controller)]
}

// Destroy kills every process of the group and removes it. It returns when
// none is left, or when ctx ends. A group that is not there is success.
func (g *Group) Destroy(ctx context.Context) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		pids, err := g.Processes()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if pid == os.Getpid() {
				return fmt.Errorf("cgroup %s holds this process itself", g.folders[0])
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %d: %w", pid, err)
			}
		}
		// The kernel may call a group busy for a moment after its last process
		// ended.
		if len(pids) == 0 {
			if err = g.rmdir(); err == nil || !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cgroup %s: processes %v do not end: %w", g.folders[0], pids, errors.Join(ctx.Err(), err))
		case <-time.After(pause):
		}
	}
}

func (g *Group) rmdir() error {
	var errs []error
	for _, f := range g.folders {
		errs = append(errs, rmdir(f))
	}
	return errors.Join(errs...)
}

func rmdir(folder string) error {
	if err := os.Remove(folder); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
