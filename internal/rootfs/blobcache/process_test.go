package blobcache_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
)

// The test program is also the other process: with a task in its environment
// it does that task instead of testing.
func TestMain(m *testing.M) {
	task, dir := os.Getenv("BLOBCACHE_TASK"), os.Getenv("BLOBCACHE_DIR")
	if task == "" {
		os.Exit(m.Run())
	}
	if err := do(task, dir); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// do says "ready" when it has done its task, and then does what it is told:
// each line of its input lets it take one more step.
func do(task, dir string) error {
	steps := bufio.NewReader(os.Stdin)
	step := func() { _, _ = steps.ReadString('\n') } // at the end of the input it ends too
	c, err := blobcache.Open(blobcache.Options{Dir: dir, Quota: 2000})
	if err != nil {
		return err
	}
	ctx, a := context.Background(), layerOf('a', 1000)
	switch task {
	case "bring": // an older layer must go for it
		for seed := byte('a'); seed < 'd'; seed++ {
			l := layerOf(seed, 1000)
			b, err := c.Get(ctx, l.digest, l.size(), l.fetch)
			if err != nil {
				return err
			}
			if err := b.Close(); err != nil {
				return err
			}
		}
	case "pin":
		b, err := c.Get(ctx, a.digest, a.size(), a.fetch)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		step()
		all, err := read(b)
		if err := errors.Join(err, b.Close()); err != nil || len(all) != 1000 {
			return fmt.Errorf("read %d bytes: %w", len(all), err)
		}
	case "fetch slowly":
		_, err := c.Get(ctx, a.digest, a.size(), func(ctx context.Context, w io.Writer) error {
			if _, err := w.Write(a.bytes[:500]); err != nil {
				return err
			}
			fmt.Println("ready")
			step()
			_, err := w.Write(a.bytes[500:])
			return err
		})
		if err != nil {
			return err
		}
	}
	fmt.Println("done")
	step() // what it holds is held until then
	return c.Close()
}

// other is another process at work on the directory.
type other struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	once  sync.Once
	err   error
}

func start(t *testing.T, task, dir, failpoints string) *other {
	t.Helper()
	o := &other{cmd: exec.Command(os.Args[0])}
	o.cmd.Env = append(os.Environ(), "BLOBCACHE_TASK="+task, "BLOBCACHE_DIR="+dir, fail.Variable+"="+failpoints)
	o.cmd.Stderr = os.Stderr
	in, err := o.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.in, o.lines = in, bufio.NewScanner(out)
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.kill() })
	return o
}

// says waits for a line, or for the end.
func (o *other) says(t *testing.T, want string) {
	t.Helper()
	if !o.lines.Scan() || o.lines.Text() != want {
		t.Fatalf("the other process said %q, want %q", o.lines.Text(), want)
	}
}

func (o *other) step(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(o.in, "\n"); err != nil {
		t.Fatal(err)
	}
}

// end lets it take all of its steps and waits for it.
func (o *other) end() error {
	o.once.Do(func() {
		_ = o.in.Close()
		for o.lines.Scan() {
		}
		o.err = o.cmd.Wait()
	})
	return o.err
}

func (o *other) kill() error {
	_ = o.cmd.Process.Kill() // it may have ended
	return o.end()
}

func TestAnotherProcessPins(t *testing.T) {
	dir := t.TempDir()
	a, b, d := layerOf('a', 1000), layerOf('b', 1000), layerOf('d', 1000)
	o := start(t, "pin", dir, "")
	o.says(t, "ready")
	c := open(t, dir, 1000)
	once(t, c, a, refuse(t))
	once(t, c, b, b.fetch)
	once(t, c, d, d.fetch)
	if n := blobs(t, dir); !slices.Contains(n, a.digest) {
		t.Errorf("what another process pins was evicted: %v", n)
	}
	if err := o.end(); err != nil {
		t.Errorf("the other process: %v", err)
	}
	once(t, c, b, b.fetch)
	if n := blobs(t, dir); len(n) != 1 || n[0] != b.digest {
		t.Errorf("kept %v, want what was used last", n)
	}
}

func TestAnotherProcessFetches(t *testing.T) {
	for name, c := range map[string]struct {
		kill    bool
		fetches int32
	}{
		"and is waited for": {false, 0},
		"and is killed":     {true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir, a := t.TempDir(), layerOf('a', 1000)
			o := start(t, "fetch slowly", dir, "")
			o.says(t, "ready")
			cache := open(t, dir, 0) // its sweep must leave the other's file alone
			var n atomic.Int32
			got := make(chan error, 1)
			go func() {
				b, err := cache.Get(t.Context(), a.digest, a.size(), a.counted(&n))
				if err == nil {
					var all []byte
					if all, err = read(b); len(all) != 1000 {
						err = errors.Join(err, fmt.Errorf("%d bytes", len(all)))
					}
					err = errors.Join(err, b.Close())
				}
				got <- err
			}()
			eventually(t, func() bool { return cache.Waiting(a.digest, a.size()) == 1 })
			if c.kill {
				_ = o.kill() // its status is the kill
			} else {
				o.step(t)
				o.says(t, "done") // it keeps the layer, which must not keep others from it
			}
			if err := <-got; err != nil {
				t.Error(err)
			}
			if n.Load() != c.fetches {
				t.Errorf("%d fetches, want %d", n.Load(), c.fetches)
			}
			clean(t, dir)
			_ = o.kill()
		})
	}
}

func TestACallerNeedNotWaitForAnotherProcess(t *testing.T) {
	dir, a := t.TempDir(), layerOf('a', 1000)
	o := start(t, "fetch slowly", dir, "")
	o.says(t, "ready")
	c := open(t, dir, 0)
	ctx, leave := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := c.Get(ctx, a.digest, a.size(), refuse(t))
		got <- err
	}()
	eventually(t, func() bool { return c.Waiting(a.digest, a.size()) == 1 })
	leave()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
}

// A process is killed at each step; what it leaves must be right or gone.
func TestAKilledProcess(t *testing.T) {
	places := []string{"claimed", "reserved", "write", "written", "synced", "renamed", "claimed@3", "reserved@3", "write@3", "synced@3", "renamed@3", "evict", "evicted"}
	for _, place := range places {
		t.Run(place, func(t *testing.T) {
			dir := t.TempDir()
			name, count, counted := strings.Cut(place, "@")
			point := "blobcache." + name + "=crash"
			if counted {
				point += "@" + count
			}
			o := start(t, "bring", dir, point)
			var killed *exec.ExitError
			if err := o.end(); !errors.As(err, &killed) || killed.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("it was to be killed at %s, and ended by %v", point, err)
			}
			c := open(t, dir, 2000)
			clean(t, dir)
			for _, digest := range blobs(t, dir) {
				if info, err := os.Stat(filepath.Join(dir, "blobs", digest[7:])); err != nil || info.Size() != 1000 {
					t.Errorf("it left %v, %v", info, err)
				}
			}
			for seed := byte('a'); seed < 'd'; seed++ {
				l := layerOf(seed, 1000)
				b := get(t, c, l, l.fetch)
				check(t, b, l)
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
			if n := blobs(t, dir); len(n) != 2 {
				t.Errorf("%d layers, the quota has room for 2", len(n))
			}
		})
	}
}

// Two processes and many callers on a cache that is too small for them.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	o := start(t, "bring", dir, "")
	var done sync.WaitGroup
	for worker := range 8 {
		c := open(t, dir, 2500)
		done.Go(func() {
			for i := range 30 {
				l := layerOf('a'+byte((i*7+worker)%6), 1000)
				b, err := c.Get(t.Context(), l.digest, l.size(), l.fetch)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := read(b); err != nil || len(got) != 1000 {
					t.Errorf("read %d bytes, %v", len(got), err)
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	if err := o.end(); err != nil {
		t.Error(err)
	}
	open(t, dir, 2500)
	if n := blobs(t, dir); len(n) > 2 {
		t.Errorf("%d layers, the quota has room for 2", len(n))
	}
	clean(t, dir)
}
