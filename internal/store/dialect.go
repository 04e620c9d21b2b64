package store

import (
	"database/sql"
	"errors"
	"slices"

	"github.com/go-sql-driver/mysql"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// dialect is everything that differs between the two databases. Each field is
// a fact about a database, never a decision about our data. Keep it short: a
// query that needs a new field is first rewritten so that it does not.
type dialect struct {
	name      string
	read      sql.TxOptions // of a View: it sees one moment
	shared    string        // ends a read whose rows must not change before the commit
	now       string        // reads the database's clock, in microseconds since 1970; empty: it is ours
	maxConns  int
	oneWriter bool             // at a time, in the whole database
	unique    func(error) bool // a unique key was taken
	again     func(error) bool // the transaction lost a race and may run again
	ours      func(error) bool // the statement is at fault, not the database's state
	full      func(error) bool // the disk of the database is full
}

var sqliteDialect = dialect{
	name:      "sqlite",
	read:      sql.TxOptions{ReadOnly: true},
	maxConns:  8,
	oneWriter: true,
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
	full: func(err error) bool {
		var e *sqlite.Error
		return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_FULL
	},
}

var mysqlDialect = dialect{
	name:     "mysql",
	read:     sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
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
		return errors.As(err, &e) && !slices.Contains(serverErrors, e.Number)
	},
	full: func(err error) bool {
		var e *mysql.MySQLError
		return errors.As(err, &e) && (e.Number == 1021 || e.Number == 1114)
	},
}

// serverErrors say that the server cannot, whatever the statement: no room for
// a connection, no access, no database, a lock or a deadlock, a shutdown, a
// killed connection, a full disk, an end of its own time limits.
var serverErrors = []uint16{
	1020, 1021, 1026, 1030, 1040, 1041, 1042, 1043, 1044, 1045, 1049, 1053, 1077, 1114, 1129, 1130, 1152, 1158, 1159, 1160, 1161,
	1203, 1205, 1206, 1213, 1226, 1290, 1317, 1836, 1927, 1969, 3024, 3100, 3101, 4031,
}
