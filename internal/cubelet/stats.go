package cubelet

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paddock-dev/paddock/internal/hostpb"
)

// Stats tells what sandboxes use, of all when none is named. One that is not
// there is left out.
func (c *Cubelet) Stats(ids []string) (list []*hostpb.SandboxStats) {
	all := c.all()
	if len(ids) > 0 {
		all = nil
		for _, id := range ids {
			if s, err := c.find(id); err == nil {
				all = append(all, s)
			}
		}
	}
	for _, s := range all {
		list = append(list, c.stat(s))
	}
	return list
}

func (c *Cubelet) stat(s *instance) *hostpb.SandboxStats {
	c.mu.Lock()
	e, charged := s.entry, s.charged
	c.mu.Unlock()
	m := &hostpb.SandboxStats{
		SandboxId: e.ID, At: timestamppb.New(time.Now()), MemLimitBytes: e.Resources.MemBytes, MilliCpuLimit: e.Resources.MilliCPU, DiskLimitBytes: e.Writable,
	}
	if e.Kept != nil {
		m.DiskBytes = e.Kept.Bytes
	}
	if !charged {
		return m
	}
	u := s.group.Usage()
	m.CpuUs, m.MemBytes, m.Processes, m.OomKills = u.CPUMicros, u.MemBytes, u.Processes, u.OOMKills
	m.DiskBytes = s.writtenBytes()
	m.RxBytes, m.TxBytes = c.nets.Traffic(e.Network)
	return m
}
