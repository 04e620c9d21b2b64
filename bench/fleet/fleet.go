// Package fleet draws the hosts and the requests that schedulers are measured
// with: the same for ours and for its peers, in every run.
//
// It must never know a scheduler: what is easy for one may not decide what all
// of them get.
package fleet

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/template"
)

// Begin is when hosts were last heard of.
var Begin = time.Unix(1_800_000_000, 0)

// Artifacts are those of all templates.
var Artifacts = func() (all []template.ArtifactID) {
	for a := range 50 {
		all = append(all, template.ArtifactID(fmt.Sprint("rfs-", a)))
	}
	return all
}()

// Hosts draws hosts in use: two types, three zones, fifty artifacts of which
// each host holds most, and what hosts measure.
func Hosts(size int) []host.Facts {
	rng := rand.New(rand.NewPCG(1, uint64(size))) //nolint:gosec // the same in every run
	hosts := make([]host.Facts, size)
	has := host.Resources{MilliCPU: 64_000, MemBytes: 128 << 30, DiskBytes: 2 << 40, Slots: 256}
	for i := range hosts {
		used := rng.Float64() * 0.95
		part := func(n int64) int64 { return int64(float64(n) * used * (0.9 + rng.Float64()/10)) }
		h := host.Facts{
			Registration: host.Registration{ID: host.ID(fmt.Sprintf("host-%05d", i)), InstanceType: "cubebox", Zone: fmt.Sprint("zone-", i%3), Capacity: has, Allocatable: has},
			Status:       host.Status{Ready: i%50 != 0, Allocated: host.Resources{MilliCPU: part(has.MilliCPU), MemBytes: part(has.MemBytes), DiskBytes: part(has.DiskBytes), Slots: part(has.Slots)}, CPUUtil: 70 * used},
			Cordoned:     i%97 == 0, HeardAt: Begin,
		}
		if i%10 == 0 {
			h.InstanceType = "large"
		}
		h.Sandboxes = int(h.Allocated.Slots)
		h.Usage = host.Usage{CPULoad: 40 * used, MemUsedBytes: part(has.MemBytes) / 2, DataDisk: 60 * used, StorageDisk: 60 * used, SysDisk: 30, Creating: int64(rng.IntN(20)), Revision: 1}
		for _, a := range Artifacts {
			if rng.IntN(10) > 0 {
				h.Artifacts = append(h.Artifacts, string(a))
			}
		}
		hosts[i] = h
	}
	return hosts
}

// Requests draws n creates, no two of one size.
func Requests(n int) []scheduler.Request {
	rng := rand.New(rand.NewPCG(2, uint64(n))) //nolint:gosec // the same in every run
	all := make([]scheduler.Request, n)
	for i := range all {
		all[i] = scheduler.Request{
			Sandbox: sandbox.ID(fmt.Sprintf("i%024x", i)), Template: "tpl-a", InstanceType: "cubebox", Seed: rng.Uint64(),
			Resources: host.Resources{MilliCPU: 500*(1+rng.Int64N(8)) + int64(i), MemBytes: (1 + rng.Int64N(8)) << 29, DiskBytes: 10 << 30, Slots: 1},
		}
		all[i].Artifact = Artifacts[rng.IntN(len(Artifacts))]
	}
	return all
}

// Sizes are those of most templates.
var Sizes = []host.Resources{
	{MilliCPU: 500, MemBytes: 512 << 20, DiskBytes: 1 << 30, Slots: 1},
	{MilliCPU: 1000, MemBytes: 2 << 30, DiskBytes: 10 << 30, Slots: 1},
	{MilliCPU: 2000, MemBytes: 4 << 30, DiskBytes: 10 << 30, Slots: 1},
	{MilliCPU: 4000, MemBytes: 8 << 30, DiskBytes: 20 << 30, Slots: 1},
}

// Popular makes requests those of twenty templates, some wanted more than
// others, each of one of the Sizes.
func Popular(all []scheduler.Request) {
	rng := rand.New(rand.NewPCG(3, uint64(len(all)))) //nolint:gosec // the same in every run
	for i := range all {
		t := min(rng.IntN(20), rng.IntN(20))
		all[i].Template, all[i].Artifact, all[i].Resources = template.ID(fmt.Sprint("tpl-", t)), Artifacts[t], Sizes[t%len(Sizes)]
	}
}
