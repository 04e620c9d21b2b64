// Package extscore asks programs of the operator, over HTTP, what they think of
// the best hosts for a sandbox.
//
// Whatever they do, a choice waits for them no longer than they were given, and
// no more of them than was allowed are waiting: each scorer has a time, a bound
// on calls under way, and a breaker. An answer that leaves out a host, or says
// something else than 0 to 100, is thrown away whole.
//
// It must never let a scorer choose: it only returns numbers, whose share in a
// choice package scheduler bounds.
package extscore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

const (
	maxBody   = 1 << 20 // of a question, and of an answer
	maxHeader = 64 << 10
	maxConns  = 8 // to one scorer
)

// Question is what a scorer is asked, as JSON.
type Question struct {
	Request    Request     `json:"request"`
	Candidates []Candidate `json:"candidates"`
}

// Request is what is to be placed.
type Request struct {
	SandboxID    string            `json:"sandbox_id"`
	TemplateID   string            `json:"template_id,omitempty"`
	ArtifactID   string            `json:"artifact_id,omitempty"`
	InstanceType string            `json:"instance_type,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Resources    Resources         `json:"resources"`
}

// Resources are amounts of each kind.
type Resources struct {
	MilliCPU  int64 `json:"milli_cpu"`
	MemBytes  int64 `json:"mem_bytes"`
	DiskBytes int64 `json:"disk_bytes"`
	Slots     int64 `json:"slots"`
}

// Candidate is a host that is fit.
type Candidate struct {
	HostID       string            `json:"host_id"`
	Score        float64           `json:"score"` // what the other plugins gave it
	InstanceType string            `json:"instance_type,omitempty"`
	Zone         string            `json:"zone,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Allocatable  Resources         `json:"allocatable"`
	Allocated    Resources         `json:"allocated"` // as it reported
	Sandboxes    int               `json:"sandboxes"`
	CPUUtil      float64           `json:"cpu_util"`
}

// answer is what a scorer says: one score for every candidate.
type answer struct {
	Scores map[string]*float64 `json:"scores"`
}

// The outcomes of a call.
const (
	Scored  = "scored"
	Failed  = "failed"
	Busy    = "busy"    // too many calls of it are under way
	Shut    = "shut"    // its breaker is open
	Unasked = "unasked" // the caller went away
)

// Asker asks all scorers of a configuration. It is safe for concurrent use.
type Asker struct {
	scorers []*scorer
	seen    func(scorer, outcome string, took time.Duration)
}

// New returns an Asker. c was checked by scheduler.ParseRules. seen is told of
// every call.
func New(c scheduler.ExternalConfig, seen func(scorer, outcome string, took time.Duration)) *Asker {
	a := &Asker{seen: seen}
	for _, s := range c.Scorers {
		a.scorers = append(a.scorers, &scorer{
			Scorer: s, room: make(chan struct{}, s.InFlight),
			client: &http.Client{
				// No proxy of the environment, no redirect: it is asked where it
				// was said that it is, and nowhere else.
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
				Transport: &http.Transport{
					DialContext: (&net.Dialer{Timeout: s.Timeout}).DialContext, MaxConnsPerHost: maxConns, MaxIdleConnsPerHost: maxConns,
					IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: s.Timeout, MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
				},
			},
		})
	}
	return a
}

// Close lets go of connections that nobody uses. Calls under way go on.
func (a *Asker) Close() {
	for _, s := range a.scorers {
		s.client.CloseIdleConnections()
	}
}

// Score asks all scorers at once and returns the weighted mean of those that
// answered: a score for every candidate, or nil if none did. If one that is to
// fail closed did not, it returns fault.PeerUnavailable.
func (a *Asker) Score(ctx context.Context, q Question) (map[host.ID]float64, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, fault.Wrap(fault.Bug, err, "question to external scorers")
	}
	answers, faults := make([]map[string]*float64, len(a.scorers)), make([]error, len(a.scorers))
	var all sync.WaitGroup
	for i, s := range a.scorers {
		all.Go(func() {
			began := time.Now()
			var outcome string
			answers[i], outcome, faults[i] = s.ask(ctx, body, q.Candidates)
			a.seen(s.Name, outcome, time.Since(began))
		})
	}
	all.Wait()
	var sum float64
	total := map[host.ID]float64{}
	for i, s := range a.scorers {
		switch {
		case faults[i] == nil:
			for id, x := range answers[i] {
				total[host.ID(id)] += s.Weight * *x
			}
			sum += s.Weight
		case s.OnFailure == "closed":
			return nil, &fault.Error{
				Code: fault.PeerUnavailable, Cause: faults[i], Message: fmt.Sprintf("external scorer %s gave no scores", s.Name),
				Remedy: "start it again, or set on_failure: open for it in scheduler.external",
			}
		}
	}
	if sum == 0 {
		return nil, nil
	}
	for id := range total {
		total[id] /= sum
	}
	return total, nil
}

// scorer is one of them, with its bounds.
type scorer struct {
	scheduler.Scorer
	client *http.Client
	room   chan struct{}

	mu      sync.Mutex
	failed  int       // in a row
	until   time.Time // shut until then; zero: open to all
	probing bool
}

func (s *scorer) ask(ctx context.Context, body []byte, candidates []Candidate) (map[string]*float64, string, error) {
	if len(body) > maxBody {
		return nil, Failed, fmt.Errorf("the question has %d bytes, at most %d: ask about fewer candidates", len(body), maxBody)
	}
	select {
	case s.room <- struct{}{}:
		defer func() { <-s.room }()
	default:
		return nil, Busy, fmt.Errorf("%d calls of it are under way", s.InFlight)
	}
	probe, ok := s.admit()
	if !ok {
		return nil, Shut, fmt.Errorf("it failed %d times in a row and is left alone for %s", s.Failures, s.Pause)
	}
	bounded, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	scores, err := s.call(bounded, body, candidates)
	if err != nil && ctx.Err() != nil {
		s.result(probe, nil) // that says nothing of it
		return nil, Unasked, ctx.Err()
	}
	s.result(probe, &err)
	if err != nil {
		return nil, Failed, err
	}
	return scores, Scored, nil
}

// admit reports whether it may be called, and whether that call is the probe.
func (s *scorer) admit() (probe, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.until.IsZero():
		return false, true
	case s.probing || time.Now().Before(s.until):
		return false, false
	}
	s.probing = true
	return true, true
}

// result counts how a call ended; nil: nobody knows.
func (s *scorer) result(probe bool, err *error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if probe {
		s.probing = false
	}
	switch {
	case err == nil:
	case *err == nil && (probe || s.until.IsZero()):
		s.failed, s.until = 0, time.Time{}
	case *err == nil: // one that was on its way when it was shut out
	default:
		if s.failed++; s.failed >= s.Failures {
			s.until = time.Now().Add(s.Pause)
		}
	}
}

func (s *scorer) call(ctx context.Context, body []byte, candidates []Candidate) (scores map[string]*float64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	got, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, got.Body.Close()) }()
	if got.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %s", got.Status)
	}
	text, err := io.ReadAll(io.LimitReader(got.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxBody:
		return nil, fmt.Errorf("its answer is over %d bytes", maxBody)
	}
	return read(text, candidates)
}

// read demands a score of 0 to 100 for every candidate, and for nobody else.
func read(text []byte, candidates []Candidate) (map[string]*float64, error) {
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, fmt.Errorf("its answer is not {\"scores\": {host: number}}: %w", err)
	}
	for _, c := range candidates {
		switch x, ok := a.Scores[c.HostID]; {
		case !ok || x == nil:
			return nil, fmt.Errorf("it gave host %s no score", c.HostID)
		case !(*x >= 0 && *x <= 100):
			return nil, fmt.Errorf("it gave host %s the score %v: must be 0 to 100", c.HostID, *x)
		}
	}
	if len(a.Scores) != len(candidates) {
		return nil, fmt.Errorf("it scored %d hosts, and was asked about %d", len(a.Scores), len(candidates))
	}
	return a.Scores, nil
}
