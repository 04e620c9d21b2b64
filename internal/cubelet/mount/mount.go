// Package mount shows the ext4 images of templates to the sandboxes of a host:
// each is mounted read-only once, however many use it. It must never mount
// anything for writing, and never touch a mount outside its directory.
package mount

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Table is the mounts below one directory. It is safe for concurrent use.
type Table struct {
	dir string

	mu   sync.Mutex
	refs map[string]*entry
}

type entry struct {
	mu    sync.Mutex // held while it is mounted or unmounted
	count int
}

// New returns the table of dir. Nothing is touched yet.
func New(dir string) *Table { return &Table{dir: dir, refs: map[string]*entry{}} }

// Acquire mounts the image at path as name, unless it is mounted, and returns
// where. Each call needs one Release.
func (t *Table) Acquire(name, path string) (string, error) {
	e := t.ref(name, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	target := filepath.Join(t.dir, name)
	mounted, err := t.mounted(target)
	if err == nil && !mounted {
		err = attach(path, target)
	}
	if err != nil {
		t.ref(name, -1)
		_ = os.Remove(target) // unless it is mounted for others, who then keep it
		return "", fmt.Errorf("mount %s: %w", name, err)
	}
	return target, nil
}

// Release gives up one Acquire; the last one unmounts. After an error nothing
// is given up: the caller holds it still, and releases again.
func (t *Table) Release(name string) error {
	e := t.ref(name, -1)
	e.mu.Lock()
	defer e.mu.Unlock()
	t.mu.Lock()
	busy := e.count > 0
	t.mu.Unlock()
	if busy {
		return nil
	}
	if err := detach(filepath.Join(t.dir, name)); err != nil {
		t.ref(name, 1)
		return err
	}
	return nil
}

// InUse reports whether somebody holds name.
func (t *Table) InUse(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refs[name] != nil && t.refs[name].count > 0
}

// Sweep unmounts everything below the directory that nobody holds: leftovers
// of a process that ended without a word.
func (t *Table) Sweep() error {
	all, err := below(t.dir)
	var errs []error
	for _, target := range all {
		if !t.InUse(filepath.Base(target)) {
			errs = append(errs, detach(target))
		}
	}
	return errors.Join(append(errs, err)...)
}

func (t *Table) ref(name string, by int) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.refs[name]
	if e == nil {
		e = &entry{}
		t.refs[name] = e
	}
	e.count += by
	return e
}

func (t *Table) mounted(target string) (bool, error) {
	all, err := below(t.dir)
	for _, m := range all {
		if m == target {
			return true, nil
		}
	}
	return false, err
}

// attach mounts the ext4 image at path read-only at target, through a loop
// device that goes away with the mount.
func attach(path, target string) (err error) {
	if err := os.MkdirAll(target, 0o700); err != nil {
		return err
	}
	image, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, image.Close()) }()
	device, err := loop(image, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	// noload: there is no journal to replay, and a read-only device could not.
	return unix.Mount(device.Name(), target, "ext4", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOATIME, "noload")
}

// loop binds image to a free loop device. Another process may take the device
// between the question and the bind, so it asks again.
func loop(image *os.File, path string) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for try := 0; ; try++ {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("no free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{Fd: uint32(image.Fd()), Size: 4096, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR}}
		copy(c.Info.File_name[:len(c.Info.File_name)-1], path)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &c)
		if err == nil {
			return device, nil
		}
		err = errors.Join(err, device.Close())
		if !errors.Is(err, unix.EBUSY) || try == 64 {
			return nil, fmt.Errorf("loop device %d: %w", n, err)
		}
	}
}

// detach unmounts target and removes its directory; one that is not mounted is
// only removed. A sandbox that is just dying may hold it for a moment.
func detach(target string) error {
	var err error
	for try := range 100 {
		err = unix.Unmount(target, 0)
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(time.Duration(try) * time.Millisecond)
	}
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// DetachBelow unmounts everything below dir, at once even when it is in use:
// whatever uses it is about to be removed too.
func DetachBelow(dir string) error {
	all, err := below(dir)
	errs := []error{err}
	for _, target := range slices.Backward(all) {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", target, err))
		}
	}
	return errors.Join(errs...)
}

// below returns the mount points below dir.
func below(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		if fields := strings.Fields(s.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append(found, fields[4])
		}
	}
	return found, s.Err()
}
