package cgroup_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func parent(t *testing.T) *cgroup.Parent {
	p, err := cgroup.Open("paddock-test-cgroup")
	check(t, err)
	t.Cleanup(func() { check(t, p.Remove()) })
	return p
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// value reads a file of a group, by its name on v1 or on v2.
func value(t *testing.T, id, v1, v2 string) string {
	for _, path := range []string{filepath.Join("/sys/fs/cgroup", v1[:strings.Index(v1, "/")], "paddock-test-cgroup", id, v1[strings.Index(v1, "/")+1:]), filepath.Join("/sys/fs/cgroup/paddock-test-cgroup", id, v2)} {
		if b, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	t.Fatalf("no %s of %s", v2, id)
	return ""
}

func TestGroupBoundsAndHoldsItsProcesses(t *testing.T) {
	p := parent(t)
	g := p.Group("one")
	check(t, g.Create(cgroup.Limits{MemBytes: 64 << 20, PIDs: 20}))
	check(t, g.LimitCPU(500))
	for _, c := range []struct{ v1, v2, want string }{
		{"memory/memory.limit_in_bytes", "memory.max", "67108864"},
		{"pids/pids.max", "pids.max", "20"},
	} {
		if got := value(t, "one", c.v1, c.v2); got != c.want {
			t.Errorf("%s is %s, want %s", c.v2, got, c.want)
		}
	}
	if got := value(t, "one", "cpu/cpu.cfs_quota_us", "cpu.max"); got != "50000" && got != "50000 100000" {
		t.Errorf("cpu quota %s", got)
	}
	// A program, and what it starts, is inside from the beginning.
	c := g.Command(bounded(t), "/bin/sh", "-c", "sleep 600 & sleep 600")
	check(t, c.Start())
	var pids []int
	for len(pids) < 3 {
		var err error
		pids, err = g.Processes()
		check(t, err)
		<-time.After(5 * time.Millisecond)
	}
	if !slices.Contains(pids, c.Process.Pid) || slices.Contains(pids, os.Getpid()) {
		t.Errorf("processes %v, started %d", pids, c.Process.Pid)
	}
	if ids, err := p.List(); err != nil || len(ids) != 1 || ids[0] != "one" {
		t.Errorf("list %v, %v", ids, err)
	}
	go func() { _ = c.Wait() }() // reaps it, however it ends
	check(t, g.Destroy(bounded(t)))
	check(t, g.Destroy(bounded(t))) // again
	if ids, err := p.List(); err != nil || len(ids) != 0 {
		t.Errorf("list %v, %v", ids, err)
	}
}

func TestMemoryIsCounted(t *testing.T) {
	g := parent(t).Group("hungry")
	check(t, g.Create(cgroup.Limits{MemBytes: 16 << 20}))
	if n := g.OOMKills(); n != 0 {
		t.Fatalf("%d kills of nobody", n)
	}
	// The shell keeps the whole of it in one variable.
	err := g.Command(bounded(t), "/bin/sh", "-c", `x=$(head -c 64000000 /dev/zero | tr '\0' x); echo ${#x}`).Run()
	if n := g.OOMKills(); err == nil || n == 0 {
		t.Errorf("64 MB of 16 MiB: %v, %d kills", err, n)
	}
	check(t, g.Destroy(bounded(t)))
}

func TestProcessesAreCounted(t *testing.T) {
	g := parent(t).Group("many")
	check(t, g.Create(cgroup.Limits{PIDs: 5}))
	_ = g.Command(bounded(t), "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait").Run() // it cannot fork so often
	if g.PIDRefusals() == 0 {
		t.Error("8 processes of 5, and no refusal")
	}
	check(t, g.Destroy(bounded(t)))
}
