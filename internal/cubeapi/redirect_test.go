package cubeapi_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// An answer that leads elsewhere takes no role's secret along.
func TestSecretsFollowNoRedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s came with %v", r.URL, r.Header)
	}))
	defer elsewhere.Close()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer front.Close()
	center := cubeapi.NewCenterClient(front.URL, "shared")
	if err := center.DeleteArtifact(t.Context(), "rfs-1"); fault.Of(err) != fault.PeerUnavailable {
		t.Errorf("%v", err)
	}
	_, err := cubeapi.NewClient(front.URL, "key").Templates(t.Context())
	if fault.Of(err) != fault.PeerUnavailable {
		t.Errorf("%v", err)
	}
}
