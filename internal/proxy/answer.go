package proxy

import (
	"encoding/json"
	"html/template"
	"net/http"
	"strconv"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// refusal is why a request went nowhere.
type refusal struct {
	status int
	words  string
	after  int // seconds after which it may go; 0: nobody knows
	code   *fault.Code
}

// headerCode carries the code of a refusal, to tell it from an answer of a
// sandbox.
const headerCode = "X-Paddock-Code"

// problem is a refusal as clients of E2B read it.
type problem struct {
	SandboxID string `json:"sandboxId,omitempty"`
	Message   string `json:"message"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
	Reason    string `json:"reason"`
}

var page = template.Must(template.New("refusal").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Code}}</title></head>
<body><h1>{{.Message}}</h1><p>{{.SandboxID}}{{with .Port}}, port {{.}}{{end}}</p><p>{{.Reason}}</p></body></html>
`))

// refuse answers a request that goes nowhere, as its caller reads it: a page
// for people, else JSON. Callers that route by E2B's headers are told of a
// sandbox that cannot be reached as E2B's own proxy tells it, by 502.
func refuse(w http.ResponseWriter, r *http.Request, t target, no refusal) {
	status := no.status
	if r.Header.Get(headerSandbox) != "" && (status == http.StatusNotFound || status == http.StatusGone) {
		status = http.StatusBadGateway
	}
	h := w.Header()
	h.Set(headerCode, no.code.Name)
	h.Set("Cache-Control", "no-store")
	h.Set("Access-Control-Allow-Origin", "*")
	if no.after > 0 {
		h.Set("Retry-After", strconv.Itoa(no.after))
	}
	p := problem{SandboxID: t.id, Message: no.words, Port: t.port, Code: status, Reason: no.code.Name}
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		h.Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(status)
		_ = page.Execute(w, p) // whoever asked may have gone
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p)
}
