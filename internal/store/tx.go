package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/paddock-dev/paddock/internal/lease"
)

// Tx is a transaction that runs. Now is the database's clock, read once, in
// whole microseconds.
type Tx struct {
	Now time.Time
}

// Exec runs a statement and returns how many rows it found.
func (tx *Tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return 0, errUnwritten
}

// Query runs a query of many rows.
func (tx *Tx) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return nil, errUnwritten
}

// QueryRow runs a query of one row.
func (tx *Tx) QueryRow(ctx context.Context, query string, args ...any) *sql.Row { return nil }

// Acquire takes the lease of subject for holder until ttl from now.
// fault.LeaseHeld while another has it. The holder's own running lease keeps
// its epoch; anything else begins the next one.
func (tx *Tx) Acquire(ctx context.Context, subject, holder string, ttl time.Duration) (lease.Lease, error) {
	return lease.Lease{}, errUnwritten
}

// Renew extends the lease: fault.StaleController.
func (tx *Tx) Renew(ctx context.Context, f lease.Fence, ttl time.Duration) (lease.Lease, error) {
	return lease.Lease{}, errUnwritten
}

// Release ends the lease now: fault.StaleController.
func (tx *Tx) Release(ctx context.Context, f lease.Fence) error { return errUnwritten }

// Guard refuses with fault.StaleController unless f still stands.
func (tx *Tx) Guard(ctx context.Context, f lease.Fence) error { return errUnwritten }
