package rootfs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

const inOwnMounts = "PADDOCK_TEST_OWN_MOUNTS"

// TestMain runs the tests in a mount namespace of their own. In whatever way
// they end, also killed by their time limit, the kernel takes every mount and
// loop device with them.
func TestMain(m *testing.M) {
	if os.Getenv(inOwnMounts) != "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the child dies with this thread
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), inOwnMounts+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &ended):
		os.Exit(max(ended.ExitCode(), 1))
	default:
		fmt.Fprintf(os.Stderr, "a mount namespace of its own: %v (these tests need root)\n", err)
		os.Exit(1)
	}
}
