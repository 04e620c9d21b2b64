package cubeapi

import "github.com/paddock-dev/paddock/internal/host"

// What came of a decision.
const (
	DecisionPlaced  = "placed"
	DecisionRefused = "refused" // no host was fit
)

// Decision is one choice of a host, with its reasons.
type Decision struct {
	SandboxID string  `json:"sandbox_id,omitempty"`
	Attempt   int     `json:"attempt,omitempty"` // 1: the first
	At        string  `json:"at"`
	Kind      string  `json:"kind"` // placed or refused
	HostID    string  `json:"host_id,omitempty"`
	Score     float64 `json:"score"` // 0 to 100
	// RunnerUp would have been taken were it not for HostID.
	RunnerUp      string  `json:"runner_up,omitempty"`
	RunnerUpScore float64 `json:"runner_up_score,omitempty"`
	Considered    int     `json:"considered"` // hosts that were looked at
	Fit           int     `json:"fit"`        // hosts that passed every filter
	// Dropped is how many hosts each plugin dropped, in the order in which they
	// run: a host counts for the first that refused it.
	Dropped []DropCount `json:"dropped"`
	Profile string      `json:"profile"`
	Relaxed []string    `json:"relaxed,omitempty"` // filters that were left out so that a host was fit
	// Blind: so many hosts fell silent at once that they were taken as last known.
	Blind   bool        `json:"blind,omitempty"`
	Nearest *NearestFit `json:"nearest,omitempty"` // of a refusal for want of room
	// Code and Reason are of a refusal.
	Code   string `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
	// After is why the attempt before failed.
	After   string    `json:"after,omitempty"`
	Request Placement `json:"request"`
	// Clipped names what was too long to be kept.
	Clipped []string `json:"clipped,omitempty"`
}

// DropCount is how many hosts one plugin dropped.
type DropCount struct {
	Plugin string `json:"plugin"`
	Hosts  int    `json:"hosts"`
}

// NearestFit is the host that lacks nothing but room, and the least of it.
type NearestFit struct {
	HostID string         `json:"host_id"`
	Short  host.Resources `json:"short"` // what would have to be free there besides
	Text   string         `json:"text"`
}

// Placement is what a decision was about.
type Placement struct {
	TemplateID   string            `json:"template_id,omitempty"`
	ArtifactID   string            `json:"artifact_id,omitempty"`
	InstanceType string            `json:"instance_type,omitempty"`
	Resources    host.Resources    `json:"resources"`
	Labels       map[string]string `json:"labels,omitempty"`
	Scope        []string          `json:"distribution_scope,omitempty"`
	Affinity     *AffinityTerms    `json:"affinity,omitempty"`
	Direct       string            `json:"direct_host,omitempty"` // the one host that was asked for
	Force        bool              `json:"force,omitempty"`
	Excluded     []string          `json:"excluded,omitempty"` // hosts of failed attempts
	Tenant       string            `json:"tenant,omitempty"`
	Seed         string            `json:"seed"` // of ties; a number of 64 bits
}

// AffinityTerms are the conditions on labels of hosts that were in force.
type AffinityTerms struct {
	Terms     [][]Requirement `json:"terms,omitempty"` // one list must hold whole
	Preferred []Preferred     `json:"preferred,omitempty"`
	Spread    []SpreadTerm    `json:"spread,omitempty"`
}

// SpreadTerm keeps a group apart by a label.
type SpreadTerm struct {
	Key     string            `json:"key"`
	MaxSkew int               `json:"max_skew"`
	Hard    bool              `json:"hard,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// DecisionsAnswer carries what was decided for one sandbox, the first attempt
// first.
type DecisionsAnswer struct {
	Envelope
	Data []Decision `json:"data"`
}

// ScheduleAnswer is what a create would decide now. Nothing was charged, stored
// or made. That no host fits is an answer like another.
type ScheduleAnswer struct {
	Envelope
	Fits     bool     `json:"fits"`
	HostIP   string   `json:"host_ip,omitempty"`
	Decision Decision `json:"decision"`
	// Parts take the scores of host and runner-up apart.
	Parts         []ScorePart `json:"parts,omitempty"`
	RunnerUpParts []ScorePart `json:"runner_up_parts,omitempty"`
	// Hosts are those that fit, best first, and Out are the others: of each at
	// most limit, or those asked for by name.
	Hosts []ScoredHost  `json:"hosts"`
	Out   []DroppedHost `json:"out"`
	// BreakersOpen are the hosts that answered so badly that they are kept away.
	BreakersOpen []string `json:"breakers_open,omitempty"`
	Cost
}

// Cost is how long it took, in microseconds.
type Cost struct {
	Select int64 `json:"select_cost"` // the decision
	All    int64 `json:"all_cost"`    // the whole call
}

// ScorePart is what one plugin gave, 0 to 100, and its share of the whole.
type ScorePart struct {
	Plugin string  `json:"plugin"`
	Score  float64 `json:"score"`
	Weight float64 `json:"weight"`
}

// ScoredHost is a host that fits.
type ScoredHost struct {
	HostID string  `json:"host_id"`
	Score  float64 `json:"score"`
}

// DroppedHost is a host that does not, and the first plugin that said so.
type DroppedHost struct {
	HostID string `json:"host_id"`
	Plugin string `json:"plugin"`
	Reason string `json:"reason"`
}

// FakeCreateAnswer is a dry run in the form of older tools. Without a host, ret
// says why, and so does the status.
type FakeCreateAnswer struct {
	Envelope
	HostID string `json:"host_id,omitempty"`
	HostIP string `json:"host_ip,omitempty"`
	Cost
}
