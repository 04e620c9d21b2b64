package master

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	listLimit = 10_000

	// Why sandboxes end that were not failed creates.
	reasonRequest  = "request"
	reasonTimeout  = "timeout"
	reasonVanished = "lost: its host has it no more"

	// followUp is when the outbox takes over a delete that somebody waits for.
	followUp = 2 * time.Second
)

// removal is the payload of a sandbox_delete message.
type removal struct {
	SandboxID sandbox.ID `json:"sandbox_id"`
	HostID    host.ID    `json:"host_id"`
	Reason    string     `json:"reason"`
	// Last: the host is the sandbox's own, so its removal is the proof that the
	// sandbox is gone.
	Last bool `json:"last"`
}

func enqueueDelete(ctx context.Context, tx *store.Tx, r removal, after time.Duration) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return tx.Enqueue(ctx, store.Message{Topic: topicSandboxDelete, Key: string(r.SandboxID) + "@" + string(r.HostID), Payload: b, Trace: traceOf(ctx)}, after)
}

// end begins a sandbox's end, from any state and again, and returns the row.
// From then on the outbox calls the host, after the given time and until it has
// proof. A sandbox that was never sent to a host is gone at once.
func (m *Master) end(ctx context.Context, id sandbox.ID, reason string, after time.Duration) (s sandbox.Sandbox, err error) {
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		s, err = m.endIn(ctx, tx, id, reason, after)
		return err
	})
	if err == nil {
		m.deliverSoon(topicRoute)
	}
	if err == nil && after == 0 {
		m.deliverSoon(topicSandboxDelete)
	}
	return s, err
}

func (m *Master) endIn(ctx context.Context, tx *store.Tx, id sandbox.ID, reason string, after time.Duration) (sandbox.Sandbox, error) {
	s, err := sandboxdb.GetSandbox(ctx, tx, id)
	if err != nil || s.State == sandbox.Terminated || s.State == sandbox.Terminating {
		return s, err
	}
	s.Reason = reason
	ran := s.State != sandbox.Allocating && s.State != sandbox.Starting
	if s, err = sandboxdb.MoveSandbox(ctx, tx, s, sandbox.OnEndAsked); err != nil {
		return s, err
	}
	if ran {
		if err := m.routeChanged(ctx, tx, id); err != nil {
			return s, err
		}
	}
	if s.HostID == "" {
		return sandboxdb.MoveSandbox(ctx, tx, s, sandbox.OnGone)
	}
	return s, enqueueDelete(ctx, tx, removal{id, s.HostID, reason, true}, after)
}

// compensate removes a sandbox from a host, and notes the proof.
func (m *Master) compensate(ctx context.Context, msg store.Message) error {
	var r removal
	if err := json.Unmarshal(msg.Payload, &r); err != nil {
		return err
	}
	if r.Last {
		s, err := m.sandbox(ctx, r.SandboxID)
		if errors.Is(err, fault.SandboxNotFound) || err == nil && s.State == sandbox.Terminated {
			return nil // whoever waited for it was faster
		}
		if err != nil {
			return err
		}
	}
	if err := m.removeFrom(ctx, r.SandboxID, r.HostID, r.Reason); err != nil {
		return err
	}
	if !r.Last {
		return nil
	}
	return m.gone(ctx, r.SandboxID)
}

// removeFrom removes a sandbox from a host. No error is the host's word that
// it has it no more, or the operator's, who took the host out of the books.
func (m *Master) removeFrom(ctx context.Context, id sandbox.ID, h host.ID, reason string) error {
	f, err := m.host(ctx, h)
	if errors.Is(err, fault.HostUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	answer, err := client.DeleteSandbox(bounded, &hostpb.DeleteSandboxRequest{SandboxId: string(id), Reason: reason})
	m.fleet.learned(h, answer.GetTruth())
	return hostFault(ctx, err, h)
}

// gone ends a sandbox whose host said that it has it no more.
func (m *Master) gone(ctx context.Context, id sandbox.ID) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		s, err := sandboxdb.GetSandbox(ctx, tx, id)
		if err != nil || s.State != sandbox.Terminating {
			return err
		}
		_, err = sandboxdb.MoveSandbox(ctx, tx, s, sandbox.OnGone)
		return err
	})
	if errors.Is(err, fault.SandboxNotFound) {
		err = nil
	}
	if err == nil {
		m.fleet.ledger.Release(id)
	}
	return err
}

// checkID refuses what can be no sandbox's id.
func checkID(id string) error {
	if id == "" {
		return fault.New(fault.InvalidInput, "sandbox_id is missing")
	}
	return sandbox.CheckID(id)
}

// serveDelete ends a sandbox and answers when it is gone. When its host does
// not answer, the delete goes on behind, and the answer says so.
func (m *Master) serveDelete(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.SandboxDeleteRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = checkID(req.SandboxID)
	}
	if err == nil {
		err = m.deleteSandbox(r.Context(), sandbox.ID(req.SandboxID))
	}
	m.answer(w, r, req.RequestID, err)
}

func (m *Master) deleteSandbox(ctx context.Context, id sandbox.ID) error {
	s, err := m.sandbox(ctx, id)
	if err != nil {
		return err
	}
	if s.State == sandbox.Terminated {
		return fault.New(fault.SandboxNotFound, "sandbox %s ended: %s", id, s.Reason)
	}
	if s, err = m.end(ctx, id, reasonRequest, followUp); err != nil || s.State == sandbox.Terminated {
		return err
	}
	if err := m.step("master.sandbox_delete.after_commit"); err != nil {
		return err
	}
	if err := m.removeFrom(ctx, id, s.HostID, reasonRequest); err != nil {
		return err
	}
	return m.gone(ctx, id)
}

func (m *Master) sandbox(ctx context.Context, id sandbox.ID) (s sandbox.Sandbox, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		s, err = sandboxdb.GetSandbox(ctx, tx, id)
		return err
	})
	return s, err
}

// silent returns the hosts of list that were not heard of lately: their
// sandboxes are shown as the rows have them.
func (m *Master) silent(hosts []host.Facts, list []sandbox.Sandbox, now time.Time) []string {
	used := map[host.ID]bool{}
	for _, s := range list {
		used[s.HostID] = s.State != sandbox.Terminated || used[s.HostID]
	}
	var names []string
	for _, f := range hosts {
		if used[f.ID] && host.HealthOf(f, now, m.cfg.Master.HostStaleAfter) == host.Unknown {
			names = append(names, string(f.ID))
		}
	}
	return names
}

func (m *Master) serveInfo(w http.ResponseWriter, r *http.Request) {
	id := sandbox.ID(r.URL.Query().Get("sandbox_id"))
	if err := checkID(string(id)); err != nil {
		serve.WriteError(w, r, err)
		return
	}
	answer := cubeapi.SandboxAnswer{Envelope: cubeapi.OK(requestID(r)), SandboxID: string(id)}
	err := m.db.View(r.Context(), func(tx *store.Tx) error {
		s, err := sandboxdb.GetSandbox(r.Context(), tx, id)
		if err != nil {
			return err
		}
		shown := showSandbox(s)
		if r.URL.Query().Get("tokens") == "true" {
			shown = showSecrets(s)
		}
		answer.SandboxIP, answer.HostID, answer.Sandbox = s.IP, string(s.HostID), &shown
		f, err := sandboxdb.GetHost(r.Context(), tx, s.HostID)
		if errors.Is(err, fault.HostUnknown) {
			return nil
		}
		answer.HostIP = f.IP
		return err
	})
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// reach returns the host client of a sandbox that runs.
func (m *Master) reach(ctx context.Context, id string) (hostpb.HostServiceClient, host.ID, error) {
	if err := checkID(id); err != nil {
		return nil, "", err
	}
	s, err := m.sandbox(ctx, sandbox.ID(id))
	if err != nil {
		return nil, "", err
	}
	if s.State != sandbox.Running {
		return nil, "", fault.New(fault.SandboxNotReady, "sandbox %s is %s %s", id, s.State, s.Reason)
	}
	f, err := m.host(ctx, s.HostID)
	if err != nil {
		return nil, "", err
	}
	client, err := m.hosts.to(f)
	return client, s.HostID, err
}
