package sandbox

import (
	"time"

	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/template"
)

// Generation counts the lives of a sandbox: it rises with each pause, resume
// and rollback, in the transaction that asks for it. A host does nothing for a
// generation below the highest that it has met, so that a command that was long
// on its way changes nothing.
type Generation int64

// OnTimeout is what becomes of a sandbox that nobody used for its time.
type OnTimeout string

// What can become of it.
const (
	Kill  OnTimeout = "kill"
	Pause OnTimeout = "pause"
)

// Life is what of a sandbox may change while it lives.
type Life struct {
	Generation Generation
	// Timeout is how long nobody may use it; zero: for ever. Sandbox.ExpiresAt
	// moves on with each use.
	Timeout    time.Duration
	OnTimeout  OnTimeout
	AutoResume bool // traffic wakes it

	Driver     string     // the runtime; empty until its host said so
	Snapshot   SnapshotID // that it began with; empty: none
	WithMemory bool       // it is kept with its memory
	KeptBytes  int64      // on the disk of its host while it is paused

	// Network is what it may reach and which ports others may, as JSON of the
	// wire; Revision counts its changes.
	Network  []byte
	Revision int64

	AccessToken  string // what its guest asks for; empty: nothing
	TrafficToken string // what the proxy asks for; empty: nothing

	Wish Wish
}

// Wish is what a sandbox in a passing state is to become, beside the state.
type Wish struct {
	Memory   bool       `json:"memory,omitempty"`   // kept with its memory, or not at all
	Snapshot SnapshotID `json:"snapshot,omitempty"` // whose state it is given
	Timeout  bool       `json:"timeout,omitempty"`  // nobody asked: its time is up
	Tries    int        `json:"tries,omitempty"`    // pauses in a row that were due and failed
}

// SnapshotID names a snapshot. It is made by the master: SnapshotPrefix and 24
// hex digits.
type SnapshotID string

// SnapshotPrefix begins every snapshot's id. No template's id or alias does.
const SnapshotPrefix = "snap-"

// SnapshotState is where a snapshot stands.
type SnapshotState string

// The states of a snapshot.
const (
	SnapCreating SnapshotState = "creating"
	SnapReady    SnapshotState = "ready"
	SnapFailed   SnapshotState = "failed"
	SnapDeleting SnapshotState = "deleting"
	SnapGone     SnapshotState = "gone"
)

// SnapshotEvent is what happened to a snapshot.
type SnapshotEvent string

// The events of a snapshot.
const (
	OnSnapKept        SnapshotEvent = "kept"
	OnSnapFailed      SnapshotEvent = "failed"
	OnSnapDeleteAsked SnapshotEvent = "delete_asked"
	OnSnapRemoved     SnapshotEvent = "removed"
)

// SnapshotMachine is the life of a snapshot. What its host may have of a failed
// one is removed on the way to gone, as of any other.
var SnapshotMachine = fsm.Must(fsm.Spec[SnapshotState, SnapshotEvent, fsm.None]{
	Name:    "snapshot",
	Initial: SnapCreating,
	States:  []SnapshotState{SnapCreating, SnapReady, SnapFailed, SnapDeleting, SnapGone},
	Final:   []SnapshotState{SnapGone},
	Rules: []fsm.Rule[SnapshotState, SnapshotEvent]{
		{On: OnSnapKept, From: []SnapshotState{SnapCreating}, To: SnapReady},
		{On: OnSnapFailed, From: []SnapshotState{SnapCreating, SnapReady}, To: SnapFailed, Why: "its host could not make it, or has lost it"},
		{On: OnSnapDeleteAsked, From: []SnapshotState{SnapCreating, SnapReady, SnapFailed, SnapDeleting}, To: SnapDeleting},
		{On: OnSnapRemoved, From: []SnapshotState{SnapDeleting}, To: SnapGone},
	},
})

// Snapshot is the state of a sandbox at one moment, kept by one host, as a row.
type Snapshot struct {
	ID         SnapshotID
	Name       string // of the user's choice; need not be unique
	SandboxID  ID     // that it was taken of, which may be gone
	TemplateID template.ID
	ArtifactID template.ArtifactID
	HostID     host.ID
	State      SnapshotState
	Version    int64
	Driver     string
	WithMemory bool
	Bytes      int64
	Request    []byte // of the sandbox, expanded, as JSON: what one begins with that is made of it
	Error      string
	ExpiresAt  time.Time // when it is deleted by itself; zero: never
	CreatedAt  time.Time
	ChangedAt  time.Time
}
