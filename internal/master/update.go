package master

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	topicNetwork = "network"

	actionPause  = "pause"
	actionResume = "resume"
)

// reaches is what a row keeps of what its sandbox reaches, and who reaches it.
type reaches struct {
	Config *cubeapi.NetworkConfig `json:"config,omitempty"` // with its template's laid under it
	Ports  []int32                `json:"ports,omitempty"`
	Egress json.RawMessage        `json:"egress,omitempty"` // as the host gets it
}

func networkOf(s sandbox.Sandbox) (n reaches, err error) {
	if len(s.Life.Network) == 0 {
		return n, nil
	}
	if err := json.Unmarshal(s.Life.Network, &n); err != nil {
		return n, fault.Wrap(fault.Bug, err, "stored network of sandbox %s", s.ID)
	}
	return n, nil
}

func keptNetwork(c *cubeapi.NetworkConfig, e *hostpb.Egress, ports []int32) ([]byte, error) {
	n := reaches{Config: c, Ports: ports}
	if e != nil {
		var err error
		if n.Egress, err = protojson.Marshal(e); err != nil {
			return nil, fault.Wrap(fault.Bug, err, "egress")
		}
	}
	return json.Marshal(n)
}

func (n reaches) egress() (*hostpb.Egress, error) {
	if len(n.Egress) == 0 {
		return nil, nil
	}
	e := &hostpb.Egress{}
	if err := protojson.Unmarshal(n.Egress, e); err != nil {
		return nil, fault.Wrap(fault.Bug, err, "stored egress")
	}
	return e, nil
}

func (m *Master) serveUpdate(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.SandboxUpdateRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	var id sandbox.ID
	if err == nil {
		id, err = namedEither(req.SandboxID, req.SandboxID2)
	}
	if err == nil && req.Action != "" {
		m.serveAction(w, r, id, req, unknown)
		return
	}
	if err == nil {
		err = checkUpdate(&req)
	}
	var s sandbox.Sandbox
	said := warnings(unknown)
	if err == nil {
		var late error
		if s, late, err = m.changeSandbox(r.Context(), id, req); late != nil {
			said = append(said, "its host does not follow it yet, and is told again: "+late.Error())
		}
	}
	m.answerSandbox(w, r, req.RequestID, s, err, said...)
}

// serveAction is pause and resume in the form of older tools.
func (m *Master) serveAction(w http.ResponseWriter, r *http.Request, id sandbox.ID, req cubeapi.SandboxUpdateRequest, unknown []string) {
	if req.Network != nil || req.Ports != nil || req.Labels != nil {
		serve.WriteError(w, r, fault.New(fault.InvalidInput, "action %.64q: nothing else goes with it", req.Action))
		return
	}
	switch req.Action {
	case actionPause:
		m.answerPause(w, r, cubeapi.PauseRequest{RequestID: req.RequestID, SandboxID: string(id)}, unknown, nil)
	case actionResume:
		m.answerResume(w, r, cubeapi.ResumeRequest{RequestID: req.RequestID, SandboxID: string(id)}, unknown, nil)
	default:
		serve.WriteError(w, r, fault.New(fault.InvalidInput, "action %.64q: %s or %s", req.Action, actionPause, actionResume))
	}
}

func checkUpdate(r *cubeapi.SandboxUpdateRequest) (err error) {
	if r.Network != nil {
		if r.Network, _, err = oneNetwork(r.Network, nil); err != nil {
			return err
		}
		if p := r.Network.AllowPublicTraffic; p != nil {
			return fault.New(fault.Unsupported, "cube_network_config.allowPublicTraffic: a create's own; it does not change")
		}
	}
	if r.Ports != nil {
		for _, p := range *r.Ports {
			if p < 1 || p > 65535 || len(*r.Ports) > maxPorts {
				return fault.New(fault.InvalidInput, "exposed_ports: at most %d ports of 1 to 65535", maxPorts)
			}
		}
		slices.Sort(*r.Ports)
		*r.Ports = slices.Compact(*r.Ports)
	}
	if r.Labels != nil {
		return checkWords(&cubeapi.SandboxCreateRequest{Labels: *r.Labels})
	}
	if r.Network == nil && r.Ports == nil {
		return fault.New(fault.InvalidInput, "nothing to change: cube_network_config, exposed_ports, labels, or an action")
	}
	return nil
}

// changeSandbox changes the row and tells the host. late is why the host does
// not follow yet: it is told again until it does. What the host refuses is taken
// back.
func (m *Master) changeSandbox(ctx context.Context, id sandbox.ID, req cubeapi.SandboxUpdateRequest) (s sandbox.Sandbox, late, err error) {
	reach := req.Network != nil || req.Ports != nil
	var before []byte
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		if s, err = sandboxdb.GetSandbox(ctx, tx, id); err != nil {
			return err
		}
		if !slices.Contains(holdsStill, s.State) && !isPassing(s.State) {
			return unfit(s)
		}
		if before = s.Life.Network; reach {
			if err := changeNetwork(&s, req); err != nil {
				return err
			}
		}
		if req.Labels != nil {
			caller := s.Metadata[labelCaller]
			if s.Metadata = maps.Clone(*req.Labels); caller != "" { // for whom it was made
				if s.Metadata == nil {
					s.Metadata = map[string]string{}
				}
				s.Metadata[labelCaller] = caller
			}
		}
		if err := audit(ctx, tx, actSandboxUpdate, string(id), "network_revision", strconv.FormatInt(s.Life.Revision, 10), "network", strconv.FormatBool(reach), "labels", strconv.FormatBool(req.Labels != nil)); err != nil {
			return err
		}
		return m.changeIn(ctx, tx, &s, reach, followUp)
	})
	if err != nil || !reach {
		return s, nil, err
	}
	m.deliverSoon(topicRoute)
	if err := m.step("master.update.after_commit"); err != nil {
		return s, nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	err = m.pushTo(bounded, s)
	switch {
	case err == nil:
		return s, nil, nil
	case fault.Of(err).Class == fault.Invalid:
		return s, nil, errors.Join(err, m.takeBack(ctx, s, before))
	}
	return s, err, nil
}

// changeIn writes a changed row, and has its host told if what it reaches
// changed.
func (m *Master) changeIn(ctx context.Context, tx *store.Tx, s *sandbox.Sandbox, reach bool, after time.Duration) (err error) {
	if *s, err = sandboxdb.ChangeSandbox(ctx, tx, *s); err != nil || !reach {
		return err
	}
	if err := m.routeChanged(ctx, tx, s.ID); err != nil {
		return err
	}
	return tx.Enqueue(ctx, store.Message{Topic: topicNetwork, Key: string(s.ID), Trace: traceOf(ctx)}, after)
}

// holdsStill are the states in which a host has a sandbox and is not at work on
// it.
var holdsStill = []sandbox.State{sandbox.Running, sandbox.Paused}

func changeNetwork(s *sandbox.Sandbox, req cubeapi.SandboxUpdateRequest) error {
	n, err := networkOf(*s)
	if err != nil {
		return err
	}
	if req.Ports != nil {
		n.Ports = *req.Ports
		if !slices.Contains(n.Ports, guestPort) {
			n.Ports = append(n.Ports, guestPort)
		}
	}
	e, err := n.egress()
	if err != nil {
		return err
	}
	if req.Network != nil {
		n.Config, e = req.Network, egress(nil, req.Network)
	}
	s.Life.Revision++
	s.Life.Network, err = keptNetwork(n.Config, e, n.Ports)
	return err
}

// takeBack gives a sandbox the network that it had before a change that its host
// refused, unless another came after it.
func (m *Master) takeBack(ctx context.Context, s sandbox.Sandbox, before []byte) error {
	err := m.update(ctx, func(tx *store.Tx) error {
		now, err := sandboxdb.GetSandbox(ctx, tx, s.ID)
		if err != nil || now.Life.Revision != s.Life.Revision {
			return err
		}
		now.Life.Network, now.Life.Revision = before, now.Life.Revision+1
		return m.changeIn(ctx, tx, &now, true, 0)
	})
	m.deliverSoon(topicNetwork)
	return err
}

// pushNetwork makes the host of a sandbox follow its row, whatever the message
// was sent for. A sandbox that has ended follows nothing.
func (m *Master) pushNetwork(ctx context.Context, msg store.Message) error {
	s, err := m.sandbox(ctx, sandbox.ID(msg.Key))
	if errors.Is(err, fault.SandboxNotFound) {
		return nil
	}
	if err != nil || !slices.Contains(holdsStill, s.State) && !isPassing(s.State) {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	return m.pushTo(bounded, s)
}

func (m *Master) pushTo(ctx context.Context, s sandbox.Sandbox) error {
	n, err := networkOf(s)
	if err != nil {
		return err
	}
	e, err := n.egress()
	if err != nil {
		return err
	}
	client, err := m.hostOf(ctx, s.HostID)
	if err != nil {
		return err
	}
	_, err = client.UpdateSandbox(ctx, &hostpb.UpdateSandboxRequest{SandboxId: string(s.ID), Revision: s.Life.Revision, Egress: e, ExposedPorts: n.Ports})
	return hostFault(ctx, err, s.HostID)
}

// followsNot has a host told again that shows an older revision of a sandbox's
// network than its row has.
func (m *Master) followsNot(ctx context.Context, s sandbox.Sandbox) error {
	m.log.WarnContext(ctx, "host does not follow the network of a sandbox; it is told again", slog.String("sandbox_id", string(s.ID)), slog.String("host_id", string(s.HostID)))
	err := m.update(ctx, func(tx *store.Tx) error {
		waits, err := tx.Waits(ctx, topicNetwork, string(s.ID))
		if err != nil || waits {
			return err
		}
		return tx.Enqueue(ctx, store.Message{Topic: topicNetwork, Key: string(s.ID), Trace: traceOf(ctx)}, 0)
	})
	m.deliverSoon(topicNetwork)
	return err
}
