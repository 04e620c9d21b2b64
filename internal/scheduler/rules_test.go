package scheduler_test

import (
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

func rules(t testing.TB, text string) *scheduler.Rules {
	t.Helper()
	r, warnings, err := scheduler.ParseRules([]byte(text))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v\n%s", err, strings.Join(warnings, "\n"))
	}
	return r
}

func TestEmptyRulesAreTheDefaults(t *testing.T) {
	want := scheduler.DefaultRules()
	for _, text := range []string{"", "\n# nothing\n", "scheduler:\n", "scheduler: {}\ncubelet_conf:\n", "scheduler:\n  base: default\n  filter:\n    enable_filters:\n"} {
		if r := rules(t, text); !reflect.DeepEqual(*r, want) {
			t.Errorf("%q:\n%+v\nwant\n%+v", text, *r, want)
		}
	}
	want.Scheduler = scheduler.ClusterConfig()
	if r := rules(t, "scheduler: {base: cluster}"); !reflect.DeepEqual(*r, want) {
		t.Errorf("%+v\nwant\n%+v", *r, want)
	}
}

// whole is a document with every key.
const whole = `
scheduler:
  base: cluster
  prefilters: [excluded, breaker, health, scope, instance_type, affinity, topology_spread, scarce, mvm_limit, node_safety]
  filter:
    enable_filters: [template_locality, cpu, mem, disk, slots, realtime_create_num]
    relax: [template_locality]
    scarce_labels: [{label_key: gpu}, {label_key: npu, label_values: ["1", "2"]}]
    node_max_cpu_util: 75.5
    node_max_mem_reserved_in_mb: 4096
    node_max_mem_reserved_conf: {cubebox: "2048", large: 0.05}
    node_max_mvm_num: 500
    node_max_mvm_num_conf:
      large: {mvm_num: 20}
    mvm_num_reserve_num_percent: 0.9
    create_concurrent_limit: 80
    disk_usage_max_percent: 90
    max_load_per_cpu: 1.5
    metric_update_timeout: 2m
    local_metric_update_timeout: 3m
    metadata_timeout: 40s
    masters: 3
  score:
    enable_scorers:
      - least_allocated
      - {name: real_time_weighted_average, weight: 2}
      - name: template_locality
    resource_weights: {mvm_num: 2, local_create_num: 3, quota_cpu_usage: 1, quota_mem_usage: 1, active_whitelist: 1}
    param_factor: 0.02
    active_white_list: [host-1]
    negative_white_list: [host-2]
  priority_select_num: 3
  least_select_name: best_of_k
  best_of: 4
  profiles:
    - name: gpu
      base: mixed_binpack
      instance_type: gpu|large
      labels: {tier: gold}
      filter: {enable_filters: [cpu, mem, disk, slots]}
      allow_dropped_filters: [template_locality, realtime_create_num]
      score:
        enable_scorers: [binpack_score]
        resource_weights: {mvm_num: 1}
      least_select_name: highest
      priority_select_num: -1
  affinityconf:
    cubebox: {enable: true, cluster_labels: [a, b]}
  large_size_affinity_conf:
    cubebox: {enable: true, memory_lower_water_mark: 32Gi, cpu_lower_water_mark: "16", operator: Gt, cluster_labels: [big]}
  node_affinity_selector_allowed_keys: [rack]
  observer: {share: 0.6, hosts: 5, time: 30m, blind_share: 0.3}
  breaker: {window: 1m, min_calls: 3, rate: 0.4, pause: 3s, max_pause: 30s, probe: 20s, max_share: 0.1, runtime_weight: 0.25}
  queue: {per_tenant: 10, total: 100, weights: {gold: 3}, service: 20ms, in_flight: 7}
  external:
    candidates: 50
    max_influence: 20
    scorers:
      - {name: heat, url: "http://127.0.0.1:9/score", weight: 2, timeout: 100ms, max_in_flight: 3, failures: 2, pause: 1s, on_failure: closed}
cubelet_conf:
  exclude_loop_retry_code: [130400]
  reuse_retry_code: [130526]
  loop_retry_code: [130597]
  runtime_retry_code: [130545]
  circuit_break_code: [130508]
  backoff_retry_code: [130567]
  max_retries: 2
  loop_max_retries: 20
  transport_max_retries: 3
  runtime_max_retries: 2
  backoff_retry_delay: 10ms
  max_delay_in_second: 0.5
  retry_share: 0.2
  retry_burst: 50
`

func TestEveryKeyIsTaken(t *testing.T) {
	r := rules(t, whole)
	c := r.Scheduler
	for what, ok := range map[string]bool{
		"prefilters":  len(c.Prefilters) == 10 && c.Prefilters[9] == "node_safety",
		"filters":     len(c.Filters) == 6 && c.Filters[5] == "realtime_create_num" && c.Relax[0] == "template_locality",
		"scarce":      len(c.Scarce) == 2 && c.Scarce[1].Values[1] == "2",
		"limits":      c.Limits.MaxCPUUtil == 75.5 && c.Limits.MemReserved == 4096<<20 && c.Limits.MemReservedByType["large"] == "0.05" && c.Limits.MaxSandboxes == 500 && c.Limits.MaxByType["large"] == 20,
		"more limits": c.Limits.SandboxShare == 0.9 && c.Limits.Creates == 80 && c.Limits.DiskUsage == 90 && c.Limits.LoadPerCPU == 1.5 && c.Limits.Masters == 3,
		"stale":       c.Limits.MetricStale == 2*time.Minute && c.Limits.LocalStale == 3*time.Minute && c.Limits.MetadataStale == 40*time.Second,
		"scores":      reflect.DeepEqual(c.Scores, []scheduler.Weighted{{Name: "least_allocated", Weight: 1}, {Name: "real_time_weighted_average", Weight: 2}, {Name: "template_locality", Weight: 1}}),
		"factors":     c.Factors["local_create_num"] == 3 && c.ParamFactor == 0.02 && c.ActiveHosts[0] == "host-1" && c.NegativeHosts[0] == "host-2",
		"pick":        c.TopN == 3 && c.Pick == "best_of_k" && c.BestOf == 4,
		"profile":     len(c.Profiles) == 1 && c.Profiles[0].Name == "gpu" && c.Profiles[0].Labels["tier"] == "gold" && c.Profiles[0].TopN == -1 && c.Profiles[0].Scores[0].Weight == 1 && len(c.Profiles[0].Dropped) == 2,
		"affinity":    r.Affinity.Types["cubebox"].ClusterLabels[1] == "b" && r.Affinity.LargeSizes["cubebox"].Memory == "32Gi" && r.Affinity.LargeSizes["cubebox"].CPU == "16" && r.Affinity.AllowedKeys[0] == "rack",
		"observer":    c.Limits.ObserverShare == 0.6 && c.Limits.ObserverHosts == 5 && c.Limits.ObserverTime == 30*time.Minute && c.Limits.BlindShare == 0.3,
		"breaker":     r.Breaker == scheduler.BreakerConfig{Window: time.Minute, MinCalls: 3, Rate: 0.4, Pause: 3 * time.Second, MaxPause: 30 * time.Second, Probe: 20 * time.Second, MaxShare: 0.1, Runtime: 0.25},
		"queue":       r.Queue.PerTenant == 10 && r.Queue.Total == 100 && r.Queue.Weights["gold"] == 3 && r.Queue.Service == 20*time.Millisecond && r.Queue.InFlight == 7,
		"external":    r.External.Candidates == 50 && r.External.MaxInfluence == 20 && r.External.Scorers[0] == scheduler.Scorer{Name: "heat", URL: "http://127.0.0.1:9/score", Weight: 2, Timeout: 100 * time.Millisecond, InFlight: 3, Failures: 2, Pause: time.Second, OnFailure: "closed"},
		"retry": reflect.DeepEqual(r.Retry, scheduler.RetryConfig{
			Exclude: []int{130400}, Reuse: []int{130526}, Loop: []int{130597}, Runtime: []int{130545}, Circuit: []int{130508}, Backoff: []int{130567},
			MaxRetries: 2, LoopMaxRetries: 20, MaxTransport: 3, MaxRuntime: 2, FirstDelay: 10 * time.Millisecond, MaxDelay: 500 * time.Millisecond, Share: 0.2, Burst: 50,
		}),
	} {
		if !ok {
			t.Errorf("%s is not as the document says: %+v", what, r)
		}
	}
	text, err := r.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if again := rules(t, string(text)); !reflect.DeepEqual(again, r) {
		t.Errorf("written and read again it is another:\n%s\n%+v\n%+v", text, again, r)
	}
}

// Every fault is told at once, with its line, in the words of the file.
func TestFaultsOfRulesAreToldAtOnce(t *testing.T) {
	_, _, err := scheduler.ParseRules([]byte(`scheduler:
  prefilters: [health, healthy]
  filter:
    enable_filters: [cpu, cpu, memory]
    node_max_cpu_util: 120
    node_max_mem_reserved_in_mb: -1
    node_max_mem_reserved_conf: {large: lots}
    node_max_mvm_num_conf: {large: {mvm_num: many}}
    metric_update_timeout: 30
    colour: blue
  score:
    enable_scorers:
      - {name: least_allocated, weight: -1}
      - nonsense
      - {name: binpack_score, weight: .nan}
    resource_weights: {mvm: 1}
  least_select_name: best
  priority_select_num: 1.5
  profiles:
    - name: a
      base: unknown
      instance_type: "a)|(b"
      filter: {enable_filters: [mem]}
    - score: {enable_scorers: [least_allocated]}
  large_size_affinity_conf:
    large: {enable: true, memory_lower_water_mark: 3 apples, operator: Ge}
  breaker: {rate: 2}
  breaker: {rate: 0.5}
  queue: {per_tenant: 0, weights: {x: 0}}
  external:
    max_influence: 100
    scorers:
      - {name: a, url: "ftp://x"}
      - {name: a, url: "http://x", timeout: 5s, on_failure: maybe}
cubelet_conf:
  loop_retry_code: [12]
  max_retries: -1
  backoff_retry_delay: 0s
  max_delay_in_second: -1
`))
	if !errors.Is(err, fault.BadConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{
		`line 2: scheduler.prefilters[1]: filter "healthy" is unknown`,
		`line 4: scheduler.filter.enable_filters[1]: filter "cpu" is listed twice`,
		`line 4: scheduler.filter.enable_filters[2]: filter "memory" is unknown: known are`,
		`line 5: scheduler.filter.node_max_cpu_util 120: must be within 0 and 100`,
		`line 6: scheduler.filter.node_max_mem_reserved_in_mb -1: must be`,
		`line 7: scheduler.filter.node_max_mem_reserved_conf.large "lots": write MiB`,
		`line 8: scheduler.filter.node_max_mvm_num_conf.large.mvm_num "many": must be a whole number`,
		`line 9: scheduler.filter.metric_update_timeout "30": must be a duration with its unit`,
		`line 10: scheduler.filter.colour: no such key; here are create_concurrent_limit, `,
		`line 13: scheduler.score.enable_scorers[0]: score "least_allocated" has weight -1`,
		`line 14: scheduler.score.enable_scorers[1]: score "nonsense" is unknown`,
		`line 15: scheduler.score.enable_scorers[2].weight ".nan": must be a number`,
		`line 16: scheduler.score.resource_weights: factor "mvm" is unknown`,
		`line 17: scheduler.least_select_name: pick "best" is unknown`,
		`line 18: scheduler.priority_select_num "1.5": must be a whole number`,
		`line 21: scheduler.profiles[0].base "unknown" is unknown`,
		`line 22: scheduler.profiles[0].instance_type: error parsing regexp`,
		`line 23: scheduler.profiles[0].filter.enable_filters leaves out`,
		`line 24: scheduler.profiles[1].name "": must be there`,
		`line 26: scheduler.large_size_affinity_conf.large.memory_lower_water_mark: `,
		`line 26: scheduler.large_size_affinity_conf.large.operator: "Ge" is neither`,
		`line 27: scheduler.breaker.rate 2: must be over 0`,
		`line 28: scheduler.breaker is given twice`,
		`line 29: scheduler.queue.per_tenant 0, total 20000: must be positive`,
		`line 29: scheduler.queue.weights.x 0: must be over 0`,
		`line 31: scheduler.external.max_influence 100: must be over 0 and at most 90`,
		`line 33: scheduler.external.scorers[0].url: must be`,
		`line 34: scheduler.external.scorers[1].name "a": must be`,
		`line 34: scheduler.external.scorers[1].timeout 5s: must be within`,
		`line 34: scheduler.external.scorers[1].on_failure "maybe": must be open or closed`,
		`line 36: cubelet_conf.loop_retry_code: 12 is no ret code`,
		`line 37: cubelet_conf.max_retries -1: must be`,
		`line 38: cubelet_conf.backoff_retry_delay 0s, max_delay 1s: must be positive`,
		`line 39: cubelet_conf.max_delay_in_second -1: must be over 0`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it does not say: %s", want)
		}
	}
	for _, line := range strings.Split(err.Error(), "\n") {
		if !strings.Contains(line, "line ") || strings.Contains(line, "profiles[0].prefilters") || strings.Contains(line, "profiles[1].filter") {
			t.Errorf("it says: %s", line)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestAFaultIsToldOnce(t *testing.T) {
	_, _, err := scheduler.ParseRules([]byte("scheduler:\n  breaker: {window: 30}\n"))
	if err == nil || strings.Count(err.Error(), "breaker.window") != 1 {
		t.Error(err)
	}
}

func TestDocumentsThatAreNoRules(t *testing.T) {
	for text, want := range map[string]string{
		"scheduler: [1, 2":            "scheduler rules",
		"- a\n- b\n":                  "must be lines of key: value",
		"a: &x [1]\nb: *x":            "line 1: there are no anchors",
		"a: !!set {x}":                "line 1: there are no tags",
		"? a\n: b":                    "line 1: there are no tags (!), directives (%) and marked keys (?)",
		"a: 1\n---\nb: 2":             "second document",
		"scheduler:\n  filter: cpu\n": "line 2: scheduler.filter: must be lines of key: value",
		"scheduler:\n  filter:\n    enable_filters: cpu\n":              "line 3: scheduler.filter.enable_filters: must be a list",
		"scheduler:\n  filter:\n    enable_filters: [[cpu]]\n":          "line 3: scheduler.filter.enable_filters[0]: must be one plain value",
		"scheduler:\n  base: large\n":                                   `line 2: scheduler.base "large": must be default or cluster`,
		"scheduler:\n  profile: nobody\n":                               `line 2: scheduler.profile "nobody": is neither`,
		strings.Repeat("[", 100):                                        "too deep",
		strings.Repeat("- ", 100):                                       "too deep",
		strings.Repeat("#", 300<<10):                                    "bytes: at most",
		"scheduler:\n  least_select_name: " + strings.Repeat("x", 2000): "has 2000 bytes",
		"scheduler:\n  stale_afterwards: 1s\n":                          "no such key",
		"cubelet_conf: {max_delay: 1s, max_delay_in_second: 2}":         "is the same as max_delay",
		"scheduler:\n  score: {enable_scorers: [external_http_score]}\n  external: {scorers: [{name: a, url: 'http://a'}]}\n": "external_http_score has 100.0 of 100 of the weight, and external.max_influence allows 30.0",
	} {
		if _, _, err := scheduler.ParseRules([]byte(text)); !errors.Is(err, fault.BadConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v\nwant %s", text, err, want)
		}
	}
}

func TestWhatHasNoEffectIsTold(t *testing.T) {
	for text, want := range map[string]string{
		"scheduler:\n  pre_select_num: -1\n":                                         "line 2: scheduler.pre_select_num has no effect: every host",
		"cubelet_conf: {common_timeout_insec: 30}\n":                                 "line 1: cubelet_conf.common_timeout_insec has no effect: set master.create_timeout",
		"overhead: {vm_memory_base: 42Mi, list: [1]}\n":                              "overhead has no effect",
		"scheduler:\n  affinityconf:\n    x: {enable: true, disable_vm_cgroup: 1}\n": "line 3: scheduler.affinityconf.x.disable_vm_cgroup has no effect",
		"scheduler:\n  filter: {enable_filters: [mem, disk, slots]}\n":               "enable_filters leaves out cpu",
		"scheduler:\n  prefilters: [excluded, breaker, affinity]\n":                  "prefilters leaves out health",
		"scheduler:\n  score: {enable_scorers: [external_http_score]}\n":             "has no scorers",
	} {
		if _, warnings, err := scheduler.ParseRules([]byte(text)); err != nil || !strings.Contains(strings.Join(warnings, "\n"), want) {
			t.Errorf("%q: %v, %q, want %q", text, err, warnings, want)
		}
	}
}

// One profile is named for all; of a map of them, only that one counts, and
// those that have a route.
func TestProfilesByName(t *testing.T) {
	names := func(text string) (list []string) {
		for _, p := range rules(t, text).Scheduler.Profiles {
			list = append(list, p.Name)
		}
		return list
	}
	for text, want := range map[string]string{
		"scheduler: {profile: balanced_spread}": "balanced_spread",
		"scheduler:\n  profiles:\n    a: {base: template_reuse}\n    b: {instance_type: large, priority_select_num: 2}\n    c: {}\n":             "b",
		"scheduler:\n  profile: c\n  profiles:\n    a: {base: template_reuse}\n    c: {priority_select_num: 2}\n    b: {instance_type: large}\n": "b c",
		"scheduler:\n  profile: binpack_utilization\n  profiles: [{name: x, instance_type: x}]\n":                                                "x binpack_utilization",
	} {
		if got := strings.Join(names(text), " "); got != want {
			t.Errorf("%s\ngives %q, want %q", text, got, want)
		}
	}
	// Those that do not count are checked all the same.
	if _, _, err := scheduler.ParseRules([]byte("scheduler:\n  profile: a\n  profiles:\n    a: {}\n    b: {base: x}\n")); err == nil || !strings.Contains(err.Error(), `line 5: scheduler.profiles[1].base "x" is unknown`) {
		t.Error(err)
	}
}

// What is asked over HTTP moves a score by no more than was published.
func TestTheCeilingOfExternalScores(t *testing.T) {
	for _, list := range []string{"", "  score: {enable_scorers: [binpack_score, least_allocated]}\n", "  profile: template_reuse\n"} {
		r := rules(t, "scheduler:\n"+list+"  external:\n    max_influence: 20\n    scorers: [{name: a, url: 'http://127.0.0.1:1'}]\n")
		s, err := scheduler.New(r.Scheduler)
		if err != nil {
			t.Fatal(err)
		}
		hosts := []scheduler.Scored{}
		for _, x := range []float64{0, 100} {
			q := ask()
			q.Explain, q.External = true, map[host.ID]float64{"a": x}
			d, err := s.Decide(scheduler.NewView([]host.Facts{fit("a")}, now), scheduler.NewLedger(), q, now)
			if err != nil {
				t.Fatal(err)
			}
			hosts = append(hosts, d.Scores...)
		}
		if moved := hosts[1].Score - hosts[0].Score; moved < 19.999 || moved > 20.001 {
			t.Errorf("%q: the total moved by %v, want 20", list, moved)
		}
	}
}

func FuzzRules(f *testing.F) {
	f.Add(whole)
	f.Add("scheduler: {base: cluster, profile: template_reuse}\ncubelet_conf: {max_retries: 1}\n")
	f.Add("scheduler:\n  profiles:\n    a: {base: template_reuse}\n")
	f.Add("a: &a [x]\nb: [*a, *a]\n? x\n: !!y z\n")
	f.Add("scheduler:\n  queue: {service: 9999999h, weights: {a: 1e308}}\n  filter: {node_max_mvm_num_conf: {x: {mvm_num: 9223372036854775807}}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, _, err := scheduler.ParseRules([]byte(text))
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20+uint64(len(text))*4096 {
			t.Fatalf("%d bytes of text took %d bytes of memory", len(text), used)
		}
		if err != nil {
			if r != nil || !errors.Is(err, fault.BadConfig) {
				t.Fatalf("%v, and rules %v", err, r)
			}
			return
		}
		if _, err := scheduler.New(r.Scheduler); err != nil {
			t.Fatalf("it was good, and does not compile: %v", err)
		}
		written, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := scheduler.ParseRules(written)
		if err != nil {
			t.Fatalf("%v\n%s", err, written)
		}
		twice, err := again.YAML()
		if err != nil || string(twice) != string(written) {
			t.Fatalf("%v: written twice it differs:\n%s\n%s", err, written, twice)
		}
	})
}
