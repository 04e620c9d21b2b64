package master

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// ruleFile is the file of rules and what came of it. The rules that hold are
// Master.rules: a file that is bad, or away, changes nothing of them.
type ruleFile struct {
	path string

	mu       sync.Mutex
	last     string // the mark of what the last look found
	acted    string // the mark of what was last taken or refused
	failed   error  // why; nil: what is there holds
	failedAt time.Time

	reloads *prometheus.CounterVec
	good    prometheus.Gauge
	asked   *prometheus.HistogramVec
}

func newRuleFile(path string) *ruleFile {
	return &ruleFile{
		path:    path,
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_scheduler_config_reloads_total", Help: "Changes of the file of rules, by outcome."}, []string{"outcome"}),
		good:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_scheduler_config_good", Help: "1: the file of rules as it stands holds; 0: it has faults, and the last good one holds."}),
		asked:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "paddock_scheduler_external_seconds", Help: "Calls of external scorers, by outcome.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 12)}, []string{"scorer", "outcome"}),
	}
}

func (f *ruleFile) all() []prometheus.Collector {
	return []prometheus.Collector{f.reloads, f.good, f.asked}
}

// seen counts a call of an external scorer.
func (f *ruleFile) seen(scorer, outcome string, took time.Duration) {
	f.asked.WithLabelValues(scorer, outcome).Observe(took.Seconds())
}

// read returns what the file holds and a mark of it.
func (f *ruleFile) read() (text []byte, mark string, err error) {
	if f.path == "" {
		return nil, "", nil
	}
	if text, err = config.ReadRulesFile(f.path); err != nil {
		return nil, "none: " + err.Error(), fault.Wrap(fault.BadConfig, err, "master.scheduler_config %q", f.path)
	}
	sum := sha256.Sum256(text)
	return text, hex.EncodeToString(sum[:8]), nil
}

// firstRules are those of the start, which a bad file stops.
func (m *Master) firstRules() error {
	f := m.ruleFile
	text, mark, err := f.read()
	if err != nil {
		return err
	}
	r, err := m.rulesOf(text, mark, nil)
	if err != nil {
		return err
	}
	if m.gate, err = newGate(r.document.Queue); err != nil {
		return err
	}
	f.last, f.acted = mark, mark
	f.good.Set(1)
	m.warnOfRules(r)
	m.rules.Store(r)
	return nil
}

func (m *Master) rulesOf(text []byte, mark string, older *rules) (*rules, error) {
	d, warnings, err := scheduler.ParseRules(text)
	if err != nil {
		return nil, fault.Wrap(fault.BadConfig, err, "%s", m.ruleFile.path)
	}
	r, err := newRules(m.cfg.Master, d, older, m.ruleFile.seen)
	if err != nil {
		return nil, err
	}
	r.hash, r.warnings, r.since = mark, warnings, time.Now()
	return r, nil
}

func (m *Master) warnOfRules(r *rules) {
	for _, w := range r.warnings {
		m.log.Warn("rules of the scheduler", slog.String("file", m.ruleFile.path), slog.String("warning", w))
	}
}

// ReloadRules looks at the file of rules now and takes it if it is good.
func (m *Master) ReloadRules() { m.lookAtRules(true) }

// rulesLoop looks at the file of rules now and then.
func (m *Master) rulesLoop(ctx context.Context) {
	if m.ruleFile.path == "" {
		return
	}
	stop := every(ctx, m.pace.rules, func(context.Context) { m.lookAtRules(false) })
	<-ctx.Done()
	stop()
}

// lookAtRules takes what the file holds if that is new and good. One that is
// being written is not whole: unless now is set, it must be found the same
// twice.
func (m *Master) lookAtRules(now bool) {
	f := m.ruleFile
	text, mark, err := f.read() // without the lock: a disk may take its time
	f.mu.Lock()
	defer f.mu.Unlock()
	steady := now || mark == f.last
	f.last = mark
	if !steady || mark == f.acted {
		return
	}
	f.acted = mark
	older := m.rules.Load()
	if err == nil && mark == older.hash {
		f.hold("") // it was bad, and is again as it was when it was taken
		m.log.Info("rules of the scheduler are as they were", slog.String("file", f.path), slog.String("hash", mark))
		return
	}
	var r *rules
	if err == nil {
		r, err = m.rulesOf(text, mark, older)
	}
	if err == nil {
		err = m.gate.adopt(r.document.Queue)
	}
	if err != nil {
		f.failed, f.failedAt = err, time.Now()
		f.good.Set(0)
		f.reloads.WithLabelValues("bad").Inc()
		m.log.Error("rules of the scheduler not taken: the last good ones hold", slog.String("file", f.path), slog.String("error", err.Error()))
		return
	}
	m.rules.Store(r)
	if older.external != nil && older.external != r.external {
		older.external.Close()
	}
	f.hold("good")
	m.log.Info("rules of the scheduler taken", slog.String("file", f.path), slog.String("hash", mark))
	m.warnOfRules(r)
}

// hold notes that what the file holds is what counts.
func (f *ruleFile) hold(outcome string) {
	f.failed, f.failedAt = nil, time.Time{}
	f.good.Set(1)
	if outcome != "" {
		f.reloads.WithLabelValues(outcome).Inc()
	}
}

func (m *Master) serveSchedulerConfig(w http.ResponseWriter, r *http.Request) {
	f, now := m.ruleFile, m.rules.Load()
	text, err := now.document.YAML()
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	c := cubeapi.SchedulerConfig{Path: f.path, Hash: now.hash, Since: now.since.UTC().Format(time.RFC3339), Good: true, Warnings: now.warnings, Rules: string(text)}
	f.mu.Lock()
	if f.failed != nil {
		c.Good, c.Error, c.ErrorAt = false, f.failed.Error(), f.failedAt.UTC().Format(time.RFC3339)
	}
	f.mu.Unlock()
	serve.WriteJSON(w, http.StatusOK, cubeapi.SchedulerConfigAnswer{Envelope: cubeapi.OK(requestID(r)), Config: c})
}
