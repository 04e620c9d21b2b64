package cubeapi

import (
	"encoding/json"

	"github.com/paddock-dev/paddock/internal/host"
)

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
	Revision     int64             `json:"revision,omitempty"` // the host's count; what it counted lower is of an earlier life
}

// UnmarshalJSON also takes the spellings of other cubelets: memory in MiB, and
// what is allocatable as quota_cpu, quota_mem_mb and max_mvm_num. Without an
// address the id is one.
func (r *HostRegisterRequest) UnmarshalJSON(b []byte) error {
	type plain HostRegisterRequest
	type amounts struct {
		MemoryMB int64 `json:"memory_mb"`
	}
	var other struct {
		Capacity    amounts `json:"capacity"`
		Allocatable amounts `json:"allocatable"`
		QuotaCPU    int64   `json:"quota_cpu"`
		QuotaMemMB  int64   `json:"quota_mem_mb"`
		MaxMvmNum   int64   `json:"max_mvm_num"`
	}
	if err := json.Unmarshal(b, (*plain)(r)); err != nil {
		return err
	}
	if err := json.Unmarshal(b, &other); err != nil {
		return err
	}
	for _, f := range []struct {
		to   *int64
		from int64
	}{
		{&r.Capacity.MemBytes, mib(other.Capacity.MemoryMB)},
		{&r.Allocatable.MemBytes, mib(other.Allocatable.MemoryMB)},
		{&r.Allocatable.MilliCPU, other.QuotaCPU},
		{&r.Allocatable.MemBytes, mib(other.QuotaMemMB)},
		{&r.Allocatable.Slots, other.MaxMvmNum},
	} {
		if *f.to == 0 {
			*f.to = f.from
		}
	}
	if r.HostIP == "" {
		r.HostIP = r.NodeID
	}
	return nil
}

// mib is so many MiB in bytes; what is out of all bounds stays so.
func mib(n int64) int64 {
	const most = 1 << 42
	return min(max(n, -1), most) << 20
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
	// Revision counts what the host admitted and let go, and its reports: a
	// report of a lower one was overtaken on its way. 0: the host does not count.
	Revision int64 `json:"revision,omitempty"`
	// Allocatable is what it lets sandboxes have by now; absent: as it registered.
	Allocatable   *host.Resources `json:"allocatable,omitempty"`
	Warm          map[string]int  `json:"warm,omitempty"`           // sandboxes that wait for a create, by template id
	QuotaRevision int64           `json:"quota_revision,omitempty"` // of the quota that it follows
	MetricAgeMS   int64           `json:"metric_age_ms,omitempty"`  // how long ago it measured: no clocks are compared
	HostUsage
}

// UnmarshalJSON also takes how other cubelets call what is allocated.
func (r *HostStatusRequest) UnmarshalJSON(b []byte) error {
	type plain HostStatusRequest
	var other struct {
		MvmNum     int   `json:"mvm_num"`
		QuotaCPU   int64 `json:"quota_cpu_usage"`
		QuotaMemMB int64 `json:"quota_mem_mb_usage"`
	}
	if err := json.Unmarshal(b, (*plain)(r)); err != nil {
		return err
	}
	if err := json.Unmarshal(b, &other); err != nil {
		return err
	}
	if r.Sandboxes == 0 {
		r.Sandboxes = other.MvmNum
	}
	if r.Allocated == (host.Resources{}) {
		r.Allocated = host.Resources{MilliCPU: other.QuotaCPU, MemBytes: mib(other.QuotaMemMB), Slots: int64(r.Sandboxes)}
	}
	return nil
}

// HostUsage is what a host measured, beside its accounts.
type HostUsage struct {
	CPUType      string  `json:"cpu_type,omitempty"`
	CPULoad      float64 `json:"cpu_load_usage"`         // runnable tasks
	MemUsedMiB   int64   `json:"mem_load_mb_usage"`      // of the whole machine
	DataDisk     float64 `json:"data_disk_usage_per"`    // 0..100
	StorageDisk  float64 `json:"storage_disk_usage_per"` // of artifacts and layers
	SysDisk      float64 `json:"sys_disk_usage_per"`
	Creating     int64   `json:"realtime_create_num"`   // creates in flight
	CreateLimit  int64   `json:"create_concurrent_num"` // how many it takes at once; 0: no limit
	MaxSandboxes int64   `json:"max_mvm_num"`           // 0: the configured limit
}

// HostQuota is what a host shall let sandboxes have. An absent field is as the
// host has it by itself.
type HostQuota = host.Quota

// HostStatusAnswer tells a host what operators want of it.
type HostStatusAnswer struct {
	Envelope
	Quota *HostQuota `json:"quota,omitempty"`
}

// HostLabelsRequest changes the labels that operators give a host.
type HostLabelsRequest struct {
	RequestID string            `json:"requestID"`
	Set       map[string]string `json:"set,omitempty"`
	Remove    []string          `json:"remove,omitempty"`
}

// HostQuotaRequest replaces the quota of a host. Fields that are absent are
// left to the host.
type HostQuotaRequest struct {
	RequestID string `json:"requestID"`
	// ExpectedRevision is that of the quota that the caller has seen; 0: none.
	ExpectedRevision    int64  `json:"expected_revision"`
	MilliCPU            *int64 `json:"milli_cpu,omitempty"`
	MemBytes            *int64 `json:"mem_bytes,omitempty"`
	DiskBytes           *int64 `json:"disk_bytes,omitempty"`
	Slots               *int64 `json:"slots,omitempty"`
	CreateConcurrentNum *int64 `json:"create_concurrent_num,omitempty"` // 0: no limit
}

// HostDrainRequest wants a host to be empty. It cordons it.
type HostDrainRequest struct {
	RequestID       string `json:"requestID"`
	DeadlineSeconds int64  `json:"deadline_seconds,omitempty"` // 0: none; with force: now
	Force           bool   `json:"force,omitempty"`            // what is left at the deadline is ended
}

// HostDrain is how far a drain is.
type HostDrain struct {
	NodeID     string   `json:"node_id"`
	State      string   `json:"state,omitempty"` // draining, ending, overdue, drained; empty: nobody asked for one
	AskedAt    string   `json:"asked_at,omitempty"`
	DeadlineAt string   `json:"deadline_at,omitempty"`
	Force      bool     `json:"force,omitempty"`
	Left       int      `json:"sandboxes_left"`
	Sandboxes  []string `json:"sandboxes,omitempty"` // some of them
}

// HostDrainAnswer carries a drain.
type HostDrainAnswer struct {
	Envelope
	Data *HostDrain `json:"data,omitempty"`
}

// HostQuotaState is a quota and how far its host follows it.
type HostQuotaState struct {
	Desired         HostQuota `json:"desired"`
	AppliedRevision int64     `json:"applied_revision"`
	Drift           bool      `json:"drift"` // the host does not follow it yet
}

// Host is a host as shown.
type Host struct {
	NodeID       string            `json:"node_id"`
	HostIP       string            `json:"host_ip"`
	GRPCPort     int               `json:"grpc_port"`
	InstanceType string            `json:"instance_type"`
	Zone         string            `json:"zone,omitempty"`
	ClusterLabel string            `json:"cluster_label,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	OwnLabels    map[string]string `json:"operator_labels,omitempty"` // those of Labels that operators set
	Version      string            `json:"version,omitempty"`
	Health       string            `json:"health"`
	Reason       string            `json:"reason,omitempty"`
	Cordoned     bool              `json:"cordoned"`
	Drain        *HostDrain        `json:"drain,omitempty"`
	Capacity     host.Resources    `json:"capacity"`
	Allocatable  host.Resources    `json:"allocatable"`
	Allocated    host.Resources    `json:"allocated"`
	Sandboxes    int               `json:"sandboxes"`
	Artifacts    []string          `json:"local_templates,omitempty"`
	CPUUtil      float64           `json:"cpu_util"`
	Usage        HostUsage         `json:"usage"`
	Revision     int64             `json:"revision,omitempty"`
	Quota        *HostQuotaState   `json:"quota,omitempty"`
	RegisteredAt string            `json:"registered_at,omitempty"`
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
