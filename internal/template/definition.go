package template

import (
	"time"

	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
)

// State is where a template stands.
type State string

// The states of a template.
const (
	Creating       State = "creating"
	Ready          State = "ready"
	PartiallyReady State = "partially_ready"
	Failed         State = "failed"
	Deleting       State = "deleting"
	Gone           State = "gone"
)

// Event is what happened to a template.
type Event string

// The events of a template. OnLost is what a sweep raises for a template whose
// job ended without a word.
const (
	OnAllReady    Event = "all_ready"
	OnSomeReady   Event = "some_ready"
	OnNoneReady   Event = "none_ready"
	OnLost        Event = "lost"
	OnDeleteAsked Event = "delete_asked"
	OnRemoved     Event = "removed"
)

// Definitions is the life of a template. Deleting wins over everything.
var Definitions = fsm.Must(fsm.Spec[State, Event, fsm.None]{
	Name:    "template",
	Initial: Creating,
	States:  []State{Creating, Ready, PartiallyReady, Failed, Deleting, Gone},
	Final:   []State{Gone},
	Rules: []fsm.Rule[State, Event]{
		{On: OnAllReady, From: []State{Creating, PartiallyReady, Ready, Failed}, To: Ready},
		{On: OnSomeReady, From: []State{Creating, PartiallyReady, Ready, Failed}, To: PartiallyReady},
		{On: OnNoneReady, From: []State{Creating, PartiallyReady, Ready, Failed}, To: Failed},
		{On: OnLost, From: []State{Creating}, To: Failed, Why: "its job ended without a word"},
		{On: OnDeleteAsked, From: []State{Creating, Ready, PartiallyReady, Failed, Deleting}, To: Deleting},
		{On: OnRemoved, From: []State{Deleting}, To: Gone, Why: "the row goes with it"},
	},
})

// Usable reports whether sandboxes may be made from a template in state s.
func (s State) Usable() bool { return s == Ready || s == PartiallyReady }

// Definition is what sandboxes are made from.
type Definition struct {
	ID           ID
	Alias        string
	InstanceType string
	State        State
	Version      int64
	ArtifactID   ArtifactID
	JobID        JobID
	ImageRef     string
	Digest       string
	Request      []byte // the create request stored with the template, as JSON
	Error        string
	CreatedAt    time.Time
	ChangedAt    time.Time
}

// ReplicaState is where a replica stands.
type ReplicaState string

// The states of a replica. A row begins in pending, which counts as not clean,
// so that a crash leaves it pessimistic.
const (
	ReplicaPending  ReplicaState = "pending"
	ReplicaReady    ReplicaState = "ready"
	ReplicaFailed   ReplicaState = "failed"
	ReplicaCleaning ReplicaState = "cleaning"
	ReplicaGone     ReplicaState = "gone"
)

// ReplicaEvent is what happened to a replica.
type ReplicaEvent string

// The events of a replica.
const (
	OnReplicaHeld       ReplicaEvent = "held"
	OnReplicaFailed     ReplicaEvent = "failed"
	OnReplicaRetried    ReplicaEvent = "retried"
	OnReplicaCleanAsked ReplicaEvent = "clean_asked"
	OnReplicaCleaned    ReplicaEvent = "cleaned"
)

// Replicas is the life of a replica.
var Replicas = fsm.Must(fsm.Spec[ReplicaState, ReplicaEvent, fsm.None]{
	Name:    "replica",
	Initial: ReplicaPending,
	States:  []ReplicaState{ReplicaPending, ReplicaReady, ReplicaFailed, ReplicaCleaning, ReplicaGone},
	Final:   []ReplicaState{ReplicaGone},
	Rules: []fsm.Rule[ReplicaState, ReplicaEvent]{
		{On: OnReplicaHeld, From: []ReplicaState{ReplicaPending, ReplicaReady}, To: ReplicaReady, Why: "the host verified the bytes"},
		{On: OnReplicaFailed, From: []ReplicaState{ReplicaPending, ReplicaReady, ReplicaFailed}, To: ReplicaFailed},
		{On: OnReplicaRetried, From: []ReplicaState{ReplicaFailed, ReplicaPending}, To: ReplicaPending},
		{On: OnReplicaCleanAsked, From: []ReplicaState{ReplicaPending, ReplicaReady, ReplicaFailed, ReplicaCleaning}, To: ReplicaCleaning},
		{On: OnReplicaCleaned, From: []ReplicaState{ReplicaCleaning}, To: ReplicaGone, Why: "the row goes with it"},
	},
})

// Replica is a template made ready on one host.
type Replica struct {
	TemplateID ID
	HostID     host.ID
	State      ReplicaState
	Version    int64
	ArtifactID ArtifactID
	JobID      JobID
	Phase      Phase // what a pending one is at, and what a failed one failed at
	Error      string
	CreatedAt  time.Time
	ChangedAt  time.Time
}

// Spec is everything that a template promises to its sandboxes. Two requests
// with equal Specs ask for the same template.
type Spec struct {
	ImageDigest       string
	GuestSHA256       string
	CASHA256          string
	WritableLayerSize string
	ExposedPorts      string // sorted, joined by ':'
	InstanceType      string
	NetworkType       string
	Overrides         string // container overrides as canonical JSON
}

// SpecFingerprint returns the sha256, in hex, that names s (spec 3.2 step 3).
func SpecFingerprint(s Spec) string {
	return fingerprint("spec", s.ImageDigest, s.GuestSHA256, s.CASHA256, s.WritableLayerSize, s.ExposedPorts, s.InstanceType, s.NetworkType, s.Overrides)
}
