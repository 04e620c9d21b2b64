package sandbox_test

import (
	"testing"

	"github.com/paddock-dev/paddock/internal/fsm/fsmtest"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

func TestDiagram(t *testing.T) {
	fsmtest.Diagram(t, sandbox.Machine, "../../docs/machines/sandbox.md")
	fsmtest.Diagram(t, sandbox.SnapshotMachine, "../../docs/machines/snapshot.md")
}

// Delete always wins: every state that lives leads to terminating.
func TestEndWinsEverywhere(t *testing.T) {
	for _, s := range sandbox.Machine.States() {
		to, err := sandbox.Machine.Step(s, sandbox.OnEndAsked, struct{}{})
		if sandbox.Machine.Final(s) != (err != nil) || err == nil && to != sandbox.Terminating {
			t.Errorf("%s on end_asked: %s, %v", s, to, err)
		}
	}
}

// A snapshot can be deleted in every state.
func TestSnapshotsCanBeDeletedEverywhere(t *testing.T) {
	for _, s := range sandbox.SnapshotMachine.States() {
		to, err := sandbox.SnapshotMachine.Step(s, sandbox.OnSnapDeleteAsked, struct{}{})
		if sandbox.SnapshotMachine.Final(s) != (err != nil) || err == nil && to != sandbox.SnapDeleting {
			t.Errorf("%s on delete_asked: %s, %v", s, to, err)
		}
	}
}

func TestQuantities(t *testing.T) {
	for text, want := range map[string]int64{"1Gi": 1 << 30, "512Mi": 512 << 20, "1.5G": 1_500_000_000, "20": 20 << 30, "0": 0, "10B": 10} {
		if got, err := sandbox.Bytes(text, "Gi"); err != nil || got != want {
			t.Errorf("Bytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "Gi", "-1", "1 Gi", "1m", "1e3", "99999999999Ei", "1Gi;rm"} {
		if got, err := sandbox.Bytes(text, "Gi"); err == nil {
			t.Errorf("Bytes(%q) = %d: it must be refused, not counted as something", text, got)
		}
	}
	for text, want := range map[string]int64{"2": 2000, "0.5": 500, "250m": 250} {
		if got, err := sandbox.MilliCPU(text); err != nil || got != want {
			t.Errorf("MilliCPU(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestIDs(t *testing.T) {
	for id, ok := range map[string]bool{"i01a22b311a7edc2ba933c44b": true, "i1": false, "": false, "../../../etc/passwd000000": false, "I01a22b311a7edc2ba933c44b": false} {
		if err := sandbox.CheckID(id); (err == nil) != ok {
			t.Errorf("id %q: %v", id, err)
		}
	}
}
