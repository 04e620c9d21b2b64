package templatecenter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/internal/templatecenter"
	"github.com/paddock-dev/paddock/test/service"
)

const (
	token   = "the-shared-token"
	timeout = 60 * time.Second
)

// eventually waits until ok, and fails the test when it does not come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(timeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("waited %s for: %s", timeout, what)
		case <-tick.C:
		}
	}
}

// databases runs test on both.
func databases(t *testing.T, test func(t *testing.T, db *store.Store)) {
	for name, dsn := range map[string]func(*testing.T) string{
		"sqlite":  sqlite,
		"mariadb": func(t *testing.T) string { return service.MariaDB(t) },
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t, dsn(t))) })
	}
}

func sqlite(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "p.db") }

func open(t *testing.T, dsn string) *store.Store {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{DSN: dsn, AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// master is the other end of the callback: it keeps every report and writes
// the rows that the real one would. refuse may answer in its place.
type master struct {
	t  *testing.T
	db *store.Store

	mu      sync.Mutex
	reports map[string][]cubeapi.JobReport
	traces  map[string]string
	refuse  func(jobID string, r cubeapi.JobReport) int // an HTTP status, or 0
	calls   int
	root    http.HandlerFunc // of snapshots
}

// setRoot has the master give out snapshots.
func (m *master) setRoot(root http.HandlerFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.root = root
}

func (m *master) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == cubeapi.PathSnapshotRoot {
		m.mu.Lock()
		root := m.root
		m.mu.Unlock()
		root(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	var rep cubeapi.JobReport
	if err == nil {
		err = json.Unmarshal(body, &rep)
	}
	jobID := strings.Split(r.URL.Path, "/")[4]
	if err == nil {
		var key auth.TicketKey
		if key, err = auth.NewTicketKey(token, "", auth.ForReport, jobID); err == nil {
			err = key.Check(r.Header.Get(cubeapi.HeaderCallbackToken), time.Now(), "report")
		}
	}
	if err != nil {
		m.t.Errorf("report of %s: %v, token %q", jobID, err, r.Header.Get(cubeapi.HeaderCallbackToken))
	}
	m.mu.Lock()
	refuse := m.refuse
	m.calls++
	m.mu.Unlock()
	if refuse != nil {
		if status := refuse(jobID, rep); status != 0 {
			answer(w, status)
			return
		}
	}
	if err := m.write(r.Context(), template.JobID(jobID), rep); err != nil {
		m.t.Logf("report of %s not written: %v", jobID, err)
		if errors.Is(err, fault.StaleController) {
			serve.WriteError(w, r, err)
			return
		}
		answer(w, http.StatusConflict)
		return
	}
	m.mu.Lock()
	m.reports[jobID] = append(m.reports[jobID], rep)
	m.traces[jobID] = r.Header.Get("Traceparent")
	m.mu.Unlock()
	_, _ = w.Write([]byte(`{"status":"ok"}`))
}

// answer is a refusal as the real master words it. Of 429 it has no code today;
// one of a newer master has the class of its status.
func answer(w http.ResponseWriter, status int) {
	code := map[int]string{http.StatusNotFound: "job_not_found", http.StatusConflict: "state_conflict", http.StatusTooManyRequests: "unheard_of"}[status]
	if code == "" {
		code = "store_unavailable"
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"error":{"code":"` + code + `","message":"the test says so"}}`))
}

func (m *master) write(ctx context.Context, jobID template.JobID, r cubeapi.JobReport) error {
	return m.db.Update(ctx, func(tx *store.Tx) error {
		if r.Epoch != 0 {
			if err := tx.Guard(ctx, lease.Fence{Subject: template.BuildSubject(jobID), Holder: r.Holder, Epoch: lease.Epoch(r.Epoch)}); err != nil {
				return err
			}
		}
		j, err := templatedb.GetJob(ctx, tx, jobID)
		if err != nil {
			return err
		}
		if p, err := cubeapi.PhaseOf(r.Phase); err == nil {
			j.Phase, j.Progress = p, r.Progress
		}
		event := template.OnJobStarted
		switch r.Status {
		case cubeapi.StatusBuilt:
			event, j.ArtifactID = template.OnJobBuilt, template.ArtifactID(r.ArtifactID)
			if err := register(ctx, tx, r); err != nil {
				return err
			}
		case cubeapi.StatusFailed:
			event, j.Error, j.ErrorCode = template.OnJobFailed, r.ErrorMessage, r.ErrorCode
		}
		_, err = templatedb.MoveJob(ctx, tx, j, event)
		return err
	})
}

func register(ctx context.Context, tx *store.Tx, r cubeapi.JobReport) error {
	a, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(r.ArtifactID))
	if errors.Is(err, fault.ArtifactNotFound) {
		a, err = templatedb.AddArtifact(ctx, tx, template.Artifact{ID: template.ArtifactID(r.ArtifactID), ContentKey: r.ContentKey, Digest: r.SourceImageDigest, Token: "dl-" + r.ArtifactID})
	}
	if err != nil {
		return err
	}
	a.SHA256, a.SizeBytes, a.Backend, a.Location = r.Ext4SHA256, r.Ext4SizeBytes, r.StorageBackend, r.ObjectKey
	if c := r.ImageConfig; c != nil {
		a.ImageConfig = template.ImageConfig{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User}
	}
	_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored)
	return err
}

func (m *master) set(refuse func(jobID string, r cubeapi.JobReport) int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuse = refuse
}

func (m *master) of(jobID string) []cubeapi.JobReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]cubeapi.JobReport(nil), m.reports[jobID]...)
}

// outcome waits until a job's outcome was told, and returns it.
func (m *master) outcome(jobID string) cubeapi.JobReport {
	m.t.Helper()
	var last cubeapi.JobReport
	eventually(m.t, "outcome of "+jobID, func() bool {
		for _, r := range m.of(jobID) {
			if r.Status == cubeapi.StatusBuilt || r.Status == cubeapi.StatusFailed {
				last = r
				return true
			}
		}
		return false
	})
	return last
}

// gate stands before a registry. While shut it holds back layers.
type gate struct {
	host string

	mu     sync.Mutex
	opened chan struct{}
	asked  int
}

func newGate(t *testing.T, registry string) *gate {
	t.Helper()
	g := &gate{opened: make(chan struct{})}
	close(g.opened)
	target, err := url.Parse("http://" + registry)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			g.mu.Lock()
			g.asked++
			opened := g.opened
			g.mu.Unlock()
			select {
			case <-opened:
			case <-r.Context().Done():
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(g.open)
	g.host = strings.TrimPrefix(s.URL, "http://")
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened, g.asked = make(chan struct{}), 0
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.opened:
	default:
		close(g.opened)
	}
}

func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// rig is a template centre with everything around it.
type rig struct {
	t        *testing.T
	db       *store.Store
	master   *master
	registry string
	gate     *gate
	deps     templatecenter.Deps
	center   *templatecenter.Center
	url      string
	client   *cubeapi.CenterClient
	stop     func()
	quick    bool // leases are short
	log      testLog
}

// newRig starts a centre. change may alter what it is made of.
func newRig(t *testing.T, db *store.Store, change func(*templatecenter.Deps)) *rig {
	t.Helper()
	r := &rig{t: t, db: db, master: &master{t: t, db: db, reports: map[string][]cubeapi.JobReport{}, traces: map[string]string{}}, registry: service.Registry(t), log: testLog{t, &sync.Mutex{}, &strings.Builder{}}}
	r.gate = newGate(t, r.registry)
	callback := httptest.NewServer(r.master)
	t.Cleanup(callback.Close)
	guest := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(guest, []byte("guest"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Master.Addr, c.Auth.CallbackToken = callback.URL, token
	c.TemplateCenter.WorkDir, c.TemplateCenter.GuestBinary = filepath.Join(t.TempDir(), "work"), guest
	c.TemplateCenter.CacheDir = filepath.Join(t.TempDir(), "layers")
	c.ArtifactStore.Dir = filepath.Join(t.TempDir(), "artifacts")
	r.deps = templatecenter.Deps{Config: c, Store: db, Log: slog.New(slog.NewTextHandler(r.log, nil))}
	if change != nil {
		change(&r.deps)
	}
	r.start()
	return r
}

// start starts the centre, again after stop.
func (r *rig) start() {
	r.t.Helper()
	r.deps.Metrics = telemetry.NewRegistry()
	c, err := templatecenter.Open(r.deps)
	if err != nil {
		r.t.Fatal(err)
	}
	r.center = c
	if r.quick {
		c.Quicken()
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	s := httptest.NewServer(watched(r.t, c))
	r.url, r.client = s.URL, cubeapi.NewCenterClient(s.URL, token)
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
		s.Close()
	})
	r.t.Cleanup(r.stop)
}

// testLog is the log of a centre, in which a test may look for a line.
type testLog struct {
	t  *testing.T
	mu *sync.Mutex
	b  *strings.Builder
}

func (l testLog) has(words string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), words)
}

func (l testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(b)
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// image pushes an image and returns how to name it through the gate.
func (r *rig) image(name, content string) string {
	r.t.Helper()
	ref := service.Image(r.t, r.registry, name, service.File{Name: "bin/"}, service.File{Name: "bin/app", Body: content, Mode: 0o755})
	return strings.Replace(ref, r.registry, r.gate.host, 1)
}

// job stores a job for ref, as the master would.
func (r *rig) job(ref string, change ...func(*cubeapi.FromImageRequest)) cubeapi.TCBuildRequest {
	r.t.Helper()
	req := cubeapi.FromImageRequest{RequestID: id.New("req-"), SourceImageRef: ref, InstanceType: "cubebox", NetworkType: "tap", WritableLayerSize: "1Gi"}
	for _, c := range change {
		c(&req)
	}
	private := req.RegistryUsername != "" || req.EnvdSHA256 != ""
	kept := req
	kept.RegistryUsername, kept.RegistryPassword = "", ""
	stored, err := json.Marshal(struct {
		cubeapi.FromImageRequest
		Private bool `json:"private,omitempty"`
	}{kept, private})
	if err != nil {
		r.t.Fatal(err)
	}
	j := template.Job{ID: template.JobID(id.New("job-")), TemplateID: template.ID(id.New("tpl-")), RequestID: req.RequestID, Operation: template.OpCreate, AttemptNo: 1, Phase: template.PhasePulling, Request: stored, ImageRef: ref, PhaseTimes: template.PhaseTimes{}}
	r.update(func(ctx context.Context, tx *store.Tx) error { _, err := templatedb.AddJob(ctx, tx, j); return err })
	return cubeapi.TCBuildRequest{JobID: string(j.ID), TemplateID: string(j.TemplateID), Request: req}
}

func (r *rig) update(fn func(ctx context.Context, tx *store.Tx) error) {
	r.t.Helper()
	ctx := context.WithoutCancel(r.t.Context())
	eventually(r.t, "the rows are not written by others too", func() bool {
		err := r.db.Update(ctx, func(tx *store.Tx) error { return fn(ctx, tx) })
		if err != nil && !errors.Is(err, fault.VersionConflict) {
			r.t.Fatal(err)
		}
		return err == nil
	})
}

// submit hands a job over and expects it to be taken.
func (r *rig) submit(b cubeapi.TCBuildRequest) {
	r.t.Helper()
	if err := r.client.Build(r.t.Context(), b); err != nil {
		r.t.Fatal(err)
	}
}

// built builds ref and returns its outcome, which must be BUILT.
func (r *rig) built(ref string) cubeapi.JobReport {
	r.t.Helper()
	b := r.job(ref)
	r.submit(b)
	out := r.master.outcome(b.JobID)
	if out.Status != cubeapi.StatusBuilt {
		r.t.Fatalf("outcome %+v", out)
	}
	return out
}

func (r *rig) jobRow(jobID string) (j template.Job) {
	r.t.Helper()
	r.update(func(ctx context.Context, tx *store.Tx) (err error) {
		j, err = templatedb.GetJob(ctx, tx, template.JobID(jobID))
		return err
	})
	return j
}

// left returns what is in the work directory and in the store.
func (r *rig) left() (work, kept []string) {
	r.t.Helper()
	for dir, into := range map[string]*[]string{r.deps.Config.TemplateCenter.WorkDir: &work, r.deps.Config.ArtifactStore.Dir: &kept} {
		list, err := os.ReadDir(dir)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range list {
			if e.Name() != ".store-id" { // a store is never without it
				*into = append(*into, e.Name())
			}
		}
	}
	return work, kept
}

// post sends raw JSON to a path of the centre and returns status and body.
func (r *rig) post(path, with, body string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		r.t.Fatal(err)
	}
	if with != "" {
		req.Header.Set(cubeapi.HeaderCallbackToken, with)
	}
	return r.do(req)
}

func (r *rig) do(req *http.Request) (int, string) {
	r.t.Helper()
	a, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return a.StatusCode, string(b)
}
