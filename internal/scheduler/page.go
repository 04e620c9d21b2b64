package scheduler

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
)

// lanes is how many hosts a page holds: one machine word of bits.
const lanes = 64

// page holds the same lanes of every column. It is immutable once its view is
// made; a newer view shares the pages that did not change.
type page struct {
	gen                   uint64 // of the view that made it
	serial                uint64 // no other page has it
	live, ready, cordoned uint64

	facts [lanes]*host.Facts
	lot   [lanes]uint64 // a hash of the id, for ties

	heard, metric, local, meta [lanes]int64 // nanoseconds
	oldest                     [4]int64     // the least of each of them over live lanes

	free, all      [dims][lanes]int64 // by dimension: what the host's report leaves, and what it has
	least, most    [dims]int64        // of free over live lanes
	per            [dims][lanes]float64
	mem            [lanes]int64 // physical memory that nobody uses; most: unknown
	cpus           [lanes]float64
	cpuUtil, load  [lanes]float64
	disk           [3][lanes]float64
	memLeast       int64 // over live lanes, as the next ones
	crowd, topLow  int64
	creatingMost   int64
	diskMost       float64
	loadMost       float64
	cpusLeast      float64
	utilMost       float64
	creating       [lanes]int64
	limit          [lanes]int64
	sandboxes, top [lanes]int64
}

// serials numbers pages. Whoever remembers a page by its number does not keep
// an old view in memory.
var serials atomic.Uint64

// The dimensions of host.Resources, as columns.
const (
	dimCPU = iota
	dimMem
	dimDisk
	dimSlots
	dims
)

// most is the largest amount that is told apart: sums of it stay exact.
const most = int64(1) << 60

func amounts(r host.Resources) [dims]int64 {
	return [dims]int64{r.MilliCPU, r.MemBytes, r.DiskBytes, r.Slots}
}

func bound(n int64) int64 { return min(most, max(0, n)) }

// percent keeps a measured share within 0..100. What is no number counts as
// full: nothing good is known.
func percent(x float64) float64 {
	if math.IsNaN(x) {
		return 100
	}
	return min(100, max(0, x))
}

// put fills lane i from h.
func (p *page) put(i int, h *host.Facts) {
	bit := uint64(1) << i
	p.facts[i], p.lot[i] = h, idHash(h.ID)
	p.live |= bit
	p.ready, p.cordoned = p.ready&^bit, p.cordoned&^bit
	if h.Ready {
		p.ready |= bit
	}
	if h.Cordoned {
		p.cordoned |= bit
	}
	p.heard[i] = nanos(h.HeardAt)
	p.metric[i] = orHeard(h.Usage.MetricAt, p.heard[i])
	p.local[i] = orHeard(h.Usage.LocalMetricAt, p.heard[i])
	p.meta[i] = orHeard(h.Usage.MetadataAt, p.heard[i])
	has, used := amounts(h.Allocatable), amounts(h.Allocated)
	for d := range dims {
		all := bound(has[d])
		p.all[d][i], p.free[d][i], p.per[d][i] = all, all-bound(used[d]), 0
		if all > 0 {
			p.per[d][i] = 1 / float64(all)
		}
	}
	if p.mem[i] = most; h.Capacity.MemBytes > 0 && h.Usage.MemUsedBytes > 0 { // otherwise nobody measured it
		p.mem[i] = bound(h.Capacity.MemBytes) - bound(h.Usage.MemUsedBytes)
	}
	p.cpus[i] = float64(bound(h.Capacity.MilliCPU)) / 1000
	p.cpuUtil[i] = percent(h.CPUUtil)
	p.load[i] = min(1e9, max(0, h.Usage.CPULoad))
	if math.IsNaN(h.Usage.CPULoad) {
		p.load[i] = 1e9
	}
	p.disk[0][i], p.disk[1][i], p.disk[2][i] = percent(h.Usage.DataDisk), percent(h.Usage.StorageDisk), percent(h.Usage.SysDisk)
	p.creating[i], p.limit[i] = bound(h.Usage.Creating), bound(h.Usage.CreateLimit)
	p.sandboxes[i], p.top[i] = bound(int64(h.Sandboxes)), bound(h.Usage.MaxSandboxes)
}

func (p *page) remove(i int) {
	bit := uint64(1) << i
	p.live, p.ready, p.cordoned, p.facts[i] = p.live&^bit, p.ready&^bit, p.cordoned&^bit, nil
}

// seal computes what is known of the page as a whole.
func (p *page) seal() {
	for k := range p.oldest {
		p.oldest[k] = math.MaxInt64
	}
	for d := range dims {
		p.least[d], p.most[d] = math.MaxInt64, math.MinInt64
	}
	p.diskMost, p.utilMost, p.memLeast = 0, 0, most
	p.crowd, p.topLow, p.creatingMost = 0, math.MaxInt64, 0
	p.loadMost, p.cpusLeast = 0, math.MaxFloat64
	for m := p.live; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		p.oldest = [4]int64{min(p.oldest[0], p.heard[i]), min(p.oldest[1], p.metric[i]), min(p.oldest[2], p.local[i]), min(p.oldest[3], p.meta[i])}
		for d := range dims {
			p.least[d], p.most[d] = min(p.least[d], p.free[d][i]), max(p.most[d], p.free[d][i])
		}
		p.diskMost = max(p.diskMost, p.disk[0][i], p.disk[1][i], p.disk[2][i])
		p.crowd, p.creatingMost = max(p.crowd, p.sandboxes[i]), max(p.creatingMost, p.creating[i])
		if p.top[i] > 0 {
			p.topLow = min(p.topLow, p.top[i])
		}
		p.loadMost, p.cpusLeast = max(p.loadMost, p.load[i]), min(p.cpusLeast, p.cpus[i])
		p.memLeast = min(p.memLeast, p.mem[i])
		p.utilMost = max(p.utilMost, p.cpuUtil[i])
	}
}

// nanos is t as a number that can be compared; never is long ago.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func orHeard(t time.Time, heard int64) int64 {
	if t.IsZero() {
		return heard
	}
	return nanos(t)
}

// idHash is FNV-1a with one round of a finalizer: the low bits of FNV mix last.
func idHash(id host.ID) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	return mix(h)
}

func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
