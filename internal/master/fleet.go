package master

import (
	"context"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// fleet is what the scheduler looks at.
type fleet struct {
	db         *store.Store
	ledger     *scheduler.Ledger
	staleAfter time.Duration

	mu    sync.Mutex
	view  *scheduler.View
	dirty bool
	read  time.Time // when the view was read, by this process's clock
}

// viewAge is how old a view may be: other masters' changes are seen within it.
const viewAge = 500 * time.Millisecond

func newFleet(db *store.Store, staleAfter time.Duration) *fleet {
	return &fleet{db: db, ledger: scheduler.NewLedger(), staleAfter: staleAfter}
}

// changed makes the next look read anew.
func (f *fleet) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = true
}

// now returns a view that is fresh enough, and the database's time that belongs
// to it.
func (f *fleet) now(ctx context.Context) (*scheduler.View, time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	age := time.Since(f.read)
	if f.view != nil && !f.dirty && age < viewAge {
		return f.view, f.view.BuiltAt().Add(age), nil
	}
	var view *scheduler.View
	err := f.db.View(ctx, func(tx *store.Tx) error {
		hosts, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil {
			return err
		}
		noted, err := templatedb.PlacementsSince(ctx, tx, tx.Now.Add(-2*f.staleAfter))
		if err != nil {
			return err
		}
		view = scheduler.NewView(withNoted(hosts, noted, f.staleAfter), tx.Now)
		return nil
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	f.view, f.read, f.dirty = view, time.Now(), false
	f.ledger.Observe(f.view)
	return f.view, f.view.BuiltAt(), nil
}

// withNoted adds to what hosts report what was noted of them lately: a host's
// own word counts, but the report that shows an artifact comes after the row,
// and one that was on its way meanwhile does not show it.
func withNoted(hosts []host.Facts, noted []template.Placement, lately time.Duration) []host.Facts {
	for i := range hosts {
		for _, p := range noted {
			if p.HostID == hosts[i].ID && p.CreatedAt.After(hosts[i].HeardAt.Add(-lately)) {
				hosts[i].Artifacts = append(hosts[i].Artifacts, string(p.ArtifactID))
			}
		}
	}
	return hosts
}

// heard makes the next look read anew if a report changes who may be chosen.
func (f *fleet) heard(id host.ID, s host.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.view == nil {
		return
	}
	known, ok := f.view.Host(id)
	f.dirty = f.dirty || !ok || known.Ready != s.Ready || f.view.BuiltAt().Sub(known.HeardAt) > f.staleAfter
}
