package template

import (
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/lease"
)

// BuildSubject is what the lease of a job's builder is on. Its epoch counts the
// builders that the job has had.
func BuildSubject(id JobID) string { return "build/" + string(id) }

// CentersSubject is held by one of the template centres that are up: while
// somebody has it, whoever waits for a builder waits for its turn.
const CentersSubject = "templatecenters"

// MaxBuilders is how many builders a job has at most. An image may be what they
// die of.
const MaxBuilders = 3

// Hold is who has a job's build in hand.
type Hold int

// Who has a build in hand.
const (
	Unheld Hold = iota // nobody ever had
	Held               // a builder that may act
	Lost               // a builder whose lease is over; another may begin anew
	Spent              // as many as a job may have, and all of them are lost
)

// maxReturns bounds how many builders that stopped are not counted.
const maxReturns = 50

// HoldOf reads the lease of a job's builder; found is false when there is none.
// returned is how many builders gave the job back: these did not die of it.
func HoldOf(l lease.Lease, found bool, returned int, now time.Time) Hold {
	switch {
	case !found:
		return Unheld
	case l.Until.After(now):
		return Held
	case l.Epoch < lease.Epoch(MaxBuilders+min(returned, maxReturns)):
		return Lost
	}
	return Spent
}

// builderPhases are those of a job whose bytes are being made.
var builderPhases = []Phase{PhasePulling, PhaseUnpacking, PhaseBuildingExt4, PhaseStoring}

// NeedsBuilder reports whether a queued job waits for a builder, and not for the
// master: a create does, and a redo whose bytes are gone.
func (j Job) NeedsBuilder() bool {
	return j.Operation == OpCreate || j.Operation == OpRedo && slices.Contains(builderPhases, j.Plan.ResumePhase)
}

// Claimable reports whether a builder may take j, which h has in hand: it waits
// for its first, or its last one is lost.
func (j Job) Claimable(h Hold) bool {
	switch j.State {
	case JobQueued:
		return j.NeedsBuilder() && (h == Unheld || h == Lost)
	case JobBuilding:
		return h == Lost
	}
	return false
}
