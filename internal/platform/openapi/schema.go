package openapi

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// schemas collects the types that the bodies of a document are made of.
type schemas struct {
	types map[string]reflect.Type
	clash error
}

func newSchemas() *schemas { return &schemas{types: map[string]reflect.Type{}} }

// body returns the schema of a body.
func (s *schemas) body(b Body) yaml.MapSlice {
	if b.Or == nil {
		return s.of(b.Value)
	}
	return yaml.MapSlice{{Key: "oneOf", Value: []yaml.MapSlice{s.of(b.Value), s.of(b.Or)}}}
}

// of returns the schema of the type of v.
func (s *schemas) of(v any) yaml.MapSlice {
	if v == nil {
		return yaml.MapSlice{} // bytes: the media type says it all
	}
	return s.schema(reflect.TypeOf(v))
}

func (s *schemas) schema(t reflect.Type) yaml.MapSlice {
	kind := func(name string) yaml.MapSlice { return yaml.MapSlice{{Key: "type", Value: name}} }
	switch t.Kind() {
	case reflect.Pointer:
		return s.schema(t.Elem())
	case reflect.String:
		return kind("string")
	case reflect.Bool:
		return kind("boolean")
	case reflect.Float32, reflect.Float64:
		return kind("number")
	case reflect.Int64, reflect.Uint64:
		return append(kind("integer"), yaml.MapItem{Key: "format", Value: "int64"})
	case reflect.Int, reflect.Int32, reflect.Uint, reflect.Uint32:
		return kind("integer")
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && t.Name() != "RawMessage" {
			return append(kind("string"), yaml.MapItem{Key: "contentEncoding", Value: "base64"})
		}
		if t.Name() == "RawMessage" {
			return yaml.MapSlice{}
		}
		return append(kind("array"), yaml.MapItem{Key: "items", Value: s.schema(t.Elem())})
	case reflect.Map:
		return append(kind("object"), yaml.MapItem{Key: "additionalProperties", Value: s.schema(t.Elem())})
	case reflect.Struct:
		return s.ref(t)
	}
	return yaml.MapSlice{} // any
}

func (s *schemas) ref(t reflect.Type) yaml.MapSlice {
	name := t.Name()
	if have, ok := s.types[name]; ok && have != t {
		s.clash = fmt.Errorf("two types are called %s: %s and %s", name, have, t)
	} else if !ok {
		s.types[name] = t
		for _, f := range fieldsOf(t) {
			s.schema(f.kind) // finds the types below
		}
	}
	return yaml.MapSlice{{Key: "$ref", Value: "#/components/schemas/" + name}}
}

// field is one property of a type on the wire.
type field struct {
	name     string
	kind     reflect.Type
	required bool
}

// fieldsOf returns the fields of a struct on the wire, those of embedded ones
// among them. A field of an answer is always there unless it says omitempty. Of
// what a client sends (its name ends with Request) only fields with the tag
// api:"required" must be there: the rest has defaults.
func fieldsOf(t reflect.Type) []field {
	var list []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := f.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		switch {
		case f.Anonymous && name == "" && kind.Kind() == reflect.Struct:
			list = append(list, fieldsOf(kind)...)
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		required := !slices.Contains(strings.Split(options, ","), "omitempty")
		if strings.HasSuffix(t.Name(), "Request") {
			required = f.Tag.Get("api") == "required"
		}
		list = append(list, field{name, f.Type, required})
	}
	return list
}

// components returns the schemas of all types met, by name.
func (s *schemas) components() (yaml.MapSlice, error) {
	names := make([]string, 0, len(s.types))
	for name := range s.types {
		names = append(names, name)
	}
	slices.Sort(names)
	var all yaml.MapSlice
	for _, name := range names {
		properties, required := yaml.MapSlice{}, []string{}
		for _, f := range fieldsOf(s.types[name]) {
			properties = append(properties, yaml.MapItem{Key: f.name, Value: s.schema(f.kind)})
			if f.required {
				required = append(required, f.name)
			}
		}
		one := yaml.MapSlice{{Key: "type", Value: "object"}, {Key: "properties", Value: properties}}
		if len(required) > 0 {
			one = append(one, yaml.MapItem{Key: "required", Value: required})
		}
		all = append(all, yaml.MapItem{Key: name, Value: one})
	}
	return all, s.clash
}
