package master

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/scheduler"
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
		createQuiet:    6 * time.Second,
		orphanGrace:    200 * time.Millisecond,
		trialRoom:      200 * time.Millisecond,
		trialKept:      time.Hour,
		deletingKept:   time.Second,
		gc:             50 * time.Millisecond,
		orphanRows:     300 * time.Millisecond,
		deleteWait:     3 * time.Second,
		terminatedKept: time.Hour,
		failedKept:     time.Hour,
		spread:         100 * time.Millisecond,
		step:           2 * time.Second,
		routes:         50 * time.Millisecond,
		repair:         time.Hour, // see Repair
		scan:           time.Millisecond,
		repairFirst:    20 * time.Millisecond,
		repairLast:     200 * time.Millisecond,
		healAgain:      50 * time.Millisecond,
		moveQuiet:      10 * time.Second,
		moveTime:       10 * time.Second,
		moveWithin:     time.Hour,
		agentWait:      time.Minute,
		agentRead:      time.Minute,
		lifeQuiet:      500 * time.Millisecond,
		pauseFirst:     50 * time.Millisecond,
		pauseLast:      time.Second,
		cloneKept:      time.Hour,
		commitKept:     time.Hour,
		snapFailedKept: time.Hour,
	}
	m.pace.rules = 10 * time.Millisecond
	if m.cfg.Master.CreateTimeout >= time.Minute { // a test that is patient with creates is so with their signs of life
		m.Patient()
	}
}

// Patient lets a create go without a sign of life for as long as a loaded
// machine may need.
func (m *Master) Patient() { m.pace.createQuiet = 30 * time.Second }

// AgentPace sets how long the upload of an agent waits for its turn, and takes.
func (m *Master) AgentPace(wait, read time.Duration) { m.pace.agentWait, m.pace.agentRead = wait, read }

// HostGrace sets how long after a start hosts are waited for.
func (m *Master) HostGrace(d time.Duration) { m.pace.hostGrace = d }

// Repair makes rounds of repair begin every so often.
func (m *Master) Repair(every time.Duration) { m.pace.repair = every }

// RepairPause sets how long a host that failed is left alone.
func (m *Master) RepairPause(first, last time.Duration) {
	m.pace.repairFirst, m.pace.repairLast = first, last
}

// MoveQuiet sets how long a move of bytes may show no sign of life.
func (m *Master) MoveQuiet(d time.Duration) { m.pace.moveQuiet = d }

// MoveWithin sets how long a move of bytes is tried.
func (m *Master) MoveWithin(d time.Duration) { m.pace.moveWithin = d }

// SpreadWait sets how long hosts wait for others to have an artifact.
func (m *Master) SpreadWait(d time.Duration) { m.pace.spread = d }

// CreateQuiet is how long a create may show no sign of life.
func (m *Master) CreateQuiet() time.Duration { return m.pace.createQuiet }

// OrphanGrace sets how long a sandbox that no row knows is left alone.
func (m *Master) OrphanGrace(d time.Duration) { m.pace.orphanGrace = d }

// KeepTrials sets how long a trial sandbox of nobody is left alone.
func (m *Master) KeepTrials(d time.Duration) { m.pace.trialKept = d }

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

// Seen returns a host as the scheduler of this master sees it.
func (m *Master) Seen(ctx context.Context, id host.ID) (f host.Facts, known bool, err error) {
	v, _, err := m.fleet.now(ctx)
	if err == nil {
		f, known = v.Host(id)
	}
	return f, known, err
}

// Charged returns what the ledger holds against a host.
func (m *Master) Charged(id host.ID) host.Resources { return m.fleet.ledger.Charged(id) }

// Open returns how many choices are not yet seen in a report.
func (m *Master) Open() int {
	if _, _, err := m.fleet.now(context.Background()); err != nil {
		return -1
	}
	return m.fleet.ledger.Len()
}

// Retry changes the retry classes.
func (m *Master) Retry(change func(*scheduler.RetryConfig)) {
	c, r := scheduler.DefaultRetryConfig(), *m.rules.Load()
	change(&c)
	p, err := scheduler.NewRetryPolicy(c)
	if err != nil {
		panic(err)
	}
	r.retry, r.budget = p, &budget{RetryBudget: p.Budget()}
	m.rules.Store(&r)
}

// Look reads the fleet anew.
func (m *Master) Look(ctx context.Context) error {
	m.fleet.changed()
	_, _, err := m.fleet.now(ctx)
	return err
}

// Lends reports whether the master has credentials in memory for a job.
func (m *Master) Lends(id string) bool { _, ok := m.lent(template.JobID(id)); return ok }

// HostFault is hostFault.
func HostFault(ctx context.Context, err error, id host.ID) error { return hostFault(ctx, err, id) }

// ElsewhereUntil returns how many times in a row err sends a create to another
// host, at most limit.
func ElsewhereUntil(err *fault.Code, limit int) int {
	d := scheduler.DefaultRules()
	r, bad := newRules(config.Default().Master, &d, nil, nil)
	if bad != nil {
		panic(bad)
	}
	t := attempts{rules: r}
	for n := range limit {
		if v := t.after(context.Background(), err); !v.Again || v.SameHost {
			return n
		}
	}
	return limit
}

// Route is one line of the table of routes.
type Route struct {
	Call     string // METHOD path
	Security string
	Proxied  bool
	Required []string // parameters
}

// Routes returns the table of routes.
func (m *Master) Routes() []Route {
	var all []Route
	for _, r := range m.table(&url.URL{}, http.NotFoundHandler()) {
		one := Route{Call: r.Method + " " + r.Path, Security: r.Security, Proxied: r.proxied}
		for _, p := range r.Params {
			if p.Required {
				one.Required = append(one.Required, p.Name)
			}
		}
		all = append(all, one)
	}
	return all
}

// Document returns the document of the face.
func (m *Master) Document() ([]byte, error) {
	return document(m.table(&url.URL{}, http.NotFoundHandler())).YAML()
}

// CollectEvery sets the pause between two looks for what nobody needs.
func (m *Master) CollectEvery(d time.Duration) { m.pace.gc = d }

// CollectedNow says that it was just looked for what nobody needs.
func (m *Master) CollectedNow() { m.collected = time.Now() }

// KeptDecision returns a decision as it is kept.
func KeptDecision(d cubeapi.Decision) ([]byte, error) { return keptDecision(&d) }

// LineOf is where an instance type waits.
func (m *Master) LineOf(kind string) string { return m.lineOf(kind) }

// CloneKept sets how long what clones are made of is kept.
func (m *Master) CloneKept(d time.Duration) { m.pace.cloneKept = d }
