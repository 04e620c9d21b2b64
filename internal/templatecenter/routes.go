package templatecenter

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/openapi"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
)

// Who may call a route: the names of the schemes of the document. A route
// without one is open to anybody.
const (
	byRole  = "roleToken"
	byBytes = "artifactToken" // one for each artifact: the handler checks it
)

// route is one call of the face: what the document says of it, and who serves
// it. A new call is one line in the table, then
// `UPDATE=1 go test ./internal/templatecenter`. Calls that write templates are
// the master's: none may stand here but compat, which only notes versions.
type route struct {
	openapi.Operation
	serve http.Handler
}

// table is the face of the template centre, whole.
func (c *Center) table(metrics http.Handler) []route {
	h := func(f http.HandlerFunc) http.Handler { return f }
	js := openapi.JSON
	id := openapi.Param{Name: "artifact_id", Required: true}
	const artifacts, health = "artifacts", "health"
	return []route{
		{openapi.Operation{Method: "POST", Path: cubeapi.PathTCBuild, Tag: artifacts, Summary: "Takes a job to build.", In: js(cubeapi.TCBuildRequest{}), Out: js(cubeapi.TCAnswer{}), Security: byRole}, h(c.serveBuild)},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathTCArtifactDelete, Tag: artifacts, Summary: "Lets an artifact's bytes and row go, once the master has released them.", In: js(cubeapi.TCDeleteRequest{}), Out: js(cubeapi.TCAnswer{}), Security: byRole}, h(c.serveDelete)},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathTCArtifactStat, Tag: artifacts, Summary: "Whether an artifact's bytes are there.", Params: []openapi.Param{id, {Name: "verify", What: "true: all of them are read", Type: "boolean"}}, Out: js(cubeapi.TCArtifactAnswer{}), Security: byRole}, h(c.serveStat)},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathTCArtifactMove, Tag: artifacts, Summary: "Copies an artifact's bytes to the configured store.", In: js(cubeapi.TCArtifactRequest{}), Out: js(cubeapi.TCArtifactAnswer{}), Security: byRole}, h(c.serveMove)},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathTCArtifactUpload, Tag: artifacts, Summary: "Takes an artifact's bytes: a form of artifact_id, an optional receipt, and file.", In: openapi.Bytes("multipart/form-data"), Out: js(cubeapi.TCArtifactAnswer{}), Security: byRole}, h(c.serveUpload)},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathTCReceipt, Tag: artifacts, Summary: "What an artifact was made of.", Params: []openapi.Param{id}, Out: openapi.Bytes("application/json"), Security: byRole}, h(c.serveReceipt)},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathArtifactDownload, Tag: artifacts, Summary: "The bytes of an artifact, whole or in part. HEAD too.", Params: []openapi.Param{id, {Name: "token", What: "the short-lived token, when no header has it"}, {Name: "Range", Header: true}}, Out: openapi.Bytes("application/octet-stream"), Status: []int{http.StatusOK, http.StatusPartialContent, http.StatusFound}, Security: byBytes}, h(c.serveDownload)},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathArtifactManifest, Tag: artifacts, Summary: "Of which chunks an artifact is.", Params: []openapi.Param{id, {Name: "token", What: "the short-lived token, when no header has it"}}, Out: openapi.Bytes("application/json"), Security: byBytes}, h(c.serveManifest)},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathTemplateCompat, Tag: artifacts, Summary: "How far templates are behind what would be made today.", Out: js(cubeapi.CompatAnswer{}), Security: byRole}, h(c.serveCompat)},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathTemplateCompat, Tag: artifacts, Summary: "Looks at hosts anew, or takes today's guest for one that nobody noted.", In: js(cubeapi.CompatRequest{}), Out: js(cubeapi.CompatActionAnswer{}), Security: byRole}, h(c.serveCompatDo)},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathTCHealth, Tag: health, Summary: "200 when it can build, else 503 with what is wrong.", Out: js(cubeapi.TCAnswer{}), Status: []int{http.StatusOK, http.StatusServiceUnavailable}}, h(c.serveHealth)},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathMetrics, Tag: health, Summary: "Prometheus text.", Out: openapi.Bytes("text/plain")}, metrics},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathOpenAPI, Tag: health, Summary: "This document.", Out: openapi.Bytes("application/yaml")}, nil},
	}
}

// document describes the face.
func document(table []route) openapi.Document {
	d := openapi.Document{
		Title: "Paddock template centre", What: "Builds artifacts of images, keeps their bytes and hands them out. It is for the other roles, not for users.", Refusal: cubeapi.Envelope{},
		Schemes: map[string]openapi.Scheme{
			byRole:  {Headers: []string{cubeapi.HeaderCallbackToken}, What: "The token that master and template centre share."},
			byBytes: {Headers: []string{cubeapi.HeaderArtifactToken}, What: "A short-lived token for the bytes of one artifact."},
		},
	}
	for _, r := range table {
		d.Operations = append(d.Operations, r.Operation)
	}
	return d
}

func (c *Center) routes(reg *prometheus.Registry) (http.Handler, error) {
	table := c.table(telemetry.Handler(reg))
	text, err := document(table).YAML()
	if err != nil {
		return nil, fault.Wrap(fault.Bug, err, "document of the template centre")
	}
	open := func(h http.Handler) http.Handler { return h }
	gates := map[string]func(http.Handler) http.Handler{
		byRole:  auth.RequireToken(cubeapi.HeaderCallbackToken, c.cfg.Auth.CallbackToken, c.cfg.Auth.InsecureOpen),
		byBytes: open,
		"":      open,
	}
	mux := http.NewServeMux()
	for _, r := range table {
		if r.Path == cubeapi.PathOpenAPI {
			r.serve = openapi.Handler(text)
		}
		mux.Handle(r.Method+" "+r.Path, gates[r.Security](r.serve))
	}
	return serve.NewMiddleware("templatecenter", c.log, reg).Wrap(mux), nil
}
