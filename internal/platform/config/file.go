package config

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// fileReader puts one YAML file into settings. It goes through the syntax tree
// by itself, so that every fault is found, with its line, and not only the
// first.
type fileReader struct {
	path   string
	fields map[string]field
	from   sources
	faults []error
}

// readFile changes the settings by the file at path. No path, no change.
func readFile(path string, fields []field, from sources) []error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("configuration file: %w", err)}
	}
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		// Only message and place: an excerpt of the source may show a secret.
		return []error{fmt.Errorf("%s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, false)))}
	}
	r := &fileReader{path: path, fields: map[string]field{}, from: from}
	for _, f := range fields {
		r.fields[f.key] = f
	}
	for i, doc := range tree.Docs {
		switch {
		case i > 0:
			r.fault(doc, "the file holds a second document: keep one")
		case doc.Body != nil:
			r.section("", doc.Body)
		}
	}
	return r.faults
}

func (r *fileReader) fault(n ast.Node, format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf("%s: %s", r.place(n), fmt.Sprintf(format, args...)))
}

// place names file and line of n.
func (r *fileReader) place(n ast.Node) string {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return fmt.Sprintf("%s:%d", r.path, t.Position.Line)
	}
	return r.path
}

// section reads the keys under prefix, which is "" or ends with a dot.
func (r *fileReader) section(prefix string, n ast.Node) {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, pair := range n.Values {
			r.pair(prefix, pair)
		}
	case *ast.MappingValueNode:
		r.pair(prefix, n)
	case *ast.NullNode, *ast.CommentGroupNode:
		// A section without settings changes nothing.
	default:
		name := strings.TrimSuffix(prefix, ".")
		if name == "" {
			name = "the file"
		}
		r.fault(n, "%s: must be a list of key: value lines", name)
	}
}

func (r *fileReader) pair(prefix string, pair *ast.MappingValueNode) {
	key := prefix + pair.Key.GetToken().Value
	f, leaf := r.fields[key]
	switch {
	case leaf:
		r.leaf(f, pair.Value)
	case r.isSection(key):
		r.section(key+".", pair.Value)
	default:
		r.fault(pair.Key, "%s: no such setting; the nearest is %s", key, r.nearest(key))
	}
}

func (r *fileReader) isSection(key string) bool {
	for k := range r.fields {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

func (r *fileReader) leaf(f field, n ast.Node) {
	var err error
	switch list, isList := n.(*ast.SequenceNode); {
	case isList && f.list():
		parts := make([]string, 0, len(list.Values))
		for _, v := range list.Values {
			text, ok := scalar(v)
			if !ok {
				r.fault(v, "%s: each item must be plain text", f.key)
				return
			}
			parts = append(parts, text)
		}
		err = f.setList(parts)
	default:
		text, ok := scalar(n)
		switch {
		case !ok:
			r.fault(n, "%s: must be one plain value", f.key)
			return
		case text == "":
			return // empty counts as unset
		}
		err = f.set(text)
	}
	if err != nil {
		r.fault(n, "%s: %v", f.key, err)
		return
	}
	r.from[f.key] = "file " + r.place(n)
}

// scalar returns the text of a plain value as it stands in the file, and false
// for anything else.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return strings.TrimSpace(n.Value.Value), true
	case *ast.NullNode:
		return "", true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// nearest returns the known key that looks most like key.
func (r *fileReader) nearest(key string) string {
	known := make([]string, 0, len(r.fields))
	for k := range r.fields {
		known = append(known, k)
		if section, _, nested := strings.Cut(k, "."); nested {
			known = append(known, section)
		}
	}
	return nearest(key, known)
}

// nearest returns the name in known that looks most like key; a name with the
// same last part counts as near. Equals are taken in the order of the alphabet.
func nearest(key string, known []string) string {
	last := func(s string) string { return s[strings.LastIndexByte(s, '.')+1:] }
	slices.Sort(known)
	best, least := "", 0
	for _, k := range known {
		d := distance(key, k)
		if last(k) == last(key) {
			d = min(d, 2)
		}
		if best == "" || d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is the number of letters to change, add or take away to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
