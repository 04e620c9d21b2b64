package master

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// dialTime is how long a host that is switched off may hold up a call.
const dialTime = 3 * time.Second

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
