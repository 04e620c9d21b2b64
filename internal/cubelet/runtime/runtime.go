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
	"strings"
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

// Freezer stops all processes of a sandbox where they are, and lets them go
// on. Both are idempotent. A driver has it when its sandboxes can be stopped in
// memory.
type Freezer interface {
	Freeze(ctx context.Context, id string) error
	Thaw(ctx context.Context, id string) error
}

// Checkpointer keeps sandboxes with their memory.
type Checkpointer interface {
	// Checkpoint writes the memory of a sandbox and all that it wrote into dir,
	// which exists and is empty. With stay it goes on afterwards, or is frozen as
	// before; else its processes have ended when the call returns, and Delete
	// removes the rest. A checkpoint that fails leaves the sandbox running, or
	// ended, never stopped; what is in dir then is of no use.
	Checkpoint(ctx context.Context, id, dir string, stay bool) error
	// Restore starts s as it was when dir was written, as Start does. dir stays
	// as it is: any number of sandboxes can be started from it.
	Restore(ctx context.Context, s Sandbox, dir string) (Process, error)
}

// Differ tells what a sandbox wrote.
type Differ interface {
	// Diff writes all that a sandbox changed over its RootFS into a tar file at
	// path, as OCI layers have it: a removed name is a whiteout. What is Laid is
	// left out. The sandbox may run, or be frozen. Sandbox.Layer takes such a file.
	Diff(ctx context.Context, id, path string) error
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
	Layer         string // tar of an earlier life's changes, laid over RootFS; empty: none
	Files         []File // put over RootFS and Layer before the start
	OpenFiles     uint64 // the limit of each process; 0: the driver's own
	Privileges    Privileges

	// Unnamed: its first program is to give it its hostname later, and is trusted
	// to give up the right to before it starts another.
	Unnamed bool

	Mounts []Mount // of the host, as its operator allows

	// Join returns a command that runs inside the sandbox's limits from its
	// first instruction.
	Join func(ctx context.Context, name string, args ...string) *exec.Cmd
}

// Privileges are what the programs of a sandbox may do.
type Privileges struct {
	Capabilities []string // as CAP_CHOWN; nil: the usual ones of containers
	NoNewPrivs   bool     // no program gains any by its file
	ReadOnlyRoot bool     // nothing but /tmp, /run and mounts can be written
}

// Mount is a directory of the host that a sandbox sees.
type Mount struct {
	Source   string // a directory of the host, without links in its path
	Target   string
	ReadOnly bool
}

// File is a small file, or a directory, that a sandbox finds at its start.
type File struct {
	Path string // without the leading slash
	Mode int64
	Data []byte
	Dir  bool
}

// Laid reports whether a path, without the leading slash, is one that the
// platform itself puts into every root: of the sandbox's life, not of its state.
func Laid(name string) bool {
	switch name {
	case "etc/hostname", "etc/hosts", "etc/resolv.conf":
		return true
	}
	return name == "tmp/.paddock" || strings.HasPrefix(name, "tmp/.paddock/")
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
