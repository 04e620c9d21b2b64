// Package master is the control plane of templates and sandboxes.
//
// It owns every row of jobs, templates, hosts and sandboxes, and every call to
// a host. What must follow a commit is an outbox message of the same
// transaction, so that a crash between the two loses nothing. It must never
// report "cannot tell" as "gone", and never keep a registry's credentials.
package master

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// Deps are what a master needs.
type Deps struct {
	Config  config.Config
	Store   *store.Store
	Log     *slog.Logger
	Metrics *prometheus.Registry
}

// Master is the control plane. Make one with New.
type Master struct {
	cfg     config.Config
	db      *store.Store
	log     *slog.Logger
	center  *cubeapi.CenterClient
	hosts   *dialer
	fleet   *fleet
	handler http.Handler
	metrics metrics

	mu          sync.Mutex
	credentials map[template.JobID]rootfs.Auth // of builds that are on their way
	inHand      map[template.JobID]bool        // jobs that this process resumes now
	work        sync.WaitGroup
}

type metrics struct {
	create   *prometheus.HistogramVec
	decision prometheus.Histogram
	refused  *prometheus.CounterVec
}

// New returns a master. It does no I/O.
func New(d Deps) (*Master, error) {
	s := scheduler.DefaultConfig()
	s.StaleAfter = d.Config.Master.HostStaleAfter
	placer, err := scheduler.New(s)
	if err != nil {
		return nil, err
	}
	m := &Master{
		cfg: d.Config, db: d.Store, log: d.Log,
		center:      cubeapi.NewCenterClient(d.Config.Master.TemplateCenterAddr, d.Config.Auth.CallbackToken.Reveal()),
		hosts:       newDialer(d.Config.Auth.HostToken),
		fleet:       newFleet(d.Store, placer),
		credentials: map[template.JobID]rootfs.Auth{},
		inHand:      map[template.JobID]bool{},
		metrics: metrics{
			create:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "paddock_sandbox_create_seconds", Help: "Duration of creates by outcome.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 14)}, []string{"outcome"}),
			decision: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "paddock_scheduler_decision_seconds", Help: "Duration of one decision.", Buckets: prometheus.ExponentialBuckets(0.000005, 4, 10)}),
			refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paddock_scheduler_dropped_total", Help: "Hosts dropped, by plugin."}, []string{"plugin"}),
		},
	}
	d.Metrics.MustRegister(m.metrics.create, m.metrics.decision, m.metrics.refused)
	m.handler, err = m.routes(d.Metrics)
	return m, err
}

// Handler serves the HTTP face.
func (m *Master) Handler() http.Handler { return m.handler }

func (m *Master) routes(reg *prometheus.Registry) (http.Handler, error) {
	center, err := url.Parse(m.cfg.Master.TemplateCenterAddr)
	if err != nil {
		return nil, fault.Wrap(fault.BadConfig, err, "master.template_center_addr")
	}
	mux := http.NewServeMux()
	a := m.cfg.Auth
	user := auth.RequireAPIKey(a.APIKey, a.InsecureOpen)
	role := auth.RequireToken(cubeapi.HeaderCallbackToken, a.CallbackToken, a.InsecureOpen)
	node := auth.RequireToken(cubeapi.HeaderHostToken, a.HostToken, a.InsecureOpen)
	for pattern, h := range map[string]http.HandlerFunc{
		"POST " + cubeapi.PathFromImage:     m.serveFromImage,
		"GET " + cubeapi.PathFromImage:      m.serveJob,
		"GET " + cubeapi.PathBuildStatus:    m.serveBuildStatus,
		"GET " + cubeapi.PathTemplate:       m.serveTemplates,
		"DELETE " + cubeapi.PathTemplate:    m.serveTemplateDelete,
		"PUT " + cubeapi.PathAlias:          m.serveAlias,
		"GET " + cubeapi.PathRootfsArtifact: m.serveArtifact,
		"POST " + cubeapi.PathSandbox:       m.serveCreate,
		"DELETE " + cubeapi.PathSandbox:     m.serveDelete,
		"GET " + cubeapi.PathSandboxList:    m.serveList,
		"GET " + cubeapi.PathSandboxInfo:    m.serveInfo,
		"POST " + cubeapi.PathSandboxExec:   m.serveExec,
		"GET " + cubeapi.PathSandboxFiles:   m.serveRead,
		"PUT " + cubeapi.PathSandboxFiles:   m.serveWrite,
		"GET " + cubeapi.PathHosts:          m.serveHosts,
		"GET " + cubeapi.PathHost:           m.serveHost,
	} {
		mux.Handle(pattern, user(h))
	}
	mux.Handle("POST "+cubeapi.PathJobStatus, role(http.HandlerFunc(m.serveReport)))
	mux.Handle("POST "+cubeapi.PathHostRegister, node(http.HandlerFunc(m.serveRegister)))
	mux.Handle("POST "+cubeapi.PathHostStatus, node(http.HandlerFunc(m.serveStatus)))
	mux.Handle("GET "+cubeapi.PathArtifactDownload, m.download(center))
	// It needs no database: an outage there must not get this process killed.
	mux.HandleFunc("GET "+cubeapi.PathMasterHealth, func(w http.ResponseWriter, r *http.Request) {
		serve.WriteJSON(w, http.StatusOK, cubeapi.OK(requestID(r)))
	})
	mux.Handle("GET "+cubeapi.PathMetrics, telemetry.Handler(reg))
	return serve.NewMiddleware("master", m.log, reg).Wrap(mux), nil
}

// download hands artifact downloads on to the template centre, which has the
// bytes and checks the token.
func (m *Master) download(center *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(center) },
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			serve.WriteError(w, r, fault.Wrap(fault.PeerUnavailable, err, "template centre at %s", center))
		},
	}
}

// Run delivers what followed commits and sweeps what got stuck, until ctx
// ends.
func (m *Master) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	for topic, handle := range map[string]func(context.Context, store.Message) error{
		topicBuild:          m.dispatch,
		topicSandboxDelete:  m.compensate,
		topicArtifactDelete: m.deleteBytes,
	} {
		loops.Go(func() { m.deliver(ctx, topic, handle) })
	}
	loops.Go(func() { m.sweepLoop(ctx) })
	loops.Wait()
	m.work.Wait()
	return m.hosts.close()
}

const (
	topicBuild          = "build"
	topicSandboxDelete  = "sandbox_delete"
	topicArtifactDelete = "artifact_delete"

	deliverEvery = 100 * time.Millisecond
	deliverBatch = 16
)

func (m *Master) deliver(ctx context.Context, topic string, handle func(context.Context, store.Message) error) {
	tick := time.NewTicker(deliverEvery)
	defer tick.Stop()
	for {
		if _, err := m.db.Deliver(ctx, topic, deliverBatch, handle); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "outbox", slog.String("topic", topic), slog.String("error", err.Error()))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
