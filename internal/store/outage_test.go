package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/test/service"
)

// TestOutage stops the database under writers and starts it again: what was
// answered is there, nothing is there twice, and the writers go on by
// themselves.
func TestOutage(t *testing.T) {
	server := service.OwnMariaDB(t)
	s := open(t, server.DSN)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	var mu sync.Mutex
	committed, refused := map[sandbox.ID]bool{}, 0
	wrote := func() int { mu.Lock(); defer mu.Unlock(); return len(committed) }
	failed := func() int { mu.Lock(); defer mu.Unlock(); return refused }
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := sandbox.ID(fmt.Sprintf("i%012x%012x", w, n))
				err := s.Update(ctx, func(tx *store.Tx) error {
					_, err := sandboxdb.AddSandbox(ctx, tx, sandbox.Sandbox{ID: id})
					return err
				})
				mu.Lock()
				if err == nil {
					committed[id] = true
				} else if refused++; !errors.Is(err, fault.StoreUnavailable) {
					t.Errorf("during the outage: %v", err)
				}
				mu.Unlock()
			}
		})
	}
	eventually(t, "writes before the outage", func() bool { return wrote() > 20 })
	server.Stop(t)
	eventually(t, "refusals in the outage", func() bool { return failed() > 3 })
	if err := s.Ping(ctx); !errors.Is(err, fault.StoreUnavailable) {
		t.Errorf("ping in the outage: %v", err)
	}
	server.Start(t)
	before := wrote()
	eventually(t, "writes after the outage", func() bool { return wrote() > before+20 })
	close(stop)
	writers.Wait()

	if err := s.View(ctx, func(tx *store.Tx) error {
		for id := range committed {
			if _, err := sandboxdb.GetSandbox(ctx, tx, id); err != nil {
				t.Errorf("was answered and is lost: %v", err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestLockIsLostWithItsServer: who holds a lock must hear that it is gone.
func TestLockIsLostWithItsServer(t *testing.T) {
	server := service.OwnMariaDB(t)
	s := open(t, server.DSN)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	locked, err := s.WithLock(ctx, "l", 0, func(held context.Context) error {
		server.Stop(t)
		<-held.Done()
		return context.Cause(held)
	})
	if !locked || !errors.Is(err, fault.StoreUnavailable) || ctx.Err() != nil {
		t.Errorf("got %v, %v", locked, err)
	}
	server.Start(t)
}

func TestErrorsHideSecrets(t *testing.T) {
	good := service.MariaDB(t)
	u, err := url.Parse(good)
	if err == nil {
		t.Fatalf("%s parses as a URL: use that", u)
	}
	_, rest, _ := strings.Cut(good, ":")
	_, rest, _ = strings.Cut(rest, ":")
	password, _, _ := strings.Cut(rest, "@")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dsn  string
		want error
	}{
		"wrong password":  {strings.Replace(good, password, password+"x", 1), fault.StoreUnavailable},
		"wrong database":  {good + "_no", fault.StoreUnavailable},
		"nobody listens":  {"mysql://u:" + password + "@tcp(" + nobody + ")/d", fault.StoreUnavailable},
		"no slash":        {"mysql://u:" + password + "@tcp(" + nobody + ")", fault.BadConfig},
		"no bracket":      {"mysql://u:" + password + "@tcp(" + nobody + "/d", fault.BadConfig},
		"odd password":    {"mysql://u:" + password + "/@:)(" + password + "@tcp(" + nobody + ")/d", fault.StoreUnavailable},
		"odd address":     {"mysql://u:" + password + "@" + nobody + "/d", fault.BadConfig},
		"as an address":   {"mysql://u@" + password + "(x)/d", fault.BadConfig},
		"odd parameter":   {"mysql://u:" + password + "@tcp(" + nobody + ")/d?timeout=" + password, fault.BadConfig},
		"another scheme":  {"postgres://u:" + password + "@h/d", fault.BadConfig},
		"nothing":         {"", fault.BadConfig},
		"no file":         {"sqlite:", fault.BadConfig},
		"no directory":    {"sqlite:" + filepath.Join(t.TempDir(), "no", "file.db"), fault.StoreUnavailable},
		"not a database":  {"sqlite:/proc/version", fault.StoreUnavailable},
		"odd file name":   {"sqlite:" + filepath.Join(t.TempDir(), "a?b#c%41 d.db"), nil},
		"mode in a query": {"sqlite:" + filepath.Join(t.TempDir(), "x.db?mode=memory"), nil},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		s, err := store.Open(ctx, store.Options{DSN: c.dsn, AutoMigrate: true})
		if err == nil {
			err = s.Close()
		}
		cancel()
		if !errors.Is(err, c.want) || err != nil && c.want == nil {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("%s: the error shows the password: %v", name, err)
		}
	}
}
