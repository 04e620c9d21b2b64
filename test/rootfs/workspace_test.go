package rootfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	toolTime = 2 * time.Minute // for one run of a program
	diskSize = "size=4g"       // of a workspace; what is not written takes nothing
)

// workspace returns a directory in a file system of its own. tmpfs holds all
// that layers may say: every time, device and attribute, and it forgets all of
// it with one unmount, also after a failure.
func workspace(t testing.TB) string {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("paddock-test", at, "tmpfs", 0, diskSize); err != nil {
		t.Fatalf("tmpfs at %s: %v (these tests need root)", at, err)
	}
	t.Cleanup(func() {
		if err := unmount(at); err != nil {
			t.Errorf("unmount %s: %v", at, err)
		}
	})
	return at
}

// unmount takes a mount away. A program that another test is just starting may
// still share an open file of this one for a moment, so it must not be waited
// for.
func unmount(at string) error { return unix.Unmount(at, unix.MNT_DETACH) }

// run runs a program and returns what it printed.
func run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	path, err := program(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %.2000s", name, err, out)
	}
	return string(out), nil
}

func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path := filepath.Join(dir, name); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("this test needs %s, which is not installed: run `make setup`", name)
}

// mounted calls read with the place where an image is mounted read-only.
func mounted(ctx context.Context, image, at string, read func(at string) error) (err error) {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if _, err := run(ctx, "mount", "-t", "ext4", "-o", "ro,loop", image, at); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmount(at)) }()
	return read(at)
}
