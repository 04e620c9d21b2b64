package master

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
)

const maxBody = 1 << 20

// dialer keeps one connection to each host.
type dialer struct {
	token config.Secret
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

func newDialer(token config.Secret) *dialer {
	return &dialer{token: token, conns: map[string]*grpc.ClientConn{}}
}

// to returns the client of a host. Nothing is sent yet.
func (d *dialer) to(f host.Facts) (hostpb.HostServiceClient, error) {
	addr := net.JoinHostPort(f.IP, strconv.Itoa(f.GRPCPort))
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.conns[addr]
	if c == nil {
		var err error
		c, err = grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(auth.Credentials(d.token)), grpc.WithStatsHandler(otelgrpc.NewClientHandler()))
		if err != nil {
			return nil, fault.Wrap(fault.HostUnreachable, err, "host %s at %s", f.ID, addr)
		}
		d.conns[addr] = c
	}
	return hostpb.NewHostServiceClient(c), nil
}

func (d *dialer) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, c := range d.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// hostFault words a failed call of a host. What the host itself said keeps its
// code; a transport that failed is the host out of reach.
func hostFault(err error, id host.ID) error {
	err = serve.FromGRPC(err)
	if errors.Is(err, fault.PeerUnavailable) {
		return fault.Wrap(fault.HostUnreachable, err, "host %s", id)
	}
	return err
}

// fleet is what the scheduler looks at.
type fleet struct {
	db     *store.Store
	placer *scheduler.Scheduler
	ledger *scheduler.Ledger

	mu    sync.Mutex
	view  *scheduler.View
	dirty bool
	read  time.Time // when the view was read, by this process's clock
}

// viewAge is how old a view may be: other masters' changes are seen within it.
const viewAge = 500 * time.Millisecond

func newFleet(db *store.Store, placer *scheduler.Scheduler) *fleet {
	return &fleet{db: db, placer: placer, ledger: scheduler.NewLedger()}
}

// changed makes the next look read anew.
func (f *fleet) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = true
}

// now returns a view that is fresh enough, and the database's time that belongs
// to it.
func (f *fleet) now(ctx context.Context) (*scheduler.View, time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	age := time.Since(f.read)
	if f.view != nil && !f.dirty && age < viewAge {
		return f.view, f.view.BuiltAt().Add(age), nil
	}
	err := f.db.View(ctx, func(tx *store.Tx) error {
		hosts, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil {
			return err
		}
		held, err := templatedb.AllPlacements(ctx, tx)
		if err != nil {
			return err
		}
		for i := range hosts {
			// A host's next report will say so too: the rows know first.
			for _, a := range held[hosts[i].ID] {
				hosts[i].Artifacts = append(hosts[i].Artifacts, string(a))
			}
		}
		f.view = scheduler.NewView(hosts, tx.Now)
		return nil
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	f.read, f.dirty = time.Now(), false
	f.ledger.Observe(f.view)
	return f.view, f.view.BuiltAt(), nil
}

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
		err = m.db.Update(r.Context(), func(tx *store.Tx) error {
			return sandboxdb.PutHost(r.Context(), tx, host.Registration{
				ID: host.ID(req.NodeID), IP: req.HostIP, GRPCPort: req.GRPCPort, InstanceType: req.InstanceType, ClusterLabel: req.ClusterLabel, Zone: req.Zone,
				Labels: req.Labels, Capacity: req.Capacity, Allocatable: req.Allocatable, Version: req.Version,
			})
		})
	}
	m.answer(w, r, req.RequestID, err)
	m.fleet.changed()
}

func checkHost(r cubeapi.HostRegisterRequest) error {
	switch {
	case r.NodeID == "" || len(r.NodeID) > 128:
		return fault.New(fault.InvalidInput, "node_id must have 1 to 128 characters")
	case net.ParseIP(r.HostIP) == nil:
		return fault.New(fault.InvalidInput, "host_ip %q is no IP address", r.HostIP)
	case r.GRPCPort < 1 || r.GRPCPort > 65535:
		return fault.New(fault.InvalidInput, "grpc_port %d", r.GRPCPort)
	}
	return nil
}

func (m *Master) serveStatus(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.HostStatusRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = m.db.Update(r.Context(), func(tx *store.Tx) error {
			return sandboxdb.HeardHost(r.Context(), tx, host.ID(r.PathValue("node_id")), host.Status{
				Ready: req.Ready, Reason: req.Reason, Allocated: req.Allocated, Sandboxes: req.Sandboxes, Artifacts: req.Artifacts, CPUUtil: req.CPUUtil,
			})
		})
	}
	m.answer(w, r, req.RequestID, err)
	m.fleet.changed()
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
	answer := cubeapi.HostAnswer{Envelope: cubeapi.OK(requestID(r))}
	err := m.db.View(r.Context(), func(tx *store.Tx) error {
		f, err := sandboxdb.GetHost(r.Context(), tx, host.ID(r.PathValue("node_id")))
		if err == nil {
			h := m.showHost(f, tx.Now)
			answer.Data = &h
		}
		return err
	})
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
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
