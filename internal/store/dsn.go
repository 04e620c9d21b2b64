package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/paddock-dev/paddock/internal/fault"
)

// pools are the connections of one database; none is open yet.
type pools struct {
	db    *sql.DB
	locks *sql.DB // nil where a lock needs no connection
	scope string  // sets the locks of this database apart on its server
}

// connect returns the dialect of dsn and its pools. No error shows any part of
// dsn: it may hold a password anywhere.
func connect(dsn string) (dialect, pools, error) {
	switch kind, source, _ := strings.Cut(dsn, ":"); kind {
	case "sqlite":
		return connectSQLite(source)
	case "mysql":
		return connectMySQL(strings.TrimPrefix(source, "//"))
	}
	return dialect{}, pools{}, badDSN("it must begin with sqlite: or mysql://")
}

func badDSN(what string) error {
	return &fault.Error{Code: fault.BadConfig, Message: "database.dsn: " + what, Remedy: "write sqlite:/path/file.db or mysql://user:password@tcp(host:3306)/name"}
}

func connectSQLite(path string) (dialect, pools, error) {
	if path == "" {
		return dialect{}, pools{}, badDSN("sqlite: names no file")
	}
	// Immediate transactions wait for each other in the database instead of
	// failing in the middle. Readers see the last commit and wait for nobody.
	source := "file:" + (&url.URL{Path: path}).EscapedPath() +
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)"
	db, err := sql.Open("sqlite", source)
	if err != nil {
		return dialect{}, pools{}, badDSN("the driver does not take it")
	}
	return sqliteDialect, pools{db: db}, nil
}

func connectMySQL(source string) (dialect, pools, error) {
	c, err := mysql.ParseDSN(source)
	if err != nil || c.Net != "tcp" && c.Net != "unix" || c.DBName == "" {
		return dialect{}, pools{}, badDSN("mysql:// is not followed by user:password@tcp(host:port)/name")
	}
	c.ClientFoundRows = true // a renewal within one clock tick must not read as a lost row
	c.InterpolateParams = true
	c.MultiStatements = false
	c.Collation = "binary"
	// The clock is read through the session's zone, which must know no hour
	// twice.
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	c.Params["time_zone"] = "'+00:00'"
	c.Logger = &mysql.NopLogger{} // its errors reach us as errors
	if c.Timeout == 0 {
		c.Timeout = dialTime
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = answerTime
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = answerTime
	}
	inner, err := mysql.NewConnector(c)
	if err != nil {
		return dialect{}, pools{}, badDSN("the driver does not take it")
	}
	// A lock pins its connection for as long as it is held: those that hold one
	// must not take the last from those that write.
	return mysqlDialect, pools{db: sql.OpenDB(connector{inner}), locks: sql.OpenDB(connector{inner}), scope: c.DBName + "."}, nil
}

// connector opens connections at READ COMMITTED: after a lock was waited for,
// later reads must see what it waited for. Set once for each connection, it
// costs no transaction a round trip; the variable that a DSN could set has two
// names in MySQL and MariaDB.
type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.(driver.ExecerContext).ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", nil); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
