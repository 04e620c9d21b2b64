package guest

import (
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	ticksPerSecond = 100 // of /proc: the kernel's interface has it fixed
	shortestSample = 100 * time.Millisecond
	unlimited      = 1 << 60 // a cgroup without a limit says a number above this
)

// usage is the body of /metrics; E2B's names.
type usage struct {
	Time       int64   `json:"ts"`
	CPUCount   int     `json:"cpu_count"`
	CPUUsedPct float64 `json:"cpu_used_pct"`
	MemTotal   uint64  `json:"mem_total"`
	MemUsed    uint64  `json:"mem_used"`
	MemCache   uint64  `json:"mem_cache"`
	MemTotalMB uint64  `json:"mem_total_mib"`
	MemUsedMB  uint64  `json:"mem_used_mib"`
	DiskUsed   uint64  `json:"disk_used"`
	DiskTotal  uint64  `json:"disk_total"`
}

// meter knows how much CPU was used when it was last asked. Nothing is
// sampled meanwhile: an idle sandbox must cost nothing.
type meter struct {
	proc, cgroup string

	mu   sync.Mutex
	at   time.Time
	used time.Duration
}

func newMeter() *meter { return &meter{proc: "/proc", cgroup: "/sys/fs/cgroup"} }

func (g *Guest) metrics(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, g.meter.read())
}

func (m *meter) read() usage {
	u := usage{Time: time.Now().Unix(), CPUCount: runtime.NumCPU(), CPUUsedPct: m.cpuShare()}
	u.MemTotal, u.MemUsed, u.MemCache = m.memory()
	u.MemTotalMB, u.MemUsedMB = u.MemTotal>>20, u.MemUsed>>20
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err == nil {
		size := uint64(st.Bsize)
		u.DiskTotal, u.DiskUsed = st.Blocks*size, (st.Blocks-st.Bfree)*size
	}
	return u
}

// cpuShare is the CPU used since the last call, in percent of all CPUs.
func (m *meter) cpuShare() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() {
		m.at, m.used = time.Now(), m.cpuUsed()
	}
	if missing := shortestSample - time.Since(m.at); missing > 0 {
		<-time.After(missing)
	}
	now, used := time.Now(), m.cpuUsed()
	// Processes that end take their time with them, where time is summed.
	share := 100 * float64(max(0, used-m.used)) / float64(now.Sub(m.at)) / float64(runtime.NumCPU())
	m.at, m.used = now, used
	return math.Round(min(share, 100)*100) / 100
}

// cpuUsed asks the sandbox's own cgroup where the runtime shows it; /proc
// where that is the sandbox's; and the processes, where /proc counts nothing.
func (m *meter) cpuUsed() time.Duration {
	if n, ok := field(filepath.Join(m.cgroup, "cpu.stat"), "usage_usec"); ok {
		return time.Duration(n) * time.Microsecond
	}
	if n, ok := number(filepath.Join(m.cgroup, "cpuacct/cpuacct.usage")); ok {
		return time.Duration(n)
	}
	if busy := m.procTicks(); busy > 0 {
		return busy
	}
	return m.sumTicks()
}

func ticks(n uint64) time.Duration { return time.Duration(n) * time.Second / ticksPerSecond }

func (m *meter) procTicks() time.Duration {
	b, err := os.ReadFile(filepath.Join(m.proc, "stat"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy uint64
	for i, text := range strings.Fields(line) {
		const idle, wait = 4, 5
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && i != idle && i != wait && i < 9 {
			busy += n
		}
	}
	return ticks(busy)
}

func (m *meter) sumTicks() time.Duration {
	var busy uint64
	entries, err := os.ReadDir(m.proc)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(m.proc, e.Name(), "stat"))
		if err != nil {
			continue
		}
		// After the name in parentheses: state is 0, utime 11, stime 12.
		f := strings.Fields(string(b[max(0, strings.LastIndexByte(string(b), ')')+1):]))
		for i := 11; i <= 12 && i < len(f); i++ {
			if n, err := strconv.ParseUint(f[i], 10, 64); err == nil {
				busy += n
			}
		}
	}
	return ticks(busy)
}

// memory is that of the sandbox's cgroup where it has a limit, else /proc's.
func (m *meter) memory() (total, used, cache uint64) {
	for _, v := range []struct{ limit, current, stat, cache string }{
		{"memory.max", "memory.current", "memory.stat", "file"},
		{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "cache"},
	} {
		limit, ok := number(filepath.Join(m.cgroup, v.limit))
		if !ok || limit > unlimited {
			continue
		}
		current, ok := number(filepath.Join(m.cgroup, v.current))
		if !ok {
			continue
		}
		cache, _ := field(filepath.Join(m.cgroup, v.stat), v.cache)
		return limit, current - min(cache, current), cache
	}
	info := filepath.Join(m.proc, "meminfo")
	kib := func(name string) uint64 { n, _ := field(info, name+":"); return n << 10 }
	total, cache = kib("MemTotal"), kib("Cached")
	free, ok := field(info, "MemAvailable:")
	if !ok {
		return total, total - min(total, kib("MemFree")+cache), cache
	}
	return total, total - min(total, free<<10), cache
}

// number reads a file that holds one number.
func number(path string) (uint64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// field reads the number after name in a file of lines.
func field(path, name string) (uint64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, err := strconv.ParseUint(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
