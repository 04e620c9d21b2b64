package guest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	longestHostname = 64 // the kernel's bound
	maxHosts        = 1 << 20
	ownAddress      = "127.0.1.1" // of a sandbox without a network
)

var hostnameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

func checkHostname(name string) error {
	if len(name) > longestHostname || !hostnameForm.MatchString(strings.ToLower(name)) {
		return badInput("init: '%.80s' is not a hostname of at most %d letters, digits, dots and hyphens", name, longestHostname)
	}
	return nil
}

// rename gives the sandbox its name: to the kernel, where it lets us, and in
// /etc/hostname and /etc/hosts, where most programs look.
func (g *Guest) rename(name string) error {
	if g.init { // else the name is another's
		if err := unix.Sethostname([]byte(name)); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
			return ofFile("hostname", err)
		}
		if err := giveUpNaming(); err != nil {
			return ofFile("capabilities", err)
		}
	}
	etc := filepath.Join(g.root, "etc")
	file, hosts := filepath.Join(etc, "hostname"), filepath.Join(etc, "hosts")
	was, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return ofFile(file, err)
	}
	text, err := os.ReadFile(hosts)
	if err != nil && !errors.Is(err, os.ErrNotExist) || len(text) > maxHosts {
		return ofFile(hosts, err)
	}
	// In place: a runtime may have put them there as mounts.
	if err := os.WriteFile(hosts, hostsWith(string(text), strings.TrimSpace(string(was)), name, address()), 0o644); err != nil { //nolint:gosec // everybody reads it
		return ofFile(hosts, err)
	}
	return ofFile(file, os.WriteFile(file, []byte(name+"\n"), 0o644)) //nolint:gosec // everybody reads it
}

// resolveBy tells the sandbox's programs where names are resolved.
func (g *Guest) resolveBy(text string) error {
	file := filepath.Join(g.root, "etc", "resolv.conf")
	return ofFile(file, os.WriteFile(file, []byte(text), 0o644)) //nolint:gosec // everybody reads it
}

// giveUpNaming drops the capability that the name took, on every thread and
// for good, before any program of the sandbox's is started. A guest that was
// started before its sandbox had a name is given it for this; others never had
// it.
func giveUpNaming() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	const naming = 1 << unix.CAP_SYS_ADMIN
	if (sets[0].Effective|sets[0].Permitted|sets[0].Inheritable)&naming == 0 {
		return nil
	}
	// What is executed later has at most what the bounding set has. A capability
	// is each thread's own.
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0); errno != 0 {
		return errno
	}
	sets[0].Effective &^= naming
	sets[0].Permitted &^= naming
	sets[0].Inheritable &^= naming
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0); errno != 0 { //nolint:gosec // the call takes addresses
		return errno
	}
	return nil
}

// hostsWith returns a hosts file in which name has address, and the name before
// has none.
func hostsWith(text, before, name, address string) []byte {
	var b strings.Builder
	for line := range strings.Lines(text) {
		content, _, _ := strings.Cut(line, "#")
		fields := strings.Fields(content)
		ours := func(s string) bool { return s == name || s == before && s != "localhost" }
		if len(fields) < 2 || !slices.ContainsFunc(fields[1:], ours) {
			b.WriteString(strings.TrimSuffix(line, "\n") + "\n")
			continue
		}
		if rest := slices.DeleteFunc(fields[1:], ours); len(rest) > 0 {
			b.WriteString(fields[0] + "\t" + strings.Join(rest, " ") + "\n")
		}
	}
	b.WriteString(address + "\t" + name + "\n")
	return []byte(b.String())
}

// address is the sandbox's own in its network.
func address() string {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return ownAddress
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ownAddress
}
