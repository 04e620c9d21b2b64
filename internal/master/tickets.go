package master

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// ticketMargin is how much longer a ticket is good than a host has for its
	// download: a host may be behind others in a download that it shares with them,
	// and clocks differ.
	ticketMargin = 5 * time.Minute
	// handOuts is how often a host is given another ticket in one call.
	handOuts = 3
)

// tickets are what a host needs to fetch one artifact, and to let others read
// it. They are made for each hand-out and kept nowhere.
type tickets struct{ download, peers, peerKey string }

func (m *Master) ticketsFor(a template.Artifact, now time.Time) (t tickets, until time.Time, err error) {
	until = now.Add(m.cfg.Master.DistributeTimeout + ticketMargin)
	download, err := auth.NewTicketKey(m.cfg.Auth.CallbackToken, a.Token, auth.ForDownload, string(a.ID), a.SHA256)
	if err != nil {
		return t, until, err
	}
	// Hosts do not know the roles' secret: each gets the key of this artifact,
	// which opens nothing but bytes that it has, on hosts that trust it.
	peers, err := auth.NewTicketKey(m.cfg.Auth.CallbackToken, a.Token, auth.ForPeers, string(a.ID), a.SHA256)
	return tickets{download.Ticket(until), peers.Ticket(until), peers.Reveal()}, until, err
}

// handOut calls with tickets, and again with new ones when the host says that
// they are over: it goes on where it stopped.
func (m *Master) handOut(ctx context.Context, a template.Artifact, call func(tickets) error) error {
	for try := 1; ; try++ {
		var t tickets
		err := m.db.View(ctx, func(tx *store.Tx) (err error) { // for the clock of all roles
			t, _, err = m.ticketsFor(a, tx.Now)
			return err
		})
		if err == nil {
			err = call(t)
		}
		if !errors.Is(err, fault.TokenExpired) || try == handOuts || ctx.Err() != nil {
			return err
		}
	}
}

// downloadURL is where hosts and users fetch from: as the configuration says,
// never a request's Host header.
func (m *Master) downloadURL(path string, a template.Artifact) string {
	return m.cfg.Master.DownloadBaseURL + path + "?artifact_id=" + url.QueryEscape(string(a.ID))
}

// linkTo lets a user fetch an artifact's bytes, for a while.
func (m *Master) linkTo(a template.Artifact, now time.Time) (*cubeapi.Download, error) {
	if err := servable(a); err != nil {
		return nil, err
	}
	t, until, err := m.ticketsFor(a, now)
	if err != nil {
		return nil, err
	}
	return &cubeapi.Download{URL: m.downloadURL(cubeapi.PathArtifactDownload, a), Token: t.download, ExpiresAt: stamp(until)}, nil
}

// requireReportTicket admits word of the job that a path names: with a ticket of
// that job, or with the secret that the roles share.
func (m *Master) requireReportTicket(next http.Handler) http.Handler {
	a := m.cfg.Auth
	shared := auth.RequireToken(cubeapi.HeaderCallbackToken, a.CallbackToken, a.InsecureOpen)(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := r.Header.Get(cubeapi.HeaderCallbackToken)
		if !auth.IsTicket(given) || a.CallbackToken == "" || a.InsecureOpen {
			shared.ServeHTTP(w, r)
			return
		}
		if err := m.checkReportTicket(r.Context(), r.PathValue("job_id"), given); err != nil {
			serve.WriteError(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (m *Master) checkReportTicket(ctx context.Context, job, given string) error {
	key, err := auth.NewTicketKey(m.cfg.Auth.CallbackToken, "", auth.ForReport, job)
	if err != nil {
		return err
	}
	return m.db.View(ctx, func(tx *store.Tx) error { return key.Check(given, tx.Now, "report of a job") })
}
