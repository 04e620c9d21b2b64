package template

import (
	"time"

	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
)

// JobState is where a job stands. Three states are RUNNING on the wire, since a
// running job must remember what it is at: making its artifact, bringing it to
// hosts, or moving its bytes to another store.
type JobState string

// The states of a job.
const (
	JobQueued       JobState = "queued"
	JobBuilding     JobState = "building"
	JobBuilt        JobState = "built"
	JobDistributing JobState = "distributing"
	JobMigrating    JobState = "migrating"
	JobReady        JobState = "ready"
	JobFailed       JobState = "failed"
)

// JobEvent is what happened to a job.
type JobEvent string

// The events of a job. OnJobStalled is what a sweep raises, OnJobCancelled a
// user, OnJobReturned a builder that stops.
const (
	OnJobStarted   JobEvent = "started"
	OnJobReturned  JobEvent = "returned"
	OnJobBuilt     JobEvent = "built"
	OnJobResumed   JobEvent = "resumed"
	OnJobMoving    JobEvent = "moving"
	OnJobDone      JobEvent = "done"
	OnJobFailed    JobEvent = "failed"
	OnJobCancelled JobEvent = "cancelled"
	OnJobStalled   JobEvent = "stalled"
)

// Jobs is the life of a job. From every state it ends: by its own outcome, or
// by a sweep that has waited long enough.
var Jobs = fsm.Must(fsm.Spec[JobState, JobEvent, fsm.None]{
	Name:    "job",
	Initial: JobQueued,
	States:  []JobState{JobQueued, JobBuilding, JobBuilt, JobDistributing, JobMigrating, JobReady, JobFailed},
	Final:   []JobState{JobReady, JobFailed},
	Rules: []fsm.Rule[JobState, JobEvent]{
		{On: OnJobStarted, From: []JobState{JobQueued, JobBuilding}, To: JobBuilding},
		{On: OnJobReturned, From: []JobState{JobQueued, JobBuilding}, To: JobQueued, Why: "its builder stops; another begins anew"},
		{On: OnJobBuilt, From: []JobState{JobQueued, JobBuilding}, To: JobBuilt, Why: "an equal artifact may exist already"},
		{On: OnJobResumed, From: []JobState{JobQueued, JobBuilt, JobDistributing}, To: JobDistributing, Why: "a redo begins here; again after a restart of the master"},
		{On: OnJobMoving, From: []JobState{JobQueued, JobMigrating}, To: JobMigrating, Why: "again after a restart of the master"},
		{On: OnJobDone, From: []JobState{JobDistributing, JobMigrating}, To: JobReady},
		{On: OnJobFailed, From: []JobState{JobQueued, JobBuilding, JobBuilt, JobDistributing, JobMigrating}, To: JobFailed},
		{On: OnJobCancelled, From: []JobState{JobQueued, JobBuilding, JobBuilt, JobDistributing, JobMigrating}, To: JobFailed, Why: "somebody asked for its end"},
		{On: OnJobStalled, From: []JobState{JobQueued, JobBuilding, JobBuilt, JobDistributing, JobMigrating}, To: JobFailed},
	},
})

// Active reports whether a job in state s still has work before it: no second
// job for the same template may begin (spec 3.7, and BUILT counts).
func (s JobState) Active() bool { return !Jobs.Final(s) }

// Operation is what a job was asked to do.
type Operation string

// The operations. Create builds a template from an image; redo brings it to
// hosts again, and builds its bytes again when they are gone; migrate moves
// its bytes to the store of the configuration.
const (
	OpCreate  Operation = "create"
	OpRedo    Operation = "redo"
	OpMigrate Operation = "migrate"
)

// RedoMode is which hosts a redo is for.
type RedoMode string

// The modes of a redo.
const (
	RedoAll         RedoMode = "all"
	RedoNodes       RedoMode = "nodes"        // those of the scope
	RedoFailedOnly  RedoMode = "failed_only"  // those whose replica is not ready
	RedoFailedNodes RedoMode = "failed_nodes" // those of the scope whose replica is not ready
)

// Plan is what a job does beyond making a template: it is stored with the job
// as JSON, and empty for a create.
type Plan struct {
	RedoMode    RedoMode  `json:"redo_mode,omitempty"`
	Asked       string    `json:"asked,omitempty"`   // the template as the request named it
	Scope       []string  `json:"scope,omitempty"`   // hosts, by id or address, as the request named them
	Targets     []host.ID `json:"targets,omitempty"` // the hosts that were chosen
	ResumePhase Phase     `json:"resume_phase,omitempty"`
	Returned    int       `json:"returned,omitempty"` // builders that stopped and gave it back
	Said        Said      `json:"said,omitzero"`
	// AliasAsked is when the alias of a redo was asked for: with the create that
	// it does again. An alias that was given since is not taken back.
	AliasAsked time.Time `json:"alias_asked,omitzero"`
}

// Said is how far a builder's words are in the log: a report that comes twice
// adds none twice.
type Said struct {
	Epoch int64 `json:"epoch,omitempty"` // which builder
	Lines int64 `json:"lines,omitempty"` // of its own
}

// Phase is progress inside a state, for people. It never decides anything.
type Phase string

// The phases of jobs.
const (
	PhasePulling      Phase = "pulling"
	PhaseUnpacking    Phase = "unpacking"
	PhaseBuildingExt4 Phase = "building_ext4"
	PhaseStoring      Phase = "storing"
	PhaseDistributing Phase = "distributing"
	PhaseSnapshotting Phase = "snapshotting" // a sandbox is tried on a host
	PhaseRegistering  Phase = "registering"
	PhaseMigrating    Phase = "migrating_artifact"
	PhaseReady        Phase = "ready"
)

// Job is one durable attempt to build a template.
type Job struct {
	ID         JobID
	TemplateID ID
	RequestID  string
	Operation  Operation
	AttemptNo  int
	RetryOf    JobID
	Alias      string
	Priority   int // of two that wait, the higher is built first
	Plan       Plan
	State      JobState
	Version    int64
	Phase      Phase
	Progress   int    // 0..100, only grows
	Error      string // why it failed; a warning when it did not
	ErrorCode  string // the fault code of Error
	Request    []byte // the normalised request as JSON, without credentials
	Result     []byte // the BUILT report as JSON
	Pull       Pull
	ImageRef   string
	Digest     string // of the source image
	ArtifactID ArtifactID
	Spec       string // the spec fingerprint
	SpecKey    []byte // of a create, until it ends: no other may be at work on the same; see SpecKey
	Expected   int    // hosts to serve
	Ready      int
	Failed     int
	PhaseTimes PhaseTimes // when each phase began, for the table of the CLI
	CreatedAt  time.Time
	ChangedAt  time.Time // any change or heartbeat; what a stall is measured from
}

// AliasAsked is when the job's alias was asked for.
func (j Job) AliasAsked() time.Time {
	if !j.Plan.AliasAsked.IsZero() {
		return j.Plan.AliasAsked
	}
	return j.CreatedAt
}

// Pull is how far the download of an image's layers is.
type Pull struct {
	TotalBytes, DoneBytes   int64
	TotalLayers, DoneLayers int
	BytesPerSecond          int64
}

// PhaseTimes maps a phase to when it began.
type PhaseTimes map[Phase]time.Time
