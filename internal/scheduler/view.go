package scheduler

import (
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/template"
)

// View is the fleet as the scheduler sees it at one moment. It is immutable:
// a newer fleet is a new View.
type View struct {
	hosts   []host.Facts // sorted by id
	index   map[host.ID]int
	holding map[template.ArtifactID]bitset
	builtAt time.Time
}

// NewView returns the view of hosts as known at now, a time of the database's
// clock. It keeps no reference to the slice.
func NewView(hosts []host.Facts, now time.Time) *View {
	v := &View{
		hosts:   slices.Clone(hosts),
		index:   make(map[host.ID]int, len(hosts)),
		holding: map[template.ArtifactID]bitset{},
		builtAt: now,
	}
	slices.SortFunc(v.hosts, func(a, b host.Facts) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for i, h := range v.hosts {
		v.index[h.ID] = i
		for _, a := range h.Artifacts {
			id := template.ArtifactID(a)
			if v.holding[id] == nil {
				v.holding[id] = newBitset(len(v.hosts))
			}
			v.holding[id].set(i)
		}
	}
	return v
}

// Len returns how many hosts are in the view.
func (v *View) Len() int { return len(v.hosts) }

// Host returns what is known of id.
func (v *View) Host(id host.ID) (host.Facts, bool) {
	i, ok := v.index[id]
	if !ok {
		return host.Facts{}, false
	}
	return v.hosts[i], true
}

// BuiltAt returns the moment that the view shows.
func (v *View) BuiltAt() time.Time { return v.builtAt }

// bitset is one bit per host of a view.
type bitset []uint64

func newBitset(n int) bitset    { return make(bitset, (n+63)/64) }
func (b bitset) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) has(i int) bool { return b != nil && b[i/64]&(1<<(i%64)) != 0 }
func (v *View) set(ids []host.ID) bitset {
	b := newBitset(len(v.hosts))
	for _, id := range ids {
		if i, ok := v.index[id]; ok {
			b.set(i)
		}
	}
	return b
}
