package scheduler

import (
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// Charge is what a decision takes from a host until the host's own report
// shows it, the attempt fails, or it expires.
type Charge struct {
	Sandbox   sandbox.ID
	Host      host.ID
	Resources host.Resources
	At        time.Time // of the choice, by the database's clock
	// ConfirmedAt is when the host was known to have the sandbox; zero: not yet.
	ConfirmedAt time.Time
}

// Ledger is what choices hold against hosts. It is safe for concurrent use.
type Ledger struct {
	mu     sync.Mutex
	open   map[sandbox.ID]Charge
	byHost map[host.ID]taken
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{open: map[sandbox.ID]Charge{}, byHost: map[host.ID]taken{}}
}

// Charge adds c, in place of an older charge for the same sandbox.
func (l *Ledger) Charge(c Charge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charge(c)
}

func (l *Ledger) charge(c Charge) {
	l.release(c.Sandbox)
	l.open[c.Sandbox] = c
	t := l.byHost[c.Host]
	t.resources, t.creating = t.resources.Add(c.Resources), t.creating+1
	l.byHost[c.Host] = t
}

// Release ends the charge for id: its attempt failed, or it is over.
func (l *Ledger) Release(id sandbox.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(id)
}

func (l *Ledger) release(id sandbox.ID) {
	c, ok := l.open[id]
	if !ok {
		return
	}
	delete(l.open, id)
	t := l.byHost[c.Host]
	t.resources = t.resources.Sub(c.Resources)
	if c.ConfirmedAt.IsZero() {
		t.creating--
	}
	if t == (taken{}) {
		delete(l.byHost, c.Host)
		return
	}
	l.byHost[c.Host] = t
}

// Confirm notes that at now the host had the sandbox. The charge stays until a
// report of the host that is newer than now shows it too: between the two, the
// room would otherwise be counted as free.
func (l *Ledger) Confirm(id sandbox.ID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.open[id]
	if !ok || !c.ConfirmedAt.IsZero() {
		return
	}
	c.ConfirmedAt = now
	l.open[id] = c
	t := l.byHost[c.Host]
	t.creating--
	l.byHost[c.Host] = t
}

// Observe ends every confirmed charge that v's newer host reports show.
func (l *Ledger) Observe(v *View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, c := range l.open {
		if c.ConfirmedAt.IsZero() {
			continue
		}
		if f, ok := v.Host(c.Host); ok && f.HeardAt.After(c.ConfirmedAt) {
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
	for id, c := range l.open {
		if c.At.Before(before) {
			l.release(id)
			ended = append(ended, id)
		}
	}
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
