package cubeapi

import (
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/template"
)

// The words of a job's status. Upper case exists in this file only.
const (
	StatusPending = "PENDING"
	StatusRunning = "RUNNING"
	StatusBuilt   = "BUILT"
	StatusReady   = "READY"
	StatusFailed  = "FAILED"
)

// JobStatus maps a job's states to the wire. Three are RUNNING there.
var JobStatus = map[template.JobState]string{
	template.JobQueued:       StatusPending,
	template.JobBuilding:     StatusRunning,
	template.JobBuilt:        StatusBuilt,
	template.JobDistributing: StatusRunning,
	template.JobMigrating:    StatusRunning,
	template.JobReady:        StatusReady,
	template.JobFailed:       StatusFailed,
}

// JobStatesOf returns the states that a status stands for, in the order of the
// machine; none for a word that is no status.
func JobStatesOf(word string) []template.JobState {
	var states []template.JobState
	for _, s := range template.Jobs.States() {
		if JobStatus[s] == word {
			states = append(states, s)
		}
	}
	return states
}

// Words is a two-way table between our constants and the wire's words. It is
// immutable.
type Words[S ~string] struct {
	what string
	out  map[S]string
	in   map[string]S
}

// upper makes the table whose words are the constants in upper case.
func upper[S ~string](what string, constants ...S) Words[S] {
	w := Words[S]{what, map[S]string{}, map[string]S{}}
	for _, c := range constants {
		w.out[c], w.in[Word(c)] = Word(c), c
	}
	return w
}

// Word returns the word of c.
func (w Words[S]) Word(c S) string { return w.out[c] }

// Of returns the constant that word stands for, or fault.InvalidInput.
func (w Words[S]) Of(word string) (S, error) {
	c, ok := w.in[word]
	if !ok {
		return "", fault.New(fault.InvalidInput, "%s %q", w.what, word)
	}
	return c, nil
}

// The tables.
var (
	TemplateStatus = upper("template status", template.Definitions.States()...)
	ArtifactStatus = upper("artifact status", template.Artifacts.States()...)
	ReplicaPhase   = upper("replica phase", template.Replicas.States()...)
	SandboxStatus  = upper("sandbox status", sandbox.Machine.States()...)
	SnapshotStatus = upper("snapshot status", sandbox.SnapshotMachine.States()...)
	Phases         = upper("phase", template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4, template.PhaseStoring,
		template.PhaseDistributing, template.PhaseSnapshotting, template.PhaseRegistering, template.PhaseMigrating, template.PhaseReady)
	Operations = upper("operation", template.OpCreate, template.OpRedo, template.OpMigrate)
	RedoModes  = upper("redo mode", template.RedoAll, template.RedoNodes, template.RedoFailedOnly, template.RedoFailedNodes)
)

// Word writes a state, phase or operation as the wire does.
func Word[S ~string](s S) string { return strings.ToUpper(string(s)) }

// PhaseOf reads a phase, or refuses an unknown one with fault.InvalidInput.
func PhaseOf(word string) (template.Phase, error) { return Phases.Of(word) }

// ReplicaPhaseOf is what a replica is at: its state, and while that is pending the
// phase of the work on it.
func ReplicaPhaseOf(p template.Replica) string {
	if p.State == template.ReplicaPending && p.Phase != "" {
		return Phases.Word(p.Phase)
	}
	return ReplicaPhase.Word(p.State)
}

// ReplicaErrorPhase is the phase in which a replica failed; empty: it has not.
func ReplicaErrorPhase(p template.Replica) string {
	if p.State != template.ReplicaFailed || p.Phase == "" {
		return ""
	}
	return Phases.Word(p.Phase)
}

// ReplicaStatus maps a replica's state to the wire's two words: what is not
// ready has failed or may still.
func ReplicaStatus(s template.ReplicaState) string {
	if s == template.ReplicaReady {
		return StatusReady
	}
	return StatusFailed
}
