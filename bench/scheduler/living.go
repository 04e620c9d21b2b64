package main

import (
	"time"

	"github.com/paddock-dev/paddock/bench/fleet"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// living is a fleet that takes what is placed on it, lets it go again, and
// reports both.
type living struct {
	hosts []host.Facts
	at    map[host.ID]int
	on    map[sandbox.ID]int
	now   time.Time
	view  *scheduler.View
	books *scheduler.Ledger
}

func newLiving(size int) *living {
	l := &living{hosts: fleet.Hosts(size), at: make(map[host.ID]int, size), on: map[sandbox.ID]int{}, now: fleet.Begin, books: scheduler.NewLedger()}
	for i := range l.hosts {
		l.at[l.hosts[i].ID] = i
	}
	l.view = scheduler.NewView(l.hosts, l.now)
	return l
}

// take lets the chosen host make the sandbox: it counts it and says so.
func (l *living) take(r *scheduler.Request, on host.ID) {
	i := l.at[on]
	h := &l.hosts[i]
	l.on[r.Sandbox] = i
	h.Allocated, h.Sandboxes, h.Usage.Revision = h.Allocated.Add(r.Resources), h.Sandboxes+1, h.Usage.Revision+1
	l.books.ConfirmAt(r.Sandbox, l.now, h.Usage.Revision)
}

// drop ends a sandbox.
func (l *living) drop(r *scheduler.Request) {
	h := &l.hosts[l.on[r.Sandbox]]
	delete(l.on, r.Sandbox)
	h.Allocated, h.Sandboxes, h.Usage.Revision = h.Allocated.Sub(r.Resources), h.Sandboxes-1, h.Usage.Revision+1
	l.books.Release(r.Sandbox)
}

// report lets every host tell what it holds, as it does each second, and
// returns what it cost to take that in.
func (l *living) report() time.Duration {
	l.now = l.now.Add(time.Second)
	for i := range l.hosts {
		l.hosts[i].HeardAt = l.now
	}
	began := spent()
	l.view = l.view.Become(l.now, l.hosts)
	l.books.Observe(l.view)
	return spent() - began
}
