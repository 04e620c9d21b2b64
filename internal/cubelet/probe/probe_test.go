package probe_test

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
	"github.com/paddock-dev/paddock/internal/cubelet/probe"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
)

// traces returns what a probe left on this machine, on which others mount
// things too.
func traces(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	for _, name := range []string{"probe0", "probe1"} {
		if _, err := netlink.LinkByName(name); err == nil {
			found = append(found, name)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		found = append(found, e.Name())
	}
	return found
}

// This machine runs the sandboxes of the other tests, so it passes.
func TestThisMachinePassesAndStaysAsItWas(t *testing.T) {
	dir, before := t.TempDir(), map[string]string{}
	for _, ns := range []string{"mnt", "net", "pid_for_children", "ipc", "uts"} {
		before[ns], _ = os.Readlink("/proc/self/ns/" + ns) // compared below
	}
	for name, look := range map[string]func() error{
		"namespaces": probe.Namespaces,
		"veth":       probe.Veth,
		"rules":      func() error { return probe.Rules(t.Context()) },
		"image":      func() error { return probe.Image(dir) },
		"overlay":    probe.Overlay,
		"cgroups":    func() error { _, err := cgroup.Check(); return err },
	} {
		if err := look(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, ns := range []string{"mnt", "net", "pid_for_children", "ipc", "uts"} {
		now, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil || now != before[ns] {
			t.Errorf("namespace %s of this process: %s, it was %s (%v)", ns, now, before[ns], err)
		}
	}
	if left := traces(t, dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if kind, _ := cgroup.Check(); kind != "v1" && kind != "v2" {
		t.Errorf("cgroups %q", kind)
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if err := probe.Rules(t.Context()); err == nil || !strings.Contains(err.Error(), "nft") {
		t.Errorf("without nft: %v", err)
	}
	if err := probe.Image(filepath.Join(dir, "none")); err == nil {
		t.Error("an image in a directory that is not there")
	}
}

func TestRuntime(t *testing.T) {
	if v, err := probe.Runtime(t.Context(), runtimetest.Runsc(t)); err != nil || !regexp.MustCompile(`\d{8}`).MatchString(v) {
		t.Errorf("runsc: %q, %v", v, err)
	}
	for _, bad := range []string{"/nonexistent", "/bin/true", "/bin/false", "/etc/passwd"} {
		if v, err := probe.Runtime(t.Context(), bad); err == nil {
			t.Errorf("%s is taken for runsc %q", bad, v)
		}
	}
}

func TestGuest(t *testing.T) {
	good := runtimetest.Build(t, t.TempDir(), "cmd/paddock-guest")
	if err := probe.Guest(good); err != nil {
		t.Errorf("the guest: %v", err)
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	plain, foreign := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "foreign")
	const machine = 18 // where an ELF header says for which machine it is
	other := append([]byte(nil), b...)
	other[machine] = 22 // s390
	for path, text := range map[string][]byte{plain: b, foreign: other} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{"/nonexistent": "no such file", "/etc/passwd": "magic", "/bin/ls": "loader", plain: "executed", foreign: "this machine"} {
		if err := probe.Guest(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a word of %q", path, err, want)
		}
	}
}

func TestHolder(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		port := uint16(l.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // it listens on TCP
		if pid, name := probe.Holder(port); pid != os.Getpid() || name == "" {
			t.Errorf("%s: process %d %q, want %d", addr, pid, name, os.Getpid())
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if pid, _ := probe.Holder(port); pid == os.Getpid() {
			t.Errorf("%s: it listens no more", addr)
		}
	}
}
