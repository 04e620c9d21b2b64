package master

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/template"
)

// Quicken makes everything that waits wait less, so that tests need not.
func (m *Master) Quicken() {
	m.pace = pace{
		outbox:         20 * time.Millisecond,
		beat:           50 * time.Millisecond,
		dispatchTries:  4,
		privateFor:     500 * time.Millisecond,
		privateKept:    time.Second,
		redispatch:     200 * time.Millisecond,
		hostGrace:      0,
		startGrace:     200 * time.Millisecond,
		createBeat:     100 * time.Millisecond,
		createQuiet:    3 * time.Second,
		orphanGrace:    200 * time.Millisecond,
		deletingKept:   time.Second,
		terminatedKept: time.Hour,
		failedKept:     time.Hour,
		spread:         100 * time.Millisecond,
		step:           2 * time.Second,
	}
}

// HostGrace sets how long after a start hosts are waited for.
func (m *Master) HostGrace(d time.Duration) { m.pace.hostGrace = d }

// CreateQuiet is how long a create may show no sign of life.
func (m *Master) CreateQuiet() time.Duration { return m.pace.createQuiet }

// OrphanGrace sets how long a sandbox that no row knows is left alone.
func (m *Master) OrphanGrace(d time.Duration) { m.pace.orphanGrace = d }

// KeepTerminated sets how long rows of ended sandboxes are kept.
func (m *Master) KeepTerminated(d time.Duration) { m.pace.terminatedKept = d }

// KeepFailed sets how long failed jobs and given up messages are kept.
func (m *Master) KeepFailed(d time.Duration) { m.pace.failedKept = d }

// MergeTwice lays a request over its template as a transaction that runs again
// does.
func MergeTwice(over cubeapi.FromImageRequest, image template.ImageConfig, req cubeapi.SandboxCreateRequest) (command []string, ports []int32, err error) {
	stored, err := json.Marshal(over)
	p := plan{req: req, template: template.Definition{Request: stored}, artifact: template.Artifact{ImageConfig: image}}
	for range 2 {
		err = errors.Join(err, p.merge())
	}
	return p.command, p.ports, err
}

// ErrCrash is what a test's step returns for a process that ends there.
var ErrCrash = errors.New("the process ends here")

// At calls do at each step that the master passes.
func (m *Master) At(do func(step string) error) { m.step = do }

// Charged returns what the ledger holds against a host.
func (m *Master) Charged(id host.ID) host.Resources { return m.fleet.ledger.Charged(id) }

// Lends reports whether the master has credentials in memory for a job.
func (m *Master) Lends(id string) bool { _, ok := m.lent(template.JobID(id)); return ok }

// HostFault is hostFault.
func HostFault(ctx context.Context, err error, id host.ID) error { return hostFault(ctx, err, id) }

// ElsewhereUntil returns how many times in a row err sends a create to another
// host, at most limit.
func ElsewhereUntil(err *fault.Code, limit int) int {
	var a attempts
	for n := range limit {
		if !a.elsewhere(err) {
			return n
		}
	}
	return limit
}
