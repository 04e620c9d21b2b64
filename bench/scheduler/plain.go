package main

import (
	"slices"
	"sort"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// plain is a scheduler as most are written: drop what does not fit, score the
// rest, sort, take the first. It has no ledger, and fewer guards than ours.
func plain(hosts []host.Facts, r *scheduler.Request) float64 {
	type scored struct {
		h     *host.Facts
		score float64
	}
	var fit []scored
	for i := range hosts {
		h := &hosts[i]
		if !h.Ready || h.Cordoned || h.InstanceType != r.InstanceType || !slices.Contains(h.Artifacts, string(r.Artifact)) || !roomFor(h, r) {
			continue
		}
		if h.CPUUtil >= 80 || h.Usage.DataDisk >= 80 || h.Usage.StorageDisk >= 80 || h.Usage.SysDisk >= 80 || h.Usage.Creating >= 100 || h.Usage.CPULoad > float64(h.Capacity.MilliCPU)/1000 {
			continue
		}
		left := h.Allocatable.Sub(h.Allocated).Sub(r.Resources)
		score := 100 * (float64(left.MilliCPU)/float64(h.Allocatable.MilliCPU) + float64(left.MemBytes)/float64(h.Allocatable.MemBytes)) / 2
		fit = append(fit, scored{h, score})
	}
	if len(fit) == 0 {
		return 0
	}
	sort.Slice(fit, func(i, j int) bool {
		if fit[i].score != fit[j].score {
			return fit[i].score > fit[j].score
		}
		return fit[i].h.ID < fit[j].h.ID
	})
	return fit[0].score
}

func roomFor(h *host.Facts, r *scheduler.Request) bool {
	return r.Resources.Fits(h.Allocatable.Sub(h.Allocated))
}
