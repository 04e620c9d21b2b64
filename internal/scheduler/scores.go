package scheduler

import (
	"math/bits"
)

// score adds w times the score of each of the hosts m of the page at work to
// total. Scores are 0..100 and finite; more is better.
//
// Products are converted before they are added: otherwise some machines fuse
// the two and round once, and a decision is not the same everywhere.
type score func(c *cycle, m uint64, w float64, total *[lanes]float64)

// idle tells, for some scores, that every host would get 100 of it: the
// request says nothing of what it looks at.
var idle = map[string]func(c *cycle) bool{
	"template_locality":   func(c *cycle) bool { return c.req.Artifact == "" },
	"affinity_score":      func(c *cycle) bool { return len(c.preferred) == 0 },
	"topology_spread":     func(c *cycle) bool { return len(c.spreads) == 0 },
	"external_http_score": func(c *cycle) bool { return c.req.External == nil },
}

var scores = map[string]score{
	"least_allocated": leastAllocated,
	"most_allocated": func(c *cycle, m uint64, w float64, total *[lanes]float64) {
		add(total, m, float64(100*w))
		leastAllocated(c, m, -w, total)
	},
	"template_locality":  templateLocality,
	"create_pressure":    createPressure,
	"affinity_score":     affinityScore,
	"topology_spread":    spreadScore,
	"image_score":        perHost(imageScore),
	"binpack_score":      perHost(binpack),
	"resource_fit_score": perHost(resourceFit),
	"create_concurrency_score": perHost(func(c *cycle, i int) float64 {
		return c.concurrency(i, c.p.creating[i]+c.h.creating[i]*int64(c.s.limits.Masters))
	}),
	"template_local_pressure": perHost(func(c *cycle, i int) float64 {
		if c.req.Template == "" {
			return 100
		}
		return c.concurrency(i, int64(c.pressure[c.k*lanes+i])*int64(c.s.limits.Masters))
	}),
	"external_http_score":        perHost(func(c *cycle, i int) float64 { return 100 - percent(100-c.req.External[c.p.facts[i].ID]) }),
	"real_time_weighted_average": perHost(func(c *cycle, i int) float64 { return c.average(i) }),
	"multi_factor_weighted_average": func(c *cycle, m uint64, w float64, total *[lanes]float64) {
		own := c.h
		c.h = &nothing // of what the host itself reported alone
		perHost(func(c *cycle, i int) float64 { return c.average(i) })(c, m, w, total)
		c.h = own
	},
}

func perHost(of func(c *cycle, i int) float64) score {
	return func(c *cycle, m uint64, w float64, total *[lanes]float64) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros64(m)
			total[i] += float64(w * of(c, i))
		}
	}
}

func add(total *[lanes]float64, m uint64, x float64) {
	if m == ^uint64(0) {
		for i := range total {
			total[i] += x
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		total[bits.TrailingZeros64(m)] += x
	}
}

// leastAllocated is the mean of the shares of CPU and memory that are left once
// the request is placed.
func leastAllocated(c *cycle, m uint64, w float64, total *[lanes]float64) {
	p, h, w := c.p, c.h, float64(50*w)
	askCPU, askMem := c.ask[dimCPU], c.ask[dimMem]
	freeCPU, freeMem, heldCPU, heldMem := &p.free[dimCPU], &p.free[dimMem], &h.amount[dimCPU], &h.amount[dimMem]
	perCPU, perMem := &p.per[dimCPU], &p.per[dimMem]
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m) & (lanes - 1)
		cpu, mem := max(0, freeCPU[i]-heldCPU[i]-askCPU), max(0, freeMem[i]-heldMem[i]-askMem)
		total[i] += float64(w * (float64(float64(cpu)*perCPU[i]) + float64(float64(mem)*perMem[i])))
	}
}

// share returns what is left of a dimension once the request is placed, 0..1.
func (c *cycle) share(dim, i int) float64 {
	return min(1, float64(max(0, c.p.free[dim][i]-c.h.amount[dim][i]-c.ask[dim]))*c.p.per[dim][i])
}

func templateLocality(c *cycle, m uint64, w float64, total *[lanes]float64) {
	add(total, m&c.holders.word(c.k), float64(100*w))
}

// createPressure falls with the creates that are on their way to the host: they
// compete for its processors now, whatever room it has.
func createPressure(c *cycle, m uint64, w float64, total *[lanes]float64) {
	add(total, m&^c.h.busy, float64(100*w))
	for m &= c.h.busy; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		total[i] += float64(w * (100 / float64(1+c.h.creating[i])))
	}
}

// affinityScore is the weight of the preferred terms that hold, of all.
func affinityScore(c *cycle, m uint64, w float64, total *[lanes]float64) {
	sum := 0
	for _, p := range c.req.Affinity.Preferred {
		sum += p.Weight
	}
	for n, p := range c.req.Affinity.Preferred {
		add(total, m&c.preferred[n][c.k], float64(w*float64(100*float64(p.Weight)/float64(sum))))
	}
}

// spreadScore is 100 in the least used domain and 0 in the most used one, or
// without the label.
func spreadScore(c *cycle, m uint64, w float64, total *[lanes]float64) {
	w /= float64(len(c.spreads))
	for n := range c.spreads {
		s := &c.spreads[n]
		for d, count := range s.count {
			x := 100.0
			if s.largest > 0 {
				x = 100 * float64(s.largest-count) / float64(s.largest)
			}
			add(total, m&s.domains[d].word(c.k), float64(w*x))
		}
	}
}

// The sizes between which an image's share of the fleet counts.
const (
	imageLeast = 23 << 20
	imageMost  = 80000 << 20
)

// imageScore is the size of the request's image, by how many hosts hold it, if
// this one does. Of an image of unknown size only that counts.
func imageScore(c *cycle, i int) float64 {
	if c.req.Artifact == "" || c.holders.word(c.k)>>i&1 == 0 {
		return 0
	}
	if c.req.ImageBytes <= 0 {
		return 100
	}
	sum := float64(c.req.ImageBytes) * (float64(c.holders.n) / float64(c.view.Len()))
	return 100 * (min(imageMost, max(imageLeast, sum)) - imageLeast) / (imageMost - imageLeast)
}

// binpack is the mean of the shares of CPU, memory and sandboxes that are used
// once the request is placed.
func binpack(c *cycle, i int) float64 {
	crowd := 0.0
	if limit := c.sandboxLimit(i); limit > 0 {
		crowd = min(1, float64(c.p.sandboxes[i]+c.h.open[i])/float64(limit))
	}
	return 100 * (3 - c.share(dimCPU, i) - c.share(dimMem, i) - (1 - crowd)) / 3
}

// resourceFit is binpack of CPU and memory, less where one of them would be
// left without the other.
func resourceFit(c *cycle, i int) float64 {
	cpu, mem := c.share(dimCPU, i), c.share(dimMem, i)
	return min(100, max(0, 100*(1-float64((cpu+mem)/2))-50*abs(cpu-mem)))
}

func abs(x float64) float64 { return max(x, -x) }

// concurrency falls from 100 to 0 as creates reach the limit of host i.
func (c *cycle) concurrency(i int, creates int64) float64 {
	return 100 - min(100, max(0, 100*float64(creates)/float64(c.createLimit(i))))
}

// factor is one part of a mean of factors, 0..100 and finite.
type factor func(c *cycle, i int) float64

type factorWeight struct {
	of     factor
	weight float64 // of all, 0..1
}

func (c *cycle) average(i int) float64 {
	var sum float64
	for _, f := range c.prof.factors {
		sum += float64(f.weight * f.of(c, i))
	}
	return min(100, sum)
}

var factors = map[string]factor{
	"mvm_num": func(c *cycle, i int) float64 {
		limit := c.sandboxLimit(i)
		if limit == 0 {
			return 100
		}
		return 100 - min(100, 100*float64(c.p.sandboxes[i]+c.h.open[i])/float64(limit))
	},
	"local_create_num": func(c *cycle, i int) float64 {
		return c.concurrency(i, c.h.creating[i]*int64(c.s.limits.Masters))
	},
	"realtime_create_num": func(c *cycle, i int) float64 { return c.concurrency(i, c.p.creating[i]) },
	"quota_cpu_usage":     func(c *cycle, i int) float64 { return c.unused(dimCPU, i) },
	"quota_mem_usage":     func(c *cycle, i int) float64 { return c.unused(dimMem, i) },
	"cpu_util":            func(c *cycle, i int) float64 { return 100 - c.p.cpuUtil[i] },
	"mem_usage": func(c *cycle, i int) float64 {
		all := bound(c.p.facts[i].Capacity.MemBytes)
		if c.p.mem[i] == most || all == 0 {
			return 100
		}
		return min(100, max(0, 100*float64(c.p.mem[i])/float64(all)))
	},
	"cpu_load": func(c *cycle, i int) float64 {
		if c.p.cpus[i] == 0 {
			return 100
		}
		return 100 - min(100, 100*c.p.load[i]/c.p.cpus[i])
	},
	"data_disk_usage":        func(c *cycle, i int) float64 { return 100 - c.p.disk[0][i] },
	"storage_disk_usage":     func(c *cycle, i int) float64 { return 100 - c.p.disk[1][i] },
	"sys_disk_usage":         func(c *cycle, i int) float64 { return 100 - c.p.disk[2][i] },
	"metric_update":          func(c *cycle, i int) float64 { return c.recent(c.p.metric[i]) },
	"metric_local_update_at": func(c *cycle, i int) float64 { return c.recent(c.p.local[i]) },
	"create_concurrent_limit": func(c *cycle, i int) float64 {
		return min(100, float64(c.createLimit(i))) // the number itself, as far as a score goes
	},
	"req_cpu":     func(c *cycle, i int) float64 { return c.share(dimCPU, i) },
	"req_mem":     func(c *cycle, i int) float64 { return c.share(dimMem, i) },
	"image_id":    imageScore,
	"template_id": func(c *cycle, i int) float64 { return 100 * float64(c.holders.word(c.k)>>i&1) },
}

// unused is the share of a dimension that nobody has, 0..100.
func (c *cycle) unused(dim, i int) float64 {
	return min(100, 100*float64(max(0, c.p.free[dim][i]-c.h.amount[dim][i]))*c.p.per[dim][i])
}

// recent is how near to now a time is, as a share of all time: 0..1.
func (c *cycle) recent(at int64) float64 {
	if c.now <= 0 {
		return 0
	}
	return min(1, max(0, float64(at)/float64(c.now)))
}
