// Package runsc runs sandboxes under gVisor. It knows the runtime's flags and
// traps (facts/feasibility 3) and nothing of networks, limits or journals: what
// it is given, it runs. It must never find a process by name.
package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Driver is one runsc binary.
type Driver struct {
	Binary string
}

// Sandbox is what to run. Every path belongs to this sandbox alone, but
// RootFS, which is read-only.
type Sandbox struct {
	ID            string
	Dir           string // for the bundle, the runtime's state and the writable layer
	RootFS        string
	NetNS         string // file of the network namespace
	WritableBytes int64
	Args          []string
	Env           []string
	Hostname      string
	Log           string // file that the runtime and the guest write to

	// Command runs a program inside the sandbox's cgroup.
	Command func(ctx context.Context, name string, args ...string) *exec.Cmd
}

func (s Sandbox) state() string   { return filepath.Join(s.Dir, "state") }
func (s Sandbox) bundle() string  { return filepath.Join(s.Dir, "bundle") }
func (s Sandbox) pidFile() string { return filepath.Join(s.Dir, "pid") }

// Flags returns the runtime's global flags for s: limits and networks are made
// by the cubelet, and writes go to a private file with a size.
func (d Driver) Flags(s Sandbox) []string {
	return []string{
		"--root", s.state(), "--ignore-cgroups", "--network=sandbox", "--platform=systrap",
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d", filepath.Join(s.Dir, "upper"), s.WritableBytes),
	}
}

// Start starts the sandbox and returns the process that is its kernel. Its
// first process may not run yet.
func (d Driver) Start(ctx context.Context, s Sandbox) (pid int, err error) {
	for _, dir := range []string{s.state(), s.bundle(), filepath.Join(s.Dir, "upper")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return 0, err
		}
	}
	spec, err := json.Marshal(s.spec())
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(s.bundle(), "config.json"), spec, 0o600); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	c := s.Command(ctx, d.Binary, append(d.Flags(s), "run", "-detach", "-bundle", s.bundle(), "-pid-file", s.pidFile(), s.ID)...)
	// The log is handed on to the sandbox; our own files are not (close on exec).
	c.Stdout, c.Stderr = log, log
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("runsc run: %w: %s", err, tail(s.Log))
	}
	return s.PID()
}

// PID returns the process that is the sandbox's kernel.
func (s Sandbox) PID() (int, error) {
	b, err := os.ReadFile(s.pidFile())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// tail returns the last words of a log, for messages.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	b = bytes.TrimSpace(b)
	return string(b[max(0, len(b)-600):])
}

// spec is the OCI bundle. Nothing of the host is visible but the template.
func (s Sandbox) spec() *specs.Spec {
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: s.RootFS, Readonly: false}, // writes go to the overlay, never to the mount
		Process: &specs.Process{
			Args: s.Args, Env: s.Env, Cwd: "/",
			User:         specs.User{},
			Capabilities: capabilities(),
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1 << 20}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=64m"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
			{Type: specs.MountNamespace},
			{Type: specs.NetworkNamespace, Path: s.NetNS},
		}},
	}
}

// capabilities is what root has inside a container of the usual tools: enough
// for package managers and servers, nothing that reaches the kernel below.
func capabilities() *specs.LinuxCapabilities {
	list := []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE",
		"CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
	}
	return &specs.LinuxCapabilities{Bounding: list, Effective: list, Permitted: list}
}
