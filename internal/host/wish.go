package host

import "time"

// Wish is what operators want of a host, beside its cordon. It is theirs alone:
// no registration and no report changes it.
type Wish struct {
	// Labels stand over those that the host gives itself.
	Labels map[string]string `json:"labels,omitempty"`
	Quota  Quota             `json:"quota,omitzero"`
	Drain  Drain             `json:"drain,omitzero"`
	// Version counts the changes of the wish and of the cordon.
	Version int64 `json:"-"`
}

// Quota is what a host shall let sandboxes have. Where a field is nil, it is
// as the host has it by itself.
type Quota struct {
	Revision    int64  `json:"revision"` // 0: nobody ever set one
	MilliCPU    *int64 `json:"milli_cpu,omitempty"`
	MemBytes    *int64 `json:"mem_bytes,omitempty"`
	DiskBytes   *int64 `json:"disk_bytes,omitempty"`
	Slots       *int64 `json:"slots,omitempty"`
	CreateLimit *int64 `json:"create_concurrent_num,omitempty"` // 0: none
}

// Over returns what a host has that follows q: own and limit are what it has by
// itself. Nothing is under 0.
func (q Quota) Over(own Resources, limit int64) (Resources, int64) {
	for _, f := range []struct{ to, by *int64 }{
		{&own.MilliCPU, q.MilliCPU}, {&own.MemBytes, q.MemBytes}, {&own.DiskBytes, q.DiskBytes}, {&own.Slots, q.Slots}, {&limit, q.CreateLimit},
	} {
		if f.by != nil {
			*f.to = max(0, *f.by)
		}
	}
	return own, limit
}

// Drain is the wish that a host be empty.
type Drain struct {
	AskedAt  time.Time `json:"asked_at,omitzero"` // zero: nobody asked
	Deadline time.Time `json:"deadline,omitzero"` // zero: none
	// Force: what is left at the deadline is ended.
	Force bool `json:"force,omitempty"`
}

// Asked reports whether somebody wants the host to be empty.
func (d Drain) Asked() bool { return !d.AskedAt.IsZero() }

// Due reports whether what is left is to be ended.
func (d Drain) Due(now time.Time) bool { return d.Asked() && d.Force && !now.Before(d.Deadline) }

// DrainState is how far a drain is.
type DrainState string

// The states of a drain.
const (
	NoDrain  DrainState = ""
	Draining DrainState = "draining" // it is waited for sandboxes to end
	Ending   DrainState = "ending"   // they are being ended
	Overdue  DrainState = "overdue"  // the deadline is over and nobody may end them
	Drained  DrainState = "drained"
)

// State judges d at now, with so many sandboxes left.
func (d Drain) State(now time.Time, left int) DrainState {
	switch {
	case !d.Asked():
		return NoDrain
	case left == 0:
		return Drained
	case d.Due(now):
		return Ending
	case !d.Force && !d.Deadline.IsZero() && !now.Before(d.Deadline):
		return Overdue
	}
	return Draining
}
