// Package runsc runs sandboxes under gVisor. It knows the runtime's flags and
// traps, and nothing of networks, limits or journals: what it is given, it
// runs. It must never take a process for its own unless that was started with
// its root directory.
package runsc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
)

// Driver is one runsc binary with one root directory for its state. It
// implements runtime.Driver.
type Driver struct {
	binary string
	root   string
}

var _ runtime.Driver = (*Driver)(nil)

// Open returns the driver of binary that keeps its state in root, which must
// be this driver's alone. The path must be short: the runtime makes a socket in
// it, and where the name is too long it would use a directory of everybody's.
func Open(binary, root string) (*Driver, error) {
	if _, err := os.Stat(binary); err != nil {
		return nil, err
	}
	if n := len(filepath.Join(root, socketOf(strings.Repeat("x", idLength)))); n >= socketPathMax {
		return nil, fmt.Errorf("%s: its path is %d bytes too long for a socket in it", root, n-socketPathMax+1)
	}
	return &Driver{binary, root}, os.MkdirAll(root, 0o700)
}

const (
	idLength      = 25
	socketPathMax = 108
)

func bundle(s runtime.Sandbox) string  { return filepath.Join(s.Dir, "bundle") }
func upper(s runtime.Sandbox) string   { return filepath.Join(s.Dir, "upper") }
func pidFile(s runtime.Sandbox) string { return filepath.Join(s.Dir, "pid") }
func archive(s runtime.Sandbox) string { return filepath.Join(s.Dir, "files.tar") }

// Flags returns the runtime's flags for s: limits and networks are made by the
// cubelet, and writes go to a private file with a size.
func (d *Driver) Flags(s runtime.Sandbox) []string {
	return append(d.common(), "--network=sandbox", "--platform=systrap", "--allow-rootfs-tar-annotation", "--allow-suid", "--host-settings=ignore",
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d", upper(s), s.WritableBytes))
}

func (d *Driver) common() []string { return []string{"--root", d.root, "--ignore-cgroups"} }

// Start starts the sandbox: see runtime.Driver.
func (d *Driver) Start(ctx context.Context, s runtime.Sandbox) (runtime.Process, error) {
	return d.run(ctx, s, "run", "-detach", "-bundle", bundle(s), "-pid-file", pidFile(s), s.ID)
}

// run has the runtime start s, in its limits.
func (d *Driver) run(ctx context.Context, s runtime.Sandbox, args ...string) (p runtime.Process, err error) {
	if err := d.Prepare(s); err != nil {
		return p, fmt.Errorf("bundle: %w", err)
	}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	c := s.Join(ctx, d.binary, append(d.Flags(s), args...)...)
	// The log is handed on to the sandbox, so it must be one that only grows at
	// its end. Our own files are not handed on: they close on exec.
	c.Stdout, c.Stderr = log, log
	if err := c.Run(); err != nil {
		return p, fmt.Errorf("runsc %s: %w: %s", args[0], err, tail(s.Log))
	}
	b, err := os.ReadFile(pidFile(s))
	if err != nil {
		return p, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return p, fmt.Errorf("pid of sandbox %s: %w", s.ID, err)
	}
	p, ok := runtime.Find(pid)
	if !ok {
		return p, fmt.Errorf("the kernel of sandbox %s ended at once: %s", s.ID, tail(s.Log))
	}
	return p, nil
}

// Prepare writes the bundle of s. Start does so itself; the bench starts the
// same bundle without us.
func (d *Driver) Prepare(s runtime.Sandbox) error {
	for _, dir := range []string{bundle(s), upper(s)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(archive(s), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(pack(f, s), f.Close()); err != nil {
		return err
	}
	b, err := json.Marshal(spec(s))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle(s), "config.json"), b, 0o600)
}

// Exec runs one program by the runtime's own means: see runtime.Driver.
func (d *Driver) Exec(ctx context.Context, id string, command runtime.Command) (int, error) {
	var words bytes.Buffer
	c := exec.CommandContext(ctx, d.binary, append(append(d.common(), "exec", id), command.Args...)...)
	c.Stdout, c.Stderr = command.Stdout, io.MultiWriter(&words, orNowhere(command.Stderr))
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() && ctx.Err() == nil {
		if exit.ExitCode() == failed {
			return 0, fmt.Errorf("runsc exec: %s", bytes.TrimSpace(words.Bytes()))
		}
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("runsc exec: %w: %s", err, bytes.TrimSpace(words.Bytes()))
	}
	return 0, nil
}

// failed is the runtime's exit status for its own failures.
const failed = 128

func orNowhere(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// tail returns the last words of a log, for messages.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	b = bytes.TrimSpace(b)
	return fault.ClipEnd(string(b), 600)
}

// upperAnnotation names an archive that the runtime unpacks over the root. So
// the sandbox's files lie in its own layer, count against it, and no path of
// the host is mounted.
const upperAnnotation = "dev.gvisor.tar.rootfs.upper"

// naming is the capability that a change of the hostname takes.
const naming = "CAP_SYS_ADMIN"

// openFiles is the limit of each process unless a sandbox has its own.
const openFiles = 1 << 20

// spec is the OCI bundle. Nothing of the host is visible but the template.
func spec(s runtime.Sandbox) *specs.Spec {
	files := cmp.Or(s.OpenFiles, openFiles)
	may := capabilities()
	if s.Unnamed { // gVisor gives the first program nothing beyond the bounding set
		list := append(slices.Clone(may.Bounding), naming)
		may = &specs.LinuxCapabilities{Bounding: list, Effective: list, Permitted: list}
	}
	return &specs.Spec{
		Version:     specs.Version,
		Hostname:    s.Hostname,
		Annotations: map[string]string{upperAnnotation: archive(s)},
		Root:        &specs.Root{Path: s.RootFS, Readonly: false}, // writes go to the overlay, never to the mount
		Process: &specs.Process{
			Args: s.Args, Env: s.Env, Cwd: "/",
			User:         specs.User{},
			Capabilities: may,
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: files, Soft: files}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=1m"}},
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
