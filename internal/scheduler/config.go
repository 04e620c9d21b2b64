package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Weighted is a score with its weight in the mean.
type Weighted struct {
	Name   string  `yaml:"name"`
	Weight float64 `yaml:"weight"`
}

// Config names the plugins in the order in which they run, and their limits.
type Config struct {
	Prefilters []string   `yaml:"prefilters"`
	Filters    []string   `yaml:"enable_filters"`
	Scores     []Weighted `yaml:"enable_scorers"`
	Pick       string     `yaml:"least_select_name"`
	// StaleAfter is how long a host may be silent before it is not chosen.
	StaleAfter time.Duration `yaml:"stale_after"`
	// TopN is among how many of the best hosts a pick other than highest
	// chooses; 0 and -1: among all that are fit.
	TopN int `yaml:"priority_select_num"`
	// BestOf is how many hosts best_of_k looks at.
	BestOf int `yaml:"best_of"`
	// Factors weigh the parts of the scores that are means of factors.
	Factors map[string]float64 `yaml:"resource_weights"`
	// ParamFactor scales what the white lists add and take away.
	ParamFactor   float64  `yaml:"param_factor"`
	ActiveHosts   []string `yaml:"active_white_list"`
	NegativeHosts []string `yaml:"negative_white_list"`
	// Scarce labels keep their hosts for requests that ask for them.
	Scarce []ScarceLabel `yaml:"scarce_labels"`
	// Relax names filters that may be left out, one after the other, if no host
	// is fit. What they are is soft; resources and health never are.
	Relax    []string  `yaml:"relax"`
	Limits   Limits    `yaml:",inline"`
	Profiles []Profile `yaml:"profiles"`

	// external is the share of a score that those may have who are asked over
	// HTTP; 0: nobody is.
	external float64
}

// ScarceLabel is a label whose hosts are kept for those who ask for it. Without
// values, every value but false and 0 means that the host has the thing.
type ScarceLabel struct {
	Key    string   `yaml:"label_key"`
	Values []string `yaml:"label_values"`
}

// Limits are what filters compare with. A limit of 0 limits nothing, unless it
// is said otherwise.
type Limits struct {
	MaxCPUUtil float64 `yaml:"node_max_cpu_util"` // percent
	// MemReserved stays free of the physical memory, in bytes; by type in MiB
	// or as a fraction of what the host has. More than the host has becomes a
	// tenth of that.
	MemReserved       int64             `yaml:"node_max_mem_reserved"`
	MemReservedByType map[string]string `yaml:"node_max_mem_reserved_conf"`
	MaxSandboxes      int64             `yaml:"node_max_mvm_num"` // of a host that reports no limit
	MaxByType         map[string]int64  `yaml:"node_max_mvm_num_conf"`
	SandboxShare      float64           `yaml:"mvm_num_reserve_num_percent"` // of that limit; 0: all of it
	Creates           int64             `yaml:"create_concurrent_limit"`     // at least, on every host; 0: 50 where the host says nothing
	DiskUsage         float64           `yaml:"disk_usage_max_percent"`
	LoadPerCPU        float64           `yaml:"max_load_per_cpu"`
	MetricStale       time.Duration     `yaml:"metric_update_timeout"`
	LocalStale        time.Duration     `yaml:"local_metric_update_timeout"`
	MetadataStale     time.Duration     `yaml:"metadata_timeout"`
	Masters           int               `yaml:"masters"` // that choose among the same hosts; 0: 1

	// When more than ObserverShare of at least ObserverHosts hosts fall silent
	// at once, whoever hears them is suspected and not they. Then they stay, as
	// last known, for at most ObserverTime, and BlindShare of each host is kept
	// free.
	ObserverShare float64       `yaml:"observer_share"` // 0: never suspected
	ObserverHosts int           `yaml:"observer_hosts"`
	ObserverTime  time.Duration `yaml:"observer_time"`
	BlindShare    float64       `yaml:"blind_share"`
}

// Profile is another way to choose, for the requests that it matches. What it
// leaves empty is as in the Config, or as in the built-in profile Base.
type Profile struct {
	Name         string             `yaml:"name"`
	Base         string             `yaml:"base"`
	InstanceType string             `yaml:"instance_type"` // regular expression of the whole type; empty: any
	Labels       map[string]string  `yaml:"labels"`        // that the request has; empty: any
	Filters      []string           `yaml:"enable_filters"`
	Dropped      []string           `yaml:"allow_dropped_filters"` // guards that Filters may leave out
	Scores       []Weighted         `yaml:"enable_scorers"`
	Factors      map[string]float64 `yaml:"resource_weights"`
	Pick         string             `yaml:"least_select_name"`
	TopN         int                `yaml:"priority_select_num"`
}

// bases are the built-in profiles.
var bases = map[string]Profile{
	"balanced_spread":         {Scores: []Weighted{{"least_allocated", 1}, {"create_pressure", 1}}, Pick: "spread", TopN: 3},
	"template_locality_first": {Scores: []Weighted{{"template_locality", 5}, {"template_local_pressure", 2}, {"least_allocated", 1}}, Pick: "highest"},
	"binpack_utilization":     {Scores: []Weighted{{"binpack_score", 3}, {"resource_fit_score", 1}}, Pick: "highest"},
	"burst_balance":           {Scores: []Weighted{{"create_concurrency_score", 2}, {"least_allocated", 1}}, Pick: "weighted", TopN: 8},
	"template_reuse":          {Scores: []Weighted{{"template_locality", 3}, {"template_local_pressure", 1}, {"least_allocated", 1}}, Pick: "highest"},
	"mixed_binpack":           {Scores: []Weighted{{"resource_fit_score", 2}, {"binpack_score", 1}, {"create_pressure", 1}}, Pick: "highest"},
}

// guards are the filters that a profile leaves out only by name.
var guards = []string{"cpu", "mem", "disk", "slots", "template_locality", "realtime_create_num"}

// DefaultConfig spreads load, prefers hosts that hold the template, and lets
// only hosts that hold it be chosen.
func DefaultConfig() Config {
	return Config{
		Prefilters: []string{"excluded", "breaker", "health", "scope", "instance_type", "affinity", "topology_spread", "scarce", "mvm_limit"},
		Filters:    []string{"template_locality", "cpu", "mem", "disk", "slots"},
		Scores:     []Weighted{{"least_allocated", 1}, {"template_locality", 0.5}, {"create_pressure", 0.5}, {"affinity_score", 1}, {"topology_spread", 1}},
		Pick:       "highest",
		StaleAfter: 10 * time.Second,
		Scarce:     []ScarceLabel{{Key: "gpu"}},
		Limits: Limits{
			MaxSandboxes:  3000,
			ObserverShare: 0.5, ObserverHosts: 10, ObserverTime: time.Hour, BlindShare: 0.2,
		},
	}
}

// ClusterConfig is DefaultConfig with every guard that needs hosts to report
// what they measure, and with the limits that clusters run with.
func ClusterConfig() Config {
	c := DefaultConfig()
	c.Prefilters = append(c.Prefilters, "node_safety", "metric_stale", "local_metric_stale", "metadata_stale")
	c.Filters = append(c.Filters, "realtime_create_num", "disk_usage")
	c.Limits.MaxCPUUtil, c.Limits.MemReserved, c.Limits.Creates, c.Limits.DiskUsage, c.Limits.LoadPerCPU = 80, 10240<<20, 100, 80, 1
	c.Limits.MetricStale, c.Limits.LocalStale, c.Limits.MetadataStale = 300*time.Second, 300*time.Second, 40*time.Second
	return c
}

// Scheduler is a compiled Config. It is immutable and safe for concurrent use.
type Scheduler struct {
	limits   Limits
	stale    time.Duration
	scarce   []ScarceLabel
	profiles []*profile // the last one takes every request
	reserved map[string]reserve
}

// reserve is what stays free of a host's memory: bytes, or a share.
type reserve struct {
	bytes int64
	share float64
}

// profile is one compiled way to choose.
type profile struct {
	name    string
	kind    *regexp.Regexp
	labels  map[string]string
	filters []filter
	pre     int // how many of filters are prefilters
	scores  []score
	idle    []func(*cycle) bool // by score; nil: never
	weights []float64           // of scores; they sum to 1
	names   []string            // of scores
	factors []factorWeight
	pick    pick
	topN    int
	bestOf  int
	relax   []string
	active  map[string]bool
	damped  map[string]bool
	plus    float64 // what an active host gets, as a share of the mean
	minus   float64 // what a negative host loses, as a share of its own
	ranks   bool    // the pick needs all fit hosts
	steady  bool    // pages give the same to requests of one shape
}

// faults collects what is wrong with a configuration.
type faults struct{ all []error }

func (f *faults) bad(format string, args ...any) {
	f.all = append(f.all, fmt.Errorf("scheduler "+format, args...))
}

// New compiles c. Every unknown name and bad number is reported at once, with
// code fault.BadConfig.
func New(c Config) (*Scheduler, error) {
	var f faults
	s := &Scheduler{limits: c.Limits, stale: c.StaleAfter, scarce: c.Scarce, reserved: map[string]reserve{}}
	if c.StaleAfter <= 0 {
		f.bad("stale_after %s: must be positive", c.StaleAfter)
	}
	s.compileLimits(c, &f)
	names := map[string]bool{"default": true}
	for i, p := range c.Profiles {
		at := fmt.Sprintf("profiles[%d]", i)
		if p.Name == "" || names[p.Name] {
			f.bad("%s.name %q: must be there, and be no other profile's nor default", at, p.Name)
		}
		names[p.Name] = true
		s.profiles = append(s.profiles, compileProfile(at+".", p, c, &f))
	}
	s.profiles = append(s.profiles, compileProfile("", Profile{Name: "default"}, c, &f))
	if len(f.all) > 0 {
		return nil, fault.Wrap(fault.BadConfig, errors.Join(f.all...), "scheduler configuration")
	}
	return s, nil
}

func (s *Scheduler) compileLimits(c Config, f *faults) {
	l := &s.limits
	within := func(key string, x, least, most float64) {
		if !(x >= least && x <= most) { // written so that NaN is refused too
			f.bad("%s %v: must be within %v and %v", key, x, least, most)
		}
	}
	within("node_max_cpu_util", l.MaxCPUUtil, 0, 100)
	within("disk_usage_max_percent", l.DiskUsage, 0, 100)
	within("max_load_per_cpu", l.LoadPerCPU, 0, 1e6)
	within("mvm_num_reserve_num_percent", l.SandboxShare, 0, 1)
	within("observer_share", l.ObserverShare, 0, 1)
	within("blind_share", l.BlindShare, 0, 1)
	within("param_factor", c.ParamFactor, 0, 1)
	for _, n := range []struct {
		key   string
		value int64
	}{
		{"node_max_mem_reserved", l.MemReserved},
		{"node_max_mvm_num", l.MaxSandboxes},
		{"create_concurrent_limit", l.Creates},
		{"masters", int64(l.Masters)},
		{"observer_hosts", int64(l.ObserverHosts)},
		{"metric_update_timeout", int64(l.MetricStale)},
		{"local_metric_update_timeout", int64(l.LocalStale)},
		{"metadata_timeout", int64(l.MetadataStale)},
		{"observer_time", int64(l.ObserverTime)},
		{"best_of", int64(c.BestOf)},
	} {
		if n.value < 0 || n.value > most {
			f.bad("%s %d: must not be negative, nor above 2^60", n.key, n.value)
		}
	}
	l.Masters = max(1, l.Masters)
	if l.SandboxShare == 0 {
		l.SandboxShare = 1
	}
	for _, kind := range slices.Sorted(maps.Keys(l.MaxByType)) {
		if l.MaxByType[kind] < 0 {
			f.bad("node_max_mvm_num_conf.%s %d: must not be negative", kind, l.MaxByType[kind])
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(l.MemReservedByType)) {
		text := l.MemReservedByType[kind]
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x >= 0 && x <= 1<<40) {
			f.bad("node_max_mem_reserved_conf.%s %q: write MiB, or a fraction under 1", kind, text)
			continue
		}
		if x < 1 {
			s.reserved[kind] = reserve{share: x}
		} else {
			s.reserved[kind] = reserve{bytes: min(most, int64(x)<<20)}
		}
	}
	for i, sc := range c.Scarce {
		if sc.Key == "" {
			f.bad("scarce_labels[%d].label_key: must be there", i)
		}
	}
}

func compileProfile(at string, p Profile, c Config, f *faults) *profile {
	if p.Base != "" {
		base, ok := bases[p.Base]
		if !ok {
			f.bad("%sbase %q is unknown: known are %s", at, p.Base, known(bases))
		}
		p.Scores, p.Pick, p.TopN = orList(p.Scores, base.Scores), cmp.Or(p.Pick, base.Pick), cmp.Or(p.TopN, base.TopN)
	}
	if len(p.Filters) > 0 {
		for _, g := range guards {
			if slices.Contains(c.Filters, g) && !slices.Contains(p.Filters, g) && !slices.Contains(p.Dropped, g) {
				f.bad("%senable_filters leaves out %s: name it in allow_dropped_filters if that is meant", at, g)
			}
		}
	}
	p.Filters, p.Scores, p.Pick, p.TopN = orList(p.Filters, c.Filters), orList(p.Scores, c.Scores), cmp.Or(p.Pick, c.Pick), cmp.Or(p.TopN, c.TopN)
	out := &profile{name: p.Name, labels: p.Labels, topN: p.TopN, bestOf: cmp.Or(c.BestOf, 2), relax: c.Relax}
	if p.InstanceType != "" {
		var err error
		if _, err = regexp.Compile(p.InstanceType); err == nil { // by itself: it must not close our bracket
			out.kind, err = regexp.Compile("^(?:" + p.InstanceType + ")$")
		}
		if err != nil {
			f.bad("%sinstance_type: %v", at, err)
		}
	}
	out.compileFilters(at, c.Prefilters, p.Filters, f)
	out.compileScores(at, p.Scores, c.external, f)
	weights := maps.Clone(c.Factors)
	if weights == nil {
		weights = map[string]float64{}
	}
	maps.Copy(weights, p.Factors)
	out.compileFactors(at, weights, c.ParamFactor, f)
	out.active, out.damped = asSet(c.ActiveHosts), asSet(c.NegativeHosts)
	out.compilePick(at, p.Pick, f)
	out.steady = !out.ranks && !slices.ContainsFunc(out.names, func(name string) bool { return !slices.Contains(steadyScores, name) })
	if len(out.filters) > maxFilters {
		f.bad("%senable_filters: %d filters: at most %d", at, len(out.filters), maxFilters)
	}
	return out
}

func (p *profile) compileFilters(at string, pre, rest []string, f *faults) {
	for i, name := range slices.Concat(pre, rest) {
		key := fmt.Sprintf("%sprefilters[%d]", at, i)
		if i >= len(pre) {
			key = fmt.Sprintf("%senable_filters[%d]", at, i-len(pre))
		}
		one, ok := filters[name]
		if !ok {
			f.bad("%s: filter %q is unknown: known are %s", key, name, known(filters))
			continue
		}
		if slices.ContainsFunc(p.filters, func(have filter) bool { return have.name == name }) {
			f.bad("%s: filter %q is listed twice", key, name)
			continue
		}
		one.name = name
		p.filters = append(p.filters, one)
		if i < len(pre) {
			p.pre++
		}
	}
	for i, name := range p.relax {
		if one, ok := filters[name]; !ok || !one.soft {
			f.bad("%srelax[%d]: %q is no filter that may be left out: those are %s", at, i, name, strings.Join(softFilters(), ", "))
		}
	}
}

func softFilters() []string {
	var soft []string
	for name, one := range filters {
		if one.soft {
			soft = append(soft, name)
		}
	}
	slices.Sort(soft)
	return soft
}

// externalScore is the score of those who are asked over HTTP.
const externalScore = "external_http_score"

// compileScores gives the score of those who are asked over HTTP exactly the
// share that they may have, unless it is listed with less.
func (p *profile) compileScores(at string, list []Weighted, external float64, f *faults) {
	var sum, asked float64
	for i, w := range list {
		sc, ok := scores[w.Name]
		if !ok {
			f.bad("%senable_scorers[%d]: score %q is unknown: known are %s", at, i, w.Name, known(scores))
			continue
		}
		if slices.Contains(p.names, w.Name) {
			f.bad("%senable_scorers[%d]: score %q is listed twice", at, i, w.Name)
		}
		// Written so that NaN is refused too.
		if !(w.Weight > 0 && w.Weight <= 1e6) {
			f.bad("%senable_scorers[%d]: score %q has weight %v: must be over 0 and at most 1000000", at, i, w.Name, w.Weight)
		}
		p.scores, p.idle, p.weights, p.names = append(p.scores, sc), append(p.idle, idle[w.Name]), append(p.weights, w.Weight), append(p.names, w.Name)
		if sum += w.Weight; w.Name == externalScore {
			asked = w.Weight
		}
	}
	switch {
	case external == 0:
	case asked == 0:
		w := 1.0 // of all, if nothing else scores
		if sum > 0 {
			w = sum * external / (1 - external)
		}
		p.scores, p.idle, p.weights, p.names = append(p.scores, scores[externalScore]), append(p.idle, idle[externalScore]), append(p.weights, w), append(p.names, externalScore)
		sum += w
	case asked > sum*external*(1+1e-9):
		f.bad("%senable_scorers: %s has %.1f of 100 of the weight, and external.max_influence allows %.1f", at, externalScore, 100*asked/sum, 100*external)
	}
	for i := range p.weights {
		p.weights[i] /= sum
	}
}

func (p *profile) compileFactors(at string, weights map[string]float64, param float64, f *faults) {
	var sum float64
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		w := weights[name]
		if !(w >= 0 && w <= 1e6) {
			f.bad("%sresource_weights.%s %v: must be within 0 and 1000000", at, name, w)
			continue
		}
		switch name {
		case "active_whitelist":
			p.plus = w * cmp.Or(param, 0.015)
			continue
		case "negative_whitelist":
			p.minus = min(1, w*cmp.Or(param, 0.015))
			continue
		}
		one, ok := factors[name]
		if !ok {
			f.bad("%sresource_weights: factor %q is unknown: known are %s", at, name, known(factors))
			continue
		}
		if w > 0 {
			p.factors = append(p.factors, factorWeight{one, w})
			sum += w
		}
	}
	for i := range p.factors {
		p.factors[i].weight /= sum
	}
	for _, name := range []string{"real_time_weighted_average", "multi_factor_weighted_average"} {
		if slices.Contains(p.names, name) && len(p.factors) == 0 {
			f.bad("%sresource_weights: score %q needs at least one factor: known are %s", at, name, known(factors))
		}
	}
}

func (p *profile) compilePick(at, name string, f *faults) {
	pick, ok := pickers[name]
	if !ok {
		f.bad("%sleast_select_name: pick %q is unknown: known are %s", at, name, known(pickers))
	}
	if p.topN < -1 {
		f.bad("%spriority_select_num %d: must be -1 (all) or more", at, p.topN)
	}
	p.pick = pick
	p.ranks = pick.choose != nil || p.plus > 0 && len(p.active) > 0 || p.minus > 0 && len(p.damped) > 0
}

func orList[T any](own, other []T) []T {
	if len(own) > 0 {
		return own
	}
	return other
}

func asSet(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return set
}

func known[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}
