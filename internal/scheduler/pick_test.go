package scheduler_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

var update = flag.Bool("update", os.Getenv("UPDATE") != "", "write the golden files anew")

// graded are n hosts of which each scores less than the one before, and has
// fewer sandboxes.
func graded(n int) *scheduler.View {
	var hosts []host.Facts
	for i := range n {
		h := fit(fmt.Sprintf("h%02d", i))
		h.Allocated = host.Resources{MilliCPU: int64(i) * 9000 / int64(n), MemBytes: int64(i) * 9 * gib / int64(n)}
		h.Sandboxes = n - i
		hosts = append(hosts, h)
	}
	return scheduler.NewView(hosts, now)
}

func TestEveryPickDoesWhatItsNameSays(t *testing.T) {
	const hosts, rounds = 10, 4000
	draws := map[string]map[host.ID]int{}
	scored := map[host.ID]float64{}
	for _, name := range scheduler.PickNames() {
		for _, top := range []int{0, -1, 1, 3, 100} {
			c := scheduler.DefaultConfig()
			c.Scores, c.Pick, c.TopN, c.BestOf = []scheduler.Weighted{{Name: "least_allocated", Weight: 1}}, name, top, 3
			s, err := scheduler.New(c)
			if err != nil {
				t.Fatal(err)
			}
			drawn := map[host.ID]int{}
			v, l, r := graded(hosts), scheduler.NewLedger(), ask()
			for seed := range uint64(rounds) {
				r.Seed = seed
				d, err := s.Decide(v, l, r, now)
				if err != nil || d.RunnerUp == d.Host || d.RunnerUp == "" {
					t.Fatalf("%s, top %d: %+v, %v", name, top, d, err)
				}
				drawn[d.Host]++
				scored[d.Host] = d.Score
			}
			if top > 0 {
				for id := range drawn {
					if string(id) >= fmt.Sprintf("h%02d", min(top, hosts)) {
						t.Errorf("%s chose %s, which is not among the best %d", name, id, top)
					}
				}
			}
			if top == 0 {
				draws[name] = drawn
			}
			if top == 3 && name == "spread" && drawn["h02"] != rounds {
				t.Errorf("spread among three: %v, want h02, which has the fewest sandboxes", drawn)
			}
		}
	}
	if d := draws["highest"]; d["h00"] != rounds {
		t.Errorf("highest: %v", d)
	}
	if d := draws["spread"]; d["h09"] != rounds {
		t.Errorf("spread: %v, want h09, which has the fewest sandboxes", d)
	}
	var sum float64
	for _, x := range scored {
		sum += x
	}
	for id, x := range scored {
		near := func(pick string, want float64) {
			if got := float64(draws[pick][id]); got < want*0.8-10 || got > want*1.2+10 {
				t.Errorf("%s drew %s %v times, want about %.0f", pick, id, got, want)
			}
		}
		near("random", rounds/hosts)
		for _, name := range []string{"weighted", "sw", "rw", "rrw"} {
			near(name, rounds*x/sum)
		}
		// The best of three draws is not below rank k if one of them is not.
		var k int
		fmt.Sscanf(string(id), "h%d", &k)
		cube := func(n int) float64 { return float64(n*n*n) / (hosts * hosts * hosts) }
		near("best_of_k", rounds*(cube(hosts-k)-cube(hosts-k-1)))
	}
}

func TestWhiteListsMoveAfterTheScores(t *testing.T) {
	c := scheduler.DefaultConfig()
	c.Factors = map[string]float64{"active_whitelist": 10, "negative_whitelist": 10}
	v := graded(10)
	for _, x := range []struct {
		active, negative []string
		want             host.ID
	}{{nil, nil, "h00"}, {[]string{"h01"}, nil, "h01"}, {nil, []string{"h00"}, "h01"}} {
		c.ActiveHosts, c.NegativeHosts = x.active, x.negative
		s, err := scheduler.New(c)
		if err != nil {
			t.Fatal(err)
		}
		plain, _ := newScheduler(t).Decide(v, scheduler.NewLedger(), ask(), now)
		d, err := s.Decide(v, scheduler.NewLedger(), ask(), now)
		if err != nil || d.Host != x.want || d.Score > plain.Score {
			t.Errorf("active %v, negative %v: %+v, %v, want %s", x.active, x.negative, d, err, x.want)
		}
	}
}

func TestProfilesAreChosenByTypeAndLabels(t *testing.T) {
	c := scheduler.DefaultConfig()
	c.Profiles = []scheduler.Profile{
		{Name: "pack", Base: "binpack_utilization", InstanceType: "cube.*", Labels: map[string]string{"tier": "batch"}},
		{Name: "gpus", InstanceType: "gpu", Filters: []string{"cpu", "mem"}, Dropped: []string{"template_locality", "disk", "slots"}, Pick: "random"},
	}
	s, err := scheduler.New(c)
	if err != nil {
		t.Fatal(err)
	}
	hosts := []host.Facts{fit("a"), fit("b")}
	hosts[0].Allocated.MilliCPU = 5000
	for _, x := range []struct {
		kind, tier string
		profile    string
		want       host.ID
	}{{"cubebox", "batch", "pack", "a"}, {"cubebox", "", "default", "b"}, {"xcubebox", "batch", "default", ""}} {
		r := ask()
		r.InstanceType, r.Labels = x.kind, map[string]string{"tier": x.tier}
		d, err := s.Decide(scheduler.NewView(hosts, now), scheduler.NewLedger(), r, now)
		if d.Profile != x.profile || d.Host != x.want || (err == nil) != (x.want != "") {
			t.Errorf("%s %s: %+v, %v; want %s by %s", x.kind, x.tier, d, err, x.want, x.profile)
		}
	}
	hosts[0].InstanceType = "gpu"
	r := ask()
	r.InstanceType, r.Artifact = "gpu", "rfs-x"
	if d, err := s.Decide(scheduler.NewView(hosts, now), scheduler.NewLedger(), r, now); err != nil || d.Host != "a" {
		t.Errorf("a profile without locality: %+v, %v", d, err)
	}
}

func TestOnlySoftFiltersAreRelaxedInOrder(t *testing.T) {
	c := scheduler.DefaultConfig()
	c.Relax = []string{"scarce", "template_locality"}
	s, err := scheduler.New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := fit("a")
	for _, x := range []struct {
		labels   map[string]string
		artifact string
		relaxed  string
	}{{nil, "rfs-a", "[]"}, {map[string]string{"gpu": "1"}, "rfs-a", "[scarce]"}, {nil, "rfs-x", "[scarce template_locality]"}} {
		h.Labels = x.labels
		r := ask()
		r.Artifact = "rfs-a"
		if x.artifact == "rfs-x" {
			r.Artifact = "rfs-x"
		}
		d, err := s.Decide(scheduler.NewView([]host.Facts{h}, now), scheduler.NewLedger(), r, now)
		if err != nil || fmt.Sprint(d.Relaxed) != x.relaxed {
			t.Errorf("%+v: relaxed %v, %v, want %s", x, d.Relaxed, err, x.relaxed)
		}
	}
	h.Allocated = h.Allocatable
	if d, err := s.Decide(scheduler.NewView([]host.Facts{h}, now), scheduler.NewLedger(), ask(), now); !errors.Is(err, fault.NoCapacity) || len(d.Relaxed) > 0 {
		t.Errorf("a full host was relaxed: %+v, %v", d, err)
	}
}

func TestAskingForOneHostStillLooksAtItsHealthAndRoom(t *testing.T) {
	s := newScheduler(t)
	for name, c := range map[string]struct {
		host   func(h *host.Facts)
		force  bool
		plugin string
	}{
		"as it is":               {func(*host.Facts) {}, false, ""},
		"without the image":      {func(h *host.Facts) { h.Artifacts = nil }, false, ""},
		"of another type":        {func(h *host.Facts) { h.InstanceType = "gpu" }, false, ""},
		"cordoned":               {func(h *host.Facts) { h.Cordoned = true }, false, "health"},
		"not ready":              {func(h *host.Facts) { h.Ready = false }, false, "health"},
		"full":                   {func(h *host.Facts) { h.Allocated = h.Allocatable }, false, "cpu"},
		"cordoned, full, forced": {func(h *host.Facts) { h.Cordoned, h.Allocated = true, h.Allocatable }, true, ""},
	} {
		a, b := fit("a"), fit("b")
		c.host(&a)
		r := ask()
		r.Direct, r.Force, r.Scope = "a", c.force, []host.ID{"b"}
		d, err := s.Decide(scheduler.NewView([]host.Facts{a, b}, now), scheduler.NewLedger(), r, now)
		if c.plugin == "" && (err != nil || d.Host != "a") || c.plugin != "" && (err == nil || !strings.Contains(err.Error(), c.plugin+" 1")) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	r := ask()
	r.Direct, r.Force = "nobody", true
	if _, err := s.Decide(scheduler.NewView([]host.Facts{fit("a")}, now), scheduler.NewLedger(), r, now); !errors.Is(err, fault.NoHost) {
		t.Errorf("a host that is not there: %v", err)
	}
}

func TestChooseAllOrNothing(t *testing.T) {
	s, v := newScheduler(t), scheduler.NewView([]host.Facts{fit("a"), fit("b")}, now)
	requests := make([]scheduler.Request, 25) // there is room for 20
	for i := range requests {
		requests[i] = ask()
		requests[i].Sandbox = sandbox.ID(fmt.Sprint("i", i))
	}
	l := scheduler.NewLedger()
	_, errs := s.ChooseAll(v, l, requests, true, now)
	for _, err := range errs {
		if !errors.Is(err, fault.NoCapacity) {
			t.Fatalf("all or nothing: %v", errs)
		}
	}
	if l.Len() != 0 || l.Charged("a") != (host.Resources{}) {
		t.Errorf("%d charges are left, %+v", l.Len(), l.Charged("a"))
	}
	decisions, errs := s.ChooseAll(v, l, requests, false, now)
	placed := 0
	for i, err := range errs {
		if err == nil && decisions[i].Host != "" {
			placed++
		}
	}
	if placed != 20 || l.Len() != 20 {
		t.Errorf("as many as fit: %d placed, %d charged", placed, l.Len())
	}
	l = scheduler.NewLedger()
	if decisions, errs = s.ChooseAll(v, l, requests[:20], true, now); errors.Join(errs...) != nil || l.Len() != 20 || decisions[19].Host == "" {
		t.Errorf("all that fit: %v", errs)
	}
}

// Hosts that fall silent one by one are gone. When most of them fall silent at
// once, whoever hears them has: they stay as last known, with less room.
func TestWhoeverHearsTheFleetIsSuspectedWhenMostOfItFallsSilentAtOnce(t *testing.T) {
	fleet := func(heard func(i int) time.Duration) *scheduler.View {
		var hosts []host.Facts
		for i := range 100 {
			h := fit(fmt.Sprintf("h%03d", i))
			h.HeardAt = now.Add(-heard(i))
			hosts = append(hosts, h)
		}
		return scheduler.NewView(hosts, now)
	}
	s := newScheduler(t)
	for name, c := range map[string]struct {
		heard func(i int) time.Duration
		fit   int
		blind bool
	}{
		"all are heard":                    {func(int) time.Duration { return time.Second }, 100, false},
		"a half is silent":                 {func(i int) time.Duration { return time.Duration(1+i%2*30) * time.Second }, 50, false},
		"most at once":                     {func(i int) time.Duration { return time.Duration(1+min(1, i/40)*30) * time.Second }, 100, true},
		"all at once, ten minutes ago":     {func(int) time.Duration { return 10 * time.Minute }, 100, true},
		"all at once, too long ago":        {func(int) time.Duration { return 61 * time.Minute }, 0, false},
		"all, one after the other":         {func(i int) time.Duration { return time.Minute + time.Duration(i)*10*time.Second }, 0, false},
		"most, but a few long before that": {func(i int) time.Duration { return time.Duration(1+min(1, i/90)*3600*24) * time.Second }, 90, false},
	} {
		d, err := s.Decide(fleet(c.heard), scheduler.NewLedger(), ask(), now)
		if d.Fit != c.fit || d.Blind != c.blind || (err == nil) != (c.fit > 0) {
			t.Errorf("%s: %d fit, blind %v, %v; want %d, %v", name, d.Fit, d.Blind, err, c.fit, c.blind)
		}
	}
	// A fifth of each host is kept free then: what it had may be taken by now.
	r := ask()
	r.Resources.MilliCPU = 8001
	silent := fleet(func(int) time.Duration { return time.Minute })
	if d, err := s.Decide(silent, scheduler.NewLedger(), r, now); !errors.Is(err, fault.NoCapacity) || !d.Blind {
		t.Errorf("blind, and all of a host is given away: %+v, %v", d, err)
	}
	r.Resources.MilliCPU = 8000
	if _, err := s.Decide(silent, scheduler.NewLedger(), r, now); err != nil {
		t.Errorf("four fifths: %v", err)
	}
	// What the ledger holds counts as ever.
	l := scheduler.NewLedger()
	placed := 0
	for n := range 2000 {
		r := ask()
		r.Sandbox = sandbox.ID(fmt.Sprint("i", n))
		if _, err := s.Choose(silent, l, r, now); err == nil {
			placed++
		}
	}
	if placed != 800 {
		t.Errorf("%d were placed on what 100 hosts had for 10 each: want 8 each", placed)
	}
}

func TestBadClusterConfigNamesEveryKey(t *testing.T) {
	c := scheduler.DefaultConfig()
	c.Prefilters = append(c.Prefilters, "helth")
	c.Scores = append(c.Scores, scheduler.Weighted{Name: "least_allocated", Weight: 1}, scheduler.Weighted{Name: "real_time_weighted_average", Weight: 1})
	c.Factors = map[string]float64{"luck": 1, "cpu_util": -1}
	c.Relax = []string{"health", "scarce"}
	c.Scarce = append(c.Scarce, scheduler.ScarceLabel{})
	c.TopN, c.BestOf = -2, -1
	c.Limits.MaxCPUUtil, c.Limits.BlindShare, c.Limits.MaxSandboxes, c.Limits.Masters = 101, 1.5, -1, -3
	c.Limits.MemReservedByType = map[string]string{"x": "much", "y": "-1", "z": "0.5"}
	c.Limits.MaxByType = map[string]int64{"x": -1}
	c.Profiles = []scheduler.Profile{
		{Name: "default"}, {Name: "a", Base: "luck", InstanceType: "("}, {Name: "a"}, {Name: "b", Filters: []string{"cpu"}}, {Name: "c", Pick: "dice"},
	}
	_, err := scheduler.New(c)
	if !errors.Is(err, fault.BadConfig) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		`prefilters[9]: filter "helth"`, `"least_allocated" is listed twice`, `resource_weights: factor "luck"`, "resource_weights.cpu_util -1", `relax[0]: "health"`, "scarce_labels[1].label_key",
		"priority_select_num -2", "best_of -1", "node_max_cpu_util 101", "blind_share 1.5", "node_max_mvm_num -1", "masters -3", `node_max_mem_reserved_conf.x "much"`, `node_max_mem_reserved_conf.y "-1"`,
		"node_max_mvm_num_conf.x -1", `profiles[0].name "default"`, `profiles[1].base "luck"`, "profiles[1].instance_type", `profiles[2].name "a"`, "profiles[3].enable_filters leaves out mem", `profiles[4].least_select_name: pick "dice"`,
		`"real_time_weighted_average" needs at least one factor`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "relax[1]") || strings.Contains(err.Error(), "conf.z") {
		t.Errorf("something good is named in:\n%v", err)
	}
}

// TestGoldenDecisions holds what a fixed fleet decides for fixed requests under
// every pick and built-in profile. A change of the file is a change of behaviour.
func TestGoldenDecisions(t *testing.T) {
	rng := rand.New(rand.NewPCG(42, 42))
	hosts := drawFleet(rng, 300)
	var requests []scheduler.Request
	for i := range 12 {
		r := drawRequest(rng)
		r.Sandbox, r.Template = sandbox.ID(fmt.Sprint("i", i)), "tpl-a"
		requests = append(requests, r)
	}
	var text strings.Builder
	story := func(name string, c scheduler.Config) {
		s, err := scheduler.New(c)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "# %s\n", name)
		v, l := scheduler.NewView(hosts, now), scheduler.NewLedger()
		for _, r := range requests {
			if d, err := s.Choose(v, l, r, now); err != nil {
				fmt.Fprintf(&text, "%s: %v\n", r.Sandbox, err)
			} else {
				fmt.Fprintf(&text, "%s: %s %.6f before %s, %d fit, out %v\n", r.Sandbox, d.Host, d.Score, d.RunnerUp, d.Fit, d.Out)
			}
		}
	}
	for _, name := range scheduler.PickNames() {
		c := scheduler.DefaultConfig()
		c.Pick = name
		story("pick "+name, c)
	}
	for _, name := range scheduler.BaseNames() {
		c := scheduler.DefaultConfig()
		c.Profiles = []scheduler.Profile{{Name: "p", Base: name}}
		story("profile "+name, c)
	}
	story("cluster", scheduler.ClusterConfig())
	const path = "testdata/decisions.txt"
	if *update {
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := text.String(); got != string(want) {
		a, b := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("line %d is\n%s, was\n%s\n(UPDATE=1 writes the file anew)", i+1, a[i], b[i])
			}
		}
		t.Fatalf("%d lines, were %d", len(a), len(b))
	}
}

// FuzzDecide draws a configuration, a fleet and a request. What compiles must
// decide, and what it decides must fit.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), "cpu,mem", "least_allocated", 1.0, "highest", 3)
	f.Add(uint64(2), "template_locality,slots,disk", "binpack_score", 1e6, "weighted", 0)
	f.Add(uint64(3), "realtime_create_num,nonsense", "real_time_weighted_average", -1.0, "best_of_k", -2)
	f.Fuzz(func(t *testing.T, seed uint64, names, score string, weight float64, pick string, top int) {
		rng := rand.New(rand.NewPCG(seed, 11))
		c := scheduler.ClusterConfig()
		c.Filters, c.Scores, c.Pick, c.TopN = strings.Split(names, ","), []scheduler.Weighted{{Name: score, Weight: weight}}, pick, top
		c.Factors = map[string]float64{"cpu_util": rng.Float64(), "active_whitelist": 1}
		c.ActiveHosts = []string{"h0000"}
		s, err := scheduler.New(c)
		if err != nil {
			if fault.Of(err) != fault.BadConfig {
				t.Fatal(err)
			}
			return
		}
		hosts := make([]host.Facts, rng.IntN(200))
		for i := range hosts {
			hosts[i] = wild(rng, fmt.Sprintf("h%04d", i))
		}
		v, l := scheduler.NewView(hosts, now), scheduler.NewLedger()
		for range 5 {
			r := drawRequest(rng)
			r.Resources.MilliCPU = rng.Int64() >> rng.IntN(64)
			d, err := s.Choose(v, l, r, now)
			switch code := fault.Of(err); {
			case err == nil:
				h, ok := v.Host(d.Host)
				if !ok || !h.Ready || h.Cordoned || slices.Contains(r.Exclude, d.Host) || !(d.Score >= -1e-9 && d.Score <= 100+1e-9) {
					t.Fatalf("chose %+v: %+v", d, h)
				}
				if slices.Contains(c.Filters, "cpu") && r.Resources.MilliCPU > max(0, h.Allocatable.MilliCPU) {
					t.Fatalf("%d of %d CPU", r.Resources.MilliCPU, h.Allocatable.MilliCPU)
				}
			case code != fault.NoHost && code != fault.NoCapacity && (code != fault.InvalidInput || r.Resources.MilliCPU >= 0):
				t.Fatal(err)
			}
		}
	})
}

// The same hosts, request and seed give the same choice in any view, in whatever
// order the hosts came to it.
func TestPicksDoNotDependOnLanes(t *testing.T) {
	var hosts []host.Facts
	for i := range 20 {
		hosts = append(hosts, fit(fmt.Sprintf("h%02d", i)))
	}
	plain := scheduler.NewView(hosts, now)
	moved := scheduler.NewView(nil, now)
	for _, i := range rand.New(rand.NewPCG(7, 7)).Perm(len(hosts)) { //nolint:gosec // the same in every run
		moved = moved.With(now, []host.Facts{hosts[i]})
	}
	for _, name := range []string{"highest", "random", "weighted", "best_of_k", "spread"} {
		s := every(t, func(c *scheduler.Config) { c.Pick = name })
		for seed := range uint64(50) {
			r := ask()
			r.Seed = seed
			a, err := s.Decide(plain, scheduler.NewLedger(), r, now)
			b, err2 := s.Decide(moved, scheduler.NewLedger(), r, now)
			if err != nil || err2 != nil || a.Host != b.Host || a.RunnerUp != b.RunnerUp {
				t.Fatalf("%s, seed %d: %s before %s (%v), then %s before %s (%v)", name, seed, a.Host, a.RunnerUp, err, b.Host, b.RunnerUp, err2)
			}
		}
	}
}
