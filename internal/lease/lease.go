// Package lease holds the rules of who may act, and until when.
//
// The database decides: its row says who holds a subject, at which epoch,
// until what time by its own clock. A holder's clock is used for one thing
// only, to stop early. The row lasts as long as its subject, so epochs only
// grow.
package lease

import "time"

// Epoch counts the holders that a subject has had. It is the fencing token:
// a higher one always wins.
type Epoch int64

// Lease is the right to act on a subject until a time of the database's clock.
type Lease struct {
	Subject string
	Holder  string
	Epoch   Epoch
	Until   time.Time
}

// Fence is a lease as carried into a write.
type Fence struct {
	Subject string
	Holder  string
	Epoch   Epoch
}

// Fence returns what a write must carry to prove l.
func (l Lease) Fence() Fence { return Fence{l.Subject, l.Holder, l.Epoch} }

// StopAt returns when a holder must stop acting, by its own clock: counted
// from the moment the renewal was sent, not from its answer, less a margin for
// what is still on its way.
func StopAt(sent time.Time, ttl, margin time.Duration) time.Time {
	return sent.Add(ttl - margin)
}
