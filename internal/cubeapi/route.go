package cubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Paths of what proxies ask the master. They show the host token.
const (
	PathRoute       = "/cube/route"
	PathRouteEvents = "/cube/route/events"
	PathRouteWake   = "/cube/route/wake"
)

// Route is where a sandbox is, and who may reach it.
type Route struct {
	SandboxID  string  `json:"sandbox_id"`
	Status     string  `json:"status"`           // RUNNING, PAUSED, TERMINATED...
	Reason     string  `json:"reason,omitempty"` // why it ended
	Generation int64   `json:"generation"`
	HostID     string  `json:"host_id,omitempty"`
	HostIP     string  `json:"host_ip,omitempty"`
	SandboxIP  string  `json:"sandbox_ip,omitempty"` // reached from its host alone
	Ports      []int32 `json:"ports,omitempty"`      // that may be reached, beside the guest's; none: every one
	AutoResume bool    `json:"auto_resume,omitempty"`
}

// RouteAnswer carries one route.
type RouteAnswer struct {
	Envelope
	Route *Route `json:"route,omitempty"`
}

// RouteEvents tells which sandboxes' routes may have changed.
type RouteEvents struct {
	Envelope
	Feed string `json:"feed"` // whose numbers these are
	Next int64  `json:"next"`
	// Reset says that what came between is not known: every route may have
	// changed.
	Reset      bool     `json:"reset,omitempty"`
	SandboxIDs []string `json:"sandbox_ids"`
}

// WakeRequest wakes a paused sandbox because of traffic, if it may be.
type WakeRequest struct {
	SandboxID string `json:"sandbox_id" api:"required"`
}

// Route returns where a sandbox is. One that ended has a route that says so; one
// that never was is fault.SandboxNotFound.
func (c *HostClient) Route(ctx context.Context, id string) (Route, error) {
	var a RouteAnswer
	if err := c.call(ctx, http.MethodGet, PathRoute+"?sandbox_id="+url.QueryEscape(id), nil, &a); err != nil || a.Route == nil {
		return Route{}, err
	}
	return *a.Route, nil
}

// RouteEvents waits for changes behind a number of a feed, at most for the given
// time. An empty feed begins one.
func (c *HostClient) RouteEvents(ctx context.Context, feed string, after int64, patience time.Duration) (RouteEvents, error) {
	var a RouteEvents
	err := c.call(ctx, http.MethodGet, fmt.Sprintf("%s?feed=%s&after=%d&wait=%d", PathRouteEvents, url.QueryEscape(feed), after, int(patience.Seconds())), nil, &a)
	return a, err
}

// Wake wakes a paused sandbox that traffic may wake, and returns its route.
func (c *HostClient) Wake(ctx context.Context, id string) (Route, error) {
	var a RouteAnswer
	if err := c.call(ctx, http.MethodPost, PathRouteWake, WakeRequest{SandboxID: id}, &a); err != nil || a.Route == nil {
		return Route{}, err
	}
	return *a.Route, nil
}
