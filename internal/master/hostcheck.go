package master

import (
	"net"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

const (
	// maxAmount is over what any machine has, and far from where sums overflow.
	maxAmount    = 1 << 56
	maxHostWord  = 128
	maxHostHolds = 10_000 // artifacts
)

// checkHost refuses a registration that the scheduler could not work with.
func checkHost(r cubeapi.HostRegisterRequest) error {
	switch {
	case r.NodeID == "" || len(r.NodeID) > maxHostWord:
		return fault.New(fault.InvalidInput, "node_id must have 1 to %d characters", maxHostWord)
	case net.ParseIP(r.HostIP) == nil:
		return fault.New(fault.InvalidInput, "host_ip %.80q is no IP address", r.HostIP)
	case r.GRPCPort < 1 || r.GRPCPort > 65535:
		return fault.New(fault.InvalidInput, "grpc_port %d", r.GRPCPort)
	case r.InstanceType == "" || len(r.InstanceType) > maxKind:
		return fault.New(fault.InvalidInput, "instance_type must have 1 to %d characters", maxKind)
	case len(r.Version) > maxHostWord:
		return fault.New(fault.InvalidInput, "version must have at most %d characters", maxHostWord)
	case r.Revision < 0:
		return fault.New(fault.InvalidInput, "revision %d: it counts from 0", r.Revision)
	}
	return firstOf(host.CheckLabels(r.Labels), host.CheckLabelValue("zone", r.Zone), host.CheckLabelValue("cluster_label", r.ClusterLabel),
		checkAmounts("capacity", r.Capacity), checkAmounts("allocatable", r.Allocatable))
}

// checkStatus refuses a report that no machine can mean.
func checkStatus(r cubeapi.HostStatusRequest) error {
	for _, f := range []struct {
		name  string
		value float64
	}{{"cpu_util", r.CPUUtil}, {"data_disk_usage_per", r.DataDisk}, {"storage_disk_usage_per", r.StorageDisk}, {"sys_disk_usage_per", r.SysDisk}} {
		if !(f.value >= 0 && f.value <= 100) {
			return fault.New(fault.InvalidInput, "%s %v is not 0 to 100", f.name, f.value)
		}
	}
	for _, f := range []struct {
		name  string
		value int64
		most  int64
	}{
		{"sandboxes", int64(r.Sandboxes), maxAmount},
		{"revision", r.Revision, 1 << 62},
		{"quota_revision", r.QuotaRevision, 1 << 62},
		{"metric_age_ms", r.MetricAgeMS, (24 * time.Hour).Milliseconds()},
		{"mem_load_mb_usage", r.MemUsedMiB, maxAmount >> 20},
		{"realtime_create_num", r.Creating, maxAmount},
		{"create_concurrent_num", r.CreateLimit, maxAmount},
		{"max_mvm_num", r.MaxSandboxes, maxAmount},
	} {
		if f.value < 0 || f.value > f.most {
			return fault.New(fault.InvalidInput, "%s %d is not 0 to %d", f.name, f.value, f.most)
		}
	}
	switch {
	case !(r.CPULoad >= 0 && r.CPULoad <= 1e9):
		return fault.New(fault.InvalidInput, "cpu_load_usage %v is no load", r.CPULoad)
	case len(r.CPUType) > maxHostWord:
		return fault.New(fault.InvalidInput, "cpu_type must have at most %d characters", maxHostWord)
	case len(r.Artifacts) > maxHostHolds:
		return fault.New(fault.InvalidInput, "local_templates names %d artifacts: a host holds at most %d", len(r.Artifacts), maxHostHolds)
	case slices.ContainsFunc(r.Artifacts, func(a string) bool { return len(a) > maxHostWord }):
		return fault.New(fault.InvalidInput, "local_templates has an id of over %d characters", maxHostWord)
	}
	if r.Allocatable != nil {
		if err := checkAmounts("allocatable", *r.Allocatable); err != nil {
			return err
		}
	}
	return checkAmounts("allocated", r.Allocated)
}

func checkAmounts(what string, r host.Resources) error {
	for _, f := range []struct {
		name  string
		value int64
	}{{"milli_cpu", r.MilliCPU}, {"mem_bytes", r.MemBytes}, {"disk_bytes", r.DiskBytes}, {"slots", r.Slots}} {
		if f.value < 0 || f.value > maxAmount {
			return fault.New(fault.InvalidInput, "%s.%s %d is not 0 to %d", what, f.name, f.value, int64(maxAmount))
		}
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
