package master

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

func (m *Master) serveResume(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.ResumeRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	if err == nil {
		req.SandboxID, err = oneOf("sandbox_id", req.SandboxID, "sandboxID", req.SandboxID2)
	}
	m.answerResume(w, r, req, unknown, err)
}

func (m *Master) answerResume(w http.ResponseWriter, r *http.Request, req cubeapi.ResumeRequest, unknown []string, err error) {
	if err == nil {
		err = checkID(req.SandboxID)
	}
	if err == nil {
		err = checkTimeout(req.Timeout)
	}
	if err == nil && req.Reason != "" && req.Reason != cubeapi.ReasonTraffic {
		err = fault.New(fault.InvalidInput, "reason %.64q: %s, or none", req.Reason, cubeapi.ReasonTraffic)
	}
	var s sandbox.Sandbox
	var already bool
	if err == nil {
		s, already, err = m.wake(r.Context(), sandbox.ID(req.SandboxID), req.Timeout, req.Reason == cubeapi.ReasonTraffic)
	}
	said := warnings(unknown)
	if already {
		said = append(said, alreadyDone+"the sandbox runs")
	}
	m.answerSandbox(w, r, req.RequestID, s, err, said...)
}

// wake brings a sandbox back on the host that keeps it, and returns when it is
// usable. One that is being paused is waited for; one that runs does so already.
// Traffic wakes only those that are to be woken by it.
func (m *Master) wake(whole context.Context, id sandbox.ID, timeout *int64, traffic bool) (s sandbox.Sandbox, already bool, err error) {
	ctx, cancel := context.WithTimeout(whole, m.cfg.Master.LifeTimeout)
	defer cancel()
	for {
		if s, err = m.atRest(ctx, id); err != nil {
			return s, false, err
		}
		switch s.State {
		case sandbox.Running:
			if timeout != nil {
				s, err = m.extend(ctx, id, *timeout)
			}
			return s, true, err
		case sandbox.Paused:
		default:
			return s, false, unfit(s)
		}
		var moved bool
		s, moved, err = m.ask(ctx, id, sandbox.OnWakeAsked, func(tx *store.Tx, s *sandbox.Sandbox) (err error) {
			by := reasonRequest
			if traffic {
				if by = cubeapi.ReasonTraffic; !s.Life.AutoResume {
					return fault.New(fault.SandboxNotReady, "sandbox %s is paused, and traffic does not wake it: it has no auto_resume", id)
				}
			}
			if timeout != nil {
				s.Life.Timeout = within(*timeout)
				if *s, err = sandboxdb.SetTimeout(ctx, tx, *s); err != nil {
					return err
				}
			}
			return audit(ctx, tx, actSandboxResume, string(id), "by", by)
		})
		if err == nil && !moved {
			s, err = m.fulfil(ctx, s, sandbox.Running)
		}
		if err != nil || !moved {
			return s, false, noRoomThere(s, err)
		}
	}
}

// noRoomThere words the refusal of the one host that could bring a sandbox back
// as a create's is that found none.
func noRoomThere(s sandbox.Sandbox, err error) error {
	if !errors.Is(err, fault.HostFull) {
		return err
	}
	return &fault.Error{Code: fault.NoCapacity, Message: "sandbox " + string(s.ID) + " is kept by host " + string(s.HostID) + ", which has no room now", Cause: err, Remedy: "delete or pause sandboxes of that host, or try again later; the sandbox is kept as before"}
}

// checkTimeout refuses what is no time of a sandbox.
func checkTimeout(t *int64) error {
	if t != nil && *t != forever && (*t < 1 || *t > maxTimeout) {
		return fault.New(fault.InvalidInput, "timeout %d: 1 to %d seconds, or %d for none", *t, int64(maxTimeout), forever)
	}
	return nil
}

// within is a timeout as it is kept: none is zero.
func within(seconds int64) time.Duration {
	return max(0, time.Duration(seconds)*time.Second)
}
