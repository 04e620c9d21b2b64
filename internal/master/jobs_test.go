package master_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

func TestAnImageBecomesATemplate(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		a, b := r.host(0, plenty), r.host(1, plenty)
		j, err := r.api.FromImage(t.Context(), image(alias("base")))
		must(t, err)
		if j.Status != cubeapi.StatusPending && j.Status != cubeapi.StatusRunning || j.Phase != "PULLING" {
			t.Errorf("a new job is %s %s", j.Status, j.Phase)
		}
		grows(t, r, j.JobID)
		j = r.ended(j.JobID)
		if j.Status != "READY" || j.Phase != "READY" || j.Progress != 100 || j.ExpectedNodeCount != 2 || j.ReadyNodeCount != 2 || j.FailedNodeCount != 0 || j.TemplateStatus != "READY" || j.ArtifactStatus != "READY" {
			t.Errorf("job: %+v", j)
		}
		for _, phase := range []string{"PULLING", "UNPACKING", "BUILDING_EXT4", "STORING", "DISTRIBUTING", "REGISTERING", "READY"} {
			if j.PhaseStartedMS[phase] == 0 {
				t.Errorf("phase %s has no time", phase)
			}
		}
		d, err := r.api.Template(t.Context(), "base")
		must(t, err)
		if d.TemplateID != j.TemplateID || d.Status != "READY" || d.Version != "v2" || len(d.Replicas) != 2 || d.Replicas[0].Status != "READY" || d.Replicas[0].NodeIP != "127.0.0.1" || d.ImageInfo != "registry.local/base:1@"+j.SourceImageDigest {
			t.Errorf("template: %+v", d)
		}
		list, err := r.api.Templates(t.Context())
		must(t, err)
		if len(list) != 1 || list[0].Alias != "base" {
			t.Errorf("list: %+v", list)
		}
		art, err := r.api.Artifact(t.Context(), j.ArtifactID)
		must(t, err)
		if art.Status != "READY" || art.Ext4SizeBytes == 0 || !a.holds(j.ArtifactID) || !b.holds(j.ArtifactID) {
			t.Errorf("artifact: %+v", art)
		}
		s, err := r.api.BuildStatus(t.Context(), j.JobID)
		must(t, err)
		if s.Status != "ready" || s.TemplateID != j.TemplateID || s.Progress != 100 {
			t.Errorf("build status: %+v", s)
		}
		must(t, r.api.Health(t.Context()))
	})
}

// grows polls a job to its end and demands that progress never falls.
func grows(t *testing.T, r *rig, id string) {
	t.Helper()
	last := 0
	eventually(t, "the job ends", func() bool {
		j, err := r.api.Job(t.Context(), id)
		must(t, err)
		if j.Progress < last {
			t.Fatalf("progress fell from %d to %d", last, j.Progress)
		}
		last = j.Progress
		return j.Status == "READY" || j.Status == "FAILED"
	})
}

func TestTheDownloadIsHandedOn(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	j := r.template()
	type answer struct {
		status int
		id     string
		size   int64
		body   string
	}
	ask := func(method, span, token string) answer {
		q, err := http.NewRequestWithContext(t.Context(), method, r.front.URL+cubeapi.PathArtifactDownload+"?artifact_id="+j.ArtifactID, nil)
		must(t, err)
		q.Header.Set(cubeapi.HeaderArtifactToken, token)
		if span != "" {
			q.Header.Set("Range", span)
		}
		a, err := http.DefaultClient.Do(q)
		must(t, err)
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		must(t, err)
		return answer{a.StatusCode, a.Header.Get(cubeapi.HeaderArtifactID), a.ContentLength, string(body)}
	}
	if a := ask(http.MethodGet, "", "some"); a.status != 200 || a.id != j.ArtifactID || sum([]byte(a.body)) != j.Artifact.Ext4SHA256 {
		t.Errorf("GET: %d, %d bytes", a.status, len(a.body))
	}
	if a := ask(http.MethodHead, "", "some"); a.status != 200 || a.size != j.Artifact.Ext4SizeBytes {
		t.Errorf("HEAD: %d, %d bytes", a.status, a.size)
	}
	if a := ask(http.MethodGet, "bytes=0-7", "some"); a.status != 206 || a.body != "registry" {
		t.Errorf("Range: %d, %q", a.status, a.body)
	}
	if a := ask(http.MethodGet, "", ""); a.status != 401 {
		t.Errorf("no token: %d, want 401", a.status)
	}
	r.center.front.hide()
	if a := ask(http.MethodGet, "", "some"); a.status != 503 || !strings.Contains(a.body, "peer_unavailable") {
		t.Errorf("centre away: %d %s", a.status, a.body)
	}
}

func TestTheReceiptIsHandedOn(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	j := r.template()
	var got strings.Builder
	must(t, r.api.Receipt(t.Context(), j.TemplateID, &got))
	if !strings.Contains(got.String(), `"sha256":"`+j.Artifact.Ext4SHA256+`"`) {
		t.Errorf("receipt %s", got.String())
	}
	if err := r.api.Receipt(t.Context(), "nosuch", io.Discard); fault.Of(err) != fault.TemplateNotFound {
		t.Errorf("no template: %v", err)
	}
	if err := cubeapi.NewClient(r.front.URL, "guess").Receipt(t.Context(), j.TemplateID, io.Discard); fault.Of(err) != fault.Unauthenticated {
		t.Errorf("wrong key: %v", err)
	}
	r.center.set(func(c *fakeCenter) { clear(c.bytes) })
	if err := r.api.Receipt(t.Context(), j.TemplateID, io.Discard); fault.Of(err) != fault.ArtifactNotFound {
		t.Errorf("no receipt: %v", err)
	}
	r.center.front.hide()
	if err := r.api.Receipt(t.Context(), j.TemplateID, io.Discard); fault.Of(err) != fault.PeerUnavailable {
		t.Errorf("centre away: %v", err)
	}
}

func TestOneRequestIsOneJob(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.center.set(func(c *fakeCenter) { c.idle = true })
		q := image(func(q *cubeapi.FromImageRequest) { q.RequestID = "req-one" })
		var jobs [12]*cubeapi.Job
		var twins sync.WaitGroup
		for i := range jobs {
			twins.Go(func() {
				j, err := r.api.FromImage(t.Context(), q)
				if err != nil {
					t.Error(err)
				}
				jobs[i] = j
			})
		}
		twins.Wait()
		for _, j := range jobs {
			if j == nil || j.JobID != jobs[0].JobID {
				t.Fatalf("twins got %+v and %+v", jobs[0], j)
			}
		}
		q.WritableLayerSize = "128Mi"
		_, err := r.api.FromImage(t.Context(), q)
		refused(t, err, fault.SubmissionReused)
		list, err := r.api.Templates(t.Context())
		must(t, err)
		if len(list) != 1 || list[0].Status != "CREATING" {
			t.Errorf("%d templates: %+v", len(list), list)
		}
	})
}

func TestSubmitRefuses(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	ports := func(p ...int) func(*cubeapi.FromImageRequest) {
		return func(q *cubeapi.FromImageRequest) { q.ExposedPorts = p }
	}
	override := func(o cubeapi.ContainerOverride) func(*cubeapi.FromImageRequest) {
		return func(q *cubeapi.FromImageRequest) { q.Overrides = &o }
	}
	ref := func(s string) func(*cubeapi.FromImageRequest) {
		return func(q *cubeapi.FromImageRequest) { q.SourceImageRef = s }
	}
	size := func(s string) func(*cubeapi.FromImageRequest) {
		return func(q *cubeapi.FromImageRequest) { q.WritableLayerSize = s }
	}
	for name, c := range map[string]struct {
		change func(*cubeapi.FromImageRequest)
		code   *fault.Code
	}{
		"no image":            {ref(""), fault.ImageRef},
		"an option as image":  {ref("--rm"), fault.ImageRef},
		"upper case image":    {ref("registry.local/Base:1"), fault.ImageRef},
		"a long image":        {ref(strings.Repeat("a", 1001)), fault.ImageRef},
		"alias of a template": {alias("tpl-x"), fault.AliasInvalid},
		"alias with a space":  {alias("a b"), fault.AliasInvalid},
		"size without number": {size("big"), fault.InvalidInput},
		"size too small":      {size("1Mi"), fault.InvalidInput},
		"size too large":      {size("17Ti"), fault.InvalidInput},
		"size beyond 63 bits": {size("9999999999Ei"), fault.InvalidInput},
		"port 0":              {ports(0), fault.InvalidInput},
		"port 65536":          {ports(65536), fault.InvalidInput},
		"four ports":          {ports(1, 2, 3, 4), fault.InvalidInput},
		"unknown host":        {func(q *cubeapi.FromImageRequest) { q.DistributionScope = []string{"host-a", "nobody"} }, fault.NoTemplateHosts},
		"long request id":     {func(q *cubeapi.FromImageRequest) { q.RequestID = strings.Repeat("x", 191) }, fault.InvalidInput},
		"long instance type":  {func(q *cubeapi.FromImageRequest) { q.InstanceType = strings.Repeat("x", 65) }, fault.InvalidInput},
		"cpu":                 {override(cubeapi.ContainerOverride{Resources: &cubeapi.Quantity{CPU: "many"}}), fault.InvalidInput},
		"cpu too small":       {override(cubeapi.ContainerOverride{Resources: &cubeapi.Quantity{CPU: "1m"}}), fault.InvalidInput},
		"memory too small":    {override(cubeapi.ContainerOverride{Resources: &cubeapi.Quantity{Mem: "1Mi"}}), fault.InvalidInput},
		"memory too large":    {override(cubeapi.ContainerOverride{Resources: &cubeapi.Quantity{Mem: "2Pi"}}), fault.InvalidInput},
		"variable":            {override(cubeapi.ContainerOverride{Envs: []cubeapi.KeyValue{{Key: "A=B", Value: "1"}}}), fault.InvalidInput},
		"password alone":      {func(q *cubeapi.FromImageRequest) { q.RegistryPassword = "p" }, fault.InvalidInput},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.api.FromImage(t.Context(), image(c.change))
			refused(t, err, c.code)
			if strings.Contains(err.Error(), strings.Repeat("a", 500)) {
				t.Error("the refusal quotes all of a long input")
			}
		})
	}
	for name, change := range map[string]func(*cubeapi.FromImageRequest){
		"three ports beside the guest's, one twice": ports(1, 2, 2, 3, 49983),
		"a bare size counts in Gi":                  size("1"),
		"the host's address as scope":               func(q *cubeapi.FromImageRequest) { q.DistributionScope = []string{"127.0.0.1"} },
		"a scheme":                                  ref("docker://registry.local/base:2"),
	} {
		t.Run(name, func(t *testing.T) { r.template(change) })
	}
	jobs := map[string]bool{}
	for _, b := range r.center.builds() {
		jobs[b.JobID] = true // one that waits is handed over again
	}
	if len(jobs) != 4 {
		t.Errorf("the centre got %d jobs, want 4: a refusal leaves nothing", len(jobs))
	}
}

func TestACentreThatIsAwayIsAskedAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.host(0, plenty)
		r.center.set(func(c *fakeCenter) { c.refuse = fault.New(fault.PeerUnavailable, "build") })
		j, err := r.api.FromImage(t.Context(), image())
		must(t, err)
		r.center.set(func(c *fakeCenter) { c.refuse = nil })
		if j = r.ended(j.JobID); j.Status != "READY" {
			t.Errorf("job: %s %s", j.ErrorCode, j.ErrorMessage)
		}
	})
}

func TestAJobEndsWhenTheCentreStaysAway(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.center.front.hide()
	for name, change := range map[string]func(*cubeapi.FromImageRequest){
		"public":  func(*cubeapi.FromImageRequest) {},
		"private": func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "u", "p" },
	} {
		t.Run(name, func(t *testing.T) {
			j, err := r.api.FromImage(t.Context(), image(change))
			must(t, err)
			if j = r.ended(j.JobID); j.Status != "FAILED" || j.ErrorCode != "peer_unavailable" || r.m.Lends(j.JobID) {
				t.Errorf("job: %+v", j)
			}
		})
	}
}

func TestARefusalOfTheCentreEndsTheJob(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.center.set(func(c *fakeCenter) { c.refuse = fault.New(fault.InvalidInput, "build of this") })
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	if j = r.ended(j.JobID); j.Status != "FAILED" || j.ErrorCode != "invalid_input" {
		t.Errorf("job: %+v", j)
	}
	s, err := r.api.BuildStatus(t.Context(), j.JobID)
	must(t, err)
	if s.Status != "error" || s.Message != j.ErrorMessage {
		t.Errorf("build status: %+v", s)
	}
}

// The centre takes the job and its answer is lost: it is handed over again and
// built once.
func TestALostAnswerOfTheCentreBuildsOnce(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	r.center.set(func(c *fakeCenter) { c.loseReply = true })
	if j := r.template(); j.ReadyNodeCount != 1 {
		t.Errorf("job: %+v", j)
	}
}

// The answer is lost only after the build: the job has gone on, and is not
// failed because the centre knows it no more.
func TestAJobThatWentOnIsNotFailed(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	r.center.set(func(c *fakeCenter) { c.slowReply = true })
	if j := r.template(); j.ReadyNodeCount != 1 || j.ErrorMessage != "" {
		t.Errorf("job: %+v", j)
	}
}

// The master ends between the commit of a job and its message's delivery.
func TestAJobSurvivesACrashAfterItsCommit(t *testing.T) {
	for _, step := range []string{"master.submit.after_commit", "master.dispatch.after_call"} {
		t.Run(step, func(t *testing.T) {
			onBoth(t, func(t *testing.T, dsn string) {
				r := newRig(t, dsn)
				crash, reached := crashAt(step)
				r.start(crash)
				r.host(0, plenty)
				q := image(func(q *cubeapi.FromImageRequest) { q.RequestID = step })
				// Its answer is lost or not: the row decides.
				_, _ = r.api.FromImage(t.Context(), q)
				wait(t, step, reached)
				r.crash()
				r.start()
				j, err := r.api.FromImage(t.Context(), q)
				must(t, err)
				if j = r.ended(j.JobID); j.Status != "READY" {
					t.Errorf("job: %s %s", j.ErrorCode, j.ErrorMessage)
				}
			})
		})
	}
}

// The centre is restarted while a job waits for its turn there.
func TestAForgottenJobIsHandedOverAgain(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	r.center.set(func(c *fakeCenter) { c.idle = true })
	j, err := r.api.FromImage(t.Context(), image(func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "u", "p" }))
	must(t, err)
	eventually(t, "the centre has it", func() bool { return len(r.center.builds()) > 0 })
	r.center.set(func(c *fakeCenter) { c.idle, c.taken = false, nil })
	if j = r.ended(j.JobID); j.Status != "READY" {
		t.Errorf("job: %s %s", j.ErrorCode, j.ErrorMessage)
	}
	if q := r.center.builds()[0].Request; q.RegistryUsername != "u" || q.RegistryPassword != "p" {
		t.Error("the second hand-over went without credentials")
	}
}

func TestCredentialsAreNeverStored(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.host(0, plenty)
		j := r.template(func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "the-user", "the-password" })
		if q := r.center.builds()[0].Request; q.RegistryUsername != "the-user" || q.RegistryPassword != "the-password" {
			t.Errorf("the centre got %q and %q", q.RegistryUsername, q.RegistryPassword)
		}
		if r.m.Lends(j.JobID) {
			t.Error("the master keeps the credentials of a job that is over")
		}
		r.view(func(ctx context.Context, tx *store.Tx) error {
			row, err := templatedb.GetJob(ctx, tx, template.JobID(j.JobID))
			must(t, err)
			d, err := templatedb.GetDefinition(ctx, tx, tplID(j))
			must(t, err)
			for what, v := range map[string]any{"job": row, "definition": d, "request": string(row.Request), "stored with the template": string(d.Request), "result": string(row.Result)} {
				b, err := json.Marshal(v)
				must(t, err)
				if strings.Contains(string(b), "the-user") || strings.Contains(string(b), "the-password") {
					t.Errorf("the %s has credentials: %s", what, b)
				}
			}
			return nil
		})
	})
}

// A private image's job whose master ended cannot be handed over again.
func TestAPrivateJobEndsWithItsCredentials(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.center.front.hide()
	r.start()
	j, err := r.api.FromImage(t.Context(), image(func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "u", "p" }))
	must(t, err)
	r.crash()
	r.start()
	if j = r.ended(j.JobID); j.Status != "FAILED" || j.ErrorCode != "credentials_lost" {
		t.Errorf("job: %+v", j)
	}
	if errors.Is(r.api.DeleteTemplate(t.Context(), j.TemplateID), fault.TemplateNotFound) {
		t.Error("a template that never came to be cannot be deleted")
	}
}
