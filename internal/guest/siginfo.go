package guest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// pidOf returns the child that waitid filled into info. The library leaves the
// union of siginfo_t opaque; on Linux si_pid is its first field, after three
// ints that 64-bit machines pad to 16 bytes.
func pidOf(info *unix.Siginfo) int32 {
	return *(*int32)(unsafe.Add(unsafe.Pointer(info), 16))
}
