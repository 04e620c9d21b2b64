// Package runtimetest is the suite that every runtime must pass, and the image
// that its sandboxes run from. It must never be imported by the product.
package runtimetest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// ProbePath is where an image has the program of the tests.
const ProbePath = "/bin/probe"

// Build compiles a program of this module without libraries and returns its
// path.
func Build(tb testing.TB, dir, pkg string) string {
	tb.Helper()
	path := filepath.Join(dir, filepath.Base(pkg))
	run(tb, append(os.Environ(), "CGO_ENABLED=0"), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "github.com/paddock-dev/paddock/"+pkg)
	return path
}

// Image makes an ext4 image with the probe and what else is given, path inside
// to path outside, and returns its path.
func Image(tb testing.TB, dir string, files map[string]string) string {
	tb.Helper()
	tree := filepath.Join(dir, "tree")
	for _, sub := range []string{"bin", "etc", "tmp", "root", "proc", "dev", "sys"} {
		must(tb, os.MkdirAll(filepath.Join(tree, sub), 0o755))
	}
	must(tb, os.WriteFile(filepath.Join(tree, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"), 0o644))
	must(tb, os.MkdirAll(filepath.Join(tree, "root/sub/deep"), 0o755))
	must(tb, os.WriteFile(filepath.Join(tree, "root/sub/old"), []byte("old"), 0o644))
	must(tb, os.WriteFile(filepath.Join(tree, "etc/group"), []byte("root:x:0:\nuser:x:1000:\n"), 0o644))
	files = withProbe(tb, dir, files)
	for inside, outside := range files {
		at := filepath.Join(tree, inside)
		must(tb, os.MkdirAll(filepath.Dir(at), 0o755))
		b, err := os.ReadFile(outside)
		must(tb, err)
		must(tb, os.WriteFile(at, b, 0o755))
	}
	image := filepath.Join(dir, "image.ext4")
	f, err := os.Create(image)
	must(tb, err)
	must(tb, f.Truncate(64<<20))
	must(tb, f.Close())
	run(tb, append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin"), "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-O", "^has_journal", "-d", tree, image)
	return image
}

func withProbe(tb testing.TB, dir string, files map[string]string) map[string]string {
	all := map[string]string{ProbePath: Build(tb, dir, "internal/cubelet/runtime/runtimetest/probe")}
	for k, v := range files {
		all[k] = v
	}
	return all
}

func run(tb testing.TB, env []string, name string, args ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = env
	if out, err := c.CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Eventually waits until ok says so, at most a bound.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	late := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-late:
			tb.Fatalf("not within 20 s: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Runsc returns the gVisor runtime to test with: PADDOCK_RUNSC, else bin/runsc
// of this module.
func Runsc(tb testing.TB) string {
	tb.Helper()
	path := os.Getenv("PADDOCK_RUNSC")
	if path == "" {
		out, err := exec.Command("go", "env", "GOMOD").Output()
		must(tb, err)
		path = filepath.Join(filepath.Dir(string(out)), "bin", "runsc")
	}
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("the tests need the runtime: %v; `make build` makes it, or set PADDOCK_RUNSC", err)
	}
	return path
}
