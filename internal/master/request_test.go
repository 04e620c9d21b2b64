package master_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/progress"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/test/service"
)

// traced sends a request within a trace that has much to carry.
func traced(t *testing.T, method, url string, body any) {
	t.Helper()
	b, err := json.Marshal(body)
	must(t, err)
	q, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(b))
	must(t, err)
	q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	q.Header.Set("traceparent", "00-"+traceID+"-00f067aa0ba902b7-01")
	q.Header.Set("tracestate", "vendor="+strings.Repeat("s", 200))
	q.Header.Set("baggage", "user="+strings.Repeat("b", 4000))
	answer, err := http.DefaultClient.Do(q)
	must(t, err)
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	must(t, err)
	if answer.StatusCode >= http.StatusInternalServerError && method == http.MethodPost {
		t.Fatalf("%s %s: %d %s", method, url, answer.StatusCode, said)
	}
}

const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"

// What follows a commit stays within the trace of its request.
func TestMessagesKeepTheirTrace(t *testing.T) {
	flush, err := telemetry.Setup(t.Context(), config.Telemetry{}, "test")
	must(t, err)
	defer func() { must(t, flush(context.Background())) }()
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, id := one(t, dsn)
		before := len(r.center.builds())
		traced(t, http.MethodPost, r.front.URL+cubeapi.PathFromImage, image())
		eventually(t, "the build is handed over", func() bool { return len(r.center.builds()) > before })
		if got := r.center.builds()[before].Trace["traceparent"]; !strings.Contains(got, traceID) {
			t.Errorf("the build is in trace %q", got)
		}
		h.away()
		traced(t, http.MethodDelete, r.front.URL+cubeapi.PathSandbox, cubeapi.SandboxDeleteRequest{SandboxID: id})
		var trace []byte
		r.view(func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Row(ctx, `SELECT trace FROM outbox WHERE topic = 'sandbox_delete'`, nil, &trace)
			return err
		})
		if !strings.Contains(string(trace), traceID) {
			t.Errorf("the delete is in trace %q", trace)
		}
	})
}

func TestThePrograms(t *testing.T) {
	image := template.ImageConfig{Entrypoint: []string{"entry"}, Cmd: []string{"default"}}
	words := strings.Fields
	for _, c := range []struct{ overCommand, overArgs, command, args, want string }{
		{"", "", "", "", "entry default"},
		{"", "a b", "", "", "entry a b"},
		{"run", "", "", "", "run"},
		{"run", "a", "", "", "run a"},
		{"run", "a", "", "b", "run b"},
		{"run", "a", "other", "", "other"},
		{"", "", "", "b", "entry b"},
	} {
		over := cubeapi.FromImageRequest{WritableLayerSize: "1Gi", ExposedPorts: []int{80, 443}, Overrides: &cubeapi.ContainerOverride{Command: words(c.overCommand), Args: words(c.overArgs)}}
		req := cubeapi.SandboxCreateRequest{Containers: []cubeapi.Container{{Command: words(c.command), Args: words(c.args)}}}
		got, ports, err := master.MergeTwice(over, image, req)
		if err != nil || strings.Join(got, " ") != c.want || len(ports) != 2 {
			t.Errorf("%+v: %v, ports %v, %v", c, got, ports, err)
		}
	}
}

func TestNoPasswordIsQuoted(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	for _, ref := range []string{"user:secret@registry.local/base:1", "https://user:secret@registry.local/base:1", "https://secret@registry.local/UPPER"} {
		_, err := r.api.FromImage(t.Context(), image(func(q *cubeapi.FromImageRequest) { q.SourceImageRef = ref }))
		refused(t, err, fault.ImageRef)
		if strings.Contains(fmt.Sprintf("%+v", fault.DetailOf(err)), "secret") {
			t.Errorf("%s: %v", ref, err)
		}
	}
	long := strings.Repeat("x", 5000)
	_, bySandbox := r.api.Sandbox(t.Context(), long)
	_, byHost := r.api.Host(t.Context(), long)
	_, byJob := r.api.Job(t.Context(), long)
	_, byTemplate := r.api.Template(t.Context(), long)
	_, byArtifact := r.api.Artifact(t.Context(), long)
	for what, err := range map[string]error{"sandbox": bySandbox, "host": byHost, "job": byJob, "template": byTemplate, "artifact": byArtifact} {
		if err == nil || len(fault.DetailOf(err).Message) > 500 {
			t.Errorf("%s: %d characters come back", what, len(fault.DetailOf(err).Message))
		}
	}
}

func TestASandboxHasItsTime(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, stays := one(t, dsn)
		ask := func(seconds int64) (cubeapi.SandboxAnswer, error) {
			return r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base", Timeout: &seconds})
		}
		for _, bad := range []int64{0, -2, 1 << 40} {
			_, err := ask(bad)
			refused(t, err, fault.InvalidInput)
		}
		forever, err := ask(-1)
		must(t, err)
		short, err := ask(1)
		must(t, err)
		if short.Sandbox.EndAt == "" || forever.Sandbox.EndAt != "" {
			t.Errorf("ends: %q and %q", short.Sandbox.EndAt, forever.Sandbox.EndAt)
		}
		eventually(t, "its time is up", func() bool { return r.state(short.SandboxID) == sandbox.Terminated })
		if s, err := r.api.Sandbox(t.Context(), short.SandboxID); err != nil || s.Reason != "timeout" {
			t.Errorf("sandbox: %+v %v", s, err)
		}
		if len(h.live()) != 2 || r.state(stays) != sandbox.Running || r.state(forever.SandboxID) != sandbox.Running {
			t.Errorf("the host has %v", h.live())
		}
	})
}

func TestAnInstanceTypeIsHeard(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	_, err := r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base", InstanceType: "other"})
	refused(t, err, fault.NoHost)
	_, err = r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base", Containers: make([]cubeapi.Container, 2)})
	refused(t, err, fault.InvalidInput)
}

// The same request again makes no second sandbox.
func TestOneRequestIsOneSandbox(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty, patient)
		q := cubeapi.SandboxCreateRequest{RequestID: "req-one", TemplateID: "base", Labels: map[string]string{"a": "1"}}
		var answers [6]cubeapi.SandboxAnswer
		var twins sync.WaitGroup
		for i := range answers {
			twins.Go(func() {
				a, err := r.api.CreateSandbox(t.Context(), q)
				if err != nil {
					t.Error(err)
				}
				answers[i] = a
			})
		}
		twins.Wait()
		for _, a := range answers {
			if a.SandboxID == "" || a.SandboxID != answers[0].SandboxID || a.SandboxIP != "10.0.0.2" || a.HostIP != "127.0.0.1" {
				t.Fatalf("twins got %+v and %+v", answers[0], a)
			}
		}
		if len(hosts[0].live()) != 1 {
			t.Errorf("the host has %v", hosts[0].live())
		}
		other := q
		other.Labels = map[string]string{"a": "2"}
		_, err := r.api.CreateSandbox(t.Context(), other)
		refused(t, err, fault.SubmissionReused)
		must(t, r.api.DeleteSandbox(t.Context(), answers[0].SandboxID))
		_, err = r.api.CreateSandbox(t.Context(), q)
		refused(t, err, fault.SandboxNotFound)
	})
}

// A request that failed left nothing: sent again, it is the first.
func TestARequestThatFailedCanBeSentAgain(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	q := cubeapi.SandboxCreateRequest{RequestID: "req-one", TemplateID: "base"}
	hosts[0].set(func(h *fakeHost) {
		h.create = func(context.Context) error { return fault.New(fault.CommandNotFound, "serve") }
	})
	for range 2 {
		_, err := r.api.CreateSandbox(t.Context(), q)
		refused(t, err, fault.CommandNotFound)
	}
	hosts[0].set(func(h *fakeHost) { h.create = nil })
	_, err := r.api.CreateSandbox(t.Context(), q)
	must(t, err)
	if len(hosts[0].live()) != 1 {
		t.Errorf("the host has %v", hosts[0].live())
	}
}

// What the board says is shown before the report comes, and a board that is
// away is no failure.
func TestAJobShowsTheBoard(t *testing.T) {
	addr := service.Redis(t)
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Redis.Addr = addr })
	r.center.set(func(c *fakeCenter) { c.idle = true })
	r.start()
	board := progress.NewRedis(config.Redis{Addr: addr})
	defer board.Close()
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	must(t, r.center.tell(j.JobID, cubeapi.JobReport{Status: "RUNNING", Phase: "PULLING", Progress: 5, PullTotalBytes: 100, PullDoneBytes: 10}))
	must(t, board.Put(t.Context(), template.JobID(j.JobID), template.Pull{TotalBytes: 100, DoneBytes: 42}))
	shown, err := r.api.Job(t.Context(), j.JobID)
	must(t, err)
	if shown.PullDoneBytes != 42 || shown.PullTotalBytes != 100 {
		t.Errorf("job: %+v", shown)
	}
	must(t, board.Put(t.Context(), template.JobID(j.JobID), template.Pull{TotalBytes: 100, DoneBytes: 5}))
	if shown, err = r.api.Job(t.Context(), j.JobID); err != nil || shown.PullDoneBytes != 10 {
		t.Errorf("an old board: %+v %v", shown, err)
	}
}

// Failed jobs of which no template came, and messages that were given up, are
// counted and then forgotten.
func TestWhatFailedIsForgotten(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.center.set(func(c *fakeCenter) { c.refuse = fault.New(fault.InvalidInput, "no") })
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	r.ended(j.JobID)
	must(t, r.db.Update(t.Context(), func(tx *store.Tx) error {
		if err := tx.Enqueue(t.Context(), store.Message{Topic: "old", Key: "k"}, -time.Minute); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `UPDATE outbox SET dead = 1 WHERE topic = 'old'`)
		return err
	}))
	count := func() string {
		answer, err := http.Get(r.front.URL + cubeapi.PathMetrics) //nolint:noctx // a test
		must(t, err)
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		must(t, err)
		return string(b)
	}
	eventually(t, "the message is counted", func() bool { return strings.Contains(count(), `paddock_outbox_messages{state="dead"} 1`) })
	r.crash()
	r.start(func(p *running) { p.KeepFailed(time.Millisecond) })
	eventually(t, "both are gone", func() bool {
		_, err := r.api.Job(t.Context(), j.JobID)
		return fault.Of(err) == fault.JobNotFound && strings.Contains(count(), `paddock_outbox_messages{state="dead"} 0`)
	})
}

// Tries on a template that failed are forgotten once a later one was made, so
// that repairs which fail for ever do not fill the books; its newest stays.
func TestFailedTriesAreForgotten(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(func(p *running) { p.KeepFailed(time.Millisecond) })
	r.host(0, plenty)
	made := r.template()
	r.update(func(ctx context.Context, tx *store.Tx) error {
		for n := 2; n <= 4; n++ {
			j, err := templatedb.AddJob(ctx, tx, template.Job{
				ID: template.JobID(fmt.Sprintf("job-%024d", n)), TemplateID: tplID(made), RequestID: fmt.Sprint("again-", n), Operation: template.OpRedo, AttemptNo: n,
			})
			if err == nil {
				_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobFailed)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	eventually(t, "the older ones are forgotten", func() bool {
		list := r.jobs(made.TemplateID)
		return len(list) == 2 && slices.ContainsFunc(list, func(j template.Job) bool { return j.AttemptNo == 4 })
	})
	if _, err := r.api.Job(t.Context(), made.JobID); err != nil {
		t.Errorf("the job that made it: %v", err)
	}
}
