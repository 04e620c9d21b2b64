package service

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// shared is the one server of this test process. Nobody stops it: its keeper
// does when the process ends.
var shared = sync.OnceValues(launchMariaDB)

// MariaDB returns the DSN of a fresh database, as store.Open takes it. The
// database goes with the test; its server serves the whole test process.
func MariaDB(tb testing.TB) (dsn string) {
	tb.Helper()
	m, err := shared()
	if err != nil {
		tb.Fatal(err)
	}
	return m.database(tb)
}

// MariaDBServer is a server of one test alone, which may stop it.
type MariaDBServer struct {
	DSN string // of a fresh database

	m *mariaDB
}

// OwnMariaDB starts a server for this test alone.
func OwnMariaDB(tb testing.TB) *MariaDBServer {
	tb.Helper()
	m, err := launchMariaDB()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := m.p.stop(); err != nil {
			tb.Error(err)
		}
	})
	return &MariaDBServer{DSN: m.database(tb), m: m}
}

// Stop ends the server and keeps its files.
func (s *MariaDBServer) Stop(tb testing.TB) {
	tb.Helper()
	if err := s.m.p.pause(); err != nil {
		tb.Fatal(err)
	}
}

// Start runs the server again, on the same port and files.
func (s *MariaDBServer) Start(tb testing.TB) {
	tb.Helper()
	if err := s.m.run(); err != nil {
		tb.Fatal(err)
	}
}

// LaunchMariaDB starts a server for a program that is no test. stop ends it and
// removes what it had.
func LaunchMariaDB() (dsn string, stop func() error, err error) {
	m, err := launchMariaDB()
	if err != nil {
		return "", nil, err
	}
	_, dsn, err = m.create()
	if err != nil {
		return "", nil, errors.Join(err, m.p.stop())
	}
	return dsn, m.p.stop, nil
}

type mariaDB struct {
	p        *process
	dir      string
	port     int
	password string
	made     atomic.Int64 // databases
}

func launchMariaDB() (m *mariaDB, err error) {
	for range startTries {
		if m, err = newMariaDB(); err == nil {
			return m, nil
		}
	}
	return nil, fmt.Errorf("mariadb: %w", err)
}

func newMariaDB() (*mariaDB, error) {
	install, err := program("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "paddock-mariadb-")
	if err != nil {
		return nil, err
	}
	m := &mariaDB{dir: dir, port: port, password: word()}
	owner, err := user.Current()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, install, "--no-defaults", "--user="+owner.Username, "--datadir="+filepath.Join(dir, "data"),
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-log-bin").CombinedOutput()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mariadb-install-db: %w: %s", err, out), os.RemoveAll(dir))
	}
	if err := m.run(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// The tests' account has a password, so that a test can look for it in
	// errors and logs.
	if err := m.sql(ctx, fmt.Sprintf("CREATE USER paddock@'127.0.0.1' IDENTIFIED BY '%s'; GRANT ALL ON *.* TO paddock@'127.0.0.1'", m.password)); err != nil {
		return nil, errors.Join(err, m.p.stop())
	}
	return m, nil
}

// run starts the server on its files and waits until it answers.
func (m *mariaDB) run() error {
	server, err := program("mariadbd")
	if err != nil {
		return err
	}
	owner, err := user.Current()
	if err != nil {
		return err
	}
	m.p, err = start(m.dir, nil, server, "--no-defaults", "--user="+owner.Username, "--datadir="+filepath.Join(m.dir, "data"),
		"--socket="+m.socket(), "--bind-address=127.0.0.1", "--port="+strconv.Itoa(m.port), "--skip-name-resolve", "--skip-log-bin",
		"--performance-schema=OFF", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--max-connections=400")
	if err != nil {
		return err
	}
	if err := m.p.wait(func(ctx context.Context) error { return m.sql(ctx, "SELECT 1") }); err != nil {
		return errors.Join(err, m.p.stop())
	}
	return nil
}

func (m *mariaDB) socket() string { return filepath.Join(m.dir, "s.sock") }

// database makes one that is dropped with the test.
func (m *mariaDB) database(tb testing.TB) string {
	tb.Helper()
	name, dsn, err := m.create()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
		defer cancel()
		if err := m.sql(ctx, "DROP DATABASE "+name); err != nil {
			tb.Error(err)
		}
	})
	return dsn
}

// create makes an empty database.
func (m *mariaDB) create() (name, dsn string, err error) {
	name = fmt.Sprintf("t%d_%s", m.made.Add(1), word()[:8])
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	return name, fmt.Sprintf("mysql://paddock:%s@tcp(127.0.0.1:%d)/%s", m.password, m.port, name), m.sql(ctx, "CREATE DATABASE "+name)
}

// sql runs statements as root, through the server's own client: only the store
// may open databases from Go.
func (m *mariaDB) sql(ctx context.Context, statements string) error {
	client, err := program("mariadb")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, client, "--no-defaults", "--user=root", "--socket="+m.socket(), "--batch", "--execute", statements)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mariadb client: %w: %s", err, out)
	}
	return nil
}

// word returns 24 random hex digits.
func word() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
