package template

import (
	"time"

	"github.com/paddock-dev/paddock/internal/fsm"
)

// JobState is where a job stands. Two states are RUNNING on the wire, since a
// running job must remember whether its artifact exists.
type JobState string

// The states of a job.
const (
	JobQueued       JobState = "queued"
	JobBuilding     JobState = "building"
	JobBuilt        JobState = "built"
	JobDistributing JobState = "distributing"
	JobReady        JobState = "ready"
	JobFailed       JobState = "failed"
)

// JobEvent is what happened to a job.
type JobEvent string

// The events of a job. OnJobStalled is what a sweep raises.
const (
	OnJobStarted JobEvent = "started"
	OnJobBuilt   JobEvent = "built"
	OnJobResumed JobEvent = "resumed"
	OnJobDone    JobEvent = "done"
	OnJobFailed  JobEvent = "failed"
	OnJobStalled JobEvent = "stalled"
)

// Jobs is the life of a job. From every state it ends: by its own outcome, or
// by a sweep that has waited long enough.
var Jobs = fsm.Must(fsm.Spec[JobState, JobEvent, fsm.None]{
	Name:    "job",
	Initial: JobQueued,
	States:  []JobState{JobQueued, JobBuilding, JobBuilt, JobDistributing, JobReady, JobFailed},
	Final:   []JobState{JobReady, JobFailed},
	Rules: []fsm.Rule[JobState, JobEvent]{
		{On: OnJobStarted, From: []JobState{JobQueued, JobBuilding}, To: JobBuilding},
		{On: OnJobBuilt, From: []JobState{JobQueued, JobBuilding}, To: JobBuilt, Why: "an equal artifact may exist already"},
		{On: OnJobResumed, From: []JobState{JobBuilt, JobDistributing}, To: JobDistributing, Why: "again after a restart of the master"},
		{On: OnJobDone, From: []JobState{JobDistributing}, To: JobReady},
		{On: OnJobFailed, From: []JobState{JobQueued, JobBuilding, JobBuilt, JobDistributing}, To: JobFailed},
		{On: OnJobStalled, From: []JobState{JobQueued, JobBuilding, JobBuilt, JobDistributing}, To: JobFailed},
	},
})

// Active reports whether a job in state s still has work before it: no second
// job for the same template may begin (spec 3.7, and BUILT counts).
func (s JobState) Active() bool { return !Jobs.Final(s) }

// Operation is what a job was asked to do.
type Operation string

// OpCreate builds a template from an image.
const OpCreate Operation = "create"

// Phase is progress inside a state, for people. It never decides anything.
type Phase string

// The phases of a create job.
const (
	PhasePulling      Phase = "pulling"
	PhaseUnpacking    Phase = "unpacking"
	PhaseBuildingExt4 Phase = "building_ext4"
	PhaseStoring      Phase = "storing"
	PhaseDistributing Phase = "distributing"
	PhaseRegistering  Phase = "registering"
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
	Expected   int    // hosts to serve
	Ready      int
	Failed     int
	PhaseTimes PhaseTimes // when each phase began, for the table of the CLI
	CreatedAt  time.Time
	ChangedAt  time.Time // any change or heartbeat; what a stall is measured from
}

// Pull is how far the download of an image's layers is.
type Pull struct {
	TotalBytes, DoneBytes   int64
	TotalLayers, DoneLayers int
	BytesPerSecond          int64
}

// PhaseTimes maps a phase to when it began.
type PhaseTimes map[Phase]time.Time
