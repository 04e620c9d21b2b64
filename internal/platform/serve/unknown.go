package serve

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// maxUnknown bounds how many fields of one body are told of.
const maxUnknown = 16

// ReadJSONWarn is ReadJSON that also returns the fields of the body that v does
// not have, as paths such as a.b: they have no effect, and somebody may have
// meant another.
func ReadJSONWarn(r *http.Request, limit int64, v any) (unknown []string, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "request body")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err := ReadJSON(r, limit, v); err != nil {
		return nil, err
	}
	unknown = Unknown(body, v)
	return unknown, nil
}

// Unknown returns the fields of a JSON value that the type of v does not have.
func Unknown(body []byte, v any) []string {
	list := unknown(body, reflect.TypeOf(v), "")
	slices.Sort(list)
	list = slices.Compact(list)
	return list[:min(len(list), maxUnknown)]
}

func unknown(body []byte, t reflect.Type, path string) (list []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		var items []json.RawMessage
		if json.Unmarshal(body, &items) == nil {
			for _, item := range items {
				list = append(list, unknown(item, t.Elem(), path)...)
			}
		}
	case reflect.Struct:
		var object map[string]json.RawMessage
		if json.Unmarshal(body, &object) != nil {
			return nil
		}
		known := fields(t)
		for name, value := range object {
			if f, ok := known[strings.ToLower(name)]; ok { // as encoding/json has it
				list = append(list, unknown(value, f, path+name+".")...)
			} else {
				list = append(list, path+clipName(name))
			}
		}
	}
	return list
}

func clipName(name string) string { return name[:min(len(name), 64)] }

// fields returns the types of a struct's fields by their names in JSON, in
// lower case.
func fields(t reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported() || name == "-" || f.Anonymous && name == "":
		case name == "":
			known[strings.ToLower(f.Name)] = f.Type
		default:
			known[strings.ToLower(name)] = f.Type
		}
	}
	return known
}
