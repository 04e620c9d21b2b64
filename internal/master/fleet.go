package master

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// viewAge is how old a view may be: other masters' changes are seen within it.
	viewAge = 500 * time.Millisecond
	// viewMost is how old it may be while somebody else reads a newer one: many
	// that wait for one reader gain little by it.
	viewMost = 2 * time.Second
)

// fleet is what the scheduler looks at.
type fleet struct {
	db         *store.Store
	ledger     *scheduler.Ledger
	staleAfter time.Duration
	left       func(host.ID) // told of hosts that are out of the books; may be nil

	reading chan struct{} // held by the one who reads
	asked   atomic.Uint64 // counts what a view must be read anew for

	// seen is held while the view and what the ledger takes for unseen change
	// together, and shared by those who choose: what a choice counts on is
	// either in the one or in the other, and never in both or none.
	seen sync.RWMutex
	view *scheduler.View
	read time.Time // when the view was read, by this process's clock
	from time.Time // when that began
	got  uint64    // asked, when that began
}

func newFleet(db *store.Store, staleAfter time.Duration) *fleet {
	return &fleet{db: db, ledger: scheduler.NewLedger(), staleAfter: staleAfter, reading: make(chan struct{}, 1)}
}

// changed makes the next look read anew.
func (f *fleet) changed() { f.asked.Add(1) }

// within returns the view if it is younger than age and nothing is known to
// have changed since, and the database's time that belongs to it.
func (f *fleet) within(age time.Duration) (*scheduler.View, time.Time, bool) {
	f.seen.RLock()
	defer f.seen.RUnlock()
	if f.view == nil || f.got != f.asked.Load() || time.Since(f.read) >= age {
		return nil, time.Time{}, false
	}
	return f.view, f.clock(), true
}

// clock is the database's time, as far as the last look tells. Whoever calls it
// holds seen.
func (f *fleet) clock() time.Time { return f.view.BuiltAt().Add(time.Since(f.read)) }

// now returns a view that is fresh enough, and the database's time that belongs
// to it. One caller reads; those who come meanwhile use the last one.
func (f *fleet) now(ctx context.Context) (*scheduler.View, time.Time, error) {
	if v, now, ok := f.within(viewAge); ok {
		return v, now, nil
	}
	select {
	case f.reading <- struct{}{}:
	default:
		if v, now, ok := f.within(viewMost); ok {
			return v, now, nil
		}
		select {
		case f.reading <- struct{}{}:
		case <-ctx.Done():
			return nil, time.Time{}, ctx.Err()
		}
	}
	defer func() { <-f.reading }()
	if v, now, ok := f.within(viewAge); ok {
		return v, now, nil // whoever read before us
	}
	return f.refresh(ctx)
}

// fresh reports whether nobody need read anew.
func (f *fleet) fresh() bool {
	_, _, ok := f.within(viewAge)
	return ok
}

// readSince reports whether the view shows all that was written before t.
func (f *fleet) readSince(t time.Time) bool {
	f.seen.RLock()
	defer f.seen.RUnlock()
	return f.from.After(t)
}

func (f *fleet) refresh(ctx context.Context) (*scheduler.View, time.Time, error) {
	asked, from := f.asked.Load(), time.Now()
	var hosts []host.Facts
	var now time.Time
	err := f.db.View(ctx, func(tx *store.Tx) (err error) {
		now = tx.Now
		if hosts, err = sandboxdb.ListHosts(ctx, tx); err != nil {
			return err
		}
		noted, err := templatedb.PlacementsSince(ctx, tx, tx.Now.Add(-2*f.staleAfter))
		hosts = withNoted(hosts, noted, f.staleAfter)
		return err
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	view, gone := f.become(hosts, now, asked, from)
	if f.left != nil {
		for _, id := range gone {
			f.left(id)
		}
	}
	return view, now, nil
}

// become makes the view that of these hosts, and returns who is not among them
// any more.
func (f *fleet) become(hosts []host.Facts, now time.Time, asked uint64, from time.Time) (*scheduler.View, []host.ID) {
	f.seen.Lock()
	defer f.seen.Unlock()
	var gone []host.ID
	if f.view == nil {
		f.view = scheduler.NewView(hosts, now)
	} else {
		var anew []host.ID
		gone, anew = f.compare(hosts)
		if out := append(anew, gone...); len(out) > 0 {
			f.view = f.view.With(now, nil, out...)
		}
		f.view = f.view.With(now, hosts)
	}
	f.read, f.from, f.got = time.Now(), from, asked
	f.ledger.Observe(f.view)
	return f.view, gone
}

// compare returns which hosts of the view are not in the list, and which count
// anew what they admit: they have registered again with less than they were
// known to have, or have gone on for long to report less.
func (f *fleet) compare(hosts []host.Facts) (gone, anew []host.ID) {
	in := make(map[host.ID]bool, len(hosts))
	for i := range hosts {
		h := &hosts[i]
		in[h.ID] = true
		if old, ok := f.view.Host(h.ID); ok && h.Usage.Revision < old.Usage.Revision && (h.RegisteredAt.After(old.RegisteredAt) || h.HeardAt.Sub(old.HeardAt) > f.staleAfter/2) {
			anew = append(anew, h.ID)
		}
	}
	for _, id := range f.view.IDs() {
		if !in[id] {
			gone = append(gone, id)
		}
	}
	return gone, anew
}

// withNoted adds to what hosts report what was noted of them lately: a host's
// own word counts, but the report that shows an artifact comes after the row,
// and one that was on its way meanwhile does not show it.
func withNoted(hosts []host.Facts, noted []template.Placement, lately time.Duration) []host.Facts {
	at := make(map[host.ID]int, len(hosts))
	for i := range hosts {
		at[hosts[i].ID] = i
	}
	for _, p := range noted {
		if i, ok := at[p.HostID]; ok && p.CreatedAt.After(hosts[i].HeardAt.Add(-lately)) {
			if !slices.Contains(hosts[i].Artifacts, string(p.ArtifactID)) {
				hosts[i].Artifacts = append(hosts[i].Artifacts, string(p.ArtifactID))
			}
		}
	}
	return hosts
}

// heard makes the next look read anew if a report changes who may be chosen.
func (f *fleet) heard(id host.ID, s host.Status) {
	f.seen.RLock()
	defer f.seen.RUnlock()
	if f.view == nil {
		return
	}
	known, ok := f.view.Host(id)
	if !ok || known.Ready != s.Ready || f.view.BuiltAt().Sub(known.HeardAt) > f.staleAfter {
		f.changed()
	}
}

// choosing runs do, which takes no time, on a view that stays as it is.
func (f *fleet) choosing(do func(v *scheduler.View, now time.Time)) {
	f.seen.RLock()
	defer f.seen.RUnlock()
	do(f.view, f.clock())
}

// serves reports whether a known host is of an instance type.
func (f *fleet) serves(kind string) bool {
	f.seen.RLock()
	defer f.seen.RUnlock()
	return f.view != nil && f.view.Serves(kind)
}

// took notes that a host has a sandbox, since the given time, and what it holds
// with it. A truth that can be seen at once takes the place of the charge; else
// the charge stays until a report shows it.
func (f *fleet) took(id sandbox.ID, h host.ID, since time.Time, t *hostpb.HostTruth) {
	f.seen.Lock()
	defer f.seen.Unlock()
	if f.learn(h, t) {
		f.ledger.Release(id)
	} else {
		f.ledger.ConfirmAt(id, since, t.GetRevision())
	}
}

// learned notes what a host said that it holds, nil for nothing.
func (f *fleet) learned(h host.ID, t *hostpb.HostTruth) {
	if t != nil {
		f.seen.Lock()
		defer f.seen.Unlock()
		f.learn(h, t)
	}
}

// learn puts a host's truth into the view, and reports whether the view shows
// it, or a later one. Only a host whose reports count too can be compared.
func (f *fleet) learn(id host.ID, t *hostpb.HostTruth) bool {
	if f.view == nil || t.GetRevision() == 0 {
		return false
	}
	h, ok := f.view.Host(id)
	if !ok || h.Usage.Revision == 0 {
		return false
	}
	if h.Usage.Revision >= t.GetRevision() {
		return true
	}
	h.Usage.Revision, h.Usage.Creating = t.GetRevision(), int64(t.GetCreating())
	h.Allocated, h.Sandboxes = resourcesIn(t.GetAllocated()), int(t.GetSandboxes())
	if t.GetAllocatable() != nil {
		h.Allocatable = resourcesIn(t.GetAllocatable())
	}
	f.view = f.view.With(f.view.BuiltAt(), []host.Facts{h})
	return true
}

func resourcesIn(r *hostpb.Resources) host.Resources {
	return host.Resources{MilliCPU: r.GetMilliCpu(), MemBytes: r.GetMemBytes(), DiskBytes: r.GetDiskBytes(), Slots: r.GetSlots()}
}
