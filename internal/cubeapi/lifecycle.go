package cubeapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Paths of what becomes of a sandbox after its create.
const (
	PathSandboxPause    = "/cube/sandbox/pause"
	PathSandboxResume   = "/cube/sandbox/resume"
	PathSandboxUpdate   = "/cube/sandbox/update"
	PathSandboxTimeout  = "/cube/sandbox/timeout"
	PathSandboxRefresh  = "/cube/sandbox/refresh"
	PathSandboxActivity = "/cube/sandbox/activity"
	PathSandboxLogs     = "/cube/sandbox/logs"
	PathSandboxMetrics  = "/cube/sandbox/metrics"
	PathSandboxSnapshot = "/cube/sandbox/snapshot"
	PathSandboxRollback = "/cube/sandbox/rollback"
	PathSandboxClone    = "/cube/sandbox/clone"
	PathSandboxCommit   = "/cube/sandbox/commit"
	PathSnapshots       = "/cube/snapshots"
	PathSnapshot        = "/cube/snapshot" // GET ?snapshot_id=, DELETE
	PathSnapshotRoot    = "/cube/snapshot/root"
)

// SnapshotRef begins the source_image_ref of a template that was made of a
// snapshot; its id follows. No registry's reference begins so.
const SnapshotRef = "snapshot://"

// What becomes of a sandbox that nobody used for its timeout.
const (
	OnTimeoutKill  = "kill"
	OnTimeoutPause = "pause"
)

// PauseRequest keeps a sandbox on the disk of its host. Of one that is paused
// already the answer is a success.
type PauseRequest struct {
	RequestID  string `json:"requestID"`
	SandboxID  string `json:"sandbox_id,omitempty"`
	SandboxID2 string `json:"sandboxID,omitempty"` // as sandbox_id, for older tools
	// Memory keeps the memory, too: programs go on where they were. False keeps
	// what was written to disk. Absent: with memory, where the runtime can.
	Memory *bool `json:"memory,omitempty"`
}

// ResumeRequest brings a paused sandbox back. Of one that runs already the
// answer is a success. One that is being paused is waited for.
type ResumeRequest struct {
	RequestID  string `json:"requestID"`
	SandboxID  string `json:"sandbox_id,omitempty"`
	SandboxID2 string `json:"sandboxID,omitempty"` // as sandbox_id, for older tools
	Timeout    *int64 `json:"timeout,omitempty"`   // takes the place of the sandbox's; seconds, -1: none
	Reason     string `json:"reason,omitempty"`    // traffic: only one with auto_resume is woken
}

// ReasonTraffic is why the proxy wakes a sandbox.
const ReasonTraffic = "traffic"

// SandboxUpdateRequest changes what a sandbox may reach, who reaches it, and
// its labels; what is absent stays. Action is pause or resume, for older tools;
// then nothing else may be set.
type SandboxUpdateRequest struct {
	RequestID  string             `json:"requestID"`
	SandboxID  string             `json:"sandbox_id,omitempty"`
	SandboxID2 string             `json:"sandboxID,omitempty"` // as sandbox_id, for older tools
	Action     string             `json:"action,omitempty"`
	Network    *NetworkConfig     `json:"cube_network_config,omitempty"` // in the place of all that was said of it
	Ports      *[]int32           `json:"exposed_ports,omitempty"`
	Labels     *map[string]string `json:"labels,omitempty"` // in the place of all
}

// TimeoutRequest says how long nobody may use a sandbox, from now on.
type TimeoutRequest struct {
	RequestID  string `json:"requestID"`
	SandboxID  string `json:"sandbox_id,omitempty"`
	SandboxID2 string `json:"sandboxID,omitempty"`    // as sandbox_id, for older tools
	Timeout    int64  `json:"timeout" api:"required"` // seconds; -1: for ever; 0: it is over now
	OnTimeout  string `json:"on_timeout,omitempty"`   // kill or pause; absent: as before
	AutoResume *bool  `json:"auto_resume,omitempty"`  // absent: as before
}

// RefreshRequest counts as a use of the sandbox: its end is not before duration
// from now.
type RefreshRequest struct {
	RequestID  string `json:"requestID"`
	SandboxID  string `json:"sandbox_id,omitempty"`
	SandboxID2 string `json:"sandboxID,omitempty"` // as sandbox_id, for older tools
	Duration   int64  `json:"duration,omitempty"`  // seconds, at most 3600; 0: the sandbox's timeout
}

// ActivityRequest tells the master, host token, which sandboxes were used.
type ActivityRequest struct {
	Seen []Seen `json:"seen" api:"required"` // at most MaxSeen
}

// MaxSeen is how many sandboxes one ActivityRequest names.
const MaxSeen = 10_000

// Seen is that a sandbox was used so many microseconds before the request was
// sent.
type Seen struct {
	SandboxID string `json:"sandbox_id" api:"required"`
	AgoUS     int64  `json:"at_us_ago"`
}

// SnapshotRequest keeps the state of a sandbox, which goes on.
type SnapshotRequest struct {
	RequestID string `json:"requestID"`
	SandboxID string `json:"sandbox_id" api:"required"`
	Name      string `json:"name,omitempty"`   // for people
	Memory    *bool  `json:"memory,omitempty"` // as in PauseRequest
}

// Snapshot is one as shown.
type Snapshot struct {
	SnapshotID string `json:"snapshot_id"`
	Name       string `json:"name,omitempty"`
	Status     string `json:"status"`
	SandboxID  string `json:"sandbox_id"`
	TemplateID string `json:"template_id"`
	HostID     string `json:"host_id"`
	Driver     string `json:"driver,omitempty"`
	Memory     bool   `json:"memory"`
	SizeBytes  int64  `json:"size_bytes"`
	Error      string `json:"error,omitempty"`
	CreatedAt  string `json:"created_at"`
}

// SnapshotAnswer carries one snapshot.
type SnapshotAnswer struct {
	Envelope
	Snapshot *Snapshot `json:"snapshot,omitempty"`
}

// SnapshotListAnswer carries a page of snapshots, in the order of their making.
type SnapshotListAnswer struct {
	Envelope
	Data []Snapshot `json:"data"`
	Next string     `json:"next,omitempty"` // cursor of the next page; empty: this is the last
}

// SnapshotDeleteRequest names the snapshot to delete. Sandboxes that were made
// of it do not need it.
type SnapshotDeleteRequest struct {
	RequestID  string `json:"requestID"`
	SnapshotID string `json:"snapshot_id" api:"required"`
}

// RollbackRequest gives a sandbox the state of one of its snapshots.
type RollbackRequest struct {
	RequestID  string `json:"requestID"`
	SandboxID  string `json:"sandbox_id" api:"required"`
	SnapshotID string `json:"snapshot_id" api:"required"`
}

// CloneRequest makes sandboxes that begin as another is at that moment. The
// answer is that of a batch.
type CloneRequest struct {
	RequestID string `json:"requestID"`
	SandboxID string `json:"sandbox_id" api:"required"`
	Count     int    `json:"count,omitempty"`  // 0: 1
	Memory    *bool  `json:"memory,omitempty"` // as in PauseRequest
}

// CommitRequest makes a template of what a sandbox or snapshot has on disk. The
// answer carries the job, as a build's does.
type CommitRequest struct {
	RequestID  string `json:"requestID"`
	SandboxID  string `json:"sandbox_id,omitempty"` // one of the two
	SnapshotID string `json:"snapshot_id,omitempty"`
	Alias      string `json:"alias,omitempty"`
}

// Usage is what a sandbox uses, and has used in its life.
type Usage struct {
	SandboxID      string `json:"sandbox_id"`
	At             string `json:"at"`
	CPUUS          int64  `json:"cpu_us"` // of CPU time, since its start
	MilliCPULimit  int64  `json:"milli_cpu_limit"`
	MemBytes       int64  `json:"mem_bytes"`
	MemLimitBytes  int64  `json:"mem_limit_bytes"`
	DiskBytes      int64  `json:"disk_bytes"`
	DiskLimitBytes int64  `json:"disk_limit_bytes"`
	RxBytes        int64  `json:"rx_bytes"` // came in over its network
	TxBytes        int64  `json:"tx_bytes"`
	Processes      int64  `json:"processes"`
	OOMKills       int64  `json:"oom_kills"`
}

// UsageAnswer carries the usage of sandboxes.
type UsageAnswer struct {
	Envelope
	Data    []Usage  `json:"data"`
	Partial []string `json:"partial,omitempty"` // hosts that did not answer
}

// Pause keeps a sandbox on disk and returns when it is kept.
func (c *Client) Pause(ctx context.Context, r PauseRequest) (*Sandbox, error) {
	return c.changed(ctx, PathSandboxPause, r)
}

// Resume brings a paused sandbox back and returns when it is usable.
func (c *Client) Resume(ctx context.Context, r ResumeRequest) (*Sandbox, error) {
	return c.changed(ctx, PathSandboxResume, r)
}

// Update changes a sandbox's network, ports or labels.
func (c *Client) Update(ctx context.Context, r SandboxUpdateRequest) (*Sandbox, error) {
	return c.changed(ctx, PathSandboxUpdate, r)
}

// SetTimeout says how long nobody may use a sandbox.
func (c *Client) SetTimeout(ctx context.Context, r TimeoutRequest) (*Sandbox, error) {
	return c.changed(ctx, PathSandboxTimeout, r)
}

// Refresh counts as a use of a sandbox.
func (c *Client) Refresh(ctx context.Context, r RefreshRequest) (*Sandbox, error) {
	return c.changed(ctx, PathSandboxRefresh, r)
}

// Rollback gives a sandbox the state of a snapshot and returns when it is usable.
func (c *Client) Rollback(ctx context.Context, r RollbackRequest) (*Sandbox, error) {
	return c.changed(ctx, PathSandboxRollback, r)
}

func (c *Client) changed(ctx context.Context, path string, r any) (*Sandbox, error) {
	var a SandboxAnswer
	err := c.call(ctx, http.MethodPost, path, r, &a)
	return a.Sandbox, err
}

// Snapshot keeps a sandbox's state and returns when it is kept.
func (c *Client) Snapshot(ctx context.Context, r SnapshotRequest) (*Snapshot, error) {
	var a SnapshotAnswer
	err := c.call(ctx, http.MethodPost, PathSandboxSnapshot, r, &a)
	return a.Snapshot, err
}

// Snapshots returns all snapshots, of one sandbox if it is named.
func (c *Client) Snapshots(ctx context.Context, sandboxID string) ([]Snapshot, error) {
	all := []Snapshot{}
	for q := (url.Values{"sandbox_id": {sandboxID}}); ; {
		var a SnapshotListAnswer
		if err := c.call(ctx, http.MethodGet, PathSnapshots+"?"+q.Encode(), nil, &a); err != nil {
			return nil, err
		}
		if all = append(all, a.Data...); a.Next == "" {
			return all, nil
		}
		q.Set("cursor", a.Next)
	}
}

// GetSnapshot returns one snapshot.
func (c *Client) GetSnapshot(ctx context.Context, id string) (*Snapshot, error) {
	var a SnapshotAnswer
	err := c.call(ctx, http.MethodGet, PathSnapshot+"?snapshot_id="+url.QueryEscape(id), nil, &a)
	return a.Snapshot, err
}

// DeleteSnapshot deletes a snapshot. A host that is away removes it later.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, PathSnapshot, SnapshotDeleteRequest{SnapshotID: id}, nil)
}

// Clone makes sandboxes that begin as another is.
func (c *Client) Clone(ctx context.Context, r CloneRequest) (SandboxBatchAnswer, error) {
	var a SandboxBatchAnswer
	err := c.call(ctx, http.MethodPost, PathSandboxClone, r, &a)
	return a, err
}

// Commit makes a template of a sandbox or snapshot and returns the job.
func (c *Client) Commit(ctx context.Context, r CommitRequest) (*Job, error) {
	var a JobAnswer
	err := c.call(ctx, http.MethodPost, PathSandboxCommit, r, &a)
	return a.Job, err
}

// Usage returns what sandboxes use; without ids, of all that run.
func (c *Client) Usage(ctx context.Context, ids ...string) ([]Usage, error) {
	var a UsageAnswer
	err := c.call(ctx, http.MethodGet, PathSandboxMetrics+"?"+url.Values{"sandbox_id": ids}.Encode(), nil, &a)
	return a.Data, err
}

// Logs copies what the first program of a sandbox wrote to w: the last lines of
// it, 0 for all that is kept. With follow it goes on until the sandbox ends.
func (c *Client) Logs(ctx context.Context, id string, tail int, follow bool, w io.Writer) error {
	q := url.Values{"sandbox_id": {id}, "tail": {fmt.Sprint(tail)}, "follow": {fmt.Sprint(follow)}}
	answer, err := c.request(ctx, http.MethodGet, PathSandboxLogs+"?"+q.Encode(), nil, "")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(w, answer.Body); err != nil && ctx.Err() == nil {
		return fault.Wrap(fault.PeerUnavailable, err, "log of sandbox %s", id)
	}
	return nil
}

// SandboxQuery narrows SandboxesBy; zero fields do not.
type SandboxQuery struct {
	All        bool              // also those that ended
	States     []string          // RUNNING, PAUSED, ...
	HostID     string            //
	TemplateID string            //
	Labels     map[string]string // all of them
	Limit      int               // of one page; 0: 100
	Cursor     string            // of the page before
}

func (q SandboxQuery) encode() string {
	v := url.Values{"state": q.States}
	for name, value := range map[string]string{"host_id": q.HostID, "template_id": q.TemplateID, "cursor": q.Cursor} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.All {
		v.Set("all", "true")
	}
	if q.Limit > 0 {
		v.Set("limit", fmt.Sprint(q.Limit))
	}
	for k, label := range q.Labels {
		v.Add("label", k+"="+label)
	}
	return v.Encode()
}

// SandboxesBy returns one page of sandboxes, and the cursor of the next; it
// stays good when sandboxes come and go.
func (c *Client) SandboxesBy(ctx context.Context, q SandboxQuery) (SandboxListAnswer, error) {
	var a SandboxListAnswer
	err := c.call(ctx, http.MethodGet, PathSandboxList+"?"+q.encode(), nil, &a)
	return a, err
}

// Activity tells which sandboxes were used.
func (c *HostClient) Activity(ctx context.Context, r ActivityRequest) error {
	return c.call(ctx, http.MethodPost, PathSandboxActivity, r, nil)
}

// Seconds is d for a field that counts them; below zero it is -1, for ever.
func Seconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return int64(d.Round(time.Second) / time.Second)
}
