package guest

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

// openTerminal returns the two ends of a new terminal of the given size: the
// near one for us, which can be given deadlines, and the far one for a child.
func openTerminal(size *envdpb.PTY_Size) (near *os.File, far int, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, err
	}
	near = os.NewFile(uintptr(fd), "ptmx")
	defer func() {
		if err != nil {
			_ = near.Close() // the first failure is told
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return near, -1, err
	}
	number, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		return near, -1, err
	}
	if err := resize(near, size); err != nil {
		return near, -1, err
	}
	far, err = unix.Open("/dev/pts/"+strconv.FormatUint(uint64(number), 10), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	return near, far, err
}

// resize tells a terminal its size; its foreground processes get SIGWINCH.
func resize(near *os.File, size *envdpb.PTY_Size) error {
	const largest = 1<<16 - 1
	rows, cols := size.GetRows(), size.GetCols()
	if rows > largest || cols > largest {
		return badInput("a terminal of %d rows and %d columns is too large", rows, cols)
	}
	raw, err := near.SyscallConn()
	if err != nil {
		return err
	}
	var told error
	err = raw.Control(func(fd uintptr) {
		told = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(cols)})
	})
	if err != nil {
		return err
	}
	return told
}
