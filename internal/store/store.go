// Package store runs transactions on the system's database.
//
// Update is the only way to write. Statements live here and in the packages
// below (templatedb, sandboxdb), each written once in what SQLite and MySQL
// read alike; what differs between the two is a field of dialect. The clock is
// the database's, read once in each transaction. This package must never know
// a transport, and a transaction must never wait for anything but the
// database.
package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Options say which database to open.
type Options struct {
	// DSN is sqlite:/path/file.db or mysql://user:password@tcp(host:port)/name.
	DSN         string
	AutoMigrate bool
	Log         *slog.Logger // nil: silent
}

// Store is an open database. It is safe for concurrent use.
type Store struct {
	pools
	d    dialect
	log  *slog.Logger
	file string        // of SQLite's database; named locks are beside it
	turn chan struct{} // of those that write, where only one may; nil: all may
}

// Open connects, and brings the schema up to date unless it may not. It
// refuses a schema that this program does not know with fault.SchemaUnknown.
func Open(ctx context.Context, o Options) (*Store, error) {
	d, p, err := connect(o.DSN)
	if err != nil {
		return nil, err
	}
	p.db.SetMaxOpenConns(d.maxConns)
	p.db.SetMaxIdleConns(d.maxConns)
	p.db.SetConnMaxLifetime(30 * time.Minute)
	if p.locks != nil {
		p.locks.SetMaxOpenConns(maxLocks)
		p.locks.SetMaxIdleConns(idleLocks)
		p.locks.SetConnMaxIdleTime(time.Minute)
	}
	s := &Store{pools: p, d: d, log: o.Log}
	if d.oneWriter {
		s.turn = make(chan struct{}, 1)
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	err = s.meet(ctx)
	if err == nil && s.locks == nil {
		s.file, err = s.databaseFile(ctx)
	}
	if err == nil {
		err = s.migrate(ctx, o.AutoMigrate)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the database. Running transactions fail.
func (s *Store) Close() error {
	err := s.db.Close()
	if s.locks != nil {
		err = errors.Join(err, s.locks.Close())
	}
	if errors.Is(err, driver.ErrBadConn) {
		return nil // the server closed first
	}
	return err
}

// Dialect returns sqlite or mysql.
func (s *Store) Dialect() string { return s.d.name }

// Ping asks the database for an answer, for at most five seconds.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if err := s.db.PingContext(ctx); err != nil {
		return fault.Wrap(fault.StoreUnavailable, err, "database")
	}
	return nil
}

// meet is the first Ping. SQLite refuses at once, whatever its busy timeout,
// who meets a file while another makes it a database with a write-ahead log.
func (s *Store) meet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	for {
		err := s.Ping(ctx)
		if err == nil || !s.d.again(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(10+rand.IntN(20)) * time.Millisecond):
		}
	}
}

// Tx is one transaction. It must not be used after its function returned.
type Tx struct {
	// Now is the database's clock when the transaction began, in whole
	// microseconds.
	Now time.Time

	tx    *sql.Tx
	d     *dialect
	reads bool // and does nothing else
	moves [][]any
}

// Moved notes that a row changes its state. It is logged once the transaction
// is committed.
func (tx *Tx) Moved(kind, id, event, from, to string) {
	if from == to {
		return
	}
	tx.moves = append(tx.moves, []any{slog.String("kind", kind), slog.String("id", id), slog.String("event", event), slog.String("from", from), slog.String("to", to)})
}

// maxTries bounds how often a transaction that lost a race is run again.
const maxTries = 12

// Update runs fn in a transaction that writes, and runs it again if the
// database says that it lost a race. So fn must touch nothing but tx.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) error {
	return s.run(ctx, sql.TxOptions{}, fn)
}

// View runs fn in a transaction that only reads, as of one moment.
func (s *Store) View(ctx context.Context, fn func(tx *Tx) error) error {
	return s.run(ctx, s.d.read, fn)
}

// errLostRace asks for the transaction to be run again.
var errLostRace = fmt.Errorf("lost a race: %w", fault.VersionConflict)

func (s *Store) run(ctx context.Context, o sql.TxOptions, fn func(tx *Tx) error) error {
	for try := 1; ; try++ {
		err := s.once(ctx, o, fn)
		if err == nil || !errors.Is(err, errLostRace) && !s.d.again(err) || try == maxTries {
			return s.coded(ctx, err)
		}
		// A random pause, growing to 100 ms: losers must not meet again.
		pause := time.Duration(rand.Int64N(int64(min(100*time.Millisecond, time.Millisecond<<try))))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (s *Store) once(ctx context.Context, o sql.TxOptions, fn func(tx *Tx) error) (err error) {
	if s.turn != nil && !o.ReadOnly {
		// Those of one process wait here, in turn and without a connection. In the
		// database they would ask again and again, whoever is lucky first.
		select {
		case s.turn <- struct{}{}:
			defer func() { <-s.turn }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	raw, err := s.db.BeginTx(ctx, &o)
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			// A failed rollback leaves a broken connection, which the pool drops.
			_ = raw.Rollback()
		}
	}()
	tx := &Tx{tx: raw, d: &s.d, reads: o.ReadOnly}
	if tx.Now, err = tx.clock(ctx); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	err = raw.Commit()
	committed = err == nil
	if committed {
		for _, m := range tx.moves {
			s.log.InfoContext(ctx, "state changed", m...)
		}
	}
	return err
}

func (tx *Tx) clock(ctx context.Context) (time.Time, error) {
	if tx.d.now == "" {
		return time.Now().Truncate(time.Microsecond), nil
	}
	var us int64
	err := tx.tx.QueryRowContext(ctx, "SELECT "+tx.d.now).Scan(&us)
	return time.UnixMicro(us), err
}

// coded gives errors of the database itself a code. Those that have one, and
// the context's, stay as they are.
func (s *Store) coded(ctx context.Context, err error) error {
	if err == nil || fault.Of(err) != fault.Bug || errors.Is(err, fault.Bug) || s.d.ours(err) {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("database: %w", ctx.Err()) // a driver words it in its own way
	}
	if s.d.full(err) {
		return &fault.Error{Code: fault.DiskFull, Message: "database", Cause: err, Remedy: "free space on the disk of the database"}
	}
	return fault.Wrap(fault.StoreUnavailable, err, "database")
}

// Exec runs a statement and returns how many rows it found.
func (tx *Tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if tx.reads { // SQLite would let it
		return 0, fault.New(fault.Bug, "%s in a View", verb(query))
	}
	r, err := tx.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", verb(query), err)
	}
	return r.RowsAffected()
}

// ExecUnique is Exec for a statement that may meet a taken unique key, which is
// reported as taken.
func (tx *Tx) ExecUnique(ctx context.Context, taken error, query string, args ...any) (int64, error) {
	n, err := tx.Exec(ctx, query, args...)
	if err != nil && tx.d.unique(err) {
		return 0, taken
	}
	return n, err
}

// Insert adds one row. A taken unique key is reported as taken, which the
// caller words.
func (tx *Tx) Insert(ctx context.Context, taken error, query string, args ...any) error {
	_, err := tx.ExecUnique(ctx, taken, query, args...)
	return err
}

// Row reads one row into dest; ok is false when there is none.
func (tx *Tx) Row(ctx context.Context, query string, args []any, dest ...any) (ok bool, err error) {
	err = tx.tx.QueryRowContext(ctx, query, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", verb(query), err)
	}
	return true, nil
}

// Scanner is a row that can be read.
type Scanner interface {
	Scan(dest ...any) error
}

// Marks returns n placeholders for a list of values.
func Marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// Collect reads all rows of a query.
func Collect[T any](ctx context.Context, tx *Tx, scan func(Scanner) (T, error), query string, args ...any) (list []T, err error) {
	rows, err := tx.tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb(query), err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", verb(query), err)
		}
		list = append(list, one)
	}
	return list, rows.Err()
}

// First reads the first row of a query; ok is false when there is none.
func First[T any](ctx context.Context, tx *Tx, scan func(Scanner) (T, error), query string, args ...any) (one T, ok bool, err error) {
	list, err := Collect(ctx, tx, scan, query, args...)
	if err != nil || len(list) == 0 {
		return one, false, err
	}
	return list[0], true, nil
}

// verb is what a statement does, for messages: never its arguments.
func verb(query string) string {
	words := strings.Fields(query)
	return strings.Join(words[:min(3, len(words))], " ")
}
