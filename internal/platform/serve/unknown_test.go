package serve

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
)

func TestUnknownFieldsAreTold(t *testing.T) {
	type inner struct {
		B int `json:"b"`
	}
	type outer struct {
		A     string            `json:"a"`
		Inner *inner            `json:"inner"`
		List  []inner           `json:"list"`
		Free  map[string]string `json:"free"`
		Any   any               `json:"any"`
		inner
	}
	for body, want := range map[string]string{
		`{}`:                         "",
		`{"a":"x","A":"y","b":1}`:    "",
		`{"aa":1,"z":{"q":1}}`:       "aa z",
		`{"inner":{"b":1,"c":2}}`:    "inner.c",
		`{"inner":null,"list":null}`: "",

		`{"list":[{"c":1},{"b":2,"c":3},{"d":1}]}`: "list.c list.d",
		`{"free":{"x":"y"},"any":{"x":1}}`:         "",
	} {
		var v outer
		got, err := ReadJSONWarn(httptest.NewRequest("POST", "/", strings.NewReader(body)), 1024, &v)
		if err != nil || !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %q, %v", body, got, err)
		}
	}
	for _, bad := range []string{"", "{", `{} {}`, `{"a":1}`, `{"a":"` + strings.Repeat("x", 2000) + `"}`} {
		var v outer
		if _, err := ReadJSONWarn(httptest.NewRequest("POST", "/", strings.NewReader(bad)), 1024, &v); fault.Of(err) != fault.InvalidInput {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}
