package openapi_test

import (
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/platform/openapi"
)

type inner struct {
	N int64 `json:"n,omitempty"`
}

type base struct {
	ID string `json:"id"`
}

type thing struct {
	base
	Maybe *inner            `json:"maybe,omitempty"`
	Names []string          `json:"names"`
	Tags  map[string]string `json:"tags,omitempty"`
	Data  []byte            `json:"data,omitempty"`
	Any   any               `json:"any,omitempty"`
	Not   string            `json:"-"`
}

type thingRequest struct {
	Name  string `json:"name" api:"required"`
	Other string `json:"other"`
}

type failure struct {
	Code string `json:"code"`
}

func document() openapi.Document {
	return openapi.Document{
		Title: "t", What: "w", Refusal: failure{}, Schemes: map[string]openapi.Scheme{"key": {Headers: []string{"X-Key", "Authorization"}, What: "a key"}},
		Operations: []openapi.Operation{
			{Method: "POST", Path: "/things/{id}", Summary: "Makes one.", In: openapi.JSON(thingRequest{}), Out: openapi.JSON(thing{}), Status: []int{200, 202}, Security: "key"},
			{Method: "GET", Path: "/bytes", Summary: "Bytes.", Params: []openapi.Param{{Name: "limit", Type: "integer"}}, Out: openapi.Bytes("application/octet-stream"), Status: []int{200, 302}},
		},
	}
}

// The document says of a type what its JSON has, and no more.
func TestADocumentFollowsItsTypes(t *testing.T) {
	got, err := document().YAML()
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	for _, want := range []string{
		"operationId: postThingsId", "operationId: getBytes", "- name: id\n          in: path\n          required: true", "name: limit\n          in: query",
		"thing:\n      type: object\n      properties:\n        id:\n          type: string\n        maybe:\n          $ref: '#/components/schemas/inner'",
		"required:\n        - id\n        - names\n", "thingRequest:\n      type: object\n      properties:\n        name:\n          type: string\n        other:\n          type: string\n      required:\n        - name\n",
		"contentEncoding: base64", "additionalProperties:\n            type: string", "format: int64", "'202':", "'302':", "scheme: bearer", "name: X-Key",
	} {
		if !strings.Contains(strings.ReplaceAll(text, `"`, "'"), want) {
			t.Errorf("the document lacks %q", want)
		}
	}
	if strings.Contains(text, "Not") {
		t.Error("a field that is not on the wire is in the document")
	}
	if again, err := document().YAML(); err != nil || string(again) != text {
		t.Error("the second document differs")
	}
}

func TestADocumentRefusesWhatIsTwice(t *testing.T) {
	d := document()
	d.Operations = append(d.Operations, d.Operations[0])
	if _, err := d.YAML(); err == nil {
		t.Error("an operation that stands twice was taken")
	}
	d = document()
	d.Operations[0].Security = "nosuch"
	if _, err := d.YAML(); err == nil {
		t.Error("a guard that is no scheme was taken")
	}
	type thing struct{}
	d = document()
	d.Operations[1].Out = openapi.JSON(thing{})
	if _, err := d.YAML(); err == nil {
		t.Error("two types of one name were taken")
	}
}
