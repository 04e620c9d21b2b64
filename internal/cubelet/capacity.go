package cubelet

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// diskReserve is the share of the free disk that sandboxes may not have: the
// host's own files need room too.
const diskReserve = 10

// capacity returns what the machine has and what sandboxes may be given of it:
// over-commit is decided here and nowhere else.
func capacity(dir string, c config.Cubelet) (physical, allocatable host.Resources, err error) {
	mem, err := memory("MemTotal")
	if err != nil {
		return physical, allocatable, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return physical, allocatable, err
	}
	free := int64(s.Bavail) * s.Bsize
	physical = host.Resources{MilliCPU: int64(runtime.NumCPU()) * 1000, MemBytes: mem, DiskBytes: free, Slots: int64(c.MaxSandboxes)}
	allocatable = host.Resources{
		MilliCPU:  int64(float64(physical.MilliCPU) * c.CPUOvercommit),
		MemBytes:  int64(float64(physical.MemBytes) * c.MemOvercommit),
		DiskBytes: free - free/diskReserve,
		Slots:     physical.Slots,
	}
	return physical, allocatable, nil
}

// memory returns a line of /proc/meminfo, in bytes.
func memory(name string) (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(b), "\n") {
		var kib int64
		if _, err := fmt.Sscanf(line, name+": %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", name)
}

// cpuLoad measures how busy the machine is between two looks.
type cpuLoad struct{ busy, total uint64 }

// since returns the share of CPU time, 0 to 100, that was used since the last
// look; 0 when it cannot be told.
func (l *cpuLoad) since() float64 {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	// user nice system idle iowait irq softirq steal
	var n [8]uint64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &n[7]); err != nil {
		return 0
	}
	var now cpuLoad
	for i, v := range n {
		now.total += v
		if i != 3 && i != 4 {
			now.busy += v
		}
	}
	busy, total := now.busy-l.busy, now.total-l.total
	*l = now
	if total == 0 {
		return 0
	}
	return 100 * float64(busy) / float64(total)
}
