package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/test/service"
)

// rig is a master on a MariaDB of its own. Its template centre takes every job
// in, and builds none.
type rig struct {
	api  *cubeapi.Client
	db   *store.Store
	ends []func() error

	count atomic.Int64
	mu    sync.Mutex
	job   string
}

func newRig(ctx context.Context) (r *rig, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	dsn, stop, err := service.LaunchMariaDB()
	if err != nil {
		return r, err
	}
	r.ends = append(r.ends, stop)
	if r.db, err = store.Open(ctx, store.Options{DSN: dsn, AutoMigrate: true}); err != nil {
		return r, err
	}
	r.ends = append(r.ends, r.db.Close)
	center, err := r.serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body) // a client that went away is no concern
		_, _ = io.WriteString(w, `{"status":"accepted"}`)
	}))
	if err != nil {
		return r, err
	}
	c := config.Default()
	c.Auth = config.Auth{APIKey: config.Secret("e2b_" + strings.Repeat("0", 40)), CallbackToken: "callback", HostToken: "host"}
	c.Master.TemplateCenterAddr = center
	m, err := master.New(master.Deps{Config: c, Store: r.db, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		return r, err
	}
	front, err := r.serve(ctx, m.Handler())
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	r.ends = append(r.ends, func() error { cancel(); return <-ended })
	r.api = cubeapi.NewClient(front, c.Auth.APIKey.Reveal())
	return r, nil
}

// serve shows h on loopback until the rig is closed.
func (r *rig) serve(ctx context.Context, h http.Handler) (url string, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	r.ends = append(r.ends, func() error {
		err := s.Close()
		<-ended
		return err
	})
	return "http://" + l.Addr().String(), nil
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

// next is a name that nothing else has.
func (r *rig) next() string { return fmt.Sprintf("bench-%d", r.count.Add(1)) }

func (r *rig) seen(job string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.job = job
}

func (r *rig) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job
}
