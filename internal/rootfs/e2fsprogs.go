package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	// align is what the size is a multiple of: virtio-pmem takes no other.
	align = 2 << 20
	block = 4096 // what DAX needs; small images would get 1024
)

// Tools returns the programs that WriteTo needs.
func Tools() []string { return []string{"mke2fs", "resize2fs", "e2fsck"} }

// makeFS writes the tree at dir into an ext4 file that is as small as
// e2fsprogs can make it. This is what the streaming writer replaces.
func makeFS(ctx context.Context, dir, file, key string, data, entries int64) error {
	// Each entry takes at most an inode, a partly filled block and its name.
	size := roundUp((data+entries*(block+512))*11/10 + headroom)
	uuid := fmt.Sprintf("%s-%s-%s-%s-%s", key[:8], key[8:12], key[12:16], key[16:20], key[20:32])
	err := run(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-b", strconv.Itoa(block), "-O", "^has_journal", "-m", "0", "-N", strconv.FormatInt(entries+1024, 10),
		"-U", uuid, "-E", "lazy_itable_init=0,root_owner=0:0,hash_seed="+uuid, "-d", dir, file, strconv.FormatInt(size>>10, 10)+"k")
	if err != nil {
		return err
	}
	if err := run(ctx, "resize2fs", "-M", file); err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err == nil {
		err = os.Truncate(file, roundUp(info.Size()))
	}
	if err != nil {
		return diskFault(err, filepath.Dir(file))
	}
	// Over the whole file, so that its size is the filesystem's.
	if err := run(ctx, "resize2fs", file); err != nil {
		return err
	}
	return run(ctx, "e2fsck", "-fn", file)
}

func roundUp(n int64) int64 { return (n + align - 1) / align * align }

// run runs one program of e2fsprogs. It ends with ctx, and with this process.
func run(ctx context.Context, name string, args ...string) error {
	program, err := find(name)
	if err != nil {
		return err
	}
	// The parent-death signal is tied to the thread that forked.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := exec.CommandContext(ctx, program, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "SOURCE_DATE_EPOCH=1", "E2FSPROGS_FAKE_TIME=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case bytes.Contains(out, []byte("No space left on device")):
		return fault.New(fault.DiskFull, "%s: %s", name, bytes.TrimSpace(out))
	}
	return fault.Wrap(fault.BuildFailed, fmt.Errorf("%w: %s", err, bytes.TrimSpace(out)), "%s", name)
}

// find looks where e2fsprogs is installed even if PATH is a plain user's.
func find(name string) (string, error) {
	for _, p := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if found, err := exec.LookPath(p); err == nil {
			return found, nil
		}
	}
	return "", fault.Wrap(fault.ToolMissing, errors.New("it is in none of PATH, /usr/sbin, /sbin"), "%s of e2fsprogs", name)
}
