package master

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	// maxDecision bounds what is kept of one decision, in bytes of its JSON.
	maxDecision = 8 << 10
	maxWhy      = 512
)

// choice is one decision of a create, as it is remembered.
type choice struct {
	request  scheduler.Request
	decision scheduler.Decision
	attempt  int // 1: the first
	at       time.Time
	after    error  // why the attempt before failed; nil: there was none
	refused  error  // no host was fit, for this reason; nil: one was
	tenant   string // who asked
}

// remember notes a decision in the transaction that acts on it: that which
// charges its host, or, if there was none, that which ends the sandbox. The
// note goes with the sandbox's row.
func (m *Master) remember(ctx context.Context, tx *store.Tx, c choice) error {
	c.at = c.at.Truncate(time.Microsecond) // as rows have it
	d := showChoice(c)
	body, err := keptDecision(&d)
	if err != nil {
		return err
	}
	kept := sandboxdb.Decision{SandboxID: c.request.Sandbox, Attempt: c.attempt, At: c.at, Kind: sandboxdb.DecisionPlaced, HostID: c.decision.Host, Body: body}
	if c.refused != nil {
		kept.Kind, kept.HostID = sandboxdb.DecisionRefused, ""
	}
	return sandboxdb.AddDecision(ctx, tx, kept)
}

// keptDecision returns d as it is kept, without what would make it too long.
func keptDecision(d *cubeapi.Decision) ([]byte, error) {
	body, err := json.Marshal(d)
	for _, part := range []struct {
		name string
		drop func()
	}{
		{"affinity", func() { d.Request.Affinity = nil }},
		{"labels", func() { d.Request.Labels = nil }},
		{"distribution_scope", func() { d.Request.Scope = nil }},
		{"excluded", func() { d.Request.Excluded = nil }},
		{"dropped", func() { d.Dropped = []cubeapi.DropCount{} }},
		{"request", func() { d.Request = cubeapi.Placement{Resources: d.Request.Resources, Seed: d.Request.Seed} }},
	} {
		if err != nil || len(body) <= maxDecision {
			break
		}
		part.drop()
		d.Clipped = append(d.Clipped, part.name)
		body, err = json.Marshal(d)
	}
	return body, err
}

func showChoice(c choice) cubeapi.Decision {
	d := showDecision(&c.decision, c.refused)
	d.SandboxID, d.Attempt, d.At, d.Request = string(c.request.Sandbox), c.attempt, stamp(c.at), showPlacement(&c.request, c.tenant)
	if c.after != nil {
		d.After = fault.Clip(c.after.Error(), maxWhy)
	}
	return d
}

// showDecision shows a decision, and why it is a refusal if it is one.
func showDecision(d *scheduler.Decision, refused error) cubeapi.Decision {
	out := cubeapi.Decision{
		Kind: cubeapi.DecisionPlaced, HostID: string(d.Host), Score: d.Score, RunnerUp: string(d.RunnerUp), RunnerUpScore: d.NextScore, Considered: d.Considered, Fit: d.Fit,
		Dropped: []cubeapi.DropCount{}, Profile: d.Profile, Relaxed: d.Relaxed, Blind: d.Blind,
	}
	for _, o := range d.Out {
		out.Dropped = append(out.Dropped, cubeapi.DropCount{Plugin: o.Plugin, Hosts: o.Hosts})
	}
	if n := d.Nearest; n != nil {
		out.Nearest = &cubeapi.NearestFit{HostID: string(n.Host), Short: n.Short, Text: n.String()}
	}
	if refused != nil {
		out.Kind, out.HostID, out.Code, out.Reason = cubeapi.DecisionRefused, "", fault.Of(refused).Name, fault.Clip(refused.Error(), maxWhy)
	}
	return out
}

func showPlacement(r *scheduler.Request, tenant string) cubeapi.Placement {
	p := cubeapi.Placement{
		TemplateID: string(r.Template), ArtifactID: string(r.Artifact), InstanceType: r.InstanceType, Resources: r.Resources, Labels: r.Labels,
		Affinity: showAffinity(r.Affinity), Direct: string(r.Direct), Force: r.Force, Tenant: tenant, Seed: strconv.FormatUint(r.Seed, 10),
	}
	for _, id := range r.Scope {
		p.Scope = append(p.Scope, string(id))
	}
	for _, id := range r.Exclude {
		p.Excluded = append(p.Excluded, string(id))
	}
	return p
}

func showAffinity(a *scheduler.Affinity) *cubeapi.AffinityTerms {
	if a == nil {
		return nil
	}
	term := func(t scheduler.Term) []cubeapi.Requirement {
		list := make([]cubeapi.Requirement, len(t))
		for i, r := range t {
			list[i] = cubeapi.Requirement{Key: r.Key, Operator: string(r.Operator), Values: r.Values}
		}
		return list
	}
	var out cubeapi.AffinityTerms
	for _, t := range a.Terms {
		out.Terms = append(out.Terms, term(t))
	}
	for _, p := range a.Preferred {
		out.Preferred = append(out.Preferred, cubeapi.Preferred{Weight: p.Weight, Term: term(p.Term)})
	}
	for _, s := range a.Spread {
		out.Spread = append(out.Spread, cubeapi.SpreadTerm{Key: s.Key, MaxSkew: s.MaxSkew, Hard: s.Hard, Labels: s.Labels})
	}
	return &out
}

// serveDecisions says why a sandbox is where it is, or nowhere.
func (m *Master) serveDecisions(w http.ResponseWriter, r *http.Request) {
	list, err := m.decisionsOf(r.Context(), r.URL.Query().Get("sandbox_id"))
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.DecisionsAnswer{Envelope: cubeapi.OK(requestID(r)), Data: list})
}

func (m *Master) decisionsOf(ctx context.Context, id string) ([]cubeapi.Decision, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	list := []cubeapi.Decision{}
	err := m.db.View(ctx, func(tx *store.Tx) error {
		if _, err := sandboxdb.GetSandbox(ctx, tx, sandbox.ID(id)); err != nil {
			return err
		}
		kept, err := sandboxdb.ListDecisions(ctx, tx, sandbox.ID(id))
		list = list[:0]
		for _, k := range kept {
			var d cubeapi.Decision
			err = errors.Join(err, json.Unmarshal(k.Body, &d))
			list = append(list, d)
		}
		return err
	})
	return list, err
}
