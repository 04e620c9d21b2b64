package cubeapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// TemplateDeleteRequest names what to delete, by id or alias.
type TemplateDeleteRequest struct {
	RequestID    string `json:"RequestID"`
	TemplateID   string `json:"template_id" api:"required"`
	InstanceType string `json:"instance_type,omitempty"` // accepted for older tools; the id says all
	// Force ends a job that works on the template. It never takes a template
	// from sandboxes that use it.
	Force  bool `json:"force,omitempty"`
	DryRun bool `json:"dry_run,omitempty"` // only says what would be done
	Sync   bool `json:"sync,omitempty"`    // waits longer for the hosts
}

// The outcomes of a delete.
const (
	DeleteDone    = "deleted"
	DeletePending = "deleting" // out of use; hosts are still to be cleaned
	DeletePlanned = "planned"  // of a dry run
)

// TemplateDeleteAnswer says what became of a delete, or would. A refusal has
// the same body, with the users or the jobs that are in the way.
type TemplateDeleteAnswer struct {
	Envelope
	TemplateID string `json:"template_id,omitempty"`
	Outcome    string `json:"outcome,omitempty"` // deleted, deleting, planned
	ArtifactID string `json:"artifact_id,omitempty"`
	// FreedBytes is the size of the artifact, when nothing else needs it.
	FreedBytes   int64         `json:"freed_bytes,omitempty"`
	PendingHosts []PendingHost `json:"pending_hosts,omitempty"`
	Hosts        []string      `json:"hosts,omitempty"`      // of a plan: hold the artifact
	Users        []string      `json:"users,omitempty"`      // sandboxes
	Jobs         []string      `json:"jobs,omitempty"`       // that work on it
	BlockedBy    string        `json:"blocked_by,omitempty"` // of a plan: the code that a delete would be refused with
}

// PendingHost is a host that an artifact could not be taken from yet. It is
// asked again until it is clean, or removed by an operator.
type PendingHost struct {
	NodeID string `json:"node_id"`
	Reason string `json:"reason,omitempty"`
}

// GCRequest asks for what nobody needs any more to go.
type GCRequest struct {
	RequestID string `json:"requestID"`
	DryRun    bool   `json:"dry_run,omitempty"`
}

// GCAnswer says what goes, or would.
type GCAnswer struct {
	Envelope
	DryRun     bool         `json:"dry_run"`
	Artifacts  []GCArtifact `json:"artifacts"` // the oldest first
	TotalBytes int64        `json:"total_bytes"`
	OrphanRows int          `json:"orphan_rows"` // of hosts and templates that are gone
	More       bool         `json:"more,omitempty"`
}

// GCArtifact is an artifact that nothing refers to.
type GCArtifact struct {
	ArtifactID  string   `json:"artifact_id"`
	Status      string   `json:"status"`
	SizeBytes   int64    `json:"size_bytes"`
	UnusedSince string   `json:"unused_since"`
	Hosts       []string `json:"hosts,omitempty"`
}

// AuditAnswer carries what users changed, newest first.
type AuditAnswer struct {
	Envelope
	Data       []AuditEntry `json:"data"`
	NextCursor string       `json:"next_cursor,omitempty"`
}

// AuditEntry is one change that a user asked for.
type AuditEntry struct {
	ID        string            `json:"id"`
	At        string            `json:"at"`
	Actor     string            `json:"actor"`  // the fingerprint of a key, and an address
	Action    string            `json:"action"` // template.delete, alias.move, host.remove
	Subject   string            `json:"subject"`
	RequestID string            `json:"request_id,omitempty"`
	Detail    map[string]string `json:"detail,omitempty"`
}

// TemplateQuery narrows a list of templates; zero fields do not.
type TemplateQuery struct {
	Status       string // READY, DELETING...
	InstanceType string
	AliasPrefix  string
	Image        string // part of the image's name or digest
	Limit        int
	Cursor       string
}

func (q TemplateQuery) values() url.Values {
	v := url.Values{}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("status", q.Status)
	set("instance_type", q.InstanceType)
	set("alias", q.AliasPrefix)
	set("image", q.Image)
	set("cursor", q.Cursor)
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

func query(path string, v url.Values) string {
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}

// TemplatesPage returns one page of templates, and where the next begins: ""
// when there is none.
func (c *Client) TemplatesPage(ctx context.Context, q TemplateQuery) ([]Template, string, error) {
	var a TemplateListAnswer
	err := c.call(ctx, http.MethodGet, query(PathTemplate, q.values()), nil, &a)
	return a.Data, a.NextCursor, err
}

// TemplatesBy returns all templates that q asks for, page by page.
func (c *Client) TemplatesBy(ctx context.Context, q TemplateQuery) ([]Template, error) {
	var all []Template
	for {
		page, next, err := c.TemplatesPage(ctx, q)
		all = append(all, page...)
		if err != nil || next == "" {
			return all, err
		}
		q.Cursor = next
	}
}

// TemplateWithRequest returns one template with the request it was made with.
func (c *Client) TemplateWithRequest(ctx context.Context, name string) (Template, error) {
	var a TemplateAnswer
	err := c.call(ctx, http.MethodGet, query(PathTemplate, url.Values{"template_id": {name}, "include_request": {"true"}}), nil, &a)
	return a.Template, err
}

// Delete deletes a template, and says what is left to be done.
func (c *Client) Delete(ctx context.Context, r TemplateDeleteRequest) (TemplateDeleteAnswer, error) {
	var a TemplateDeleteAnswer
	err := c.call(ctx, http.MethodDelete, PathTemplate, r, &a)
	return a, err
}

// GC lets artifacts go that nobody needs, or says which these are.
func (c *Client) GC(ctx context.Context, r GCRequest) (GCAnswer, error) {
	var a GCAnswer
	err := c.call(ctx, http.MethodPost, PathTemplateGC, r, &a)
	return a, err
}

// Audit returns who changed what, newest first, at most limit (0: 100), and
// where the next page begins.
func (c *Client) Audit(ctx context.Context, subject string, limit int, cursor string) ([]AuditEntry, string, error) {
	v := url.Values{}
	if subject != "" {
		v.Set("subject", subject)
	}
	if limit > 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	if cursor != "" {
		v.Set("cursor", cursor)
	}
	var a AuditAnswer
	err := c.call(ctx, http.MethodGet, query(PathAudit, v), nil, &a)
	return a.Data, a.NextCursor, err
}
