package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/test/cubelets"
	"github.com/paddock-dev/paddock/test/service"
)

// rig is a database, a master on it, and hosts.
type rig struct {
	db       *store.Store
	url      string
	template string
	master   *child
	ends     []func() error
	names    atomic.Int64
}

func newRig(ctx context.Context, o options, db string) (r *rig, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	dsn, err := r.database(db)
	if err != nil {
		return r, err
	}
	if r.db, err = store.Open(ctx, store.Options{DSN: dsn, AutoMigrate: true}); err != nil {
		return r, err
	}
	r.ends = append(r.ends, r.db.Close)
	id, err := cubelets.AddTemplate(ctx, r.db, o.hosts)
	if err != nil {
		return r, err
	}
	r.template = string(id)
	if r.master, err = spawn(ctx, "master", []string{envDSN + "=" + dsn}, profileName(o.profile, db)...); err != nil {
		return r, err
	}
	r.url = r.master.said
	r.ends = append(r.ends, r.master.end)
	fleet, err := spawn(ctx, "hosts", []string{envMasters + "=" + r.url}, hostsFlag(o.hosts)...)
	if err != nil {
		return r, err
	}
	r.ends = append(r.ends, fleet.end)
	return r, nil
}

func (r *rig) database(kind string) (dsn string, err error) {
	if kind == "mariadb" {
		dsn, stop, err := service.LaunchMariaDB()
		if err == nil {
			r.ends = append(r.ends, stop)
		}
		return dsn, err
	}
	dir, err := os.MkdirTemp("", "paddock-bench-")
	r.ends = append(r.ends, func() error { return os.RemoveAll(dir) })
	return "sqlite:" + filepath.Join(dir, "paddock.db"), err
}

// close ends all, the newest first.
func (r *rig) close() error {
	var errs []error
	for i := len(r.ends) - 1; i >= 0; i-- {
		errs = append(errs, r.ends[i]())
	}
	r.ends = nil
	return errors.Join(errs...)
}

// round creates n sandboxes, deletes them, and commits as many single rows.
func (r *rig) round(ctx context.Context, clients, n int) (s samples, err error) {
	idle, err := r.quiet(ctx)
	if err != nil {
		return s, err
	}
	before, err := r.counted(ctx)
	if err != nil {
		return s, err
	}
	worked, err := r.master.worked()
	if err != nil {
		return s, err
	}
	api := make([]*cubeapi.Client, clients) // each with connections of its own, as programs have
	for i := range api {
		api[i] = cubeapi.NewClient(r.url, apiKey)
	}
	boxes := make(chan string, n)
	rate, all, err := together(ctx, clients, n, func(ctx context.Context, c int) error {
		box, err := api[c].CreateSandbox(ctx, cubeapi.SandboxCreateRequest{TemplateID: r.template, RequestID: r.next()})
		if err == nil {
			boxes <- box.SandboxID
		}
		return err
	})
	if err != nil {
		return s, fmt.Errorf("create: %w", err)
	}
	s.create, s.createRate = all, []float64{rate}
	after, err := r.counted(ctx)
	if err != nil {
		return s, err
	}
	s.commits, s.asked = after.since(before, idle)
	done, err := r.master.worked()
	if err != nil {
		return s, err
	}
	s.cpu = done - worked
	rate, s.remove, err = together(ctx, clients, n, func(ctx context.Context, c int) error { return api[c].DeleteSandbox(ctx, <-boxes) })
	if err != nil {
		return s, fmt.Errorf("delete: %w", err)
	}
	s.removeRate = []float64{rate}
	rate, s.commit, err = together(ctx, clients, n, func(ctx context.Context, _ int) error { return r.commit(ctx) })
	s.commitRate = []float64{rate}
	return s, err
}

// quiet waits until nothing is left to do of an earlier round, and for as long
// as it takes to see what the database does without creates: for reports,
// sweeps and views.
func (r *rig) quiet(ctx context.Context) (idle count, err error) {
	for waiting := int64(1); waiting > 0; {
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return idle, err
		}
		if err := r.db.View(ctx, func(tx *store.Tx) (err error) {
			waiting, _, err = tx.OutboxLen(ctx)
			return err
		}); err != nil {
			return idle, err
		}
	}
	if idle, err = r.counted(ctx); err != nil || !idle.known {
		return idle, err
	}
	return idle, pause(ctx, 3*time.Second)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (r *rig) next() string { return fmt.Sprintf("bench-%d", r.names.Add(1)) }

// commit writes one row, as small as a sandbox's.
func (r *rig) commit(ctx context.Context) error {
	return r.db.Update(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO audit (id, at_us, actor, action, subject, request_id, detail) VALUES (?, ?, ?, 'bench', ?, ?, ?)`,
			r.next(), tx.Now.UnixMicro(), []byte("bench"), []byte("x"), []byte("x"), make([]byte, 256))
		return err
	})
}

// count is what a database has counted by some moment.
type count struct {
	known          bool
	at             time.Time
	commits, asked float64
}

func (r *rig) counted(ctx context.Context) (c count, err error) {
	if r.db.Dialect() != "mysql" {
		return c, nil
	}
	c = count{known: true, at: time.Now()}
	return c, r.db.View(ctx, func(tx *store.Tx) error {
		for name, into := range map[string]*float64{"COM_COMMIT": &c.commits, "QUESTIONS": &c.asked} {
			var text string
			if _, err := tx.Row(ctx, `SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = ?`, []any{name}, &text); err != nil {
				return err
			}
			if *into, err = strconv.ParseFloat(text, 64); err != nil {
				return err
			}
		}
		return nil
	})
}

// since returns what was counted between two moments beyond what is counted in
// as much time without creates, which was seen from idle to before.
func (c count) since(before, idle count) (commits, asked float64) {
	if !c.known {
		return 0, 0
	}
	part := float64(c.at.Sub(before.at)) / float64(before.at.Sub(idle.at))
	return c.commits - before.commits - part*(before.commits-idle.commits), c.asked - before.asked - part*(before.asked-idle.asked)
}

// together lets clients do something n times in all, as fast as they can.
func together(ctx context.Context, clients, n int, do func(ctx context.Context, client int) error) (rate float64, all []time.Duration, err error) {
	var mu sync.Mutex
	var begun atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for c := range clients {
		group.Go(func() error {
			var took []time.Duration
			for begun.Add(1) <= int64(n) {
				began := time.Now()
				if err := do(ctx, c); err != nil {
					return err
				}
				took = append(took, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			return nil
		})
	}
	err = group.Wait()
	return float64(n) / time.Since(began).Seconds(), all, err
}
