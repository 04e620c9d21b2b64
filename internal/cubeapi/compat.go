package cubeapi

import (
	"context"
	"net/http"
)

// How a template on a host stands to what would be made today.
const (
	CompatOK      = "OK"      // the guest inside is that of today
	CompatStale   = "STALE"   // it is another: a redo from the image would change it
	CompatUnknown = "UNKNOWN" // nobody noted which it is
	CompatMissing = "MISSING" // a host that could serve the template does not have it
)

// CompatAnswer says how far templates are behind.
type CompatAnswer struct {
	Envelope
	Data CompatReport `json:"data"`
}

// CompatReport is all templates that can be used, newest first.
type CompatReport struct {
	Summary   CompatSummary    `json:"summary"`
	Templates []CompatTemplate `json:"templates"`
}

// CompatSummary counts.
type CompatSummary struct {
	StaleTemplates  int `json:"stale_templates"`
	StaleReplicas   int `json:"stale_replicas"`
	AffectedNodes   int `json:"affected_nodes"` // with a replica that is stale
	MissingReplicas int `json:"missing_replicas"`
	UnknownReplicas int `json:"unknown_replicas"`
}

// CompatTemplate is one template. Overall is STALE if any replica is, else the
// first of UNKNOWN and MISSING that is met, else OK.
type CompatTemplate struct {
	TemplateID   string       `json:"template_id"`
	InstanceType string       `json:"instance_type"`
	Overall      string       `json:"overall"`
	Nodes        []CompatNode `json:"nodes"`
}

// CompatNode is a template on one host. Versions of the guest are the sha256 of
// its program; that of the agent is the cubelet's own.
type CompatNode struct {
	NodeID              string `json:"node_id"`
	NodeIP              string `json:"node_ip,omitempty"`
	CompatStatus        string `json:"compat_status"`
	BoundGuestVersion   string `json:"bound_guest_image_version,omitempty"`
	CurrentGuestVersion string `json:"current_guest_image_version,omitempty"`
	CurrentAgentVersion string `json:"current_agent_version,omitempty"`
}

// The actions of a CompatRequest.
const (
	CompatRescan = "rescan"
	CompatAdopt  = "adopt_baseline"
)

// CompatRequest asks for an action. A rescan names hosts, or all of them: every
// answer looks anew, so it only checks the names. adopt_baseline takes the guest
// of today for that of the template's replicas whose own nobody noted.
type CompatRequest struct {
	RequestID  string   `json:"requestID"`
	Action     string   `json:"action" api:"required"`
	TemplateID string   `json:"template_id,omitempty"`
	NodeIDs    []string `json:"node_ids,omitempty"`
	AllNodes   bool     `json:"all_nodes,omitempty"`
}

// CompatActionAnswer says what an action changed.
type CompatActionAnswer struct {
	Envelope
	Updated int `json:"updated"` // replicas
}

// Compat returns how far templates are behind.
func (c *Client) Compat(ctx context.Context) (CompatReport, error) {
	var a CompatAnswer
	err := c.call(ctx, http.MethodGet, PathTemplateCompat, nil, &a)
	return a.Data, err
}

// CompatDo asks for an action and returns how many replicas it changed.
func (c *Client) CompatDo(ctx context.Context, r CompatRequest) (int, error) {
	var a CompatActionAnswer
	err := c.call(ctx, http.MethodPost, PathTemplateCompat, r, &a)
	return a.Updated, err
}
