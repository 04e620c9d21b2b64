package cubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubelet/durable"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
)

// What a directory of kept state has. The layer is all that was written; the
// memory has it once more, in the runtime's own form: a runtime of another
// version may not read that, and the layer is left then.
const (
	keptPrefix = "kept-"
	layerFile  = "layer.tar"
	memoryDir  = "memory"
	keptFile   = "kept.json" // comes last
	unfinished = ".tmp"
)

// kept is the state of a sandbox at one moment, on disk.
type kept struct {
	Dir        string `json:"dir,omitempty"` // in the box's directory
	WithMemory bool   `json:"with_memory"`
	Bytes      int64  `json:"bytes"`
	// Token is what the guest in that memory asks of callers.
	Token string `json:"token,omitempty"`
}

// keep writes the state of s into the directory at path, which appears whole
// or not at all. The sandbox is frozen meanwhile, and afterwards: thaw it.
func (c *Cubelet) keep(ctx context.Context, s *instance, path string, withMemory bool) (k kept, err error) {
	k = kept{Dir: filepath.Base(path), WithMemory: withMemory, Token: s.entry.AccessToken}
	freezer, _ := c.driver.(runtime.Freezer)
	differ, ok := c.driver.(runtime.Differ)
	checkpointer, can := c.driver.(runtime.Checkpointer)
	if freezer == nil || !ok || withMemory && !can {
		return k, fault.New(fault.Unsupported, "sandbox %s: its runtime cannot keep its memory; ask without it", s.id)
	}
	if err := c.roomToKeep(s, withMemory); err != nil {
		return k, err
	}
	draft := path + unfinished
	if err := errors.Join(os.RemoveAll(draft), os.RemoveAll(path), os.Mkdir(draft, 0o700)); err != nil {
		return k, fault.Wrap(fault.DataDir, err, "state of sandbox %s", s.id)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(draft))
		}
	}()
	if err := freezer.Freeze(ctx, s.box.ID); err != nil {
		return k, fault.Wrap(fault.RuntimeFailed, err, "freezing sandbox %s", s.id)
	}
	if err := differ.Diff(ctx, s.box.ID, filepath.Join(draft, layerFile)); err != nil {
		return k, fault.Wrap(fault.RuntimeFailed, err, "layer of sandbox %s", s.id)
	}
	if withMemory {
		dir := filepath.Join(draft, memoryDir)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return k, fault.Wrap(fault.DataDir, err, "memory of sandbox %s", s.id)
		}
		if err := checkpointer.Checkpoint(ctx, s.box.ID, dir, true); err != nil {
			return k, fault.Wrap(fault.RuntimeFailed, err, "memory of sandbox %s", s.id)
		}
	}
	return k, c.finish(&k, draft, path, &k)
}

// finish makes a draft last, with what is told of it, and gives it its name.
func (c *Cubelet) finish(k *kept, draft, path string, told any) (err error) {
	if k.Bytes, err = occupied(draft); err == nil {
		err = syncTree(draft)
	}
	var b []byte
	if err == nil {
		b, err = json.Marshal(told)
	}
	if err == nil {
		err = durable.Replace(filepath.Join(draft, keptFile), b)
	}
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "%s", path)
	}
	return nil
}

// readKept reads what is told of kept state that is whole.
func readKept(path string) (k kept, err error) {
	b, err := os.ReadFile(filepath.Join(path, keptFile))
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	return k, err
}

// roomToKeep refuses what the disk would not hold: as much as the sandbox may
// have written, and the memory that it has now.
func (c *Cubelet) roomToKeep(s *instance, withMemory bool) error {
	need := s.writtenBytes()
	if withMemory {
		need = 2*need + s.group.Usage().MemBytes
	}
	var st unix.Statfs_t
	if err := unix.Statfs(c.dir, &st); err != nil {
		return fault.Wrap(fault.DataDir, err, "%s", c.dir)
	}
	if free := int64(st.Bavail) * st.Bsize; free-minFree < need {
		return fault.New(fault.DiskFull, "sandbox %s: its state may take %d MiB, and %s has %d MiB left beside its reserve", s.id, need>>20, c.dir, (free-minFree)>>20)
	}
	return nil
}

// writtenBytes is what the sandbox has on disk of its own.
func (s *instance) writtenBytes() int64 {
	n, err := occupied(s.box.Dir)
	if err != nil {
		return s.entry.Writable
	}
	return n + heldBytes(s.entry.Kernel.PID, s.box.Dir)
}

// heldBytes is what a process has on disk below dir in files without a name:
// where the runtime's layers are, so that none outlives it.
func heldBytes(pid int, dir string) (n int64) {
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(fds)
	if err != nil {
		return 0 // it has ended
	}
	seen := map[uint64]bool{}
	for _, f := range names {
		path := filepath.Join(fds, f.Name())
		to, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(to, dir+"/") || !strings.HasSuffix(to, " (deleted)") {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			n += st.Blocks * 512
		}
	}
	return n
}

// occupied is what the files of a directory take of the disk.
func occupied(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // it was there a moment ago
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			n += st.Blocks * 512
		}
		return err
	})
	return n, err
}

// syncTree makes the files of a directory last.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

// share gives what is kept in from another place, without a copy: files of kept
// state are never written again.
func share(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Mkdir(filepath.Join(to, rel), 0o700)
		case rel == keptFile:
			return nil // it is another's word
		}
		return os.Link(path, filepath.Join(to, rel))
	})
}

// dropKept removes all kept state in the box of s but the one that is meant.
func (c *Cubelet) dropKept(s *instance, but string) error {
	dir := c.journal.path(s.box.ID)
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		if strings.HasPrefix(n.Name(), keptPrefix) && n.Name() != but {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, n.Name())))
		}
	}
	return errors.Join(errs...)
}

// keptPath is where the state of a life is kept.
func (c *Cubelet) keptPath(s *instance, generation int64) string {
	return filepath.Join(c.journal.path(s.box.ID), fmt.Sprintf("%s%d", keptPrefix, generation))
}

// thaw lets s go on. It must not stay frozen: one that cannot be thawed has
// ended when it returns an error.
func (c *Cubelet) thaw(ctx context.Context, s *instance) error {
	freezer, ok := c.driver.(runtime.Freezer)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	err := freezer.Thaw(ctx, s.box.ID)
	if err == nil || !s.entry.Kernel.Alive() {
		return nil
	}
	return errors.Join(fmt.Errorf("sandbox %s cannot go on: %w", s.id, err), s.group.Destroy(ctx))
}

// origin is what a sandbox begins with instead of its template alone.
type origin struct {
	path   string
	memory bool
	token  string // see kept.Token
}

func (o *origin) withMemory() bool { return o != nil && o.memory }
