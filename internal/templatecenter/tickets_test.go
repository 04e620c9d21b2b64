package templatecenter_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/template"
)

// ticket returns what a master hands out for an artifact, as its row is now.
func (r *rig) ticket(id string) string {
	r.t.Helper()
	return r.ticketOf(r.artifact(id), time.Hour)
}

func (r *rig) ticketOf(a template.Artifact, life time.Duration) string {
	r.t.Helper()
	key, err := auth.NewTicketKey(token, a.Token, auth.ForDownload, string(a.ID), a.SHA256)
	if err != nil {
		r.t.Fatal(err)
	}
	return key.Ticket(time.Now().Add(life))
}

// Only a ticket for these very bytes opens, and only while it is good. The row's
// own token, which no wire carries, opens nothing.
func TestDownloadsTakeShortLivedTokens(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	out := r.built(r.image("app", "1"))
	a := r.artifact(out.ArtifactID)
	changed, anew := a, a
	changed.SHA256 = sum([]byte("of before"))
	anew.Token = "another"
	for name, c := range map[string]struct {
		ticket string
		status int
		code   *fault.Code
	}{
		"good":               {r.ticketOf(a, time.Minute), http.StatusOK, nil},
		"over":               {r.ticketOf(a, -time.Second), http.StatusUnauthorized, fault.TokenExpired},
		"of other bytes":     {r.ticketOf(changed, time.Minute), http.StatusUnauthorized, fault.TokenRejected},
		"of another row":     {r.ticketOf(anew, time.Minute), http.StatusUnauthorized, fault.TokenRejected},
		"the row's own":      {a.Token, http.StatusUnauthorized, fault.TokenRejected},
		"the roles' secret":  {token, http.StatusUnauthorized, fault.TokenRejected},
		"the key of another": {"pt1.AAAA", http.StatusUnauthorized, fault.TokenRejected},
	} {
		for _, way := range []string{"header", "query"} {
			link, header := r.url+cubeapi.PathArtifactDownload+"?artifact_id="+out.ArtifactID, map[string]string{cubeapi.HeaderArtifactToken: c.ticket}
			if way == "query" {
				link, header = link+"&token="+c.ticket, nil
			}
			status, body, _ := r.ask(http.MethodGet, link, header)
			if status != c.status || c.code == nil && sum(body) != out.Ext4SHA256 {
				t.Errorf("%s in the %s: status %d, %d bytes", name, way, status, len(body))
			}
			if c.code != nil && !strings.Contains(string(body), `"code":"`+c.code.Name+`"`) {
				t.Errorf("%s in the %s: %s", name, way, body)
			}
		}
	}
}
