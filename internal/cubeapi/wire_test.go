package cubeapi_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/template"
)

// walk takes every constant through a table and back.
func walk[S ~string](t *testing.T, w cubeapi.Words[S], want map[S]string, all []S) {
	t.Helper()
	for _, c := range all {
		word := w.Word(c)
		if word == "" || word != want[c] {
			t.Errorf("%q is %q on the wire, want %q", c, word, want[c])
		}
		if back, err := w.Of(word); err != nil || back != c {
			t.Errorf("%q reads as %q, %v; want %q", word, back, err, c)
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d constants, %d words: name each", len(all), len(want))
	}
	if _, err := w.Of("NO_SUCH_WORD"); !errors.Is(err, fault.InvalidInput) {
		t.Errorf("an unknown word gives %v, want invalid_input", err)
	}
}

func TestEveryConstantHasItsWord(t *testing.T) {
	walk(t, cubeapi.TemplateStatus, map[template.State]string{
		template.Creating: "CREATING", template.Ready: "READY", template.PartiallyReady: "PARTIALLY_READY",
		template.Failed: "FAILED", template.Deleting: "DELETING", template.Gone: "GONE",
	}, template.Definitions.States())
	walk(t, cubeapi.ArtifactStatus, map[template.ArtifactState]string{
		template.ArtifactBuilding: "BUILDING", template.ArtifactReady: "READY", template.ArtifactFailed: "FAILED",
		template.ArtifactCleanup: "CLEANUP_PENDING", template.ArtifactDeleting: "DELETING", template.ArtifactGone: "GONE",
	}, template.Artifacts.States())
	walk(t, cubeapi.ReplicaPhase, map[template.ReplicaState]string{
		template.ReplicaPending: "PENDING", template.ReplicaReady: "READY", template.ReplicaFailed: "FAILED",
		template.ReplicaCleaning: "CLEANING", template.ReplicaGone: "GONE",
	}, template.Replicas.States())
	walk(t, cubeapi.SandboxStatus, map[sandbox.State]string{
		sandbox.Allocating: "ALLOCATING", sandbox.Starting: "STARTING", sandbox.Running: "RUNNING", sandbox.Pausing: "PAUSING",
		sandbox.Paused: "PAUSED", sandbox.Resuming: "RESUMING", sandbox.RollingBack: "ROLLING_BACK", sandbox.Terminating: "TERMINATING", sandbox.Terminated: "TERMINATED",
	}, sandbox.Machine.States())
	walk(t, cubeapi.SnapshotStatus, map[sandbox.SnapshotState]string{
		sandbox.SnapCreating: "CREATING", sandbox.SnapReady: "READY", sandbox.SnapFailed: "FAILED", sandbox.SnapDeleting: "DELETING", sandbox.SnapGone: "GONE",
	}, sandbox.SnapshotMachine.States())
	walk(t, cubeapi.Phases, map[template.Phase]string{
		template.PhasePulling: "PULLING", template.PhaseUnpacking: "UNPACKING", template.PhaseBuildingExt4: "BUILDING_EXT4", template.PhaseStoring: "STORING",
		template.PhaseDistributing: "DISTRIBUTING", template.PhaseSnapshotting: "SNAPSHOTTING", template.PhaseRegistering: "REGISTERING", template.PhaseMigrating: "MIGRATING_ARTIFACT", template.PhaseReady: "READY",
	}, []template.Phase{
		template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4, template.PhaseStoring,
		template.PhaseDistributing, template.PhaseSnapshotting, template.PhaseRegistering, template.PhaseMigrating, template.PhaseReady,
	})
	walk(t, cubeapi.Operations, map[template.Operation]string{template.OpCreate: "CREATE", template.OpRedo: "REDO", template.OpMigrate: "MIGRATE"},
		[]template.Operation{template.OpCreate, template.OpRedo, template.OpMigrate})
	walk(t, cubeapi.RedoModes, map[template.RedoMode]string{template.RedoAll: "ALL", template.RedoNodes: "NODES", template.RedoFailedOnly: "FAILED_ONLY", template.RedoFailedNodes: "FAILED_NODES"},
		[]template.RedoMode{template.RedoAll, template.RedoNodes, template.RedoFailedOnly, template.RedoFailedNodes})
}

func TestEveryJobStateHasAStatus(t *testing.T) {
	want := map[template.JobState]string{
		template.JobQueued: "PENDING", template.JobBuilding: "RUNNING", template.JobBuilt: "BUILT",
		template.JobDistributing: "RUNNING", template.JobMigrating: "RUNNING", template.JobReady: "READY", template.JobFailed: "FAILED",
	}
	for _, s := range template.Jobs.States() {
		word := cubeapi.JobStatus[s]
		if word != want[s] || !slices.Contains(cubeapi.JobStatesOf(word), s) {
			t.Errorf("%s is %q on the wire, which reads as %v; want %q", s, word, cubeapi.JobStatesOf(word), want[s])
		}
	}
	if got := len(cubeapi.JobStatesOf(cubeapi.StatusRunning)); got != 3 {
		t.Errorf("RUNNING stands for %d states, want 3", got)
	}
	if got := cubeapi.JobStatesOf("running"); got != nil {
		t.Errorf("an unknown status reads as %v", got)
	}
}

func TestReplicaStatusIsReadyOrFailed(t *testing.T) {
	for _, s := range template.Replicas.States() {
		want := "FAILED"
		if s == template.ReplicaReady {
			want = "READY"
		}
		if got := cubeapi.ReplicaStatus(s); got != want {
			t.Errorf("%s is %q, want %q", s, got, want)
		}
	}
}
