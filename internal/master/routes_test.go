package master_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/openapi/openapitest"
)

// contract is the face of the master: every call, who may make it, and which are
// handed on to the template centre. A change here is a change of the contract.
var contract = []string{
	"DELETE /cube/sandbox apiKey",
	"DELETE /cube/template apiKey",
	"DELETE /internal/meta/nodes/{node_id} apiKey",
	"DELETE /internal/meta/nodes/{node_id}/isolation apiKey",
	"GET /cube/audit apiKey",
	"GET /cube/rootfs-artifact apiKey",
	"GET /cube/sandbox/decisions apiKey",
	"GET /cube/sandbox/files apiKey",
	"GET /cube/sandbox/info apiKey",
	"GET /cube/sandbox/list apiKey",
	"GET /cube/schedule/fleet apiKey",
	"GET /cube/schedule/trace apiKey",
	"GET /cube/template apiKey",
	"GET /cube/template/artifact/download artifactToken proxied",
	"GET /cube/template/artifact/manifest artifactToken proxied",
	"GET /cube/template/build/{build_id}/status apiKey",
	"GET /cube/template/compat apiKey proxied",
	"GET /cube/template/from-image apiKey",
	"GET /cube/template/jobs/{job_id}/logs apiKey",
	"GET /cube/template/migrate apiKey",
	"GET /cube/template/{template_id}/receipt apiKey",
	"GET /internal/meta/nodes apiKey",
	"GET /internal/meta/nodes/{node_id} apiKey",
	"GET /internal/meta/nodes/{node_id}/drain apiKey",
	"GET /internal/scheduler/config apiKey",
	"GET /metrics open",
	"GET /notify/health open",
	"GET /openapi.yaml open",
	"POST /cube/sandbox apiKey",
	"POST /cube/sandbox/exec apiKey",
	"POST /cube/sandbox/exec/resize apiKey",
	"POST /cube/sandbox/exec/signal apiKey",
	"POST /cube/sandbox/batch apiKey",
	"POST /cube/sandbox/preview apiKey",
	"POST /cube/schedule apiKey",
	"POST /cube/template apiKey",
	"POST /cube/template/from-image apiKey",
	"POST /cube/template/compat apiKey proxied",
	"POST /cube/template/gc apiKey",
	"POST /cube/template/jobs/{job_id}/cancel apiKey",
	"POST /cube/template/migrate apiKey",
	"POST /cube/template/redo apiKey",
	"POST /internal/fake_create apiKey",
	"POST /internal/meta/nodes/register hostToken",
	"POST /internal/meta/nodes/{node_id}/status hostToken",
	"POST /internal/template/jobs/{job_id}/status jobToken",
	"DELETE /cube/snapshot apiKey",
	"GET /cube/sandbox/logs apiKey",
	"GET /cube/sandbox/metrics apiKey",
	"GET /cube/snapshot apiKey",
	"GET /cube/snapshots apiKey",
	"POST /cube/sandbox/activity hostToken",
	"POST /cube/sandbox/clone apiKey",
	"POST /cube/sandbox/pause apiKey",
	"POST /cube/sandbox/refresh apiKey",
	"POST /cube/sandbox/resume apiKey",
	"POST /cube/sandbox/rollback apiKey",
	"POST /cube/sandbox/snapshot apiKey",
	"GET /cube/snapshot/root roleToken",
	"POST /cube/sandbox/commit apiKey",
	"POST /cube/sandbox/timeout apiKey",
	"POST /cube/sandbox/update apiKey",
	"GET /cube/route hostToken",
	"GET /cube/route/events hostToken",
	"POST /cube/route/wake hostToken",
	"PUT /cube/sandbox/files apiKey",
	"PUT /cube/template/{template_id}/alias apiKey",
	"PUT /internal/meta/nodes/{node_id}/drain apiKey",
	"PUT /internal/meta/nodes/{node_id}/isolation apiKey",
	"PUT /internal/meta/nodes/{node_id}/labels apiKey",
	"PUT /internal/meta/nodes/{node_id}/quota apiKey",
}

func TestTheRoutesAreTheContract(t *testing.T) {
	r := newRig(t, sqlite(t))
	var have []string
	for _, one := range r.start().Routes() {
		line := one.Call + " " + one.Security
		if one.Security == "" {
			line += "open"
		}
		if one.Proxied {
			line += " proxied"
			if method, _, _ := strings.Cut(line, " "); method != http.MethodGet && !strings.Contains(line, cubeapi.PathTemplateCompat) {
				t.Errorf("%s: what writes templates is the master's own", line)
			}
		}
		have = append(have, line)
	}
	slices.Sort(have)
	for _, line := range have {
		if !slices.Contains(contract, line) {
			t.Errorf("not in the contract: %s", line)
		}
	}
	for _, line := range contract {
		if !slices.Contains(have, line) {
			t.Errorf("not served: %s", line)
		}
	}
}

func TestTheDocumentIsThatOfTheRoutes(t *testing.T) {
	r := newRig(t, sqlite(t))
	m := r.start()
	text, err := m.Document()
	must(t, err)
	openapitest.File(t, "../../api/master.openapi.yaml", text)
	served, err := http.Get(r.front.URL + cubeapi.PathOpenAPI)
	must(t, err)
	defer served.Body.Close()
	if body, err := io.ReadAll(served.Body); err != nil || string(body) != string(text) {
		t.Errorf("served: %d bytes, %v", len(body), err)
	}
	var calls []string
	for _, one := range m.Routes() {
		calls = append(calls, one.Call)
	}
	known := openapitest.Read(t, text).Operations()
	slices.Sort(calls)
	slices.Sort(known)
	if !slices.Equal(calls, known) {
		t.Errorf("served %v, documented %v", calls, known)
	}
}

// watched is a master whose answers are held against its document, in every
// test.
func watched(t *testing.T, m *running) http.Handler {
	t.Helper()
	faceOnce.Do(func() {
		text, err := m.Document()
		must(t, err)
		documented = openapitest.Read(t, text)
	})
	return documented.Watch(t, m.Handler())
}

var (
	faceOnce   sync.Once
	documented *openapitest.Face
)

// call makes one call of a route with values in place of its parameters.
func call(t *testing.T, r *rig, route string, header http.Header) (int, string) {
	t.Helper()
	method, path, _ := strings.Cut(route, " ")
	path = strings.NewReplacer("{template_id}", "tpl-1", "{build_id}", "job-1", "{job_id}", "job-1", "{node_id}", "host-x").Replace(path)
	q, err := http.NewRequestWithContext(t.Context(), method, r.front.URL+path, strings.NewReader(`{}`))
	must(t, err)
	q.Header = header
	a, err := http.DefaultClient.Do(q)
	must(t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	must(t, err)
	return a.StatusCode, string(body)
}

// Every call that is not open refuses whoever has no secret, or another's, and
// refuses everybody when there is no secret to compare with.
func TestEveryCallFailsClosed(t *testing.T) {
	r := newRig(t, sqlite(t))
	unset := newRig(t, sqlite(t), func(c *config.Config) { c.Auth = config.Auth{} })
	unset.start()
	for _, one := range r.start().Routes() {
		if one.Security == "" || one.Security == "artifactToken" { // the template centre checks the artifact's token
			continue
		}
		others := http.Header{}
		if one.Security != "apiKey" {
			others.Set(cubeapi.HeaderAPIKey, apiKey)
		}
		if one.Security != "roleToken" && one.Security != "jobToken" { // a job's token is given by who knows the role's
			others.Set(cubeapi.HeaderCallbackToken, callbackToken)
		}
		if one.Security != "hostToken" {
			others.Set(cubeapi.HeaderHostToken, hostToken)
		}
		for name, header := range map[string]http.Header{"no secret": {}, "the secrets of other calls": others} {
			if status, body := call(t, r, one.Call, header); status != http.StatusUnauthorized || !strings.Contains(body, `"ret_code":130401`) {
				t.Errorf("%s with %s: %d %s", one.Call, name, status, body)
			}
		}
		if status, body := call(t, unset, one.Call, http.Header{cubeapi.HeaderCallbackToken: {""}}); status != http.StatusServiceUnavailable || !strings.Contains(body, fault.TokenUnset.Name) {
			t.Errorf("%s with nothing set: %d %s", one.Call, status, body)
		}
	}
}

// A parameter that the document says must be there is asked for.
func TestWhatIsRequiredIsAskedFor(t *testing.T) {
	r := newRig(t, sqlite(t))
	for _, one := range r.start().Routes() {
		if one.Security != "apiKey" || len(one.Required) == 0 {
			continue
		}
		if status, body := call(t, r, one.Call, http.Header{cubeapi.HeaderAPIKey: {apiKey}}); status != http.StatusBadRequest || !strings.Contains(body, `"ret_code":130400`) {
			t.Errorf("%s without %v: %d %s", one.Call, one.Required, status, body)
		}
	}
}
