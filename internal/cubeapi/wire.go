package cubeapi

import (
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/template"
)

// The wire's words. Upper case exists here only.
const (
	StatusPending = "PENDING"
	StatusRunning = "RUNNING"
	StatusBuilt   = "BUILT"
	StatusReady   = "READY"
	StatusFailed  = "FAILED"
)

// JobStatus maps a job's states to the wire. Two are RUNNING there.
var JobStatus = map[template.JobState]string{
	template.JobQueued:       StatusPending,
	template.JobBuilding:     StatusRunning,
	template.JobBuilt:        StatusBuilt,
	template.JobDistributing: StatusRunning,
	template.JobReady:        StatusReady,
	template.JobFailed:       StatusFailed,
}

// Word writes a state, phase or operation as the wire does.
func Word[S ~string](s S) string { return strings.ToUpper(string(s)) }

var phases = map[string]template.Phase{}

func init() {
	for _, p := range []template.Phase{
		template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4, template.PhaseStoring,
		template.PhaseDistributing, template.PhaseRegistering, template.PhaseReady,
	} {
		phases[Word(p)] = p
	}
}

// PhaseOf reads a phase, or refuses an unknown one with fault.InvalidInput.
func PhaseOf(word string) (template.Phase, error) {
	p, ok := phases[word]
	if !ok {
		return "", fault.New(fault.InvalidInput, "phase %q", word)
	}
	return p, nil
}

// ReplicaStatus maps a replica's state to the wire's two words: what is not
// ready has failed or may still.
func ReplicaStatus(s template.ReplicaState) string {
	if s == template.ReplicaReady {
		return StatusReady
	}
	return StatusFailed
}
