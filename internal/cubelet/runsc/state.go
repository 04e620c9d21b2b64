package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
)

// What the runtime keeps in its root for a sandbox.
func socketOf(id string) string { return "runsc-" + id + ".sock" }
func stateOf(id string) string  { return id + "_sandbox:" + id + ".state" }
func lockOf(id string) string   { return id + "_sandbox:" + id + ".lock" }

// nullNetwork is the file on which the runtime pins the empty network of its
// file servers. It is shared by all sandboxes of the root.
const nullNetwork = "null-netns"

// state is the part of the runtime's state file that is read here.
type state struct {
	Status  string `json:"status"`
	Sandbox struct {
		PID int `json:"pid"`
	} `json:"sandbox"`
	GoferPID int `json:"goferPid"`
}

func (d *Driver) read(id string) (s state, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(d.root, stateOf(id)))
	if errors.Is(err, os.ErrNotExist) {
		return s, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	return s, err == nil, err
}

// Status tells of one sandbox: see runtime.Driver. The runtime's own word is
// not taken for it: it says running of a kernel that was killed.
func (d *Driver) Status(_ context.Context, id string) (runtime.Status, bool, error) {
	s, ok, err := d.read(id)
	if err != nil || !ok {
		return runtime.Status{}, false, err
	}
	st := runtime.Status{ID: id}
	if p, ok := runtime.Find(s.Sandbox.PID); ok && d.started(p.PID, id) {
		st.Process, st.Running = p, s.Status == "running" || s.Status == "created"
	}
	return st, true, nil
}

// List tells of every sandbox with state in the root: see runtime.Driver.
func (d *Driver) List(ctx context.Context) ([]runtime.Status, error) {
	names, err := os.ReadDir(d.root)
	if err != nil {
		return nil, err
	}
	var list []runtime.Status
	for _, n := range names {
		id, _, ok := strings.Cut(n.Name(), "_sandbox:")
		if !ok || n.Name() != stateOf(id) {
			continue
		}
		s, ok, err := d.Status(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("sandbox %s: %w", id, err)
		}
		if ok {
			list = append(list, s)
		}
	}
	return list, nil
}

// Delete ends a sandbox and removes its state: see runtime.Driver. The runtime
// is not asked: it would take a process start, and its own files and processes
// are all that there is.
func (d *Driver) Delete(ctx context.Context, id string) error {
	if err := d.kill(ctx, func(sandbox string) bool { return sandbox == id }); err != nil {
		return err
	}
	return d.forget(id)
}

func (d *Driver) forget(id string) error {
	var errs []error
	for _, name := range []string{stateOf(id), lockOf(id), socketOf(id)} {
		if err := os.Remove(filepath.Join(d.root, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Reclaim ends every process and removes all state of sandboxes that keep does
// not name: what a process that was killed left in the root.
func (d *Driver) Reclaim(ctx context.Context, keep func(id string) bool) error {
	if err := d.kill(ctx, func(id string) bool { return !keep(id) }); err != nil {
		return err
	}
	names, err := os.ReadDir(d.root)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		id, _, ok := strings.Cut(n.Name(), "_sandbox:")
		if !ok {
			id, ok = strings.CutSuffix(strings.TrimPrefix(n.Name(), "runsc-"), ".sock")
		}
		if ok && !keep(id) {
			errs = append(errs, os.Remove(filepath.Join(d.root, n.Name())))
		}
	}
	return errors.Join(errs...)
}

// Close removes the root with what the runtime shares between its sandboxes.
// None may be left.
func (d *Driver) Close() error {
	pinned := filepath.Join(d.root, nullNetwork)
	// Starts at once may have laid several on top of each other.
	for range 64 {
		if err := unix.Unmount(pinned, unix.MNT_DETACH); err != nil {
			break
		}
	}
	if err := os.Remove(pinned); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Remove(d.root); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// kill ends the processes of every sandbox that which names, and waits until
// they are gone. It looks again after each round: a process may have started
// another just before it died.
func (d *Driver) kill(ctx context.Context, which func(id string) bool) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		all, err := d.processes()
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(p owned) bool { return !which(p.sandbox) })
		if len(all) == 0 {
			return nil
		}
		for _, p := range all {
			if err := p.Kill(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes in %s do not end: %w", len(all), d.root, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// owned is a process that was started with the driver's root.
type owned struct {
	runtime.Process
	sandbox string
}

// processes returns every process of the driver, found by its root in their
// arguments. No other process has a reason to name it.
func (d *Driver) processes() ([]owned, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var list []owned
	for _, n := range names {
		pid, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		p, ok := runtime.Find(pid)
		if !ok {
			continue
		}
		if id, ok := d.sandboxOf(arguments(pid)); ok {
			list = append(list, owned{p, id})
		}
	}
	return list, nil
}

// started reports whether process pid was started by this driver for id.
func (d *Driver) started(pid int, id string) bool {
	found, ok := d.sandboxOf(arguments(pid))
	return ok && found == id
}

func arguments(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil // it has just ended
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

var idIn = regexp.MustCompile(`(?:^|[/=])(i[0-9a-f]{24})(?:/|$)`)

// sandboxOf returns whose process has these arguments. Every process that is
// started for a sandbox is the runtime's, names the root, and names the sandbox
// by id or in a path; what else stands in its arguments comes later.
func (d *Driver) sandboxOf(args []string) (string, bool) {
	if len(args) == 0 || !strings.HasPrefix(args[0], "runsc-") && !slices.Contains(args, d.binary) {
		return "", false
	}
	if !slices.ContainsFunc(args, func(a string) bool { return a == d.root || a == "--root="+d.root }) {
		return "", false // another root, or somebody who looks at ours
	}
	for _, a := range args {
		if m := idIn.FindStringSubmatch(a); m != nil {
			return m[1], true
		}
	}
	return "", false
}
