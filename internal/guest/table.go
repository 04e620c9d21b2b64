package guest

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	endedKept = 30 * time.Second // how long an ended process can be connected to
	mostEnded = 1024             // ended ones that are kept; the oldest go first
	ringSize  = 256 << 10        // bytes of output that a start command keeps
)

// table holds the processes that the API can name.
type table struct {
	mu      sync.Mutex
	closed  bool
	count   uint64
	running []*process // in the order of their starts
	ended   []retired  // in the order of their ends
}

type retired struct {
	p  *process
	at time.Time
}

func newTable() *table { return &table{} }

// add registers p; false says that the guest is ending.
func (t *table) add(p *process) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count++
	p.order = t.count
	t.running = append(t.running, p)
	return !t.closed
}

// retire moves p to the ended ones.
func (t *table) retire(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.running, p); i >= 0 {
		t.running = slices.Delete(t.running, i, i+1)
	}
	t.ended = append(t.ended, retired{p, time.Now()})
	t.forget()
}

// forget drops what ended too long ago. A start command stays: its output is
// how somebody finds out why it ended.
func (t *table) forget() {
	excess := len(t.ended) - mostEnded
	t.ended = slices.DeleteFunc(t.ended, func(r retired) bool {
		excess--
		return r.p.ring == nil && (excess >= 0 || time.Since(r.at) > endedKept)
	})
}

// close makes add tell that the guest is ending.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// release closes the outputs that are held open by what no signal ended.
func (t *table) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.running {
		p.close()
	}
	for _, r := range t.ended {
		r.p.close()
	}
}

// list returns the running processes, oldest first.
func (t *table) list() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Clone(t.running)
	slices.SortFunc(list, func(a, b *process) int { return cmp.Compare(a.order, b.order) })
	return list
}

// find returns the running process that s names, or, if late, one that has
// just ended.
func (t *table) find(s *envdpb.ProcessSelector, late bool) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.running {
		if named(s, p) {
			return p, nil
		}
	}
	if late {
		t.forget()
		for _, r := range slices.Backward(t.ended) {
			if named(s, r.p) {
				return r.p, nil
			}
		}
	}
	switch sel := s.GetSelector().(type) {
	case *envdpb.ProcessSelector_Tag:
		return nil, refuse(connect.CodeNotFound, fault.NoSuchThing, "process with tag '%s' not found", sel.Tag)
	case *envdpb.ProcessSelector_Pid:
		return nil, refuse(connect.CodeNotFound, fault.NoSuchThing, "process with pid %d not found", sel.Pid)
	}
	return nil, badInput("the request names no process: give pid or tag")
}

func named(s *envdpb.ProcessSelector, p *process) bool {
	switch sel := s.GetSelector().(type) {
	case *envdpb.ProcessSelector_Tag:
		return p.tag != nil && *p.tag == sel.Tag
	case *envdpb.ProcessSelector_Pid:
		return p.child != nil && p.pid() == sel.Pid
	}
	return false
}

// ring keeps the last events of a process within ringSize bytes of data.
type ring struct {
	events []*envdpb.ProcessEvent
	sizes  []int
	sum    int
}

func (r *ring) add(e *envdpb.ProcessEvent, size int) {
	r.events, r.sizes, r.sum = append(r.events, e), append(r.sizes, size), r.sum+size
	drop := 0
	// Small events cost more than their data: their number is bounded too.
	for r.sum > ringSize || len(r.events)-drop > ringSize/64 {
		r.sum -= r.sizes[drop]
		drop++
	}
	r.events, r.sizes = slices.Delete(r.events, 0, drop), slices.Delete(r.sizes, 0, drop)
}

func (r *ring) all() []*envdpb.ProcessEvent { return slices.Clone(r.events) }

func itoa(n int) string { return strconv.Itoa(n) }
