package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// document is a file of rules.
type document struct {
	Scheduler section `yaml:"scheduler"`
	Cubelet   retries `yaml:"cubelet_conf"`
}

type section struct {
	Base       string                  `yaml:"base,omitempty"`
	Prefilters []string                `yaml:"prefilters"`
	Filter     filterPart              `yaml:"filter"`
	Score      scorePart               `yaml:"score"`
	TopN       int                     `yaml:"priority_select_num"`
	Pick       string                  `yaml:"least_select_name"`
	BestOf     int                     `yaml:"best_of"`
	Profile    string                  `yaml:"profile,omitempty"`
	Profiles   []profilePart           `yaml:"profiles,omitempty"`
	Types      map[string]TypeAffinity `yaml:"affinityconf,omitempty"`
	LargeSizes map[string]LargeSize    `yaml:"large_size_affinity_conf,omitempty"`
	Keys       []string                `yaml:"node_affinity_selector_allowed_keys,omitempty"`
	Observer   observer                `yaml:"observer"`
	Breaker    BreakerConfig           `yaml:"breaker"`
	Queue      QueueConfig             `yaml:"queue"`
	External   ExternalConfig          `yaml:"external"`
}

type filterPart struct {
	Filters           []string            `yaml:"enable_filters"`
	Relax             []string            `yaml:"relax,omitempty"`
	Scarce            []ScarceLabel       `yaml:"scarce_labels"`
	MaxCPUUtil        float64             `yaml:"node_max_cpu_util"`
	MemReserved       int64               `yaml:"node_max_mem_reserved_in_mb"`
	MemReservedByType map[string]string   `yaml:"node_max_mem_reserved_conf,omitempty"`
	MaxSandboxes      int64               `yaml:"node_max_mvm_num"`
	MaxByType         map[string]mostPart `yaml:"node_max_mvm_num_conf,omitempty"`
	SandboxShare      float64             `yaml:"mvm_num_reserve_num_percent"`
	Creates           int64               `yaml:"create_concurrent_limit"`
	DiskUsage         float64             `yaml:"disk_usage_max_percent"`
	LoadPerCPU        float64             `yaml:"max_load_per_cpu"`
	MetricStale       time.Duration       `yaml:"metric_update_timeout"`
	LocalStale        time.Duration       `yaml:"local_metric_update_timeout"`
	MetadataStale     time.Duration       `yaml:"metadata_timeout"`
	Masters           int                 `yaml:"masters"`
}

// filterKeys are those keys of a Config that stand under filter by their name.
var filterKeys = []string{
	"node_max_cpu_util", "node_max_mem_reserved_conf", "node_max_mvm_num", "node_max_mvm_num_conf", "mvm_num_reserve_num_percent", "create_concurrent_limit",
	"disk_usage_max_percent", "max_load_per_cpu", "metric_update_timeout", "local_metric_update_timeout", "metadata_timeout", "masters",
}

type mostPart struct {
	Sandboxes int64 `yaml:"mvm_num"`
}

type scorePart struct {
	Scores        []Weighted         `yaml:"enable_scorers"`
	Factors       map[string]float64 `yaml:"resource_weights,omitempty"`
	ParamFactor   float64            `yaml:"param_factor"`
	ActiveHosts   []string           `yaml:"active_white_list,omitempty"`
	NegativeHosts []string           `yaml:"negative_white_list,omitempty"`
}

type profilePart struct {
	Name         string            `yaml:"name"`
	Base         string            `yaml:"base,omitempty"`
	InstanceType string            `yaml:"instance_type,omitempty"`
	Labels       map[string]string `yaml:"labels,omitempty"`
	Filter       profileFilter     `yaml:"filter,omitempty"`
	Dropped      []string          `yaml:"allow_dropped_filters,omitempty"`
	Score        profileScore      `yaml:"score,omitempty"`
	Pick         string            `yaml:"least_select_name,omitempty"`
	TopN         int               `yaml:"priority_select_num,omitempty"`
}

type profileFilter struct {
	Filters []string `yaml:"enable_filters,omitempty"`
}

type profileScore struct {
	Scores  []Weighted         `yaml:"enable_scorers,omitempty"`
	Factors map[string]float64 `yaml:"resource_weights,omitempty"`
}

type observer struct {
	Share float64       `yaml:"share"`
	Hosts int           `yaml:"hosts"`
	Time  time.Duration `yaml:"time"`
	Blind float64       `yaml:"blind_share"`
}

type retries struct {
	Exclude        []int         `yaml:"exclude_loop_retry_code,omitempty"`
	Reuse          []int         `yaml:"reuse_retry_code,omitempty"`
	Loop           []int         `yaml:"loop_retry_code,omitempty"`
	Runtime        []int         `yaml:"runtime_retry_code,omitempty"`
	Circuit        []int         `yaml:"circuit_break_code,omitempty"`
	Backoff        []int         `yaml:"backoff_retry_code,omitempty"`
	MaxRetries     int           `yaml:"max_retries"`
	LoopMaxRetries int           `yaml:"loop_max_retries"`
	MaxTransport   int           `yaml:"transport_max_retries"`
	MaxRuntime     int           `yaml:"runtime_max_retries"`
	FirstDelay     time.Duration `yaml:"backoff_retry_delay"`
	MaxDelay       time.Duration `yaml:"max_delay"`
	MaxDelaySecond float64       `yaml:"max_delay_in_second,omitempty"`
	Share          float64       `yaml:"retry_share"`
	Burst          int           `yaml:"retry_burst"`
}

var retryKeys = []string{
	"exclude_loop_retry_code", "reuse_retry_code", "loop_retry_code", "runtime_retry_code", "circuit_break_code", "backoff_retry_code", "max_retries", "loop_max_retries",
	"transport_max_retries", "runtime_max_retries", "backoff_retry_delay", "max_delay", "retry_share", "retry_burst",
}

func documentOf(r *Rules) document {
	c, l, y := &r.Scheduler, &r.Scheduler.Limits, &r.Retry
	d := document{
		Scheduler: section{
			Prefilters: c.Prefilters, TopN: c.TopN, Pick: c.Pick, BestOf: c.BestOf,
			Filter: filterPart{
				Filters: c.Filters, Relax: c.Relax, Scarce: c.Scarce, MaxCPUUtil: l.MaxCPUUtil, MemReserved: mib(l.MemReserved), MemReservedByType: maps.Clone(l.MemReservedByType),
				MaxSandboxes: l.MaxSandboxes, SandboxShare: l.SandboxShare, Creates: l.Creates, DiskUsage: l.DiskUsage, LoadPerCPU: l.LoadPerCPU,
				MetricStale: l.MetricStale, LocalStale: l.LocalStale, MetadataStale: l.MetadataStale, Masters: l.Masters,
			},
			Score:    scorePart{c.Scores, maps.Clone(c.Factors), c.ParamFactor, c.ActiveHosts, c.NegativeHosts},
			Observer: observer{l.ObserverShare, l.ObserverHosts, l.ObserverTime, l.BlindShare},
			Types:    maps.Clone(r.Affinity.Types), LargeSizes: maps.Clone(r.Affinity.LargeSizes), Keys: r.Affinity.AllowedKeys,
			Breaker: r.Breaker, Queue: r.Queue, External: r.External,
		},
		Cubelet: retries{
			Exclude: y.Exclude, Reuse: y.Reuse, Loop: y.Loop, Runtime: y.Runtime, Circuit: y.Circuit, Backoff: y.Backoff,
			MaxRetries: y.MaxRetries, LoopMaxRetries: y.LoopMaxRetries, MaxTransport: y.MaxTransport, MaxRuntime: y.MaxRuntime,
			FirstDelay: y.FirstDelay, MaxDelay: y.MaxDelay, Share: y.Share, Burst: y.Burst,
		},
	}
	d.Scheduler.Queue.Weights = maps.Clone(r.Queue.Weights)
	d.Scheduler.External.Scorers = slices.Clone(r.External.Scorers)
	for kind, n := range l.MaxByType {
		if d.Scheduler.Filter.MaxByType == nil {
			d.Scheduler.Filter.MaxByType = map[string]mostPart{}
		}
		d.Scheduler.Filter.MaxByType[kind] = mostPart{n}
	}
	for _, p := range c.Profiles {
		d.Scheduler.Profiles = append(d.Scheduler.Profiles, profilePart{
			p.Name, p.Base, p.InstanceType, p.Labels, profileFilter{p.Filters}, p.Dropped, profileScore{p.Scores, p.Factors}, p.Pick, p.TopN,
		})
	}
	return d
}

// rules are what the document says. What cannot be said in a Config is a fault
// of the reader.
func (d *document) rules(r *reader) *Rules {
	s, f, y := &d.Scheduler, &d.Scheduler.Filter, &d.Cubelet
	if x := y.MaxDelaySecond; x != 0 {
		switch line := r.lines["cubelet_conf.max_delay_in_second"]; {
		case r.lines["cubelet_conf.max_delay"] > 0:
			r.faults = append(r.faults, placed{line, "cubelet_conf.max_delay_in_second: is the same as max_delay, which is there too"})
		case !(x > 0 && x <= 3600):
			r.faults = append(r.faults, placed{line, fmt.Sprintf("cubelet_conf.max_delay_in_second %v: must be over 0 and at most 3600", x)})
		default:
			y.MaxDelay = time.Duration(x * float64(time.Second))
		}
	}
	if f.MemReserved < 0 || f.MemReserved > most>>20 {
		r.faults = append(r.faults, placed{r.lines["scheduler.filter.node_max_mem_reserved_in_mb"], fmt.Sprintf("scheduler.filter.node_max_mem_reserved_in_mb %d: must be within 0 and %d", f.MemReserved, most>>20)})
		f.MemReserved = 0
	}
	out := &Rules{
		Scheduler: Config{
			Prefilters: s.Prefilters, Filters: f.Filters, Scores: s.Score.Scores, Pick: s.Pick, StaleAfter: DefaultConfig().StaleAfter, TopN: s.TopN, BestOf: s.BestOf,
			Factors: s.Score.Factors, ParamFactor: s.Score.ParamFactor, ActiveHosts: s.Score.ActiveHosts, NegativeHosts: s.Score.NegativeHosts, Scarce: f.Scarce, Relax: f.Relax,
			Limits: Limits{
				MaxCPUUtil: f.MaxCPUUtil, MemReserved: f.MemReserved << 20, MemReservedByType: f.MemReservedByType, MaxSandboxes: f.MaxSandboxes, SandboxShare: f.SandboxShare,
				Creates: f.Creates, DiskUsage: f.DiskUsage, LoadPerCPU: f.LoadPerCPU, MetricStale: f.MetricStale, LocalStale: f.LocalStale, MetadataStale: f.MetadataStale, Masters: f.Masters,
				ObserverShare: s.Observer.Share, ObserverHosts: s.Observer.Hosts, ObserverTime: s.Observer.Time, BlindShare: s.Observer.Blind,
			},
		},
		Affinity: AffinityConfig{s.Types, s.LargeSizes, s.Keys},
		Retry: RetryConfig{
			Exclude: y.Exclude, Reuse: y.Reuse, Loop: y.Loop, Runtime: y.Runtime, Circuit: y.Circuit, Backoff: y.Backoff,
			MaxRetries: y.MaxRetries, LoopMaxRetries: y.LoopMaxRetries, MaxTransport: y.MaxTransport, MaxRuntime: y.MaxRuntime,
			FirstDelay: y.FirstDelay, MaxDelay: y.MaxDelay, Share: y.Share, Burst: y.Burst,
		},
		Breaker: s.Breaker, Queue: s.Queue, External: s.External,
	}
	for kind, m := range f.MaxByType {
		if out.Scheduler.Limits.MaxByType == nil {
			out.Scheduler.Limits.MaxByType = map[string]int64{}
		}
		out.Scheduler.Limits.MaxByType[kind] = m.Sandboxes
	}
	for _, p := range s.Profiles {
		out.Scheduler.Profiles = append(out.Scheduler.Profiles, Profile{
			p.Name, p.Base, p.InstanceType, p.Labels, p.Filter.Filters, p.Dropped, p.Score.Scores, p.Score.Factors, p.Pick, p.TopN,
		})
	}
	return out
}
