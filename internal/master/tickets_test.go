package master_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/template"
)

func (r *rig) keyOf(a template.Artifact, use string) auth.TicketKey {
	r.t.Helper()
	k, err := auth.NewTicketKey(callbackToken, a.Token, use, string(a.ID), a.SHA256)
	must(r.t, err)
	return k
}

// Every hand-out carries tickets of its own, which are over soon after the time
// that a host has; the row's token is on no wire.
func TestEveryHandOutCarriesShortLivedTokens(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	q := hosts[0].asked(t)
	a := r.artifact(q.GetArtifactId())
	if text := q.String(); a.Token == "" || strings.Contains(text, a.Token) || strings.Contains(text, callbackToken) {
		t.Error("a secret that does not end was handed out")
	}
	if q.GetPeerKey() != r.keyOf(a, auth.ForPeers).Reveal() || q.GetPeerKey() == r.keyOf(a, auth.ForDownload).Reveal() {
		t.Error("the key for peers is another")
	}
	life := r.cfg.Master.DistributeTimeout
	for use, ticket := range map[string]string{auth.ForDownload: q.GetToken(), auth.ForPeers: q.GetPeerToken()} {
		key := r.keyOf(a, use)
		must(t, key.Check(ticket, time.Now().Add(life), use)) // a moment has passed, of the margin
		if err := key.Check(ticket, time.Now().Add(life+time.Hour), use); !errors.Is(err, fault.TokenExpired) {
			t.Errorf("%s, an hour later: %v", use, err)
		}
	}
}

// A host whose token is over gets another, in the same round; one that always
// says so is not asked for ever.
func TestAHostWhoseTokenIsOverGetsAnother(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	hosts := []*fakeHost{r.host(0, plenty), r.host(1, plenty)}
	for i, times := range []int{2, 1 << 20} {
		h := hosts[i]
		h.set(func(h *fakeHost) {
			left := times
			h.ensure = func(context.Context) error {
				h.mu.Lock()
				defer h.mu.Unlock()
				if left--; left >= 0 {
					return fault.New(fault.TokenExpired, "download")
				}
				return nil
			}
		})
	}
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	j = r.ended(j.JobID)
	if j.Status != cubeapi.StatusReady || j.ReadyNodeCount != 1 || j.FailedNodeCount != 1 {
		t.Fatalf("%+v", j)
	}
	if n := hosts[0].called("ensure"); n != 3 {
		t.Errorf("the first host was asked %d times", n)
	}
	hosts[1].mu.Lock()
	defer hosts[1].mu.Unlock()
	if n := len(hosts[1].ensured); n < 3 { // more when a repair has begun
		t.Errorf("the second host was asked %d times", n)
	}
}

// A user gets a token when one is asked for, and only then.
func TestAUserGetsALink(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	id := hosts[0].asked(t).GetArtifactId()
	a := r.artifact(id)
	d, err := r.api.ArtifactDownload(t.Context(), id)
	must(t, err)
	must(t, r.keyOf(a, auth.ForDownload).Check(d.Token, time.Now(), "it"))
	until, err := time.Parse(time.RFC3339, d.ExpiresAt)
	if err != nil || !until.After(time.Now()) || until.After(time.Now().Add(r.cfg.Master.DistributeTimeout+time.Hour)) {
		t.Errorf("until %s, %v", d.ExpiresAt, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL, nil)
	must(t, err)
	req.Header.Set(cubeapi.HeaderArtifactToken, d.Token)
	answer, err := http.DefaultClient.Do(req)
	must(t, err)
	must(t, answer.Body.Close())
	if answer.StatusCode != http.StatusOK || answer.Header.Get(cubeapi.HeaderArtifactID) != id {
		t.Errorf("%s: %s", d.URL, answer.Status)
	}
	req, err = http.NewRequestWithContext(t.Context(), http.MethodGet, r.front.URL+cubeapi.PathRootfsArtifact+"?artifact_id="+id, nil)
	must(t, err)
	req.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	answer, err = http.DefaultClient.Do(req)
	must(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || strings.Contains(string(body), "token") {
		t.Errorf("%s, %v: %s", answer.Status, err, body)
	}
}

// Word of a job is signed for that job and for minutes; the roles' own secret
// still stands, as in the public system.
func TestReportsCarryShortLivedTokens(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	j, _ := r.submitIdle()
	key := func(secret, job string) auth.TicketKey {
		k, err := auth.NewTicketKey(config.Secret(secret), "", auth.ForReport, job)
		must(t, err)
		return k
	}
	soon, before := time.Now().Add(time.Minute), time.Now().Add(-time.Minute)
	for name, c := range map[string]struct {
		token  string
		status int
	}{
		"of the job":     {key(callbackToken, j.JobID).Ticket(soon), http.StatusOK},
		"the secret":     {callbackToken, http.StatusOK},
		"over":           {key(callbackToken, j.JobID).Ticket(before), http.StatusUnauthorized},
		"of another job": {key(callbackToken, "job-other").Ticket(soon), http.StatusUnauthorized},
		"another secret": {key("guess", j.JobID).Ticket(soon), http.StatusUnauthorized},
		"none":           {"", http.StatusUnauthorized},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.URL+strings.Replace(cubeapi.PathJobStatus, "{job_id}", j.JobID, 1), strings.NewReader(`{"status":"RUNNING"}`))
		must(t, err)
		req.Header.Set(cubeapi.HeaderCallbackToken, c.token)
		answer, err := http.DefaultClient.Do(req)
		must(t, err)
		must(t, answer.Body.Close())
		if answer.StatusCode != c.status {
			t.Errorf("%s: %s", name, answer.Status)
		}
	}
}
