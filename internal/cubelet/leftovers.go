package cubelet

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Leftovers returns what is on this machine of the cubelet of a data
// directory: of its sandboxes, and of the host itself. Without a cubelet that
// runs, and with no sandbox that was told to go on, both must be empty. Rules
// of the firewall are not looked at. The calling process is no leftover.
func Leftovers(dataDir string) (ofSandboxes, ofHost []string, err error) {
	l := &looker{dir: filepath.Join(dataDir, "cubelet"), run: "/run/paddock-" + Tag(dataDir), tag: Tag(dataDir)}
	err = errors.Join(l.processes(), l.mounts(), l.loops(), l.links(), l.groups(), l.files())
	return l.sandboxes, l.host, err
}

type looker struct {
	dir, run, tag   string
	sandboxes, host []string
}

func (l *looker) sandbox(format string, args ...any) {
	l.sandboxes = append(l.sandboxes, fmt.Sprintf(format, args...))
}

func (l *looker) ours(path string) bool {
	return strings.HasPrefix(path, l.dir+"/") || strings.HasPrefix(path, l.run+"/") || strings.HasPrefix(path, "/run/netns/paddock-"+l.tag+"-")
}

func (l *looker) processes() error {
	names, err := os.ReadDir("/proc")
	for _, n := range names {
		pid, bad := strconv.Atoi(n.Name())
		if bad != nil || pid == os.Getpid() {
			continue
		}
		words, err := os.ReadFile(filepath.Join("/proc", n.Name(), "cmdline"))
		if err != nil {
			continue // it has just ended
		}
		if strings.Contains(string(words), l.dir+"/") || strings.Contains(string(words), l.run+"/") {
			l.sandbox("process %d: %s", pid, strings.ReplaceAll(string(words), "\x00", " "))
		}
	}
	return err
}

func (l *looker) mounts() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		fields := strings.Fields(s.Text())
		switch {
		case len(fields) < 5 || !l.ours(fields[4]):
		case filepath.Base(fields[4]) == "null-netns":
			l.host = append(l.host, "mount "+fields[4])
		default:
			l.sandbox("mount %s", fields[4])
		}
	}
	return s.Err()
}

func (l *looker) loops() error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && l.ours(strings.TrimSpace(string(b))) {
			l.sandbox("loop device %s of %s", strings.Split(f, "/")[3], strings.TrimSpace(string(b)))
		}
	}
	return err
}

func (l *looker) links() error {
	links, err := netlink.LinkList()
	for _, one := range links {
		if strings.HasPrefix(one.Attrs().Name, "pd"+l.tag+"-") {
			l.sandbox("link %s", one.Attrs().Name)
		}
	}
	names, bad := filepath.Glob("/run/netns/paddock-" + l.tag + "-*")
	for _, n := range names {
		l.sandbox("network namespace %s", n)
	}
	return errors.Join(err, bad)
}

func (l *looker) groups() error {
	for _, pattern := range []string{"/sys/fs/cgroup/paddock-" + l.tag, "/sys/fs/cgroup/*/paddock-" + l.tag} {
		parents, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, p := range parents {
			l.host = append(l.host, "cgroup "+p)
			children, err := os.ReadDir(p)
			if err != nil {
				return err
			}
			for _, c := range children {
				if c.IsDir() {
					l.sandbox("cgroup %s", filepath.Join(p, c.Name()))
				}
			}
		}
	}
	return nil
}

func (l *looker) files() error {
	for _, pattern := range []string{"sandboxes/*", "mounts/*", "images/*.download"} {
		names, err := filepath.Glob(filepath.Join(l.dir, pattern))
		if err != nil {
			return err
		}
		for _, n := range names {
			l.sandbox("file %s", n)
		}
	}
	names, err := filepath.Glob(filepath.Join(l.run, "runsc", "*"))
	for _, n := range names {
		if filepath.Base(n) != "null-netns" {
			l.sandbox("file %s", n)
		}
	}
	if _, err := os.Stat(l.run); err == nil {
		l.host = append(l.host, "directory "+l.run)
	}
	return err
}
