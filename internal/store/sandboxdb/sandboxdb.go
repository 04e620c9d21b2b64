// Package sandboxdb holds the statements of layer 2: hosts and sandboxes. It
// must never decide: what may become what is asked of sandbox.Machine.
package sandboxdb

import (
	"context"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// Filter chooses sandboxes. Zero fields choose nothing away.
type Filter struct {
	States        []sandbox.State
	HostID        host.ID
	TemplateID    template.ID
	ChangedBefore time.Time
	Limit         int // 0: 1000
	After         sandbox.ID
}

var errUnwritten = fault.New(fault.Bug, "this body follows its signature")

// PutHost stores what a cubelet says when it starts.
func PutHost(ctx context.Context, tx *store.Tx, r host.Registration) error {
	return errUnwritten
}

// HeardHost stores what a cubelet says again and again: fault.HostUnknown.
func HeardHost(ctx context.Context, tx *store.Tx, id host.ID, s host.Status) error {
	return errUnwritten
}

// GetHost returns a host: fault.HostUnknown.
func GetHost(ctx context.Context, tx *store.Tx, id host.ID) (host.Facts, error) {
	return host.Facts{}, errUnwritten
}

// ListHosts returns every host, by id.
func ListHosts(ctx context.Context, tx *store.Tx) ([]host.Facts, error) {
	return nil, errUnwritten
}

// SetCordon shuts a host off from choice, or opens it: fault.HostUnknown.
func SetCordon(ctx context.Context, tx *store.Tx, id host.ID, cordoned bool) error {
	return errUnwritten
}

// DeleteHost forgets a host: fault.HostUnknown.
func DeleteHost(ctx context.Context, tx *store.Tx, id host.ID) error {
	return errUnwritten
}

// AddSandbox stores a new sandbox in the machine's initial state: fault.Exists.
func AddSandbox(ctx context.Context, tx *store.Tx, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	return sandbox.Sandbox{}, errUnwritten
}

// GetSandbox returns a sandbox: fault.SandboxNotFound.
func GetSandbox(ctx context.Context, tx *store.Tx, id sandbox.ID) (sandbox.Sandbox, error) {
	return sandbox.Sandbox{}, errUnwritten
}

// ListSandboxes returns sandboxes.
func ListSandboxes(ctx context.Context, tx *store.Tx, f Filter) ([]sandbox.Sandbox, error) {
	return nil, errUnwritten
}

// MoveSandbox changes a sandbox's state and writes host, ip, reason and request.
func MoveSandbox(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, on sandbox.Event) (sandbox.Sandbox, error) {
	return sandbox.Sandbox{}, errUnwritten
}

// DeleteSandbox removes the row of a sandbox that is terminated.
func DeleteSandbox(ctx context.Context, tx *store.Tx, s sandbox.Sandbox) error {
	return errUnwritten
}

// CountByTemplate counts the sandboxes of a template that have not terminated.
func CountByTemplate(ctx context.Context, tx *store.Tx, id template.ID) (int, error) {
	return 0, errUnwritten
}
