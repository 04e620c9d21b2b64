// Package sandbox holds the rules of layer 2: what a sandbox is, what it may
// become, and what a request for one means.
//
// A sandbox has one owner host and one state machine; only proof ends it:
// "cannot tell" is never "gone". This package must never do I/O, read a clock,
// or know a wire word.
package sandbox

import (
	"time"

	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/template"
)

// ID names a sandbox. It is made by the master, has one length (the runtime
// matches ids by prefix) and fits a host name: i and 24 hex digits.
type ID string

// IDPrefix begins every sandbox id.
const IDPrefix = "i"

// State is where a sandbox stands.
type State string

// The states of a sandbox.
const (
	Allocating  State = "allocating"
	Starting    State = "starting"
	Running     State = "running"
	Pausing     State = "pausing"
	Paused      State = "paused"
	Resuming    State = "resuming"
	RollingBack State = "rolling_back"
	Terminating State = "terminating"
	Terminated  State = "terminated"
)

// Event is what happened to a sandbox; a wish ends in _asked.
type Event string

// The events of a sandbox.
const (
	OnCharged       Event = "charged"
	OnBounced       Event = "bounced"
	OnStarted       Event = "started"
	OnPauseAsked    Event = "pause_asked"
	OnPaused        Event = "paused"
	OnPauseVoid     Event = "pause_void"
	OnWakeAsked     Event = "wake_asked"
	OnResumed       Event = "resumed"
	OnWakeVoid      Event = "wake_void"
	OnRollbackAsked Event = "rollback_asked"
	OnRolledBack    Event = "rolled_back"
	OnRollbackVoid  Event = "rollback_void"
	OnRollbackKept  Event = "rollback_kept"
	OnEndAsked      Event = "end_asked"
	OnGone          Event = "gone"
)

// Machine is the life of a sandbox. Terminating wins over everything, and only
// proof ends it.
var Machine = fsm.Must(fsm.Spec[State, Event, fsm.None]{
	Name:    "sandbox",
	Initial: Allocating,
	States:  []State{Allocating, Starting, Running, Pausing, Paused, Resuming, RollingBack, Terminating, Terminated},
	Final:   []State{Terminated},
	Rules: []fsm.Rule[State, Event]{
		{On: OnCharged, From: []State{Allocating}, To: Starting, Why: "a host was chosen"},
		{On: OnBounced, From: []State{Starting}, To: Allocating, Why: "another host may do"},
		{On: OnStarted, From: []State{Starting}, To: Running},
		{On: OnPauseAsked, From: []State{Running}, To: Pausing},
		{On: OnPaused, From: []State{Pausing}, To: Paused},
		{On: OnPauseVoid, From: []State{Pausing}, To: Running, Why: "it runs as before"},
		{On: OnWakeAsked, From: []State{Paused}, To: Resuming, Why: "asked, or traffic came"},
		{On: OnResumed, From: []State{Resuming}, To: Running},
		{On: OnWakeVoid, From: []State{Resuming}, To: Paused, Why: "it is kept as before"},
		{On: OnRollbackAsked, From: []State{Running}, To: RollingBack},
		{On: OnRolledBack, From: []State{RollingBack}, To: Running},
		{On: OnRollbackVoid, From: []State{RollingBack}, To: Running, Why: "it runs as before"},
		{On: OnRollbackKept, From: []State{RollingBack}, To: Paused, Why: "it has the earlier state, and could not go on with it"},
		{On: OnEndAsked, From: []State{Allocating, Starting, Running, Pausing, Paused, Resuming, RollingBack, Terminating}, To: Terminating, Why: "asked, or a passing state lasted too long"},
		{On: OnGone, From: []State{Terminating}, To: Terminated},
	},
})

// Sandbox is one running instance, as a row.
type Sandbox struct {
	ID         ID
	TemplateID template.ID
	HostID     host.ID // empty until charged
	State      State
	Version    int64
	Resources  host.Resources // what it takes of its host
	IP         string         // its address on its host; empty until running
	Metadata   map[string]string
	Life       Life
	Request    []byte    // the expanded request as JSON
	Reason     string    // why it ends or ended: request, timeout, orphaned, failed, lost
	ExpiresAt  time.Time // when it is ended by itself; zero: never
	CreatedAt  time.Time
	ChangedAt  time.Time
}
