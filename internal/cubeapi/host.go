package cubeapi

import "github.com/paddock-dev/paddock/internal/host"

// HostRegisterRequest is a cubelet's first word.
type HostRegisterRequest struct {
	RequestID    string            `json:"requestID"`
	NodeID       string            `json:"node_id" api:"required"`
	HostIP       string            `json:"host_ip" api:"required"`
	GRPCPort     int               `json:"grpc_port" api:"required"`
	InstanceType string            `json:"instance_type" api:"required"`
	ClusterLabel string            `json:"cluster_label,omitempty"`
	Zone         string            `json:"zone,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Capacity     host.Resources    `json:"capacity"`
	Allocatable  host.Resources    `json:"allocatable"`
	Version      string            `json:"version"`
}

// HostStatusRequest is a cubelet's heartbeat. A status for a host that never
// registered is refused with host_unknown; the cubelet then registers again.
type HostStatusRequest struct {
	RequestID string         `json:"requestID"`
	Ready     bool           `json:"ready"`
	Reason    string         `json:"reason,omitempty"`
	Allocated host.Resources `json:"allocated"`
	Sandboxes int            `json:"sandboxes"`
	Artifacts []string       `json:"local_templates"` // artifact ids held whole and verified
	CPUUtil   float64        `json:"cpu_util"`
}

// Host is a host as shown.
type Host struct {
	NodeID       string            `json:"node_id"`
	HostIP       string            `json:"host_ip"`
	GRPCPort     int               `json:"grpc_port"`
	InstanceType string            `json:"instance_type"`
	Labels       map[string]string `json:"labels,omitempty"`
	Health       string            `json:"health"`
	Reason       string            `json:"reason,omitempty"`
	Cordoned     bool              `json:"cordoned"`
	Allocatable  host.Resources    `json:"allocatable"`
	Allocated    host.Resources    `json:"allocated"`
	Sandboxes    int               `json:"sandboxes"`
	Artifacts    []string          `json:"local_templates,omitempty"`
	HeartbeatAt  string            `json:"heartbeat_at,omitempty"`
}

// HostListAnswer carries all hosts.
type HostListAnswer struct {
	Envelope
	Data []Host `json:"data"`
}

// HostAnswer carries one host.
type HostAnswer struct {
	Envelope
	Data *Host `json:"data,omitempty"`
}
