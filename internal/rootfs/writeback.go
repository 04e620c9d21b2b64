package rootfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// writeback is how many bytes are written before the disk is told to begin.
const writeback = 32 << 20

// flusher lets the disk begin with an image while it is still being made, so
// that little is left to do at the end. It only hints: what it misses, fsync
// writes.
type flusher struct {
	dirty int64
	hint  chan *os.File
	ended chan struct{}
}

func newFlusher() *flusher {
	f := &flusher{hint: make(chan *os.File, 1), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for file := range f.hint {
			_ = unix.SyncFileRange(int(file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE) // only a hint
		}
	}()
	return f
}

// wrote notes that so many bytes more are in the file.
func (f *flusher) wrote(file *os.File, n int64) {
	if f.dirty += n; f.dirty < writeback {
		return
	}
	select {
	case f.hint <- file:
		f.dirty = 0
	default: // the disk is busy with what it was told
	}
}

// stop waits until the file is no longer in use.
func (f *flusher) stop() {
	close(f.hint)
	<-f.ended
}
