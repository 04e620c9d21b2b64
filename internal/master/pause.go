package master

import (
	"context"
	"net/http"
	"strconv"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
)

// alreadyDone begins the warning of an answer to a wish that was fulfilled
// before, for tools to look for.
const alreadyDone = "already done: "

func (m *Master) servePause(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.PauseRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	if err == nil {
		req.SandboxID, err = oneOf("sandbox_id", req.SandboxID, "sandboxID", req.SandboxID2)
	}
	m.answerPause(w, r, req, unknown, err)
}

func (m *Master) answerPause(w http.ResponseWriter, r *http.Request, req cubeapi.PauseRequest, unknown []string, err error) {
	var s sandbox.Sandbox
	var already bool
	if err == nil {
		err = checkID(req.SandboxID)
	}
	if err == nil {
		s, already, err = m.pause(r.Context(), sandbox.ID(req.SandboxID), req.Memory)
	}
	said := warnings(unknown)
	if already {
		said = append(said, alreadyDone+"the sandbox is paused")
	}
	m.answerSandbox(w, r, req.RequestID, s, err, said...)
}

// answerSandbox answers a call that changed a sandbox.
func (m *Master) answerSandbox(w http.ResponseWriter, r *http.Request, id string, s sandbox.Sandbox, err error, said ...string) {
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	shown := showSandbox(s)
	answer := cubeapi.SandboxAnswer{Envelope: cubeapi.OK(named(r, id)), SandboxID: string(s.ID), SandboxIP: s.IP, HostID: string(s.HostID), Sandbox: &shown}
	answer.Warnings = said
	serve.WriteJSON(w, http.StatusOK, answer)
}

// pause keeps a sandbox on its host and returns when it is kept. One that is
// on its way elsewhere is waited for; one that is paused is already. memory nil:
// with it, where the driver can.
func (m *Master) pause(whole context.Context, id sandbox.ID, memory *bool) (s sandbox.Sandbox, already bool, err error) {
	ctx, cancel := context.WithTimeout(whole, m.cfg.Master.LifeTimeout)
	defer cancel()
	for {
		if s, err = m.atRest(ctx, id); err != nil {
			return s, false, err
		}
		switch s.State {
		case sandbox.Paused:
			return s, true, nil
		case sandbox.Running:
		default:
			return s, false, unfit(s)
		}
		var moved bool
		s, moved, err = m.ask(ctx, id, sandbox.OnPauseAsked, func(tx *store.Tx, s *sandbox.Sandbox) error {
			s.Life.WithMemory = memory == nil || *memory
			s.Life.Wish = sandbox.Wish{Memory: memory != nil && *memory}
			return audit(ctx, tx, actSandboxPause, string(id), "memory", strconv.FormatBool(s.Life.WithMemory))
		})
		if err == nil && !moved {
			s, err = m.fulfil(ctx, s, sandbox.Paused)
		}
		if err != nil || !moved {
			return s, false, err
		}
	}
}
