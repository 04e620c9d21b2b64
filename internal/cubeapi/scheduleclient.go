package cubeapi

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/paddock-dev/paddock/internal/fault"
)

// ScheduleQuery says what is shown of a dry run; zero fields do not.
type ScheduleQuery struct {
	Limit int
	Hosts []string
	Seed  string
}

// Schedule returns what a create would decide now. The request may be a
// SandboxCreateRequest, or JSON of one.
func (c *Client) Schedule(ctx context.Context, r any, q ScheduleQuery) (ScheduleAnswer, error) {
	v := url.Values{"host": q.Hosts}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Seed != "" {
		v.Set("seed", q.Seed)
	}
	var a ScheduleAnswer
	err := c.call(ctx, http.MethodPost, PathSchedule+"?"+v.Encode(), r, &a)
	return a, err
}

// Decisions returns what was decided for a sandbox, the first attempt first.
func (c *Client) Decisions(ctx context.Context, id string) ([]Decision, error) {
	var a DecisionsAnswer
	err := c.call(ctx, http.MethodGet, PathSandboxDecisions+"?sandbox_id="+url.QueryEscape(id), nil, &a)
	return a.Data, err
}

// ScheduleTrace copies the creates from a time on (empty: all that are
// remembered) to w, at most limit (0: the master's default).
func (c *Client) ScheduleTrace(ctx context.Context, since string, limit int, w io.Writer) error {
	v := url.Values{}
	if since != "" {
		v.Set("since", since)
	}
	if limit != 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	return c.copyLines(ctx, PathScheduleTrace+"?"+v.Encode(), "trace", w)
}

// ScheduleFleet copies the hosts as a simulation takes them to w.
func (c *Client) ScheduleFleet(ctx context.Context, w io.Writer) error {
	return c.copyLines(ctx, PathScheduleFleet, "fleet", w)
}

func (c *Client) copyLines(ctx context.Context, path, what string, w io.Writer) error {
	answer, err := c.request(ctx, http.MethodGet, path, nil, "")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(w, answer.Body); err != nil {
		return fault.Wrap(fault.PeerUnavailable, err, "%s: the answer broke off", what)
	}
	return nil
}
