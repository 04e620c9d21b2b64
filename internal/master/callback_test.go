package master_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// waiting returns a rig with a host and a job that the centre only took.
func waiting(t *testing.T) (*rig, cubeapi.TCBuildRequest) {
	t.Helper()
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	r.center.set(func(c *fakeCenter) { c.idle = true })
	_, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	eventually(t, "the centre has the job", func() bool { return len(r.center.builds()) > 0 })
	return r, r.center.builds()[0]
}

func TestForgedReportsChangeNothing(t *testing.T) {
	r, q := waiting(t)
	good := r.center.built(q)
	changed := func(change func(*cubeapi.JobReport)) cubeapi.JobReport {
		rep := good
		change(&rep)
		return rep
	}
	other := sum([]byte("other"))
	for name, rep := range map[string]cubeapi.JobReport{
		"a status of the master's":       {Status: "READY"},
		"pending":                        {Status: "PENDING"},
		"no status that is known":        {Status: "built"},
		"a phase of the master's":        {Status: "RUNNING", Phase: "READY", Progress: 100},
		"a phase that is none":           {Status: "RUNNING", Phase: "COOKING"},
		"progress under 0":               {Status: "RUNNING", Phase: "PULLING", Progress: -1},
		"progress over 100":              {Status: "RUNNING", Phase: "PULLING", Progress: 101},
		"a counter under 0":              {Status: "RUNNING", PullTotalBytes: -5},
		"a digest that is none":          {Status: "RUNNING", SourceImageDigest: "sha256:abc"},
		"a fingerprint that is none":     {Status: "RUNNING", SpecFingerprint: "abc"},
		"a long error code":              {Status: "FAILED", ErrorCode: strings.Repeat("x", 65)},
		"built for another template":     changed(func(r *cubeapi.JobReport) { r.TemplateID = "tpl-000000000000000000000000" }),
		"built for no template":          changed(func(r *cubeapi.JobReport) { r.TemplateID = "" }),
		"an artifact of other bytes":     changed(func(r *cubeapi.JobReport) { r.ContentKey = other }),
		"an artifact of a path":          changed(func(r *cubeapi.JobReport) { r.ArtifactID = "../../etc" }),
		"no content key":                 changed(func(r *cubeapi.JobReport) { r.ContentKey, r.ArtifactID = "", "" }),
		"a short sha256":                 changed(func(r *cubeapi.JobReport) { r.Ext4SHA256 = "abc" }),
		"an upper case sha256":           changed(func(r *cubeapi.JobReport) { r.Ext4SHA256 = strings.ToUpper(other) }),
		"no bytes":                       changed(func(r *cubeapi.JobReport) { r.Ext4SizeBytes = 0 }),
		"bytes under 0":                  changed(func(r *cubeapi.JobReport) { r.Ext4SizeBytes = -1 }),
		"a store that is none":           changed(func(r *cubeapi.JobReport) { r.StorageBackend = "ftp" }),
		"no object":                      changed(func(r *cubeapi.JobReport) { r.ObjectKey = "" }),
		"no digest of the image":         changed(func(r *cubeapi.JobReport) { r.SourceImageDigest = "" }),
		"no fingerprint of the template": changed(func(r *cubeapi.JobReport) { r.SpecFingerprint = "" }),
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, r.center.report.Job(t.Context(), q.JobID, rep), fault.InvalidInput)
		})
	}
	refused(t, r.center.report.Job(t.Context(), "job-nobody", good), fault.JobNotFound)
	j, err := r.api.Job(t.Context(), q.JobID)
	must(t, err)
	if j.Status != "PENDING" || j.ArtifactID != "" || j.Progress != 0 {
		t.Errorf("a refused report changed the job: %+v", j)
	}
	if _, err := r.api.Artifact(t.Context(), good.ArtifactID); fault.Of(err) != fault.ArtifactNotFound {
		t.Errorf("a refused report registered an artifact: %v", err)
	}
}

func post(t *testing.T, url, header, token, body string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	must(t, err)
	if token != "" {
		q.Header.Set(header, token)
	}
	answer, err := http.DefaultClient.Do(q)
	must(t, err)
	defer answer.Body.Close()
	var b strings.Builder
	buffer := make([]byte, 4096)
	for {
		n, err := answer.Body.Read(buffer)
		b.Write(buffer[:n])
		if err != nil {
			return answer.StatusCode, b.String()
		}
	}
}

func TestTheCallbackFailsClosed(t *testing.T) {
	r, q := waiting(t)
	url := r.front.URL + strings.Replace(cubeapi.PathJobStatus, "{job_id}", q.JobID, 1)
	for name, c := range map[string]struct {
		header, token, body, code string
		status                    int
	}{
		"no token":            {cubeapi.HeaderCallbackToken, "", `{"status":"FAILED"}`, "token_rejected", 401},
		"a wrong token":       {cubeapi.HeaderCallbackToken, "callback-tokem", `{"status":"FAILED"}`, "token_rejected", 401},
		"an API key":          {cubeapi.HeaderAPIKey, apiKey, `{"status":"FAILED"}`, "token_rejected", 401},
		"the host's token":    {cubeapi.HeaderHostToken, hostToken, `{"status":"FAILED"}`, "token_rejected", 401},
		"no JSON":             {cubeapi.HeaderCallbackToken, callbackToken, `status=FAILED`, "invalid_input", 400},
		"no body":             {cubeapi.HeaderCallbackToken, callbackToken, ``, "invalid_input", 400},
		"more than one value": {cubeapi.HeaderCallbackToken, callbackToken, `{"status":"FAILED"}{}`, "invalid_input", 400},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := post(t, url, c.header, c.token, c.body)
			if status != c.status || !strings.Contains(body, c.code) {
				t.Errorf("got %d %s, want %d %s", status, body, c.status, c.code)
			}
		})
	}
	if status, body := post(t, url, cubeapi.HeaderCallbackToken, callbackToken, `{"status":"RUNNING","phase":"PULLING","progress":5,"template_status":"READY","state":"ready","job_id":"x"}`); status != 200 {
		t.Errorf("unknown fields: %d %s", status, body)
	}
	j, err := r.api.Job(t.Context(), q.JobID)
	must(t, err)
	if j.Status != "RUNNING" || j.Progress != 5 || j.TemplateStatus != "" {
		t.Errorf("job: %+v", j)
	}
}

func TestAnUnsetTokenAdmitsNobody(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Auth.CallbackToken, c.Auth.HostToken, c.Auth.APIKey = "", "", "" })
	r.start()
	for path, header := range map[string]string{
		strings.Replace(cubeapi.PathJobStatus, "{job_id}", "job-x", 1): cubeapi.HeaderCallbackToken,
		cubeapi.PathHostRegister: cubeapi.HeaderHostToken,
		strings.Replace(cubeapi.PathHostStatus, "{node_id}", "host-a", 1): cubeapi.HeaderHostToken,
		cubeapi.PathSandbox: cubeapi.HeaderAPIKey,
	} {
		for _, token := range []string{"", "guess"} {
			if status, body := post(t, r.front.URL+path, header, token, `{}`); status != 503 || !strings.Contains(body, "token_unset") {
				t.Errorf("%s with token %q: %d %s", path, token, status, body)
			}
		}
	}
}

func TestAWrongAPIKeyIsRefusedEverywhere(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	api := cubeapi.NewClient(r.front.URL, "e2b_wrong")
	_, err := api.FromImage(t.Context(), image())
	refused(t, err, fault.Unauthenticated)
	_, err = api.Templates(t.Context())
	refused(t, err, fault.Unauthenticated)
	_, err = api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{})
	refused(t, err, fault.Unauthenticated)
	_, err = api.Hosts(t.Context())
	refused(t, err, fault.Unauthenticated)
	refused(t, api.DeleteTemplate(t.Context(), "x"), fault.Unauthenticated)
	must(t, api.Health(t.Context())) // it is for everybody
}

func TestBuiltMayBeToldAgain(t *testing.T) {
	r, q := waiting(t)
	good := r.center.built(q)
	for range 3 {
		must(t, r.center.report.Job(t.Context(), q.JobID, good))
	}
	j := r.ended(q.JobID)
	if j.Status != "READY" {
		t.Fatalf("job: %+v", j)
	}
	must(t, r.center.report.Job(t.Context(), q.JobID, good))
	other := good
	other.ContentKey = sum([]byte("other"))
	other.ArtifactID = "rfs-" + other.ContentKey[:24]
	refused(t, r.center.report.Job(t.Context(), q.JobID, other), fault.StateConflict)
	if now, err := r.api.Job(t.Context(), q.JobID); err != nil || now.ArtifactID != good.ArtifactID || now.Status != "READY" {
		t.Errorf("job: %+v %v", now, err)
	}
}

func TestAnEndedJobKeepsItsOutcome(t *testing.T) {
	r, q := waiting(t)
	running := cubeapi.JobReport{Status: "RUNNING", Phase: "UNPACKING", Progress: 20}
	failed := cubeapi.JobReport{Status: "FAILED", ErrorMessage: "no such image", ErrorCode: "image_not_found"}
	good := r.center.built(q)
	must(t, r.center.report.Job(t.Context(), q.JobID, good))
	// The centre missed the answer to its BUILT and takes the build for failed.
	refused(t, r.center.report.Job(t.Context(), q.JobID, failed), fault.StateConflict)
	if j := r.ended(q.JobID); j.Status != "READY" {
		t.Fatalf("job: %+v", j)
	}
	refused(t, r.center.report.Job(t.Context(), q.JobID, running), fault.StateConflict)
	refused(t, r.center.report.Job(t.Context(), q.JobID, failed), fault.StateConflict)

	_, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	var second cubeapi.TCBuildRequest
	eventually(t, "the second job is taken", func() bool {
		for _, b := range r.center.builds() {
			if b.JobID != q.JobID {
				second = b
			}
		}
		return second.JobID != ""
	})
	must(t, r.center.report.Job(t.Context(), second.JobID, failed))
	must(t, r.center.report.Job(t.Context(), second.JobID, failed)) // the same again
	refused(t, r.center.report.Job(t.Context(), second.JobID, running), fault.StateConflict)
	refused(t, r.center.report.Job(t.Context(), second.JobID, r.center.built(second)), fault.StateConflict)
	j, err := r.api.Job(t.Context(), second.JobID)
	must(t, err)
	if j.Status != "FAILED" || j.ErrorCode != "image_not_found" || j.ErrorMessage != "no such image" {
		t.Errorf("job: %+v", j)
	}
	d, err := r.api.Template(t.Context(), second.TemplateID)
	must(t, err)
	if d.Status != "FAILED" || d.LastError != "no such image" {
		t.Errorf("template: %+v", d)
	}
}

// Reports may overtake each other: neither progress nor phase goes back.
func TestLateReportsTurnNothingBack(t *testing.T) {
	r, q := waiting(t)
	for _, rep := range []cubeapi.JobReport{
		{Status: "RUNNING", Phase: "BUILDING_EXT4", Progress: 40, SourceImageDigest: "sha256:" + sum([]byte("x"))},
		{Status: "RUNNING", Phase: "PULLING", Progress: 5},
		{},
		{Status: "RUNNING", Progress: 99},
	} {
		must(t, r.center.report.Job(t.Context(), q.JobID, rep))
		j, err := r.api.Job(t.Context(), q.JobID)
		must(t, err)
		if j.Phase != "BUILDING_EXT4" || j.Progress != 40 || j.SourceImageDigest == "" {
			t.Errorf("after %+v: %s %d %q", rep, j.Phase, j.Progress, j.SourceImageDigest)
		}
	}
	must(t, r.center.report.Job(t.Context(), q.JobID, cubeapi.JobReport{Status: "RUNNING", Phase: "STORING", Progress: 100}))
	if j, err := r.api.Job(t.Context(), q.JobID); err != nil || j.Progress != 60 {
		t.Errorf("the centre's part ends at 60, the job is at %d, %v", j.Progress, err)
	}
}

func TestLongWordsAreBounded(t *testing.T) {
	r, q := waiting(t)
	must(t, r.center.report.Job(t.Context(), q.JobID, cubeapi.JobReport{Status: "FAILED", ErrorMessage: strings.Repeat("w", 500_000)}))
	j, err := r.api.Job(t.Context(), q.JobID)
	must(t, err)
	if len(j.ErrorMessage) != 4096 || j.ErrorCode != "build_failed" {
		t.Errorf("%d words kept, code %s", len(j.ErrorMessage), j.ErrorCode)
	}
}

// The centre is away for good in the middle of a build.
func TestABuildThatNobodyReportsOnEnds(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) {
		c.TemplateCenter.RunningStaleAfter, c.TemplateCenter.ReconcileInterval = 100e6, 100e6
	})
	r.start()
	r.center.set(func(c *fakeCenter) { c.idle = true })
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	must(t, r.center.report.Job(t.Context(), j.JobID, cubeapi.JobReport{Status: "RUNNING", Phase: "PULLING", Progress: 5}))
	r.center.front.hide()
	if j = r.ended(j.JobID); j.Status != "FAILED" || j.ErrorCode != "build_stalled" {
		t.Errorf("job: %+v", j)
	}
}
