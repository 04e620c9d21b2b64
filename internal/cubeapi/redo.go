package cubeapi

import (
	"context"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"

	"github.com/paddock-dev/paddock/internal/fault"
)

// RedoRequest brings a template to hosts again. Its bytes are built again when
// they are gone.
type RedoRequest struct {
	RequestID         string   `json:"requestID"`
	TemplateID        string   `json:"template_id"` // or its alias
	DistributionScope []string `json:"distribution_scope,omitempty"`
	FailedOnly        bool     `json:"failed_only,omitempty"`
	RegistryUsername  string   `json:"registry_username,omitempty"`
	RegistryPassword  string   `json:"registry_password,omitempty"` // never stored, never logged
	Wait              bool     `json:"wait,omitempty"`              // for older tools: the answer never waits
	DryRun            bool     `json:"dry_run,omitempty"`
}

// RedoAnswer carries the job of a redo, or the plan of one that is only asked
// about.
type RedoAnswer struct {
	Envelope
	Job  *Job      `json:"job,omitempty"`
	Plan *RedoPlan `json:"plan,omitempty"`
}

// RedoPlan is what a redo would do.
type RedoPlan struct {
	TemplateID    string       `json:"template_id"`
	TemplateState string       `json:"template_status,omitempty"`
	RedoMode      string       `json:"redo_mode"`
	Rebuild       bool         `json:"rebuild"`
	Why           string       `json:"why"`
	ArtifactID    string       `json:"artifact_id,omitempty"`
	ArtifactBytes int64        `json:"artifact_bytes,omitempty"`
	BytesToMove   int64        `json:"bytes_to_move"` // to the hosts that lack them; unknown before a rebuild
	Targets       []RedoTarget `json:"targets"`
	Sandboxes     int          `json:"sandboxes"`                  // that run from the template, and go on
	Templates     []string     `json:"shared_templates,omitempty"` // others of the same bytes
}

// RedoTarget is one host of a redo.
type RedoTarget struct {
	NodeID  string `json:"node_id"`
	NodeIP  string `json:"node_ip"`
	Replica string `json:"replica,omitempty"` // its phase; empty: there is none
	Holds   bool   `json:"holds"`             // the host has the bytes
}

// MigrateRequest moves a template's bytes to the store of the configuration.
type MigrateRequest struct {
	RequestID  string `json:"requestID,omitempty"`
	TemplateID string `json:"template_id"` // or its alias
	DryRun     bool   `json:"dry_run,omitempty"`
}

// MigrateAnswer carries the job of a move, or the plan of one that is only
// asked about.
type MigrateAnswer struct {
	Envelope
	Job  *Job         `json:"job,omitempty"`
	Plan *MigratePlan `json:"plan,omitempty"`
}

// MigratePlan is what a move would do.
type MigratePlan struct {
	TemplateID  string   `json:"template_id"`
	ArtifactID  string   `json:"artifact_id"`
	From        string   `json:"from"` // where the bytes are: dir, s3, or master for the master's own disk
	To          string   `json:"to"`
	Moves       bool     `json:"moves"` // false: they are there already
	BytesToMove int64    `json:"bytes_to_move"`
	Templates   []string `json:"shared_templates,omitempty"`
}

// Redo submits a redo and returns its job, or its plan.
func (c *Client) Redo(ctx context.Context, r RedoRequest) (RedoAnswer, error) {
	var a RedoAnswer
	err := c.call(ctx, http.MethodPost, PathRedo, r, &a)
	return a, err
}

// Migrate submits a move of bytes and returns its job, or its plan.
func (c *Client) Migrate(ctx context.Context, r MigrateRequest) (MigrateAnswer, error) {
	var a MigrateAnswer
	err := c.call(ctx, http.MethodPost, PathMigrate, r, &a)
	return a, err
}

// MigrateJob returns the job of a move as it stands.
func (c *Client) MigrateJob(ctx context.Context, id string) (*Job, error) {
	var a JobAnswer
	err := c.call(ctx, http.MethodGet, PathMigrate+"?job_id="+url.QueryEscape(id), nil, &a)
	return a.Job, err
}

// TCArtifactRequest names an artifact.
type TCArtifactRequest struct {
	ArtifactID string `json:"artifact_id"`
}

// TCArtifactAnswer is what the template centre knows of an artifact's bytes.
type TCArtifactAnswer struct {
	Status     string `json:"status"` // there, uploaded (they were moved), reused (they were there)
	ArtifactID string `json:"artifact_id"`
	Backend    string `json:"storage_backend"` // of the store of its configuration
	ObjectKey  string `json:"object_key"`
	Legacy     bool   `json:"legacy,omitempty"` // the bytes are in the directory of before, not in that store
	Path       string `json:"ext4_path,omitempty"`
	SHA256     string `json:"ext4_sha256,omitempty"` // when they were read
	SizeBytes  int64  `json:"ext4_size_bytes"`
}

// What the template centre did with bytes.
const (
	BytesThere    = "there"
	BytesUploaded = "uploaded"
	BytesReused   = "reused"
)

// StatArtifact says where an artifact's bytes are and how many; with verify
// they are read, and their hash told. fault.ArtifactNotFound when the template
// centre can tell that they are gone; any other failure tells nothing.
func (c *CenterClient) StatArtifact(ctx context.Context, id string, verify bool) (a TCArtifactAnswer, err error) {
	q := url.Values{"artifact_id": {id}}
	if verify {
		q.Set("verify", "true")
	}
	return a, c.call(ctx, http.MethodGet, PathTCArtifactStat+"?"+q.Encode(), nil, &a)
}

// MoveArtifact makes the store of the template centre's configuration have an
// artifact's bytes, and forgets a copy in the directory of before once the row
// says that they are in the store. It may be asked again.
func (c *CenterClient) MoveArtifact(ctx context.Context, id string) (a TCArtifactAnswer, err error) {
	return a, c.call(ctx, http.MethodPost, PathTCArtifactMove, TCArtifactRequest{id}, &a)
}

// UploadArtifact stores an artifact's bytes, and its receipt if there is one.
func (c *CenterClient) UploadArtifact(ctx context.Context, id string, data, receipt io.Reader) (a TCArtifactAnswer, err error) {
	body, give := io.Pipe()
	form := multipart.NewWriter(give)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = give.CloseWithError(writeUpload(form, id, data, receipt)) // never fails
	}()
	defer func() {
		_ = body.Close() // so that nobody writes on
		<-done
	}()
	answer, err := c.request(ctx, http.MethodPost, PathTCArtifactUpload, body, form.FormDataContentType())
	if err != nil {
		return a, err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&a); err != nil {
		return a, fault.Wrap(fault.PeerUnavailable, err, "answer to the upload of artifact %s", id)
	}
	return a, nil
}

// writeUpload writes the id first: whoever reads must know it before the bytes.
func writeUpload(form *multipart.Writer, id string, data, receipt io.Reader) error {
	if err := form.WriteField("artifact_id", id); err != nil {
		return err
	}
	if receipt != nil {
		part, err := form.CreateFormFile("receipt", id+".receipt.json")
		if err == nil {
			_, err = io.Copy(part, receipt)
		}
		if err != nil {
			return err
		}
	}
	part, err := form.CreateFormFile("file", id+".ext4")
	if err == nil {
		_, err = io.Copy(part, data)
	}
	if err != nil {
		return err
	}
	return form.Close()
}
