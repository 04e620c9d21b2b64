package scheduler

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a document of rules: what is larger is no configuration.
const (
	maxRules   = 256 << 10 // bytes
	maxNesting = 30        // of brackets, and of dashes on one line
	maxItems   = 1000      // of a list or map
	maxWord    = 1000      // bytes of one value
)

// reader puts a tree of YAML into structs by their yaml tags. It goes through
// the tree by itself, so that every fault is found, with its line, and not only
// the first; and it changes only what the tree names.
type reader struct {
	lines    map[string]int // where each key was given
	faults   []placed
	warnings []string
	odd      map[string]bool // keys that lists were asked of and maps were given
}

// placed is a fault and the line that it is about; 0: none.
type placed struct {
	line int
	text string
}

func (p placed) String() string {
	if p.line == 0 {
		return p.text
	}
	return fmt.Sprintf("line %d: %s", p.line, p.text)
}

// tree parses text. What lets a few bytes stand for very many is refused before
// it is looked at.
func tree(text []byte) (ast.Node, *placed) {
	if len(text) > maxRules {
		return nil, &placed{0, fmt.Sprintf("the file has %d bytes: at most %d", len(text), maxRules)}
	}
	depth, dashes, line := 0, 0, 0
	for _, t := range lexer.Tokenize(string(text)) {
		at := t.Position.Line
		if at != line {
			line, dashes = at, 0
		}
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return nil, &placed{at, "there are no anchors (&), aliases (*) and merges (<<) here: write out what they stand for"}
		case token.TagType, token.DirectiveType, token.MappingKeyType:
			return nil, &placed{at, "there are no tags (!), directives (%) and marked keys (?) here: write plain keys and values"}
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType:
			dashes++
		default:
		}
		if depth > maxNesting || dashes > maxNesting || t.Position.Column > 400 && t.Type == token.MappingValueType {
			return nil, &placed{at, "lists and maps lie too deep in each other"}
		}
	}
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, &placed{0, strings.TrimSpace(yaml.FormatError(err, false, false))}
	}
	var body ast.Node
	for i, d := range file.Docs {
		if i > 0 {
			return nil, &placed{lineOf(d), "the file holds a second document: keep one"}
		}
		body = d.Body
	}
	return body, nil
}

func lineOf(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

func (r *reader) bad(n ast.Node, format string, args ...any) {
	r.faults = append(r.faults, placed{lineOf(n), fmt.Sprintf(format, args...)})
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	weightedType = reflect.TypeFor[Weighted]()
)

// read puts n, which stands at key at, into v.
func (r *reader) read(at string, n ast.Node, v reflect.Value) {
	if _, null := n.(*ast.NullNode); null || n == nil {
		return // empty counts as unset
	}
	switch {
	case v.Type() == weightedType:
		if name, ok := word(n); ok {
			v.Set(reflect.ValueOf(Weighted{name, 1}))
			return
		}
		v.Field(1).SetFloat(1) // unless it says otherwise
		r.record(at, n, v)
	case v.Kind() == reflect.Struct:
		r.record(at, n, v)
	case v.Kind() == reflect.Map:
		r.table(at, n, v)
	case v.Kind() == reflect.Slice:
		r.list(at, n, v)
	default:
		r.leaf(at, n, v)
	}
}

// pairs returns the lines of a map, or says that n is none.
func (r *reader) pairs(at string, n ast.Node) []*ast.MappingValueNode {
	var all []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		all = n.Values
	case *ast.MappingValueNode:
		all = []*ast.MappingValueNode{n}
	case *ast.CommentGroupNode:
		return nil
	default:
		r.bad(n, "%s: must be lines of key: value", at)
		return nil
	}
	if len(all) > maxItems {
		r.bad(n, "%s has %d lines: at most %d", at, len(all), maxItems)
		return nil
	}
	seen, once := map[string]bool{}, all[:0:0]
	for _, p := range all {
		key := p.Key.GetToken().Value
		if len(key) > maxWord {
			r.bad(p.Key, "%s: a key has %d bytes: at most %d", at, len(key), maxWord)
			continue
		}
		if seen[key] {
			r.bad(p.Key, "%s is given twice", join(at, key))
			continue
		}
		seen[key] = true
		r.lines[join(at, key)] = lineOf(p.Key)
		once = append(once, p)
	}
	return once
}

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

func (r *reader) record(at string, n ast.Node, v reflect.Value) {
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		fields[key] = v.Field(i)
	}
	for _, p := range r.pairs(at, n) {
		key := p.Key.GetToken().Value
		full := join(at, key)
		if f, ok := fields[key]; ok && key != "" {
			r.read(full, p.Value, f)
			continue
		}
		switch why := elsewhere(full); {
		case why != "":
			r.warnings = append(r.warnings, placed{lineOf(p.Key), full + " has no effect: " + why}.String())
		default:
			r.bad(p.Key, "%s: no such key; here are %s", full, known(fields))
		}
	}
}

// table adds to a map, over what is there.
func (r *reader) table(at string, n ast.Node, v reflect.Value) {
	for _, p := range r.pairs(at, n) {
		key := p.Key.GetToken().Value
		one := reflect.New(v.Type().Elem()).Elem()
		r.read(join(at, key), p.Value, one)
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(reflect.ValueOf(key), one)
	}
}

// list replaces a list. One of named things may be a map from names.
func (r *reader) list(at string, n ast.Node, v reflect.Value) {
	items, names := []ast.Node{}, []string{}
	switch n := n.(type) {
	case *ast.SequenceNode:
		items = n.Values
	case *ast.MappingNode, *ast.MappingValueNode:
		if !named(v.Type().Elem()) {
			r.bad(n, "%s: must be a list", at)
			return
		}
		r.odd[at] = true
		for _, p := range r.pairs(at, n) {
			items, names = append(items, p.Value), append(names, p.Key.GetToken().Value)
		}
	default:
		r.bad(n, "%s: must be a list", at)
		return
	}
	if len(items) > maxItems {
		r.bad(n, "%s has %d items: at most %d", at, len(items), maxItems)
		return
	}
	if len(items) == 0 {
		v.SetZero()
		return
	}
	all := reflect.MakeSlice(v.Type(), len(items), len(items))
	for i, item := range items {
		key := fmt.Sprintf("%s[%d]", at, i)
		r.lines[key] = lineOf(item)
		r.read(key, item, all.Index(i))
		if len(names) > 0 {
			if own := all.Index(i).Field(0); own.String() == "" {
				own.SetString(names[i])
			} else if own.String() != names[i] {
				r.bad(item, "%s.name %q: its key is %q already", key, own, names[i])
			}
		}
	}
	v.Set(all)
}

// named reports whether things of that kind begin with a name, and may be keyed
// by it.
func named(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != weightedType && t.Field(0).Tag.Get("yaml") == "name"
}

func (r *reader) leaf(at string, n ast.Node, v reflect.Value) {
	text, ok := word(n)
	if !ok {
		r.bad(n, "%s: must be one plain value", at)
		return
	}
	if len(text) > maxWord {
		r.bad(n, "%s has %d bytes: at most %d", at, len(text), maxWord)
		return
	}
	wants := func(what string) { r.bad(n, "%s %.40q: must be %s", at, text, what) }
	switch {
	case v.Type() == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			wants("a duration with its unit, such as 30s or 5ms")
			return
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			wants("true or false")
			return
		}
		v.SetBool(b)
	case v.CanInt():
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			wants("a whole number")
			return
		}
		v.SetInt(i)
	default:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			wants("a number")
			return
		}
		v.SetFloat(x)
	}
}

// word returns the text of a plain value as it stands in the file.
func word(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return strings.TrimSpace(n.Value.Value), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// unused are keys of other systems' files that mean nothing here, and why. A *
// stands for one word, a key covers what is under it.
var unused = []struct{ key, why string }{
	{"scheduler.stale_after", "set master.host_stale_after in the configuration of the master"},
	{"scheduler.pre_select_num", "every host is looked at"},
	{"scheduler.in_backoff_mode", "nothing but soft filters is ever relaxed: set scheduler.filter.relax"},
	{"scheduler.backoff", "nothing but soft filters is ever relaxed: set scheduler.filter.relax"},
	{"scheduler.disable_circuit_filter", "set scheduler.breaker.max_share to 0, or leave breaker out of scheduler.prefilters"},
	{"scheduler.disable_backoff_filter_instance_type", "nothing but soft filters is ever relaxed: set scheduler.filter.relax"},
	{"scheduler.score.score_interval", "scores are made of what is known at each choice"},
	{"scheduler.filter.sync_meta_data_interval", "set scheduler.filter.metadata_timeout"},
	{"scheduler.overcommit_ratio", "hosts report what they have to give: set cubelet.cpu_overcommit and cubelet.mem_overcommit there"},
	{"scheduler.affinityconf.*.disable_vm_cgroup", "each sandbox has limits of its own"},
	{"scheduler.affinityconf.*.disable_host_cgroup", "each sandbox has limits of its own"},
	{"scheduler.instance_type_conf", "a host says its type itself"},
	{"cubelet_conf.common_timeout_insec", "set master.create_timeout in the configuration of the master"},
	{"cubelet_conf.create_timeout_insec", "set master.create_timeout in the configuration of the master"},
	{"cubelet_conf.create_image_timeout_insec", "set master.distribute_timeout in the configuration of the master"},
	{"cubelet_conf.default_timeout_insec", "sandboxes have no time of their own here"},
	{"cubelet_conf.retry_code", "what follows a commit is tried until it is done"},
	{"cubelet_conf.grpc", "a host registers its port itself"},
	{"cubelet_conf.exposed_port_list", "every port of a sandbox can be reached"},
	{"cubelet_conf.enable_exposed_port", "every port of a sandbox can be reached"},
	{"cubelet_conf.async_flows", "what follows a commit is an outbox message"},
	{"async_flows", "what follows a commit is an outbox message"},
	{"instance_type_conf", "a host says its type itself"},
	{"req_template_conf", "templates are made with paddock tpl"},
	{"whitelist_req_tag", "templates and requests are merged by fixed rules"},
	{"overhead", "hosts report what they have to give"},
}

// elsewhere returns why a key that others know means nothing here; empty: nobody
// knows it.
func elsewhere(key string) string {
	words := strings.Split(key, ".")
	for _, u := range unused {
		if slices.EqualFunc(strings.Split(u.key, "."), words, func(a, b string) bool { return a == "*" || a == b }) {
			return u.why
		}
	}
	return ""
}
