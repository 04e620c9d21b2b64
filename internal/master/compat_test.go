package master_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// The template centre answers how far templates are behind; the master looks at
// the caller's key, keeps it, and speaks for itself.
func TestCompatIsHandedOn(t *testing.T) {
	var seen []http.Header
	centre := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header)
		if r.Method == http.MethodPost {
			serve.WriteJSON(w, http.StatusOK, cubeapi.CompatActionAnswer{Envelope: cubeapi.OK("x"), Updated: 3})
			return
		}
		serve.WriteJSON(w, http.StatusOK, cubeapi.CompatAnswer{Envelope: cubeapi.OK("x"), Data: cubeapi.CompatReport{Templates: []cubeapi.CompatTemplate{}}})
	}))
	t.Cleanup(centre.Close)
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Master.TemplateCenterAddr = centre.URL })
	r.start()
	_, err := r.api.Compat(t.Context())
	must(t, err)
	if n, err := r.api.CompatDo(t.Context(), cubeapi.CompatRequest{Action: cubeapi.CompatAdopt, TemplateID: "tpl-1"}); err != nil || n != 3 {
		t.Errorf("adopt: %d %v", n, err)
	}
	_, err = cubeapi.NewClient(r.front.URL, "guess").Compat(t.Context())
	refused(t, err, fault.Unauthenticated)
	if len(seen) != 2 {
		t.Fatalf("%d calls came through", len(seen))
	}
	for _, h := range seen {
		if h.Get(cubeapi.HeaderCallbackToken) != callbackToken || h.Get(cubeapi.HeaderAPIKey) != "" || h.Get("Authorization") != "" {
			t.Errorf("the centre saw %v", h)
		}
	}
	centre.Close()
	_, err = r.api.Compat(t.Context())
	refused(t, err, fault.PeerUnavailable)
}
