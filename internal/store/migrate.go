package store

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	dialTime    = 5 * time.Second
	answerTime  = 60 * time.Second
	migrateTime = 60 * time.Second
)

//go:embed migrations/sqlite/*.sql migrations/mysql/*.sql
var migrations embed.FS

// Schema returns all migrations of one dialect, joined, for tests that compare
// them with the machines.
func Schema(dialect string) string {
	var b strings.Builder
	for _, m := range stepsOf(dialect) {
		b.WriteString(m.text)
	}
	return b.String()
}

type step struct{ name, text, sum string }

func stepsOf(dialect string) []step {
	dir := path.Join("migrations", dialect)
	names, err := fs.Glob(migrations, dir+"/*.sql")
	if err != nil {
		panic("store: " + err.Error()) // the pattern is a constant
	}
	slices.Sort(names)
	var list []step
	for _, name := range names {
		text, err := migrations.ReadFile(name)
		if err != nil {
			panic("store: " + err.Error()) // it was just listed
		}
		sum := sha256.Sum256(text)
		list = append(list, step{path.Base(name), string(text), hex.EncodeToString(sum[:])})
	}
	return list
}

// migrate brings the schema up to date. Steps can be run twice, since MySQL
// commits each statement at once; a table of ours keeps their checksums, which
// goose does not. Two programs that start together take turns.
func (s *Store) migrate(ctx context.Context, apply bool) error {
	if !apply {
		return s.checkSteps(ctx, true)
	}
	locked, err := s.WithLock(ctx, "paddock_migration", migrateTime, s.applySteps)
	if err == nil && !locked {
		err = fault.New(fault.StoreUnavailable, "schema: another program has been migrating it for over %s", migrateTime)
	}
	return err
}

func (s *Store) applySteps(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS schema_step (name VARCHAR(190) NOT NULL PRIMARY KEY, sum VARCHAR(64) NOT NULL)`); err != nil {
		return fault.Wrap(fault.StoreUnavailable, err, "schema table")
	}
	if err := s.checkSteps(ctx, false); err != nil {
		return err
	}
	dir, err := fs.Sub(migrations, "migrations/"+s.d.name)
	if err != nil {
		return err
	}
	kind := goose.DialectSQLite3
	if s.d.name == "mysql" {
		kind = goose.DialectMySQL
	}
	p, err := goose.NewProvider(kind, s.db, dir, goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	done, err := p.Up(ctx)
	if err != nil {
		return fault.Wrap(fault.StoreUnavailable, err, "schema migration")
	}
	for _, r := range done {
		s.log.InfoContext(ctx, "schema step applied", slog.String("step", path.Base(r.Source.Path)), slog.Duration("took", r.Duration))
	}
	for _, m := range stepsOf(s.d.name) {
		if _, err := s.db.ExecContext(ctx, `INSERT INTO schema_step (name, sum) SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM schema_step WHERE name = ?)`, m.name, m.sum, m.name); err != nil {
			return fault.Wrap(fault.StoreUnavailable, err, "schema checksum")
		}
	}
	return nil
}

// checkSteps compares what was applied with what this program has. all demands
// that nothing is missing.
func (s *Store) checkSteps(ctx context.Context, all bool) (err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT name, sum FROM schema_step`)
	if err != nil {
		return fault.Wrap(fault.SchemaUnknown, err, "schema")
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	ours, seen := map[string]string{}, 0
	for _, m := range stepsOf(s.d.name) {
		ours[m.name] = m.sum
	}
	for rows.Next() {
		var name, sum string
		if err := rows.Scan(&name, &sum); err != nil {
			return err
		}
		switch mine, ok := ours[name]; {
		case !ok:
			return fault.New(fault.SchemaUnknown, "schema step %s", name)
		case mine != sum:
			return fault.New(fault.SchemaUnknown, "schema step %s was applied with another content", name)
		}
		seen++
	}
	if all && seen < len(ours) {
		return fault.New(fault.SchemaUnknown, "schema has %d of %d steps, and database.auto_migrate is off", seen, len(ours))
	}
	return rows.Err()
}
