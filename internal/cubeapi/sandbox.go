package cubeapi

import "github.com/paddock-dev/paddock/internal/fault"

// SandboxCreateRequest asks for a sandbox.
// The template is named by id or alias, in template_id or in the annotation
// cube.master.appsnapshot.template.id.
type SandboxCreateRequest struct {
	// RequestID makes the request one that may be sent again: the same id
	// answers the same sandbox while it lives.
	RequestID    string `json:"requestID"`
	TemplateID   string `json:"template_id,omitempty"`
	Namespace    string `json:"namespace,omitempty"`     // whose turn it is waited for, unless header X-Caller says
	InstanceType string `json:"instance_type,omitempty"` // of the host; default: the template's
	Timeout      *int64 `json:"timeout,omitempty"`       // seconds that nobody may use it; -1 or absent: for ever
	OnTimeout    string `json:"on_timeout,omitempty"`    // kill, the default, or pause
	AutoResume   bool   `json:"auto_resume,omitempty"`   // traffic wakes it when it is paused
	// SnapshotID is what it begins with; then no template is named.
	SnapshotID string `json:"snapshot_id,omitempty"`
	Driver     string `json:"driver,omitempty"` // the runtime; default: the template's, or the host's own
	// Secure has its guest ask for a token, which the answer carries.
	Secure      bool              `json:"secure,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Envs        map[string]string `json:"create_time_env_vars,omitempty"`
	Containers  []Container       `json:"containers,omitempty"`         // at most one
	Scope       []string          `json:"distribution_scope,omitempty"` // hosts, or zones
	Affinity    *Affinity         `json:"affinity,omitempty"`
	// InsID and InsIP name the one host to take, by id or address, for debugging:
	// with annotation com.cube.debug: true. Its health and room are looked at,
	// unless com.paddock.force: true says otherwise.
	InsID string `json:"ins_id,omitempty"`
	InsIP string `json:"ins_ip,omitempty"`
	// Network is laid over the template's: allowInternetAccess takes its place,
	// the lists are joined.
	Network    *NetworkConfig `json:"cube_network_config,omitempty"`
	OldNetwork *NetworkConfig `json:"cubevs_context,omitempty"` // as cube_network_config, for older tools
}

// Container is what a create request changes of the template's program. A
// sandbox has one container. Command and args follow ContainerOverride.
type Container struct {
	Name      string     `json:"name,omitempty"`
	Command   []string   `json:"command,omitempty"`
	Args      []string   `json:"args,omitempty"`
	Envs      []KeyValue `json:"envs,omitempty"`
	Resources *Quantity  `json:"resources,omitempty"`

	// These take the place of the template's.
	WorkingDir string     `json:"working_dir,omitempty"`
	DNS        *DNSConfig `json:"dns_config,omitempty"`
	RLimit     *RLimit    `json:"r_limit,omitempty"`
}

// Annotations of a create.
const (
	AnnotationTemplate = "cube.master.appsnapshot.template.id" // names the template
	AnnotationDebug    = "com.cube.debug"                      // lets ins_id and ins_ip name a host
	AnnotationForce    = "com.paddock.force"                   // also one that is cordoned, full or not ready
	AnnotationNetID    = "com.netid"
)

// Affinity is where a sandbox is to be, besides what annotations and the
// cluster say. Operators are In, NotIn, Exists, DoesNotExist, Gt and Lt.
type Affinity struct {
	Required  [][]Requirement `json:"required,omitempty"` // all of one of the lists must hold
	Preferred []Preferred     `json:"preferred,omitempty"`
	Spread    []Spread        `json:"spread,omitempty"`
}

// Requirement is one condition on a label of the host.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// Preferred is what is wished for: weight is 1 to 100.
type Preferred struct {
	Weight int           `json:"weight"`
	Term   []Requirement `json:"term"`
}

// Spread keeps the sandboxes with the given labels apart by a label of their
// hosts, such as the zone: no value of it has more than max_skew more of them
// than another.
type Spread struct {
	Key     string            `json:"key"`
	MaxSkew int               `json:"max_skew"`
	Hard    bool              `json:"hard,omitempty"` // else it is wished for
	Labels  map[string]string `json:"labels"`
}

// Unplaced is what a refused create says besides, when no host was found.
type Unplaced struct {
	Placing Placing `json:"placing"`
}

// Placing is why no host was found: how many each plugin dropped, and what the
// nearest lacks.
type Placing struct {
	Considered int            `json:"considered"`
	Dropped    map[string]int `json:"dropped"`
	Nearest    string         `json:"nearest,omitempty"`
}

// SandboxAnswer carries one sandbox.
type SandboxAnswer struct {
	Envelope
	SandboxID string `json:"sandbox_id,omitempty"`
	SandboxIP string `json:"sandbox_ip,omitempty"`
	HostID    string `json:"host_id,omitempty"`
	HostIP    string `json:"host_ip,omitempty"`
	// ExtInfo has cube-e2e (ms) and the steps of the create, in milliseconds.
	ExtInfo map[string]string `json:"ext_info,omitempty"`
	Sandbox *Sandbox          `json:"sandbox,omitempty"`
}

// Sandbox is a sandbox as shown.
type Sandbox struct {
	SandboxID  string            `json:"sandbox_id"`
	Status     string            `json:"status"`
	HostID     string            `json:"host_id,omitempty"`
	TemplateID string            `json:"template_id"`
	SandboxIP  string            `json:"sandbox_ip,omitempty"`
	MilliCPU   int64             `json:"milli_cpu"`
	MemBytes   int64             `json:"mem_bytes"`
	DiskBytes  int64             `json:"disk_bytes"`
	Labels     map[string]string `json:"labels,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	CreatedAt  string            `json:"created_at"`
	EndAt      string            `json:"end_at,omitempty"` // when its timeout is over, unless it is used
	Generation int64             `json:"generation"`       // rises with each pause, resume and rollback
	Timeout    int64             `json:"timeout"`          // seconds; -1: none
	OnTimeout  string            `json:"on_timeout,omitempty"`
	AutoResume bool              `json:"auto_resume,omitempty"`
	Driver     string            `json:"driver,omitempty"`
	SnapshotID string            `json:"snapshot_id,omitempty"` // that it began with
	Memory     bool              `json:"memory,omitempty"`      // it is kept with its memory
	KeptBytes  int64             `json:"kept_bytes,omitempty"`  // on disk, of a paused one
	Network    *NetworkConfig    `json:"cube_network_config,omitempty"`
	Ports      []int32           `json:"exposed_ports,omitempty"`
	// The tokens come with the create, and when they are asked for.
	AccessToken  string `json:"envd_access_token,omitempty"`
	TrafficToken string `json:"traffic_access_token,omitempty"`
}

// SandboxListAnswer carries sandboxes, newest first. Partial names the hosts
// that did not answer: their sandboxes are shown as the rows have them.
type SandboxListAnswer struct {
	Envelope
	Data    []Sandbox `json:"data"`
	Partial []string  `json:"partial,omitempty"`
	Next    string    `json:"next,omitempty"` // cursor of the next page; empty: this is the last
}

// SandboxDeleteRequest names what to delete.
type SandboxDeleteRequest struct {
	RequestID string `json:"requestID"`
	SandboxID string `json:"sandbox_id" api:"required"`
}

// ContentExecInput is the type of a body that holds an ExecRequest on its first
// line, of at most MaxExecLine bytes, and after it the command's standard input,
// as it comes, until the body ends. The answer comes while the body is sent. A
// body that breaks off ends the input.
const (
	ContentExecInput = "application/x-paddock-exec-input"
	MaxExecLine      = 4 << 20
)

// ExecRequest runs one command. The answer is a stream of ExecEvent, one JSON
// object a line (application/x-ndjson), ending with exit or error.
type ExecRequest struct {
	RequestID string            `json:"requestID"`
	SandboxID string            `json:"sandbox_id" api:"required"`
	Command   []string          `json:"command" api:"required"`
	Envs      map[string]string `json:"envs,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	User      string            `json:"user,omitempty"`
	Stdin     []byte            `json:"stdin,omitempty"` // all of it; not with ContentExecInput
	// TimeoutMS ends the process; 0: 60 s. It does not count with detach.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Terminal has the command run on a terminal, whose output is stdout. Its
	// input is what is typed; whoever goes away hangs up.
	Terminal *TerminalSize `json:"terminal,omitempty"`
	// Detach has the answer end with the pid: the command goes on, without input.
	Detach bool `json:"detach,omitempty"`
}

// TerminalSize is in characters, each 1 to 10000.
type TerminalSize struct {
	Columns uint32 `json:"columns" api:"required"`
	Rows    uint32 `json:"rows" api:"required"`
}

// ExecResizeRequest changes the size of the terminal of a process that an
// ExecEvent named.
type ExecResizeRequest struct {
	RequestID string       `json:"requestID"`
	SandboxID string       `json:"sandbox_id" api:"required"`
	PID       uint32       `json:"pid" api:"required"`
	Terminal  TerminalSize `json:"terminal" api:"required"`
}

// ExecEvent is one line of the stream; one field is set.
type ExecEvent struct {
	PID    uint32        `json:"pid,omitempty"`
	Stdout []byte        `json:"stdout,omitempty"`
	Stderr []byte        `json:"stderr,omitempty"`
	Exit   *ExecExit     `json:"exit,omitempty"`
	Error  *fault.Detail `json:"error,omitempty"`
}

// ExecExit is how a command ended.
type ExecExit struct {
	Code         int    `json:"code"`
	Signal       string `json:"signal,omitempty"`        // the name of the signal that ended it
	SignalNumber int    `json:"signal_number,omitempty"` // 0: none did, or it is not known
}

// ExecSignalRequest sends a signal, 1 to 64, to a process that an ExecEvent
// named, and to what that started.
type ExecSignalRequest struct {
	RequestID string `json:"requestID"`
	SandboxID string `json:"sandbox_id" api:"required"`
	PID       uint32 `json:"pid" api:"required"`
	Signal    int    `json:"signal" api:"required"`
}

// Files: GET PathSandboxFiles?sandbox_id=&path=&user= answers the bytes; PUT
// with the same query stores the body and answers FileAnswer. With archive=true
// the path is a directory, and its tree goes as a tar archive.

// FileAnswer confirms a written file.
type FileAnswer struct {
	Envelope
	Path         string `json:"path"`
	WrittenBytes int64  `json:"written_bytes"`
}

// The modes of a batch.
const (
	BatchAll        = "all"
	BatchBestEffort = "best_effort"
)

// MaxBatch is how many sandboxes one batch makes.
const MaxBatch = 1000

// SandboxBatchRequest asks for several sandboxes in one step: count of the same,
// as the fields beside it say, or one for each of requests. The request id is
// that of the whole.
type SandboxBatchRequest struct {
	SandboxCreateRequest
	Count    int                    `json:"count,omitempty"`
	Requests []SandboxCreateRequest `json:"requests,omitempty"`
	Mode     string                 `json:"mode,omitempty"` // all, the default: either each comes to be or none; best_effort: as many as can
}

// SandboxBatchAnswer carries what became of each, in the order of the request.
type SandboxBatchAnswer struct {
	Envelope
	Mode    string        `json:"mode,omitempty"`
	Created int           `json:"created"`
	Failed  int           `json:"failed"`
	Data    []BatchResult `json:"data"`
}

// BatchResult is one sandbox of a batch, or why it is not there.
type BatchResult struct {
	Index     int           `json:"index"`
	SandboxID string        `json:"sandbox_id,omitempty"`
	SandboxIP string        `json:"sandbox_ip,omitempty"`
	HostID    string        `json:"host_id,omitempty"`
	HostIP    string        `json:"host_ip,omitempty"`
	Error     *fault.Detail `json:"error,omitempty"`
}
