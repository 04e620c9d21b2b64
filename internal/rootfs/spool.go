package rootfs

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/platform/fail"
)

// punch is how much of a spool is read before its room is given back.
const punch = 16 << 20

// spool is a file without a name that one goroutine appends to and another
// reads from its start. What was read gives its room back.
type spool struct {
	file    atomic.Pointer[os.File]
	written atomic.Int64
	punched int64 // of the reader
}

// write appends b. The file is made in dir when it is first needed.
func (s *spool) write(dir string, b []byte) error {
	f := s.file.Load()
	if f == nil {
		if err := fail.Point("rootfs.spool"); err != nil {
			return err
		}
		var err error
		if f, err = openSpool(dir); err != nil {
			return diskFault(err, dir)
		}
		s.file.Store(f)
	}
	at := s.written.Load()
	if _, err := f.WriteAt(b, at); err != nil {
		return diskFault(err, dir)
	}
	s.written.Store(at + int64(len(b)))
	return nil
}

// openSpool makes a file that is gone with the process.
func openSpool(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), dir+"/spool"), nil
	}
	f, err := os.CreateTemp(dir, "spool-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // it was not used
		return nil, err
	}
	return f, nil
}

// read reads what was written at off, or nothing when the reader has caught up.
func (s *spool) read(p []byte, off int64) (int, error) {
	n := min(int64(len(p)), s.written.Load()-off)
	if n == 0 {
		return 0, nil
	}
	f := s.file.Load()
	m, err := f.ReadAt(p[:n], off)
	if m < int(n) {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return m, fmt.Errorf("read a spool at %d: %w", off, err)
	}
	if done := off &^ (punch - 1); done > s.punched {
		// Where the file system cannot, the room comes back when the build ends.
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, s.punched, done-s.punched)
		s.punched = done
	}
	return m, nil
}

func (s *spool) close() error {
	if f := s.file.Load(); f != nil {
		return f.Close()
	}
	return nil
}
