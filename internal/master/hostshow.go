package master

import (
	"fmt"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/host"
)

func (m *Master) showHost(f host.Facts, now time.Time) cubeapi.Host {
	health := host.HealthOf(f, now, m.cfg.Master.HostStaleAfter)
	h := cubeapi.Host{
		NodeID: string(f.ID), HostIP: f.IP, GRPCPort: f.GRPCPort, InstanceType: f.InstanceType, Zone: f.Zone, ClusterLabel: f.ClusterLabel, Labels: f.Labels, OwnLabels: f.Wish.Labels, Version: f.Registration.Version,
		Health: string(health), Reason: whyUnfit(f, health, now), Cordoned: f.Cordoned, Capacity: f.Capacity, Allocatable: f.Allocatable, Allocated: f.Allocated, Sandboxes: f.Sandboxes, Artifacts: f.Artifacts,
		CPUUtil: f.CPUUtil, Revision: f.Usage.Revision, HeartbeatAt: stamp(f.HeardAt),
		Usage: cubeapi.HostUsage{
			CPUType: f.Usage.CPUType, CPULoad: f.Usage.CPULoad, MemUsedMiB: f.Usage.MemUsedBytes >> 20, DataDisk: f.Usage.DataDisk, StorageDisk: f.Usage.StorageDisk, SysDisk: f.Usage.SysDisk,
			Creating: f.Usage.Creating, CreateLimit: f.Usage.CreateLimit, MaxSandboxes: f.Usage.MaxSandboxes,
		},
	}
	if !f.RegisteredAt.IsZero() {
		h.RegisteredAt = stamp(f.RegisteredAt)
	}
	if f.Wish.Drain.Asked() {
		h.Drain = showDrain(f, now, f.Sandboxes)
	}
	if q := f.Wish.Quota; q.Revision > 0 || f.QuotaRevision > 0 {
		h.Quota = &cubeapi.HostQuotaState{Desired: q, AppliedRevision: f.QuotaRevision, Drift: f.QuotaRevision != q.Revision}
	}
	return h
}

// whyUnfit says why a host gets nothing new; empty when it does.
func whyUnfit(f host.Facts, health host.Health, now time.Time) string {
	switch {
	case health == host.Unknown:
		return "not heard of for " + now.Sub(f.HeardAt).Round(time.Second).String()
	case health == host.Cordoned && f.Wish.Drain.Asked():
		return fmt.Sprintf("%s, %d sandboxes left", f.Wish.Drain.State(now, f.Sandboxes), f.Sandboxes)
	}
	return f.Reason
}

// showDrain shows how far a drain is, with so many sandboxes left.
func showDrain(f host.Facts, now time.Time, left int) *cubeapi.HostDrain {
	d := f.Wish.Drain
	shown := &cubeapi.HostDrain{NodeID: string(f.ID), State: string(d.State(now, left)), Force: d.Force, Left: left}
	if d.Asked() {
		shown.AskedAt = stamp(d.AskedAt)
	}
	if !d.Deadline.IsZero() {
		shown.DeadlineAt = stamp(d.Deadline)
	}
	return shown
}
