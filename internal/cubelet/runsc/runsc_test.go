package runsc_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
	"github.com/paddock-dev/paddock/internal/cubelet/mount"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/cubelet/runsc"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

const tag = "f001"

func TestConformance(t *testing.T) {
	dir := t.TempDir()
	image := runtimetest.Image(t, dir, nil)
	driver, err := runsc.Open(runtimetest.Runsc(t), filepath.Join(shortDir(t), "runsc"))
	if err != nil {
		t.Fatal(err)
	}
	parent, err := cgroup.Open("paddock-" + tag)
	if err != nil {
		t.Fatal(err)
	}
	nets := network.New(tag, netip.MustParsePrefix("10.229.0.0/24"))
	if err := nets.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	mounts := mount.New(filepath.Join(dir, "mounts"))
	t.Cleanup(func() {
		for _, err := range []error{driver.Close(), parent.Remove(), nets.Close(context.Background()), mounts.Sweep()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	made := 0
	w := runtimetest.World{Driver: driver}
	w.New = func(tb testing.TB, o runtimetest.Options) runtime.Sandbox {
		made++
		return newSandbox(tb, o, parts{driver, parent, nets, mounts, image, filepath.Join(dir, "s"+strconv.Itoa(made))})
	}
	w.LimitCPU = func(tb testing.TB, id string, milli int64) {
		if err := parent.Group(id).LimitCPU(milli); err != nil {
			tb.Fatal(err)
		}
	}
	w.Processes = func(tb testing.TB, id string) int {
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/pids/paddock-"+tag, id, "pids.current"))
		if err != nil {
			b, err = os.ReadFile(filepath.Join("/sys/fs/cgroup/paddock-"+tag, id, "pids.current"))
		}
		if err != nil {
			tb.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	runtimetest.Run(t, w)
}

type parts struct {
	driver *runsc.Driver
	parent *cgroup.Parent
	nets   *network.Pool
	mounts *mount.Table
	image  string
	dir    string
}

func newSandbox(tb testing.TB, o runtimetest.Options, p parts) runtime.Sandbox {
	tb.Helper()
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	name := id.New("i")
	net, err := p.nets.Reserve(name)
	check(err)
	group := p.parent.Group(name)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, err := range []error{p.driver.Delete(ctx, name), group.Destroy(ctx), p.nets.Destroy(net), p.mounts.Release("image")} {
			if err != nil {
				tb.Error(err)
			}
		}
	})
	root, err := p.mounts.Acquire("image", p.image)
	check(err)
	check(p.nets.Create(net))
	limits := cgroup.Limits{MemBytes: o.MemBytes, PIDs: o.PIDs}
	if limits.MemBytes == 0 {
		limits.MemBytes = 256 << 20
	}
	check(group.Create(limits))
	check(os.MkdirAll(p.dir, 0o700))
	s := runtime.Sandbox{
		ID: name, Dir: p.dir, RootFS: root, NetNS: net.Path(), WritableBytes: o.WritableBytes, Args: o.Args, Hostname: name,
		Env: []string{"PATH=/bin"}, Log: filepath.Join(p.dir, "log"), Join: group.Command,
		Files: []runtime.File{
			{Path: "etc", Mode: 0o755, Dir: true},
			{Path: "etc/hostname", Mode: 0o644, Data: []byte(name + "\n")},
			{Path: "etc/hosts", Mode: 0o644, Data: []byte("127.0.0.1 localhost\n")},
			{Path: "tmp", Mode: 0o1777, Dir: true},
			{Path: "tmp/.paddock", Mode: 0o755, Dir: true},
		},
	}
	s.Layer, s.Privileges, s.Mounts = o.Layer, o.Privileges, o.Mounts
	if s.WritableBytes == 0 {
		s.WritableBytes = 64 << 20
	}
	return s
}

// shortDir is a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/run", "paddock-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("files are left: %v", err)
		}
	})
	return dir
}
