package cubelet

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

// resolver is what a sandbox's resolver is told.
type resolver struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// hostResolver is where the machine says which name servers it asks.
const hostResolver = "/etc/resolv.conf"

// control is where the control plane listens, as far as this host knows it:
// its ports, and the addresses that its names have now. A name that cannot be
// resolved is told of and costs only its address.
func (c *Cubelet) control(ctx context.Context) (ports []uint16, plane []netip.AddrPort) {
	ports = []uint16{uint16(c.port)} //nolint:gosec // of an address that is listened on
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	for _, addr := range []string{c.cfg.Master.Addr, c.cfg.Master.TemplateCenterAddr} {
		u, err := url.Parse(addr)
		if err != nil || u.Hostname() == "" {
			continue // a cubelet may not know the template centre
		}
		port := portOf(u)
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", u.Hostname())
		if err != nil {
			c.log.WarnContext(ctx, "the addresses of the control plane are not known: in private networks its ports stay shut, elsewhere sandboxes with a way out may reach it", slog.String("address", u.Host), slog.String("error", err.Error()))
		}
		for _, ip := range ips {
			plane = append(plane, netip.AddrPortFrom(ip.Unmap(), port))
		}
	}
	return ports, plane
}

// resolveTime bounds the wait for name servers at the start.
const resolveTime = 5 * time.Second

// portOf is that of a URL, or of its scheme.
func portOf(u *url.URL) uint16 {
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil && n > 0 {
		return uint16(n)
	}
	if u.Scheme == "https" {
		return 443
	}
	return 80
}

// ways is what e may reach, as the rules want it; empty when that is nothing.
func ways(e entry) map[network.Network]network.Policy {
	if e.Egress == nil {
		return nil
	}
	return map[network.Network]network.Policy{e.Network: *e.Egress}
}

func egressOf(r *hostpb.Egress) (*network.Policy, error) {
	if r == nil {
		return nil, nil //nolint:nilnil // no policy is one
	}
	allow, err := networks(r.GetAllow())
	if err != nil {
		return nil, err
	}
	deny, err := networks(r.GetDeny())
	return &network.Policy{Internet: r.GetInternet(), Allow: allow, Deny: deny}, err
}

func networks(list []string) (all []netip.Prefix, err error) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil || !p.Addr().Is4() {
			return nil, fault.New(fault.InvalidInput, "egress %.64q: must be a network of IPv4", s)
		}
		all = append(all, p)
	}
	return all, nil
}

func resolverOf(r *hostpb.Resolver) (*resolver, error) {
	if r == nil {
		return nil, nil //nolint:nilnil // none is one
	}
	for _, s := range slices.Concat(r.GetServers(), r.GetSearches(), r.GetOptions()) {
		if s == "" || strings.ContainsAny(s, " \t\r\n\x00") {
			return nil, fault.New(fault.InvalidInput, "resolver: %.64q", s)
		}
	}
	return &resolver{Servers: r.GetServers(), Searches: r.GetSearches(), Options: r.GetOptions()}, nil
}

// resolvConf is the sandbox's /etc/resolv.conf: the servers that it was made
// with, else those of the machine that it may reach. Without any, programs are
// told at once that no name is found.
func resolvConf(e entry, machine string) string {
	r := resolver{}
	if e.Resolver != nil {
		r = *e.Resolver
	}
	if len(r.Servers) == 0 && e.Egress != nil {
		r.Servers = reachable(*e.Egress, machine)
	}
	var b strings.Builder
	for _, s := range r.Servers {
		b.WriteString("nameserver " + s + "\n")
	}
	if len(r.Servers) == 0 {
		b.WriteString("# This sandbox reaches no name server.\n")
		r.Options = []string{"attempts:1", "timeout:1"}
	}
	if len(r.Searches) > 0 {
		b.WriteString("search " + strings.Join(r.Searches, " ") + "\n")
	}
	if len(r.Options) > 0 {
		b.WriteString("options " + strings.Join(r.Options, " ") + "\n")
	}
	return b.String()
}

// reachable returns the name servers of the machine that a policy lets through.
func reachable(y network.Policy, machine string) (servers []string) {
	b, err := os.ReadFile(machine)
	if err != nil {
		return nil // a sandbox without names is better than none
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if ip, err := netip.ParseAddr(f[1]); err == nil && y.Reaches(ip) {
			servers = append(servers, f[1])
		}
	}
	return servers
}
