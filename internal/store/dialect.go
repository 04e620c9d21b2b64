package store

import (
	"database/sql"
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/paddock-dev/paddock/internal/fault"
)

// dialect is everything that differs between the two databases. Each field is
// a fact about a database, never a decision about our data. Keep it short: a
// query that needs a new field is first rewritten so that it does not.
type dialect struct {
	name     string
	driver   string
	write    sql.TxOptions
	read     sql.TxOptions
	shared   string // ends a read whose rows must not change before the commit
	now      string // reads the database's clock, in microseconds since 1970; empty: it is ours
	maxConns int
	unique   func(error) bool // a unique key was taken
	again    func(error) bool // the transaction lost a race and may run again
	ours     func(error) bool // the statement is at fault, not the database's state
}

var sqliteDialect = dialect{
	name:     "sqlite",
	driver:   "sqlite",
	read:     sql.TxOptions{ReadOnly: true},
	maxConns: 8,
	unique: func(err error) bool {
		var e *sqlite.Error
		return errors.As(err, &e) && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
	},
	again: func(err error) bool {
		var e *sqlite.Error
		return errors.As(err, &e) && (e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code()&0xff == sqlite3.SQLITE_LOCKED)
	},
	ours: func(err error) bool {
		var e *sqlite.Error
		return errors.As(err, &e) && (e.Code()&0xff == sqlite3.SQLITE_ERROR || e.Code()&0xff == sqlite3.SQLITE_CONSTRAINT)
	},
}

var mysqlDialect = dialect{
	name:     "mysql",
	driver:   "mysql",
	write:    sql.TxOptions{Isolation: sql.LevelReadCommitted}, // after a lock was waited for, later reads must see what it waited for
	read:     sql.TxOptions{Isolation: sql.LevelRepeatableRead},
	shared:   " LOCK IN SHARE MODE", // the spelling that MySQL 8 and MariaDB both take
	now:      "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
	maxConns: 32,
	unique: func(err error) bool {
		var e *mysql.MySQLError
		return errors.As(err, &e) && e.Number == 1062
	},
	again: func(err error) bool {
		var e *mysql.MySQLError
		return errors.As(err, &e) && (e.Number == 1213 || e.Number == 1205 || e.Number == 1020)
	},
	ours: func(err error) bool {
		var e *mysql.MySQLError
		// Syntax, unknown column or table, data too long, violated check.
		return errors.As(err, &e) && (e.Number == 1064 || e.Number == 1054 || e.Number == 1146 || e.Number == 1406 || e.Number == 4025)
	},
}

// dialectOf returns the dialect of dsn and what its driver wants to be told.
func dialectOf(dsn string) (dialect, string, error) {
	if path, ok := strings.CutPrefix(dsn, "sqlite:"); ok {
		// Immediate transactions wait for each other in the database instead of
		// failing in the middle. Readers see the last commit and wait for nobody.
		return sqliteDialect, "file:" + path + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)", nil
	}
	source, ok := strings.CutPrefix(dsn, "mysql://")
	if !ok {
		return dialect{}, "", fault.New(fault.BadConfig, "database.dsn: must begin with sqlite: or mysql://")
	}
	c, err := mysql.ParseDSN(source)
	if err != nil {
		return dialect{}, "", fault.Wrap(fault.BadConfig, errors.New(hide(err, source)), "database.dsn")
	}
	c.ClientFoundRows = true // a renewal within one clock tick must not read as a lost row
	c.InterpolateParams = true
	c.MultiStatements = false
	c.Collation = "binary"
	if c.Timeout == 0 {
		c.Timeout = dialTime
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = answerTime
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = answerTime
	}
	return mysqlDialect, c.FormatDSN(), nil
}
