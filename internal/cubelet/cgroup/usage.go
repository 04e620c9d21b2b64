package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Usage is what the processes of a group have now, and have used since it was
// made. What the kernel does not tell is 0.
type Usage struct {
	CPUMicros int64
	MemBytes  int64 // without what the kernel can take back: cached files
	Processes int64
	OOMKills  int64
}

// Usage reads what the group uses.
func (g *Group) Usage() Usage {
	u := Usage{OOMKills: int64(g.OOMKills()), Processes: g.number("pids", "pids.current")}
	if g.v2 {
		u.CPUMicros = int64(g.counter("cpu", "cpu.stat", "usage_usec "))
		u.MemBytes = max(0, g.number("memory", "memory.current")-int64(g.counter("memory", "memory.stat", "inactive_file ")))
		return u
	}
	if n := g.number("cpu", "cpuacct.usage"); n > 0 { // in nanoseconds
		u.CPUMicros = n / 1000
	} else if pids, err := g.Processes(); err == nil {
		// The time is counted in a hierarchy of its own, where the group is not:
		// its processes tell.
		for _, pid := range pids {
			u.CPUMicros += processMicros(pid)
		}
	}
	u.MemBytes = max(0, g.number("memory", "memory.usage_in_bytes")-int64(g.counter("memory", "memory.stat", "total_inactive_file ")))
	return u
}

// number reads a file that holds one; 0 when there is none.
func (g *Group) number(controller, file string) int64 {
	b, err := os.ReadFile(filepath.Join(g.folder(controller), file))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number
	return n
}

// ticks of a second, in which /proc counts: the kernel's own for all programs.
const ticks = 100

// processMicros is the CPU time of one process, with that of its children that
// have ended.
func processMicros(pid int) (n int64) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// After the program's name, which may hold anything: utime, stime, cutime,
	// cstime are the fields 14 to 17.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 15 {
		return 0
	}
	for _, f := range fields[11:15] {
		t, _ := strconv.ParseInt(f, 10, 64) // the kernel writes numbers
		n += t * (1_000_000 / ticks)
	}
	return n
}
