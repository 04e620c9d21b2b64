package master

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

// Bounds of a quota, against what the machine has: beyond them no over-commit
// was ever meant.
const (
	quotaCPUTimes = 20
	quotaMemTimes = 3
	quotaMost     = 10_000 // slots, and creates at once
)

const (
	maxDrain = 30 * 24 * time.Hour
	// drainNamed is how many of the sandboxes that are left are named.
	drainNamed = 100
)

// serveWish answers a change of what operators want of a host: change makes it
// and returns what the audit log is to say of it.
func (m *Master) serveWish(w http.ResponseWriter, r *http.Request, action string, change func(f *host.Facts, now time.Time) (detail []string, err error)) {
	f, now, err := m.wish(r.Context(), host.ID(r.PathValue("node_id")), action, change)
	m.answerHost(w, r, m.showHost(f, now), err)
}

// wish changes what operators want of a host, and notes who did. Whoever met
// another's change decides anew.
func (m *Master) wish(ctx context.Context, id host.ID, action string, change func(f *host.Facts, now time.Time) (detail []string, err error)) (f host.Facts, now time.Time, err error) {
	err = m.update(ctx, func(tx *store.Tx) error {
		now = tx.Now
		was, err := sandboxdb.GetHost(ctx, tx, id)
		if err != nil {
			return err
		}
		detail, err := change(&was, tx.Now)
		if err != nil {
			return err
		}
		if err := sandboxdb.PutWish(ctx, tx, was); err != nil {
			return err
		}
		if err := audit(ctx, tx, action, string(id), detail...); err != nil {
			return err
		}
		f, err = sandboxdb.GetHost(ctx, tx, id)
		return err
	})
	m.fleet.changed()
	return f, now, err
}

// serveCordon keeps new sandboxes and templates away from a host, or ends that
// and with it a drain. What is there stays.
func (m *Master) serveCordon(cordoned bool) http.HandlerFunc {
	action := actHostCordon
	if !cordoned {
		action = actHostUncordon
	}
	return func(w http.ResponseWriter, r *http.Request) {
		m.serveWish(w, r, action, func(f *host.Facts, _ time.Time) ([]string, error) {
			f.Cordoned = cordoned
			if !cordoned {
				f.Wish.Drain = host.Drain{}
			}
			return nil, nil
		})
	}
}

// serveHostLabels changes the labels that operators give a host. They stand
// over its own, which only its configuration changes.
func (m *Master) serveHostLabels(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.HostLabelsRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = checkLabelChange(req)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	m.serveWish(w, r, actHostLabel, func(f *host.Facts, _ time.Time) ([]string, error) {
		labels := map[string]string{}
		maps.Copy(labels, f.Wish.Labels)
		for _, key := range req.Remove {
			_, ours := labels[key]
			if _, has := f.Labels[key]; has && !ours {
				return nil, fault.New(fault.StateConflict, "label %s of host %s is in cubelet.labels on the host: take it out there", key, f.ID)
			}
			delete(labels, key)
		}
		maps.Copy(labels, req.Set)
		f.Wish.Labels = labels
		return []string{"set", pairs(req.Set), "removed", strings.Join(req.Remove, " ")}, host.CheckLabels(labels)
	})
}

func checkLabelChange(req cubeapi.HostLabelsRequest) error {
	if len(req.Set)+len(req.Remove) == 0 {
		return fault.New(fault.InvalidInput, "set and remove are empty: name a label")
	}
	if err := host.CheckLabels(req.Set); err != nil {
		return err
	}
	for _, key := range slices.Concat(req.Remove, slices.Collect(maps.Keys(req.Set))) {
		if err := host.CheckLabel(key, ""); err != nil {
			return err
		}
		if host.ReservedLabel(key) {
			return fault.New(fault.InvalidInput, "label %.80q means something to the system and is never set by hand: choose a key of your own", key)
		}
	}
	for _, key := range req.Remove {
		if _, both := req.Set[key]; both {
			return fault.New(fault.InvalidInput, "label %.80q is both to be set and removed", key)
		}
	}
	return nil
}

func pairs(m map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		list = append(list, key+"="+m[key])
	}
	return strings.Join(list, " ")
}

// serveHostQuota replaces the quota of a host, if it is still the one that the
// caller has seen. The host hears of it with its next report.
func (m *Master) serveHostQuota(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.HostQuotaRequest
	if err := serve.ReadJSON(r, maxBody, &req); err != nil {
		serve.WriteError(w, r, err)
		return
	}
	var late error // told once: a change that was decided on another quota is not decided anew
	f, now, err := m.wish(r.Context(), host.ID(r.PathValue("node_id")), actHostQuota, func(f *host.Facts, _ time.Time) ([]string, error) {
		if err := checkQuota(req, f.Capacity); err != nil {
			return nil, err
		}
		if was := f.Wish.Quota.Revision; was != req.ExpectedRevision {
			late = fault.New(fault.VersionConflict, "quota of host %s is at revision %d, not %d", f.ID, was, req.ExpectedRevision)
			return nil, errLate
		}
		f.Wish.Quota = host.Quota{
			Revision: req.ExpectedRevision + 1, MilliCPU: req.MilliCPU, MemBytes: req.MemBytes, DiskBytes: req.DiskBytes, Slots: req.Slots, CreateLimit: req.CreateConcurrentNum,
		}
		detail := []string{"revision", strconv.FormatInt(f.Wish.Quota.Revision, 10)}
		for _, field := range quotaFields(req) {
			if field.value != nil {
				detail = append(detail, field.name, strconv.FormatInt(*field.value, 10))
			}
		}
		return detail, nil
	})
	if errors.Is(err, errLate) {
		err = late
	}
	m.answerHost(w, r, m.showHost(f, now), err)
}

var errLate = errors.New("decided on another quota")

type quotaField struct {
	name  string
	value *int64
}

func quotaFields(q cubeapi.HostQuotaRequest) []quotaField {
	return []quotaField{{"milli_cpu", q.MilliCPU}, {"mem_bytes", q.MemBytes}, {"disk_bytes", q.DiskBytes}, {"slots", q.Slots}, {"create_concurrent_num", q.CreateConcurrentNum}}
}

// checkQuota refuses what a machine of that capacity cannot be meant to give. A
// capacity that the host did not tell bounds nothing.
func checkQuota(q cubeapi.HostQuotaRequest, capacity host.Resources) error {
	times := func(n, factor int64) int64 {
		if n <= 0 {
			return maxAmount
		}
		return min(maxAmount, n*factor)
	}
	most := []int64{times(capacity.MilliCPU, quotaCPUTimes), times(capacity.MemBytes, quotaMemTimes), times(capacity.DiskBytes, 1), quotaMost, quotaMost}
	for i, f := range quotaFields(q) {
		if f.value != nil && (*f.value < 0 || *f.value > most[i]) {
			return fault.New(fault.InvalidInput, "%s %d is not 0 to %d, the most that this host may be told to give", f.name, *f.value, most[i])
		}
	}
	if q.ExpectedRevision < 0 {
		return fault.New(fault.InvalidInput, "expected_revision %d: it counts from 0", q.ExpectedRevision)
	}
	return nil
}

// serveHostDrain wants a host to be empty: nothing new comes to it, and with
// force what is left at the deadline is ended. The wish is in the row, so that
// any master sees to it.
func (m *Master) serveHostDrain(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.HostDrainRequest
	err := serve.ReadOptionalJSON(r, maxBody, &req)
	if limit := int64(maxDrain / time.Second); err == nil && (req.DeadlineSeconds < 0 || req.DeadlineSeconds > limit) {
		err = fault.New(fault.InvalidInput, "deadline_seconds %d is not 0 to %d", req.DeadlineSeconds, limit)
	}
	id := host.ID(r.PathValue("node_id"))
	if err == nil {
		_, _, err = m.wish(r.Context(), id, actHostDrain, func(f *host.Facts, now time.Time) ([]string, error) {
			d := host.Drain{AskedAt: now, Force: req.Force}
			if req.DeadlineSeconds > 0 {
				d.Deadline = now.Add(time.Duration(req.DeadlineSeconds) * time.Second)
			}
			f.Cordoned, f.Wish.Drain = true, d
			return []string{"deadline_seconds", strconv.FormatInt(req.DeadlineSeconds, 10), "force", strconv.FormatBool(req.Force)}, nil
		})
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	m.sweepNow()
	m.serveDrainState(w, r)
}

// serveDrainState shows how far the drain of a host is, by the rows.
func (m *Master) serveDrainState(w http.ResponseWriter, r *http.Request) {
	var shown *cubeapi.HostDrain
	err := m.db.View(r.Context(), func(tx *store.Tx) error {
		f, err := sandboxdb.GetHost(r.Context(), tx, host.ID(r.PathValue("node_id")))
		if err != nil {
			return err
		}
		left, err := sandboxdb.CountOnHost(r.Context(), tx, f.ID)
		if err != nil {
			return err
		}
		some, err := sandboxdb.ListSandboxes(r.Context(), tx, sandboxdb.Filter{HostID: f.ID, States: liveStates, Limit: drainNamed})
		shown = showDrain(f, tx.Now, left)
		for _, s := range some {
			shown.Sandboxes = append(shown.Sandboxes, string(s.ID))
		}
		return err
	})
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.HostDrainAnswer{Envelope: cubeapi.OK(requestID(r)), Data: shown})
}
