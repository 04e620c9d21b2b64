package scheduler_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// every is a scheduler with every filter, score and factor there is.
func every(t testing.TB, change func(*scheduler.Config)) *scheduler.Scheduler {
	t.Helper()
	c := scheduler.ClusterConfig()
	c.Filters = append(c.Filters, slices.DeleteFunc(scheduler.FilterNames(), func(name string) bool {
		return slices.Contains(c.Filters, name) || slices.Contains(c.Prefilters, name)
	})...)
	c.Scores = nil
	for _, name := range scheduler.ScoreNames() {
		c.Scores = append(c.Scores, scheduler.Weighted{Name: name, Weight: 1})
	}
	c.Factors = map[string]float64{"active_whitelist": 1, "negative_whitelist": 1}
	for _, name := range scheduler.FactorNames() {
		c.Factors[name] = 1
	}
	if change != nil {
		change(&c)
	}
	s, err := scheduler.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// better are changes of a host each of which speaks for it, by score and
// factor. What a plugin does not look at must not change it.
var better = map[string]func(h *host.Facts){
	"cpu":       func(h *host.Facts) { h.Allocated.MilliCPU -= 1000 },
	"memory":    func(h *host.Facts) { h.Allocated.MemBytes -= gib },
	"crowd":     func(h *host.Facts) { h.Sandboxes-- },
	"util":      func(h *host.Facts) { h.CPUUtil -= 10 },
	"load":      func(h *host.Facts) { h.Usage.CPULoad-- },
	"used":      func(h *host.Facts) { h.Usage.MemUsedBytes -= gib },
	"data":      func(h *host.Facts) { h.Usage.DataDisk -= 10 },
	"storage":   func(h *host.Facts) { h.Usage.StorageDisk -= 10 },
	"sys":       func(h *host.Facts) { h.Usage.SysDisk -= 10 },
	"creating":  func(h *host.Facts) { h.Usage.Creating-- },
	"metric":    func(h *host.Facts) { h.Usage.MetricAt = h.Usage.MetricAt.Add(time.Hour) },
	"local":     func(h *host.Facts) { h.Usage.LocalMetricAt = h.Usage.LocalMetricAt.Add(time.Hour) },
	"artifact":  func(h *host.Facts) { h.Artifacts = []string{"rfs-a"} },
	"preferred": func(h *host.Facts) { h.Zone = "a" },
	"domain":    func(h *host.Facts) { h.Labels = map[string]string{"rack": "2"} },
}

// moves says which change must move which score or factor, and in which way.
var moves = map[string]map[string]int{
	"least_allocated": {"cpu": 1, "memory": 1}, "most_allocated": {"cpu": -1, "memory": -1}, "template_locality": {"artifact": 1},
	"create_pressure": {}, "external_http_score": {}, "affinity_score": {"preferred": 1}, "topology_spread": {"domain": 1}, "image_score": {"artifact": 1},
	"binpack_score": {"cpu": -1, "memory": -1, "crowd": -1}, "resource_fit_score": {"cpu": -1, "memory": -1},
	"create_concurrency_score": {"creating": 1}, "template_local_pressure": {},
	"real_time_weighted_average": {
		"cpu": 1, "memory": 1, "crowd": 1, "util": 1, "load": 1, "used": 1, "data": 1, "storage": 1, "sys": 1, "creating": 1, "metric": 1, "local": 1, "artifact": 1,
	},
	"mvm_num": {"crowd": 1}, "local_create_num": {}, "realtime_create_num": {"creating": 1}, "quota_cpu_usage": {"cpu": 1}, "quota_mem_usage": {"memory": 1},
	"cpu_util": {"util": 1}, "mem_usage": {"used": 1}, "cpu_load": {"load": 1}, "data_disk_usage": {"data": 1}, "storage_disk_usage": {"storage": 1}, "sys_disk_usage": {"sys": 1},
	"metric_update": {"metric": 1}, "metric_local_update_at": {"local": 1}, "create_concurrent_limit": {}, "req_cpu": {"cpu": 1}, "req_mem": {"memory": 1},
	"image_id": {"artifact": 1}, "template_id": {"artifact": 1},
}

func worn() host.Facts {
	h := fit("a")
	h.Capacity = h.Allocatable
	h.Zone, h.Labels, h.Artifacts = "b", map[string]string{"rack": "1"}, nil
	h.Allocated = host.Resources{MilliCPU: 5000, MemBytes: 5 * gib}
	h.Sandboxes, h.CPUUtil = 8, 50
	h.Usage = host.Usage{
		CPULoad: 4, MemUsedBytes: 4 * gib, DataDisk: 50, StorageDisk: 50, SysDisk: 50, Creating: 9, CreateLimit: 20, MaxSandboxes: 20,
		MetricAt: now.Add(-2 * time.Hour), LocalMetricAt: now.Add(-2 * time.Hour),
	}
	return h
}

func wish() scheduler.Request {
	r := ask()
	r.Template = "tpl-a"
	r.Affinity = &scheduler.Affinity{
		Preferred: []scheduler.Preferred{{Weight: 3, Term: scheduler.Term{{Key: scheduler.LabelZone, Operator: scheduler.In, Values: []string{"a"}}}}},
		Spread:    []scheduler.Spread{{Key: "rack", MaxSkew: 1, Peers: map[host.ID]int{"b": 2}}},
	}
	a, err := r.Affinity.Checked()
	if err != nil {
		panic(err)
	}
	r.Affinity = a
	return r
}

// other is a host with the group's other sandboxes, and a third that holds the
// image and has another rack.
func others() []host.Facts {
	b, c := fit("b"), fit("c")
	b.Labels, c.Labels = map[string]string{"rack": "1"}, map[string]string{"rack": "2"}
	return []host.Facts{b, c}
}

func TestEveryScoreMovesWithWhatItLooksAtAndWithNothingElse(t *testing.T) {
	s := every(t, nil)
	l, r := scheduler.NewLedger(), wish()
	give := func(h host.Facts, name string) float64 {
		v := scheduler.NewView(append(others(), h), now)
		if slices.Contains(scheduler.ScoreNames(), name) {
			return s.Gives(name, v, l, r, now, "a")
		}
		return s.Factor(name, v, l, r, now, "a")
	}
	for _, name := range slices.Concat(scheduler.ScoreNames(), scheduler.FactorNames()) {
		want, known := moves[name]
		if name == "multi_factor_weighted_average" {
			want = moves["real_time_weighted_average"]
		} else if !known {
			t.Errorf("no case says what %s looks at", name)
		}
		for _, change := range slices.Sorted(maps.Keys(better)) {
			h := worn()
			before := give(h, name)
			better[change](&h)
			diff := give(h, name) - before
			if math.Abs(diff) < 1e-12 {
				diff = 0
			}
			if got := compare(diff); got != want[change] {
				t.Errorf("%s: %s moves it by %v, want the sign of %d", name, change, diff, want[change])
			}
		}
	}
}

func compare(x float64) int {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

// What is under way from here presses on a host, whoever reports what.
func TestCreatesUnderWayPress(t *testing.T) {
	s, r := every(t, nil), wish()
	v := scheduler.NewView(append(others(), worn()), now)
	for _, name := range []string{"create_pressure", "create_concurrency_score", "template_local_pressure", "real_time_weighted_average", "local_create_num"} {
		give := func(l *scheduler.Ledger) float64 {
			if name == "local_create_num" {
				return s.Factor(name, v, l, r, now, "a")
			}
			return s.Gives(name, v, l, r, now, "a")
		}
		l := scheduler.NewLedger()
		before := give(l)
		l.Charge(scheduler.Charge{Sandbox: "i1", Host: "a", Template: "tpl-a", At: now})
		pressed := give(l)
		l.ConfirmAt("i1", now, 0)
		if after := give(l); pressed >= before || after < pressed {
			t.Errorf("%s: %v before, %v with a create under way, %v once it is there", name, before, pressed, after)
		}
	}
	l := scheduler.NewLedger()
	alone := s.Gives("multi_factor_weighted_average", v, l, r, now, "a")
	l.Charge(scheduler.Charge{Sandbox: "i1", Host: "a", Template: "tpl-b", Resources: r.Resources, At: now})
	if got := s.Gives("multi_factor_weighted_average", v, l, r, now, "a"); got != alone {
		t.Errorf("what only this side knows moves what the host reported: %v, was %v", got, alone)
	}
	if got := s.Gives("template_local_pressure", v, l, r, now, "a"); got != 100 {
		t.Errorf("another template's create presses by locality: %v", got)
	}
}

// wild is a host that says anything.
func wild(rng *rand.Rand, id string) host.Facts {
	h := drawHost(rng, id)
	number := func() float64 {
		return []float64{0, -1, 1e300, math.NaN(), math.Inf(1), math.Inf(-1), 50, rng.Float64()}[rng.IntN(8)]
	}
	amount := func() int64 {
		return []int64{0, -1, math.MaxInt64, math.MinInt64, 1 << 60, rng.Int64(), 1000}[rng.IntN(7)]
	}
	some := func() host.Resources {
		return host.Resources{MilliCPU: amount(), MemBytes: amount(), DiskBytes: amount(), Slots: amount()}
	}
	h.Allocatable, h.Allocated, h.Capacity, h.CPUUtil, h.Sandboxes = some(), some(), some(), number(), int(amount())
	at := func() time.Time { return []time.Time{{}, now, now.Add(time.Hour), now.Add(-time.Hour)}[rng.IntN(4)] }
	h.Usage = host.Usage{
		CPULoad: number(), MemUsedBytes: amount(), DataDisk: number(), StorageDisk: number(), SysDisk: number(), Creating: amount(), CreateLimit: amount(), MaxSandboxes: amount(),
		MetricAt: at(), LocalMetricAt: at(), MetadataAt: at(),
	}
	return h
}

func TestEveryScoreIsFiniteAndWithinBoundsWhateverHostsSay(t *testing.T) {
	s := every(t, nil)
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		hosts := []host.Facts{wild(rng, "a"), wild(rng, "b"), wild(rng, "c")}
		v, l, r := scheduler.NewView(hosts, now), scheduler.NewLedger(), wish()
		for range rng.IntN(4) {
			l.Charge(scheduler.Charge{Sandbox: "i1", Host: "a", Template: "tpl-a", Resources: r.Resources, At: now})
		}
		r.Resources = host.Resources{MilliCPU: rng.Int64() >> rng.IntN(63), MemBytes: rng.Int64() >> rng.IntN(63)}
		for _, name := range slices.Concat(scheduler.ScoreNames(), scheduler.FactorNames()) {
			var x float64
			if slices.Contains(scheduler.ScoreNames(), name) {
				x = s.Gives(name, v, l, r, now, "a")
			} else {
				x = s.Factor(name, v, l, r, now, "a")
			}
			if !(x >= -1e-9 && x <= 100+1e-9) {
				t.Errorf("seed %d: %s gives %v to %+v", seed, name, x, hosts[0])
			}
		}
	}
}

// A host that passes a filter passes it with more room, and for a smaller
// request, too.
func TestFiltersAreMonotone(t *testing.T) {
	s := every(t, nil)
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 6))
		h, l, r := drawHost(rng, "a"), scheduler.NewLedger(), drawRequest(rng)
		h.Usage.CPULoad, h.Usage.Creating, h.Usage.DataDisk = 100*rng.Float64(), rng.Int64N(200), 100*rng.Float64()
		h.Usage.MemUsedBytes = rng.Int64N(100) * gib
		roomy, modest := h, r
		for _, change := range []string{"cpu", "memory", "crowd", "util", "load", "used", "data", "creating"} {
			better[change](&roomy)
		}
		modest.Resources = host.Resources{MilliCPU: r.Resources.MilliCPU / 2, MemBytes: r.Resources.MemBytes / 2, DiskBytes: r.Resources.DiskBytes / 2, Slots: r.Resources.Slots / 2}
		for _, name := range scheduler.FilterNames() {
			if !s.Passes(name, scheduler.NewView([]host.Facts{h}, now), l, r, now, "a") {
				continue
			}
			if !s.Passes(name, scheduler.NewView([]host.Facts{roomy}, now), l, r, now, "a") {
				t.Errorf("seed %d: %s drops the host once it has more room", seed, name)
			}
			if !s.Passes(name, scheduler.NewView([]host.Facts{h}, now), l, modest, now, "a") {
				t.Errorf("seed %d: %s drops the host for a smaller request", seed, name)
			}
		}
	}
}

func TestGuardsDropAndSayWhy(t *testing.T) {
	for name, c := range map[string]struct {
		just   func(h *host.Facts) // what still passes
		change func(h *host.Facts)
		config func(c *scheduler.Config)
		plugin string
		reason string
		code   *fault.Code
	}{
		"busy processors":         {just: func(h *host.Facts) { h.CPUUtil = 79.9 }, change: func(h *host.Facts) { h.CPUUtil = 80 }, plugin: "cpu", reason: "80% busy, the limit is 80%", code: fault.NoCapacity},
		"physical memory":         {just: func(h *host.Facts) { h.Usage.MemUsedBytes = 8 * gib }, change: func(h *host.Facts) { h.Usage.MemUsedBytes = 8*gib + 1 }, plugin: "mem", reason: "kept free", code: fault.NoCapacity},
		"memory by type":          {just: func(h *host.Facts) { h.Usage.MemUsedBytes = 4 * gib }, change: func(h *host.Facts) { h.Usage.MemUsedBytes = 5 * gib }, config: func(c *scheduler.Config) { c.Limits.MemReservedByType = map[string]string{"cubebox": "0.5"} }, plugin: "mem", reason: "kept free", code: fault.NoCapacity},
		"creates there":           {just: func(h *host.Facts) { h.Usage.Creating = 99 }, change: func(h *host.Facts) { h.Usage.Creating = 100 }, plugin: "realtime_create_num", reason: "its limit is 100", code: fault.NoCapacity},
		"creates, own limit":      {just: func(h *host.Facts) { h.Usage.Creating, h.Usage.CreateLimit = 149, 150 }, change: func(h *host.Facts) { h.Usage.Creating, h.Usage.CreateLimit = 150, 150 }, plugin: "realtime_create_num", reason: "its limit is 150", code: fault.NoCapacity},
		"creates, no limit":       {just: func(h *host.Facts) { h.Usage.Creating = 49 }, change: func(h *host.Facts) { h.Usage.Creating = 50 }, config: func(c *scheduler.Config) { c.Limits.Creates = 0 }, plugin: "realtime_create_num", reason: "its limit is 50", code: fault.NoCapacity},
		"own sandbox limit":       {just: func(h *host.Facts) { h.Sandboxes, h.Usage.MaxSandboxes = 6, 7 }, change: func(h *host.Facts) { h.Sandboxes, h.Usage.MaxSandboxes = 7, 7 }, plugin: "mvm_limit", reason: "its limit is 7", code: fault.NoCapacity},
		"sandbox limit of type":   {just: func(h *host.Facts) { h.Sandboxes = 3 }, change: func(h *host.Facts) { h.Sandboxes = 4 }, config: func(c *scheduler.Config) { c.Limits.MaxByType = map[string]int64{"cubebox": 4} }, plugin: "mvm_limit", reason: "its limit is 4", code: fault.NoCapacity},
		"share of the limit":      {just: func(h *host.Facts) { h.Sandboxes, h.Usage.MaxSandboxes = 4, 9 }, change: func(h *host.Facts) { h.Sandboxes, h.Usage.MaxSandboxes = 5, 9 }, config: func(c *scheduler.Config) { c.Limits.SandboxShare = 0.5 }, plugin: "mvm_limit", reason: "its limit is 5", code: fault.NoCapacity},
		"load":                    {just: func(h *host.Facts) { h.Usage.CPULoad = 10 }, change: func(h *host.Facts) { h.Usage.CPULoad = 10.1 }, plugin: "node_safety", reason: "load 10.1 on 10.0 CPUs", code: fault.NoHost},
		"disk":                    {just: func(h *host.Facts) { h.Usage.SysDisk = 79.9 }, change: func(h *host.Facts) { h.Usage.SysDisk = 80 }, plugin: "node_safety", reason: "80% full", code: fault.NoHost},
		"disk, without the guard": {just: func(h *host.Facts) { h.Usage.DataDisk = 79.9 }, change: func(h *host.Facts) { h.Usage.DataDisk = 80 }, config: func(c *scheduler.Config) { c.Prefilters = []string{"health"} }, plugin: "disk_usage", reason: "80%", code: fault.NoHost},
		"old metrics":             {just: func(h *host.Facts) { h.Usage.MetricAt = now.Add(-300 * time.Second) }, change: func(h *host.Facts) { h.Usage.MetricAt = now.Add(-301 * time.Second) }, plugin: "metric_stale", reason: "5m1s old", code: fault.NoHost},
		"old metrics here":        {just: func(h *host.Facts) { h.Usage.LocalMetricAt = now.Add(-300 * time.Second) }, change: func(h *host.Facts) { h.Usage.LocalMetricAt = now.Add(-301 * time.Second) }, plugin: "local_metric_stale", reason: "5m1s old", code: fault.NoHost},
		"old registration":        {just: func(h *host.Facts) { h.Usage.MetadataAt = now.Add(-40 * time.Second) }, change: func(h *host.Facts) { h.Usage.MetadataAt = now.Add(-41 * time.Second) }, plugin: "metadata_stale", reason: "41s old", code: fault.NoHost},
		"something scarce":        {just: func(h *host.Facts) { h.Labels = map[string]string{"gpu": "false"} }, change: func(h *host.Facts) { h.Labels = map[string]string{"gpu": "a100"} }, plugin: "scarce", reason: "asks for its label gpu", code: fault.NoHost},
	} {
		t.Run(name, func(t *testing.T) {
			config := scheduler.ClusterConfig()
			if c.config != nil {
				c.config(&config)
			}
			s, err := scheduler.New(config)
			if err != nil {
				t.Fatal(err)
			}
			h := fit("h1")
			h.Capacity = h.Allocatable
			r := ask()
			c.just(&h)
			if _, err := s.Decide(scheduler.NewView([]host.Facts{h}, now), scheduler.NewLedger(), r, now); err != nil {
				t.Fatalf("at the limit: %v", err)
			}
			c.change(&h)
			r.Explain = true
			d, err := s.Decide(scheduler.NewView([]host.Facts{h}, now), scheduler.NewLedger(), r, now)
			if !errors.Is(err, c.code) {
				t.Fatalf("got %v, want %v", err, c.code)
			}
			if len(d.Dropped) != 1 || d.Dropped[0].Plugin != c.plugin || !strings.Contains(d.Dropped[0].Reason, c.reason) {
				t.Errorf("dropped %+v, want by %s because %q", d.Dropped, c.plugin, c.reason)
			}
		})
	}
}

func TestNearestFitIsTold(t *testing.T) {
	var hosts []host.Facts
	for i := range 100 {
		h := fit(fmt.Sprintf("h%02d", i))
		h.Allocated = h.Allocatable
		hosts = append(hosts, h)
	}
	hosts[17].Allocated = host.Resources{MemBytes: 9*gib + 512<<20} // 512 MiB are free
	hosts[30].Allocated = hosts[17].Allocated                       // as near: the first by name is told
	hosts[18].Allocated = host.Resources{MemBytes: 9*gib + 600<<20, MilliCPU: 9999}
	hosts[19].Allocated, hosts[19].Cordoned = host.Resources{MemBytes: 9*gib + 1}, true // would be nearer, and may not be chosen
	d, err := newScheduler(t).Decide(scheduler.NewView(hosts, now), scheduler.NewLedger(), ask(), now)
	if !errors.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "it would fit if h17 had 512 MiB more memory") {
		t.Errorf("got %v", err)
	}
	if d.Nearest == nil || d.Nearest.Host != "h17" || d.Nearest.Short != (host.Resources{MemBytes: 512 << 20}) {
		t.Errorf("nearest %+v", d.Nearest)
	}
}

func TestExplainTakesTheScoreApart(t *testing.T) {
	busy, idle := fit("a"), fit("b")
	busy.Allocated = host.Resources{MilliCPU: 5000, MemBytes: 5 * gib}
	r := ask()
	r.Explain = true
	d, err := newScheduler(t).Decide(scheduler.NewView([]host.Facts{busy, idle}, now), scheduler.NewLedger(), r, now)
	if err != nil || d.Host != "b" || len(d.Scores) != 2 || d.Scores[0].Host != "b" || d.Scores[0].Score != d.Score {
		t.Fatalf("%+v, %v", d, err)
	}
	var sum float64
	for _, p := range d.Parts {
		sum += p.Score * p.Weight
	}
	if math.Abs(sum-d.Score) > 1e-9 || len(d.Parts) != len(d.RunnerUpParts) || d.Parts[0].Plugin != "least_allocated" || d.Parts[0].Score != 90 || d.RunnerUpParts[0].Score != 40 {
		t.Errorf("parts %+v add up to %v of %v; runner-up %+v", d.Parts, sum, d.Score, d.RunnerUpParts)
	}
	r.Explain = false
	short, err := newScheduler(t).Decide(scheduler.NewView([]host.Facts{busy, idle}, now), scheduler.NewLedger(), r, now)
	if err != nil || short.Host != d.Host || short.RunnerUp != d.RunnerUp || short.Score != d.Score || short.Dropped != nil || short.Scores != nil {
		t.Errorf("without explain: %+v, %v", short, err)
	}
}

func TestScopeNamesHostsAndZones(t *testing.T) {
	hosts := []host.Facts{fit("a"), fit("b"), fit("c"), fit("d")}
	hosts[1].Zone, hosts[2].Zone, hosts[3].Zone = "z1", "z1", "z2"
	for want, scope := range map[string][]host.ID{"a": {"a"}, "b,c": {"z1"}, "a,d": {"a", "z2", "nothing"}, "": {"nothing"}} {
		r := ask()
		r.Scope = scope
		fit, err := newScheduler(t).Best(scheduler.NewView(hosts, now), scheduler.NewLedger(), r, len(hosts), now)
		var got []string
		for _, one := range fit {
			got = append(got, string(one.Host))
		}
		slices.Sort(got)
		if strings.Join(got, ",") != want || (err == nil) != (want != "") {
			t.Errorf("scope %v: %v, %v, want %s", scope, got, err, want)
		}
	}
}

// Scores of somebody else decide as any other, and nothing of them can do harm.
func TestExternalScores(t *testing.T) {
	s := every(t, func(c *scheduler.Config) {
		c.Filters, c.Scores = []string{"cpu"}, []scheduler.Weighted{{Name: "external_http_score", Weight: 10}, {Name: "least_allocated", Weight: 1}}
	})
	v := scheduler.NewView([]host.Facts{fit("a"), fit("b"), fit("c")}, now)
	r := ask()
	for name, c := range map[string]struct {
		external map[host.ID]float64
		want     host.ID
		score    float64
	}{
		"b is best":       {map[host.ID]float64{"a": 1, "b": 70, "c": 69}, "b", 70},
		"c alone":         {map[host.ID]float64{"c": 1}, "c", 1},
		"more than all":   {map[host.ID]float64{"c": 1e9}, "c", 100},
		"no number":       {map[host.ID]float64{"a": math.NaN(), "b": 1}, "b", 1},
		"under nothing":   {map[host.ID]float64{"a": -5, "c": 2, "b": math.Inf(-1)}, "c", 2},
		"nobody answered": {nil, "", 100},
	} {
		r.External = c.external
		d, err := s.Decide(v, scheduler.NewLedger(), r, now)
		if err != nil || c.want != "" && d.Host != c.want || s.Gives("external_http_score", v, scheduler.NewLedger(), r, now, d.Host) != c.score {
			t.Errorf("%s: %+v, %v, want %s", name, d, err, c.want)
		}
	}
}
