package scheduler

import (
	"slices"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/template"
)

// Charge is what a decision takes from a host until the host's own report
// shows it, the attempt fails, or it expires.
type Charge struct {
	Sandbox   sandbox.ID
	Host      host.ID
	Template  template.ID
	Resources host.Resources
	At        time.Time // of the choice, by the database's clock
	// ConfirmedAt is when the host was known to have the sandbox; zero: not yet.
	ConfirmedAt time.Time
	// Revision is the host's own count when it took the sandbox; 0: unknown.
	Revision int64
}

// taken is what choices not yet seen in a host's own report hold against it.
type taken struct {
	resources      host.Resources
	open, creating int64
}

// Ledger is what choices hold against hosts. It is safe for concurrent use.
//
// Every master has its own and knows nothing of the others': what they took
// shows in the host's reports, and until then the host, which admits against
// its own truth, is the one that says no.
type Ledger struct {
	mu       sync.Mutex
	open     map[sandbox.ID]entry
	byHost   map[host.ID]taken
	pressure map[pressed]int64

	// The same by lane, for the roster that was decided on last.
	bound *roster
	held  []*held
	cycle cycle // room for the decision that is made under the lock

	edits  uint64 // counts changes of held
	known  map[shape]*memory
	met    map[shape]bool // that came once
	shapes []shape        // the keys of known
	eldest int            // of them
}

// entry is a Charge without its key: over 128 bytes, a map would allocate each.
type entry struct {
	host            host.ID
	template        template.ID
	resources       host.Resources
	at, confirmedAt time.Time
	revision        int64
}

// pressed counts the creates of a template that are under way on a host.
type pressed struct {
	template template.ID
	host     host.ID
}

// held is what is taken from the hosts of a page.
type held struct {
	amount         [dims][lanes]int64
	most           [dims]int64 // at least the largest of amount
	open, creating [lanes]int64
	mostOpen       int64  // at least the largest of open
	version        uint64 // of all of this; 0: nothing was ever held
	on, busy       uint64 // lanes with open, and with creating
}

// nothing is held from a page that no charge touches.
var nothing held

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{open: map[sandbox.ID]entry{}, byHost: map[host.ID]taken{}, pressure: map[pressed]int64{}, known: make(map[shape]*memory, maxShapes), met: make(map[shape]bool, maxMet)}
}

// Charge adds c, in place of an older charge for the same sandbox.
func (l *Ledger) Charge(c Charge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charge(c)
}

func (l *Ledger) charge(c Charge) {
	l.release(c.Sandbox)
	e := entry{c.Host, c.Template, c.Resources, c.At, c.ConfirmedAt, c.Revision}
	l.open[c.Sandbox] = e
	t := taken{resources: e.resources, open: 1}
	if e.confirmedAt.IsZero() {
		t.creating = 1
	}
	l.add(e, t)
}

// Release ends the charge for id: its attempt failed, or it is over.
func (l *Ledger) Release(id sandbox.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(id)
}

func (l *Ledger) release(id sandbox.ID) {
	e, ok := l.open[id]
	if !ok {
		return
	}
	delete(l.open, id)
	t := taken{resources: host.Resources{}.Sub(e.resources), open: -1}
	if e.confirmedAt.IsZero() {
		t.creating = -1
	}
	l.add(e, t)
}

// ConfirmAt notes that at now the host had the sandbox, and the host's own count
// when it took it; 0: unknown. The charge stays until a report shows the sandbox
// too: between the two, the room would otherwise be counted as free. A report
// that has reached that count shows it, whatever the clocks say; without a
// count, one that is newer than now.
func (l *Ledger) ConfirmAt(id sandbox.ID, now time.Time, revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.open[id]
	if !ok || !e.confirmedAt.IsZero() {
		return
	}
	e.confirmedAt, e.revision = now, revision
	l.open[id] = e
	l.add(e, taken{creating: -1})
}

// add changes what is held against e's host by t, in every form.
func (l *Ledger) add(e entry, t taken) {
	sum := l.byHost[e.host]
	sum.resources = sum.resources.Add(t.resources)
	sum.open, sum.creating = sum.open+t.open, sum.creating+t.creating
	if sum == (taken{}) {
		delete(l.byHost, e.host)
	} else {
		l.byHost[e.host] = sum
	}
	if e.template != "" && t.creating != 0 {
		k := pressed{e.template, e.host}
		if l.pressure[k] += t.creating; l.pressure[k] == 0 {
			delete(l.pressure, k)
		}
	}
	if l.bound == nil {
		return
	}
	if n, ok := l.bound.index.get(e.host); ok {
		l.hold(n, sum)
	}
}

// hold writes what is taken from the host in lane n.
func (l *Ledger) hold(n int32, t taken) {
	h := l.held[n/lanes]
	if h == nil {
		if t == (taken{}) {
			return
		}
		h = &held{}
		l.held[n/lanes] = h
	}
	l.edits++
	h.version = l.edits
	i, bit := n%lanes, uint64(1)<<(n%lanes)
	for d, amount := range amounts(t.resources) {
		h.amount[d][i] = amount
		h.most[d] = max(h.most[d], amount)
	}
	h.open[i], h.creating[i] = t.open, t.creating
	h.on, h.busy = h.on&^bit, h.busy&^bit
	if t.open > 0 {
		h.on |= bit
	}
	if t.creating > 0 {
		h.busy |= bit
	}
	h.mostOpen = max(h.mostOpen, t.open)
	if h.on == 0 {
		h.most, h.mostOpen = [dims]int64{}, 0
	}
}

// bind puts what is held into the lanes of v.
func (l *Ledger) bind(v *View) {
	if l.bound == v.roster {
		return
	}
	l.bound = v.roster
	l.held = make([]*held, len(v.pages))
	for id, t := range l.byHost {
		if n, ok := v.roster.index.get(id); ok {
			l.hold(n, t)
		}
	}
}

// page returns what is held from a page.
func (l *Ledger) page(k int) *held {
	if h := l.held[k]; h != nil {
		return h
	}
	return &nothing
}

// Observe ends every confirmed charge that v's newer host reports show.
func (l *Ledger) Observe(v *View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, e := range l.open {
		if e.confirmedAt.IsZero() {
			continue
		}
		n, ok := v.roster.index.get(e.host)
		if !ok {
			continue
		}
		h := v.at(n)
		shown := h.HeardAt.After(e.confirmedAt)
		if e.revision > 0 && h.Usage.Revision > 0 {
			shown = h.Usage.Revision >= e.revision
		}
		if shown {
			l.release(id)
		}
	}
}

// Expire ends the charges that were made before the given time and returns
// their sandboxes: whoever made them has gone without a word.
func (l *Ledger) Expire(before time.Time) []sandbox.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ended []sandbox.ID
	for id, e := range l.open {
		if e.at.Before(before) {
			l.release(id)
			ended = append(ended, id)
		}
	}
	slices.Sort(ended)
	return ended
}

// Charged returns what is held against id.
func (l *Ledger) Charged(id host.ID) host.Resources {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byHost[id].resources
}

// Len returns how many charges are open.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}
