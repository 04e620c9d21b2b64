package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
)

var (
	_ runtime.Freezer      = (*Driver)(nil)
	_ runtime.Checkpointer = (*Driver)(nil)
	_ runtime.Differ       = (*Driver)(nil)
)

// mendTime bounds what brings a sandbox out of a checkpoint that failed.
const mendTime = 10 * time.Second

// Freeze stops all processes of a sandbox: see runtime.Freezer.
func (d *Driver) Freeze(ctx context.Context, id string) error {
	if s, ok, err := d.read(id); err == nil && ok && s.Status == "paused" {
		return nil
	}
	return d.command(ctx, "pause", id)
}

// Thaw lets the processes of a sandbox go on: see runtime.Freezer.
func (d *Driver) Thaw(ctx context.Context, id string) error {
	if s, ok, err := d.read(id); err == nil && ok && s.Status == "running" {
		return nil
	}
	return d.command(ctx, "resume", id)
}

// command runs one command of the runtime's.
func (d *Driver) command(ctx context.Context, args ...string) error {
	var words bytes.Buffer
	c := exec.CommandContext(ctx, d.binary, append(d.common(), args...)...)
	c.Stdout, c.Stderr = &words, &words
	if err := c.Run(); err != nil {
		return fmt.Errorf("runsc %s: %w: %s", args[0], errors.Join(ctx.Err(), err), bytes.TrimSpace(words.Bytes()))
	}
	return nil
}

// Checkpoint keeps a sandbox with its memory: see runtime.Checkpointer.
func (d *Driver) Checkpoint(ctx context.Context, id, dir string, stay bool) error {
	// Zero pages are most of what an idle sandbox has committed.
	args := []string{"checkpoint", "-image-path", dir, "-exclude-committed-zero-pages"}
	if stay {
		args = append(args, "-leave-running")
	}
	err := d.command(ctx, append(args, id)...)
	if err != nil {
		return errors.Join(err, d.mend(ctx, id))
	}
	if stay {
		return nil
	}
	return d.kill(ctx, func(sandbox string) bool { return sandbox == id })
}

// mend brings a sandbox out of a checkpoint that failed or took too long. One
// that does not go on is ended: it must not stay stopped for ever.
func (d *Driver) mend(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mendTime)
	defer cancel()
	st, ok, err := d.Status(ctx, id)
	if err == nil && (!ok || !st.Process.Alive()) {
		return nil
	}
	// It may be stopped although its state says that it runs, so it is tried: a
	// program that starts proves that it is not.
	resumed := d.command(ctx, "resume", id)
	if _, err := d.Exec(ctx, id, runtime.Command{Args: []string{"/.paddock/none"}}); err == nil || ctx.Err() == nil && st.Process.Alive() && resumed == nil {
		return nil
	}
	return errors.Join(resumed, d.kill(context.WithoutCancel(ctx), func(sandbox string) bool { return sandbox == id }))
}

// Restore starts a sandbox as it was kept: see runtime.Checkpointer. It has the
// name, network, limits and log of s; its files are those that it had.
func (d *Driver) Restore(ctx context.Context, s runtime.Sandbox, dir string) (runtime.Process, error) {
	return d.run(ctx, s, "--restore-spec-validation=ignore", "restore", "-detach", "-image-path", dir, "-bundle", bundle(s), "-pid-file", pidFile(s), s.ID)
}

// Diff writes what a sandbox changed: see runtime.Differ.
func (d *Driver) Diff(ctx context.Context, id, path string) (err error) {
	raw := path + ".raw"
	defer func() {
		if late := os.Remove(raw); late != nil && !errors.Is(late, os.ErrNotExist) {
			err = errors.Join(err, late)
		}
	}()
	if err := d.command(ctx, "tar", "rootfs-upper", "-file", raw, id); err != nil {
		return err
	}
	in, err := os.Open(raw)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(toLayer(ctx, in, out), out.Close())
}
