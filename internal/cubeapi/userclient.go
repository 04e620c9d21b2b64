package cubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Client is how a user's program speaks to the master. Every refusal comes
// back as its fault, so that errors.Is finds the code.
type Client struct{ caller }

// NewClient returns a client of the master at base.
func NewClient(base, apiKey string) *Client {
	return &Client{newCaller(base, HeaderAPIKey, apiKey, "master")}
}

// FromImage submits a build and returns its job.
func (c *Client) FromImage(ctx context.Context, r FromImageRequest) (*Job, error) {
	var a JobAnswer
	if r.Envd != "" {
		err := c.fromImageForm(ctx, r, &a)
		return a.Job, err
	}
	err := c.call(ctx, http.MethodPost, PathFromImage, r, &a)
	return a.Job, err
}

// CreateTemplate makes a template of an artifact and returns it when its hosts
// have it. The request may be a TemplateCreateRequest, or JSON of one.
func (c *Client) CreateTemplate(ctx context.Context, r any) (TemplateAnswer, error) {
	var a TemplateAnswer
	err := c.call(ctx, http.MethodPost, PathTemplate, r, &a)
	return a, err
}

// Preview returns what a create would do. The request may be a
// SandboxCreateRequest, or JSON of one.
func (c *Client) Preview(ctx context.Context, r any) (PreviewAnswer, error) {
	var a PreviewAnswer
	err := c.call(ctx, http.MethodPost, PathSandboxPreview, r, &a)
	return a, err
}

// Job returns a job as it stands.
func (c *Client) Job(ctx context.Context, id string) (*Job, error) {
	var a JobAnswer
	err := c.call(ctx, http.MethodGet, PathFromImage+"?job_id="+url.QueryEscape(id), nil, &a)
	return a.Job, err
}

// CancelJob ends a job that has not ended. One that was cancelled before is
// returned as it is; another outcome is fault.StateConflict.
func (c *Client) CancelJob(ctx context.Context, id string) (*Job, error) {
	var a JobAnswer
	err := c.call(ctx, http.MethodPost, strings.Replace(PathJobCancel, "{job_id}", url.PathEscape(id), 1), nil, &a)
	return a.Job, err
}

// JobLogs returns what is said of a job behind the line numbered after. While
// there is nothing it waits for up to the given time, 30 seconds at most.
func (c *Client) JobLogs(ctx context.Context, id string, after int64, wait time.Duration) (JobLogAnswer, error) {
	var a JobLogAnswer
	path := strings.Replace(PathJobLogs, "{job_id}", url.PathEscape(id), 1) + fmt.Sprintf("?after=%d&wait=%d", after, int(wait.Seconds()))
	err := c.call(ctx, http.MethodGet, path, nil, &a)
	return a, err
}

// BuildStatus returns how a job stands, in the form of the E2B clients.
func (c *Client) BuildStatus(ctx context.Context, id string) (BuildStatusAnswer, error) {
	var a BuildStatusAnswer
	err := c.call(ctx, http.MethodGet, strings.Replace(PathBuildStatus, "{build_id}", url.PathEscape(id), 1), nil, &a)
	return a, err
}

// Artifact returns what is known of an artifact, without its bytes.
func (c *Client) Artifact(ctx context.Context, id string) (*Artifact, error) {
	var a JobAnswer
	if err := c.call(ctx, http.MethodGet, PathRootfsArtifact+"?artifact_id="+url.QueryEscape(id), nil, &a); err != nil || a.Job == nil {
		return nil, err
	}
	return a.Job.Artifact, nil
}

// ArtifactDownload returns leave to fetch an artifact's bytes for a while.
func (c *Client) ArtifactDownload(ctx context.Context, id string) (Download, error) {
	var a JobAnswer
	if err := c.call(ctx, http.MethodGet, PathRootfsArtifact+"?link=true&artifact_id="+url.QueryEscape(id), nil, &a); err != nil || a.Download == nil {
		return Download{}, err
	}
	return *a.Download, nil
}

// Health reports whether the master answers at all.
func (c *Client) Health(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, PathMasterHealth, nil, nil)
}

// Templates returns all templates, newest first.
func (c *Client) Templates(ctx context.Context) ([]Template, error) {
	return c.TemplatesBy(ctx, TemplateQuery{Limit: 1000})
}

// Template returns one template, by id or alias.
func (c *Client) Template(ctx context.Context, name string) (Template, error) {
	var a TemplateAnswer
	err := c.call(ctx, http.MethodGet, PathTemplate+"?template_id="+url.QueryEscape(name), nil, &a)
	return a.Template, err
}

// Receipt writes what a template's image was made of to w, as JSON.
func (c *Client) Receipt(ctx context.Context, name string, w io.Writer) error {
	answer, err := c.request(ctx, http.MethodGet, strings.Replace(PathReceipt, "{template_id}", url.PathEscape(name), 1), nil, "")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(w, answer.Body); err != nil {
		return fault.Wrap(fault.PeerUnavailable, err, "receipt of template %s", name)
	}
	return nil
}

// DeleteTemplate deletes a template, by id or alias. Hosts that are away are
// cleaned later.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	_, err := c.Delete(ctx, TemplateDeleteRequest{TemplateID: name})
	return err
}

// SetAlias gives a template an alias, or clears it when alias is empty.
func (c *Client) SetAlias(ctx context.Context, name, alias string) (Template, error) {
	var a TemplateAnswer
	err := c.call(ctx, http.MethodPut, strings.Replace(PathAlias, "{template_id}", url.PathEscape(name), 1), AliasRequest{alias}, &a)
	return a.Template, err
}

// CreateSandbox makes a sandbox and returns when it is usable.
func (c *Client) CreateSandbox(ctx context.Context, r SandboxCreateRequest) (SandboxAnswer, error) {
	var a SandboxAnswer
	err := c.call(ctx, http.MethodPost, PathSandbox, r, &a)
	return a, err
}

// CreateSandboxes makes several sandboxes in one step. A batch that made none is
// an error.
func (c *Client) CreateSandboxes(ctx context.Context, r SandboxBatchRequest) (SandboxBatchAnswer, error) {
	var a SandboxBatchAnswer
	err := c.call(ctx, http.MethodPost, PathSandboxBatch, r, &a)
	return a, err
}

// Sandboxes returns the sandboxes that live, or all that are remembered.
func (c *Client) Sandboxes(ctx context.Context, all bool) ([]Sandbox, error) {
	path := PathSandboxList
	if all {
		path += "?all=true"
	}
	var a SandboxListAnswer
	err := c.call(ctx, http.MethodGet, path, nil, &a)
	return a.Data, err
}

// Sandbox returns one sandbox.
func (c *Client) Sandbox(ctx context.Context, id string) (*Sandbox, error) {
	var a SandboxAnswer
	err := c.call(ctx, http.MethodGet, PathSandboxInfo+"?sandbox_id="+url.QueryEscape(id), nil, &a)
	return a.Sandbox, err
}

// DeleteSandbox ends a sandbox and returns when it is gone.
func (c *Client) DeleteSandbox(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, PathSandbox, SandboxDeleteRequest{SandboxID: id}, nil)
}

// Exec runs a command, copies what it says to stdout and stderr, and returns
// how it ended. A writer's failure comes back as it is.
func (c *Client) Exec(ctx context.Context, r ExecRequest, stdout, stderr io.Writer) (ExecExit, error) {
	return c.ExecWith(ctx, r, ExecStreams{Stdout: stdout, Stderr: stderr})
}

// ExecStreams is what a command is joined to.
type ExecStreams struct {
	// Stdin, when not nil, is read while the command runs, and not closed. A
	// read that is under way when the command ends is left behind.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Started, when not nil, is told the number of the process.
	Started func(pid uint32)
}

// ExecWith is Exec with a say in all streams.
func (c *Client) ExecWith(ctx context.Context, r ExecRequest, s ExecStreams) (ExecExit, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return ExecExit{}, err
	}
	body, kind := io.Reader(bytes.NewReader(b)), "application/json"
	if s.Stdin != nil {
		input, give := io.Pipe()
		// The end of the command ends the body, whatever the input does.
		defer give.Close()
		go func() { // until the input ends, or nobody reads it
			_, err := io.Copy(give, s.Stdin)
			_ = give.CloseWithError(err) // never fails; without an error the input just ended
		}()
		body, kind = io.MultiReader(bytes.NewReader(append(b, '\n')), input), ContentExecInput
	}
	answer, err := c.request(ctx, http.MethodPost, PathSandboxExec, body, kind)
	if err != nil {
		return ExecExit{}, err
	}
	defer answer.Body.Close()
	for lines := json.NewDecoder(answer.Body); ; {
		var e ExecEvent
		if err := lines.Decode(&e); err != nil {
			return ExecExit{}, fault.Wrap(fault.PeerUnavailable, err, "the answer of the command broke off")
		}
		switch {
		case e.Exit != nil:
			if s.Stdin == nil {
				_, _ = io.Copy(io.Discard, answer.Body) // so that the connection serves again
			}
			return *e.Exit, nil
		case e.Error != nil:
			return ExecExit{}, fault.Parse(*e.Error, 0)
		case e.PID != 0:
			if s.Started != nil {
				s.Started(e.PID)
			}
			if r.Detach {
				return ExecExit{}, nil
			}
		}
		_, err1 := s.Stdout.Write(e.Stdout)
		_, err2 := s.Stderr.Write(e.Stderr)
		if err := errors.Join(err1, err2); err != nil {
			return ExecExit{}, err
		}
	}
}

// Signal sends a signal to a process that Exec started. One that has ended is
// fault.NoSuchThing.
func (c *Client) Signal(ctx context.Context, sandboxID string, pid uint32, signal int) error {
	return c.call(ctx, http.MethodPost, PathSandboxSignal, ExecSignalRequest{SandboxID: sandboxID, PID: pid, Signal: signal}, nil)
}

func filesPath(id, path string) string {
	return PathSandboxFiles + "?" + url.Values{"sandbox_id": {id}, "path": {path}}.Encode()
}

// ReadFile copies a file of a sandbox to w.
func (c *Client) ReadFile(ctx context.Context, id, path string, w io.Writer) error {
	answer, err := c.request(ctx, http.MethodGet, filesPath(id, path), nil, "")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(w, answer.Body); err != nil {
		return fault.Wrap(fault.PeerUnavailable, err, "reading %s", path)
	}
	return nil
}

// WriteFile stores what r yields as a file of a sandbox.
func (c *Client) WriteFile(ctx context.Context, id, path string, r io.Reader) (int64, error) {
	answer, err := c.request(ctx, http.MethodPut, filesPath(id, path), r, "application/octet-stream")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var a FileAnswer
	if err := json.NewDecoder(answer.Body).Decode(&a); err != nil {
		return 0, fault.Wrap(fault.PeerUnavailable, err, "answer to writing %s", path)
	}
	return a.WrittenBytes, nil
}

// ReadArchive copies the directory at path to w, as a tar archive.
func (c *Client) ReadArchive(ctx context.Context, id, path string, w io.Writer) error {
	answer, err := c.request(ctx, http.MethodGet, filesPath(id, path)+"&archive=true", nil, "")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(w, answer.Body); err != nil {
		return fault.Wrap(fault.PeerUnavailable, err, "reading %s", path)
	}
	return nil
}

// WriteArchive puts the tree of a tar archive into the directory at path, which
// is made if it is not there.
func (c *Client) WriteArchive(ctx context.Context, id, path string, r io.Reader) error {
	answer, err := c.request(ctx, http.MethodPut, filesPath(id, path)+"&archive=true", r, "application/x-tar")
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// Resize changes the size of the terminal of a process that Exec started. One
// that has ended is fault.NoSuchThing.
func (c *Client) Resize(ctx context.Context, sandboxID string, pid uint32, size TerminalSize) error {
	return c.call(ctx, http.MethodPost, PathSandboxResize, ExecResizeRequest{SandboxID: sandboxID, PID: pid, Terminal: size}, nil)
}
