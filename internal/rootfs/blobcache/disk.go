package blobcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
)

// writeback is how many bytes are written before the disk is told to begin
// with them, so that the sync at the end has little left to do.
const writeback = 8 << 20

// bring returns the layer's file, locked as a pin, and fetches it when it is
// not there.
func (c *Cache) bring(ctx context.Context, k key, fetch Fetch) (*os.File, error) {
	part, have, err := c.claim(ctx, k)
	if have != nil || err != nil {
		return have, c.diskFault(err)
	}
	if err := c.fill(ctx, part, k, fetch); err != nil {
		return nil, errors.Join(err, removeIfIn(part, part.Name()), part.Close())
	}
	return part, nil
}

// claim returns the layer if it is there, else an empty file to write it to,
// which is locked: when another process fetches the layer it waits for that.
func (c *Cache) claim(ctx context.Context, k key) (part, have *os.File, err error) {
	for wait := pollFirst; ; wait = min(2*wait, pollMost) {
		if have, err := c.have(ctx, k); have != nil || err != nil {
			return nil, have, err
		}
		part, err := os.OpenFile(c.partial(k.hex), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, nil, c.diskFault(err)
		}
		err = fail.Point("blobcache.opened")
		got := false
		if err == nil {
			got, err = tryLock(part, unix.LOCK_EX)
		}
		if err == nil && got {
			// What was opened may have become the layer, or be gone.
			got, err = inPlace(part, part.Name())
		}
		if err == nil && got {
			return part, nil, c.restart(part)
		}
		if err = errors.Join(err, part.Close()); err == nil {
			err = pause(ctx, wait)
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// restart drops what a process that died has written.
func (c *Cache) restart(part *os.File) error {
	if err := errors.Join(part.Truncate(0), fail.Point("blobcache.claimed")); err != nil {
		return errors.Join(c.diskFault(err), removeIfIn(part, part.Name()), part.Close())
	}
	return nil
}

// have returns the complete layer with a lock that keeps it, or nil.
func (c *Cache) have(ctx context.Context, k key) (*os.File, error) {
	f, err := os.OpenFile(c.blob(k.hex), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, c.diskFault(err)
	}
	good, err := c.keep(ctx, f, k)
	if err != nil || !good {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// keep locks an opened layer. False: it was evicted meanwhile, or is damaged
// and was thrown out.
func (c *Cache) keep(ctx context.Context, f *os.File, k key) (bool, error) {
	if err := lock(ctx, f, unix.LOCK_SH); err != nil {
		return false, err
	}
	if in, err := inPlace(f, c.blob(k.hex)); err != nil || !in {
		return false, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if info.Mode().IsRegular() && info.Size() == k.size {
		return true, nil
	}
	// Either the file was cut short, or who asks is wrong about the size.
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, info.Size())); err == nil && hex.EncodeToString(h.Sum(nil)) == k.hex {
		return false, fault.New(fault.LayerDigest, "layer %s has %d bytes, its manifest says %d", k.digest(), info.Size(), k.size)
	}
	c.log.Warn("threw out a damaged layer", "digest", k.digest())
	return false, removeIfIn(f, c.blob(k.hex))
}

// fill fetches the layer into its partial file and makes that the layer. The
// lock stays, weakened to that of a pin.
func (c *Cache) fill(ctx context.Context, part *os.File, k key, fetch Fetch) error {
	if err := c.reserve(ctx, part, k.size); err != nil {
		return err
	}
	w := &writer{file: part, key: k, sum: sha256.New()}
	err := fetch(ctx, w)
	if w.err != nil { // a fetch may have hidden it behind words of its own
		err = c.diskFault(w.err)
	}
	if err == nil {
		err = w.verdict()
	}
	if err != nil {
		return err
	}
	if err := fail.Point("blobcache.written"); err != nil {
		return err
	}
	if err := part.Sync(); err != nil {
		return c.diskFault(err)
	}
	if err := fail.Point("blobcache.synced"); err != nil {
		return err
	}
	if err := os.Rename(part.Name(), c.blob(k.hex)); err != nil {
		return c.diskFault(err)
	}
	if err := fail.Point("blobcache.renamed"); err != nil {
		return err
	}
	if err := syncDir(filepath.Join(c.dir, blobDir)); err != nil {
		return c.diskFault(err)
	}
	return c.diskFault(lock(ctx, part, unix.LOCK_SH))
}

// writer takes the layer's bytes, in order, and no more than there should be.
type writer struct {
	file *os.File
	key  key
	sum  hash.Hash
	at   int64
	told int64 // up to where the disk was told to begin
	err  error
}

func (w *writer) Write(p []byte) (int, error) {
	if w.err == nil && int64(len(p)) > w.key.size-w.at {
		w.err = fault.New(fault.LayerDigest, "layer %s is larger than the %d bytes that its manifest says", w.key.digest(), w.key.size)
	}
	if w.err == nil {
		w.err = fail.Point("blobcache.write")
	}
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.file.WriteAt(p, w.at)
	w.sum.Write(p[:n])
	w.at += int64(n)
	w.err = err
	if w.at-w.told >= writeback {
		// Advice only: the sync at the end is what counts.
		_ = unix.SyncFileRange(int(w.file.Fd()), w.told, w.at-w.told, unix.SYNC_FILE_RANGE_WRITE)
		w.told = w.at
	}
	return n, err
}

func (w *writer) verdict() error {
	switch sum := hex.EncodeToString(w.sum.Sum(nil)); {
	case w.at != w.key.size:
		return fault.New(fault.LayerDigest, "layer %s ends after %d bytes, its manifest says %d", w.key.digest(), w.at, w.key.size)
	case sum != w.key.hex:
		return fault.New(fault.LayerDigest, "layer %s: its bytes have sha256:%s", w.key.digest(), sum)
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// diskFault gives a failure of the disk its code. Others keep theirs.
func (c *Cache) diskFault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return fault.Wrap(fault.DiskFull, err, "layer cache %s", c.dir)
	case fault.Of(err) != fault.Bug:
		return err
	}
	return fault.Wrap(fault.DataDir, err, "layer cache %s", c.dir)
}
