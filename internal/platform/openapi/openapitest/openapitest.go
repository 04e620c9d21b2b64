// Package openapitest holds a face against its document: the file in api/, and
// every answer that tests get.
//
// It serves tests only, and must never be part of a program.
package openapitest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// File holds that path has the document, or writes it when UPDATE=1.
func File(t *testing.T, path string, text []byte) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // a document for everybody
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(have, text) {
		t.Errorf("%s is not what the table of routes says (%v): run the test again with UPDATE=1", path, err)
	}
}

// Face is a document that answers are held against.
type Face struct {
	paths map[string]any
	doc   any

	mu    sync.Mutex
	known map[string]*jsonschema.Schema
}

// Read reads a document. Each of its schemas must be one.
func Read(t testing.TB, text []byte) *Face {
	t.Helper()
	var doc map[string]any
	b, err := yaml.YAMLToJSON(text)
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := &Face{doc: doc, known: map[string]*jsonschema.Schema{}}
	f.paths, _ = doc["paths"].(map[string]any)
	all, _ := dig(doc, "components", "schemas").(map[string]any)
	if len(f.paths) == 0 || len(all) == 0 {
		t.Fatal("the document has no paths or no schemas")
	}
	for _, one := range all {
		// A field that the document does not know must not be answered.
		if s, ok := one.(map[string]any); ok && s["properties"] != nil {
			s["additionalProperties"] = false
		}
	}
	for name := range all {
		if _, err := f.schema("#/components/schemas/" + name); err != nil {
			t.Errorf("schema %s: %v", name, err)
		}
	}
	return f
}

// Operations returns the calls of the document, as METHOD path.
func (f *Face) Operations() []string {
	var all []string
	for path, item := range f.paths {
		methods, _ := item.(map[string]any)
		for m := range methods {
			all = append(all, strings.ToUpper(m)+" "+path)
		}
	}
	return all
}

func dig(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

func (f *Face) schema(at string) (*jsonschema.Schema, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.known[at]; s != nil {
		return s, nil
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///doc.json", f.doc); err != nil {
		return nil, err
	}
	s, err := c.Compile("mem:///doc.json" + at)
	f.known[at] = s
	return s, err
}

// Watch holds every JSON answer of h against the document.
func (f *Face) Watch(t testing.TB, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &tee{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(seen, r)
		if why := f.wrong(r, seen); why != "" {
			defer func() { _ = recover() }() // the test may have ended
			t.Errorf("%s %s answered %d with what its document does not say: %s\n%s", r.Method, r.URL.Path, seen.status, why, seen.body.Bytes())
		}
	})
}

func (f *Face) wrong(r *http.Request, seen *tee) string {
	path, ok := f.find(r)
	if !ok || r.Method == http.MethodHead || !strings.HasPrefix(seen.Header().Get("Content-Type"), "application/json") {
		return ""
	}
	var body any
	if err := json.Unmarshal(seen.body.Bytes(), &body); err != nil {
		return "" // broken off
	}
	method, status := strings.ToLower(r.Method), strconv.Itoa(seen.status)
	if seen.status >= http.StatusBadRequest && dig(f.paths, path, method, "responses", status) == nil {
		if dig(body, "error", "code") == nil || dig(body, "ret", "ret_code") == nil {
			return "a failure without its code"
		}
		return ""
	}
	if dig(f.paths, path, method, "responses", status) == nil {
		return "the document has no such status"
	}
	if dig(f.paths, path, method, "responses", status, "content", "application/json") == nil {
		return "the document has no JSON there"
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	s, err := f.schema("#/paths/" + url.PathEscape(escape.Replace(path)) + "/" + method + "/responses/" + status + "/content/application~1json/schema")
	if err == nil {
		err = s.Validate(body)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// find returns the path of the document that a request is of.
func (f *Face) find(r *http.Request) (string, bool) {
	if f.paths[r.URL.Path] != nil {
		return r.URL.Path, true
	}
	parts := strings.Split(r.URL.Path, "/")
	for path := range f.paths {
		want := strings.Split(path, "/")
		same := len(want) == len(parts)
		for i := 0; same && i < len(want); i++ {
			same = want[i] == parts[i] || strings.HasPrefix(want[i], "{") && parts[i] != ""
		}
		if same && dig(f.paths, path, strings.ToLower(r.Method)) != nil {
			return path, true
		}
	}
	return "", false
}

// mostSeen bounds what of an answer is kept to be looked at.
const mostSeen = 4 << 20

// tee keeps what is answered.
type tee struct {
	http.ResponseWriter
	status int
	began  bool
	body   bytes.Buffer
}

func (w *tee) WriteHeader(status int) {
	if !w.began && status >= http.StatusOK {
		w.status, w.began = status, true
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *tee) Write(b []byte) (int, error) {
	w.began = true
	if w.body.Len() < mostSeen && strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		w.body.Write(b)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *tee) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush lets handlers stream that ask for an http.Flusher.
func (w *tee) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }
