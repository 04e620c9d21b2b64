package scheduler_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/template"
)

// drawHost is some host of a mixed fleet.
func drawHost(rng *rand.Rand, id string) host.Facts {
	h := fit(id)
	h.InstanceType = []string{"cubebox", "gpu", "large"}[rng.IntN(3)]
	h.Zone = []string{"a", "b", "c", ""}[rng.IntN(4)]
	h.ClusterLabel = []string{"c1", "c2"}[rng.IntN(2)]
	h.Allocatable = host.Resources{MilliCPU: 1000 * rng.Int64N(64), MemBytes: gib * rng.Int64N(128), DiskBytes: gib * rng.Int64N(500), Slots: rng.Int64N(200)}
	h.Capacity = h.Allocatable
	share := func(n int64) int64 { return int64(float64(n) * rng.Float64() * 1.1) } // some are oversold
	h.Allocated = host.Resources{MilliCPU: share(h.Allocatable.MilliCPU), MemBytes: share(h.Allocatable.MemBytes), DiskBytes: share(h.Allocatable.DiskBytes), Slots: share(h.Allocatable.Slots)}
	h.Sandboxes = int(h.Allocated.Slots)
	h.Ready, h.Cordoned = rng.IntN(20) > 0, rng.IntN(20) == 0
	h.HeardAt = now.Add(-time.Duration(rng.IntN(11_000)) * time.Millisecond)
	h.CPUUtil = 100 * rng.Float64()
	h.Artifacts = nil
	for _, a := range []string{"rfs-a", "rfs-b", "rfs-c"} {
		if rng.IntN(3) > 0 {
			h.Artifacts = append(h.Artifacts, a)
		}
	}
	if rng.IntN(4) == 0 {
		h.Labels = map[string]string{"gpu": []string{"a100", "false", "0"}[rng.IntN(3)], "rack": fmt.Sprint(rng.IntN(8))}
	}
	return h
}

func drawRequest(rng *rand.Rand) scheduler.Request {
	r := ask()
	r.Seed = rng.Uint64()
	r.Artifact = template.ArtifactID([]string{"", "rfs-a", "rfs-b", "rfs-d"}[rng.IntN(4)])
	r.InstanceType = []string{"", "cubebox", "gpu", "large"}[rng.IntN(4)]
	r.Resources = host.Resources{MilliCPU: 100 * rng.Int64N(100), MemBytes: gib * rng.Int64N(8), DiskBytes: gib * rng.Int64N(10), Slots: rng.Int64N(3)}
	for range rng.IntN(3) {
		r.Exclude = append(r.Exclude, host.ID(fmt.Sprintf("h%04d", rng.IntN(300))))
	}
	return r
}

func drawFleet(rng *rand.Rand, n int) []host.Facts {
	hosts := make([]host.Facts, n)
	for i := range hosts {
		hosts[i] = drawHost(rng, fmt.Sprintf("h%04d", i))
	}
	return hosts
}

// plain is the default pipeline as anybody would write it.
func plain(hosts []host.Facts, charged map[host.ID]host.Resources, r scheduler.Request) (scores map[host.ID]float64, best float64, out map[string]int) {
	scores, out = map[host.ID]float64{}, map[string]int{}
	for _, h := range hosts {
		free := h.Allocatable.Sub(host.Resources{
			MilliCPU: max(0, h.Allocated.MilliCPU), MemBytes: max(0, h.Allocated.MemBytes), DiskBytes: max(0, h.Allocated.DiskBytes), Slots: max(0, h.Allocated.Slots),
		}).Sub(charged[h.ID])
		gpu, has := h.Labels["gpu"]
		switch {
		case slices.Contains(r.Exclude, h.ID):
			out["excluded"]++
		case host.HealthOf(h, now, 10*time.Second) != host.Healthy:
			out["health"]++
		case r.InstanceType != "" && h.InstanceType != r.InstanceType:
			out["instance_type"]++
		case has && gpu != "false" && gpu != "0":
			out["scarce"]++
		case r.Artifact != "" && !slices.Contains(h.Artifacts, string(r.Artifact)):
			out["template_locality"]++
		case r.Resources.MilliCPU > free.MilliCPU:
			out["cpu"]++
		case r.Resources.MemBytes > free.MemBytes:
			out["mem"]++
		case r.Resources.DiskBytes > free.DiskBytes:
			out["disk"]++
		case r.Resources.Slots > free.Slots:
			out["slots"]++
		default:
			left := free.Sub(r.Resources)
			share := func(n, of int64) float64 {
				if of == 0 {
					return 0
				}
				return 100 * float64(n) / float64(of)
			}
			score := (1*(share(left.MilliCPU, h.Allocatable.MilliCPU)+share(left.MemBytes, h.Allocatable.MemBytes))/2 + 0.5*100 + 0.5*100 + 100 + 100) / 4
			if charged[h.ID] != (host.Resources{}) {
				score -= 0.5 * 50 / 4 // one create is under way
			}
			if score > best {
				best = score
			}
			scores[h.ID] = score
		}
	}
	return scores, best, out
}

func TestAgreesWithAPlainSchedulerOnEveryFleet(t *testing.T) {
	s := newScheduler(t)
	placed := 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 7))
		hosts := drawFleet(rng, 1+rng.IntN(300))
		v, l := scheduler.NewView(hosts, now), scheduler.NewLedger()
		charged := map[host.ID]host.Resources{}
		for i := range 20 {
			r := drawRequest(rng)
			r.Sandbox = sandbox.ID(fmt.Sprint("i", i))
			fit, best, out := plain(hosts, charged, r)
			d, err := s.Decide(v, l, r, now)
			if d.Fit != len(fit) || d.Considered != len(hosts) {
				t.Fatalf("seed %d: %d of %d fit, the plain one has %d of %d", seed, d.Fit, d.Considered, len(fit), len(hosts))
			}
			for _, o := range d.Out {
				if out[o.Plugin] != o.Hosts {
					t.Errorf("seed %d: %s dropped %d, the plain one %d", seed, o.Plugin, o.Hosts, out[o.Plugin])
				}
			}
			if len(fit) == 0 {
				if c := fault.Of(err); c != fault.NoHost && c != fault.NoCapacity {
					t.Fatalf("seed %d: nothing fits: %v", seed, err)
				}
				continue
			}
			if err != nil || math.Abs(fit[d.Host]-best) > 1e-9 || d.Score < best-1e-9 || d.Score > best+1e-9 {
				t.Fatalf("seed %d: chose %s with %v (%v), the best has %v", seed, d.Host, d.Score, err, best)
			}
			for id, score := range fit {
				if id != d.Host && (d.RunnerUp == "" || score > fit[d.RunnerUp]+1e-9) {
					t.Fatalf("seed %d: %s is the runner-up with %v, and %s has %v", seed, d.RunnerUp, fit[d.RunnerUp], id, score)
				}
			}
			placed++
			if charged[d.Host] == (host.Resources{}) && r.Resources != (host.Resources{}) {
				l.Charge(scheduler.Charge{Sandbox: r.Sandbox, Host: d.Host, Resources: r.Resources, At: now})
				charged[d.Host] = r.Resources
			}
		}
		if msg := l.Check(); msg != "" {
			t.Fatalf("seed %d: the ledger disagrees with itself: %s", seed, msg)
		}
	}
	if placed < 300 {
		t.Fatalf("only %d were placed: the fleets are of no use", placed)
	}
}

// A view made of changes is the view that would be made of the result, and the
// views before it stay as they were.
func TestChangesAddUpToANewView(t *testing.T) {
	s := newScheduler(t)
	decide := func(v *scheduler.View, l *scheduler.Ledger, seed uint64) string {
		rng := rand.New(rand.NewPCG(seed, 3))
		text := ""
		for range 5 {
			r := drawRequest(rng)
			r.Affinity = &scheduler.Affinity{Terms: []scheduler.Term{{{Key: "rack", Operator: scheduler.Exists}}, {{Key: scheduler.LabelZone, Operator: scheduler.In, Values: []string{"a", "b"}}}}}
			d, err := s.Decide(v, l, r, now)
			text += fmt.Sprintln(d.Host, d.RunnerUp, d.Score, d.Fit, d.Out, err)
		}
		return text
	}
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 9))
		known := map[host.ID]host.Facts{}
		v, l := scheduler.NewView(nil, now), scheduler.NewLedger()
		for range 30 {
			before, was := v, decide(v, scheduler.NewLedger(), seed)
			var changed []host.Facts
			var gone []host.ID
			for range rng.IntN(20) {
				h := drawHost(rng, fmt.Sprintf("h%04d", rng.IntN(200)))
				if slices.ContainsFunc(changed, func(o host.Facts) bool { return o.ID == h.ID }) {
					continue
				}
				changed = append(changed, h)
			}
			for range rng.IntN(5) {
				id := host.ID(fmt.Sprintf("h%04d", rng.IntN(200)))
				if !slices.ContainsFunc(changed, func(o host.Facts) bool { return o.ID == id }) {
					gone = append(gone, id)
					delete(known, id)
				}
			}
			for _, h := range changed {
				known[h.ID] = h
			}
			v = v.With(now, changed, gone...)
			var all []host.Facts
			for _, h := range known {
				all = append(all, h)
				if got, ok := v.Host(h.ID); !ok || fmt.Sprint(got) != fmt.Sprint(h) {
					t.Fatalf("seed %d: %s is %+v, want %+v", seed, h.ID, got, h)
				}
			}
			if v.Len() != len(all) {
				t.Fatalf("seed %d: %d hosts, want %d", seed, v.Len(), len(all))
			}
			for id := range gone {
				if _, ok := v.Host(host.ID(fmt.Sprint(id))); ok {
					t.Fatalf("seed %d: a host that left is there", seed)
				}
			}
			if got, want := decide(v, l, seed+100), decide(scheduler.NewView(all, now), scheduler.NewLedger(), seed+100); got != want {
				t.Fatalf("seed %d: the changed view decides\n%s, a new one\n%s", seed, got, want)
			}
			same := before.Become(now, all)
			if got, want := decide(same, l, seed+100), decide(v, l, seed+100); got != want || same.Len() != v.Len() {
				t.Fatalf("seed %d: the view that became this one decides\n%s, this one\n%s", seed, got, want)
			}
			if got := decide(before, scheduler.NewLedger(), seed); got != was {
				t.Fatalf("seed %d: the view before the change decides\n%s, and did\n%s", seed, got, was)
			}
		}
	}
}

// Two views made of one do not know of each other.
func TestForksOfAViewStayApart(t *testing.T) {
	var hosts []host.Facts
	for i := range 10 {
		hosts = append(hosts, fit(fmt.Sprint("h", i)))
	}
	base := scheduler.NewView(hosts, now)
	for _, id := range []host.ID{"h0", "h1", "h2"} {
		base = base.With(now, nil, id) // lanes to be used again
	}
	a, b := base.With(now, nil, "h3"), base.With(now, nil, "h4")
	a, b = a.With(now, []host.Facts{fit("new")}), b.With(now, []host.Facts{fit("new")})
	for name, v := range map[string]*scheduler.View{"h4": a, "h3": b} {
		for _, id := range []string{name, "new", "h5"} {
			if f, ok := v.Host(host.ID(id)); !ok || f.ID != host.ID(id) || v.Len() != 7 {
				t.Errorf("%s of %d hosts is %+v, %v", id, v.Len(), f.ID, ok)
			}
		}
	}
}

func TestOneChangeCopiesOnePage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	hosts := drawFleet(rng, 10_000)
	v := scheduler.NewView(hosts, now)
	h := hosts[5000]
	h.Allocated.MilliCPU++
	next := v.With(now, []host.Facts{h})
	if shared, pages := scheduler.Shared(v, next), scheduler.Pages(v); shared != pages-1 {
		t.Errorf("%d of %d pages are shared, want all but one", shared, pages)
	}
	if got, _ := next.Host(h.ID); got.Allocated != h.Allocated {
		t.Errorf("the change is not there: %+v", got)
	}
}

func TestOvertakenReportDoesNotCount(t *testing.T) {
	newer, older := fit("a"), fit("a")
	newer.Usage.Revision, newer.Allocated.Slots = 8, 3
	older.Usage.Revision, older.Allocated.Slots, older.Cordoned = 7, 2, true
	v := scheduler.NewView([]host.Facts{newer}, now).With(now, []host.Facts{older})
	if got, _ := v.Host("a"); got.Allocated.Slots != 3 || !got.Cordoned {
		t.Errorf("got %+v: want the newer account, and the cordon, which is no report", got)
	}
}

// A truth that a host told with a sandbox is newer than its report, and says
// nothing of artifacts: what the row has come to say of them counts.
func TestArtifactsOfAnOvertakenReportCount(t *testing.T) {
	told, row := fit("a"), fit("a")
	told.Usage.Revision, row.Usage.Revision = 8, 7
	row.Artifacts = append(slices.Clone(row.Artifacts), "art-new")
	v := scheduler.NewView([]host.Facts{told}, now).With(now, []host.Facts{row})
	if got, _ := v.Host("a"); !slices.Contains(got.Artifacts, "art-new") || got.Usage.Revision != 8 {
		t.Errorf("%+v", got)
	}
	s, err := scheduler.New(scheduler.ClusterConfig())
	if err != nil {
		t.Fatal(err)
	}
	r := ask()
	r.Artifact = "art-new"
	if d, err := s.Choose(v, scheduler.NewLedger(), r, now); err != nil {
		t.Errorf("%v: %+v", err, d)
	}
}

func TestDecisionsAllocateNothing(t *testing.T) {
	s, err := scheduler.New(scheduler.ClusterConfig())
	if err != nil {
		t.Fatal(err)
	}
	var hosts []host.Facts
	for i := range 1000 {
		hosts = append(hosts, fit(fmt.Sprintf("h%04d", i)))
	}
	hosts[3].Ready = false
	v, l, r := scheduler.NewView(hosts, now), scheduler.NewLedger(), ask()
	r.Template, r.Exclude = "tpl-a", []host.ID{"h0001"}
	var d scheduler.Decision
	one := func() {
		r.Seed++
		if err := s.ChooseInto(&d, v, l, &r, now); err != nil {
			t.Fatal(err)
		}
		l.Release(r.Sandbox)
	}
	for range 1000 {
		one() // every host's page of the ledger is there then
	}
	if n := testing.AllocsPerRun(100, one); n != 0 {
		t.Errorf("%v allocations for a decision and its charge", n)
	}
}

func BenchmarkViewWithOneChange10000(b *testing.B) {
	hosts := drawFleet(rand.New(rand.NewPCG(1, 1)), 10_000)
	v := scheduler.NewView(hosts, now)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		h := hosts[n%len(hosts)]
		h.Allocated.MilliCPU++
		v = v.With(now, []host.Facts{h})
	}
}

func BenchmarkNewView10000(b *testing.B) {
	hosts := drawFleet(rand.New(rand.NewPCG(1, 1)), 10_000)
	for b.Loop() {
		scheduler.NewView(hosts, now)
	}
}

func BenchmarkViewBecome10000(b *testing.B) {
	hosts := drawFleet(rand.New(rand.NewPCG(1, 1)), 10_000)
	v := scheduler.NewView(hosts, now)
	for b.Loop() {
		v = v.Become(now, hosts)
	}
}

func BenchmarkChoose10000(b *testing.B) {
	s, err := scheduler.New(scheduler.ClusterConfig())
	if err != nil {
		b.Fatal(err)
	}
	hosts := make([]host.Facts, 10_000)
	for i := range hosts {
		hosts[i] = fit(fmt.Sprintf("h%05d", i))
		hosts[i].Allocated.MilliCPU = int64(i % 9000)
	}
	v, l, r := scheduler.NewView(hosts, now), scheduler.NewLedger(), ask()
	var d scheduler.Decision
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		r.Sandbox, r.Seed = sandbox.ID(ids[n%len(ids)]), uint64(n)
		if err := s.ChooseInto(&d, v, l, &r, now); err != nil {
			b.Fatal(err)
		}
	}
}

var ids = func() (all []string) {
	for n := range 2000 {
		all = append(all, fmt.Sprintf("i%024x", n))
	}
	return all
}()
