package master

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

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
	byUser  = "apiKey"
	byRole  = "roleToken"
	byJob   = "jobToken"
	byHost  = "hostToken"
	byBytes = "artifactToken" // checked by the template centre
)

// route is one call of the face: what the document says of it, and who serves
// it. A new call is one line in the table, then `UPDATE=1 go test ./internal/master`.
type route struct {
	openapi.Operation
	serve http.Handler
	// proxied: the template centre serves it, the master hands it on.
	proxied bool
}

// table is the face of the master, whole.
func (m *Master) table(center *url.URL, metrics http.Handler) []route {
	h := func(f http.HandlerFunc) http.Handler { return f }
	toCenter, asMaster := m.toCenter(center, ""), m.toCenter(center, m.cfg.Auth.CallbackToken.Reveal())
	js, q := openapi.JSON, func(name, what string) openapi.Param { return openapi.Param{Name: name, What: what} }
	must := func(name string) openapi.Param { return openapi.Param{Name: name, Required: true} }
	limit := openapi.Param{Name: "limit", What: "rows of a page: 1 to 1000, 100 when absent", Type: "integer"}
	cursor := q("cursor", "next_cursor of the page before")
	file := []openapi.Param{must("sandbox_id"), must("path"), q("user", "who reads or writes"), {Name: "archive", What: "true: the path is a directory, and its tree goes as a tar archive", Type: "boolean"}}
	const templates, sandboxes, lives, scheduling, hosts, health = "templates", "sandboxes", "lives", "scheduling", "hosts", "health"
	return []route{
		{openapi.Operation{Method: "POST", Path: cubeapi.PathFromImage, Tag: templates, Summary: "Builds a template from an image; answers the job at once.", In: js(cubeapi.FromImageRequest{}), Out: js(cubeapi.JobAnswer{}), Security: byUser}, h(m.serveFromImage), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathFromImage, Tag: templates, Summary: "A job as it stands.", Params: []openapi.Param{must("job_id")}, Out: js(cubeapi.JobAnswer{}), Security: byUser}, h(m.serveJob), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathTemplate, Tag: templates, Summary: "Makes a template of an artifact that is there; answers when its hosts have it.", In: js(cubeapi.TemplateCreateRequest{}), Out: js(cubeapi.TemplateAnswer{}), Security: byUser}, h(m.serveTemplateCreate), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathRedo, Tag: templates, Summary: "Brings a template to hosts again, and builds its bytes again when they are gone.", In: js(cubeapi.RedoRequest{}), Out: js(cubeapi.RedoAnswer{}), Security: byUser}, h(m.serveRedo), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathMigrate, Tag: templates, Summary: "Moves a template's bytes to the configured store.", In: js(cubeapi.MigrateRequest{}), Out: js(cubeapi.MigrateAnswer{}), Security: byUser}, h(m.serveMigrate), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathMigrate, Tag: templates, Summary: "A job that migrates, as it stands.", Params: []openapi.Param{must("job_id")}, Out: js(cubeapi.JobAnswer{}), Security: byUser}, h(m.serveMigrateJob), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathJobCancel, Tag: templates, Summary: "Ends a job, wherever it stands; nothing of it is left.", Out: js(cubeapi.JobAnswer{}), Security: byUser}, h(m.serveCancel), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathJobLogs, Tag: templates, Summary: "What was said of a job, behind a line.", Params: []openapi.Param{{Name: "after", What: "the seq of the last line that the caller has", Type: "integer"}, {Name: "limit", What: "lines at most", Type: "integer"}, {Name: "wait", What: "seconds to wait for a line, at most 30", Type: "integer"}}, Out: js(cubeapi.JobLogAnswer{}), Security: byUser}, h(m.serveLogs), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathBuildStatus, Tag: templates, Summary: "A job in the form of E2B clients.", Out: js(cubeapi.BuildStatusAnswer{}), Security: byUser}, h(m.serveBuildStatus), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathTemplate, Tag: templates, Summary: "A page of templates; with template_id, one with its replicas.", Params: []openapi.Param{q("template_id", "id or alias"), q("include_request", "true: with the request it was made with"), limit, cursor, q("status", "only those: READY, FAILED..."), q("instance_type", "only those"), q("alias", "only those whose alias begins so"), q("image", "only those whose image's name or digest has this in it")}, Out: openapi.Body{Value: cubeapi.TemplateListAnswer{}, Or: cubeapi.TemplateAnswer{}}, Security: byUser}, h(m.serveTemplates), false},
		{openapi.Operation{Method: "DELETE", Path: cubeapi.PathTemplate, Tag: templates, Summary: "Deletes a template. 202: it is out of use, and hosts that are away are cleaned later.", In: js(cubeapi.TemplateDeleteRequest{}), Out: js(cubeapi.TemplateDeleteAnswer{}), Status: []int{http.StatusOK, http.StatusAccepted}, Security: byUser}, h(m.serveTemplateDelete), false},
		{openapi.Operation{Method: "PUT", Path: cubeapi.PathAlias, Tag: templates, Summary: "Sets, moves or clears a template's alias.", In: openapi.Body{Value: cubeapi.AliasRequest{}, Optional: true}, Out: js(cubeapi.TemplateAnswer{}), Security: byUser}, h(m.serveAlias), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathReceipt, Tag: templates, Summary: "What a template's image was made of.", Out: openapi.Bytes("application/json"), Security: byUser}, h(m.serveReceipt), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathTemplateGC, Tag: templates, Summary: "Lets artifacts go that nobody needs, or says which these are.", In: openapi.Body{Value: cubeapi.GCRequest{}, Optional: true}, Out: js(cubeapi.GCAnswer{}), Security: byUser}, h(m.serveGC), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathTemplateCompat, Tag: templates, Summary: "How far templates are behind what would be made today.", Out: js(cubeapi.CompatAnswer{}), Security: byUser}, asMaster, true},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathTemplateCompat, Tag: templates, Summary: "Looks at hosts anew, or takes today's guest for one that nobody noted.", In: js(cubeapi.CompatRequest{}), Out: js(cubeapi.CompatActionAnswer{}), Security: byUser}, asMaster, true},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathRootfsArtifact, Tag: templates, Summary: "What is known of an artifact, without its bytes.", Params: []openapi.Param{must("artifact_id"), {Name: "link", What: "true: with leave to download the bytes for a while", Type: "boolean"}}, Out: js(cubeapi.JobAnswer{}), Security: byUser}, h(m.serveArtifact), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathArtifactDownload, Tag: templates, Summary: "The bytes of an artifact, whole or in part.", Params: []openapi.Param{must("artifact_id"), q("token", "the short-lived token, when no header has it"), {Name: "Range", Header: true}}, Out: openapi.Bytes("application/octet-stream"), Status: []int{http.StatusOK, http.StatusPartialContent, http.StatusFound}, Security: byBytes}, toCenter, true},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathArtifactManifest, Tag: templates, Summary: "Of which chunks an artifact is.", Params: []openapi.Param{must("artifact_id"), q("token", "the short-lived token, when no header has it")}, Out: openapi.Bytes("application/json"), Security: byBytes}, toCenter, true},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathJobStatus, Tag: templates, Summary: "The template centre's word of a job.", In: js(cubeapi.JobReport{}), Out: js(cubeapi.TCAnswer{}), Security: byJob}, h(m.serveReport), false},

		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandbox, Tag: sandboxes, Summary: "Makes a sandbox; answers when it is usable.", In: js(cubeapi.SandboxCreateRequest{}), Out: js(cubeapi.SandboxAnswer{}), Security: byUser}, h(m.serveCreate), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxBatch, Tag: sandboxes, Summary: "Makes several sandboxes in one step: all or none, or as many as can.", In: js(cubeapi.SandboxBatchRequest{}), Out: js(cubeapi.SandboxBatchAnswer{}), Security: byUser}, h(m.serveBatch), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxPreview, Tag: sandboxes, Summary: "What a create would do; nothing is made.", In: js(cubeapi.SandboxCreateRequest{}), Out: js(cubeapi.PreviewAnswer{}), Security: byUser}, h(m.servePreview), false},
		{openapi.Operation{Method: "DELETE", Path: cubeapi.PathSandbox, Tag: sandboxes, Summary: "Ends a sandbox; answers when it is gone.", In: js(cubeapi.SandboxDeleteRequest{}), Out: js(cubeapi.Envelope{}), Security: byUser}, h(m.serveDelete), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathSandboxList, Tag: sandboxes, Summary: "The sandboxes that live, newest first.", Params: []openapi.Param{{Name: "all", What: "also those that ended", Type: "boolean"}, q("host_id", "only those"), q("template_id", "only those, by id or alias"), q("state", "only those: RUNNING, PAUSED..., several with commas"), q("label", "only those with it, as key=value; may be given several times"), {Name: "limit", What: "rows of a page: 1 to 1000; without limit and cursor all come", Type: "integer"}, q("cursor", "next of the page before")}, Out: js(cubeapi.SandboxListAnswer{}), Security: byUser}, h(m.serveList), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathSandboxInfo, Tag: sandboxes, Summary: "One sandbox.", Params: []openapi.Param{must("sandbox_id"), {Name: "tokens", What: "true: with its tokens", Type: "boolean"}}, Out: js(cubeapi.SandboxAnswer{}), Security: byUser}, h(m.serveInfo), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxExec, Tag: sandboxes, Summary: "Runs a command; the answer is a stream of events, one a line.", In: js(cubeapi.ExecRequest{}), Out: openapi.Body{Value: cubeapi.ExecEvent{}, Media: "application/x-ndjson"}, Security: byUser}, duplex(h(m.serveExec)), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxSignal, Tag: sandboxes, Summary: "Signals a command that runs.", In: js(cubeapi.ExecSignalRequest{}), Out: js(cubeapi.Envelope{}), Security: byUser}, h(m.serveSignal), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxResize, Tag: sandboxes, Summary: "Changes the size of a command's terminal.", In: js(cubeapi.ExecResizeRequest{}), Out: js(cubeapi.Envelope{}), Security: byUser}, h(m.serveResize), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathSandboxFiles, Tag: sandboxes, Summary: "The bytes of a file.", Params: file, Out: openapi.Bytes("application/octet-stream"), Security: byUser}, h(m.serveRead), false},
		{openapi.Operation{Method: "PUT", Path: cubeapi.PathSandboxFiles, Tag: sandboxes, Summary: "Writes the body to a file.", Params: file, In: openapi.Bytes("application/octet-stream"), Out: js(cubeapi.FileAnswer{}), Security: byUser}, h(m.serveWrite), false},

		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxPause, Tag: lives, Summary: "Keeps a sandbox on the disk of its host; answers when it is kept.", In: js(cubeapi.PauseRequest{}), Out: js(cubeapi.SandboxAnswer{}), Security: byUser}, h(m.servePause), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxResume, Tag: lives, Summary: "Brings a paused sandbox back; answers when it is usable.", In: js(cubeapi.ResumeRequest{}), Out: js(cubeapi.SandboxAnswer{}), Security: byUser}, h(m.serveResume), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxUpdate, Tag: lives, Summary: "Changes what a sandbox may reach, its ports or its labels.", In: js(cubeapi.SandboxUpdateRequest{}), Out: js(cubeapi.SandboxAnswer{}), Security: byUser}, h(m.serveUpdate), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxTimeout, Tag: lives, Summary: "Says how long nobody may use a sandbox, and what follows.", In: js(cubeapi.TimeoutRequest{}), Out: js(cubeapi.SandboxAnswer{}), Security: byUser}, h(m.serveTimeout), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxRefresh, Tag: lives, Summary: "Counts as a use of a sandbox.", In: js(cubeapi.RefreshRequest{}), Out: js(cubeapi.SandboxAnswer{}), Security: byUser}, h(m.serveRefresh), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxActivity, Tag: lives, Summary: "The proxies' word of which sandboxes were used.", In: js(cubeapi.ActivityRequest{}), Out: js(cubeapi.Envelope{}), Security: byHost}, h(m.serveActivity), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathSandboxLogs, Tag: lives, Summary: "What a sandbox's program wrote.", Params: []openapi.Param{must("sandbox_id"), {Name: "tail", What: "lines from the end to begin with; 0 or absent: all that is kept", Type: "integer"}, {Name: "follow", What: "true: goes on until the sandbox stops", Type: "boolean"}}, Out: openapi.Bytes("text/plain"), Security: byUser}, h(m.serveSandboxLogs), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathSandboxMetrics, Tag: lives, Summary: "What sandboxes use; without sandbox_id, of all that run.", Params: []openapi.Param{q("sandbox_id", "only this one; may be given several times")}, Out: js(cubeapi.UsageAnswer{}), Security: byUser}, h(m.serveUsage), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxSnapshot, Tag: lives, Summary: "Keeps the state of a sandbox, which goes on; answers when it is kept.", In: js(cubeapi.SnapshotRequest{}), Out: js(cubeapi.SnapshotAnswer{}), Security: byUser}, h(m.serveSnapshot), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxRollback, Tag: lives, Summary: "Gives a sandbox the state of one of its snapshots; answers when it is usable.", In: js(cubeapi.RollbackRequest{}), Out: js(cubeapi.SandboxAnswer{}), Security: byUser}, h(m.serveRollback), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxClone, Tag: lives, Summary: "Makes sandboxes that begin as another is.", In: js(cubeapi.CloneRequest{}), Out: js(cubeapi.SandboxBatchAnswer{}), Security: byUser}, h(m.serveClone), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathSnapshots, Tag: lives, Summary: "A page of snapshots, in the order of their making.", Params: []openapi.Param{q("sandbox_id", "only of this one"), limit, q("cursor", "next of the page before")}, Out: js(cubeapi.SnapshotListAnswer{}), Security: byUser}, h(m.serveSnapshots), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathSnapshot, Tag: lives, Summary: "One snapshot.", Params: []openapi.Param{must("snapshot_id")}, Out: js(cubeapi.SnapshotAnswer{}), Security: byUser}, h(m.serveSnapshotInfo), false},
		{openapi.Operation{Method: "DELETE", Path: cubeapi.PathSnapshot, Tag: lives, Summary: "Deletes a snapshot; sandboxes that were made of it do not need it.", In: js(cubeapi.SnapshotDeleteRequest{}), Out: js(cubeapi.Envelope{}), Security: byUser}, h(m.serveSnapshotDelete), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSandboxCommit, Tag: lives, Summary: "Makes a template of what a sandbox or snapshot has on disk; answers the job at once.", In: js(cubeapi.CommitRequest{}), Out: js(cubeapi.JobAnswer{}), Security: byUser}, h(m.serveCommit), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathSnapshotRoot, Tag: lives, Summary: "The root of a snapshot, as a tar archive, for the template centre.", Params: []openapi.Param{must("snapshot_id")}, Out: openapi.Bytes("application/x-tar"), Security: byRole}, h(m.serveRoot), false},

		{openapi.Operation{Method: "GET", Path: cubeapi.PathRoute, Tag: lives, Summary: "Where a sandbox is, for proxies.", Params: []openapi.Param{must("sandbox_id")}, Out: js(cubeapi.RouteAnswer{}), Security: byHost}, h(m.serveRoute), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathRouteEvents, Tag: lives, Summary: "Whose routes changed behind a number of the feed, for proxies.", Params: []openapi.Param{q("feed", "that of the last answer; absent at first"), {Name: "after", What: "next of the last answer", Type: "integer"}, {Name: "wait", What: "seconds to wait for a change, at most 30", Type: "integer"}}, Out: js(cubeapi.RouteEvents{}), Security: byHost}, h(m.serveRouteEvents), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathRouteWake, Tag: lives, Summary: "Wakes a paused sandbox because of traffic, for proxies.", In: js(cubeapi.WakeRequest{}), Out: js(cubeapi.RouteAnswer{}), Security: byHost}, h(m.serveWake), false},

		{openapi.Operation{Method: "GET", Path: cubeapi.PathSandboxDecisions, Tag: scheduling, Summary: "Why a sandbox is where it is, or nowhere: one decision for each attempt.", Params: []openapi.Param{must("sandbox_id")}, Out: js(cubeapi.DecisionsAnswer{}), Security: byUser}, h(m.serveDecisions), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathSchedule, Tag: scheduling, Summary: "Where a create would go now, and why nowhere else. Nothing is made or charged.", Params: []openapi.Param{{Name: "limit", What: "hosts that are shown of those that fit, and of those that do not: 1 to 1000, 100 when absent", Type: "integer"}, q("host", "show this host, wherever it stands; may be given several times"), q("seed", "breaks ties: a number of 64 bits; absent: by chance")}, In: js(cubeapi.SandboxCreateRequest{}), Out: js(cubeapi.ScheduleAnswer{}), Security: byUser}, h(m.serveSchedule), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathScheduleTrace, Tag: scheduling, Summary: "The creates that are remembered, as a trace for a simulation: one a line, in their order.", Params: []openapi.Param{q("since", "only those from this time on"), {Name: "limit", What: "lines at most: 1 to 2000000, 100000 when absent", Type: "integer"}}, Out: openapi.Bytes("application/x-ndjson"), Security: byUser}, h(m.serveTrace), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathScheduleFleet, Tag: scheduling, Summary: "The hosts, as a fleet for a simulation: one a line, without their sandboxes.", Out: openapi.Bytes("application/x-ndjson"), Security: byUser}, h(m.serveFleet), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathFakeCreate, Tag: scheduling, Summary: "A dry run in the form of older tools: the host, or why there is none.", In: js(cubeapi.SandboxCreateRequest{}), Out: js(cubeapi.FakeCreateAnswer{}), Security: byUser}, h(m.serveFakeCreate), false},

		{openapi.Operation{Method: "GET", Path: cubeapi.PathHosts, Tag: hosts, Summary: "All hosts.", Out: js(cubeapi.HostListAnswer{}), Security: byUser}, h(m.serveHosts), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathHost, Tag: hosts, Summary: "One host.", Out: js(cubeapi.HostAnswer{}), Security: byUser}, h(m.serveHost), false},
		{openapi.Operation{Method: "DELETE", Path: cubeapi.PathHost, Tag: hosts, Summary: "Takes a host out of the books that is cordoned and empty, or by force one that will not return.", Params: []openapi.Param{{Name: "force", What: "true: it may be neither, but must not report any more", Type: "boolean"}}, Out: js(cubeapi.Envelope{}), Security: byUser}, h(m.serveHostRemove), false},
		{openapi.Operation{Method: "PUT", Path: cubeapi.PathHostIsolation, Tag: hosts, Summary: "Keeps new work away from a host.", Out: js(cubeapi.HostAnswer{}), Security: byUser}, h(m.serveCordon(true)), false},
		{openapi.Operation{Method: "DELETE", Path: cubeapi.PathHostIsolation, Tag: hosts, Summary: "Lets a host have new work again; ends a drain.", Out: js(cubeapi.HostAnswer{}), Security: byUser}, h(m.serveCordon(false)), false},
		{openapi.Operation{Method: "PUT", Path: cubeapi.PathHostLabels, Tag: hosts, Summary: "Changes the labels that operators give a host.", In: js(cubeapi.HostLabelsRequest{}), Out: js(cubeapi.HostAnswer{}), Security: byUser}, h(m.serveHostLabels), false},
		{openapi.Operation{Method: "PUT", Path: cubeapi.PathHostQuota, Tag: hosts, Summary: "Replaces the quota of a host, if nobody was faster.", In: js(cubeapi.HostQuotaRequest{}), Out: js(cubeapi.HostAnswer{}), Security: byUser}, h(m.serveHostQuota), false},
		{openapi.Operation{Method: "PUT", Path: cubeapi.PathHostDrain, Tag: hosts, Summary: "Wants a host to be empty; cordons it.", In: openapi.Body{Value: cubeapi.HostDrainRequest{}, Optional: true}, Out: js(cubeapi.HostDrainAnswer{}), Security: byUser}, h(m.serveHostDrain), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathHostDrain, Tag: hosts, Summary: "How far the drain of a host is.", Out: js(cubeapi.HostDrainAnswer{}), Security: byUser}, h(m.serveDrainState), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathHostRegister, Tag: hosts, Summary: "A cubelet's first word.", In: js(cubeapi.HostRegisterRequest{}), Out: js(cubeapi.Envelope{}), Security: byHost}, h(m.serveRegister), false},
		{openapi.Operation{Method: "POST", Path: cubeapi.PathHostStatus, Tag: hosts, Summary: "A cubelet's report.", In: js(cubeapi.HostStatusRequest{}), Out: js(cubeapi.HostStatusAnswer{}), Security: byHost}, h(m.serveStatus), false},

		{openapi.Operation{Method: "GET", Path: cubeapi.PathSchedulerConfig, Tag: "scheduler", Summary: "The rules that hold, since when, and why a newer file is not taken.", Out: js(cubeapi.SchedulerConfigAnswer{}), Security: byUser}, h(m.serveSchedulerConfig), false},

		{openapi.Operation{Method: "GET", Path: cubeapi.PathAudit, Tag: "audit", Summary: "What users changed, newest first.", Params: []openapi.Param{q("subject", "only of this template, alias or host"), limit, cursor}, Out: js(cubeapi.AuditAnswer{}), Security: byUser}, h(m.serveAudit), false},

		{openapi.Operation{Method: "GET", Path: cubeapi.PathMasterHealth, Tag: health, Summary: "The process answers.", Out: js(cubeapi.Envelope{})}, h(m.serveHealth), false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathMetrics, Tag: health, Summary: "Prometheus text.", Out: openapi.Bytes("text/plain")}, metrics, false},
		{openapi.Operation{Method: "GET", Path: cubeapi.PathOpenAPI, Tag: health, Summary: "This document.", Out: openapi.Bytes("application/yaml")}, nil, false},
	}
}

// document describes the face.
func document(table []route) openapi.Document {
	d := openapi.Document{
		Title: "Paddock master", What: "The control plane of templates, sandboxes and hosts.", Refusal: cubeapi.Envelope{},
		Schemes: map[string]openapi.Scheme{
			byUser:  {Headers: []string{cubeapi.HeaderAPIKey, "Authorization"}, What: "The API key of users."},
			byJob:   {Headers: []string{cubeapi.HeaderCallbackToken}, What: "A short-lived token of one job, or the token that master and template centre share."},
			byRole:  {Headers: []string{cubeapi.HeaderCallbackToken}, What: "The token that master and template centre share."},
			byHost:  {Headers: []string{cubeapi.HeaderHostToken}, What: "The token that masters and cubelets share."},
			byBytes: {Headers: []string{cubeapi.HeaderArtifactToken}, What: "A short-lived token for the bytes of one artifact."},
		},
	}
	for _, r := range table {
		d.Operations = append(d.Operations, r.Operation)
	}
	return d
}

func (m *Master) routes(reg *prometheus.Registry) (http.Handler, error) {
	center, err := url.Parse(m.cfg.Master.TemplateCenterAddr)
	if err != nil {
		return nil, fault.Wrap(fault.BadConfig, err, "master.template_center_addr")
	}
	table := m.table(center, telemetry.Handler(reg))
	text, err := document(table).YAML()
	if err != nil {
		return nil, fault.Wrap(fault.Bug, err, "document of the master")
	}
	a := m.cfg.Auth
	gates := map[string]func(http.Handler) http.Handler{
		byUser:  auth.RequireAPIKey(a.APIKey, a.InsecureOpen),
		byRole:  auth.RequireToken(cubeapi.HeaderCallbackToken, a.CallbackToken, a.InsecureOpen),
		byJob:   m.requireReportTicket,
		byHost:  auth.RequireToken(cubeapi.HeaderHostToken, a.HostToken, a.InsecureOpen),
		byBytes: func(h http.Handler) http.Handler { return h },
		"":      func(h http.Handler) http.Handler { return h },
	}
	mux := http.NewServeMux()
	for _, r := range table {
		if r.Path == cubeapi.PathOpenAPI {
			r.serve = openapi.Handler(text)
		}
		h := gates[r.Security](r.serve)
		if r.Security == byUser {
			h = signed(h)
		}
		mux.Handle(r.Method+" "+r.Path, h)
	}
	return serve.NewMiddleware("master", m.log, reg).Wrap(mux), nil
}

// serveHealth needs no database: an outage there must not get this process
// killed.
func (m *Master) serveHealth(w http.ResponseWriter, r *http.Request) {
	serve.WriteJSON(w, http.StatusOK, cubeapi.OK(requestID(r)))
}

// toCenter hands a call on to the template centre. With a token the master has
// looked at the caller's key, keeps it, and speaks for itself; without one the
// template centre checks what the caller sent.
func (m *Master) toCenter(center *url.URL, token string) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(center)
			if token != "" {
				r.Out.Header.Del(cubeapi.HeaderAPIKey)
				r.Out.Header.Del("Authorization")
				r.Out.Header.Set(cubeapi.HeaderCallbackToken, token)
			}
		},
		FlushInterval: -1,
		BufferPool:    &buffers{},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			serve.WriteError(w, r, fault.Wrap(fault.PeerUnavailable, err, "template centre at %s", center))
		},
	}
}

// buffers are those of downloads: large, since whole images pass through them.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 256<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
