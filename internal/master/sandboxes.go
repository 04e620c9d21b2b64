package master

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
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

func enqueueDelete(ctx context.Context, tx *store.Tx, id sandbox.ID, h host.ID, last bool, reason string) error {
	b, err := json.Marshal(removal{id, h, reason, last})
	if err != nil {
		return err
	}
	return tx.Enqueue(ctx, store.Message{Topic: topicSandboxDelete, Key: string(id) + "@" + string(h), Payload: b}, 0)
}

// end begins a sandbox's end: from any state, and again. The host is called by
// the outbox until it has proof.
func (m *Master) end(ctx context.Context, id sandbox.ID, reason string) error {
	return m.db.Update(ctx, func(tx *store.Tx) error {
		s, err := sandboxdb.GetSandbox(ctx, tx, id)
		if err != nil || s.State == sandbox.Terminated || s.State == sandbox.Terminating {
			return err
		}
		s.Reason = reason
		if s, err = sandboxdb.MoveSandbox(ctx, tx, s, sandbox.OnEndAsked); err != nil {
			return err
		}
		if s.HostID == "" {
			_, err = sandboxdb.MoveSandbox(ctx, tx, s, sandbox.OnGone)
			return err
		}
		return enqueueDelete(ctx, tx, id, s.HostID, true, reason)
	})
}

// compensate removes a sandbox from a host, and notes the proof.
func (m *Master) compensate(ctx context.Context, msg store.Message) error {
	var r removal
	if err := json.Unmarshal(msg.Payload, &r); err != nil {
		return err
	}
	if err := m.removeFrom(ctx, r.SandboxID, r.HostID, r.Reason); err != nil {
		return err
	}
	if !r.Last {
		return nil
	}
	return m.gone(ctx, r.SandboxID)
}

func (m *Master) removeFrom(ctx context.Context, id sandbox.ID, h host.ID, reason string) error {
	f, err := m.host(ctx, h)
	if err != nil {
		return err
	}
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	_, err = client.DeleteSandbox(bounded, &hostpb.DeleteSandboxRequest{SandboxId: string(id), Reason: reason})
	return hostFault(err, h)
}

// gone ends a sandbox whose host said that it has it no more.
func (m *Master) gone(ctx context.Context, id sandbox.ID) error {
	err := m.db.Update(ctx, func(tx *store.Tx) error {
		s, err := sandboxdb.GetSandbox(ctx, tx, id)
		if err != nil || s.State != sandbox.Terminating {
			return err
		}
		_, err = sandboxdb.MoveSandbox(ctx, tx, s, sandbox.OnGone)
		return err
	})
	if errors.Is(err, fault.SandboxNotFound) {
		return nil
	}
	m.fleet.ledger.Release(id)
	return err
}

// serveDelete ends a sandbox and answers when it is gone. When its host does
// not answer, the delete goes on behind, and the answer says so.
func (m *Master) serveDelete(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.SandboxDeleteRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = m.deleteNow(r.Context(), sandbox.ID(req.SandboxID))
	}
	m.answer(w, r, req.RequestID, err)
}

func (m *Master) deleteNow(ctx context.Context, id sandbox.ID) error {
	s, err := m.sandbox(ctx, id)
	if err != nil {
		return err
	}
	if s.State == sandbox.Terminated {
		return fault.New(fault.SandboxNotFound, "sandbox %s ended: %s", id, s.Reason)
	}
	if err := m.end(ctx, id, "request"); err != nil {
		return err
	}
	if s.HostID == "" {
		return nil
	}
	if err := m.removeFrom(ctx, id, s.HostID, "request"); err != nil {
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

func (m *Master) serveList(w http.ResponseWriter, r *http.Request) {
	answer := cubeapi.SandboxListAnswer{Envelope: cubeapi.OK(requestID(r)), Data: []cubeapi.Sandbox{}}
	f := sandboxdb.Filter{States: liveStates, HostID: host.ID(r.URL.Query().Get("host_id"))}
	if r.URL.Query().Get("all") == "true" {
		f.States = nil
	}
	err := m.db.View(r.Context(), func(tx *store.Tx) error {
		list, err := sandboxdb.ListSandboxes(r.Context(), tx, f)
		for _, s := range list {
			answer.Data = append(answer.Data, showSandbox(s))
		}
		return err
	})
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) serveInfo(w http.ResponseWriter, r *http.Request) {
	s, err := m.sandbox(r.Context(), sandbox.ID(r.URL.Query().Get("sandbox_id")))
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	shown := showSandbox(s)
	serve.WriteJSON(w, http.StatusOK, cubeapi.SandboxAnswer{Envelope: cubeapi.OK(requestID(r)), SandboxID: string(s.ID), SandboxIP: s.IP, HostID: string(s.HostID), Sandbox: &shown})
}

// reach returns the host client of a sandbox that runs.
func (m *Master) reach(ctx context.Context, id string) (hostpb.HostServiceClient, host.ID, error) {
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
