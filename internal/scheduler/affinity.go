package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// Operator compares a label of a host with the values of a requirement.
type Operator string

// Gt and Lt mean at least and at most, and only LabelMemory and LabelCores have
// an order. NotIn holds for a host without the label.
const (
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
	Gt           Operator = "Gt"
	Lt           Operator = "Lt"
)

// Requirement is one condition on a label.
type Requirement struct {
	Key      string   `json:"key"`
	Operator Operator `json:"operator"`
	Values   []string `json:"values"`

	amount int64 // of Gt and Lt, once checked
}

// Term holds where all of its requirements hold; an empty one holds everywhere.
type Term []Requirement

// Preferred is a term that is wished for.
type Preferred struct {
	Term   Term
	Weight int // 1..100
}

// Spread keeps a group of sandboxes apart by a label, such as the zone.
type Spread struct {
	Key string
	// MaxSkew is how many more than in the least used domain a domain may have
	// with this sandbox in it.
	MaxSkew int
	Hard    bool              // drop hosts that would break it, not only score them
	Labels  map[string]string // of the group, for who reads a decision
	Peers   map[host.ID]int   // where the group's sandboxes are
}

// Affinity is where a request wants to be, and where it does not. It is read
// only once Checked has returned it.
type Affinity struct {
	Terms     []Term // one of them must hold; none: everywhere
	Preferred []Preferred
	Spread    []Spread

	checked bool
}

// Bounds of what one request may ask.
const (
	maxRequirements = 20 // of a term; a selector has half of them
	maxValues       = 50
	maxTerms        = 10
	maxSelectorText = 4 << 10
)

// Checked returns a as the scheduler uses it, or fault.InvalidInput naming
// every fault. a must not change any more.
func (a Affinity) Checked() (*Affinity, error) {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(a.Terms) > maxTerms || len(a.Preferred) > maxTerms || len(a.Spread) > maxTerms {
		bad("affinity has more than %d terms of one kind", maxTerms)
	}
	a.Terms, a.Preferred = slices.Clone(a.Terms), slices.Clone(a.Preferred)
	for i, t := range a.Terms {
		a.Terms[i] = t.check(fmt.Sprintf("term %d", i), bad)
	}
	for i, p := range a.Preferred {
		at := fmt.Sprintf("preferred term %d", i)
		a.Preferred[i].Term = p.Term.check(at, bad)
		if p.Weight < 1 || p.Weight > 100 {
			bad("%s: weight %d is not within 1 and 100", at, p.Weight)
		}
	}
	for _, s := range a.Spread {
		if s.Key == "" || s.MaxSkew < 1 {
			bad("spread over %q with max skew %d: name a label, and a skew of at least 1", s.Key, s.MaxSkew)
		}
		for id, n := range s.Peers {
			if n < 0 {
				bad("spread over %q: host %s has %d peers", s.Key, id, n)
			}
		}
	}
	if len(faults) > 0 {
		return nil, fault.Wrap(fault.InvalidInput, errors.Join(faults...), "affinity")
	}
	a.checked = true
	return &a, nil
}

func (t Term) check(at string, bad func(string, ...any)) Term {
	if len(t) > maxRequirements {
		bad("%s has %d requirements: at most %d", at, len(t), maxRequirements)
	}
	t = slices.Clone(t)
	for i := range t {
		if err := t[i].check(); err != nil {
			bad("%s: %w", at, err)
		}
	}
	return t
}

func (r *Requirement) check() (err error) {
	switch {
	case r.Key == "":
		return errors.New("a requirement names no label")
	case len(r.Values) > maxValues:
		return fmt.Errorf("label %.80q has %d values: at most %d", r.Key, len(r.Values), maxValues)
	}
	switch r.Operator {
	case In, NotIn:
		if len(r.Values) == 0 {
			return fmt.Errorf("label %.80q: %s needs a value", r.Key, r.Operator)
		}
	case Exists, DoesNotExist:
		if len(r.Values) > 0 {
			return fmt.Errorf("label %.80q: %s takes no value", r.Key, r.Operator)
		}
	case Gt, Lt:
		if len(r.Values) != 1 {
			return fmt.Errorf("label %.80q: %s takes exactly one value", r.Key, r.Operator)
		}
		switch r.Key {
		case LabelMemory:
			r.amount, err = sandbox.Bytes(r.Values[0], "")
		case LabelCores:
			r.amount, err = sandbox.MilliCPU(r.Values[0])
		default:
			return fmt.Errorf("label %.80q has no order: %s works on %s and %s", r.Key, r.Operator, LabelMemory, LabelCores)
		}
	default:
		return fmt.Errorf("label %.80q: operator %.20q is unknown: known are In, NotIn, Exists, DoesNotExist, Gt, Lt", r.Key, r.Operator)
	}
	return err
}

// ParseSelector reads the selector of a request: a JSON list of requirements
// that must all hold, on the built-in labels and the allowed ones. Bad text is
// refused with fault.InvalidInput.
func ParseSelector(text string, allowed []string) (Term, error) {
	if len(text) > maxSelectorText {
		return nil, fault.New(fault.InvalidInput, "selector has %d bytes: at most %d", len(text), maxSelectorText)
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	var t Term
	if err := dec.Decode(&t); err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "selector: write a JSON list of {key, operator, values}")
	}
	if dec.More() {
		return nil, fault.New(fault.InvalidInput, "selector: something follows the list")
	}
	if len(t) > maxRequirements/2 {
		return nil, fault.New(fault.InvalidInput, "selector has %d requirements: at most %d", len(t), maxRequirements/2)
	}
	for _, r := range t {
		if !slices.Contains(builtInLabels, r.Key) && !slices.Contains(allowed, r.Key) {
			return nil, NotKnown(fmt.Sprintf("selector: label %.80q may not be selected by: known are %s", r.Key, strings.Join(slices.Concat(builtInLabels, allowed), ", ")))
		}
	}
	a, err := Affinity{Terms: []Term{t}}.Checked()
	if err != nil {
		return nil, err
	}
	return a.Terms[0], nil
}

// Annotations of a request that say where it wants to be.
const (
	AnnotationCluster      = "com.nodeaffinity.cluster.label"
	AnnotationInstanceType = "com.nodeaffinity.instancetype"
	AnnotationSelector     = "com.nodeaffinity.selector"
)

// TypeAffinity is where sandboxes of an instance type go unless they say
// otherwise.
type TypeAffinity struct {
	Enable        bool     `yaml:"enable"`
	ClusterLabels []string `yaml:"cluster_labels"`
}

// LargeSize sends large requests of an instance type to large hosts: one that
// reaches a water mark needs a host whose own size compares so with it. Its
// labels replace those of the type.
type LargeSize struct {
	Enable        bool     `yaml:"enable"`
	Memory        string   `yaml:"memory_lower_water_mark"`
	CPU           string   `yaml:"cpu_lower_water_mark"`
	Operator      Operator `yaml:"operator"` // Gt or Lt
	ClusterLabels []string `yaml:"cluster_labels"`
}

// AffinityConfig is what a cluster adds to the affinity of requests, by
// instance type.
type AffinityConfig struct {
	Types       map[string]TypeAffinity `yaml:"affinityconf"`
	LargeSizes  map[string]LargeSize    `yaml:"large_size_affinity_conf"`
	AllowedKeys []string                `yaml:"node_affinity_selector_allowed_keys"`
}

// AffinityPolicy is a checked AffinityConfig.
type AffinityPolicy struct {
	conf    AffinityConfig
	large   map[string]marks
	allowed []string
}

type marks struct{ mem, cpu int64 } // 0: none

// NewAffinityPolicy checks c. Requests may select by scarce labels too: else
// nobody could ask for what is kept for those who do. Every fault is reported
// with its key and fault.BadConfig.
func NewAffinityPolicy(c AffinityConfig, scarce []ScarceLabel) (*AffinityPolicy, error) {
	p := &AffinityPolicy{conf: c, large: map[string]marks{}, allowed: slices.Clone(c.AllowedKeys)}
	for _, label := range scarce {
		if !slices.Contains(p.allowed, label.Key) {
			p.allowed = append(p.allowed, label.Key)
		}
	}
	var faults []error
	for _, kind := range slices.Sorted(maps.Keys(c.LargeSizes)) {
		l := c.LargeSizes[kind]
		if !l.Enable {
			continue
		}
		at := "scheduler.large_size_affinity_conf." + kind
		var m marks
		read := func(key, text string, parse func(string) (int64, error)) int64 {
			if text == "" {
				return 0
			}
			n, err := parse(text)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s.%s: %w", at, key, err))
			}
			return n
		}
		m.mem = read("memory_lower_water_mark", l.Memory, func(s string) (int64, error) { return sandbox.Bytes(s, "") })
		m.cpu = read("cpu_lower_water_mark", l.CPU, sandbox.MilliCPU)
		if m == (marks{}) {
			faults = append(faults, fmt.Errorf("%s: set a water mark above 0, or enable: false", at))
		}
		if l.Operator != Gt && l.Operator != Lt {
			faults = append(faults, fmt.Errorf("%s.operator: %.20q is neither Gt nor Lt", at, l.Operator))
		}
		p.large[kind] = m
	}
	if len(faults) > 0 {
		return nil, fault.Wrap(fault.BadConfig, errors.Join(faults...), "scheduler configuration")
	}
	return p, nil
}

// Knows reports whether requests may select by a label.
func (p *AffinityPolicy) Knows(key string) bool {
	return slices.Contains(builtInLabels, key) || slices.Contains(p.allowed, key)
}

// NotKnown refuses a label that requests may not select by.
func NotKnown(message string) error {
	return &fault.Error{Code: fault.InvalidInput, Message: message, Remedy: "have the operator add the key to scheduler.node_affinity_selector_allowed_keys of the rules, or correct it"}
}

// Affinity returns where a request of that type, size and annotations must be.
// It is nil if that is everywhere.
func (p *AffinityPolicy) Affinity(kind string, size host.Resources, annotations map[string]string) (*Affinity, error) {
	var t Term
	var clusters []string
	if own := p.conf.Types[kind]; own.Enable {
		clusters = own.ClusterLabels
	}
	if m, ok := p.large[kind]; ok {
		l := p.conf.LargeSizes[kind]
		before := len(t)
		if m.mem > 0 && size.MemBytes >= m.mem {
			t = append(t, Requirement{Key: LabelMemory, Operator: l.Operator, Values: []string{l.Memory}})
		}
		if m.cpu > 0 && size.MilliCPU >= m.cpu {
			t = append(t, Requirement{Key: LabelCores, Operator: l.Operator, Values: []string{l.CPU}})
		}
		if len(t) > before && len(l.ClusterLabels) > 0 {
			clusters = l.ClusterLabels
		}
	}
	if text := annotations[AnnotationCluster]; text != "" {
		clusters = colons(text)
	}
	if len(clusters) > 0 {
		t = append(t, Requirement{Key: LabelCluster, Operator: In, Values: clusters})
	}
	if text := annotations[AnnotationInstanceType]; text != "" {
		t = append(t, Requirement{Key: LabelInstanceType, Operator: In, Values: colons(text)})
	}
	if text := annotations[AnnotationSelector]; text != "" {
		own, err := ParseSelector(text, p.allowed)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", AnnotationSelector, err)
		}
		t = append(t, own...)
	}
	if len(t) == 0 {
		return nil, nil
	}
	return Affinity{Terms: []Term{t}}.Checked()
}

func colons(text string) []string {
	return slices.DeleteFunc(strings.Split(text, ":"), func(s string) bool { return s == "" })
}
