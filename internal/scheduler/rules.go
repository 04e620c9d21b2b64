package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Rules are everything that a cluster may set of how its sandboxes are placed:
// one document, with the keys of other systems where they have any.
type Rules struct {
	Scheduler Config
	Affinity  AffinityConfig
	Retry     RetryConfig
	Breaker   BreakerConfig
	Queue     QueueConfig
	External  ExternalConfig
}

// ExternalConfig names who is asked for scores over HTTP.
type ExternalConfig struct {
	// Candidates is how many of the best hosts they are asked about.
	Candidates int `yaml:"candidates"`
	// MaxInfluence is the ceiling: all of them together move what a host scores
	// by at most so much of 100.
	MaxInfluence float64  `yaml:"max_influence"`
	Scorers      []Scorer `yaml:"scorers"`
}

// Scorer is one who is asked. What is 0 is as DefaultScorer says.
type Scorer struct {
	Name    string        `yaml:"name"`
	URL     string        `yaml:"url"`
	Weight  float64       `yaml:"weight"` // among the scorers that answer
	Timeout time.Duration `yaml:"timeout"`
	// InFlight is how many calls of it may be under way: beyond that it is not
	// asked.
	InFlight int `yaml:"max_in_flight"`
	// After Failures in a row it is not asked for Pause; then one call probes it.
	Failures  int           `yaml:"failures"`
	Pause     time.Duration `yaml:"pause"`
	OnFailure string        `yaml:"on_failure"` // open: do without its scores; closed: refuse to choose
}

// DefaultScorer is what a scorer does not say of itself.
func DefaultScorer() Scorer {
	return Scorer{Weight: 1, Timeout: 200 * time.Millisecond, InFlight: 8, Failures: 5, Pause: 5 * time.Second, OnFailure: "open"}
}

// DefaultRules are those of an empty document.
func DefaultRules() Rules {
	return Rules{
		Scheduler: DefaultConfig(), Retry: DefaultRetryConfig(), Breaker: DefaultBreakerConfig(), Queue: DefaultQueueConfig(),
		External: ExternalConfig{Candidates: 100, MaxInfluence: 30},
	}
}

func (c *ExternalConfig) check(bad func(format string, args ...any)) {
	if c.Candidates < 1 || c.Candidates > 1000 {
		bad("candidates %d: must be within 1 and 1000", c.Candidates)
	}
	if !(c.MaxInfluence > 0 && c.MaxInfluence <= 90) {
		bad("max_influence %v: must be over 0 and at most 90, of 100", c.MaxInfluence)
	}
	if len(c.Scorers) > 8 {
		bad("scorers: %d of them: at most 8", len(c.Scorers))
	}
	names := map[string]bool{}
	for i := range c.Scorers {
		s, d := &c.Scorers[i], DefaultScorer()
		s.Weight, s.Timeout, s.InFlight = cmp.Or(s.Weight, d.Weight), cmp.Or(s.Timeout, d.Timeout), cmp.Or(s.InFlight, d.InFlight)
		s.Failures, s.Pause, s.OnFailure = cmp.Or(s.Failures, d.Failures), cmp.Or(s.Pause, d.Pause), cmp.Or(s.OnFailure, d.OnFailure)
		at := fmt.Sprintf("scorers[%d]", i)
		if !scorerName.MatchString(s.Name) || names[s.Name] {
			bad("%s.name %.40q: must be 1-64 of a-z, 0-9, _ and -, and no other scorer's", at, s.Name)
		}
		names[s.Name] = true
		if u, err := url.Parse(s.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			bad("%s.url: must be an http:// or https:// URL without user and password", at)
		}
		if !(s.Weight > 0 && s.Weight <= 1e6) {
			bad("%s.weight %v: must be over 0 and at most 1000000", at, s.Weight)
		}
		if s.Timeout < time.Millisecond || s.Timeout > 2*time.Second {
			bad("%s.timeout %s: must be within 1ms and 2s", at, s.Timeout)
		}
		if s.InFlight < 1 || s.InFlight > 1000 {
			bad("%s.max_in_flight %d: must be within 1 and 1000", at, s.InFlight)
		}
		if s.Failures < 1 || s.Failures > 1000 {
			bad("%s.failures %d: must be within 1 and 1000", at, s.Failures)
		}
		if s.Pause < time.Millisecond || s.Pause > time.Hour {
			bad("%s.pause %s: must be within 1ms and 1h", at, s.Pause)
		}
		if s.OnFailure != "open" && s.OnFailure != "closed" {
			bad("%s.on_failure %.20q: must be open or closed", at, s.OnFailure)
		}
	}
}

var scorerName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// ParseRules reads a document of rules. What it leaves out is as DefaultRules
// says, or as ClusterConfig does after base: cluster. It returns warnings of
// what has no effect, or is dangerous; or fault.BadConfig with every fault, each
// with its line.
func ParseRules(text []byte) (*Rules, []string, error) {
	body, wrong := tree(text)
	if wrong != nil {
		return nil, nil, fault.Wrap(fault.BadConfig, errors.New(wrong.String()), "scheduler rules")
	}
	var first document
	r := newReader()
	if body != nil {
		r.read("", body, reflect.ValueOf(&first).Elem())
	}
	r = &reader{lines: r.lines, odd: r.odd}
	defaults := DefaultRules()
	switch first.Scheduler.Base {
	case "", "default":
	case "cluster":
		defaults.Scheduler = ClusterConfig()
	default:
		r.faults = append(r.faults, placed{r.lines["scheduler.base"], fmt.Sprintf("scheduler.base %.40q: must be default or cluster", first.Scheduler.Base)})
	}
	d := documentOf(&defaults)
	if body != nil {
		r.read("", body, reflect.ValueOf(&d).Elem())
	}
	rules := d.rules(r)
	rules.check(r)
	if d.Scheduler.Profile != "" || r.odd["scheduler.profiles"] {
		rules.keepProfile(d.Scheduler.Profile, r)
	}
	if len(r.faults) > 0 {
		return nil, r.warnings, r.error()
	}
	return rules, append(r.warnings, rules.doubts()...), nil
}

func newReader() *reader { return &reader{lines: map[string]int{}, odd: map[string]bool{}} }

// error joins the faults, in the order of the file, each once.
func (r *reader) error() error {
	slices.SortStableFunc(r.faults, func(a, b placed) int { return cmp.Compare(a.line, b.line) })
	var all []error
	seen := map[string]bool{}
	for _, f := range r.faults {
		if text := f.String(); !seen[text] {
			seen[text] = true
			all = append(all, errors.New(text))
		}
	}
	return fault.Wrap(fault.BadConfig, errors.Join(all...), "scheduler rules")
}

// check compiles every part, and tells what is wrong where it is written.
func (r *Rules) check(in *reader) {
	var external faults
	r.External.check(func(format string, args ...any) { external.bad("external."+format, args...) })
	r.Scheduler.external = 0
	if len(r.External.Scorers) > 0 {
		r.Scheduler.external = r.External.MaxInfluence / 100
	}
	_, placer := New(r.Scheduler)
	_, affinity := NewAffinityPolicy(r.Affinity, nil)
	_, retry := NewRetryPolicy(r.Retry)
	_, breaker := NewBreakers(r.Breaker)
	_, queue := NewQueue(r.Queue)
	var all []string
	for _, err := range []error{errors.Join(external.all...), placer, affinity, retry, breaker, queue} {
		for _, one := range leaves(err) {
			all = append(all, strings.TrimPrefix(strings.TrimPrefix(one.Error(), "scheduler."), "scheduler "))
		}
	}
	for _, text := range all {
		in.place(text, all)
	}
}

// leaves takes the fault of a part apart.
func leaves(err error) []error {
	var whole *fault.Error
	if errors.As(err, &whole) {
		err = whole.Cause
	}
	var list interface{ Unwrap() []error }
	switch {
	case errors.As(err, &list):
		return list.Unwrap()
	case err != nil:
		return []error{err}
	}
	return nil
}

// homes are the sections in which keys of a Config and of a RetryConfig stand
// in a document; the others stand in the section scheduler itself.
var homes = map[string]string{
	"enable_filters": "filter.enable_filters", "relax": "filter.relax", "scarce_labels": "filter.scarce_labels",
	"node_max_mem_reserved": "filter.node_max_mem_reserved_in_mb",
	"enable_scorers":        "score.enable_scorers", "resource_weights": "score.resource_weights", "param_factor": "score.param_factor",
	"observer_share": "observer.share", "observer_hosts": "observer.hosts", "observer_time": "observer.time", "blind_share": "observer.blind_share",
}

var (
	profileKey = regexp.MustCompile(`^profiles\[\d+\]\.`)
	keyWords   = regexp.MustCompile(`[a-z][a-z0-9_]*`)
)

// place notes a fault of a part at the line of its key. A profile that inherits
// what is wrong says nothing of it: it is among all without the profile too.
func (r *reader) place(text string, all []string) {
	end := strings.IndexFunc(text, func(c rune) bool { return c == ' ' || c == ':' })
	if end < 0 {
		end = len(text)
	}
	profile := profileKey.FindString(text)
	key := strings.TrimPrefix(text[:end], profile)
	path := "scheduler." + profile + home(key)
	if slices.Contains(retryKeys, key) {
		path = "cubelet_conf." + key
	}
	if profile != "" && slices.Contains(all, text[len(profile):]) && r.lines["scheduler."+profile+listOf(home(key))] == 0 {
		return
	}
	line := r.line(path)
	for _, other := range keyWords.FindAllString(text[end:], -1) {
		if line == 0 { // it is about several keys: any of them will do
			line = r.lines[path[:strings.LastIndexByte(path, '.')+1]+other]
		}
	}
	r.faults = append(r.faults, placed{line, path + text[end:]})
}

// line returns where a key is, or that of the item or section that lacks it.
func (r *reader) line(path string) int {
	for path != "scheduler" && path != "cubelet_conf" {
		if n := r.lines[path]; n > 0 {
			return n
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return 0
}

// listOf is the key of the list or map that a key is of: without the number or
// name of its item.
func listOf(path string) string {
	path, _, _ = strings.Cut(path, "[")
	if words := strings.Split(path, "."); len(words) > 2 {
		path = words[0] + "." + words[1]
	}
	return path
}

func first(path string) string {
	word, _, _ := strings.Cut(path, ".")
	word, _, _ = strings.Cut(word, "[")
	return word
}

func home(key string) string {
	word := first(key)
	if to, ok := homes[word]; ok {
		return to + key[len(word):]
	}
	if slices.Contains(filterKeys, word) {
		return "filter." + key
	}
	return key
}

// keepProfile makes the named profile that of all requests which no other
// takes. Of a map of profiles, those that nothing leads to are only checked.
func (r *Rules) keepProfile(name string, in *reader) {
	c := &r.Scheduler
	var chosen *Profile
	if _, ok := bases[name]; ok {
		chosen = &Profile{Name: name, Base: name}
	}
	var kept []Profile
	for i, p := range c.Profiles {
		switch {
		case p.Name == name:
			chosen = &c.Profiles[i]
		case !in.odd["scheduler.profiles"] || p.InstanceType != "" || len(p.Labels) > 0:
			kept = append(kept, p)
		}
	}
	if name != "" && chosen == nil {
		in.faults = append(in.faults, placed{in.lines["scheduler.profile"], fmt.Sprintf("scheduler.profile %.40q: is neither one of scheduler.profiles nor built in: those are %s", name, known(bases))})
		return
	}
	if chosen != nil {
		kept = append(kept, *chosen)
	}
	c.Profiles = kept
}

// doubts are warnings of rules that are sound and dangerous.
func (r *Rules) doubts() []string {
	var all []string
	for _, g := range []string{"cpu", "mem", "disk", "slots"} {
		if !slices.Contains(r.Scheduler.Filters, g) {
			all = append(all, fmt.Sprintf("scheduler.filter.enable_filters leaves out %s: hosts refuse what they have no room for, and creates are tried in vain", g))
		}
	}
	for _, g := range []string{"excluded", "breaker", "health", "affinity"} {
		if !slices.Contains(r.Scheduler.Prefilters, g) {
			all = append(all, fmt.Sprintf("scheduler.prefilters leaves out %s: hosts are chosen that should not be", g))
		}
	}
	if len(r.External.Scorers) == 0 && slices.ContainsFunc(r.Scheduler.Scores, func(w Weighted) bool { return w.Name == externalScore }) {
		all = append(all, "scheduler.score.enable_scorers has external_http_score, and scheduler.external has no scorers: every host gets the same of it")
	}
	return all
}

// YAML writes the rules as a document that says everything.
func (r *Rules) YAML() ([]byte, error) {
	d := documentOf(r)
	b, err := yaml.MarshalWithOptions(d, yaml.UseSingleQuote(false))
	if err != nil {
		return nil, fault.Wrap(fault.Bug, err, "scheduler rules as YAML")
	}
	return b, nil
}

// mib rounds bytes up to what a document says.
func mib(n int64) int64 { return int64(math.Ceil(float64(n) / (1 << 20))) }
