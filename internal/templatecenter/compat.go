package templatecenter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// compatPage is how many templates are read at a time.
const compatPage = 500

// noteVersion notes which guest an artifact has inside. Without the note the
// artifact is as good, and counts as unknown.
func (c *Center) noteVersion(ctx context.Context, id template.ArtifactID, guest string) {
	err := c.db.Update(ctx, func(tx *store.Tx) error { return templatedb.PutVersion(ctx, tx, id, guest) })
	if err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "guest of an artifact not noted", slog.String("artifact_id", string(id)), logs.Err(err))
	}
}

// guestOfToday is the sha256 of the guest that builds put in now.
func (c *Center) guestOfToday() (string, error) {
	f, err := os.Open(c.cfg.TemplateCenter.GuestBinary)
	if err != nil {
		return "", fault.Wrap(fault.ToolMissing, err, "templatecenter.guest_binary %s", c.cfg.TemplateCenter.GuestBinary)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fault.Wrap(fault.ToolMissing, err, "templatecenter.guest_binary %s", c.cfg.TemplateCenter.GuestBinary)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (c *Center) serveCompat(w http.ResponseWriter, r *http.Request) {
	answer := cubeapi.CompatAnswer{Envelope: cubeapi.OK(logs.RequestID(r.Context()))}
	guest, err := c.guestOfToday()
	if err == nil {
		err = c.db.View(r.Context(), func(tx *store.Tx) (err error) {
			answer.Data, err = c.compat(r.Context(), tx, guest)
			return err
		})
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

var usable = []template.State{template.Ready, template.PartiallyReady}

// compat holds every replica of the templates that can be used against the guest
// of today.
func (c *Center) compat(ctx context.Context, tx *store.Tx, guest string) (cubeapi.CompatReport, error) {
	report := cubeapi.CompatReport{Templates: []cubeapi.CompatTemplate{}}
	hosts, err := sandboxdb.ListHosts(ctx, tx)
	if err != nil {
		return report, err
	}
	healthy := func(f host.Facts) bool {
		return host.HealthOf(f, tx.Now, c.cfg.Master.HostStaleAfter) == host.Healthy
	}
	affected := map[host.ID]bool{}
	f := templatedb.Filter{States: usable, Limit: compatPage}
	for {
		list, err := templatedb.PageOfDefinitions(ctx, tx, f)
		if err != nil {
			return report, err
		}
		ids := make([]template.ArtifactID, 0, len(list))
		for _, d := range list {
			ids = append(ids, d.ArtifactID)
			f.After = templatedb.Place{At: d.CreatedAt, ID: string(d.ID)}
		}
		bound, err := templatedb.Versions(ctx, tx, ids)
		if err != nil {
			return report, err
		}
		for _, d := range list {
			replicas, err := templatedb.ListReplicas(ctx, tx, d.ID)
			if err != nil {
				return report, err
			}
			one := compared(d, replicas, hosts, healthy, bound[d.ArtifactID], guest)
			count(&report.Summary, one, affected)
			report.Templates = append(report.Templates, one)
		}
		if len(list) < compatPage {
			report.Summary.AffectedNodes = len(affected)
			return report, nil
		}
	}
}

func compared(d template.Definition, replicas []template.Replica, hosts []host.Facts, healthy func(host.Facts) bool, bound, guest string) cubeapi.CompatTemplate {
	one := cubeapi.CompatTemplate{TemplateID: string(d.ID), InstanceType: d.InstanceType, Overall: cubeapi.CompatOK, Nodes: []cubeapi.CompatNode{}}
	for _, h := range hosts {
		n := cubeapi.CompatNode{NodeID: string(h.ID), NodeIP: h.IP, CurrentGuestVersion: guest, CurrentAgentVersion: h.Version}
		ready := slices.ContainsFunc(replicas, func(p template.Replica) bool { return p.HostID == h.ID && p.State == template.ReplicaReady })
		switch {
		case !ready && h.InstanceType == d.InstanceType && healthy(h):
			n.CompatStatus = cubeapi.CompatMissing
		case !ready:
			continue // it could not serve it
		case bound == "":
			n.CompatStatus = cubeapi.CompatUnknown
		case bound == guest:
			n.CompatStatus, n.BoundGuestVersion = cubeapi.CompatOK, bound
		default:
			n.CompatStatus, n.BoundGuestVersion = cubeapi.CompatStale, bound
		}
		if n.CompatStatus == cubeapi.CompatStale || one.Overall == cubeapi.CompatOK {
			one.Overall = n.CompatStatus
		}
		one.Nodes = append(one.Nodes, n)
	}
	return one
}

func count(s *cubeapi.CompatSummary, one cubeapi.CompatTemplate, affected map[host.ID]bool) {
	if one.Overall == cubeapi.CompatStale {
		s.StaleTemplates++
	}
	for _, n := range one.Nodes {
		switch n.CompatStatus {
		case cubeapi.CompatStale:
			s.StaleReplicas++
			affected[host.ID(n.NodeID)] = true
		case cubeapi.CompatMissing:
			s.MissingReplicas++
		case cubeapi.CompatUnknown:
			s.UnknownReplicas++
		}
	}
}

func (c *Center) serveCompatDo(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.CompatRequest
	answer := cubeapi.CompatActionAnswer{Envelope: cubeapi.OK(logs.RequestID(r.Context()))}
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		answer.Updated, err = c.compatDo(r.Context(), req)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	if req.RequestID != "" {
		answer.RequestID = req.RequestID
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (c *Center) compatDo(ctx context.Context, req cubeapi.CompatRequest) (updated int, err error) {
	switch req.Action {
	case cubeapi.CompatRescan:
		if len(req.NodeIDs) == 0 && !req.AllNodes {
			return 0, fault.New(fault.InvalidInput, "a rescan names node_ids, or all_nodes")
		}
		return 0, c.db.View(ctx, func(tx *store.Tx) error {
			for _, id := range req.NodeIDs {
				if _, err := sandboxdb.GetHost(ctx, tx, host.ID(id)); err != nil {
					return err
				}
			}
			return nil
		})
	case cubeapi.CompatAdopt:
		if req.TemplateID == "" {
			return 0, fault.New(fault.InvalidInput, "template_id is missing")
		}
		guest, err := c.guestOfToday()
		if err != nil {
			return 0, err
		}
		err = c.db.Update(ctx, func(tx *store.Tx) (err error) {
			updated, err = adopt(ctx, tx, req.TemplateID, guest)
			return err
		})
		return updated, err
	}
	return 0, fault.New(fault.InvalidInput, "action %.40q: must be %s or %s", req.Action, cubeapi.CompatRescan, cubeapi.CompatAdopt)
}

// adopt takes the guest of today for the one inside a template whose own nobody
// noted, and returns how many ready replicas that is true of.
func adopt(ctx context.Context, tx *store.Tx, name, guest string) (int, error) {
	d, err := templatedb.Resolve(ctx, tx, name)
	if err != nil {
		return 0, err
	}
	known, err := templatedb.Versions(ctx, tx, []template.ArtifactID{d.ArtifactID})
	if err != nil || known[d.ArtifactID] != "" || d.ArtifactID == "" {
		return 0, err
	}
	list, err := templatedb.ListReplicas(ctx, tx, d.ID)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, p := range list {
		if p.State == template.ReplicaReady {
			n++
		}
	}
	if n == 0 {
		return 0, nil
	}
	return n, templatedb.PutVersion(ctx, tx, d.ArtifactID, guest)
}
