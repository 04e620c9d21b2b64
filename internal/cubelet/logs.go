package cubelet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	logMax  = 1 << 20 // of one sandbox's log on disk
	logKept = logMax / 2
	// logLook is how often a log is looked at that is followed.
	logLook = 100 * time.Millisecond
)

// trimLog gives the beginning of a log that has grown too long back to the
// disk. The sandbox holds the file and appends to it, so that the beginning
// becomes a hole: no byte of the rest moves, and none that is written meanwhile
// is lost.
func trimLog(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && st.Blocks*512 > logMax {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size-logKept)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS) {
			err = f.Truncate(0)
		}
	}
	return errors.Join(err, f.Close())
}

// ReadLogs hands over what a sandbox's program and its runtime wrote: the last
// lines, or all that is kept when tail is 0. With follow it goes on until the
// sandbox stops running.
func (c *Cubelet) ReadLogs(ctx context.Context, id string, tail int, follow bool, send func([]byte) error) error {
	s, err := c.find(id)
	if err != nil {
		return err
	}
	if tail < 0 {
		return fault.New(fault.InvalidInput, "logs of sandbox %s: %d lines", id, tail)
	}
	c.mu.Lock()
	path := s.box.Log
	c.mu.Unlock()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was written yet
	}
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "log of sandbox %s", id)
	}
	defer f.Close()
	at, err := logStart(f, tail)
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "log of sandbox %s", id)
	}
	tick := time.NewTicker(logLook)
	defer tick.Stop()
	buffer := make([]byte, chunk)
	for last := !follow; ; {
		n, err := f.ReadAt(buffer, at)
		if n > 0 {
			if err := send(buffer[:n]); err != nil {
				return fault.Wrap(fault.CallCancelled, err, "logs of sandbox %s", id)
			}
			at += int64(n)
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fault.Wrap(fault.DataDir, err, "log of sandbox %s", id)
		}
		if last {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.alive.Done():
			last = true // what it wrote before its end comes still
		case <-tick.C:
			if info, err := f.Stat(); err == nil && info.Size() < at {
				at = 0 // it was cut
			}
		}
	}
}

// logStart is where the last lines begin, or the first whole line that is kept.
func logStart(f *os.File, tail int) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	end := info.Size()
	begin, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return end, nil // nothing is in it
	case err != nil:
		begin = 0
	}
	if begin > 0 { // in the middle of a line, or among zeroes of a half block
		b := make([]byte, min(chunk, end-begin))
		n, err := f.ReadAt(b, begin)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		begin += int64(bytes.IndexByte(b[:n], '\n') + 1)
	}
	if tail == 0 {
		return begin, nil
	}
	b := make([]byte, min(end-begin, 2*logMax))
	from := end - int64(len(b))
	n, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	b = b[:n]
	lines := 0
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] == '\n' && i < len(b)-1 {
			if lines++; lines == tail {
				return from + int64(i) + 1, nil
			}
		}
	}
	return from, nil
}
