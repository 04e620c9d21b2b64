// Package probe finds out what this machine can do for sandboxes by doing it:
// in namespaces of its own, which end with the probe. It must never leave
// anything behind, and never touch what others use.
package probe

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubelet/mount"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// commandTime bounds each program that a probe runs.
const commandTime = 10 * time.Second

// apart runs do on a thread of its own in new namespaces. What do makes there
// ends with the thread.
func apart(flags int, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread does not end before the process, and /proc/self
			// shows what it sees. While it waits here, another is taken.
			defer runtime.UnlockOSThread()
			done <- apart(flags, do)
			return
		}
		// Not unlocked: the thread leaves the machine's namespaces and must end
		// with this goroutine.
		err := unix.Unshare(flags)
		if err == nil && flags&unix.CLONE_NEWNS != 0 {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			done <- fmt.Errorf("new namespaces: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}

// Namespaces makes one of each kind that a sandbox has.
func Namespaces() error {
	return apart(unix.CLONE_NEWNS|unix.CLONE_NEWNET|unix.CLONE_NEWPID|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, func() error { return nil })
}

// Veth makes a pair of network interfaces.
func Veth() error {
	return apart(unix.CLONE_NEWNET, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}, PeerName: "probe1"})
	})
}

// Rules lays the rules that shut sandboxes in, which needs nft and the kernel's
// side of it.
func Rules(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	return apart(unix.CLONE_NEWNET, func() error {
		return network.New("0000", netip.MustParsePrefix("10.0.0.0/24")).Open(ctx)
	})
}

// Image makes a small ext4 image in dir, which it removes, and mounts it as the
// image of a template is: written by the same hand, read-only, through a loop
// device.
func Image(dir string) (err error) {
	work, err := os.MkdirTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	image := filepath.Join(work, "image.ext4")
	if err := writeImage(image); err != nil {
		return err
	}
	return apart(unix.CLONE_NEWNS, func() error {
		table := mount.New(filepath.Join(work, "mounts"))
		if _, err := table.Acquire("image", image); err != nil {
			return err
		}
		return table.Release("image")
	})
}

func writeImage(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, err := ext4.New(f, ext4.Options{})
	if err != nil {
		return err
	}
	_, err = w.Finish()
	return err
}

// Overlay mounts an overlay filesystem.
func Overlay() error {
	return apart(unix.CLONE_NEWNS, func() error {
		// What is mounted over it is this thread's alone, and so are its files.
		const over = "/tmp"
		if err := unix.Mount("tmpfs", over, "tmpfs", 0, "size=1m"); err != nil {
			return fmt.Errorf("tmpfs: %w", err)
		}
		for _, d := range []string{"lower", "upper", "work", "merged"} {
			if err := os.Mkdir(filepath.Join(over, d), 0o700); err != nil {
				return err
			}
		}
		return unix.Mount("overlay", over+"/merged", "overlay", 0, "lowerdir="+over+"/lower,upperdir="+over+"/upper,workdir="+over+"/work")
	})
}

// Runtime asks the gVisor runtime at path for its version.
func Runtime(ctx context.Context, path string) (version string, err error) {
	out, err := output(ctx, path, "--version")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(out, "\n")
	version, ok := strings.CutPrefix(first, "runsc version ")
	if !ok {
		return "", fmt.Errorf("%s --version says %.80q: it is not runsc", path, first)
	}
	if built, err := buildinfo.ReadFile(path); err == nil && version == unstamped {
		for _, m := range append(built.Deps, &built.Main) {
			if m.Path == gvisor {
				return m.Version, nil
			}
		}
	}
	return version, nil
}

const (
	gvisor    = "gvisor.dev/gvisor"
	unstamped = "VERSION_MISSING" // what a runsc says that was built as a Go module
)

// Guest says whether path can be the agent of sandboxes: a program of this
// machine that needs nothing of the image that it runs in.
func Guest(path string) (err error) {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}; f.Machine != machines[runtime.GOARCH] {
		return fmt.Errorf("%s is a program for %s, this machine is %s", path, f.Machine, runtime.GOARCH)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s needs a loader, which images need not have: build it with CGO_ENABLED=0", path)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		return errors.Join(err, fmt.Errorf("%s may not be executed", path))
	}
	return nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(name), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
