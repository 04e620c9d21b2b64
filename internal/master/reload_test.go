package master_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// ruled is a master with a file of rules, and without anything else.
type ruled struct {
	*master.Master
	t    *testing.T
	path string
	said *spoken
	reg  *prometheus.Registry
	api  *cubeapi.Client
}

func startRuled(t *testing.T, path string) (*ruled, error) {
	t.Helper()
	r := &ruled{t: t, path: path, said: &spoken{}, reg: prometheus.NewRegistry()}
	c := config.Default()
	c.Auth = config.Auth{APIKey: apiKey, CallbackToken: callbackToken, HostToken: hostToken}
	c.Master.SchedulerConfig, c.Master.TemplateCenterAddr = path, "http://127.0.0.1:1"
	var err error
	r.Master, err = master.New(master.Deps{Config: c, Log: slog.New(slog.NewTextHandler(io.MultiWriter(r.said, testLog{t}), nil)), Metrics: r.reg})
	if err != nil {
		return nil, err
	}
	front := httptest.NewServer(r.Handler())
	t.Cleanup(front.Close)
	r.api = cubeapi.NewClient(front.URL, apiKey)
	return r, nil
}

func newRuled(t *testing.T, text string) *ruled {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	r, err := startRuled(t, path)
	must(t, err)
	return r
}

func (r *ruled) write(text string) {
	r.t.Helper()
	must(r.t, os.WriteFile(r.path, []byte(text), 0o600))
}

func (r *ruled) show() *cubeapi.SchedulerConfig {
	r.t.Helper()
	c, err := r.api.SchedulerConfig(r.t.Context())
	must(r.t, err)
	return c
}

const (
	pickHighest  = "scheduler: {least_select_name: highest}\n"
	pickWeighted = "scheduler: {least_select_name: weighted}\n"
	pickNothing  = "scheduler:\n  least_select_name: best\n  colour: red\n"
)

func TestABadFileOfRulesStopsTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if _, err := startRuled(t, path); !errors.Is(err, fault.BadConfig) || !strings.Contains(err.Error(), "master.scheduler_config") {
		t.Errorf("a file that is not there: %v", err)
	}
	must(t, os.WriteFile(path, []byte(pickNothing), 0o600))
	_, err := startRuled(t, path)
	if !errors.Is(err, fault.BadConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{path, `line 2: scheduler.least_select_name: pick "best" is unknown`, "line 3: scheduler.colour: no such key"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it does not say %q: %v", want, err)
		}
	}
}

// A good change is taken, a bad one is told once and changes nothing, and what
// is only half written is not taken for a change.
func TestTheLastGoodRulesHold(t *testing.T) {
	r := newRuled(t, pickHighest)
	first := r.show()
	if !first.Good || first.Path != r.path || !strings.Contains(first.Rules, "least_select_name: highest") || first.Hash == "" {
		t.Fatalf("%+v", first)
	}
	r.write("") // an editor empties it, and writes what it has later
	r.LookAtRules()
	if got := r.show(); got.Hash != first.Hash {
		t.Errorf("half a file was taken: %+v", got)
	}
	r.write(pickWeighted)
	r.LookAtRules()
	if got := r.show(); got.Hash != first.Hash {
		t.Errorf("a file that was never the same twice was taken: %+v", got)
	}
	r.LookAtRules()
	second := r.show()
	if second.Hash == first.Hash || !strings.Contains(second.Rules, "least_select_name: weighted") {
		t.Fatalf("%+v", second)
	}
	r.write(pickNothing)
	for range 5 {
		r.LookAtRules()
	}
	got := r.show()
	if got.Good || got.Hash != second.Hash || got.Rules != second.Rules || !strings.Contains(got.Error, `pick "best" is unknown`) || got.ErrorAt == "" {
		t.Errorf("with a bad file: %+v", got)
	}
	must(t, os.Remove(r.path))
	for range 5 {
		r.LookAtRules()
	}
	if got := r.show(); got.Good || got.Hash != second.Hash || !strings.Contains(got.Error, "no such file") {
		t.Errorf("without a file: %+v", got)
	}
	r.write(pickWeighted) // as it was
	r.LookAtRules()
	r.LookAtRules()
	if got := r.show(); !got.Good || got.Error != "" || got.Hash != second.Hash {
		t.Errorf("with the file as it was: %+v", got)
	}
	r.write(pickHighest)
	r.ReloadRules() // at once
	if got := r.show(); got.Hash != first.Hash {
		t.Errorf("asked to look now: %+v", got)
	}
	if n := strings.Count(r.said.String(), "rules of the scheduler not taken"); n != 2 {
		t.Errorf("two bad files were told %d times", n)
	}
	text := metricsOf(t, r.reg)
	for _, line := range []string{`config_reloads_total{outcome="bad"} 2`, `config_reloads_total{outcome="good"} 2`, "config_good 1"} {
		if !strings.Contains(text, "paddock_scheduler_"+line+"\n") {
			t.Errorf("the metrics do not say %s", line)
		}
	}
}

// What is no file keeps nobody waiting, and an emptied file is no wish for the
// defaults.
func TestWhatIsNoFileOfRulesChangesNothing(t *testing.T) {
	r := newRuled(t, pickHighest)
	first := r.show()
	for want, put := range map[string]func() error{
		"no regular file": func() error { return syscall.Mkfifo(r.path, 0o600) },
		"it is empty":     func() error { return os.WriteFile(r.path, []byte("\n"), 0o600) },
	} {
		must(t, os.Remove(r.path))
		must(t, put())
		r.ReloadRules()
		if got := r.show(); got.Good || got.Hash != first.Hash || got.Rules != first.Rules || !strings.Contains(got.Error, want) {
			t.Errorf("%s: %+v", want, got)
		}
		if _, err := startRuled(t, r.path); !errors.Is(err, fault.BadConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("a start with it: %v, want %s", err, want)
		}
	}
}

// What rules have learned outlives them.
func TestARulesChangeForgetsNobody(t *testing.T) {
	r := newRuled(t, "scheduler: {breaker: {min_calls: 2, pause: 1h, max_pause: 1h}}\ncubelet_conf: {retry_burst: 10, retry_share: 0}\n")
	if n := r.Fail("host-a", 4); n != 4 || !r.Out("host-a") {
		t.Fatalf("%d retries, out %v", n, r.Out("host-a"))
	}
	r.write("scheduler: {breaker: {min_calls: 3, pause: 1h, max_pause: 1h}, queue: {in_flight: 3}}\ncubelet_conf: {retry_burst: 6, retry_share: 0}\n")
	r.ReloadRules()
	if !r.show().Good || !r.Out("host-a") {
		t.Error("the host that was out is back")
	}
	if n := r.Fail("host-b", 2); n != 2 || r.Out("host-b") {
		t.Errorf("%d more retries of 6, four of which were spent; two failures of three shut it out: %v", n, r.Out("host-b"))
	}
	if n := r.Fail("host-b", 1); n != 0 || !r.Out("host-b") {
		t.Errorf("%d more retries; three failures shut it out: %v", n, r.Out("host-b"))
	}
	for range 3 {
		leave, err := r.Gate().Enter(t.Context(), "a", "", 1)
		must(t, err)
		defer leave()
	}
	c := newCrowd(t, r.Gate())
	c.send("a", "", 1)
	if w, u := r.Gate().Counts(); w != 1 || u != 3 {
		t.Errorf("%d wait and %d are under way, with a new bound of 3", w, u)
	}
	r.write("scheduler: {queue: {in_flight: 4}}\n")
	r.ReloadRules()
	c.end <- struct{}{}
	c.all.Wait()
}

// A master that runs finds a change by itself.
func TestAMasterLooksByItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(path, []byte(pickHighest), 0o600))
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Master.SchedulerConfig = path })
	r.start()
	must(t, os.WriteFile(path, []byte(pickWeighted), 0o600))
	eventually(t, "the new rules hold", func() bool {
		c, err := r.api.SchedulerConfig(t.Context())
		return err == nil && strings.Contains(c.Rules, "least_select_name: weighted")
	})
}

// fleetOf are hosts of which the first is the emptiest.
func fleetOf(n int) *scheduler.View {
	var hosts []host.Facts
	has := host.Resources{MilliCPU: 64_000, MemBytes: 64 << 30, DiskBytes: 1 << 40, Slots: 100}
	for i := range n {
		used := host.Resources{MilliCPU: int64(i) * 1000, MemBytes: int64(i) << 30}
		hosts = append(hosts, host.Facts{
			Registration: host.Registration{ID: host.ID(fmt.Sprintf("h%03d", i)), Capacity: has, Allocatable: has},
			Status:       host.Status{Ready: true, Allocated: used}, HeardAt: time.Unix(1_800_000_000, 0),
		})
	}
	return scheduler.NewView(hosts, time.Unix(1_800_000_000, 0))
}

// Scores that are asked for decide, as far as they may; without them, or with a
// scorer that fails, the choice is what it would have been.
func TestExternalScoresDecideAsFarAsTheyMay(t *testing.T) {
	var favourite atomic.Value
	var asked atomic.Int64
	favourite.Store("h004")
	scorer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		n := strings.Count(string(text), `"host_id"`)
		asked.Store(int64(n))
		if favourite.Load() == "" {
			w.WriteHeader(500)
			return
		}
		fmt.Fprint(w, `{"scores": {`)
		for i := range n {
			score, id := 0, fmt.Sprintf("h%03d", i)
			if id == favourite.Load() {
				score = 100
			}
			fmt.Fprintf(w, `%s"%s": %d`, map[bool]string{true: ", "}[i > 0], id, score)
		}
		fmt.Fprint(w, `}}`)
	}))
	defer scorer.Close()
	rules := func(candidates, influence int, onFailure string) string {
		return fmt.Sprintf("scheduler: {external: {candidates: %d, max_influence: %d, scorers: [{name: heat, url: %q, timeout: 2s, on_failure: %s}]}}\n", candidates, influence, scorer.URL, onFailure)
	}
	v, now := fleetOf(50), time.Unix(1_800_000_000, 0)
	r := newRuled(t, "scheduler: {}\n")
	ask := func() (scheduler.Decision, scheduler.Request, error) {
		q := scheduler.Request{Sandbox: "i1", Resources: host.Resources{MilliCPU: 1000, MemBytes: 1 << 30, DiskBytes: 1 << 30, Slots: 1}, Seed: 1}
		d, err := r.Choose(t.Context(), v, scheduler.NewLedger(), &q, now)
		return d, q, err
	}
	choose := func(want host.ID, from int64) {
		t.Helper()
		asked.Store(0)
		if d, _, err := ask(); err != nil || d.Host != want || asked.Load() != from {
			t.Errorf("%s of %d that were asked about: %v, want %s of %d", d.Host, asked.Load(), err, want, from)
		}
	}
	choose("h000", 0)
	r.write(rules(20, 30, "open"))
	r.ReloadRules()
	choose("h004", 20)
	if _, q, err := ask(); err != nil || len(q.External) != 20 || q.External["h004"] != 100 {
		t.Errorf("%v, %v: the request does not keep the scores", err, q.External)
	}
	favourite.Store("h019")
	choose("h019", 20)
	r.write(rules(20, 1, "open")) // far less than what lies between the two
	r.ReloadRules()
	favourite.Store("h019")
	choose("h000", 20)
	favourite.Store("")
	r.write(rules(20, 30, "open"))
	r.ReloadRules()
	choose("h000", 20)
	r.write(rules(20, 30, "closed"))
	r.ReloadRules()
	if d, _, err := ask(); !errors.Is(err, fault.PeerUnavailable) || d.Host != "" {
		t.Errorf("%s, %v", d.Host, err)
	}
	text := metricsOf(t, r.reg)
	for _, line := range []string{`{outcome="scored",scorer="heat"} 4`, `{outcome="failed",scorer="heat"} 2`} {
		if !strings.Contains(text, "paddock_scheduler_external_seconds_count"+line+"\n") {
			t.Errorf("the metrics do not say %s:\n%s", line, text)
		}
	}
	// A request that nobody is fit for is refused as it always was.
	q := scheduler.Request{Sandbox: "i1", Resources: host.Resources{MilliCPU: 1 << 40}}
	if d, err := r.Choose(t.Context(), v, scheduler.NewLedger(), &q, now); !errors.Is(err, fault.NoCapacity) || d.Considered != 50 {
		t.Errorf("%+v, %v", d, err)
	}
}
