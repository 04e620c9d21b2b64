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
	mem, err := totalMemory()
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

func totalMemory() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(b), "\n") {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no MemTotal")
}
