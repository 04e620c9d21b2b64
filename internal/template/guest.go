package template

import (
	"debug/elf"
	"io"

	"github.com/paddock-dev/paddock/internal/fault"
)

// GuestsHeld is how many agents of the largest size may wait in the memory of one
// process.
const GuestsHeld = 4

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// RoomForGuests reports whether agents of so many bytes together may wait in the
// memory of one process, when the largest has maxMiB.
func RoomForGuests(bytes, maxMiB int) bool { return bytes <= GuestsHeld*maxMiB<<20 }

// CheckGuest refuses what cannot be run as the agent of sandboxes on a machine of
// that architecture, as Go names it.
func CheckGuest(program io.ReaderAt, arch string) error {
	f, err := elf.NewFile(program)
	switch {
	case err != nil:
		return fault.Wrap(fault.InvalidInput, err, "envd: it is no program in the ELF format")
	case f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN:
		return fault.New(fault.InvalidInput, "envd: it is an ELF file of type %s, not a program", f.Type)
	case f.Machine != machines[arch]:
		return fault.New(fault.InvalidInput, "envd: it is a program for %s, the hosts are %s", f.Machine, arch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fault.New(fault.InvalidInput, "envd: it needs a loader and libraries, which images may lack: link it statically (CGO_ENABLED=0)")
		}
	}
	return nil
}
