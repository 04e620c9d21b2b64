package templatecenter_test

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/openapi/openapitest"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/templatecenter"
)

// contract is the face of the template centre: every call, and who may make it.
// A change here is a change of the contract.
var contract = map[string]string{
	"GET /cube/template/artifact/download": "artifactToken",
	"GET /cube/template/artifact/manifest": "artifactToken",
	"GET /cube/template/compat":            "roleToken",
	"POST /cube/template/compat":           "roleToken",
	"GET /health":                          "",
	"GET /metrics":                         "",
	"GET /openapi.yaml":                    "",
	"GET /tc/api/v1/artifact/stat":         "roleToken",
	"POST /tc/api/v1/artifact/migrate":     "roleToken",
	"POST /tc/api/v1/artifact/upload":      "roleToken",
	"GET /tc/api/v1/artifact/receipt":      "roleToken",
	"POST /tc/api/v1/artifact/delete":      "roleToken",
	"POST /tc/api/v1/build":                "roleToken",
}

// idle returns a centre that does nothing but answer.
func idle(t *testing.T, c config.Config) *templatecenter.Center {
	t.Helper()
	center, err := templatecenter.New(templatecenter.Deps{Config: c, Store: open(t, sqlite(t)), Log: slog.New(slog.DiscardHandler), Metrics: telemetry.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return center
}

func TestTheRoutesAreTheContract(t *testing.T) {
	have := idle(t, config.Default()).Routes()
	if !maps.Equal(have, contract) {
		t.Errorf("served %v, the contract has %v", have, contract)
	}
	for call := range have {
		if method, path, _ := strings.Cut(call, " "); method != http.MethodGet && strings.HasPrefix(path, "/cube/template") && path != cubeapi.PathTemplateCompat {
			t.Errorf("%s: what writes templates is the master's", call)
		}
	}
}

func TestTheDocumentIsThatOfTheRoutes(t *testing.T) {
	c := idle(t, config.Default())
	text, err := c.Document()
	if err != nil {
		t.Fatal(err)
	}
	openapitest.File(t, "../../api/templatecenter.openapi.yaml", text)
	w := httptest.NewRecorder()
	c.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, cubeapi.PathOpenAPI, nil))
	if w.Code != http.StatusOK || w.Body.String() != string(text) {
		t.Errorf("served %d, %d bytes", w.Code, w.Body.Len())
	}
	calls, known := slices.Sorted(maps.Keys(c.Routes())), openapitest.Read(t, text).Operations()
	slices.Sort(known)
	if !slices.Equal(calls, known) {
		t.Errorf("served %v, documented %v", calls, known)
	}
}

// Every call of another role refuses whoever has no token, and refuses everybody
// when there is none to compare with. The download asks for the artifact's own.
func TestEveryCallFailsClosed(t *testing.T) {
	with := config.Default()
	with.Auth.CallbackToken = token
	for name, c := range map[string]struct {
		config config.Config
		header http.Header
		status int
		code   *fault.Code
	}{
		"no token":    {with, http.Header{}, http.StatusUnauthorized, fault.TokenRejected},
		"wrong token": {with, http.Header{cubeapi.HeaderCallbackToken: {"guess"}}, http.StatusUnauthorized, fault.TokenRejected},
		"an API key":  {with, http.Header{cubeapi.HeaderAPIKey: {token}, "Authorization": {"Bearer " + token}}, http.StatusUnauthorized, fault.TokenRejected},
		"none is set": {config.Default(), http.Header{cubeapi.HeaderCallbackToken: {""}}, http.StatusServiceUnavailable, fault.TokenUnset},
	} {
		center := idle(t, c.config)
		for call, security := range center.Routes() {
			if security == "" {
				continue
			}
			method, path, _ := strings.Cut(call, " ")
			status, code := c.status, c.code
			if security == "artifactToken" {
				path, status, code = path+"?artifact_id=rfs-1", http.StatusUnauthorized, fault.TokenRejected
			}
			q := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(`{}`))
			q.Header = c.header
			w := httptest.NewRecorder()
			center.Handler().ServeHTTP(w, q)
			if body, _ := io.ReadAll(w.Body); w.Code != status || !strings.Contains(string(body), code.Name) {
				t.Errorf("%s, %s: %d %s", name, call, w.Code, body)
			}
		}
	}
}

// watched is a centre whose answers are held against its document, in every
// test.
func watched(t *testing.T, c *templatecenter.Center) http.Handler {
	t.Helper()
	faceOnce.Do(func() {
		text, err := c.Document()
		if err != nil {
			t.Fatal(err)
		}
		documented = openapitest.Read(t, text)
	})
	return documented.Watch(t, c.Handler())
}

var (
	faceOnce   sync.Once
	documented *openapitest.Face
)
