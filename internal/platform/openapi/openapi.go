// Package openapi writes the document of an HTTP face from the table that the
// face is served by and from the Go structs of its wire, so that neither can
// say what the other does not.
//
// It knows no role and no path. It must never decide who may call.
package openapi

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// Version is the version of OpenAPI that documents are written in.
const Version = "3.1.0"

// Operation is one call of a face.
type Operation struct {
	Method, Path string
	Tag          string
	Summary      string
	Params       []Param // of the query and the headers; those of the path are found in it
	In           Body    // what is sent; zero: nothing
	Out          Body    // what a success answers; zero: nothing
	Status       []int   // that Out is answered with, or a redirect; none: 200
	// Security names who may call: the key of Document.Schemes. Empty: anybody.
	Security string
}

// Body is what is sent or answered: JSON of a Go value's type, or bytes of a
// media type.
type Body struct {
	Value    any    // a zero value of the type; nil: bytes
	Or       any    // another type that may come in its place; nil: none
	Media    string // empty: application/json
	Optional bool   // of a request
}

// JSON is a body of the type of v.
func JSON(v any) Body { return Body{Value: v} }

// Bytes is a body of a media type that is no JSON of ours.
func Bytes(media string) Body { return Body{Media: media} }

// Param is one parameter of the query, or of the header.
type Param struct {
	Name, What string
	Type       string // integer or boolean; empty: string
	Header     bool
	Required   bool
}

// Scheme is how a caller shows who it is: a secret in one of the headers.
type Scheme struct {
	Headers []string // Authorization stands for a bearer token
	What    string
}

// Document is the face of one role.
type Document struct {
	Title, What string
	Schemes     map[string]Scheme
	// Refusal is a zero value of the type that every failure is answered with.
	Refusal    any
	Operations []Operation
}

// YAML returns the document, always with the same bytes. Two types of one name,
// or two operations of one method and path, are an error.
func (d Document) YAML() ([]byte, error) {
	s := newSchemas()
	refusal := s.of(d.Refusal)
	paths, err := d.paths(s)
	if err != nil {
		return nil, err
	}
	components, err := s.components()
	if err != nil {
		return nil, err
	}
	doc := yaml.MapSlice{
		{Key: "openapi", Value: Version},
		{Key: "info", Value: yaml.MapSlice{{Key: "title", Value: d.Title}, {Key: "description", Value: d.What}, {Key: "version", Value: "1"}}},
		{Key: "paths", Value: paths},
		{Key: "components", Value: yaml.MapSlice{
			{Key: "schemas", Value: components},
			{Key: "responses", Value: yaml.MapSlice{{Key: "Refusal", Value: yaml.MapSlice{
				{Key: "description", Value: "Refused, or failed: the status says how, error.code what."},
				{Key: "content", Value: content("application/json", refusal)},
			}}}},
			{Key: "securitySchemes", Value: d.schemes()},
		}},
	}
	return yaml.MarshalWithOptions(doc, yaml.Indent(2), yaml.IndentSequence(true))
}

func (d Document) paths(s *schemas) (yaml.MapSlice, error) {
	sorted := slices.Clone(d.Operations)
	slices.SortStableFunc(sorted, func(a, b Operation) int {
		return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method)
	})
	var paths yaml.MapSlice
	for i, o := range sorted {
		if i > 0 && sorted[i-1].Path == o.Path && sorted[i-1].Method == o.Method {
			return nil, fmt.Errorf("%s %s stands twice in the table", o.Method, o.Path)
		}
		if _, ok := d.Schemes[o.Security]; !ok && o.Security != "" {
			return nil, fmt.Errorf("%s %s is guarded by %q, which is no scheme", o.Method, o.Path, o.Security)
		}
		if i == 0 || sorted[i-1].Path != o.Path {
			paths = append(paths, yaml.MapItem{Key: o.Path, Value: yaml.MapSlice{}})
		}
		last := &paths[len(paths)-1]
		last.Value = append(last.Value.(yaml.MapSlice), yaml.MapItem{Key: strings.ToLower(o.Method), Value: d.operation(o, s)}) //nolint:forcetypeassert // made above
	}
	return paths, nil
}

func (d Document) operation(o Operation, s *schemas) yaml.MapSlice {
	op := yaml.MapSlice{{Key: "operationId", Value: idOf(o)}}
	if o.Tag != "" {
		op = append(op, yaml.MapItem{Key: "tags", Value: []string{o.Tag}})
	}
	op = append(op, yaml.MapItem{Key: "summary", Value: o.Summary})
	if p := params(o); len(p) > 0 {
		op = append(op, yaml.MapItem{Key: "parameters", Value: p})
	}
	if o.In.any() {
		op = append(op, yaml.MapItem{Key: "requestBody", Value: yaml.MapSlice{
			{Key: "required", Value: !o.In.Optional},
			{Key: "content", Value: content(o.In.media(), s.body(o.In))},
		}})
	}
	statuses := o.Status
	if len(statuses) == 0 {
		statuses = []int{http.StatusOK}
	}
	var answers yaml.MapSlice
	for _, status := range statuses {
		a := yaml.MapSlice{{Key: "description", Value: http.StatusText(status)}}
		if redirect := status/100 == 3; o.Out.any() && !redirect {
			a = append(a, yaml.MapItem{Key: "content", Value: content(o.Out.media(), s.body(o.Out))})
		}
		answers = append(answers, yaml.MapItem{Key: strconv.Itoa(status), Value: a})
	}
	answers = append(answers, yaml.MapItem{Key: "default", Value: yaml.MapSlice{{Key: "$ref", Value: "#/components/responses/Refusal"}}})
	op = append(op, yaml.MapItem{Key: "responses", Value: answers}, yaml.MapItem{Key: "security", Value: d.security(o)})
	return op
}

// security lists the ways to show who one is, any of which is enough.
func (d Document) security(o Operation) []yaml.MapSlice {
	ways := []yaml.MapSlice{}
	for i := range d.Schemes[o.Security].Headers {
		ways = append(ways, yaml.MapSlice{{Key: schemeName(o.Security, i), Value: []string{}}})
	}
	return ways
}

func schemeName(name string, i int) string {
	if i == 0 {
		return name
	}
	return name + strconv.Itoa(i+1)
}

func (d Document) schemes() yaml.MapSlice {
	all := yaml.MapSlice{}
	names := make([]string, 0, len(d.Schemes))
	for name := range d.Schemes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for i, header := range d.Schemes[name].Headers {
			v := yaml.MapSlice{{Key: "type", Value: "apiKey"}, {Key: "in", Value: "header"}, {Key: "name", Value: header}}
			if header == "Authorization" {
				v = yaml.MapSlice{{Key: "type", Value: "http"}, {Key: "scheme", Value: "bearer"}}
			}
			all = append(all, yaml.MapItem{Key: schemeName(name, i), Value: append(v, yaml.MapItem{Key: "description", Value: d.Schemes[name].What})})
		}
	}
	return all
}

func (b Body) any() bool { return b.Value != nil || b.Media != "" }

func (b Body) media() string {
	if b.Media != "" {
		return b.Media
	}
	return "application/json"
}

func content(media string, schema yaml.MapSlice) yaml.MapSlice {
	return yaml.MapSlice{{Key: media, Value: yaml.MapSlice{{Key: "schema", Value: schema}}}}
}

var pathParam = regexp.MustCompile(`\{(\w+)\}`)

func params(o Operation) []yaml.MapSlice {
	var list []yaml.MapSlice
	one := func(name, in, what, kind string, required bool) {
		if kind == "" {
			kind = "string"
		}
		p := yaml.MapSlice{{Key: "name", Value: name}, {Key: "in", Value: in}}
		if what != "" {
			p = append(p, yaml.MapItem{Key: "description", Value: what})
		}
		list = append(list, append(p, yaml.MapItem{Key: "required", Value: required}, yaml.MapItem{Key: "schema", Value: yaml.MapSlice{{Key: "type", Value: kind}}}))
	}
	for _, m := range pathParam.FindAllStringSubmatch(o.Path, -1) {
		one(m[1], "path", "", "", true)
	}
	for _, p := range o.Params {
		in := "query"
		if p.Header {
			in = "header"
		}
		one(p.Name, in, p.What, p.Type, p.Required)
	}
	return list
}

// idOf makes a name of method and path: getCubeTemplateFromImage.
func idOf(o Operation) string {
	id := strings.ToLower(o.Method)
	for _, word := range strings.FieldsFunc(o.Path, func(r rune) bool { return strings.ContainsRune("/{}-_.", r) }) {
		id += strings.ToUpper(word[:1]) + word[1:]
	}
	return id
}
