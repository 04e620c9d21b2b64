package cubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

// snapshot is the state of a sandbox at one moment that others can begin with,
// and the sandbox itself go back to. It outlives the sandbox.
type snapshot struct {
	kept
	ID         string         `json:"id"`
	SandboxID  string         `json:"sandbox_id"`
	TemplateID string         `json:"template_id"`
	ArtifactID string         `json:"artifact_id"`
	Resources  host.Resources `json:"resources"` // what one that begins with it needs at least
	Writable   int64          `json:"writable_bytes"`
	CreatedAt  time.Time      `json:"created_at"`

	// Guarded by Cubelet.mu.
	refs  int           // sandboxes that start with it
	gone  bool          // it is removed once there are none
	made  chan struct{} // closed when it is there, or was not made
	over  chan struct{} // closed when nothing of it is left
	wrong error         // why it was not made
}

var snapshotID = regexp.MustCompile(`^snap-[0-9a-f]{24}$`)

func (c *Cubelet) snapshotPath(id string) string { return filepath.Join(c.dir, "snapshots", id) }

func newSnapshot() *snapshot {
	return &snapshot{made: make(chan struct{}), over: make(chan struct{})}
}

// whole reports whether it can be begun with.
func (k *snapshot) whole() bool {
	select {
	case <-k.made:
		return k.wrong == nil && !k.gone
	default:
		return false
	}
}

// Snapshot keeps the state of a sandbox beside it. A running one stands still
// meanwhile. The same call again joins the first, or answers what it made.
func (c *Cubelet) Snapshot(ctx context.Context, id, sandboxID string, withMemory bool) (*snapshot, error) {
	if !snapshotID.MatchString(id) {
		return nil, fault.New(fault.InvalidInput, "%q is no snapshot's id", id)
	}
	c.mu.Lock()
	k, known := c.snaps[id]
	s, there := c.live[sandboxID]
	var err error
	switch {
	case known && (k.SandboxID != sandboxID || k.WithMemory != withMemory):
		err = fault.New(fault.Exists, "snapshot %s, of another request", id)
	case known && k.gone:
		err = fault.New(fault.SnapshotNotReady, "snapshot %s is being deleted", id)
	case known:
	case c.closing:
		err = fault.New(fault.HostUnreachable, "host %s stops", c.cfg.Cubelet.NodeID)
	case !there:
		err = fault.New(fault.SandboxNotFound, "sandbox %q on host %s", sandboxID, c.cfg.Cubelet.NodeID)
	case s.ending || s.state == exited:
		err = fault.New(fault.SandboxGone, "sandbox %s is %s: %s", s.id, s.state, s.reason)
	case s.state != running && s.state != paused:
		err = fault.New(fault.SandboxNotReady, "sandbox %s is %s", s.id, s.state)
	case s.state == paused && withMemory && !s.entry.Kept.WithMemory:
		err = fault.New(fault.Unsupported, "sandbox %s is kept without its memory", s.id)
	default:
		k = newSnapshot()
		k.ID, k.SandboxID, k.TemplateID, k.ArtifactID, k.WithMemory = id, s.id, s.entry.TemplateID, s.entry.ArtifactID, withMemory
		k.Resources, k.Writable, k.CreatedAt = s.entry.Resources, s.entry.Writable, time.Now().UTC()
		c.snaps[id] = k
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !known {
		c.work.Go(func() { c.takeSnapshot(ctx, s, k) })
	}
	select {
	case <-k.made:
		return k, k.wrong
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// takeSnapshot makes k of s. It goes on when the caller leaves, and ends with
// the sandbox.
func (c *Cubelet) takeSnapshot(ctx context.Context, s *instance, k *snapshot) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
	defer cancel()
	unhook := context.AfterFunc(c.base, cancel)
	defer unhook()
	made := *k // what others look at changes under the lock alone
	err := c.keepSnapshot(ctx, s, &made)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(k.made)
	if err == nil {
		k.kept = made.kept
		c.countLocked()
		c.tellSoon()
		return
	}
	if !errors.Is(err, fault.DiskFull) && !errors.Is(err, fault.Unsupported) && !errors.Is(err, fault.SandboxGone) {
		err = fault.Wrap(fault.SnapshotFailed, err, "snapshot %s of sandbox %s", k.ID, s.id)
	}
	k.wrong = err
	delete(c.snaps, k.ID)
	close(k.over)
	c.log.WarnContext(ctx, "snapshot was not made", slog.String("snapshot_id", k.ID), slog.String("sandbox_id", s.id), slog.String("error", err.Error()))
}

func (c *Cubelet) keepSnapshot(ctx context.Context, s *instance, k *snapshot) error {
	s.life.Lock()
	defer s.life.Unlock()
	c.mu.Lock()
	is, e, ending := s.state, s.entry, s.ending || s.next != nil
	c.mu.Unlock()
	path := c.snapshotPath(k.ID)
	switch {
	case ending:
		return fault.New(fault.SandboxGone, "sandbox %s went on to another life", s.id)
	case is == paused:
		return c.snapshotOfKept(k, filepath.Join(c.journal.path(s.box.ID), e.Kept.Dir), path, *e.Kept)
	case is != running:
		return fault.New(fault.SandboxNotReady, "sandbox %s is %s", s.id, is)
	}
	ctx, cancel := s.during(ctx)
	defer cancel()
	err := c.keepAs(ctx, s, k, path)
	if late := c.thaw(ctx, s); late != nil {
		err = errors.Join(err, late)
	}
	if err == nil {
		err = point(ctx, "cubelet.snapshot.confirm")
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// keepAs keeps the state of s in a draft first, which begins to be a snapshot
// when its word is in it.
func (c *Cubelet) keepAs(ctx context.Context, s *instance, k *snapshot, path string) error {
	draft := path + ".draft" + unfinished
	got, err := c.keep(ctx, s, draft, k.WithMemory)
	if err == nil {
		err = point(ctx, "cubelet.snapshot.kept")
	}
	if err == nil {
		k.Token = got.Token
		err = c.finish(&k.kept, draft, path, k)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(draft))
	}
	return err
}

// snapshotOfKept makes a snapshot of a paused sandbox, whose files it shares.
func (c *Cubelet) snapshotOfKept(k *snapshot, from, path string, has kept) error {
	draft := path + unfinished
	err := share(from, draft)
	if err == nil && !k.WithMemory {
		err = os.RemoveAll(filepath.Join(draft, memoryDir))
	}
	if err == nil {
		k.Token = has.Token
		err = c.finish(&k.kept, draft, path, k)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(draft))
	}
	return nil
}

// originLocked returns what the sandbox of e begins with; nil: its template.
func (c *Cubelet) originLocked(e entry) (*origin, error) {
	if e.Snapshot == "" {
		return nil, nil
	}
	k, ok := c.snaps[e.Snapshot]
	switch {
	case !ok:
		return nil, fault.New(fault.SnapshotNotFound, "snapshot %s on host %s", e.Snapshot, c.cfg.Cubelet.NodeID)
	case !k.whole():
		return nil, fault.New(fault.SnapshotNotReady, "snapshot %s", e.Snapshot)
	}
	if err := k.fits(e); err != nil {
		return nil, err
	}
	return &origin{path: c.snapshotPath(k.ID), memory: k.WithMemory, token: k.Token}, nil
}

// fits refuses a sandbox that could not have the state of k.
func (k *snapshot) fits(e entry) error {
	switch {
	case k.ArtifactID != e.ArtifactID:
		return fault.New(fault.InvalidInput, "snapshot %s is over artifact %s, and sandbox %s over %s", k.ID, k.ArtifactID, e.ID, e.ArtifactID)
	case e.Writable < k.Writable || k.WithMemory && e.Resources.MemBytes < k.Resources.MemBytes:
		return fault.New(fault.InvalidInput, "snapshot %s needs a writable layer of %d MiB and, with its memory, %d MiB of that; sandbox %s has %d and %d",
			k.ID, k.Writable>>20, k.Resources.MemBytes>>20, e.ID, e.Writable>>20, e.Resources.MemBytes>>20)
	}
	return nil
}

// begun gives back what s began with.
func (c *Cubelet) begun(s *instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.entry.Snapshot == "" || s.from == nil {
		return
	}
	if k, ok := c.snaps[s.entry.Snapshot]; ok {
		c.unrefLocked(k)
	}
}

func (c *Cubelet) unrefLocked(k *snapshot) {
	if k.refs--; k.refs == 0 && k.gone {
		c.work.Go(func() { c.eraseSnapshot(k) })
	}
}

// DeleteSnapshot removes a snapshot and returns when nothing of it is left.
// Sandboxes that start with it do so first. Absent is success.
func (c *Cubelet) DeleteSnapshot(ctx context.Context, id string) (existed bool, err error) {
	c.mu.Lock()
	k, ok := c.snaps[id]
	c.mu.Unlock()
	if !ok {
		return false, nil
	}
	select {
	case <-k.made:
	case <-ctx.Done():
		return true, ctx.Err()
	}
	c.mu.Lock()
	if k.wrong == nil && !k.gone {
		k.gone = true
		if k.refs == 0 {
			c.work.Go(func() { c.eraseSnapshot(k) })
		}
	}
	c.mu.Unlock()
	select {
	case <-k.over:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// eraseSnapshot removes the files of k. What is left when that fails, the next
// start removes: its word goes first.
func (c *Cubelet) eraseSnapshot(k *snapshot) {
	path := c.snapshotPath(k.ID)
	err := os.Rename(path, path+unfinished)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = os.RemoveAll(path + unfinished)
	}
	if err != nil {
		c.log.ErrorContext(c.base, "a snapshot's files are left until the next start", slog.String("snapshot_id", k.ID), slog.String("error", err.Error()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.snaps, k.ID)
	c.countLocked()
	close(k.over)
	c.tellSoon()
}

// Snapshots are all that are whole.
func (c *Cubelet) Snapshots() (list []*snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.snaps {
		if k.whole() {
			list = append(list, k)
		}
	}
	return list
}

// openSnapshots finds those that an earlier process made, and removes what it
// began.
func (c *Cubelet) openSnapshots() error {
	dir := filepath.Join(c.dir, "snapshots")
	names, err := os.ReadDir(dir)
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "snapshots")
	}
	for _, n := range names {
		path := filepath.Join(dir, n.Name())
		if strings.HasSuffix(path, unfinished) {
			if err := os.RemoveAll(path); err != nil {
				return fault.Wrap(fault.DataDir, err, "snapshots")
			}
			continue
		}
		k := newSnapshot()
		b, err := os.ReadFile(filepath.Join(path, keptFile))
		if err == nil {
			err = json.Unmarshal(b, k)
		}
		if err == nil && k.ID != n.Name() {
			err = fmt.Errorf("it names %q", k.ID)
		}
		if err != nil {
			return fault.Wrap(fault.DataDir, err, "snapshot %s: move it away, and the host starts without it", path)
		}
		close(k.made)
		c.snaps[k.ID] = k
	}
	return nil
}
