package cubeapi

import (
	"context"
	"net/http"
)

// Hosts returns all hosts.
func (c *Client) Hosts(ctx context.Context) ([]Host, error) {
	var a HostListAnswer
	err := c.call(ctx, http.MethodGet, PathHosts, nil, &a)
	return a.Data, err
}

// Host returns one host.
func (c *Client) Host(ctx context.Context, id string) (*Host, error) {
	return c.host(ctx, http.MethodGet, hostPath(PathHost, id), nil)
}

func (c *Client) host(ctx context.Context, method, path string, in any) (*Host, error) {
	var a HostAnswer
	err := c.call(ctx, method, path, in, &a)
	return a.Data, err
}

// RemoveHost takes a host out of the books that is cordoned and empty. With
// force it may be neither, but must not report any more: it will not return, and
// its sandboxes are lost. Else it is fault.StateConflict.
func (c *Client) RemoveHost(ctx context.Context, id string, force bool) error {
	path := hostPath(PathHost, id)
	if force {
		path += "?force=true"
	}
	return c.call(ctx, http.MethodDelete, path, nil, nil)
}

// CordonHost keeps new sandboxes and templates away from a host, or lets them
// come again, which ends a drain. It returns the host as it stands then.
func (c *Client) CordonHost(ctx context.Context, id string, cordoned bool) (*Host, error) {
	method := http.MethodPut
	if !cordoned {
		method = http.MethodDelete
	}
	return c.host(ctx, method, hostPath(PathHostIsolation, id), nil)
}

// LabelHost changes the labels that operators give a host.
func (c *Client) LabelHost(ctx context.Context, id string, r HostLabelsRequest) (*Host, error) {
	return c.host(ctx, http.MethodPut, hostPath(PathHostLabels, id), r)
}

// SetQuota replaces the quota of a host. Somebody who was faster makes it
// fault.VersionConflict.
func (c *Client) SetQuota(ctx context.Context, id string, r HostQuotaRequest) (*Host, error) {
	return c.host(ctx, http.MethodPut, hostPath(PathHostQuota, id), r)
}

// DrainHost wants a host to be empty.
func (c *Client) DrainHost(ctx context.Context, id string, r HostDrainRequest) (*HostDrain, error) {
	var a HostDrainAnswer
	err := c.call(ctx, http.MethodPut, hostPath(PathHostDrain, id), r, &a)
	return a.Data, err
}

// Drain returns how far the drain of a host is.
func (c *Client) Drain(ctx context.Context, id string) (*HostDrain, error) {
	var a HostDrainAnswer
	err := c.call(ctx, http.MethodGet, hostPath(PathHostDrain, id), nil, &a)
	return a.Data, err
}
