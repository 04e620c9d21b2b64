// Package cubeapi is the wire of layers 1 and 2: the paths, headers, JSON
// shapes and words of the HTTP faces of master and template centre, and the
// clients that speak them.
//
// It translates; it decides nothing. Names are those of spec/template-center
// and, where it gives none, those that existing tools speak, so that they work
// unchanged. Wire words (READY, PENDING) exist only in wire.go of this package.
package cubeapi

import "github.com/paddock-dev/paddock/internal/fault"

// Headers.
const (
	HeaderAPIKey        = "X-API-KEY"
	HeaderCaller        = "X-Caller"                       // for whom a sandbox is made
	HeaderCallbackToken = "X-Cube-Template-Callback-Token" // master <-> template centre
	HeaderHostToken     = "X-Paddock-Host-Token"           // cubelet -> master
	HeaderArtifactToken = "X-Cube-Artifact-Token"          // cubelet -> artifact download
	HeaderArtifactID    = "X-Cube-Artifact-Id"
	HeaderRequestID     = "X-Request-Id"
)

// QueryRedirect, with false, asks the download of an artifact for the bytes
// themselves, not for where they are.
const QueryRedirect = "redirect"

// Paths of the master.
const (
	PathTemplate         = "/cube/template"
	PathAlias            = "/cube/template/{template_id}/alias"
	PathReceipt          = "/cube/template/{template_id}/receipt"
	PathTemplateCompat   = "/cube/template/compat"
	PathTemplateGC       = "/cube/template/gc"
	PathAudit            = "/cube/audit"
	PathFromImage        = "/cube/template/from-image"
	PathRedo             = "/cube/template/redo"
	PathMigrate          = "/cube/template/migrate"
	PathJobCancel        = "/cube/template/jobs/{job_id}/cancel"
	PathJobLogs          = "/cube/template/jobs/{job_id}/logs"
	PathBuildStatus      = "/cube/template/build/{build_id}/status"
	PathArtifactDownload = "/cube/template/artifact/download"
	PathArtifactManifest = "/cube/template/artifact/manifest"
	PathRootfsArtifact   = "/cube/rootfs-artifact"
	PathSandbox          = "/cube/sandbox"
	PathSandboxBatch     = "/cube/sandbox/batch"
	PathSandboxPreview   = "/cube/sandbox/preview"
	PathSandboxList      = "/cube/sandbox/list"
	PathSandboxInfo      = "/cube/sandbox/info"
	PathSandboxExec      = "/cube/sandbox/exec"
	PathSandboxSignal    = "/cube/sandbox/exec/signal"
	PathSandboxResize    = "/cube/sandbox/exec/resize"
	PathSandboxFiles     = "/cube/sandbox/files"
	PathSandboxDecisions = "/cube/sandbox/decisions"
	PathSchedule         = "/cube/schedule"
	PathScheduleTrace    = "/cube/schedule/trace"
	PathScheduleFleet    = "/cube/schedule/fleet"
	PathFakeCreate       = "/internal/fake_create"
	PathJobStatus        = "/internal/template/jobs/{job_id}/status"
	PathHosts            = "/internal/meta/nodes"
	PathHostRegister     = "/internal/meta/nodes/register"
	PathHostStatus       = "/internal/meta/nodes/{node_id}/status"
	PathHost             = "/internal/meta/nodes/{node_id}"
	PathHostLabels       = "/internal/meta/nodes/{node_id}/labels"
	PathHostQuota        = "/internal/meta/nodes/{node_id}/quota"
	PathHostDrain        = "/internal/meta/nodes/{node_id}/drain"
	PathHostIsolation    = "/internal/meta/nodes/{node_id}/isolation" // PUT cordons, DELETE ends it
	PathSchedulerConfig  = "/internal/scheduler/config"
	PathMasterHealth     = "/notify/health"
	PathMetrics          = "/metrics"
	PathOpenAPI          = "/openapi.yaml" // every HTTP face has it
)

// Paths of the template centre.
const (
	PathTCBuild          = "/tc/api/v1/build"
	PathTCArtifactDelete = "/tc/api/v1/artifact/delete"
	PathTCReceipt        = "/tc/api/v1/artifact/receipt"
	PathTCArtifactStat   = "/tc/api/v1/artifact/stat"
	PathTCArtifactMove   = "/tc/api/v1/artifact/migrate"
	PathTCArtifactUpload = "/tc/api/v1/artifact/upload"
	PathTCHealth         = "/health"
)

// Ret is the outcome that every answer of a /cube/ path carries.
// The HTTP status says the same thing truly.
type Ret struct {
	Code    int    `json:"ret_code"`
	Message string `json:"ret_msg"`
}

// Envelope is what every answer of a /cube/ path begins with.
type Envelope struct {
	RequestID string        `json:"requestID"`
	Ret       Ret           `json:"ret"`
	Error     *fault.Detail `json:"error,omitempty"`
	// Warnings tell of what in the request had no effect.
	Warnings []string `json:"warnings,omitempty"`
}

// OK returns the envelope of a success.
func OK(requestID string) Envelope {
	return Envelope{RequestID: requestID, Ret: Ret{Code: 200, Message: "success"}}
}
