package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// world is what is true: what each host has admitted, and how often that
// changed. Hosts admit against it and nothing else.
type world struct {
	mu    sync.Mutex
	hosts map[host.ID]*truth
}

type truth struct {
	facts    host.Facts
	has      map[sandbox.ID]host.Resources
	sum      host.Resources
	revision int64
}

func newWorld(n int) *world {
	w := &world{hosts: map[host.ID]*truth{}}
	for i := range n {
		f := fit(fmt.Sprintf("h%02d", i))
		w.hosts[f.ID] = &truth{facts: f, has: map[sandbox.ID]host.Resources{}}
	}
	return w
}

// admit takes a sandbox or refuses it; the same sandbox twice is one.
func (w *world) admit(id host.ID, s sandbox.ID, r host.Resources) (revision int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hosts[id]
	if _, has := h.has[s]; !has {
		if !h.sum.Add(r).Fits(h.facts.Allocatable) {
			return h.revision, false
		}
		h.has[s] = r
		h.sum = h.sum.Add(r)
		h.revision++
	}
	return h.revision, true
}

func (w *world) remove(id host.ID, s sandbox.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hosts[id]
	if r, has := h.has[s]; has {
		delete(h.has, s)
		h.sum = h.sum.Sub(r)
		h.revision++
	}
}

func (w *world) report(id host.ID, at time.Time) host.Facts {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hosts[id]
	f := h.facts
	f.Allocated, f.Sandboxes, f.HeardAt, f.Usage.Revision = h.sum, len(h.has), at, h.revision
	return f
}

// master is one of those who choose, with what is on its way to it.
type master struct {
	view    *scheduler.View
	ledger  *scheduler.Ledger
	reports []host.Facts
	replies []reply
}

type reply struct {
	s        sandbox.ID
	revision int64
	ok       bool
}

func (w *world) master(at time.Time) *master {
	m := &master{ledger: scheduler.NewLedger()}
	var all []host.Facts
	for id := range w.hosts {
		all = append(all, w.report(id, at))
	}
	m.view = scheduler.NewView(all, at)
	return m
}

// Random histories of several masters: replies and reports are late, overtake
// each other or are lost, masters forget everything, sandboxes end. Hosts are
// never oversold; a master alone, whose ledger lives, is never refused by a
// host, because it never thinks that there is more room than there is; and once
// all is told, nothing is held.
func TestLedgersOfSeveralMasters(t *testing.T) {
	s := newScheduler(t)
	placed, full, lost := 0, 0, 0
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 21))
		w, at := newWorld(1+rng.IntN(4)), now
		var hosts []host.ID
		for i := range len(w.hosts) {
			hosts = append(hosts, host.ID(fmt.Sprintf("h%02d", i)))
		}
		masters := []*master{w.master(at)}
		for range rng.IntN(3) {
			masters = append(masters, w.master(at))
		}
		alone := len(masters) == 1
		running := map[sandbox.ID]host.ID{}
		for n := range 300 {
			at = at.Add(time.Duration(rng.IntN(100)) * time.Millisecond)
			m := masters[rng.IntN(len(masters))]
			switch rng.IntN(8) {
			case 0, 1, 2: // choose, and send
				r := ask()
				r.Sandbox, r.Seed = sandbox.ID(fmt.Sprint("i", n)), rng.Uint64()
				r.Resources = host.Resources{MilliCPU: 100 * rng.Int64N(30), MemBytes: gib / 4 * rng.Int64N(12), Slots: 1}
				d, err := s.Choose(m.view, m.ledger, r, now)
				if err != nil {
					break
				}
				placed++
				revision, ok := w.admit(d.Host, r.Sandbox, r.Resources)
				if ok {
					running[r.Sandbox] = d.Host
				} else if full++; alone {
					t.Fatalf("seed %d: the only master was refused by %s", seed, d.Host)
				}
				if rng.IntN(6) == 0 {
					lost++ // the charge stays: nobody knows
					break
				}
				m.replies = append(m.replies, reply{r.Sandbox, revision, ok})
			case 3: // a reply arrives
				if len(m.replies) > 0 {
					i := rng.IntN(len(m.replies))
					got := m.replies[i]
					m.replies = append(m.replies[:i], m.replies[i+1:]...)
					if got.ok {
						m.ledger.ConfirmAt(got.s, at, got.revision)
					} else {
						m.ledger.Release(got.s)
					}
				}
			case 4: // a host reports to everybody, and each hears it when it hears it
				for _, m := range masters {
					if rng.IntN(5) > 0 {
						m.reports = append(m.reports, w.report(hosts[rng.IntN(len(hosts))], at))
					}
				}
			case 5, 6: // a report arrives
				if len(m.reports) > 0 {
					i := rng.IntN(len(m.reports))
					m.view = m.view.With(at, m.reports[i:i+1])
					m.reports = append(m.reports[:i], m.reports[i+1:]...)
					m.ledger.Observe(m.view)
				}
			case 7:
				for id, on := range running { // one of them ends
					w.remove(on, id)
					delete(running, id)
					break
				}
				if !alone && rng.IntN(20) == 0 {
					*m = *w.master(at) // it starts anew and knows nothing
				}
			}
			for id, h := range w.hosts {
				if !h.sum.Fits(h.facts.Allocatable) {
					t.Fatalf("seed %d: %s is oversold: %+v", seed, id, h.sum)
				}
			}
			if msg := m.ledger.Check(); msg != "" {
				t.Fatalf("seed %d, step %d: the ledger disagrees with itself: %s", seed, n, msg)
			}
		}
		for _, m := range masters {
			for _, got := range m.replies {
				if got.ok {
					m.ledger.ConfirmAt(got.s, at, got.revision)
				} else {
					m.ledger.Release(got.s)
				}
			}
			m.ledger.Expire(at) // those whose reply was lost
			for _, id := range hosts {
				m.view = m.view.With(at, []host.Facts{w.report(id, at)})
				if f, _ := m.view.Host(id); f.Allocated != w.hosts[id].sum {
					t.Fatalf("seed %d: %s is known with %+v and has %+v", seed, id, f.Allocated, w.hosts[id].sum)
				}
			}
			if m.ledger.Observe(m.view); m.ledger.Len() != 0 {
				t.Fatalf("seed %d: all is told, and %d charges are open", seed, m.ledger.Len())
			}
		}
	}
	if placed < 2000 || full == 0 || lost == 0 {
		t.Errorf("%d placed, %d refused by hosts, %d replies lost: the histories are of no use", placed, full, lost)
	}
}

// Masters at the same time against the same hosts: what is accepted is what
// there is room for, and nobody is turned away while there is some.
func TestMastersAtOnceFillHostsAndNeverOversell(t *testing.T) {
	for _, masters := range []int{1, 2, 5} {
		w, s := newWorld(6), newScheduler(t)
		var mu sync.Mutex
		accepted, refused := 0, 0
		var all sync.WaitGroup
		for m := range masters {
			me := w.master(now)
			for n := range 100 / masters {
				all.Go(func() {
					r := ask()
					r.Sandbox, r.Seed = sandbox.ID(fmt.Sprint("i", m, "-", n)), uint64(m*1000+n)
					for range 7 { // one more than there are hosts
						d, err := s.Choose(me.view, me.ledger, r, now)
						if err != nil {
							mu.Lock()
							refused++
							mu.Unlock()
							return
						}
						if _, ok := w.admit(d.Host, r.Sandbox, r.Resources); ok {
							mu.Lock()
							accepted++
							mu.Unlock()
							return
						}
						me.ledger.Release(r.Sandbox)
						r.Exclude = append(r.Exclude, d.Host)
					}
				})
			}
		}
		all.Wait()
		if accepted != 60 || refused != 40 {
			t.Errorf("%d masters: %d accepted, %d refused, want 60 and 40", masters, accepted, refused)
		}
	}
}
