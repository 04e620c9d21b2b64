package cubeapi

import "github.com/paddock-dev/paddock/internal/fault"

// FromImageRequest asks for a template made of an image.
type FromImageRequest struct {
	RequestID         string             `json:"requestID"`
	SourceImageRef    string             `json:"source_image_ref" api:"required"`
	RegistryUsername  string             `json:"registry_username,omitempty"`
	RegistryPassword  string             `json:"registry_password,omitempty"` // never stored, never logged
	Alias             string             `json:"alias,omitempty"`
	DisplayName       string             `json:"display_name,omitempty"`  // as alias, for older tools
	InstanceType      string             `json:"instance_type,omitempty"` // default cubebox
	NetworkType       string             `json:"network_type,omitempty"`  // tap, the default, is the only one
	WritableLayerSize string             `json:"writable_layer_size"`     // 1G, 20Gi, 512Mi; a bare number counts in Gi
	ExposedPorts      []int              `json:"exposed_ports,omitempty"`
	DistributionScope []string           `json:"distribution_scope,omitempty"`
	Overrides         *ContainerOverride `json:"container_overrides,omitempty"`
	Priority          int                `json:"priority,omitempty"`     // -100 to 100; of those that wait, the higher is built first
	Envd              string             `json:"-"`                      // the agent of its sandboxes, in place of the usual one; it goes beside the JSON
	EnvdSHA256        string             `json:"envd_sha256,omitempty"`  // of that agent; the server says it
	WithCubeCA        *bool              `json:"with_cube_ca,omitempty"` // absent or true: the certificates of the egress proxy are put in
	Network           *NetworkConfig     `json:"cube_network_config,omitempty"`
	OldNetwork        *NetworkConfig     `json:"cubevs_context,omitempty"` // as cube_network_config, for older tools
	Backend           string             `json:"backend,omitempty"`        // xfs, the default, is the only one
	EnableIvshmem     *bool              `json:"enable_ivshmem,omitempty"` // true is refused
	TemplateID        string             `json:"template_id,omitempty"`    // refused: the server gives it
	Wait              bool               `json:"wait,omitempty"`           // without effect: the answer is the job
}

// ContainerOverride replaces what the image says. A command takes the place of
// the image's entrypoint and drops its arguments; args alone take the place of
// the arguments.
type ContainerOverride struct {
	Command    []string   `json:"command,omitempty"`
	Args       []string   `json:"args,omitempty"`
	WorkingDir string     `json:"working_dir,omitempty"`
	Envs       []KeyValue `json:"envs,omitempty"`
	Resources  *Quantity  `json:"resources,omitempty"`
	Probe      *Probe     `json:"probe,omitempty"` // how each sandbox shows that its program serves

	DNS          *DNSConfig        `json:"dns_config,omitempty"`
	Security     *SecurityContext  `json:"security_context,omitempty"`
	RLimit       *RLimit           `json:"r_limit,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`   // kept and shown, for people and tools
	VolumeMounts []VolumeMount     `json:"volume_mounts,omitempty"` // refused so far
}

// KeyValue is one environment variable.
type KeyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Quantity is resources as a user writes them: cpu 2000m, mem 2000Mi.
type Quantity struct {
	CPU string `json:"cpu,omitempty"`
	Mem string `json:"mem,omitempty"`
	// Limit must say the same: a sandbox gets what it asks for and no more.
	Limit *Limit `json:"limit,omitempty"`
}

// Limit is what a sandbox may take at most.
type Limit struct {
	CPU string `json:"cpu,omitempty"`
	Mem string `json:"mem,omitempty"`
}

// JobAnswer carries one job.
type JobAnswer struct {
	Envelope
	Job      *Job      `json:"job,omitempty"`
	Download *Download `json:"download,omitempty"` // only when it was asked for
}

// Download is leave to fetch an artifact's bytes for a while: by URL, with Token
// in the header X-Cube-Artifact-Token or as the parameter token.
type Download struct {
	URL       string `json:"url"`
	Token     string `json:"token"`
	ExpiresAt string `json:"expires_at"` // RFC 3339, UTC
}

// Job is a job as shown. Zero values are left out.
type Job struct {
	JobID              string           `json:"job_id"`
	TemplateID         string           `json:"template_id,omitempty"`
	RequestID          string           `json:"request_id,omitempty"`
	AttemptNo          int              `json:"attempt_no,omitempty"`
	RetryOfJobID       string           `json:"retry_of_job_id,omitempty"`
	Operation          string           `json:"operation,omitempty"`
	RedoMode           string           `json:"redo_mode,omitempty"` // ALL, NODES, FAILED_ONLY, FAILED_NODES
	RedoScope          []string         `json:"redo_scope,omitempty"`
	ResumePhase        string           `json:"resume_phase,omitempty"` // where a redo began
	ArtifactID         string           `json:"artifact_id,omitempty"`
	SpecFingerprint    string           `json:"template_spec_fingerprint,omitempty"`
	Priority           int              `json:"priority,omitempty"`
	QueuePosition      int              `json:"queue_position,omitempty"` // while PENDING; 1 is next
	QueueLength        int              `json:"queue_length,omitempty"`
	Status             string           `json:"status"`
	Phase              string           `json:"phase,omitempty"`
	Progress           int              `json:"progress"`
	ErrorMessage       string           `json:"error_message,omitempty"`
	ErrorCode          string           `json:"error_code,omitempty"`
	ExpectedNodeCount  int              `json:"expected_node_count,omitempty"`
	ReadyNodeCount     int              `json:"ready_node_count,omitempty"`
	FailedNodeCount    int              `json:"failed_node_count,omitempty"`
	TemplateStatus     string           `json:"template_status,omitempty"`
	ArtifactStatus     string           `json:"artifact_status,omitempty"`
	PullTotalBytes     int64            `json:"pull_total_bytes,omitempty"`
	PullDoneBytes      int64            `json:"pull_downloaded_bytes,omitempty"`
	PullTotalLayers    int              `json:"pull_total_layers,omitempty"`
	PullDoneLayers     int              `json:"pull_completed_layers,omitempty"`
	PullBytesPerSecond int64            `json:"pull_speed_bps,omitempty"`
	Alias              string           `json:"alias,omitempty"`
	SourceImageRef     string           `json:"source_image_ref,omitempty"`
	SourceImageDigest  string           `json:"source_image_digest,omitempty"`
	Artifact           *Artifact        `json:"artifact,omitempty"`
	PhaseStartedMS     map[string]int64 `json:"phase_started_ms,omitempty"` // phase -> unix milliseconds
	CreatedAt          string           `json:"created_at,omitempty"`       // RFC 3339, UTC
	UpdatedAt          string           `json:"updated_at,omitempty"`
}

// Artifact is an artifact as shown, without anything secret.
type Artifact struct {
	ArtifactID        string `json:"artifact_id"`
	ContentKey        string `json:"content_key,omitempty"`
	SourceImageRef    string `json:"source_image_ref,omitempty"`
	SourceImageDigest string `json:"source_image_digest,omitempty"`
	Ext4SHA256        string `json:"ext4_sha256,omitempty"`
	Ext4SizeBytes     int64  `json:"ext4_size_bytes,omitempty"`
	Status            string `json:"status"`
	LastError         string `json:"last_error,omitempty"`
}

// TemplateAnswer carries one template.
type TemplateAnswer struct {
	Envelope
	Template
}

// Template is a template as shown.
type Template struct {
	TemplateID    string        `json:"template_id,omitempty"`
	Alias         string        `json:"alias,omitempty"`
	DisplayName   string        `json:"display_name,omitempty"` // the same as alias, for older tools
	InstanceType  string        `json:"instance_type,omitempty"`
	Version       string        `json:"version,omitempty"` // always v2
	Status        string        `json:"status,omitempty"`
	LastError     string        `json:"last_error,omitempty"`
	ArtifactID    string        `json:"artifact_id,omitempty"`
	CreatedAt     string        `json:"created_at,omitempty"`
	ImageInfo     string        `json:"image_info,omitempty"` // ref@digest
	JobID         string        `json:"job_id,omitempty"`
	Backend       string        `json:"storage_backend,omitempty"` // where its bytes are: dir or s3
	PendingHosts  []PendingHost `json:"pending_hosts,omitempty"`   // of one that is DELETING
	Replicas      []Replica     `json:"replicas,omitempty"`
	CreateRequest any           `json:"create_request,omitempty"`
}

// Replica is a template on one host, as shown.
type Replica struct {
	NodeID          string `json:"node_id"`
	NodeIP          string `json:"node_ip,omitempty"`
	InstanceType    string `json:"instance_type,omitempty"`
	Status          string `json:"status"`
	Phase           string `json:"phase"`
	ArtifactID      string `json:"artifact_id,omitempty"`
	LastJobID       string `json:"last_job_id,omitempty"`
	LastErrorPhase  string `json:"last_error_phase,omitempty"` // DISTRIBUTING or SNAPSHOTTING, of one that failed
	CleanupRequired bool   `json:"cleanup_required,omitempty"`
	ErrorMessage    string `json:"error_message,omitempty"`
}

// TemplateListAnswer carries templates, newest first, and after them what is
// being made or never came to be. NextCursor is there when there may be more.
type TemplateListAnswer struct {
	Envelope
	Data       []Template `json:"data"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

// AliasRequest sets an alias; empty or absent clears it.
type AliasRequest struct {
	Alias string `json:"alias"`
}

// BuildStatusAnswer is the status of any job in the E2B form.
type BuildStatusAnswer struct {
	Envelope
	BuildID      string `json:"build_id"`
	TemplateID   string `json:"template_id"`
	AttemptNo    int    `json:"attempt_no"`
	RetryOfJobID string `json:"retry_of_job_id,omitempty"`
	Status       string `json:"status"` // building, ready, error
	Progress     int    `json:"progress"`
	Message      string `json:"message"`
}

// JobLogAnswer is what is said of a job, oldest first. Next is what to ask for as
// after; once Ended nothing follows.
type JobLogAnswer struct {
	Envelope
	JobID  string       `json:"job_id"`
	Status string       `json:"status"`
	Lines  []JobLogLine `json:"lines"`
	Next   int64        `json:"next"`
	Ended  bool         `json:"ended"`
}

// JobLogLine is one line of a job's log.
type JobLogLine struct {
	Seq    int64  `json:"seq"`
	At     string `json:"at"`     // RFC 3339, UTC
	Source string `json:"source"` // master, templatecenter
	Line   string `json:"line"`
}

// TCBuildRequest hands a persisted job to the template centre.
// Credentials travel here and nowhere else.
type TCBuildRequest struct {
	JobID      string           `json:"job_id" api:"required"`
	TemplateID string           `json:"template_id" api:"required"`
	Request    FromImageRequest `json:"request" api:"required"`
	EnvdData   []byte           `json:"envd_data,omitempty"` // what envd_sha256 of the request is of
	// Trace carries the W3C trace context, so that the build joins the trace.
	Trace map[string]string `json:"trace,omitempty"`
}

// TCAnswer is what the template centre's own paths answer. They use HTTP
// statuses and, on failure, Error.
type TCAnswer struct {
	Status     string            `json:"status,omitempty"` // accepted, deleted, ok, not_ready
	JobID      string            `json:"job_id,omitempty"`
	ArtifactID string            `json:"artifact_id,omitempty"`
	Error      *fault.Detail     `json:"error,omitempty"`
	Checks     map[string]string `json:"checks,omitempty"`
}

// TCDeleteRequest names an artifact whose bytes and row may go.
type TCDeleteRequest struct {
	ArtifactID string `json:"artifact_id" api:"required"`
}

// JobReport is what the template centre tells the master of a job: progress,
// BUILT with the artifact, or FAILED. Absent fields change nothing.
type JobReport struct {
	Status             string `json:"status,omitempty"` // RUNNING, BUILT, FAILED
	Phase              string `json:"phase,omitempty"`
	Progress           int    `json:"progress,omitempty"`
	ErrorMessage       string `json:"error_message,omitempty"`
	ErrorCode          string `json:"error_code,omitempty"`
	ArtifactID         string `json:"artifact_id,omitempty"`
	SourceImageDigest  string `json:"source_image_digest,omitempty"`
	SpecFingerprint    string `json:"template_spec_fingerprint,omitempty"`
	PullTotalBytes     int64  `json:"pull_total_bytes,omitempty"`
	PullDoneBytes      int64  `json:"pull_downloaded_bytes,omitempty"`
	PullTotalLayers    int    `json:"pull_total_layers,omitempty"`
	PullDoneLayers     int    `json:"pull_completed_layers,omitempty"`
	PullBytesPerSecond int64  `json:"pull_speed_bps,omitempty"`

	// The lease of whoever builds the job, and what it said since its last report.
	// Others that report have neither.
	Holder string     `json:"holder,omitempty"`
	Epoch  int64      `json:"epoch,omitempty"`
	Log    []LogEntry `json:"log,omitempty"`
	// LogFrom is how many lines the same builder said before the first of Log, and
	// one more; 0 when it does not count them.
	LogFrom int64 `json:"log_from,omitempty"`

	// With BUILT only.
	TemplateID     string       `json:"template_id,omitempty"`
	ContentKey     string       `json:"content_key,omitempty"`
	Ext4Path       string       `json:"ext4_path,omitempty"`
	Ext4SHA256     string       `json:"ext4_sha256,omitempty"`
	Ext4SizeBytes  int64        `json:"ext4_size_bytes,omitempty"`
	ManifestSHA256 string       `json:"manifest_sha256,omitempty"` // of the chunk manifest; empty: none was made
	StorageBackend string       `json:"storage_backend,omitempty"`
	ObjectKey      string       `json:"object_key,omitempty"`
	ImageConfig    *ImageConfig `json:"image_config,omitempty"`
	Reused         bool         `json:"reused,omitempty"`
}

// LogEntry is a line that a builder says of its job.
type LogEntry struct {
	AtMS int64  `json:"at_ms"` // unix milliseconds
	Line string `json:"line"`
}

// ImageConfig is what an image says about how it wants to run.
type ImageConfig struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"`
}
