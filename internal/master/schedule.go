package master

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
)

// dryID is what stands in the place of a sandbox's id when there is none.
const dryID = "(dry run)"

// planned lays a request over its template and makes nothing of it.
func (m *Master) planned(ctx context.Context, req cubeapi.SandboxCreateRequest) (*plan, error) {
	p := &plan{req: req, rules: m.rules.Load()}
	if err := checkCreate(&p.req); err != nil {
		return nil, err
	}
	return p, m.db.View(ctx, func(tx *store.Tx) (err error) {
		if err := p.read(ctx, tx); err != nil {
			return err
		}
		if p.artifact, err = templatedb.GetArtifact(ctx, tx, p.template.ArtifactID); err != nil {
			return err
		}
		if err := p.merge(); err != nil {
			return err
		}
		p.asks, err = p.request() // what a create would refuse
		return err
	})
}

// dry is a decision that nobody acts on.
type dry struct {
	request  scheduler.Request
	decision scheduler.Decision
	refused  error
	host     host.Facts // that was chosen
	view     *scheduler.View
	out      []host.ID // kept away by their breakers
	at       time.Time
	took     time.Duration
	tenant   string
}

// tryOutOf is tryOut for whoever calls.
func (m *Master) tryOutOf(r *http.Request, req cubeapi.SandboxCreateRequest, seed uint64) (dry, error) {
	who, err := tenantOf(r, &req)
	if err != nil {
		return dry{}, err
	}
	d, err := m.tryOut(r.Context(), req, seed)
	d.tenant = who.name
	return d, err
}

// tryOut decides as a create would now. Nothing is charged, stored or called.
func (m *Master) tryOut(ctx context.Context, req cubeapi.SandboxCreateRequest, seed uint64) (d dry, err error) {
	p, err := m.planned(ctx, req)
	if err != nil {
		return d, err
	}
	if !p.template.State.Usable() {
		return d, fault.New(fault.TemplateNotReady, "template %s", p.template.ID)
	}
	d.request = p.asks
	if err := m.locate(ctx, p, &d.request); err != nil {
		return d, err
	}
	d.request.Sandbox, d.request.Seed, d.request.Explain = dryID, seed, true
	if err := m.score(ctx, p.rules, &d.request); err != nil {
		return d, err
	}
	// A refusal by a view that is not the newest is no answer yet.
	for range 2 {
		if _, _, err := m.fleet.now(ctx); err != nil {
			return d, err
		}
		m.fleet.choosing(func(v *scheduler.View, now time.Time) {
			began := time.Now()
			d.view, d.at = v, now
			d.decision, d.refused = p.rules.placer.Decide(v, m.fleet.ledger, d.request, now)
			d.took = time.Since(began)
		})
		if _, _, fresh := m.fleet.within(viewAge); fresh || d.refused == nil {
			break
		}
	}
	if d.refused != nil && !noHostFits(d.refused) {
		return d, d.refused
	}
	d.host, _ = d.view.Host(d.decision.Host)
	d.out = p.rules.breakers.Out(d.view, d.at)
	return d, nil
}

// noHostFits reports whether err is a decision, and not the lack of one.
func noHostFits(err error) bool {
	code := fault.Of(err)
	return code == fault.NoHost || code == fault.NoCapacity
}

// serveSchedule says where a create would go, and why nowhere else.
func (m *Master) serveSchedule(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var req cubeapi.SandboxCreateRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	var limit int
	var seed uint64
	if err == nil {
		limit, _, err = pageOf(r)
	}
	if err == nil {
		seed, err = seedOf(r)
	}
	var d dry
	if err == nil {
		d, err = m.tryOutOf(r, req, seed)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	answer := d.show(limit, r.URL.Query()["host"])
	answer.Envelope = cubeapi.OK(named(r, req.RequestID))
	answer.Warnings = warnings(unknown)
	answer.Cost = cubeapi.Cost{Select: d.took.Microseconds(), All: time.Since(began).Microseconds()}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func seedOf(r *http.Request) (uint64, error) {
	given := r.URL.Query().Get("seed")
	if given == "" {
		return rand.Uint64(), nil
	}
	seed, err := strconv.ParseUint(given, 10, 64)
	if err != nil {
		return 0, fault.New(fault.InvalidInput, "seed %.30q: must be a number of 0 to %d", given, uint64(1<<64-1))
	}
	return seed, nil
}

// show shows of the hosts that fit and of those that do not the first limit, or
// those that are named.
func (d *dry) show(limit int, only []string) cubeapi.ScheduleAnswer {
	a := cubeapi.ScheduleAnswer{
		Fits: d.refused == nil, HostIP: d.host.IP, Decision: showDecision(&d.decision, d.refused), Parts: parts(d.decision.Parts), RunnerUpParts: parts(d.decision.RunnerUpParts),
		Hosts: []cubeapi.ScoredHost{}, Out: []cubeapi.DroppedHost{},
	}
	a.Decision.At, a.Decision.Request = stamp(d.at), showPlacement(&d.request, d.tenant)
	shown := func(n int, id host.ID) bool {
		return len(only) == 0 && n < limit || len(only) > 0 && slices.Contains(only, string(id))
	}
	// The same decision is always shown alike.
	slices.SortStableFunc(d.decision.Scores, func(x, y scheduler.Scored) int {
		return cmp.Or(cmp.Compare(y.Score, x.Score), cmp.Compare(x.Host, y.Host))
	})
	slices.SortStableFunc(d.decision.Dropped, func(x, y scheduler.Drop) int { return cmp.Compare(x.Host, y.Host) })
	for _, s := range d.decision.Scores {
		if shown(len(a.Hosts), s.Host) {
			a.Hosts = append(a.Hosts, cubeapi.ScoredHost{HostID: string(s.Host), Score: s.Score})
		}
	}
	for _, o := range d.decision.Dropped {
		if shown(len(a.Out), o.Host) {
			a.Out = append(a.Out, cubeapi.DroppedHost{HostID: string(o.Host), Plugin: o.Plugin, Reason: o.Reason})
		}
	}
	for _, id := range slices.Sorted(slices.Values(only)) {
		if _, ok := d.view.Host(host.ID(id)); !ok && !slices.ContainsFunc(a.Out, func(o cubeapi.DroppedHost) bool { return o.HostID == id }) {
			a.Out = append(a.Out, cubeapi.DroppedHost{HostID: id, Plugin: "-", Reason: "no such host is registered"})
		}
	}
	for _, id := range d.out {
		a.BreakersOpen = append(a.BreakersOpen, string(id))
	}
	return a
}

func parts(list []scheduler.Part) []cubeapi.ScorePart {
	var out []cubeapi.ScorePart
	for _, p := range list {
		out = append(out, cubeapi.ScorePart{Plugin: p.Plugin, Score: p.Score, Weight: p.Weight})
	}
	return out
}

// serveFakeCreate is serveSchedule for tools that know no other.
func (m *Master) serveFakeCreate(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var req cubeapi.SandboxCreateRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	var d dry
	if err == nil {
		d, err = m.tryOutOf(r, req, rand.Uint64())
	}
	if err == nil {
		err = d.refused
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	answer := cubeapi.FakeCreateAnswer{Envelope: cubeapi.OK(named(r, req.RequestID)), HostID: string(d.host.ID), HostIP: d.host.IP}
	answer.Warnings = warnings(unknown)
	answer.Cost = cubeapi.Cost{Select: d.took.Microseconds(), All: time.Since(began).Microseconds()}
	serve.WriteJSON(w, http.StatusOK, answer)
}
