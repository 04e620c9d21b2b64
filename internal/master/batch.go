package master

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
)

const (
	// batchCreator holds the submissions of batches.
	batchCreator = "sandbox_batch"
	// batchCalls is how many hosts a batch calls at once.
	batchCalls = 64
	// batchRounds is how often those are placed anew that a host did not make.
	batchRounds = 8
	// maxBatchBody is more than a batch of ordinary requests has.
	maxBatchBody = 8 << 20
)

// batch is a request for several sandboxes while it is worked on.
type batch struct {
	all   bool
	parts []*part
	sub   store.Submission // without an id: it may not be sent again
	kept  []byte           // the answer of an earlier batch of the same id
	rules *rules

	stored int // bytes of the requests
}

// part is one sandbox of a batch.
type part struct {
	*plan
	t    *attempts
	c    choice
	away *scheduler.Affinity // of its request, without those of the batch
	host host.Facts
	made bool
	err  error // why it will not be; nil: it may
}

func (m *Master) serveBatch(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var req cubeapi.SandboxBatchRequest
	unknown, err := serve.ReadJSONWarn(r, maxBatchBody, &req)
	var who tenant
	if err == nil {
		who, err = tenantOf(r, &req.SandboxCreateRequest)
	}
	var parts []*part
	if err == nil {
		parts, err = m.createBatch(r.Context(), who, &req)
	}
	m.createEnded(began, err)
	answer := showBatch(req.Mode, parts)
	switch {
	case err != nil && len(parts) > 0:
		serve.WriteErrorWith(w, r, err, answer)
	case err != nil:
		refuseCreate(w, r, err)
	default:
		answer.Envelope = cubeapi.OK(named(r, req.RequestID))
		answer.Warnings = warnings(unknown)
		serve.WriteJSON(w, http.StatusOK, answer)
	}
}

func showBatch(mode string, parts []*part) cubeapi.SandboxBatchAnswer {
	a := cubeapi.SandboxBatchAnswer{Mode: mode, Data: []cubeapi.BatchResult{}}
	for i, p := range parts {
		one := cubeapi.BatchResult{Index: i}
		if p.err != nil {
			d := fault.DetailOf(p.err)
			one.Error = &d
			a.Failed++
		} else {
			one.SandboxID, one.SandboxIP, one.HostID, one.HostIP = string(p.row.ID), p.row.IP, string(p.host.ID), p.host.IP
			a.Created++
		}
		a.Data = append(a.Data, one)
	}
	return a
}

// newBatch checks a request and takes it apart.
func (m *Master) newBatch(req *cubeapi.SandboxBatchRequest) (*batch, error) {
	if req.Mode == "" {
		req.Mode = cubeapi.BatchAll
	}
	b := &batch{all: req.Mode == cubeapi.BatchAll, rules: m.rules.Load()}
	n := max(req.Count, len(req.Requests))
	switch {
	case req.Mode != cubeapi.BatchAll && req.Mode != cubeapi.BatchBestEffort:
		return nil, fault.New(fault.InvalidInput, "mode %.64q: %s or %s", req.Mode, cubeapi.BatchAll, cubeapi.BatchBestEffort)
	case req.Count != 0 && len(req.Requests) > 0:
		return nil, fault.New(fault.InvalidInput, "count and requests: a batch is of one kind, or each is told")
	case n < 1 || n > cubeapi.MaxBatch || req.Count < 0:
		return nil, fault.New(fault.InvalidInput, "a batch of %d sandboxes: 1 to %d", n, cubeapi.MaxBatch)
	}
	if err := checkRequestID(req.RequestID); err != nil {
		return nil, err
	}
	if req.RequestID != "" {
		body, err := json.Marshal(req)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		b.sub = store.Submission{Holder: batchCreator, ID: req.RequestID, Fingerprint: sum[:]}
	}
	for i := range n {
		one := req.SandboxCreateRequest
		if len(req.Requests) > 0 {
			one = req.Requests[i]
			if one.RequestID != "" {
				return nil, fault.New(fault.InvalidInput, "requests[%d].requestID: the batch has one for all", i)
			}
			if caller := req.Labels[labelCaller]; caller != "" {
				one.Labels = maps.Clone(one.Labels)
				if one.Labels == nil {
					one.Labels = map[string]string{}
				}
				one.Labels[labelCaller] = caller
			}
		}
		one.RequestID = ""
		if err := checkCreate(&one); err != nil {
			return nil, fmt.Errorf("requests[%d]: %w", i, err)
		}
		if err := b.checkStored(one, n); err != nil {
			return nil, err
		}
		b.parts = append(b.parts, &part{plan: &plan{req: one, rules: b.rules}})
	}
	return b, nil
}

// createBatch makes sandboxes in a number of commits that does not depend on
// how many they are: one for all rows and choices, one for all that came of
// them, and one for each round in which some are placed anew.
func (m *Master) createBatch(whole context.Context, who tenant, req *cubeapi.SandboxBatchRequest) ([]*part, error) {
	b, err := m.newBatch(req)
	if err != nil {
		return nil, err
	}
	limit := m.cfg.Master.CreateTimeout * time.Duration(1+len(b.parts)/batchCalls)
	ctx, cancel := context.WithTimeout(whole, limit)
	defer cancel()
	for _, p := range b.parts {
		p.who = who.name
	}
	leave, err := m.enterN(ctx, who.name, kindOf(req.SandboxCreateRequest), len(b.parts))
	if err != nil {
		return nil, inTime(ctx, limit, err)
	}
	defer leave()
	for {
		again, err := m.beginBatch(ctx, b)
		if err != nil {
			m.discharge(b.parts)
			return nil, inTime(ctx, limit, err)
		}
		if again == nil {
			break
		}
		parts, failed, err := m.followBatch(ctx, b, again)
		if err != nil || !failed {
			return parts, inTime(ctx, limit, err)
		}
		// The try that was followed failed and left nothing: it is our turn.
	}
	limit += b.probeTime() // their programs have their own time
	longer, done := context.WithTimeout(whole, limit)
	defer done()
	return m.runBatch(longer, b, limit)
}

// probeTime is how long the programs of a batch may take to serve.
func (b *batch) probeTime() (longest time.Duration) {
	for _, p := range b.parts {
		longest = max(longest, p.probe.Limit())
	}
	return longest
}

// mergeBatch resolves the templates and merges each request, as of one moment.
// It returns what an earlier batch of the same request made.
func (m *Master) mergeBatch(ctx context.Context, b *batch) (again []string, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) error {
		if again, err = b.earlier(ctx, tx); err != nil || again != nil {
			return err
		}
		known := map[string]*plan{}
		for i, p := range b.parts {
			if err := b.mergeOne(ctx, tx, p, known); err != nil {
				return fmt.Errorf("requests[%d]: %w", i, err)
			}
		}
		return nil
	})
	return again, err
}

func (b *batch) mergeOne(ctx context.Context, tx *store.Tx, p *part, known map[string]*plan) (err error) {
	name := cmp.Or(p.templateName(), p.req.SnapshotID)
	if one := known[name]; one != nil {
		p.template, p.artifact, p.from = one.template, one.artifact, one.from
		if p.from.ID != "" {
			if err := p.inherit(); err != nil {
				return err
			}
		}
	} else {
		if err := p.read(ctx, tx); err != nil {
			return err
		}
		if p.artifact, err = templatedb.GetArtifact(ctx, tx, p.bytes()); err != nil {
			return err
		}
		known[name] = p.plan
	}
	if err := p.merge(); err != nil {
		return err
	}
	p.asks, err = p.request()
	return err
}

// errFirst says that no earlier batch had this request id.
var errFirst = errors.New("the first of its id")

// earlier returns what an earlier batch of the same request id made, nil for
// none.
func (b *batch) earlier(ctx context.Context, tx *store.Tx) (ids []string, err error) {
	if b.sub.ID == "" {
		return nil, nil
	}
	answer, err := tx.Once(ctx, b.sub, func() ([]byte, error) { return nil, errFirst })
	if errors.Is(err, errFirst) {
		return nil, nil
	}
	if err == nil {
		b.kept = answer
		err = json.Unmarshal(answer, &ids)
	}
	return ids, err
}

// refusedMark begins, in the answer that is kept, the code of a sandbox that no
// host was found for.
const refusedMark = "!"

// entries is the answer that is kept.
func (b *batch) entries() ([]byte, error) {
	list := make([]string, len(b.parts))
	for i, p := range b.parts {
		if list[i] = string(p.row.ID); p.err != nil {
			list[i] = refusedMark + fault.Of(p.err).Name
		}
	}
	return json.Marshal(list)
}

// followBatch waits for what an earlier batch of the same request makes. failed
// tells that it came to nothing, and that its answer is forgotten.
func (m *Master) followBatch(ctx context.Context, b *batch, ids []string) (parts []*part, failed bool, err error) {
	made, lost, none := 0, 0, 0
	for _, id := range ids {
		p := &part{plan: &plan{}}
		if name, refused := strings.CutPrefix(id, refusedMark); refused {
			none++
			p.err = fault.FromName(name, http.StatusServiceUnavailable, "no host was found for it")
		} else {
			p.row, p.host, p.err = m.follow(ctx, sandbox.ID(id))
			if ctx.Err() != nil {
				return nil, false, errors.Join(ctx.Err(), p.err)
			}
		}
		switch {
		case p.err == nil:
			made++
		case failedCreate(p.row):
			lost++
		}
		parts = append(parts, p)
	}
	// One of which nothing came to be counts for nothing, as a create does that
	// found no host.
	if lost == 0 && none < len(ids) || made > 0 && !b.all {
		return parts, false, nil
	}
	err = m.update(ctx, func(tx *store.Tx) error { return tx.Forget(ctx, b.sub.Holder, b.sub.ID, b.kept) })
	return nil, true, err
}

// discharge ends the charges of a batch that is not stored.
func (m *Master) discharge(parts []*part) {
	for _, p := range parts {
		if p.row.ID != "" {
			m.fleet.ledger.Release(p.row.ID)
		}
	}
}

// storeBatch stores the rows with their choices in tx, or says which hosts were
// shut since they were chosen.
func (m *Master) storeBatch(ctx context.Context, tx *store.Tx, b *batch) (shut map[host.ID]string, err error) {
	if shut, err = b.gates(ctx, tx, b.parts); err != nil || len(shut) > 0 {
		return shut, err
	}
	pinned := map[string]bool{}
	for _, p := range b.parts {
		if p.err != nil {
			continue
		}
		if id := string(p.template.ID); !pinned[id] {
			pinned[id] = true
			if err := templatedb.Pin(ctx, tx, p.template); err != nil {
				return nil, err
			}
		}
		row := p.row
		row.HostID, row.ExpiresAt = "", time.Time{}
		if t := p.req.Timeout; t != nil && *t != forever {
			row.ExpiresAt = tx.Now.Add(time.Duration(*t) * time.Second)
		}
		if row, err = sandboxdb.AddSandbox(ctx, tx, row); err != nil {
			return nil, err
		}
		if p.row, err = m.chargedIn(ctx, tx, row, p.c); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// chargedIn notes in a row which host was chosen for it.
func (m *Master) chargedIn(ctx context.Context, tx *store.Tx, row sandbox.Sandbox, c choice) (sandbox.Sandbox, error) {
	row.HostID = c.decision.Host
	row, err := sandboxdb.MoveSandbox(ctx, tx, row, sandbox.OnCharged)
	if err != nil {
		return row, err
	}
	return row, m.remember(ctx, tx, c)
}

// gates is gate for all hosts that were chosen, each once.
func (b *batch) gates(ctx context.Context, tx *store.Tx, parts []*part) (map[host.ID]string, error) {
	facts, shut := map[host.ID]host.Facts{}, map[host.ID]string{}
	for _, p := range parts {
		id := p.c.decision.Host
		if p.err != nil {
			continue
		}
		if _, ok := facts[id]; !ok {
			f, why, err := gate(ctx, tx, id)
			if err != nil {
				return nil, err
			}
			if facts[id] = f; why != "" && !p.asks.Force {
				shut[id] = why
			}
		}
		p.host = facts[id]
	}
	return shut, nil
}
