package master

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
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
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	maxBody = 1 << 20

	// dialTime is how long a host that is switched off may hold up a call.
	dialTime = 3 * time.Second
)

// reconnect is how soon a host that was away is tried again: it must not be
// taken for dead long after it is back.
var reconnect = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}

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
	addr := address(f)
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.conns[addr]
	if c == nil {
		var err error
		c, err = grpc.NewClient("passthrough:///"+addr, append(serve.DialOptions(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithPerRPCCredentials(auth.Credentials(d.token)),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: dialTime, Backoff: reconnect}))...)
		if err != nil {
			return nil, fault.Wrap(fault.HostUnreachable, err, "host %s at %s", f.ID, addr)
		}
		d.conns[addr] = c
	}
	return hostpb.NewHostServiceClient(c), nil
}

// keep closes the connections to addresses that no host has any more.
func (d *dialer) keep(hosts []host.Facts) error {
	known := map[string]bool{}
	for _, f := range hosts {
		known[address(f)] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for addr, c := range d.conns {
		if !known[addr] {
			errs = append(errs, c.Close())
			delete(d.conns, addr)
		}
	}
	return errors.Join(errs...)
}

func address(f host.Facts) string { return net.JoinHostPort(f.IP, strconv.Itoa(f.GRPCPort)) }

func (d *dialer) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, c := range d.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// hostFault words a failed call of a host that was made on ctx. What the host
// itself said keeps its code. A transport that failed is the host out of reach,
// and so is one that ended a call that its caller did not: the connection was
// closed because the host has another address now.
func hostFault(ctx context.Context, err error, id host.ID) error {
	err = serve.FromGRPC(err)
	var own *fault.Error // what a host said is of another type
	if !errors.As(err, &own) {
		return err
	}
	if own.Code == fault.PeerUnavailable || own.Code == fault.CallCancelled && ctx.Err() == nil {
		return fault.Wrap(fault.HostUnreachable, err, "host %s", id)
	}
	return err
}

// fleet is what the scheduler looks at.
type fleet struct {
	db         *store.Store
	placer     *scheduler.Scheduler
	ledger     *scheduler.Ledger
	staleAfter time.Duration

	mu    sync.Mutex
	view  *scheduler.View
	dirty bool
	read  time.Time // when the view was read, by this process's clock
}

// viewAge is how old a view may be: other masters' changes are seen within it.
const viewAge = 500 * time.Millisecond

func newFleet(db *store.Store, placer *scheduler.Scheduler, staleAfter time.Duration) *fleet {
	return &fleet{db: db, placer: placer, ledger: scheduler.NewLedger(), staleAfter: staleAfter}
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
	var view *scheduler.View
	err := f.db.View(ctx, func(tx *store.Tx) error {
		hosts, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil {
			return err
		}
		noted, err := templatedb.PlacementsSince(ctx, tx, tx.Now.Add(-2*f.staleAfter))
		if err != nil {
			return err
		}
		view = scheduler.NewView(withNoted(hosts, noted, f.staleAfter), tx.Now)
		return nil
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	f.view, f.read, f.dirty = view, time.Now(), false
	f.ledger.Observe(f.view)
	return f.view, f.view.BuiltAt(), nil
}

// withNoted adds to what hosts report what was noted of them lately: a host's
// own word counts, but the report that shows an artifact comes after the row,
// and one that was on its way meanwhile does not show it.
func withNoted(hosts []host.Facts, noted []template.Placement, lately time.Duration) []host.Facts {
	for i := range hosts {
		for _, p := range noted {
			if p.HostID == hosts[i].ID && p.CreatedAt.After(hosts[i].HeardAt.Add(-lately)) {
				hosts[i].Artifacts = append(hosts[i].Artifacts, string(p.ArtifactID))
			}
		}
	}
	return hosts
}

// heard makes the next look read anew if a report changes who may be chosen.
func (f *fleet) heard(id host.ID, s host.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.view == nil {
		return
	}
	known, ok := f.view.Host(id)
	f.dirty = f.dirty || !ok || known.Ready != s.Ready || f.view.BuiltAt().Sub(known.HeardAt) > f.staleAfter
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
