package cubelet

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

// measure looks at the machine. What cannot be told is 0.
func (c *Cubelet) measure() cubeapi.HostUsage {
	return cubeapi.HostUsage{
		CPUType: cpuModel(), CPULoad: loadAverage(), MemUsedMiB: usedMemory() >> 20,
		DataDisk: diskUsed(c.cfg.DataDir), StorageDisk: diskUsed(c.dir), SysDisk: diskUsed("/"),
	}
}

// loadAverage is that of the last minute.
func loadAverage() (load float64) {
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscanf(string(b), "%f", &load) // then it is 0
	}
	return load
}

// cpuModel is the first processor's name.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// usedMemory is what new programs could not have.
func usedMemory() int64 {
	total, err1 := memory("MemTotal")
	free, err2 := memory("MemAvailable")
	if err1 != nil || err2 != nil {
		return 0
	}
	return max(0, total-free)
}

// diskUsed is how full the file system of dir is, 0 to 100, for programs
// without privileges.
func diskUsed(dir string) float64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0
	}
	used := s.Blocks - s.Bfree
	if used+s.Bavail == 0 {
		return 0
	}
	return 100 * float64(used) / float64(used+s.Bavail)
}
