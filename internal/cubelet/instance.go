package cubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/cgroup"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

// state is where an instance stands on its host.
type state string

const (
	starting state = "starting"
	running  state = "running"
	stopping state = "stopping"
	exited   state = "exited"

	pausing     state = "pausing"
	paused      state = "paused"
	resuming    state = "resuming"
	rollingBack state = "rolling_back"

	// waiting is one that no create has asked for yet.
	waiting state = "waiting"
)

const (
	// guestPath is where every template carries the guest.
	guestPath = "/.paddock/guest"
	// maxPIDs bounds the runtime's own processes and threads; each process
	// inside takes several. A sandbox that meets it ends, whole.
	maxPIDs = 8192
	// minMem is twice what the runtime and the guest need to start at all.
	minMem      = 48 << 20
	minWritable = 1 << 20
)

// instance is one sandbox on this host.
type instance struct {
	id    string
	box   runtime.Sandbox
	group *cgroup.Group
	guest *guestClient
	alive context.Context // ends when the sandbox stops running
	still context.CancelFunc
	made  chan struct{} // closed when the create ended, either way
	gone  chan struct{} // closed when nothing of it is left
	abort context.CancelCauseFunc

	// Guarded by Cubelet.mu.
	entry   entry
	state   state
	reason  string
	failed  error // why the create failed
	steps   map[string]time.Duration
	waiting int       // callers that wait for the create
	ending  bool      // somebody removes it
	charged bool      // it holds its resources
	built   bool      // its guest answers
	next    *instance // its life after this one

	// life is held by whoever makes or unmakes the instance.
	life    sync.Mutex
	ahead   *instance // the one that waited for this, until it is made of it
	from    *origin   // what it begins with; nil: its template
	mounted bool
}

// Why a create is given up.
var (
	errDeleted   = errors.New("it was deleted while it started")
	errAbandoned = errors.New("every caller went away")
	errStopping  = errors.New("the cubelet stops")
)

func (c *Cubelet) newInstance(e entry) *instance {
	s := &instance{
		id: e.ID, entry: e, group: c.cgroups.Group(e.box()), guest: newGuestClient(e.Network.IP, e.AccessToken),
		state: starting, steps: map[string]time.Duration{}, charged: true,
		made: make(chan struct{}), gone: make(chan struct{}), abort: func(error) {},
	}
	s.box = c.boxOf(e, s.group)
	s.alive, s.still = context.WithCancel(context.Background())
	return s
}

// boxOf says what the runtime shall run for e.
func (c *Cubelet) boxOf(e entry, group *cgroup.Group) runtime.Sandbox {
	dir := c.journal.path(e.box())
	return runtime.Sandbox{
		ID: e.box(), Dir: filepath.Join(dir, "runtime"), NetNS: e.Network.Path(), WritableBytes: e.Writable, Hostname: e.Hostname,
		Args: []string{guestPath}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Log: filepath.Join(dir, "log"), Files: files(e), Join: group.Command, OpenFiles: e.OpenFiles,
	}
}

// files are those that an image cannot know.
func files(e entry) []runtime.File {
	hosts := fmt.Sprintf("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n%s\t%s\n", e.Network.IP, e.Hostname)
	return []runtime.File{
		{Path: "etc", Mode: 0o755, Dir: true},
		{Path: "etc/hostname", Mode: 0o644, Data: []byte(e.Hostname + "\n")},
		{Path: "etc/hosts", Mode: 0o644, Data: []byte(hosts)},
		{Path: "etc/resolv.conf", Mode: 0o644, Data: []byte(resolvConf(e, hostResolver))},
		// The runtime lays memory over an empty /tmp, which would not count
		// against the writable layer.
		{Path: "tmp", Mode: 0o1777, Dir: true},
		{Path: "tmp/.paddock", Mode: 0o755, Dir: true},
	}
}

// find returns a sandbox of this host.
func (c *Cubelet) find(id string) (*instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.live[id]
	if !ok {
		return nil, fault.New(fault.SandboxNotFound, "sandbox %q on host %s", id, c.cfg.Cubelet.NodeID)
	}
	return s, nil
}

// usable returns a sandbox that runs.
func (c *Cubelet) usable(id string) (*instance, error) {
	s, err := c.find(id)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.state != running {
		return nil, fault.New(fault.SandboxNotReady, "sandbox %s is %s %s", id, s.state, s.reason)
	}
	return s, nil
}

// during returns a context that ends with ctx, and with the sandbox: an answer
// of a guest that is no more would not come.
func (s *instance) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(s.alive, cancel)
	return ctx, func() { unhook(); cancel() }
}

// explain adds what the host knows when a guest does not answer.
func (c *Cubelet) explain(s *instance, err error) error {
	if err == nil || s.alive.Err() == nil && !errors.Is(err, fault.GuestUnreachable) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.state == running && s.entry.Kernel.Alive():
		return err
	case s.state == running:
		_, reason := deathOf(s)
		return fault.Wrap(fault.SandboxNotReady, err, "sandbox %s ended: %s", s.id, reason)
	}
	return fault.Wrap(fault.SandboxNotReady, err, "sandbox %s is %s: %s", s.id, s.state, s.reason)
}

func (c *Cubelet) usedLocked() host.Resources {
	var used host.Resources
	for _, s := range c.live {
		used = used.Add(s.holds())
	}
	for _, k := range c.snaps {
		used.DiskBytes += k.Bytes
	}
	return used
}

func show(r host.Resources) string {
	return fmt.Sprintf("%dm CPU, %d MiB memory, %d MiB disk, %d slots", r.MilliCPU, r.MemBytes>>20, r.DiskBytes>>20, r.Slots)
}
