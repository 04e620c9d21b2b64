// Package master is the control plane of templates and sandboxes.
//
// It owns every row of jobs, templates, hosts and sandboxes, and every call to
// a host. What must follow a commit is an outbox message of the same
// transaction, so that a crash between the two loses nothing. It must never
// report "cannot tell" as "gone", and never keep a registry's credentials.
package master

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/progress"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// Deps are what a master needs.
type Deps struct {
	Config  config.Config
	Store   *store.Store
	Log     *slog.Logger
	Metrics *prometheus.Registry
	// Board may be nil: then it is the Redis of the configuration, if any.
	Board Board
}

// Board tells how far pulls are, sooner than the reports do. It may be empty or
// away at any time.
type Board interface {
	Get(ctx context.Context, id template.JobID) (p template.Pull, ok bool, err error)
}

// Master is the control plane. Make one with New.
type Master struct {
	cfg      config.Config
	db       *store.Store
	log      *slog.Logger
	center   *cubeapi.CenterClient
	hosts    *dialer
	fleet    *fleet
	feed     *changeFeed
	rules    atomic.Pointer[rules]
	ruleFile *ruleFile
	gate     *turnstile
	spread   spread
	handler  http.Handler
	metrics  metrics
	board    Board // nil: only the rows tell
	redis    io.Closer
	routing  *routing // nil: nobody is told where sandboxes are
	pace     pace
	topics   []*topic
	kick     chan struct{} // makes the sweep look now
	step     func(name string) error

	base  context.Context // of all work that outlives its request; ends with Run
	stop  context.CancelFunc
	began time.Time

	mu          sync.Mutex
	credentials map[template.JobID]credentials // of builds that no builder has begun
	inHand      map[template.JobID]bool        // jobs that this process resumes now
	collected   time.Time                      // when it was last looked for what nobody needs
	rerouted    time.Time                      // when all routes were last looked at
	resuming    chan struct{}                  // as many as may be resumed at once
	moving      chan struct{}                  // as many whose bytes may be moved at once
	agents      chan struct{}                  // as many agents as may be read at once
	work        sync.WaitGroup
	stopped     bool
}

// pace is how often things are looked at and how long they may take, as far as
// no configuration key says so.
type pace struct {
	outbox         time.Duration // between two looks at the outbox
	beat           time.Duration // a job that is distributed shows so this often
	dispatchTries  int           // how often a template centre that is away is asked
	privateFor     time.Duration // how long a private image's job is tried to be handed over
	privateKept    time.Duration // after so long without a word, whoever had its credentials has gone
	redispatch     time.Duration // a queued job is handed over again after so long
	hostGrace      time.Duration // after a start, hosts need a while to report
	startGrace     time.Duration // beyond create_timeout, for a create to write its own end
	createBeat     time.Duration // a create that takes long shows so often that it is worked on
	createQuiet    time.Duration // one that did not for so long is lost
	orphanGrace    time.Duration // a host may have a sandbox before its row says so
	trialRoom      time.Duration // a trial waits so long at a time for room on its host
	trialKept      time.Duration // a host may have a trial sandbox for so long
	deletingKept   time.Duration // bytes that were not let go for so long are asked for again
	gc             time.Duration // between two looks for what nobody needs
	orphanRows     time.Duration // rows of what is gone, that somebody may just be writing
	deleteWait     time.Duration // how long a delete waits for its hosts before it answers
	terminatedKept time.Duration // rows of ended sandboxes
	failedKept     time.Duration // failed jobs without a template, and messages that were given up
	spread         time.Duration // a host waits so long for others to have an artifact
	step           time.Duration // of a sweep
	routes         time.Duration // between two looks whether all routes are right
	repair         time.Duration // between two rounds of repair
	scan           time.Duration // between two looks whether the store has all bytes
	repairFirst    time.Duration // a host that failed is tried again after so long, then ever later
	repairLast     time.Duration // and at the latest after so long
	healAgain      time.Duration // bytes that could not be built again are tried again after so long
	moveQuiet      time.Duration // a move of bytes that shows no sign of life for so long has failed
	moveTime       time.Duration // of one try to move bytes
	moveWithin     time.Duration // a try that fails after so long is the last
	agentWait      time.Duration // the upload of an agent waits so long for its turn
	agentRead      time.Duration // and takes so long
	rules          time.Duration // between two looks at the file of rules
	lifeQuiet      time.Duration // a sandbox in a passing state for so long that no message tells of is taken up again
	pauseFirst     time.Duration // a pause that is due and failed is tried again after so long, then ever later
	pauseLast      time.Duration // and at the latest after so long
	commitKept     time.Duration // the snapshot that a template is made of, if its job does not end
	cloneKept      time.Duration // the snapshot of a clone whose master ended is deleted after so long
	snapFailedKept time.Duration // snapshots that never came to be
}

func defaultPace(c config.Master) pace {
	return pace{
		outbox:         500 * time.Millisecond,
		beat:           10 * time.Second,
		dispatchTries:  9, // with the outbox's pauses, about a minute
		privateFor:     45 * time.Second,
		privateKept:    90 * time.Second,
		redispatch:     15 * time.Second,
		hostGrace:      c.HostStaleAfter,
		startGrace:     30 * time.Second,
		createBeat:     3 * time.Second,
		createQuiet:    15 * time.Second,
		orphanGrace:    time.Minute,
		trialRoom:      5 * time.Second,
		trialKept:      c.CreateTimeout + sandbox.MaxProbeTime + hostCall,
		deletingKept:   time.Hour,
		gc:             10 * time.Minute,
		orphanRows:     10 * time.Minute,
		deleteWait:     5 * time.Second,
		terminatedKept: 24 * time.Hour,
		failedKept:     7 * 24 * time.Hour,
		spread:         30 * time.Second,
		step:           time.Minute,
		routes:         time.Minute,
		repair:         15 * time.Second,
		scan:           10 * time.Minute,
		repairFirst:    30 * time.Second,
		repairLast:     30 * time.Minute,
		healAgain:      30 * time.Minute,
		moveQuiet:      max(10*time.Minute, 2*c.BuiltStaleAfter), // a sweep takes it up again before
		moveTime:       time.Hour,
		moveWithin:     2 * time.Hour,
		agentWait:      10 * time.Second,
		agentRead:      5 * time.Minute,
		rules:          2 * time.Second,
		lifeQuiet:      c.LifeTimeout + 30*time.Second,
		pauseFirst:     30 * time.Second,
		pauseLast:      30 * time.Minute,
		commitKept:     24 * time.Hour,
		cloneKept:      time.Hour,
		snapFailedKept: 24 * time.Hour,
	}
}

// resumesAtOnce bounds the jobs that one process distributes at a time; each
// holds a connection of the database for its lock.
const resumesAtOnce = 4

type metrics struct {
	create   *prometheus.HistogramVec
	decision prometheus.Histogram
	refused  *prometheus.CounterVec
	outbox   *prometheus.GaugeVec
	retries  *prometheus.CounterVec
	blind    prometheus.Counter
}

// New returns a master. It reads the scheduler's file of rules, and does no
// other I/O.
func New(d Deps) (*Master, error) {
	m := &Master{
		cfg: d.Config, db: d.Store, log: d.Log, board: d.Board,
		center:      cubeapi.NewCenterClient(d.Config.Master.TemplateCenterAddr, d.Config.Auth.CallbackToken.Reveal()),
		hosts:       newDialer(d.Config.Auth.HostToken),
		spread:      spread{runs: map[template.ArtifactID]*run{}},
		feed:        newFeed(),
		fleet:       newFleet(d.Store, d.Config.Master.HostStaleAfter),
		pace:        defaultPace(d.Config.Master),
		kick:        make(chan struct{}, 1),
		step:        fail.Point,
		began:       time.Now(),
		credentials: map[template.JobID]credentials{},
		inHand:      map[template.JobID]bool{},
		resuming:    make(chan struct{}, resumesAtOnce),
		moving:      make(chan struct{}, movesAtOnce),
		agents:      make(chan struct{}, template.GuestsHeld),
		metrics: metrics{
			create:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "paddock_sandbox_create_seconds", Help: "Duration of creates by outcome.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 14)}, []string{"outcome"}),
			decision: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "paddock_scheduler_decision_seconds", Help: "Duration of one decision.", Buckets: prometheus.ExponentialBuckets(0.000005, 4, 10)}),
			refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_scheduler_dropped_total", Help: "Hosts dropped, by plugin."}, []string{"plugin"}),
			outbox:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "paddock_outbox_messages", Help: "Messages that wait, and those that were given up, at the last sweep of this master."}, []string{"state"}),
			retries:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_create_retries_total", Help: "Attempts of creates that failed on a host, by class of failure and whether it was tried again."}, []string{"class", "verdict"}),
			blind:    prometheus.NewCounter(prometheus.CounterOpts{Name: "paddock_scheduler_blind_decisions_total", Help: "Decisions by what hosts last said, because too many fell silent at once."}),
		},
	}
	if m.board == nil && d.Config.Redis.Addr != "" {
		r := progress.NewRedis(d.Config.Redis)
		m.board, m.redis = r, r
	}
	if d.Config.Redis.Addr != "" {
		m.routing = newRouting(d.Config.Redis)
	}
	m.fleet.left = func(id host.ID) { m.rules.Load().breakers.Forget(id) }
	m.ruleFile = newRuleFile(d.Config.Master.SchedulerConfig)
	if err := m.firstRules(); err != nil {
		return nil, err
	}
	m.base, m.stop = context.WithCancel(context.Background())
	m.topics = []*topic{
		newTopic(topicBuild, 4, m.dispatch),
		newTopic(topicSandboxDelete, 8, m.compensate),
		newTopic(topicArtifactDelete, 2, m.deleteBytes),
		newTopic(topicLife, 16, m.live),
		newTopic(topicSnapshot, 8, m.keepSnapshot),
		newTopic(topicNetwork, 8, m.pushNetwork),
	}
	if m.routing != nil {
		m.topics = append(m.topics, newTopic(topicRoute, 4, m.route))
	}
	d.Metrics.MustRegister(m.metrics.create, m.metrics.decision, m.metrics.refused, m.metrics.outbox, m.metrics.retries, m.metrics.blind, m.gauges())
	d.Metrics.MustRegister(slices.Concat(m.gate.metrics.all(), m.ruleFile.all())...)
	var err error
	m.handler, err = m.routes(d.Metrics)
	return m, err
}

// Handler serves the HTTP face.
func (m *Master) Handler() http.Handler { return m.handler }

// Run delivers what followed commits and sweeps what got stuck, until ctx
// ends. Then it ends what it began in the background: the rows say how far
// that was, and the next start goes on from there.
func (m *Master) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	for _, t := range m.topics {
		loops.Go(func() { m.deliver(ctx, t) })
	}
	loops.Go(func() { m.sweepLoop(ctx) })
	loops.Go(func() { m.repairLoop(ctx) })
	loops.Go(func() { m.rulesLoop(ctx) })
	loops.Wait()
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.stop()
	m.work.Wait()
	errs := []error{m.hosts.close()}
	if m.redis != nil {
		errs = append(errs, m.redis.Close())
	}
	if m.routing != nil {
		errs = append(errs, m.routing.Close())
	}
	return errors.Join(errs...)
}

// background runs do until it returns or the master ends. It keeps the trace
// and the request id of ctx and outlives it.
func (m *Master) background(ctx context.Context, do func(ctx context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(m.base, cancel)
	m.work.Go(func() {
		defer cancel()
		defer unhook()
		do(ctx)
	})
}

// every calls do each interval until ctx ends or the returned function is
// called, which waits for a call that is under way.
func every(ctx context.Context, interval time.Duration, do func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				do(ctx)
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// sweepNow makes the sweep look now.
func (m *Master) sweepNow() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}
