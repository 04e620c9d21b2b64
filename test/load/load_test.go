// Package load is tests of several masters on one database and one fleet, that
// is nearly full, under faults. What the masters say must never be more than
// the hosts have, and in the end rows and hosts must agree.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/test/cubelets"
	"github.com/paddock-dev/paddock/test/service"
)

const (
	masters  = 3
	hosts    = 20
	each     = 5 // sandboxes that a host has room for
	capacity = hosts * each
	clients  = 12
	churn    = 15 // sandboxes that each client ends and makes anew
	seed     = 5
)

var apiKey = "e2b_" + strings.Repeat("0", 40)

// rig is masters with a database and hosts.
type rig struct {
	t        *testing.T
	dsn      string
	db       *store.Store
	template string
	masters  [masters]*process // by the names that clients know
	fleet    *cubelets.Fleet
}

// process is one master, with connections of its own.
type process struct {
	url  string
	api  *cubeapi.Client
	kill func() // its connections break: it writes nothing more
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, dsn: service.MariaDB(t)}
	r.db = r.open(store.Options{DSN: r.dsn, AutoMigrate: true})
	t.Cleanup(func() { _ = r.db.Close() })
	id, err := cubelets.AddTemplate(t.Context(), r.db, hosts)
	must(t, err)
	r.template = string(id)
	var urls []string
	for i := range r.masters {
		r.masters[i] = r.start("127.0.0.1:0")
		urls = append(urls, r.masters[i].url)
	}
	r.fleet, err = cubelets.Start(t.Context(), cubelets.Options{
		Hosts: hosts, Room: host.Resources{MilliCPU: 1 << 40, MemBytes: 1 << 50, DiskBytes: 1 << 50, Slots: each},
		Artifacts: []string{string(cubelets.Artifact)}, Token: "host", Masters: urls, Every: 500 * time.Millisecond,
		Seed: seed, Lost: 0.03, Slow: 20 * time.Millisecond,
	})
	must(t, err)
	t.Cleanup(r.fleet.Close)
	return r
}

func (r *rig) open(o store.Options) *store.Store {
	r.t.Helper()
	db, err := store.Open(r.t.Context(), o)
	must(r.t, err)
	return db
}

// start begins a master on an address, where an earlier one may have been.
func (r *rig) start(addr string) *process {
	r.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(r.t.Context(), "tcp", addr)
	must(r.t, err)
	p := &process{url: "http://" + l.Addr().String()}
	p.api = cubeapi.NewClient(p.url, apiKey)
	c := config.Default()
	c.Auth = config.Auth{APIKey: config.Secret(apiKey), CallbackToken: "callback", HostToken: "host"}
	c.Master.Addr, c.Master.DownloadBaseURL = p.url, p.url
	c.Master.SweepInterval, c.Master.HostStaleAfter = 200*time.Millisecond, time.Minute // a loaded machine makes nobody sick
	db := r.open(store.Options{DSN: r.dsn})
	m, err := master.New(master.Deps{Config: c, Store: db, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Metrics: prometheus.NewRegistry()})
	must(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s := &http.Server{Handler: m.Handler(), ReadHeaderTimeout: 10 * time.Second}
	var ended sync.WaitGroup
	ended.Go(func() { _ = s.Serve(l) }) // it is closed
	ended.Go(func() { _ = m.Run(ctx) }) // what it cannot do once its database is gone is what is tested
	stop := sync.OnceFunc(func() {
		_ = s.Close()
		cancel()
		ended.Wait()
		_ = db.Close()
	})
	p.kill = func() {
		_ = db.Close()
		stop()
	}
	r.t.Cleanup(stop)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition, and tells what it was about at last.
func (r *rig) eventually(what string, holds func() error) {
	r.t.Helper()
	late, look, began := time.After(2*time.Minute), time.NewTicker(20*time.Millisecond), time.Now()
	defer look.Stop()
	for {
		err := holds()
		if err == nil {
			r.t.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
		select {
		case <-late:
			r.t.Fatalf("%s never came to be: %v", what, err)
		case <-look.C:
		}
	}
}

// rows are the sandboxes that live, as the database has them.
func (r *rig) rows(ctx context.Context) (list []sandbox.Sandbox, err error) {
	err = r.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = sandboxdb.ListSandboxes(ctx, tx, sandboxdb.Filter{
			States: []sandbox.State{sandbox.Allocating, sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Terminating}, Limit: 10 * capacity,
		})
		return err
	})
	return list, err
}

// agree reports whether rows and hosts say the same, and no row is on its way.
func (r *rig) agree() error {
	list, err := r.rows(r.t.Context())
	if err != nil {
		return err
	}
	at, err := r.fleet.Live()
	if err != nil {
		return err
	}
	for _, s := range list {
		switch {
		case s.State != sandbox.Running:
			return fmt.Errorf("sandbox %s is %s", s.ID, s.State)
		case at[string(s.ID)] != s.HostID:
			return fmt.Errorf("sandbox %s runs on %q by its row, and is on %q", s.ID, s.HostID, at[string(s.ID)])
		}
		delete(at, string(s.ID))
	}
	for id, h := range at {
		return fmt.Errorf("host %s has sandbox %s, of which no row tells", h, id)
	}
	return nil
}

// watch looks all the time whether the rows claim more than a host has, until
// the returned function is called.
func (r *rig) watch() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			list, err := r.rows(ctx)
			if err != nil {
				continue // ctx has ended, or the next look tells
			}
			n := map[host.ID]int{}
			for _, s := range list {
				if s.State == sandbox.Running {
					n[s.HostID]++
				}
			}
			for id, running := range n {
				if running > each {
					r.t.Errorf("%d sandboxes run on %s by their rows: it has room for %d", running, id, each)
				}
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// held is the sandboxes that a client was told it has.
type held struct {
	rng   *rand.Rand
	names *atomic.Int64
	ids   []string
}

// create asks masters, one after the other, until one makes a sandbox or says
// that there is no room.
func (r *rig) create(ctx context.Context, h *held) (bool, error) {
	q := cubeapi.SandboxCreateRequest{TemplateID: r.template, RequestID: fmt.Sprint("load-", h.names.Add(1))}
	for {
		box, err := r.masters[h.rng.IntN(masters)].api.CreateSandbox(ctx, q)
		switch {
		case err == nil:
			h.ids = append(h.ids, box.SandboxID)
			return true, nil
		case errors.Is(err, fault.NoCapacity):
			return false, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case fault.Of(err) == fault.Bug:
			return false, fmt.Errorf("a refusal without a code: %w", err)
		}
		// Out of reach, or it has failed: the same request again, to whom ever. It
		// makes one sandbox or none.
		pause(ctx)
	}
}

// remove ends one of the client's sandboxes.
func (r *rig) remove(ctx context.Context, h *held) error {
	at := h.rng.IntN(len(h.ids))
	id := h.ids[at]
	h.ids = append(h.ids[:at], h.ids[at+1:]...)
	for {
		err := r.masters[h.rng.IntN(masters)].api.DeleteSandbox(ctx, id)
		switch {
		case err == nil, errors.Is(err, fault.SandboxNotFound):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		pause(ctx)
	}
}

// pause is before a client asks again.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

// together lets all clients do something, each with its own chance.
func (r *rig) together(all []*held, do func(ctx context.Context, h *held) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 4*time.Minute)
	defer cancel()
	var work sync.WaitGroup
	for _, h := range all {
		work.Go(func() {
			if err := do(ctx, h); err != nil {
				r.t.Error(err)
			}
		})
	}
	work.Wait()
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// total is how many sandboxes the clients have.
func total(all []*held) (n int) {
	for _, h := range all {
		n += len(h.ids)
	}
	return n
}

// TestSeveralMastersNeverSellMoreThanThereIs fills a fleet by three masters at
// once, keeps it full while one of them is killed and answers are lost, and
// empties it.
func TestSeveralMastersNeverSellMoreThanThereIs(t *testing.T) {
	r := newRig(t)
	defer r.watch()()
	var names atomic.Int64
	var all []*held
	for c := range clients {
		all = append(all, &held{rng: rand.New(rand.NewPCG(seed, uint64(c))), names: &names})
	}

	// Whatever is asked for at once, as many as there is room for are made: who
	// is told that there is none asks again while there is some.
	r.eventually("a full fleet", func() error {
		r.together(all, func(ctx context.Context, h *held) error {
			for {
				if made, err := r.create(ctx, h); !made || err != nil {
					return err
				}
			}
		})
		if n := total(all); n != capacity {
			return fmt.Errorf("%d of %d sandboxes", n, capacity)
		}
		return nil
	})
	r.eventually("agreement of the full fleet", r.agree)

	// One ends, one is made, again and again; a third of the way through, one of
	// the masters is killed and another takes its place.
	var steps atomic.Int64
	killed := sync.OnceFunc(func() {
		r.masters[0].kill()
		r.start(strings.TrimPrefix(r.masters[0].url, "http://")) // whom clients and hosts reach by the old name
	})
	r.together(all, func(ctx context.Context, h *held) error {
		for range churn {
			if len(h.ids) > 0 {
				if err := r.remove(ctx, h); err != nil {
					return err
				}
			}
			if _, err := r.create(ctx, h); err != nil {
				return err
			}
			if steps.Add(1) == clients*churn/3 {
				killed()
			}
		}
		return nil
	})
	r.eventually("agreement after the churn", r.agree)
	list, err := r.rows(t.Context())
	must(t, err)
	if n := total(all); len(list) != n {
		t.Errorf("%d sandboxes run, clients were told of %d", len(list), n)
	}
	for _, h := range r.fleet.Hosts {
		if most := h.Most().Slots; most > each {
			t.Errorf("host %s admitted %d at once", h.ID, most)
		}
	}

	r.together(all, func(ctx context.Context, h *held) error {
		for len(h.ids) > 0 {
			if err := r.remove(ctx, h); err != nil {
				return err
			}
		}
		return nil
	})
	r.eventually("agreement of the empty fleet", r.agree)
	if at, err := r.fleet.Live(); err != nil || len(at) > 0 {
		t.Errorf("%d sandboxes are left on hosts: %v", len(at), err)
	}
}
