package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/datadir"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/progress"
	"github.com/paddock-dev/paddock/internal/proxy"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/templatecenter"
)

// roles of one process, in the order in which they start: each may use those
// before it.
var allRoles = []string{"master", "templatecenter", "cubelet"}

func (a *app) roleCommands() []*cobra.Command {
	up := &cobra.Command{
		Use: "up", Short: "Run everything in one process", Args: args(0, 0),
		Long: "Run master, template centre and cubelet in one process. They still talk over HTTP and gRPC.\nSandboxes end with it, unless cubelet.on_stop says keep.",
		RunE: func(c *cobra.Command, _ []string) error { return a.runRoles(c.Context(), "up", allRoles) },
	}
	list := []*cobra.Command{up}
	for role, short := range map[string]string{
		"master":         "Run the control plane of templates and sandboxes",
		"templatecenter": "Run the build service",
		"cubelet":        "Run the sandboxes of this host",
		"proxy":          "Bring requests to the ports of this machine's sandboxes",
	} {
		list = append(list, &cobra.Command{Use: role, Short: short, Args: args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
			return a.runRoles(c.Context(), role, []string{role})
		}})
	}
	return list
}

// process is what the roles of one process share.
type process struct {
	cfg     config.Config
	log     *slog.Logger
	metrics *prometheus.Registry
	db      *store.Store
	board   *progress.Memory // nil: Redis is the board, or each role has its own
	parts   []serve.Named
	faces   []string
}

func (a *app) runRoles(ctx context.Context, name string, roles []string) (err error) {
	if err := fail.Check(); err != nil {
		return err
	}
	loaded, err := a.load()
	if err != nil {
		return err
	}
	cfg := configOf(loaded, name)
	dir, err := datadir.Open(cfg.DataDir)
	if err != nil {
		return err
	}
	for _, role := range roles {
		release, err := dir.Lock(role)
		if err != nil {
			return err
		}
		defer func() { _ = release() }() // it ends with the process at the latest
	}
	if cfg.Auth, err = dir.Secrets(cfg.Auth); err != nil {
		return err
	}
	p := &process{cfg: cfg, log: logs.New(a.stderr, cfg.Log.Level, cfg.Log.Format), metrics: telemetry.NewRegistry()}
	for _, n := range loaded.Notices {
		p.log.WarnContext(ctx, "configuration", slog.String("notice", n))
	}
	if armed := fail.Armed(); len(armed) > 0 {
		p.log.WarnContext(ctx, "this process will break by itself: failpoints are armed", slog.Any("places", armed))
	}
	telemetry.LogErrors(p.log)
	flush, err := telemetry.Setup(ctx, cfg.Telemetry, "paddock-"+name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bounded(flush)) }()
	if err := p.open(ctx, roles); err != nil {
		return err
	}
	if p.db != nil {
		defer func() { err = errors.Join(err, p.db.Close()) }()
	}
	if err := a.announce(dir, p, name); err != nil {
		return err
	}
	return serve.Group(ctx, p.log, p.parts...)
}

// configOf is what a process called name goes by: sandboxes of `up` end with
// it unless somebody said otherwise.
func configOf(l *config.Loaded, name string) config.Config {
	cfg := l.Config
	if name == "up" && l.Source("cubelet.on_stop") == "default" {
		cfg.Cubelet.OnStop = "kill"
	}
	return cfg
}

func bounded(stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return stop(ctx)
}

// open binds every address first, so that a port in use is told before
// anything is made, and then builds the roles.
func (p *process) open(ctx context.Context, roles []string) error {
	addresses := map[string]string{"master": p.cfg.Master.Listen, "templatecenter": p.cfg.TemplateCenter.Listen, "cubelet": p.cfg.Cubelet.Listen, "proxy": p.cfg.Proxy.Listen}
	listeners := map[string]net.Listener{}
	for _, role := range roles {
		l, err := serve.Listen(ctx, role+".listen", addresses[role])
		if err != nil {
			return err
		}
		listeners[role] = l
		p.faces = append(p.faces, fmt.Sprintf("%-15s %s", role, l.Addr()))
	}
	if len(roles) == 1 && roles[0] == "cubelet" {
		if err := p.openWatch(ctx); err != nil {
			return err
		}
	}
	if len(roles) > 1 && p.cfg.Redis.Addr == "" {
		p.board = &progress.Memory{}
	}
	for _, role := range roles {
		var err error
		switch role {
		case "master":
			err = p.openMaster(ctx, listeners[role])
		case "templatecenter":
			err = p.openCenter(ctx, listeners[role])
		case "cubelet":
			err = p.openCubelet(ctx, listeners[role])
		case "proxy":
			p.openProxy(listeners[role])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *process) store(ctx context.Context) (_ *store.Store, err error) {
	if p.db == nil {
		p.db, err = store.Open(ctx, store.Options{DSN: p.cfg.Database.DSN.Reveal(), AutoMigrate: p.cfg.Database.AutoMigrate, Log: p.log})
	}
	return p.db, err
}

func (p *process) openMaster(ctx context.Context, l net.Listener) error {
	db, err := p.store(ctx)
	if err != nil {
		return err
	}
	d := master.Deps{Config: p.cfg, Store: db, Log: p.log.With("role", "master"), Metrics: p.metrics}
	if p.board != nil {
		d.Board = p.board
	}
	m, err := master.New(d)
	if err != nil {
		return err
	}
	if p.cfg.Master.SchedulerConfig != "" {
		p.parts = append(p.parts, serve.Named{Name: "master.reload", Service: serve.Func(func(ctx context.Context) error {
			reloadOnHangup(ctx, m)
			return nil
		})})
	}
	p.parts = append(p.parts, serve.Named{Name: "master", Service: m}, serve.Named{Name: "master.http", Service: serve.HTTPOn(l, p.log, m.Handler())})
	return nil
}

// reloadOnHangup makes the master look at its file of rules at each SIGHUP.
func reloadOnHangup(ctx context.Context, m *master.Master) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			m.ReloadRules()
		}
	}
}

func (p *process) openCenter(ctx context.Context, l net.Listener) error {
	db, err := p.store(ctx)
	if err != nil {
		return err
	}
	d := templatecenter.Deps{Config: p.cfg, Store: db, Log: p.log.With("role", "templatecenter"), Metrics: p.metrics}
	if p.board != nil {
		d.Board = p.board
	}
	c, err := templatecenter.Open(d)
	if err != nil {
		return err
	}
	p.parts = append(p.parts, serve.Named{Name: "templatecenter", Service: c}, serve.Named{Name: "templatecenter.http", Service: serve.HTTPOn(l, p.log, c.Handler())})
	return nil
}

func (p *process) openCubelet(ctx context.Context, l net.Listener) error {
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	c, err := cubelet.Open(ctx, cubelet.Deps{Config: p.cfg, Log: p.log.With("role", "cubelet"), Metrics: p.metrics, Version: version, GRPCPort: number})
	if err != nil {
		return err
	}
	a := p.cfg.Auth
	s := serve.NewGRPC("cubelet", p.log.With("role", "cubelet"), p.metrics,
		grpc.ChainUnaryInterceptor(auth.UnaryServer(a.HostToken, a.InsecureOpen)),
		grpc.ChainStreamInterceptor(auth.StreamServer(a.HostToken, a.InsecureOpen)),
	)
	hostpb.RegisterHostServiceServer(s, cubelet.NewServer(c))
	p.parts = append(p.parts, serve.Named{Name: "cubelet", Service: c, StopTime: cubelet.StopTime}, serve.Named{Name: "cubelet.grpc", Service: serve.GRPCOn(l, s)})
	return nil
}

func (p *process) openProxy(l net.Listener) {
	log := p.log.With("role", "proxy")
	x := proxy.New(proxy.Deps{Config: p.cfg, Log: log, Metrics: p.metrics, Source: cubeapi.NewHostClient(p.cfg.Master.Addr, p.cfg.Auth.HostToken.Reveal())})
	p.parts = append(p.parts, serve.Named{Name: "proxy", Service: x}, serve.Named{Name: "proxy.http", Service: serve.HTTPOn(l, log, x).WithHTTP2()})
}

// openWatch serves health and metrics of a cubelet that has no other HTTP face
// in its process.
func (p *process) openWatch(ctx context.Context) error {
	l, err := serve.Listen(ctx, "cubelet.metrics_listen", p.cfg.Cubelet.MetricsListen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+cubeapi.PathMasterHealth, func(w http.ResponseWriter, r *http.Request) {
		serve.WriteJSON(w, http.StatusOK, cubeapi.OK(logs.RequestID(r.Context())))
	})
	mux.Handle("GET "+cubeapi.PathMetrics, telemetry.Handler(p.metrics))
	h := serve.NewMiddleware("cubelet", p.log, p.metrics).Wrap(mux)
	p.parts = append(p.parts, serve.Named{Name: "cubelet.http", Service: serve.HTTPOn(l, p.log, h)})
	p.faces = append(p.faces, fmt.Sprintf("%-15s %s", "cubelet metrics", l.Addr()))
	return nil
}

// announce says where the roles listen and what to type next.
func (a *app) announce(dir *datadir.Dir, p *process, name string) error {
	if name == "up" || name == "master" {
		if err := dir.WriteClient(datadir.Client{Address: p.cfg.Master.Addr, APIKey: p.cfg.Auth.APIKey.Reveal()}); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.stderr, "paddock %s %s, data in %s\n", name, version, dir.Path)
	for _, f := range p.faces {
		fmt.Fprintf(a.stderr, "  %s\n", f)
	}
	if name == "up" {
		fmt.Fprintf(a.stderr, "  API key         %s (kept in %s/secrets/api-key)\n\nNext, in another terminal:\n  paddock tpl create-from-image --data-dir %s --image IMAGE --alias first\n", p.cfg.Auth.APIKey.Reveal(), dir.Path, dir.Path)
	}
	if p.cfg.Auth.InsecureOpen {
		p.log.Warn("auth.insecure_open is on: every call is accepted without a token; never use it outside development")
	}
	return nil
}
