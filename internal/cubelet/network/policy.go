package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/template"
)

// Policy is what a sandbox may reach by itself. The zero one is nothing.
//
// Some addresses it never reaches, whatever the policy says: this machine,
// other sandboxes, link-local addresses and others where clouds serve
// credentials, the addresses of the control plane that Open is told, and its
// ports in private networks. A private network is
// reached only by an entry of Allow that lies in it: neither the internet nor a
// wider entry means it. Of Allow and Deny, Allow counts.
type Policy struct {
	Internet bool           `json:"internet,omitempty"` // every public address
	Allow    []netip.Prefix `json:"allow,omitempty"`
	Deny     []netip.Prefix `json:"deny,omitempty"`
}

// Shut reports whether p lets nothing out.
func (p Policy) Shut() bool { return !p.Internet && len(p.Allow) == 0 }

// Reaches reports whether p lets a sandbox reach ip, as far as the address
// alone decides that.
func (p Policy) Reaches(ip netip.Addr) bool {
	if !ip.Is4() {
		return false
	}
	one := netip.PrefixFrom(ip, 32)
	for _, a := range p.Allow {
		if a.Contains(ip) && !within(one, never) && (within(a, private) || !within(one, private)) {
			return true
		}
	}
	return p.Internet && !within(one, slices.Concat(never, private, p.Deny))
}

func prefixes(list ...string) (all []netip.Prefix) {
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

var (
	// never are addresses that lead to nobody else, or to the cloud's own
	// services: link-local ones, those of IETF protocols (Oracle's cloud), the
	// one of Azure and the one of Alibaba's cloud. Of the IANA's registry of
	// special purposes the rest is left out on purpose: what everybody may reach,
	// and documentation's, which leads nowhere.
	never = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/3", "168.63.129.16/32", "100.100.100.200/32")
	// private are the networks that are not of the internet.
	private = prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15")
)

func within(ip netip.Prefix, nets []netip.Prefix) bool {
	for _, n := range nets {
		if n.Bits() <= ip.Bits() && n.Contains(ip.Addr()) {
			return true
		}
	}
	return false
}

// reduce drops what another entry covers: the kernel takes no set whose
// intervals overlap.
func reduce(list []netip.Prefix) (least []netip.Prefix) {
	for i, p := range list {
		covered := false
		for j, other := range list {
			wider := other.Bits() < p.Bits() || other.Bits() == p.Bits() && j < i
			covered = covered || wider && other.Contains(p.Addr())
		}
		if !covered {
			least = append(least, p.Masked())
		}
	}
	return least
}

// set writes prefixes as a set of nft; empty when there are none.
func set(list []netip.Prefix) string {
	words := make([]string, 0, len(list))
	for _, p := range reduce(list) {
		words = append(words, p.String())
	}
	return strings.Join(words, ", ")
}

// permit is the chain of one sandbox: what it accepts goes out, what it returns
// from is refused. Replies never come here.
var permit = template.Must(template.New("nft").Parse(`
add chain inet {{.Table}} {{.Chain}}
flush chain inet {{.Table}} {{.Chain}}
add rule inet {{.Table}} {{.Chain}} meta nfproto != ipv4 return
add rule inet {{.Table}} {{.Chain}} ip saddr != {{.IP}} return
add rule inet {{.Table}} {{.Chain}} fib daddr type != unicast return
add rule inet {{.Table}} {{.Chain}} ip daddr @never return
add rule inet {{.Table}} {{.Chain}} meta l4proto { tcp, udp } ip daddr . th dport @plane return
add rule inet {{.Table}} {{.Chain}} ip daddr @private meta l4proto { tcp, udp } th dport @control return
{{with .Private}}add rule inet {{$.Table}} {{$.Chain}} ip daddr { {{.}} } accept{{end}}
add rule inet {{.Table}} {{.Chain}} ip daddr @private return
{{with .Public}}add rule inet {{$.Table}} {{$.Chain}} ip daddr { {{.}} } accept{{end}}
{{with .Deny}}add rule inet {{$.Table}} {{$.Chain}} ip daddr { {{.}} } return{{end}}
{{if .Internet}}add rule inet {{.Table}} {{.Chain}} accept{{end}}
add element inet {{.Table}} policies { "{{.Link}}" : jump {{.Chain}} }
add element inet {{.Table}} open { "{{.Link}}" }
add element inet {{.Table}} away { {{.IP}} }
`))

var forbid = template.Must(template.New("nft").Parse(`
delete element inet {{.Table}} policies { "{{.Link}}" : jump {{.Chain}} }
delete element inet {{.Table}} open { "{{.Link}}" }
delete element inet {{.Table}} away { {{.IP}} }
flush chain inet {{.Table}} {{.Chain}}
delete chain inet {{.Table}} {{.Chain}}
`))

// sheet is what the scripts of one sandbox are filled with.
type sheet struct {
	Table, Chain, Link, IP, Private, Public, Deny string
	Internet                                      bool
}

func (p *Pool) sheet(n Network, y Policy) sheet {
	s := sheet{Table: p.table(), Chain: fmt.Sprintf("s%d", n.Slot), Link: p.link(n.Slot), IP: n.IP, Internet: y.Internet}
	var inside, outside []netip.Prefix
	for _, a := range y.Allow {
		switch {
		case within(a, private):
			inside = append(inside, a)
		case a.Bits() == 0: // all of the internet, whatever is denied
			s.Internet, y.Deny = true, nil
		default:
			outside = append(outside, a)
		}
	}
	for _, d := range y.Deny {
		if d.Bits() == 0 {
			s.Internet, y.Deny = false, nil
			break
		}
	}
	s.Private, s.Public, s.Deny = set(inside), set(outside), set(y.Deny)
	return s
}

// Permit lets each sandbox reach what its policy says, all of them at once or,
// on an error, none. A policy that lets nothing out needs no rule. It takes
// the place of an earlier one.
func (p *Pool) Permit(ctx context.Context, policies map[Network]Policy) error {
	var script bytes.Buffer
	var open []int
	for n, y := range policies {
		if y.Shut() {
			continue
		}
		if err := permit.Execute(&script, p.sheet(n, y)); err != nil {
			return err
		}
		open = append(open, n.Slot)
	}
	if len(open) == 0 {
		return nil
	}
	if err := forward(); err != nil {
		return err
	}
	// Marked first: a script that was cut off may have done its work.
	p.mu.Lock()
	for _, slot := range open {
		p.ruled[slot] = true
	}
	p.mu.Unlock()
	return p.nft(ctx, &script, "-f", "-")
}

// Change has a sandbox that runs reach what another policy says, and nothing
// else from then on: its connections end, and those that it may have begin anew.
func (p *Pool) Change(ctx context.Context, n Network, y Policy) error {
	if y.Shut() {
		return p.shut(ctx, n)
	}
	if err := p.Permit(ctx, map[Network]Policy{n: y}); err != nil {
		return err
	}
	return p.tracked.forget(ctx, p.address(n.Slot))
}

// shut takes back what Permit did for a sandbox, and what the kernel remembers
// of its connections: it may have lost its leave, and whoever has the address
// next must not inherit them.
func (p *Pool) shut(ctx context.Context, n Network) error {
	p.mu.Lock()
	ruled := p.ruled[n.Slot]
	p.mu.Unlock()
	if !ruled {
		return nil
	}
	var clean, script bytes.Buffer
	sheet := p.sheet(n, Policy{})
	// Laid once more before it is removed: then all of it is there.
	if err := errors.Join(permit.Execute(&clean, sheet), forbid.Execute(&script, sheet)); err != nil {
		return err
	}
	if _, err := script.WriteTo(&clean); err != nil {
		return err
	}
	if err := p.nft(ctx, &clean, "-f", "-"); err != nil {
		return err
	}
	if err := p.tracked.forget(ctx, p.address(n.Slot)); err != nil {
		return err
	}
	p.mu.Lock()
	delete(p.ruled, n.Slot)
	p.mu.Unlock()
	return nil
}

// forwarding is the machine's switch for packets that are not its own.
const forwarding = "/proc/sys/net/ipv4/ip_forward"

// forward makes the machine hand on packets at all. It stays so: others may
// have come to need it meanwhile.
func forward() error {
	b, err := os.ReadFile(forwarding)
	if err == nil && strings.TrimSpace(string(b)) == "1" {
		return nil
	}
	if err := os.WriteFile(forwarding, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("this machine hands on no packets, and that cannot be changed (sysctl net.ipv4.ip_forward=1): %w", err)
	}
	return nil
}
