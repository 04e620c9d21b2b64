package master

import (
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
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
				Labels: req.Labels, Capacity: req.Capacity, Allocatable: req.Allocatable, Version: req.Version, Revision: req.Revision,
			})
		})
	}
	m.fleet.changed()
	m.answer(w, r, req.RequestID, err)
}

// serveStatus takes a report, and answers what operators want of its host.
func (m *Master) serveStatus(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.HostStatusRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = checkStatus(req)
	}
	id := host.ID(r.PathValue("node_id"))
	status := statusOf(req)
	var wish host.Wish
	if err == nil {
		err = m.update(r.Context(), func(tx *store.Tx) (err error) {
			status.Usage.MetricAt = tx.Now.Add(-time.Duration(req.MetricAgeMS) * time.Millisecond)
			if err = sandboxdb.HeardHost(r.Context(), tx, id, status); err == nil {
				wish, err = sandboxdb.WishOf(r.Context(), tx, id)
			}
			return err
		})
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	m.fleet.heard(id, status)
	serve.WriteJSON(w, http.StatusOK, cubeapi.HostStatusAnswer{Envelope: cubeapi.OK(named(r, req.RequestID)), Quota: &wish.Quota})
}

func statusOf(q cubeapi.HostStatusRequest) host.Status {
	return host.Status{
		Ready: q.Ready, Reason: clip(q.Reason), Allocated: q.Allocated, Sandboxes: q.Sandboxes, Artifacts: q.Artifacts, CPUUtil: q.CPUUtil, Room: q.Allocatable, QuotaRevision: q.QuotaRevision,
		Usage: host.Usage{
			CPUType: q.CPUType, CPULoad: q.CPULoad, MemUsedBytes: q.MemUsedMiB << 20, DataDisk: q.DataDisk, StorageDisk: q.StorageDisk, SysDisk: q.SysDisk,
			Creating: q.Creating, CreateLimit: q.CreateLimit, MaxSandboxes: q.MaxSandboxes, Revision: q.Revision,
		},
	}
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
