package master_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

func full(context.Context) error { return fault.New(fault.HostFull, "no room") }

// A host without room for a trial holds up no host that has room.
func TestAFullHostHoldsUpNoOther(t *testing.T) {
	r := newRig(t, sqlite(t), patient, func(c *config.Config) {
		c.Master.DistributeTimeout, c.Master.DistributeWorkers = 10*time.Minute, 1
	})
	r.start()
	a, b := r.host(0, plenty), r.host(1, plenty)
	a.set(func(h *fakeHost) { h.create = full })
	j, err := r.api.FromImage(t.Context(), image(alias("app"), probed))
	must(t, err)
	ready := func(h *fakeHost) (yes bool) {
		r.view(func(ctx context.Context, tx *store.Tx) error {
			list, err := templatedb.ListReplicas(ctx, tx, tplID(j))
			yes = slices.ContainsFunc(list, func(p template.Replica) bool { return p.HostID == h.id && p.State == template.ReplicaReady })
			return err
		})
		return yes
	}
	eventually(t, "the host with room is ready", func() bool { return ready(b) })
	n := a.called("create")
	eventually(t, "the full one is asked again", func() bool { return a.called("create") > n })
	if now, err := r.api.Job(t.Context(), j.JobID); err != nil || now.Status != "RUNNING" || ready(a) {
		t.Errorf("%+v %v", now, err)
	}
	a.set(func(h *fakeHost) { h.create = nil })
	if now := r.ended(j.JobID); now.Status != "READY" || now.ReadyNodeCount != 2 {
		t.Errorf("%+v", now)
	}
}

// Repair leaves a host that has no room to the next round.
func TestRepairDoesNotWaitForRoom(t *testing.T) {
	r := newRig(t, sqlite(t), patient, func(c *config.Config) { c.Master.DistributeTimeout = 10 * time.Minute })
	r.start(repairing)
	a := r.host(0, plenty)
	made := r.template(alias("app"), probed)
	r.reported(made.ArtifactID, a)
	b := r.host(1, plenty)
	b.set(func(h *fakeHost) { h.create = full })
	eventually(t, "the full host has failed", func() bool {
		for _, p := range r.shown("app").Replicas {
			if p.Status == "FAILED" && strings.Contains(p.ErrorMessage, "room") {
				return true
			}
		}
		return false
	})
	b.set(func(h *fakeHost) { h.create = nil })
	r.becomes("app", "READY")
}

// A host that is removed while it fetches gets no row.
func TestATrialOnARemovedHostLeavesNoRow(t *testing.T) {
	r := newRig(t, sqlite(t), patient)
	r.start()
	h := r.host(0, plenty)
	r.host(1, plenty)
	var once sync.Once
	h.set(func(h *fakeHost) {
		h.ensure = func(context.Context) error {
			once.Do(func() {
				r.silence(h)
				r.update(func(ctx context.Context, tx *store.Tx) error { return sandboxdb.DeleteHost(ctx, tx, h.id) })
			})
			return nil
		}
	})
	j, err := r.api.FromImage(t.Context(), image(alias("app"), probed))
	must(t, err)
	if j = r.ended(j.JobID); j.Status != "READY" || j.ReadyNodeCount != 1 {
		t.Errorf("%+v", j)
	}
	r.view(func(ctx context.Context, tx *store.Tx) error {
		list, err := templatedb.ListPlacements(ctx, tx, template.ArtifactID(j.ArtifactID))
		if slices.ContainsFunc(list, func(p template.Placement) bool { return p.HostID == h.id }) {
			t.Errorf("placements of a host that is not in the books: %v", list)
		}
		return err
	})
}

// Bytes that come to a host as the job is cancelled are noted, and taken away.
func TestBytesOfACancelledTrialAreNoted(t *testing.T) {
	r := newRig(t, sqlite(t), patient)
	var redo atomic.Pointer[string]
	var once sync.Once
	r.start(func(p *running) {
		p.At(func(step string) error {
			if job := redo.Load(); step == "master.resume.after_host" && job != nil {
				once.Do(func() {
					_, err := r.api.CancelJob(t.Context(), *job)
					must(t, err)
				})
			}
			return nil
		})
	})
	h := r.host(0, plenty)
	made := r.template(alias("keeps"), probed) // it keeps the artifact
	r.reported(made.ArtifactID, h)
	b := r.host(1, plenty)
	known := make(chan struct{})
	b.set(func(b *fakeHost) {
		b.ensure = func(context.Context) error { <-known; b.hush(); return nil } // no report tells of them
	})
	j, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "keeps", DistributionScope: []string{string(b.id)}})
	must(t, err)
	redo.Store(&j.Job.JobID)
	close(known)
	if now := r.ended(j.Job.JobID); now.Status != "FAILED" {
		t.Errorf("%+v", now)
	}
	eventually(t, "the bytes are noted", func() (noted bool) {
		r.view(func(ctx context.Context, tx *store.Tx) error {
			list, err := templatedb.ListPlacements(ctx, tx, template.ArtifactID(made.ArtifactID))
			noted = slices.ContainsFunc(list, func(p template.Placement) bool { return p.HostID == b.id })
			return err
		})
		return noted
	})
}

// A repeated request is answered with its job, however much waits.
func TestARepeatedAgentIsNotRefused(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) { c.TemplateCenter.MaxEnvdMiB = 1 })
	r.start()
	r.center.set(func(c *fakeCenter) { c.idle = true })
	big := agent(strings.Repeat("x", 1<<20-64))
	ask := func(i int) (*cubeapi.Job, error) {
		return r.api.FromImage(t.Context(), image(withAgent(big), func(q *cubeapi.FromImageRequest) {
			q.RequestID, q.WritableLayerSize = "req-"+strconv.Itoa(i), strconv.Itoa(i)+"Gi"
		}))
	}
	first, err := ask(1)
	must(t, err)
	for i := 2; i <= template.GuestsHeld; i++ {
		_, err := ask(i)
		must(t, err)
	}
	_, err = ask(template.GuestsHeld + 1)
	refused(t, err, fault.TooManyWaiting)
	if again, err := ask(1); err != nil || again.JobID != first.JobID {
		t.Errorf("%+v %v", again, err)
	}
}

// slow begins an upload of an agent that never ends.
func (r *rig) slow() *bufio.Reader {
	r.t.Helper()
	c, err := net.Dial("tcp", r.front.Listener.Addr().String())
	must(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: a\r\n%s: %s\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"envd\"\r\n\r\nx", cubeapi.PathFromImage, cubeapi.HeaderAPIKey, apiKey)
	must(r.t, err)
	return bufio.NewReader(c)
}

func answered(t *testing.T, from *bufio.Reader) (int, string) {
	t.Helper()
	a, err := http.ReadResponse(from, nil)
	must(t, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	must(t, err)
	return a.StatusCode, string(text)
}

// Uploads of agents are bounded in number, and in time.
func TestUploadsOfAgentsAreBounded(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(func(p *running) { p.AgentPace(time.Millisecond, 10*time.Minute) })
	for range template.GuestsHeld {
		r.slow()
	}
	eventually(t, "one more is refused", func() bool {
		status, text := r.form([2]string{"request", "{"}, [2]string{"envd", agent("")})
		return status == http.StatusTooManyRequests && strings.Contains(text, fault.TooManyWaiting.Name)
	})
	r.crash()
	r.start(func(p *running) { p.AgentPace(10*time.Minute, 50*time.Millisecond) })
	if status, text := answered(t, r.slow()); status != http.StatusBadRequest || !strings.Contains(text, "envd") {
		t.Errorf("%d %s", status, text)
	}
}

// A repeated create waits for the first as long as its probe may take.
func TestARepeatedCreateWaitsForTheProbe(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Master.CreateTimeout = 4 * time.Second })
	r.start(func(p *running) { p.Patient() })
	h := r.host(0, plenty)
	r.template(alias("app"), probed, func(q *cubeapi.FromImageRequest) { q.Overrides.Probe.TimeoutSeconds = 200 })
	met, goOn := make(chan struct{}, 1), make(chan struct{})
	open := sync.OnceFunc(func() { close(goOn) })
	defer open()
	h.set(func(h *fakeHost) {
		h.made = func() error {
			met <- struct{}{}
			<-goOn
			return nil
		}
	})
	type outcome struct {
		cubeapi.SandboxAnswer
		err error
	}
	ask := func() chan outcome {
		c := make(chan outcome, 1)
		go func() {
			s, err := r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{RequestID: "once", TemplateID: "app"})
			c <- outcome{s, err}
		}()
		return c
	}
	first := ask()
	select {
	case <-met:
	case o := <-first:
		t.Fatalf("it ended before its host was asked: %v", o.err)
	case <-time.After(time.Minute):
		t.Fatal("its host was not asked")
	}
	second := ask()
	select {
	case o := <-second:
		t.Errorf("it was not followed: %+v", o)
		second <- o
	case <-time.After(5 * time.Second): // create_timeout is over
	}
	open()
	a, b := <-first, <-second
	if a.err != nil || b.err != nil || a.SandboxID != b.SandboxID {
		t.Errorf("%+v\n%+v", a, b)
	}
}

// The numbers of lines go on when the old ones are forgotten, and a log that was
// cut takes lines again.
func TestForgottenLinesLeaveTheirNumbers(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		j, _ := r.submitIdle()
		id := template.JobID(j.JobID)
		r.update(func(ctx context.Context, tx *store.Tx) error {
			lines := make([]templatedb.LogLine, templatedb.MaxLogLines+10)
			for i := range lines {
				lines[i] = templatedb.LogLine{At: tx.Now.Add(-time.Hour), Source: "x", Line: "old"}
			}
			return templatedb.AddLog(ctx, tx, id, lines...)
		})
		r.update(func(ctx context.Context, tx *store.Tx) error {
			_, err := templatedb.ForgetLog(ctx, tx, tx.Now.Add(time.Minute), 2*templatedb.MaxLogLines)
			return err
		})
		r.update(func(ctx context.Context, tx *store.Tx) error {
			return templatedb.AddLog(ctx, tx, id, templatedb.LogLine{At: tx.Now, Source: "x", Line: "new"})
		})
		r.view(func(ctx context.Context, tx *store.Tx) error {
			list, err := templatedb.JobLog(ctx, tx, id, 0, 10)
			if n := len(list); n != 2 || list[n-1].Line != "new" || list[n-1].Seq != templatedb.MaxLogLines+2 {
				t.Errorf("%+v", list)
			}
			return err
		})
		// The lines of a job that there is not all go.
		r.update(func(ctx context.Context, tx *store.Tx) error {
			if err := templatedb.AddLog(ctx, tx, "job-gone", templatedb.LogLine{At: tx.Now.Add(-time.Hour), Source: "x", Line: "x"}); err != nil {
				return err
			}
			_, err := templatedb.ForgetLog(ctx, tx, tx.Now.Add(-time.Minute), 10)
			if list, late := templatedb.JobLog(ctx, tx, "job-gone", 0, 10); late != nil || len(list) != 0 {
				t.Errorf("%+v %v", list, late)
			}
			return err
		})
	})
}
