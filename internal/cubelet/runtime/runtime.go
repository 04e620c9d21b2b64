// Package runtime says what the cubelet asks of whatever runs its sandboxes.
//
// A driver runs what it is given and knows nothing of networks, limits or
// journals. Its suite is runtimetest. This package must never start a process
// itself, and never take a process for one that it knew by number alone.
package runtime

import (
	"context"
	"io"
	"os/exec"
)

// Driver is one runtime. Every call is safe for concurrent use with different
// ids, and bounded by its context.
type Driver interface {
	// Start starts s and returns the process that is its kernel. Its first
	// program may not have come far yet. A start that fails may leave things
	// behind, which Delete removes.
	Start(ctx context.Context, s Sandbox) (Process, error)
	// Exec runs one program in a sandbox and returns its exit status, by the
	// runtime's own means and without its guest.
	Exec(ctx context.Context, id string, c Command) (status int, err error)
	// Status tells of one sandbox; ok is false when the runtime knows none.
	Status(ctx context.Context, id string) (s Status, ok bool, err error)
	// List tells of every sandbox that the runtime has anything of.
	List(ctx context.Context) ([]Status, error)
	// Delete ends a sandbox by force and removes what the runtime has of it. A
	// sandbox that it does not know is success.
	Delete(ctx context.Context, id string) error
}

// Sandbox is what to run. Every path belongs to this sandbox alone, but
// RootFS, which is shared and is never written.
type Sandbox struct {
	ID            string
	Dir           string // for the bundle and the writable layer
	RootFS        string
	NetNS         string // file of the network namespace
	WritableBytes int64  // what may be written over RootFS in all
	Args          []string
	Env           []string
	Hostname      string
	Log           string // file that the runtime and the first program append to
	Files         []File // put over RootFS before the start
	OpenFiles     uint64 // the limit of each process; 0: the driver's own

	// Join returns a command that runs inside the sandbox's limits from its
	// first instruction.
	Join func(ctx context.Context, name string, args ...string) *exec.Cmd
}

// File is a small file, or a directory, that a sandbox finds at its start.
type File struct {
	Path string // without the leading slash
	Mode int64
	Data []byte
	Dir  bool
}

// Command is a program to run in a sandbox that runs.
type Command struct {
	Args   []string
	Stdout io.Writer // nil: nowhere
	Stderr io.Writer
}

// Status is what a runtime knows of a sandbox.
type Status struct {
	ID      string
	Process Process // of its kernel; zero when it has none yet
	Running bool
}
