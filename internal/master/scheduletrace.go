package master

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/scheduler/sim"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	traceDefault = 100_000
	traceMost    = 2_000_000
	tracePage    = 1000 // rows that are read in one transaction
)

// serveTrace writes the creates that are remembered as a trace, one a line, in
// the order in which they were first decided on.
func (m *Master) serveTrace(w http.ResponseWriter, r *http.Request) {
	since, limit, err := windowOf(r)
	var page []sandboxdb.Asked
	if err == nil {
		page, err = m.asked(r.Context(), sandboxdb.AskedAfter{At: since}, min(limit, tracePage))
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := json.NewEncoder(w)
	var began time.Time // times of a trace count from its first create
	if len(page) > 0 {
		began = page[0].At
	}
	for len(page) > 0 {
		for _, a := range page {
			e, err := eventOf(a, began)
			if err == nil {
				err = lines.Encode(e)
			}
			if err != nil {
				m.broken(r.Context(), err)
			}
		}
		limit -= len(page)
		last := page[len(page)-1]
		if limit == 0 || len(page) < tracePage {
			return
		}
		if page, err = m.asked(r.Context(), sandboxdb.AskedAfter{At: last.At, ID: last.SandboxID}, min(limit, tracePage)); err != nil {
			m.broken(r.Context(), err)
		}
	}
}

// broken breaks an answer off whose first lines are gone: a trace that ends too
// early must not look whole.
func (m *Master) broken(ctx context.Context, err error) {
	m.log.WarnContext(ctx, "trace broken off", slog.String("error", err.Error()))
	panic(http.ErrAbortHandler)
}

func (m *Master) asked(ctx context.Context, after sandboxdb.AskedAfter, limit int) (page []sandboxdb.Asked, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		page, err = sandboxdb.ListAsked(ctx, tx, after, limit)
		return err
	})
	return page, err
}

func windowOf(r *http.Request) (since time.Time, limit int, err error) {
	q := r.URL.Query()
	if given := q.Get("since"); given != "" {
		if since, err = time.Parse(time.RFC3339Nano, given); err != nil || since.Before(time.UnixMicro(0)) {
			return since, 0, fault.New(fault.InvalidInput, "since %.40q: write a time such as 2026-01-02T15:04:05Z", given)
		}
	}
	since, limit = since.Truncate(time.Microsecond), traceDefault
	if given := q.Get("limit"); given != "" {
		if limit, err = strconv.Atoi(given); err != nil || limit < 1 || limit > traceMost {
			return since, 0, fault.New(fault.InvalidInput, "limit %.20q: must be 1 to %d", given, traceMost)
		}
	}
	return since, limit, nil
}

// eventOf is a create as a simulation takes it. One that never ran has no life,
// and stays in a simulation as long as others do on average.
func eventOf(a sandboxdb.Asked, began time.Time) (sim.Event, error) {
	var d cubeapi.Decision
	if err := json.Unmarshal(a.Body, &d); err != nil {
		return sim.Event{}, err
	}
	p := d.Request
	e := sim.Event{
		At: a.At.Sub(began), Sandbox: a.SandboxID, Tenant: p.Tenant, TemplateID: template.ID(p.TemplateID), Artifact: template.ArtifactID(p.ArtifactID),
		Kind: p.InstanceType, Size: p.Resources, Labels: p.Labels, Refused: !a.Ran && (a.Kind == sandboxdb.DecisionRefused || !a.Ended.IsZero()),
	}
	if a.Ran && !a.Ended.IsZero() {
		e.Life = max(1, a.Ended.Sub(a.At))
	}
	for _, id := range p.Scope {
		e.Scope = append(e.Scope, host.ID(id))
	}
	if p.Affinity != nil {
		for _, t := range p.Affinity.Terms {
			var term scheduler.Term
			for _, r := range t {
				term = append(term, scheduler.Requirement{Key: r.Key, Operator: scheduler.Operator(r.Operator), Values: r.Values})
			}
			e.Terms = append(e.Terms, term)
		}
	}
	return e, nil
}

// serveFleet writes the hosts as a simulation takes them, one a line: what they
// are, and not what they hold of sandboxes.
func (m *Master) serveFleet(w http.ResponseWriter, r *http.Request) {
	v, _, err := m.fleet.now(r.Context()) // what a decision looks at
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	if err := sim.WriteFleet(w, v.Hosts()); err != nil {
		m.log.WarnContext(r.Context(), "fleet broken off", slog.String("error", err.Error()))
	}
}
