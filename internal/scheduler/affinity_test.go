package scheduler_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

func one(key string, op scheduler.Operator, values ...string) scheduler.Term {
	return scheduler.Term{{Key: key, Operator: op, Values: values}}
}

// labelled is a fleet of four: a and b in zone 1 and 2, c without a zone, d
// with a GPU.
func labelled() *scheduler.View {
	var hosts []host.Facts
	for _, id := range []string{"a", "b", "c", "d"} {
		hosts = append(hosts, fit(id))
	}
	hosts[0].Zone, hosts[1].Zone, hosts[3].Zone = "1", "2", "2"
	hosts[0].Labels = map[string]string{"disk": "ssd", scheduler.LabelZone: "9"} // what a host says of itself does not hide its zone
	hosts[1].Labels = map[string]string{"disk": ""}
	hosts[2].Allocatable.MilliCPU, hosts[2].Allocatable.MemBytes = 20_000, 20*gib
	hosts[3].Labels = map[string]string{"gpu": "a100"}
	hosts[3].ClusterLabel, hosts[3].Usage.CPUType = "c9", "turin"
	return scheduler.NewView(hosts, now)
}

func TestOperators(t *testing.T) {
	for _, c := range []struct {
		terms []scheduler.Term
		want  string
	}{
		{nil, "abc"},
		{[]scheduler.Term{{}}, "abc"},
		{[]scheduler.Term{one(scheduler.LabelZone, scheduler.In, "1")}, "a"},
		{[]scheduler.Term{one(scheduler.LabelZone, scheduler.In, "1", "2", "3")}, "ab"},
		{[]scheduler.Term{one(scheduler.LabelZone, scheduler.In, "9")}, ""},
		{[]scheduler.Term{one(scheduler.LabelZone, scheduler.NotIn, "1")}, "bc"},
		{[]scheduler.Term{one(scheduler.LabelZone, scheduler.Exists)}, "ab"},
		{[]scheduler.Term{one(scheduler.LabelZone, scheduler.DoesNotExist)}, "c"},
		{[]scheduler.Term{one("disk", scheduler.Exists)}, "ab"},
		{[]scheduler.Term{one("disk", scheduler.In, "")}, "b"},
		{[]scheduler.Term{one("unknown", scheduler.In, "x")}, ""},
		{[]scheduler.Term{one("unknown", scheduler.NotIn, "x")}, "abc"},
		{[]scheduler.Term{one("unknown", scheduler.DoesNotExist)}, "abc"},
		{[]scheduler.Term{one(scheduler.LabelMemory, scheduler.Gt, "10Gi")}, "abc"},
		{[]scheduler.Term{one(scheduler.LabelMemory, scheduler.Gt, "10241Mi")}, "c"},
		{[]scheduler.Term{one(scheduler.LabelMemory, scheduler.Lt, "10240Mi")}, "ab"},
		{[]scheduler.Term{one(scheduler.LabelMemory, scheduler.In, "20480Mi")}, "c"},
		{[]scheduler.Term{one(scheduler.LabelCores, scheduler.Gt, "20")}, "c"},
		{[]scheduler.Term{one(scheduler.LabelCores, scheduler.Lt, "19999m")}, "ab"},
		{[]scheduler.Term{one(scheduler.LabelCores, scheduler.In, "20000m")}, "c"},
		{[]scheduler.Term{one(scheduler.LabelInstanceType, scheduler.In, "cubebox")}, "abc"},
		{[]scheduler.Term{append(one(scheduler.LabelZone, scheduler.Exists), one("disk", scheduler.In, "ssd")...)}, "a"},
		{[]scheduler.Term{one("disk", scheduler.In, "ssd"), one(scheduler.LabelZone, scheduler.DoesNotExist)}, "ac"},
		// Who asks for what is scarce gets it, and only where that term holds.
		{[]scheduler.Term{one("gpu", scheduler.Exists)}, "d"},
		{[]scheduler.Term{one("gpu", scheduler.In, "a100")}, "d"},
		{[]scheduler.Term{one("gpu", scheduler.NotIn, "h100")}, "abc"},
		{[]scheduler.Term{one("gpu", scheduler.In, "0", "false")}, ""},
		{[]scheduler.Term{one(scheduler.LabelZone, scheduler.In, "1"), one("gpu", scheduler.Exists)}, "ad"},
		{[]scheduler.Term{one(scheduler.LabelCluster, scheduler.In, "c9")}, ""},
		{[]scheduler.Term{append(one(scheduler.LabelCPUType, scheduler.In, "turin"), one("gpu", scheduler.Exists)...)}, "d"},
	} {
		r := ask()
		r.Explain, r.Affinity = true, &scheduler.Affinity{Terms: c.terms}
		d, err := newScheduler(t).Decide(labelled(), scheduler.NewLedger(), r, now)
		var got []string
		for _, s := range d.Scores {
			got = append(got, string(s.Host))
		}
		slices.Sort(got)
		if strings.Join(got, "") != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: fit are %v, want %q: %v", c.terms, got, c.want, err)
		}
	}
}

func TestBadAffinityIsRefused(t *testing.T) {
	many := make([]string, 51)
	for name, a := range map[string]scheduler.Affinity{
		"no label":            {Terms: []scheduler.Term{one("", scheduler.Exists)}},
		"operator \"Like\"":   {Terms: []scheduler.Term{one("x", "Like", "y")}},
		"needs a value":       {Terms: []scheduler.Term{one("x", scheduler.In)}},
		"takes no value":      {Terms: []scheduler.Term{one("x", scheduler.Exists, "y")}},
		"exactly one value":   {Terms: []scheduler.Term{one(scheduler.LabelCores, scheduler.Gt, "1", "2")}},
		"has no order":        {Terms: []scheduler.Term{one(scheduler.LabelZone, scheduler.Gt, "1")}},
		"size \"much\"":       {Terms: []scheduler.Term{one(scheduler.LabelMemory, scheduler.Gt, "much")}},
		"cpu \"1Gi\"":         {Terms: []scheduler.Term{one(scheduler.LabelCores, scheduler.Lt, "1Gi")}},
		"51 values":           {Terms: []scheduler.Term{one("x", scheduler.In, many...)}},
		"21 requirements":     {Terms: []scheduler.Term{slices.Repeat(one("x", scheduler.Exists), 21)}},
		"more than 10 terms":  {Terms: make([]scheduler.Term, 11)},
		"weight 0":            {Preferred: []scheduler.Preferred{{Term: one("x", scheduler.Exists)}}},
		"preferred term 0: l": {Preferred: []scheduler.Preferred{{Weight: 1, Term: one("x", scheduler.In)}}},
		"max skew 0":          {Spread: []scheduler.Spread{{Key: "x"}}},
		"-1 peers":            {Spread: []scheduler.Spread{{Key: "x", MaxSkew: 1, Peers: map[host.ID]int{"a": -1}}}},
	} {
		r := ask()
		r.Affinity = &a
		_, err := newScheduler(t).Decide(labelled(), scheduler.NewLedger(), r, now)
		if !errors.Is(err, fault.InvalidInput) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestParseSelector(t *testing.T) {
	good := `[{"key":"kubernetes.io/memory-size","operator":"Gt","values":["64Gi"]},{"key":"rack","operator":"Exists"}]`
	if term, err := scheduler.ParseSelector(good, []string{"rack"}); err != nil || len(term) != 2 {
		t.Errorf("%v, %v", term, err)
	}
	for name, text := range map[string]string{
		"rack":            good,
		"4096":            strings.Repeat(" ", 4097),
		"JSON list":       `{"key":"x"}`,
		"unknown field":   `[{"key":"x","op":"In"}]`,
		"follows":         `[] []`,
		"11 requirements": "[" + strings.Repeat(`{"key":"kubernetes.io/cpu-type","operator":"Exists"},`, 10) + `{"key":"kubernetes.io/cpu-type","operator":"Exists"}]`,
		"needs a value":   `[{"key":"kubernetes.io/cpu-type","operator":"In"}]`,
	} {
		if _, err := scheduler.ParseSelector(text, nil); !errors.Is(err, fault.InvalidInput) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func FuzzParseSelector(f *testing.F) {
	f.Add(`[{"key":"rack","operator":"In","values":["1"]}]`)
	f.Add(`[{"key":"kubernetes.io/memory-size","operator":"Lt","values":["1.5Gi"]}]`)
	f.Add(`[{"key":"rack","operator":"NotIn","values":[]}] x`)
	v, s := labelled(), newScheduler(f)
	f.Fuzz(func(t *testing.T, text string) {
		term, err := scheduler.ParseSelector(text, []string{"rack"})
		if err != nil {
			if fault.Of(err) != fault.InvalidInput {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		r := ask()
		r.Affinity = &scheduler.Affinity{Terms: []scheduler.Term{term}}
		if _, err := s.Decide(v, scheduler.NewLedger(), r, now); err != nil && fault.Of(err) != fault.NoHost {
			t.Fatalf("%q was read, and then: %v", text, err)
		}
	})
}

func TestPreferredTermsAndScarceThingsDecide(t *testing.T) {
	r := ask()
	r.Affinity = &scheduler.Affinity{Preferred: []scheduler.Preferred{
		{Weight: 10, Term: one(scheduler.LabelZone, scheduler.In, "2")}, {Weight: 20, Term: one("disk", scheduler.In, "ssd")},
	}}
	for seed := range uint64(50) {
		r.Seed = seed
		d, err := newScheduler(t).Decide(labelled(), scheduler.NewLedger(), r, now)
		if err != nil || d.Host != "a" {
			t.Fatalf("seed %d: got %+v, %v: a holds the heavier wish", seed, d, err)
		}
	}
}

func TestSpreadKeepsAGroupApart(t *testing.T) {
	var hosts []host.Facts
	for i := range 12 {
		h := fit(fmt.Sprintf("h%02d", i))
		h.Zone = string(rune('a' + i%3))
		hosts = append(hosts, h)
	}
	hosts[11].Zone = "" // in no zone at all
	hosts = append(hosts, fit("z"))
	hosts[12].Zone, hosts[12].Cordoned = "d", true // a zone in which nothing may be chosen holds nobody up
	v := scheduler.NewView(hosts, now)
	for _, hard := range []bool{true, false} {
		peers, zones := map[host.ID]int{}, map[string]int{}
		config := scheduler.DefaultConfig()
		if hard { // no score helps it
			config.Scores = []scheduler.Weighted{{Name: "most_allocated", Weight: 1}}
		}
		s, err := scheduler.New(config)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 30 {
			r := ask()
			r.Seed = uint64(n)
			r.Affinity = &scheduler.Affinity{Spread: []scheduler.Spread{{Key: scheduler.LabelZone, MaxSkew: 1, Hard: hard, Peers: peers}}}
			d, err := s.Decide(v, scheduler.NewLedger(), r, now)
			if err != nil {
				t.Fatal(err)
			}
			f, _ := v.Host(d.Host)
			peers[d.Host]++
			zones[f.Zone]++
			if hard && slices.Max([]int{zones["a"], zones["b"], zones["c"]})-min(zones["a"], zones["b"], zones["c"]) > 1 {
				t.Fatalf("after %d: %v", n+1, zones)
			}
		}
		if least := min(zones["a"], zones["b"], zones["c"]); least < 9 || hard && zones[""] > 0 {
			t.Errorf("hard %v: %v, want 10 in each of three", hard, zones)
		}
	}
}

func TestSpreadOverTooManyValuesIsRefused(t *testing.T) {
	var hosts []host.Facts
	for i := range 200 {
		h := fit(fmt.Sprintf("h%03d", i))
		h.Labels = map[string]string{"name": string(h.ID)}
		hosts = append(hosts, h)
	}
	r := ask()
	r.Affinity = &scheduler.Affinity{Spread: []scheduler.Spread{{Key: "name", MaxSkew: 1}}}
	_, err := newScheduler(t).Decide(scheduler.NewView(hosts, now), scheduler.NewLedger(), r, now)
	if !errors.Is(err, fault.InvalidInput) || !strings.Contains(err.Error(), "128 values") {
		t.Errorf("got %v", err)
	}
}

func TestAffinityPolicy(t *testing.T) {
	p, err := scheduler.NewAffinityPolicy(scheduler.AffinityConfig{
		Types: map[string]scheduler.TypeAffinity{"cubebox": {Enable: true, ClusterLabels: []string{"c1"}}, "off": {ClusterLabels: []string{"c1"}}},
		LargeSizes: map[string]scheduler.LargeSize{
			"cubebox": {Enable: true, Memory: "64Gi", CPU: "16", Operator: scheduler.Gt, ClusterLabels: []string{"big"}},
			"off":     {Memory: "nonsense"},
		},
		AllowedKeys: []string{"rack"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	small, large := host.Resources{MilliCPU: 15_999, MemBytes: 64*gib - 1}, host.Resources{MilliCPU: 15_999, MemBytes: 64 * gib}
	for name, c := range map[string]struct {
		kind        string
		size        host.Resources
		annotations map[string]string
		want        string
	}{
		"of the type":            {"cubebox", small, nil, "[cluster-id In [c1]]"},
		"not enabled":            {"off", large, nil, "[]"},
		"large":                  {"cubebox", large, nil, "[memory-size Gt [64Gi] cluster-id In [big]]"},
		"large by CPU":           {"cubebox", host.Resources{MilliCPU: 16_000}, nil, "[cpu-cores Gt [16] cluster-id In [big]]"},
		"request names clusters": {"cubebox", large, map[string]string{scheduler.AnnotationCluster: "x:y:"}, "[memory-size Gt [64Gi] cluster-id In [x y]]"},
		"request names a type":   {"", small, map[string]string{scheduler.AnnotationInstanceType: "gpu"}, "[instance-type In [gpu]]"},
		"request selects":        {"", small, map[string]string{scheduler.AnnotationSelector: `[{"key":"rack","operator":"NotIn","values":["1"]}]`}, "[rack NotIn [1]]"},
	} {
		a, err := p.Affinity(c.kind, c.size, c.annotations)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		if a != nil {
			for _, r := range a.Terms[0] {
				got = append(got, fmt.Sprint(r.Key[strings.LastIndex(r.Key, "/")+1:], " ", r.Operator, " ", r.Values))
			}
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
	for _, bad := range []map[string]string{{scheduler.AnnotationSelector: `[{"key":"zone","operator":"Exists"}]`}, {scheduler.AnnotationSelector: "["}, {scheduler.AnnotationCluster: ":"}} {
		if a, err := p.Affinity("", small, bad); err == nil && a != nil || err != nil && !errors.Is(err, fault.InvalidInput) {
			t.Errorf("%v: %+v, %v", bad, a, err)
		}
	}
}

// A large-size block that cannot be read is refused when it is loaded, and not
// met by the first large request.
func TestBadAffinityConfigNamesEveryKey(t *testing.T) {
	_, err := scheduler.NewAffinityPolicy(scheduler.AffinityConfig{LargeSizes: map[string]scheduler.LargeSize{
		"a": {Enable: true, Memory: "lots", Operator: scheduler.Gt}, "b": {Enable: true, CPU: "1", Operator: "Ge"}, "c": {Enable: true, Operator: scheduler.Lt},
	}}, nil)
	if !errors.Is(err, fault.BadConfig) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"large_size_affinity_conf.a.memory_lower_water_mark", `"lots"`, "large_size_affinity_conf.b.operator", "large_size_affinity_conf.c: set a water mark"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in:\n%v", want, err)
		}
	}
}

// What a compiled set says is what reading each host's labels says.
func TestSelectorsAgreeWithReadingLabels(t *testing.T) {
	values := []string{"a100", "false", "0", "1", "2", "3"}
	placed := 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 8))
		hosts := drawFleet(rng, 1+rng.IntN(200))
		req := scheduler.Requirement{Key: []string{"gpu", "rack"}[rng.IntN(2)], Operator: []scheduler.Operator{scheduler.In, scheduler.NotIn, scheduler.Exists, scheduler.DoesNotExist}[rng.IntN(4)]}
		if req.Operator == scheduler.In || req.Operator == scheduler.NotIn {
			for range 1 + rng.IntN(3) {
				req.Values = append(req.Values, values[rng.IntN(len(values))])
			}
		}
		config := scheduler.DefaultConfig()
		config.Scarce = nil
		s, err := scheduler.New(config)
		if err != nil {
			t.Fatal(err)
		}
		r := drawRequest(rng)
		r.Affinity, r.Explain = &scheduler.Affinity{Terms: []scheduler.Term{{req}}}, true
		d, _ := s.Decide(scheduler.NewView(hosts, now), scheduler.NewLedger(), r, now)
		for _, sc := range d.Scores {
			i := slices.IndexFunc(hosts, func(h host.Facts) bool { return h.ID == sc.Host })
			value, has := hosts[i].Labels[req.Key]
			holds := map[scheduler.Operator]bool{
				scheduler.In: has && slices.Contains(req.Values, value), scheduler.NotIn: !has || !slices.Contains(req.Values, value), scheduler.Exists: has, scheduler.DoesNotExist: !has,
			}[req.Operator]
			if !holds {
				t.Fatalf("seed %d: %s has %v, and %+v", seed, sc.Host, hosts[i].Labels, req)
			}
			placed++
		}
		for _, out := range d.Dropped {
			i := slices.IndexFunc(hosts, func(h host.Facts) bool { return h.ID == out.Host })
			value, has := hosts[i].Labels[req.Key]
			if out.Plugin == "affinity" && (req.Operator == scheduler.Exists && has || req.Operator == scheduler.DoesNotExist && !has || req.Operator == scheduler.In && has && slices.Contains(req.Values, value)) {
				t.Fatalf("seed %d: %s with %v was dropped by %+v", seed, out.Host, hosts[i].Labels, req)
			}
		}
	}
	if placed == 0 {
		t.Fatal("nothing was placed")
	}
}

// Who asks for one scarce thing does not get a host that has another one too.
func TestEveryScarceThingMustBeAskedFor(t *testing.T) {
	config := scheduler.DefaultConfig()
	config.Scarce = []scheduler.ScarceLabel{{Key: "gpu"}, {Key: "disk", Values: []string{"nvme"}}}
	s, err := scheduler.New(config)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []host.Facts
	for id, labels := range map[string]map[string]string{"g": {"gpu": "1"}, "n": {"disk": "nvme"}, "b": {"gpu": "1", "disk": "nvme"}, "s": {"disk": "ssd", "gpu": "0"}} {
		h := fit(id)
		h.Labels = labels
		hosts = append(hosts, h)
	}
	gpu, nvme := one("gpu", scheduler.Exists), one("disk", scheduler.In, "nvme")
	for _, c := range []struct {
		terms []scheduler.Term
		want  string
	}{
		{nil, "s"},
		{[]scheduler.Term{append(gpu, one("gpu", scheduler.NotIn, "0")...)}, "g"},
		{[]scheduler.Term{nvme}, "n"},
		{[]scheduler.Term{append(one("gpu", scheduler.In, "1"), nvme...)}, "b"},
		{[]scheduler.Term{one("disk", scheduler.NotIn, "hdd")}, "s"}, // needs none of it
	} {
		r := ask()
		r.Affinity = &scheduler.Affinity{Terms: c.terms}
		fit, err := s.Best(scheduler.NewView(hosts, now), scheduler.NewLedger(), r, len(hosts), now)
		if err != nil || len(fit) != 1 || string(fit[0].Host) != c.want {
			t.Errorf("%+v: %v, %v, want %s", c.terms, fit, err, c.want)
		}
	}
}
