package cubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/logs"
)

// caller sends JSON to one role and rebuilds its faults.
type caller struct {
	base   string
	header string
	secret string
	peer   string // for messages
	http   *http.Client
}

func newCaller(base, header, secret, peer string) caller {
	return caller{base: strings.TrimRight(base, "/"), header: header, secret: secret, peer: peer, http: &http.Client{
		// No role leads elsewhere, and the client would take the secret along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:               nil, // roles reach each other directly
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     time.Minute,
		},
	}}
}

// request sends one request. The answer's body is the caller's to close; a
// refusal comes back as its fault, a peer that is away as fault.PeerUnavailable.
func (c caller) request(ctx context.Context, method, path string, body io.Reader, kind string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "address of the %s", c.peer)
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	r.Header.Set(c.header, c.secret)
	if id := logs.WireID(ctx); id != "" {
		r.Header.Set(HeaderRequestID, id)
	}
	otel.GetTextMapPropagator().Inject(ctx, propagation.HeaderCarrier(r.Header))
	answer, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the URL may carry what is nobody's business
		}
		return nil, fault.Wrap(fault.PeerUnavailable, err, "%s at %s", c.peer, c.base)
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return answer, nil
	}
	defer answer.Body.Close()
	var e Envelope
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&e); err != nil || e.Error == nil {
		return nil, fault.New(fault.PeerUnavailable, "%s at %s answered HTTP %d without an envelope: is it a %s?", c.peer, c.base, answer.StatusCode, c.peer)
	}
	return nil, fault.Parse(*e.Error, answer.StatusCode)
}

// call sends in as JSON and reads the answer into out; either may be nil.
func (c caller) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	kind := ""
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body, kind = bytes.NewReader(b), "application/json"
	}
	answer, err := c.request(ctx, method, path, body, kind)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		return fault.Wrap(fault.PeerUnavailable, err, "answer of the %s at %s", c.peer, c.base)
	}
	return nil
}

// HostClient is how a cubelet speaks to the master.
type HostClient struct{ caller }

// NewHostClient returns a client of the master at base.
func NewHostClient(base, token string) *HostClient {
	return &HostClient{newCaller(base, HeaderHostToken, token, "master")}
}

// Register tells what the host is.
func (c *HostClient) Register(ctx context.Context, r HostRegisterRequest) error {
	return c.call(ctx, http.MethodPost, PathHostRegister, r, nil)
}

// Report tells how the host stands. fault.HostUnknown asks it to register.
func (c *HostClient) Report(ctx context.Context, id host.ID, r HostStatusRequest) error {
	_, err := c.Exchange(ctx, id, r)
	return err
}

// Exchange is Report, and returns what operators want of the host.
func (c *HostClient) Exchange(ctx context.Context, id host.ID, r HostStatusRequest) (HostStatusAnswer, error) {
	var a HostStatusAnswer
	err := c.call(ctx, http.MethodPost, hostPath(PathHostStatus, string(id)), r, &a)
	return a, err
}

func hostPath(path, id string) string {
	return strings.Replace(path, "{node_id}", url.PathEscape(id), 1)
}

// CenterClient is how the master speaks to the template centre.
type CenterClient struct{ caller }

// NewCenterClient returns a client of the template centre at base.
func NewCenterClient(base, token string) *CenterClient {
	return &CenterClient{newCaller(base, HeaderCallbackToken, token, "template centre")}
}

// Build hands over a job. A job that it has already is success: the first
// answer was lost. fault.JobNotFound when the job is not there or not active.
func (c *CenterClient) Build(ctx context.Context, r TCBuildRequest) error {
	err := c.call(ctx, http.MethodPost, PathTCBuild, r, nil)
	if errors.Is(err, fault.BuildInProgress) {
		return nil
	}
	return err
}

// DeleteArtifact lets an artifact's bytes and row go.
func (c *CenterClient) DeleteArtifact(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodPost, PathTCArtifactDelete, TCDeleteRequest{ArtifactID: id}, nil)
}

// Receipt returns what an artifact was made of, as JSON, to be closed by the
// caller. fault.ArtifactNotFound when there is none.
func (c *CenterClient) Receipt(ctx context.Context, id string) (io.ReadCloser, error) {
	answer, err := c.request(ctx, http.MethodGet, PathTCReceipt+"?artifact_id="+url.QueryEscape(id), nil, "") //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// ReportClient is how the template centre tells the master of its jobs.
type ReportClient struct{ caller }

// NewReportClient returns a client of the master at base.
func NewReportClient(base, token string) *ReportClient {
	return &ReportClient{newCaller(base, HeaderCallbackToken, token, "master")}
}

// With is a client that shows another token.
func (c *ReportClient) With(token string) *ReportClient {
	d := *c
	d.secret = token
	return &d
}

// Root returns the root of a snapshot, as a tar archive. Its end before its time
// is io.ErrUnexpectedEOF.
func (c *ReportClient) Root(ctx context.Context, snapshotID string) (io.ReadCloser, error) {
	answer, err := c.request(ctx, http.MethodGet, PathSnapshotRoot+"?snapshot_id="+url.QueryEscape(snapshotID), nil, "")
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// Job tells of one job.
func (c *ReportClient) Job(ctx context.Context, jobID string, r JobReport) error {
	return c.call(ctx, http.MethodPost, strings.Replace(PathJobStatus, "{job_id}", url.PathEscape(jobID), 1), r, nil)
}
