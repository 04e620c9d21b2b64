package cubeapi

import "encoding/json"

// TemplateCreateRequest asks for a template of an artifact that is there, in
// the form of a whole create request. What it asks for and no sandbox would
// have is refused, unknown fields too.
type TemplateCreateRequest struct {
	RequestID    string              `json:"requestID"`
	Alias        string              `json:"alias,omitempty"`
	DisplayName  string              `json:"display_name,omitempty"` // as alias, for older tools
	InstanceType string              `json:"instance_type,omitempty"`
	NetworkType  string              `json:"network_type,omitempty"`
	Scope        []string            `json:"distribution_scope,omitempty"`
	Containers   []TemplateContainer `json:"containers" api:"required"` // one
	Volumes      []Volume            `json:"volumes,omitempty"`         // cube_rootfs_rw, the writable layer
	// Annotations: com.exposed_ports (80:443), cube.master.rootfs.writable_layer_size,
	// and those of tools, which are kept and shown.
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"` // of every sandbox
	Network     *NetworkConfig    `json:"cube_network_config,omitempty"`
	OldNetwork  *NetworkConfig    `json:"cubevs_context,omitempty"`

	Timeout        *int64 `json:"timeout,omitempty"`         // refused: a create's own
	SnapshotDir    string `json:"snapshot_dir,omitempty"`    // refused so far
	InsID          string `json:"ins_id,omitempty"`          // refused: distribution_scope names hosts
	InsIP          string `json:"ins_ip,omitempty"`          // refused: distribution_scope names hosts
	RuntimeHandler string `json:"runtime_handler,omitempty"` // cube
	Namespace      string `json:"namespace,omitempty"`       // default
}

// TemplateContainer is the program of a template and what it is made of.
type TemplateContainer struct {
	Name  string         `json:"name,omitempty"`
	Image ContainerImage `json:"image" api:"required"`
	ContainerOverride
}

// ContainerImage names an artifact.
type ContainerImage struct {
	Image             string            `json:"image" api:"required"` // the artifact's id
	StorageMedia      string            `json:"storage_media,omitempty"`
	WritableLayerSize string            `json:"writable_layer_size,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

// Volume is what a create request may mount.
type Volume struct {
	Name   string                     `json:"name"`
	Source map[string]json.RawMessage `json:"volume_source,omitempty"` // empty_dir
}

// EmptyDir is a volume that begins empty.
type EmptyDir struct {
	Medium    int    `json:"medium,omitempty"`
	SizeLimit string `json:"size_limit,omitempty"`
}

// The volume and the annotations of a template's writable layer, its ports and
// its artifact.
const (
	VolumeRootfs       = "cube_rootfs_rw"
	AnnotationPorts    = "com.exposed_ports"
	AnnotationWritable = "cube.master.rootfs.writable_layer_size"
	AnnotationArtifact = "cube.master.rootfs.artifact.id"
	AnnotationSHA256   = "cube.master.rootfs.artifact.sha256"
	AnnotationSize     = "cube.master.rootfs.artifact.size_bytes"
	AnnotationVersion  = "cube.master.appsnapshot.version"
	AnnotationVersion2 = "cube.master.appsnapshot.template.version"
)

// PreviewAnswer is what a create would do: the request as it came, with its
// template laid under it, and as the host would get it. Nothing is made.
type PreviewAnswer struct {
	Envelope
	APIRequest     *SandboxCreateRequest `json:"api_request,omitempty"`
	MergedRequest  *SandboxCreateRequest `json:"merged_request,omitempty"`
	CubeletRequest json.RawMessage       `json:"cubelet_request,omitempty"`
}
