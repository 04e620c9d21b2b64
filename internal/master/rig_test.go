package master_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
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
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/test/service"
)

const (
	apiKey        = "e2b_0123456789012345678901234567890123456789"
	callbackToken = "callback-token"
	hostToken     = "host-token"
)

// face is an address that outlives the process behind it.
type face struct {
	*httptest.Server
	behind atomic.Pointer[http.Handler]
	last   atomic.Pointer[http.Handler]
}

func newFace(t *testing.T) *face {
	f := &face{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := f.behind.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		panic(http.ErrAbortHandler) // nobody is there
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *face) show(h http.Handler) { f.behind.Store(&h) }
func (f *face) hide()               { f.last.Store(f.behind.Swap(nil)) }

// back shows again what was hidden.
func (f *face) back() { f.behind.Store(f.last.Load()) }

// rig is a master with everything around it: a real database, a template
// centre and hosts that are real servers with knobs.
type rig struct {
	t      *testing.T
	dsn    string
	db     *store.Store
	cfg    config.Config
	front  *face
	center *fakeCenter
	api    *cubeapi.Client
	m      *running
	said   *spoken // what all masters of the rig logged
}

// spoken keeps a log.
type spoken struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *spoken) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *spoken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// running is one process of a master, with connections of its own.
type running struct {
	*master.Master
	db   *store.Store
	stop func()
}

// onBoth runs a test on each database that the system supports.
func onBoth(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, sqlite(t)) })
	t.Run("mariadb", func(t *testing.T) { test(t, service.MariaDB(t)) })
}

func sqlite(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "paddock.db") }

// newRig starts a master on dsn, without hosts. change may change its
// configuration.
func newRig(t *testing.T, dsn string, change ...func(*config.Config)) *rig {
	t.Helper()
	r := &rig{t: t, dsn: dsn, front: newFace(t), said: &spoken{}}
	t.Cleanup(func() {
		if strings.Contains(r.said.String(), "handler panicked") {
			t.Error("a handler panicked: see the log")
		}
	})
	r.center = newFakeCenter(t, r.front.URL)
	c := config.Default()
	c.Auth = config.Auth{APIKey: apiKey, CallbackToken: callbackToken, HostToken: hostToken}
	c.Master.Addr, c.Master.DownloadBaseURL, c.Master.TemplateCenterAddr = r.front.URL, r.front.URL, r.center.front.URL
	c.Master.CreateTimeout, c.Master.DistributeTimeout = 6*time.Second, 6*time.Second
	c.Master.SweepInterval, c.Master.BuiltStaleAfter = 30*time.Millisecond, 300*time.Millisecond
	c.Master.HostStaleAfter = 30 * time.Second // a loaded machine makes nobody sick
	for _, f := range change {
		f(&c)
	}
	r.cfg = c
	r.db = r.open()
	r.center.db = r.db
	r.api = cubeapi.NewClient(r.front.URL, apiKey)
	return r
}

func (r *rig) open() *store.Store {
	r.t.Helper()
	db, err := store.Open(r.t.Context(), store.Options{DSN: r.dsn, AutoMigrate: true})
	must(r.t, err)
	r.t.Cleanup(func() { must(r.t, db.Close()) })
	return db
}

// start begins a new process of the master behind the front.
func (r *rig) start(change ...func(*running)) *running {
	r.t.Helper()
	m := r.process(change...)
	r.m = m
	r.front.show(watched(r.t, m))
	return m
}

// process begins a master that the front does not show.
func (r *rig) process(change ...func(*running)) *running {
	r.t.Helper()
	p := &running{db: r.open()}
	var err error
	p.Master, err = master.New(master.Deps{Config: r.cfg, Store: p.db, Log: slog.New(slog.NewTextHandler(io.MultiWriter(r.said, testLog{r.t}), &slog.HandlerOptions{Level: slog.LevelDebug})), Metrics: prometheus.NewRegistry()})
	must(r.t, err)
	p.Quicken()
	for _, f := range change {
		f(p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			must(r.t, err)
		case <-time.After(20 * time.Second):
			r.t.Error("the master did not stop")
		}
	})
	r.t.Cleanup(p.stop)
	return p
}

// crash removes what is left of a process that ended at a step.
func (r *rig) crash() {
	r.front.hide()
	r.m.stop()
}

// crashAt makes a process that ends at the given step as if it were killed, and
// tells when it did: its connections close, so that it writes nothing more.
func crashAt(step string) (change func(*running), reached chan struct{}) {
	reached = make(chan struct{})
	var once sync.Once
	return func(p *running) {
		p.At(func(name string) error {
			if name != step {
				return nil
			}
			once.Do(func() {
				_ = p.db.Close() // whatever was open there is broken off
				close(reached)
			})
			return master.ErrCrash
		})
	}, reached
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	if testing.Verbose() {
		defer func() { _ = recover() }() // the test may have ended
		l.t.Logf("%s", b)
	}
	return len(b), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused demands that err carries code.
func refused(t *testing.T, err error, code *fault.Code) {
	t.Helper()
	if err == nil || fault.Of(err) != code {
		t.Fatalf("got %v, want %s", err, code.Name)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late, look := time.After(time.Minute), time.NewTicker(5*time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-late:
			t.Fatalf("it never came to be: %s", what)
		case <-look.C:
		}
	}
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("it never came to be: %s", what)
	}
}

// image is a request for a template of the image that the fake centre makes.
func image(change ...func(*cubeapi.FromImageRequest)) cubeapi.FromImageRequest {
	q := cubeapi.FromImageRequest{SourceImageRef: "registry.local/base:1", WritableLayerSize: "64Mi"}
	for _, f := range change {
		f(&q)
	}
	return q
}

func alias(name string) func(*cubeapi.FromImageRequest) {
	return func(q *cubeapi.FromImageRequest) { q.Alias = name }
}

// spec makes an image's template another than those of other numbers.
func spec(n int) func(*cubeapi.FromImageRequest) {
	return func(q *cubeapi.FromImageRequest) {
		q.Overrides = &cubeapi.ContainerOverride{Envs: []cubeapi.KeyValue{{Key: "SPEC", Value: strconv.Itoa(n)}}}
	}
}

// ended waits for a job's end.
func (r *rig) ended(id string) *cubeapi.Job {
	r.t.Helper()
	var j *cubeapi.Job
	eventually(r.t, "job "+id+" ends", func() bool {
		got, err := r.api.Job(r.t.Context(), id)
		if err == nil {
			j = got
		}
		return err == nil && (j.Status == cubeapi.StatusReady || j.Status == cubeapi.StatusFailed)
	})
	return j
}

// template makes a template and returns its job when it is ready.
func (r *rig) template(change ...func(*cubeapi.FromImageRequest)) *cubeapi.Job {
	r.t.Helper()
	j, err := r.api.FromImage(r.t.Context(), image(change...))
	must(r.t, err)
	j = r.ended(j.JobID)
	if j.Status != cubeapi.StatusReady {
		r.t.Fatalf("job %s: %s %s", j.JobID, j.ErrorCode, j.ErrorMessage)
	}
	return j
}

// sandboxes returns the rows of all sandboxes.
func (r *rig) sandboxes() (list []sandbox.Sandbox) {
	r.t.Helper()
	must(r.t, r.db.View(r.t.Context(), func(tx *store.Tx) (err error) {
		list, err = sandboxdb.ListSandboxes(r.t.Context(), tx, sandboxdb.Filter{Limit: 10_000})
		return err
	}))
	return list
}

func (r *rig) create(name string) (cubeapi.SandboxAnswer, error) {
	return r.api.CreateSandbox(r.t.Context(), cubeapi.SandboxCreateRequest{TemplateID: name})
}

// view runs a read in a transaction.
func (r *rig) view(do func(ctx context.Context, tx *store.Tx) error) {
	r.t.Helper()
	must(r.t, r.db.View(r.t.Context(), func(tx *store.Tx) error { return do(r.t.Context(), tx) }))
}

func hostID(i int) host.ID { return host.ID([]string{"host-a", "host-b", "host-c", "host-d"}[i]) }

func tplID(j *cubeapi.Job) template.ID { return template.ID(j.TemplateID) }

func hostRow(ctx context.Context, tx *store.Tx, id host.ID) (host.Facts, error) {
	return sandboxdb.GetHost(ctx, tx, id)
}
