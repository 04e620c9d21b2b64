// Package store runs the transactions of every layer on SQLite, MySQL or
// MariaDB, and holds what must be one for all of them: leases, submissions,
// the outbox and named locks.
//
// It promises that what Update did is there as a whole or not at all. It must
// never know what a template or a sandbox is: statements live in the *db
// packages beneath it.
package store

import (
	"context"
	"log/slog"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Options say which database to open, and how.
type Options struct {
	// DSN is sqlite:/path/file.db, or mysql://user:password@tcp(host:3306)/name.
	DSN string
	// AutoMigrate brings the schema up to date; without it Open refuses an old one.
	AutoMigrate bool
	Log         *slog.Logger // nil: silent
}

// Store is one database. It is safe for concurrent use.
type Store struct{}

var errUnwritten = fault.New(fault.Bug, "this body follows its signature")

// Open connects to the database.
func Open(ctx context.Context, o Options) (*Store, error) { return nil, errUnwritten }

// Close ends every connection.
func (s *Store) Close() error { return nil }

// Ping reports whether the database answers: fault.StoreUnavailable.
func (s *Store) Ping(ctx context.Context) error { return errUnwritten }

// Dialect names the database: sqlite or mysql.
func (s *Store) Dialect() string { return "" }

// Update runs fn in a transaction that writes. fn may run several times, so it
// touches nothing but tx.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) error { return errUnwritten }

// View runs fn in a transaction that only reads.
func (s *Store) View(ctx context.Context, fn func(tx *Tx) error) error { return errUnwritten }
