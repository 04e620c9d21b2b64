package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/cubelet/probe"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/datadir"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

// What a machine needs, and what it should have: one sandbox of the default
// size and its image; some images and sandboxes.
const (
	leastDisk, goodDisk     = 2 << 30, 10 << 30
	leastMemory, goodMemory = 512 << 20, 2 << 30
)

// finding is one thing that doctor looked at.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"` // false: Paddock runs without it
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

func (f finding) word() string {
	switch {
	case f.OK:
		return "ok"
	case f.Needed:
		return "FAILED"
	}
	return "note"
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check whether this machine can run Paddock as it is configured", Args: args(0, 0),
		Long: "Check whether this machine can run Paddock as it is configured, all roles on it. What the kernel must do is tried,\n" +
			"in namespaces that end with the check; nothing is left behind. The exit status is 0 when nothing that is needed failed.",
		RunE: func(c *cobra.Command, _ []string) error {
			list := a.examine(c.Context())
			bad := 0
			for _, f := range list {
				if f.Needed && !f.OK {
					bad++
				}
			}
			err := a.show(list, func(w io.Writer) {
				fmt.Fprintln(w, "STATUS\tCHECK\tDETAIL\tREMEDY")
				for _, f := range list {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.word(), f.Check, oneLine(f.Detail), f.Remedy)
				}
			})
			if err == nil && bad > 0 {
				err = fault.New(fault.MachineUnfit, "%d of %d checks failed", bad, len(list))
			}
			return err
		},
	}
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }

// examine looks at everything. A bad configuration is one finding more: what
// can be read of it is gone by.
func (a *app) examine(ctx context.Context) []finding {
	l, err := a.load()
	why := ""
	if err != nil {
		why = fault.Describe(err).Cause
	}
	list := []finding{
		look("configuration", err == nil, first(why, "no faults"), "correct what is named; `paddock config show` prints every setting and who gave it"),
		look("root", os.Geteuid() == 0, fmt.Sprintf("uid %d", os.Geteuid()), "run it as root: the cubelet mounts images and makes namespaces"),
	}
	list = append(list, kernel(ctx)...)
	list = append(list, programs(ctx, l.Config)...)
	list = append(list, addresses(ctx, l.Config)...)
	return append(list, rooms(l.Config)...)
}

func look(check string, ok bool, detail, remedy string) finding {
	f := finding{Check: check, OK: ok, Needed: true, Detail: detail}
	if !ok {
		f.Remedy = remedy
	}
	return f
}

// tried is what trying it came to.
func tried(check string, err error, good, remedy string) finding {
	if err != nil {
		return look(check, false, err.Error(), remedy)
	}
	return look(check, true, good, "")
}

const inContainer = "; in a container, run it privileged"

func kernel(ctx context.Context) []finding {
	kind, groups := cgroup.Check()
	overlay := tried("overlay", probe.Overlay(), "overlay filesystems can be mounted", "gVisor does without; other runtimes need CONFIG_OVERLAY_FS")
	overlay.Needed = false
	return []finding{
		tried("namespaces", probe.Namespaces(), "mount, network, pid, ipc and uts can be made", "the kernel needs CONFIG_NAMESPACES and its kinds"+inContainer),
		tried("cgroups", groups, kind+" with memory, cpu, pids", "mount cgroup v2, or the v1 controllers memory, cpu and pids, writable"+inContainer),
		tried("loop devices, ext4", probe.Image(os.TempDir()), "an image can be mounted read-only", "modprobe loop ext4; the kernel needs CONFIG_BLK_DEV_LOOP and CONFIG_EXT4_FS"+inContainer),
		tried("network pairs", probe.Veth(), "a veth pair can be made", "modprobe veth; the kernel needs CONFIG_VETH"),
		tried("packet filter", probe.Rules(ctx), "the rules that shut sandboxes in can be laid", "apt-get install nftables; the kernel needs CONFIG_NF_TABLES_INET, CONFIG_NFT_REJECT_INET and CONFIG_NFT_CT"),
		overlay,
	}
}

func programs(ctx context.Context, c config.Config) []finding {
	version, err := probe.Runtime(ctx, c.Cubelet.Runsc)
	return []finding{
		tried("runtime", err, c.Cubelet.Runsc+", "+version, "`make build` makes bin/runsc; or name one by cubelet.runsc"),
		tried("guest", probe.Guest(c.TemplateCenter.GuestBinary), c.TemplateCenter.GuestBinary, "`make build` makes bin/paddock-guest; or name one by templatecenter.guest_binary"),
	}
}

func addresses(ctx context.Context, c config.Config) []finding {
	list := []finding{
		port(ctx, c.DataDir, "master", c.Master.Listen),
		port(ctx, c.DataDir, "templatecenter", c.TemplateCenter.Listen),
		port(ctx, c.DataDir, "cubelet", c.Cubelet.Listen),
	}
	subnet, err := netip.ParsePrefix(c.Cubelet.Subnet)
	if err == nil && subnet.Addr().Is4() {
		_, err = network.New("0000", subnet).Reserve("doctor")
	}
	return append(list, tried("cubelet.subnet", err, c.Cubelet.Subnet+" has addresses that this machine does not use", "choose another network by cubelet.subnet"))
}

// port looks whether a role can listen, or does already.
func port(ctx context.Context, dir, role, address string) finding {
	key := role + ".listen"
	l, err := serve.Listen(ctx, key, address)
	switch {
	case err == nil:
		return tried(key, l.Close(), address+" is free", "try again")
	case !errors.Is(err, syscall.EADDRINUSE):
		return look(key, false, fault.Describe(err).Cause, "choose another address for "+key)
	}
	pid, name := holder(address)
	switch {
	case pid == 0:
		return look(key, false, address+" is taken", "stop who listens there, or choose another address for "+key)
	case pid == datadir.Holder(dir, role):
		return look(key, true, fmt.Sprintf("%s is held by paddock itself, process %d", address, pid), "")
	}
	return look(key, false, fmt.Sprintf("%s is held by process %d (%s)", address, pid, name), "stop that process, or choose another address for "+key)
}

func holder(address string) (pid int, name string) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, ""
	}
	n, err := net.LookupPort("tcp", text)
	if err != nil {
		return 0, ""
	}
	return probe.Holder(uint16(n)) //nolint:gosec // a port
}

func rooms(c config.Config) []finding {
	can := c.DataDir + " can be written"
	if _, err := os.Stat(c.DataDir); err != nil {
		can = c.DataDir + " can be made"
	}
	list := []finding{tried("data directory", datadir.Look(c.DataDir), can, "choose a writable directory of its own with --data-dir")}
	for _, d := range []struct{ key, path string }{{"templatecenter.work_dir", c.TemplateCenter.WorkDir}, {"artifact_store.dir", c.ArtifactStore.Dir}} {
		if inside, err := filepath.Rel(c.DataDir, d.path); err != nil || !filepath.IsLocal(inside) {
			list = append(list, tried(d.key, unix.Access(datadir.Existing(d.path), unix.W_OK), d.path+" can be written", "choose a writable directory by "+d.key))
		}
	}
	disk, err := rootfs.FreeBytes(datadir.Existing(c.DataDir))
	list = append(list, room("disk", "free for "+c.DataDir, disk, err, leastDisk, goodDisk, "free space there, or choose another --data-dir"))
	memory, err := available()
	return append(list, room("memory", "available", memory, err, leastMemory, goodMemory, "stop something, or take a larger machine"))
}

// room judges an amount: under least it fails, under good it is worth a note.
func room(check, what string, have int64, err error, least, good int64, remedy string) finding {
	if err != nil {
		return look(check, false, err.Error(), remedy)
	}
	f := look(check, have >= good, fmt.Sprintf("%d MiB %s; at least %d are needed, %d are good", have>>20, what, least>>20, good>>20), remedy)
	f.Needed = f.OK || have < least
	return f
}

// available is how much memory can be had without swapping.
func available() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
