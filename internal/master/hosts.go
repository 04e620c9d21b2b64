package master

import (
	"net"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const maxBody = 1 << 20

func requestID(r *http.Request) string { return logs.RequestID(r.Context()) }

// named takes the request id that a body carries, or makes one.
func named(r *http.Request, given string) string {
	if given != "" {
		return given
	}
	if own := requestID(r); own != "" {
		return own
	}
	return id.New("req-")
}

func (m *Master) serveRegister(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.HostRegisterRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = checkHost(req)
	}
	if err == nil {
		err = m.update(r.Context(), func(tx *store.Tx) error {
			return sandboxdb.PutHost(r.Context(), tx, host.Registration{
				ID: host.ID(req.NodeID), IP: req.HostIP, GRPCPort: req.GRPCPort, InstanceType: req.InstanceType, ClusterLabel: req.ClusterLabel, Zone: req.Zone,
				Labels: req.Labels, Capacity: req.Capacity, Allocatable: req.Allocatable, Version: req.Version,
			})
		})
	}
	m.fleet.changed()
	m.answer(w, r, req.RequestID, err)
}

func checkHost(r cubeapi.HostRegisterRequest) error {
	a := r.Allocatable
	switch {
	case r.NodeID == "" || len(r.NodeID) > 128:
		return fault.New(fault.InvalidInput, "node_id must have 1 to 128 characters")
	case net.ParseIP(r.HostIP) == nil:
		return fault.New(fault.InvalidInput, "host_ip %.80q is no IP address", r.HostIP)
	case r.GRPCPort < 1 || r.GRPCPort > 65535:
		return fault.New(fault.InvalidInput, "grpc_port %d", r.GRPCPort)
	case r.InstanceType == "" || len(r.InstanceType) > maxKind:
		return fault.New(fault.InvalidInput, "instance_type must have 1 to %d characters", maxKind)
	case a.MilliCPU < 0 || a.MemBytes < 0 || a.DiskBytes < 0 || a.Slots < 0:
		return fault.New(fault.InvalidInput, "allocatable has a value under 0")
	}
	return nil
}

func (m *Master) serveStatus(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.HostStatusRequest
	err := serve.ReadJSON(r, maxBody, &req)
	id := host.ID(r.PathValue("node_id"))
	status := host.Status{Ready: req.Ready, Reason: req.Reason, Allocated: req.Allocated, Sandboxes: req.Sandboxes, Artifacts: req.Artifacts, CPUUtil: req.CPUUtil}
	if err == nil {
		err = m.update(r.Context(), func(tx *store.Tx) error { return sandboxdb.HeardHost(r.Context(), tx, id, status) })
	}
	if err == nil {
		m.fleet.heard(id, status)
	}
	m.answer(w, r, req.RequestID, err)
}

// answer sends an envelope and nothing else.
func (m *Master) answer(w http.ResponseWriter, r *http.Request, id string, err error) {
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.OK(named(r, id)))
}

func (m *Master) serveHosts(w http.ResponseWriter, r *http.Request) {
	answer := cubeapi.HostListAnswer{Envelope: cubeapi.OK(requestID(r)), Data: []cubeapi.Host{}}
	err := m.db.View(r.Context(), func(tx *store.Tx) error {
		list, err := sandboxdb.ListHosts(r.Context(), tx)
		for _, f := range list {
			answer.Data = append(answer.Data, m.showHost(f, tx.Now))
		}
		return err
	})
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) serveHost(w http.ResponseWriter, r *http.Request) {
	var h cubeapi.Host
	err := m.db.View(r.Context(), func(tx *store.Tx) (err error) {
		h, err = m.hostIn(r, tx)
		return err
	})
	m.answerHost(w, r, h, err)
}

// serveCordon keeps new sandboxes and templates away from a host, or ends that.
// What is there stays.
func (m *Master) serveCordon(cordoned bool) http.HandlerFunc {
	action := actHostCordon
	if !cordoned {
		action = actHostUncordon
	}
	return func(w http.ResponseWriter, r *http.Request) {
		var h cubeapi.Host
		err := m.update(r.Context(), func(tx *store.Tx) (err error) {
			if err := sandboxdb.SetCordon(r.Context(), tx, host.ID(r.PathValue("node_id")), cordoned); err != nil {
				return err
			}
			if err := audit(r.Context(), tx, action, r.PathValue("node_id")); err != nil {
				return err
			}
			h, err = m.hostIn(r, tx)
			return err
		})
		m.fleet.changed()
		m.answerHost(w, r, h, err)
	}
}

// hostIn returns the host that a request names, as shown.
func (m *Master) hostIn(r *http.Request, tx *store.Tx) (cubeapi.Host, error) {
	f, err := sandboxdb.GetHost(r.Context(), tx, host.ID(r.PathValue("node_id")))
	return m.showHost(f, tx.Now), err
}

func (m *Master) answerHost(w http.ResponseWriter, r *http.Request, h cubeapi.Host, err error) {
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.HostAnswer{Envelope: cubeapi.OK(requestID(r)), Data: &h})
}

func (m *Master) showHost(f host.Facts, now time.Time) cubeapi.Host {
	health, reason := host.HealthOf(f, now, m.cfg.Master.HostStaleAfter), f.Reason
	if health == host.Unknown {
		reason = "not heard of for " + now.Sub(f.HeardAt).Round(time.Second).String()
	}
	return cubeapi.Host{
		NodeID: string(f.ID), HostIP: f.IP, GRPCPort: f.GRPCPort, InstanceType: f.InstanceType, Labels: f.Labels, Health: string(health), Reason: reason, Cordoned: f.Cordoned,
		Allocatable: f.Allocatable, Allocated: f.Allocated, Sandboxes: f.Sandboxes, Artifacts: f.Artifacts, HeartbeatAt: f.HeardAt.UTC().Format(time.RFC3339Nano),
	}
}
