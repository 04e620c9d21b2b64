package master

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/template"
)

// errShut rolls a transaction back whose hosts were shut since they were chosen.
var errShut = errors.New("hosts were shut")

// beginBatch stores all sandboxes of a batch with their hosts, or returns what
// an earlier batch of the same request made.
func (m *Master) beginBatch(ctx context.Context, b *batch) (again []string, err error) {
	if again, err = m.mergeBatch(ctx, b); err != nil || again != nil {
		return again, err
	}
	for _, p := range b.parts {
		p.err, p.made = nil, false
		p.t = &attempts{rules: b.rules, request: p.asks}
		p.t.request.Seed, p.missed = rand.Uint64(), nil
		b.rules.budget.earn()
	}
	if err := m.locateBatch(ctx, b); err != nil {
		return nil, err
	}
	m.fleet.changed() // one look more is little beside what it is for
	if err := m.scoreBatch(ctx, b); err != nil {
		return nil, err
	}
	for {
		if err := m.chooseBatch(ctx, b, b.parts); err != nil {
			return nil, err
		}
		var shut map[host.ID]string
		err := m.update(ctx, func(tx *store.Tx) (err error) {
			shut, again = nil, nil
			if b.sub.ID == "" {
				if shut, err = m.storeBatch(ctx, tx, b); err == nil && len(shut) > 0 {
					err = errShut
				}
				return err
			}
			if again, err = b.earlier(ctx, tx); err != nil || again != nil {
				return err
			}
			_, err = tx.Once(ctx, b.sub, func() ([]byte, error) {
				var err error
				if shut, err = m.storeBatch(ctx, tx, b); err == nil && len(shut) > 0 {
					err = errShut
				}
				if err != nil {
					return nil, err
				}
				return b.entries()
			})
			return err
		})
		if again != nil {
			m.discharge(b.parts)
		}
		if !errors.Is(err, errShut) {
			return again, err
		}
		m.shutOut(b.parts, shut)
	}
}

// scoreBatch asks the external scorers once for all requests of a template, a
// kind and a size.
func (m *Master) scoreBatch(ctx context.Context, b *batch) error {
	type shape struct {
		template  template.ID
		kind      string
		resources host.Resources
	}
	asked := map[shape]map[host.ID]float64{}
	for _, p := range b.parts {
		q := &p.t.request
		s := shape{q.Template, q.InstanceType, q.Resources}
		scores, ok := asked[s]
		if !ok {
			if err := m.score(ctx, b.rules, q); err != nil {
				return err
			}
			scores, asked[s] = q.External, q.External
		}
		q.External = scores
	}
	return nil
}

// shutOut keeps those parts away from shut hosts that were to go there.
func (m *Master) shutOut(parts []*part, shut map[host.ID]string) {
	m.fleet.changed()
	m.metrics.refused.WithLabelValues("gate").Add(float64(len(shut)))
	for _, p := range parts {
		if p.err != nil {
			continue
		}
		// All are chosen anew, in one step: what one had may suit another.
		m.fleet.ledger.Release(p.row.ID)
		for _, id := range slices.Sorted(maps.Keys(shut)) {
			p.t.last = fault.New(fault.NoHost, "host %s: %s", id, shut[id])
			if !slices.Contains(p.t.request.Exclude, id) {
				p.t.request.Exclude = append(p.t.request.Exclude, id)
			}
		}
		if p.t.request.Direct != "" {
			p.t.request.Scope = []host.ID{""} // nobody else will do
		}
	}
}

// locateBatch is locate for all. What many ask in the same words is looked up
// once.
func (m *Master) locateBatch(ctx context.Context, b *batch) error {
	var last *part
	for _, p := range b.parts {
		if last != nil && last.req.InsIP == p.req.InsIP && last.req.Affinity == p.req.Affinity && p.req.Affinity != nil {
			p.t.request.Affinity, p.t.request.Direct = last.t.request.Affinity, last.t.request.Direct
		} else if err := m.locate(ctx, p.plan, &p.t.request); err != nil {
			return err
		}
		last, p.away = p, p.t.request.Affinity
	}
	return nil
}

// chooseBatch chooses and charges hosts for those parts, in one step. Of a batch
// that is to be whole, one that finds no host is everybody's refusal.
func (m *Master) chooseBatch(ctx context.Context, b *batch, parts []*part) error {
	if _, _, err := m.fleet.now(ctx); err != nil {
		return err
	}
	open := slices.DeleteFunc(slices.Clone(parts), func(p *part) bool { return p.err != nil })
	began := time.Now()
	var decisions []scheduler.Decision
	var errs []error
	var at time.Time
	m.fleet.choosing(func(v *scheduler.View, now time.Time) {
		at = now
		if slices.ContainsFunc(open, func(p *part) bool { return keepsApart(p.away) }) {
			decisions, errs = m.chooseApart(v, b, open, now)
			return
		}
		list := make([]scheduler.Request, len(open))
		for i, p := range open {
			list[i] = p.t.request
		}
		decisions, errs = b.rules.placer.ChooseAll(v, m.fleet.ledger, list, b.all, now)
	})
	took := time.Since(began) / time.Duration(max(1, len(open)))
	var refused error
	for i, p := range open {
		p.t.chosen++
		p.c = choice{request: p.t.request, decision: decisions[i], attempt: p.t.chosen, at: at, after: p.t.last, tenant: p.who}
		m.decided(decisions[i], took)
		if errs[i] == nil {
			continue
		}
		if noHostFits(errs[i]) {
			p.c.refused, p.missed = errs[i], &p.c
		}
		p.err = p.t.explain(&unplaced{errs[i], decisions[i]})
		if u := new(unplaced); refused == nil || errors.As(p.err, &u) && u.decision.Considered > 0 {
			refused = p.err
		}
	}
	if b.all {
		return refused
	}
	return nil
}

func keepsApart(a *scheduler.Affinity) bool { return a != nil && len(a.Spread) > 0 }

// chooseApart chooses one after the other: those that keep apart count those of
// the same batch too.
func (m *Master) chooseApart(v *scheduler.View, b *batch, parts []*part, now time.Time) (decisions []scheduler.Decision, errs []error) {
	decisions, errs = make([]scheduler.Decision, len(parts)), make([]error, len(parts))
	at := map[*part]host.ID{} // where those of the batch are
	for _, p := range b.parts {
		if p.err == nil && p.row.HostID != "" && !slices.Contains(parts, p) {
			at[p] = p.row.HostID
		}
	}
	for i, p := range parts {
		r := &p.t.request
		if keepsApart(p.away) {
			r.Affinity, errs[i] = apartFrom(p, at)
		}
		if errs[i] == nil {
			decisions[i], errs[i] = b.rules.placer.Choose(v, m.fleet.ledger, *r, now)
		}
		if errs[i] == nil {
			at[p] = decisions[i].Host
			continue
		}
		if !b.all {
			continue
		}
		for k := range parts {
			if k < i {
				m.fleet.ledger.Release(parts[k].row.ID)
			}
			errs[k] = errs[i]
		}
		return decisions, errs
	}
	return decisions, errs
}

// apartFrom adds to the peers of p those of its batch that carry the labels it
// keeps apart from.
func apartFrom(p *part, at map[*part]host.ID) (*scheduler.Affinity, error) {
	all := *p.away
	all.Spread = slices.Clone(all.Spread)
	for i := range all.Spread {
		peers := maps.Clone(all.Spread[i].Peers)
		if peers == nil {
			peers = map[host.ID]int{}
		}
		for other, h := range at {
			if carries(other.row.Metadata, p.req.Affinity.Spread[i].Labels) {
				peers[h]++
			}
		}
		all.Spread[i].Peers = peers
	}
	return all.Checked()
}

func carries(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// runBatch has the hosts make what is stored, and notes in one commit what came
// of it. Of a batch that is to be whole, one that fails ends all.
func (m *Master) runBatch(ctx context.Context, b *batch, limit time.Duration) ([]*part, error) {
	ids := []sandbox.ID{}
	for _, p := range b.parts {
		if p.err == nil {
			ids = append(ids, p.row.ID)
		}
	}
	if len(ids) == 0 {
		return b.parts, b.parts[0].err
	}
	defer m.keepMaking(ctx, ids...)()
	if err := m.step("master.batch.after_rows"); err != nil {
		return nil, err
	}
	truths := make([]*hostpb.HostTruth, len(b.parts))
	err := m.makeBatch(ctx, b, truths)
	if err == nil {
		if err := m.step("master.batch.after_hosts"); err != nil {
			return nil, err
		}
	}
	return m.settleBatch(ctx, b, truths, inTime(ctx, limit, err))
}

// makeBatch calls the hosts, and places anew what they did not make.
func (m *Master) makeBatch(ctx context.Context, b *batch, truths []*hostpb.HostTruth) error {
	todo := make([]int, 0, len(b.parts))
	for i, p := range b.parts {
		if p.err == nil {
			todo = append(todo, i)
		}
	}
	for round := 0; len(todo) > 0; round++ {
		verdicts := make([]scheduler.Verdict, len(b.parts))
		var group errgroup.Group
		group.SetLimit(batchCalls)
		for _, i := range todo {
			group.Go(func() error {
				p := b.parts[i]
				made, v, err := m.askHost(ctx, p.plan, p.host, p.t)
				verdicts[i], p.err = v, err
				if err == nil {
					p.made, p.row.IP, truths[i] = true, made.GetSandbox().GetIp(), made.GetTruth()
				}
				return nil
			})
		}
		_ = group.Wait() // each failure is in its part
		var again []int
		pause := time.Duration(0)
		for _, i := range todo {
			switch p := b.parts[i]; {
			case p.made:
			case verdicts[i].Again && ctx.Err() == nil && round < batchRounds:
				again, pause = append(again, i), max(pause, verdicts[i].Wait)
			case b.all:
				return p.err
			}
		}
		if len(again) == 0 {
			return nil
		}
		err := wait(ctx, pause)
		if err == nil {
			todo, err = m.placeAnew(ctx, b, again)
		}
		if err != nil && b.all {
			return err
		}
		if err != nil { // those that hosts have made stay
			for _, i := range again {
				b.parts[i].err = cmp.Or(b.parts[i].err, err)
			}
			return nil
		}
	}
	return nil
}

// placeAnew takes sandboxes back from the hosts that did not make them and gives
// them to others, in one commit. Those for which there is none have failed.
func (m *Master) placeAnew(ctx context.Context, b *batch, again []int) (todo []int, err error) {
	var parts []*part
	for _, i := range again {
		p := b.parts[i]
		m.fleet.ledger.Release(p.row.ID)
		p.t.request.Exclude, p.err = append(p.t.request.Exclude, p.host.ID), nil
		parts = append(parts, p)
	}
	for {
		if err := m.chooseBatch(ctx, b, parts); err != nil {
			return nil, err
		}
		var shut map[host.ID]string
		rows, fates := make([]sandbox.Sandbox, len(parts)), make([]error, len(parts))
		from := make([]host.ID, len(parts))
		for i, p := range parts {
			from[i] = p.row.HostID
		}
		err := m.db.Update(ctx, func(tx *store.Tx) (err error) {
			if shut, err = b.gates(ctx, tx, parts); err == nil && len(shut) > 0 {
				err = errShut
			}
			for i, p := range parts {
				if err != nil {
					return err
				}
				if fates[i] = p.err; p.err != nil {
					continue
				}
				if rows[i], err = m.bounceIn(ctx, tx, p.row); err == nil {
					rows[i], err = m.chargedIn(ctx, tx, rows[i], p.c)
				}
				if errors.Is(err, fault.VersionConflict) && !b.all {
					fates[i], err = changed(err, p.row.ID), nil
				}
			}
			return err
		})
		if errors.Is(err, errShut) {
			m.shutOut(parts, shut)
			continue
		}
		if err != nil {
			return nil, changed(err, parts[0].row.ID)
		}
		for i, p := range parts {
			if p.err = fates[i]; p.err == nil {
				m.log.InfoContext(ctx, "sandbox placed anew", slog.String("sandbox_id", string(p.row.ID)), slog.String("host_id", string(from[i])))
				p.row = rows[i]
				todo = append(todo, again[i])
			}
		}
		m.deliverSoon(topicSandboxDelete)
		return todo, nil
	}
}

// settleBatch writes what came of a batch, in one commit and whether or not the
// caller is still there. Nothing is left of those that failed.
func (m *Master) settleBatch(ctx context.Context, b *batch, truths []*hostpb.HostTruth, why error) ([]*part, error) {
	fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*hostCall)
	defer cancel()
	if why == nil && errors.Is(ctx.Err(), context.Canceled) {
		why = ctx.Err() // nobody would know of them
	}
	rows, fates := make([]sandbox.Sandbox, len(b.parts)), make([]error, len(b.parts))
	err := m.update(fresh, func(tx *store.Tx) error {
		for i, p := range b.parts {
			rows[i], fates[i] = p.row, p.err
			if p.err != nil || why != nil {
				continue
			}
			row, err := sandboxdb.MoveSandbox(fresh, tx, p.row, sandbox.OnStarted)
			if errors.Is(err, fault.VersionConflict) {
				fates[i] = changed(err, p.row.ID)
				if b.all {
					return fates[i]
				}
				continue
			}
			if err != nil {
				return err
			}
			if rows[i] = row; err == nil {
				err = m.routeChanged(fresh, tx, row.ID)
			}
			if err != nil {
				return err
			}
		}
		for i, p := range b.parts {
			if fate := errors.Join(fates[i], why); fate != nil && p.row.Version > 0 {
				if err := m.abandonIn(fresh, tx, p.plan, fate); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil && why == nil { // the sandboxes are there, and the rows cannot say so
		return m.settleBatch(ctx, b, truths, err)
	}
	if err != nil {
		m.log.ErrorContext(ctx, "failed batch not undone; a sweep will try again", slog.String("error", err.Error()))
	}
	for i, p := range b.parts {
		if p.row, p.err = rows[i], errors.Join(fates[i], why); p.err != nil {
			m.fleet.ledger.Release(p.row.ID)
		} else {
			m.fleet.took(p.row.ID, p.host.ID, p.row.ChangedAt, truths[i])
		}
	}
	m.deliverSoon(topicSandboxDelete)
	m.deliverSoon(topicRoute)
	if why != nil || !slices.ContainsFunc(b.parts, func(p *part) bool { return p.err == nil }) {
		return b.parts, errors.Join(why, b.parts[0].err)
	}
	return b.parts, nil
}
