package cubelet

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/paddock-dev/paddock/internal/cubelet/layer"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

// ExportRoot writes the whole root of a sandbox, or of a snapshot, as one tar
// archive: its template with all that it changed. What the platform itself puts
// into every root is left out. A sandbox that runs stands still only while its
// changes are taken.
func (c *Cubelet) ExportRoot(ctx context.Context, sandboxID, snapshotID string, w io.Writer) (err error) {
	draft := filepath.Join(c.dir, "snapshots", id.New("export-")+unfinished)
	artifact, err := c.changes(ctx, sandboxID, snapshotID, draft)
	defer func() {
		if late := os.Remove(draft); late != nil && !errors.Is(late, os.ErrNotExist) {
			err = errors.Join(err, late)
		}
	}()
	if err != nil {
		return err
	}
	dir, err := c.mounts.Acquire(artifact, c.images.Path(artifact))
	if err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "artifact %s", artifact)
	}
	defer func() { err = errors.Join(err, c.mounts.Release(artifact)) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "artifact %s", artifact)
	}
	defer root.Close()
	out := bufio.NewWriterSize(w, chunk)
	if err := layer.Flatten(ctx, out, root, draft, ours); err != nil {
		return fault.Wrap(fault.RuntimeFailed, err, "root over artifact %s", artifact)
	}
	return out.Flush()
}

// ours reports whether a name is the platform's, and no part of a root.
func ours(name string) bool {
	return name == ".paddock" || strings.HasPrefix(name, ".paddock/") || name == "tmp/.paddock" || strings.HasPrefix(name, "tmp/.paddock/")
}

// changes puts the layer of a sandbox or snapshot at path, and returns the
// artifact that it is over.
func (c *Cubelet) changes(ctx context.Context, sandboxID, snapshotID, path string) (artifact string, err error) {
	if snapshotID != "" {
		c.mu.Lock()
		k, ok := c.snaps[snapshotID]
		ok = ok && k.whole()
		if ok {
			err = os.Link(filepath.Join(c.snapshotPath(k.ID), layerFile), path)
			artifact = k.ArtifactID
		}
		c.mu.Unlock()
		switch {
		case !ok:
			return "", fault.New(fault.SnapshotNotFound, "snapshot %q on host %s", snapshotID, c.cfg.Cubelet.NodeID)
		case err != nil:
			return "", fault.Wrap(fault.DataDir, err, "layer of snapshot %s", snapshotID)
		}
		return artifact, nil
	}
	s, err := c.find(sandboxID)
	if err != nil {
		return "", err
	}
	s.life.Lock()
	defer s.life.Unlock()
	c.mu.Lock()
	e, is, ending := s.entry, s.state, s.ending || s.next != nil
	c.mu.Unlock()
	differ, ok := c.driver.(runtime.Differ)
	switch {
	case ending:
		return "", fault.New(fault.SandboxGone, "sandbox %s went on to another life, or ends", s.id)
	case is == paused:
		err = os.Link(filepath.Join(c.journal.path(s.box.ID), e.Kept.Dir, layerFile), path)
	case is != running:
		return "", fault.New(fault.SandboxNotReady, "sandbox %s is %s %s", s.id, is, s.reason)
	case !ok:
		return "", fault.New(fault.Unsupported, "sandbox %s: its runtime does not tell what it changed", s.id)
	default:
		err = c.whileStill(ctx, s, func(ctx context.Context) error { return differ.Diff(ctx, s.box.ID, path) })
	}
	if err != nil {
		return "", fault.Wrap(fault.RuntimeFailed, err, "changes of sandbox %s", s.id)
	}
	return e.ArtifactID, nil
}

// whileStill does something to a sandbox that is frozen meanwhile. The caller
// has its life.
func (c *Cubelet) whileStill(ctx context.Context, s *instance, do func(context.Context) error) error {
	freezer, ok := c.driver.(runtime.Freezer)
	if !ok {
		return do(ctx)
	}
	ctx, cancel := s.during(ctx)
	defer cancel()
	err := freezer.Freeze(ctx, s.box.ID)
	if err == nil {
		err = do(ctx)
	}
	return errors.Join(err, c.thaw(ctx, s))
}
