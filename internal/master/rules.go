package master

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/extscore"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// rules are how sandboxes are placed. They are immutable but for what they
// count: a create keeps those that it began with.
type rules struct {
	placer   *scheduler.Scheduler
	retry    *scheduler.RetryPolicy
	affinity *scheduler.AffinityPolicy
	breakers *scheduler.Breakers
	budget   *budget
	external *extscore.Asker // nil: nobody is asked

	document *scheduler.Rules // what they were made of
	hash     string           // of the file; empty: there is none
	since    time.Time
	warnings []string
}

// budget is a retry budget that all creates of a master share.
type budget struct {
	mu sync.Mutex
	*scheduler.RetryBudget
}

// newRules compiles a document. What older rules know stays: who is shut out,
// what was spent, and which scorers fail.
func newRules(c config.Master, d *scheduler.Rules, older *rules, seen func(scorer, outcome string, took time.Duration)) (*rules, error) {
	s := d.Scheduler
	s.StaleAfter = c.HostStaleAfter
	r := &rules{document: d}
	var err error
	if r.placer, err = scheduler.New(s); err != nil {
		return nil, err
	}
	if r.retry, err = scheduler.NewRetryPolicy(d.Retry); err != nil {
		return nil, err
	}
	if r.affinity, err = scheduler.NewAffinityPolicy(d.Affinity, d.Scheduler.Scarce); err != nil {
		return nil, err
	}
	if r.breakers, err = scheduler.NewBreakers(d.Breaker); err != nil {
		return nil, err
	}
	if older == nil {
		r.budget = &budget{RetryBudget: r.retry.Budget()}
	} else {
		older.breakers.Adopt(r.breakers)
		r.breakers, r.budget = older.breakers, older.budget
		r.budget.mu.Lock()
		r.budget.Adopt(r.retry)
		r.budget.mu.Unlock()
	}
	switch {
	case len(d.External.Scorers) == 0:
	case older != nil && reflect.DeepEqual(older.document.External.Scorers, d.External.Scorers):
		r.external = older.external
	default:
		r.external = extscore.New(d.External, seen)
	}
	return r, nil
}

// score asks those who are asked over HTTP about the best hosts for q and writes
// what they say into it, so that the decision can be remembered and made again.
// Nobody holds the fleet meanwhile. With nobody to ask it does nothing.
func (m *Master) score(ctx context.Context, r *rules, q *scheduler.Request) error {
	if q.External = nil; r.external == nil || q.Direct != "" {
		return nil
	}
	if _, _, err := m.fleet.now(ctx); err != nil {
		return err
	}
	var ask *extscore.Question
	m.fleet.choosing(func(v *scheduler.View, now time.Time) { ask = r.question(v, m.fleet.ledger, q, now) })
	return r.score(ctx, q, ask)
}

// score writes the scores into q; nil: there is nothing to ask.
func (r *rules) score(ctx context.Context, q *scheduler.Request, ask *extscore.Question) (err error) {
	if ask != nil {
		q.External, err = r.external.Score(ctx, *ask)
	}
	return err
}

// question is what to ask about q: nothing if there are no two hosts to choose
// from. A request that no host is fit for is left to the choice, which says why.
func (r *rules) question(v *scheduler.View, l *scheduler.Ledger, q *scheduler.Request, now time.Time) *extscore.Question {
	if r.external == nil {
		return nil
	}
	best, err := r.placer.Best(v, l, *q, r.document.External.Candidates, now)
	if err != nil || len(best) < 2 {
		return nil
	}
	return questionOf(v, q, best)
}

func questionOf(v *scheduler.View, q *scheduler.Request, best []scheduler.Scored) *extscore.Question {
	amounts := func(r host.Resources) extscore.Resources { return extscore.Resources(r) }
	out := &extscore.Question{
		Request: extscore.Request{
			SandboxID: string(q.Sandbox), TemplateID: string(q.Template), ArtifactID: string(q.Artifact), InstanceType: q.InstanceType,
			Labels: q.Labels, Resources: amounts(q.Resources),
		},
		Candidates: make([]extscore.Candidate, 0, len(best)),
	}
	for _, b := range best {
		f, _ := v.Host(b.Host) // it is of this view
		out.Candidates = append(out.Candidates, extscore.Candidate{
			HostID: string(b.Host), Score: b.Score, InstanceType: f.InstanceType, Zone: f.Zone, Labels: f.Labels,
			Allocatable: amounts(f.Allocatable), Allocated: amounts(f.Allocated), Sandboxes: f.Sandboxes, CPUUtil: f.CPUUtil,
		})
	}
	return out
}
