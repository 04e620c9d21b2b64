package network

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// rules shut sandboxes in. The first chain sees a packet before it is known
// whether it is for this machine or for another, so it holds also where the
// machine forwards nothing, and says no at once instead of letting it get lost.
// A source that has no route by the link it came from is not the sandbox's, and
// is dropped before anything else: what it says may look like another's reply.
// What a sandbox may do besides is a chain of its own: see Permit.
var rules = template.Must(template.New("nft").Parse(`
table inet {{.Table}}
delete table inet {{.Table}}
table inet {{.Table}} {
	set never {
		type ipv4_addr; flags interval;
		elements = { {{.Never}} }
	}
	set private {
		type ipv4_addr; flags interval;
		elements = { {{.Private}} }
	}
	set control {
		type inet_service;
		{{with .Control}}elements = { {{.}} }{{end}}
	}
	set plane {
		type ipv4_addr . inet_service;
		{{with .Plane}}elements = { {{.}} }{{end}}
	}
	set open {
		type ifname;
	}
	set away {
		type ipv4_addr;
	}
	map policies {
		type ifname : verdict;
	}
	chain from {
		type filter hook prerouting priority 10; policy accept;
		iifname "{{.Links}}*" jump shut
	}
	chain shut {
		fib saddr . iif oif missing drop
		ct state established,related accept
		iifname vmap @policies
		meta l4proto tcp reject with tcp reset
		reject with icmpx type admin-prohibited
	}
	chain to {
		type filter hook forward priority 0; policy accept;
		oifname "{{.Links}}*" ct state established,related accept
		oifname "{{.Links}}*" drop
		iifname @open accept
		iifname "{{.Links}}*" drop
	}
	chain out {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr @away oifname != "{{.Links}}*" masquerade
	}
}
`))

// Open lays the rules that shut sandboxes in. No policy is left after it: those
// of sandboxes that run must be permitted again. The plane is where the control
// plane listens: no policy opens it, wherever that is.
func (p *Pool) Open(ctx context.Context, plane ...netip.AddrPort) error {
	ports := make([]string, len(p.control))
	for i, port := range p.control {
		ports[i] = strconv.Itoa(int(port))
	}
	var places []string
	for _, a := range plane {
		if place := fmt.Sprintf("%s . %d", a.Addr().Unmap(), a.Port()); a.Addr().Unmap().Is4() && !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	var script bytes.Buffer
	fill := map[string]string{"Table": p.table(), "Links": p.prefix(), "Never": set(append(slices.Clone(never), p.subnet)), "Private": set(private), "Control": strings.Join(ports, ", "), "Plane": strings.Join(places, ", ")}
	if err := rules.Execute(&script, fill); err != nil {
		return err
	}
	return p.nft(ctx, &script, "-f", "-")
}

// Close removes the rules.
func (p *Pool) Close(ctx context.Context) error {
	return p.nft(ctx, strings.NewReader(""), "delete", "table", "inet", p.table())
}

// nft changes the rules, one change at a time.
func (p *Pool) nft(ctx context.Context, in io.Reader, args ...string) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	c := exec.CommandContext(ctx, "nft", args...)
	c.Stdin = in
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
